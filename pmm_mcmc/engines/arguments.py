"""The arguments of a method, checked, and what follows from them before any draw."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from pmm_mcmc.engines.argument_checks import CHECKS, OFFSETS, choice
from pmm_mcmc.langevin.methods import GHMC, HARMONIC, MALA, METHODS, OVERDAMPED, UNDERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.midpoints import IMPORTANCE_POWER

__all__ = ["MethodArguments"]

_DYNAMICS = {"overdamped": OVERDAMPED, "underdamped": UNDERDAMPED}
# Defaults of the arguments that only a step in cells has.
_CELL_DEFAULTS = {"option": 2, "grid": "auto", "K": None, "midpoint": "uniform"}


@dataclass(frozen=True)
class MethodArguments:
    """The checked arguments of a method; ``None`` stands for "auto".

    Raises
    ------
    ValueError
        For any argument outside its range; the message names argument, value and remedy.
    """

    method: str
    dynamics: str = "underdamped"
    step_size: float | None = None
    K: int | None = None
    friction: float | None = None
    option: int = 2
    grid: str = "auto"
    scheme: str = "paper"
    midpoint: str = "uniform"
    steps_per_draw: int | None = None
    scaling: tuple[float, ...] | None = None
    target_bias: float = 0.05
    reparametrise: str | tuple[tuple[str, str], ...] = "auto"  # or "no", or pairs of variable and choice
    automatic: bool = field(default=False, compare=False, repr=False)  # scheme="auto" was requested

    @classmethod
    def checked(cls, method: str, **values: Any) -> MethodArguments:
        """Check everything that can be checked without a model; arguments that are left out have their defaults."""
        dynamics = values.pop("dynamics", METHODS[method].dynamics[0])
        choice(*METHODS[method].dynamics)("dynamics", dynamics)
        if method == "MALA":
            values["friction"] = 1.0  # which has no effect: velocities are fresh, and nothing is to be tried
        arguments = cls(method, dynamics, **{name: CHECKS[name](name, value) for name, value in values.items()})
        if arguments.midpoint == "importance" and arguments.option == 1:
            raise ValueError(
                "midpoint='importance' does not apply to option=1, which marks every cell with probability 1/K: leave "
                "midpoint out, or use option=2"
            )
        cell_arguments = [name for name, default in _CELL_DEFAULTS.items() if getattr(arguments, name) != default]
        if arguments.scheme == "auto":
            automatic = method == "PoissonULMC" and not cell_arguments
            scheme = "recycled" if automatic else "paper"
            return replace(arguments, scheme=scheme, automatic=automatic)._with_grid()
        if arguments.scheme == "recycled":
            for name in cell_arguments:
                raise ValueError(
                    f"{name}={getattr(arguments, name)!r} does not apply to scheme='recycled', whose one midpoint is "
                    f"uniform over the whole step: leave {name} out, or use scheme='paper'"
                )
        return arguments._with_grid()

    def _with_grid(self) -> MethodArguments:
        """Return the arguments with the grid chosen: centred for a given K, on which few cells have no bias.

        An automatic K is large enough on the left grid.  K = 1 on it is Langevin Monte Carlo.
        """
        if self.grid != "auto":
            return self
        return replace(self, grid="centred" if self.K is not None and self.K > 1 else "left")

    @property
    def label(self) -> str:
        """The method's name, followed by its scheme if that is not the paper's."""
        return f"{self.method} (recycled scheme)" if self.scheme == "recycled" else self.method

    def settled(self, *, others: bool) -> MethodArguments:
        """Return the arguments with the scheme chosen; ``others`` says whether other steps move some variables.

        With other steps the recycled scheme, whose draws are midpoints, needs another gradient at the end of every
        step, so that ``scheme="auto"`` does not choose it there.
        """
        if not self.automatic:
            return self
        return replace(self, scheme="paper" if others else "recycled")

    def check_coordinates(self, d: int, of: str = "") -> None:
        """Raise ``ValueError`` if a fixed ``scaling`` does not fit ``d`` unconstrained coordinates."""
        if self.scaling is not None and self.reparametrise not in ("auto", "no"):
            raise ValueError(
                f"scaling with reparametrise={dict(self.reparametrise)!r}: a given scaling is one of the model's own "  # type: ignore[arg-type]
                "coordinates, and non-centring samples others; leave one of the two out"
            )
        if self.scaling is not None and len(self.scaling) != d:
            raise ValueError(
                f"scaling has length {len(self.scaling)}: must have {d} entries, one for each unconstrained "
                f"coordinate{of}"
            )

    @property
    def kernel(self) -> Kernel:
        """The method as numbers for an engine."""
        if self.method in ("GHMC", "MALA"):
            return GHMC if self.method == "GHMC" else MALA
        scheme = Scheme.CONTINUOUS if self.method == "RLMC" else Scheme.CELLS
        dynamics = _DYNAMICS[self.dynamics]
        if self.scheme == "recycled":
            scheme = Scheme.RECYCLED
            dynamics = HARMONIC
        power = IMPORTANCE_POWER if self.midpoint == "importance" else 0.0
        return Kernel(int(scheme), dynamics, self.option, OFFSETS[self.grid], power)

    @property
    def noncentring(self) -> dict[str, str] | None:
        """The requested choice by variable, or None where nothing may be non-centred.

        A fixed ``scaling`` excludes non-centring, since it is a scaling of the model's own coordinates.
        """
        if self.reparametrise == "no" or self.scaling is not None:
            return None
        return {} if self.reparametrise == "auto" else dict(self.reparametrise)  # type: ignore[arg-type]

    @property
    def fixed_K(self) -> int | None:
        """The fixed K, 1 for methods without K, and None where warm-up chooses it."""
        return self.K if self.method in ("PoissonOLMC", "PoissonULMC") and self.scheme == "paper" else 1

    @property
    def sees_curvature(self) -> bool:
        """Whether a step uses more than one gradient, so that it can estimate the curvature and be refined."""
        scheme = self.kernel.scheme
        return not self.kernel.adjusted and (scheme != Scheme.CELLS or self.fixed_K != 1 or self.grid == "centred")

    @property
    def needs_gradient_only(self) -> bool:
        """Whether the method evaluates gradients without the log density."""
        return self.sees_curvature and self.kernel.scheme != Scheme.RECYCLED

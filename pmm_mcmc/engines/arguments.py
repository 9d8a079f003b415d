"""The arguments of a method, checked; the parameters that warm-up tunes; and the draws that it learns them from."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.langevin.methods import GHMC, HARMONIC, METHODS, OVERDAMPED, UNDERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.midpoints import IMPORTANCE_POWER

__all__ = ["Block", "MethodArguments", "TunedParameters"]

_DYNAMICS = {"overdamped": OVERDAMPED, "underdamped": UNDERDAMPED}
_OFFSETS = {"left": 0.0, "centred": 0.5}


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _positive(kind: type, remedy: str) -> Callable[[str, Any], Any]:
    """Return the check of a positive number of a kind, ``None`` for "auto"."""
    convert: Any = int if kind is numbers.Integral else float
    expected = "an integer of at least 1" if convert is int else "a positive, finite number"

    def check(name: str, value: Any) -> Any:
        if _is_auto(value):
            return None
        wrong = isinstance(value, bool | np.bool_) or not isinstance(value, kind)
        if wrong or not 0 < value < math.inf:
            raise ValueError(f"{name}={value!r}: must be {expected}, or 'auto' {remedy}")
        return convert(value)

    return check


def _choice(*choices: Any) -> Callable[[str, Any], Any]:
    """Return the check that a value is one of the choices."""

    def check(name: str, value: Any) -> Any:
        if isinstance(value, bool | np.bool_) or not any(type(value) is type(c) and value == c for c in choices):
            raise ValueError(f"{name}={value!r}: must be {' or '.join(map(repr, choices))}")
        return value

    return check


def _target(name: str, value: Any) -> float:
    """Return a checked ``target_bias``."""
    wrong = isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real)
    if wrong or not 1e-4 <= value <= 0.5:
        raise ValueError(
            f"target_bias={value!r}: must be a number between 0.0001 and 0.5, in posterior standard deviations"
        )
    return float(value)


def _reparametrise(name: str, value: Any) -> str | tuple[tuple[str, str], ...]:
    """Return a checked ``reparametrise``: "auto", "no", or sorted pairs of variable and choice."""
    if _is_auto(value):
        return "auto"
    if value is False:
        return "no"
    if not isinstance(value, Mapping):
        raise ValueError(
            f"reparametrise={value!r}: must be 'auto', False, or a dict such as {{'theta': 'centred', 'b': "
            "'noncentred'}"
        )
    for name, choice in value.items():
        if not isinstance(name, str) or choice not in ("centred", "noncentred", "auto"):
            raise ValueError(
                f"reparametrise={dict(value)!r}: {name!r}: {choice!r} must be the name of a variable with 'centred', "
                "'noncentred' or 'auto'"
            )
    return tuple(sorted((name, choice) for name, choice in value.items() if choice != "auto"))


def _scaling(name: str, value: Any) -> tuple[float, ...] | None:
    """Return a checked ``scaling``; None for "auto"."""
    if _is_auto(value):
        return None
    remedy = "one positive number for each unconstrained coordinate (about its posterior sd), or 'auto'"
    try:
        array = np.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"scaling={value!r}: must be {remedy}") from None
    if array.ndim != 1:
        raise ValueError(f"scaling has shape {array.shape}: must be {remedy}")
    bad = np.flatnonzero(~(np.isfinite(array) & (array > 0)))
    if bad.size:
        raise ValueError(f"scaling[{bad[0]}]={float(array[bad[0]])!r}: must be {remedy}")
    return tuple(map(float, array))


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "step_size": _positive(numbers.Real, "to have it found in warm-up"),
    "K": _positive(numbers.Integral, "to have it follow from the step size"),
    "friction": _positive(numbers.Real, "for 1 in the posterior's own scale"),
    "option": _choice(1, 2),
    "grid": _choice(*_OFFSETS),
    "scheme": _choice("auto", "paper", "recycled"),
    "midpoint": _choice("uniform", "importance"),
    "steps_per_draw": _positive(numbers.Integral, "to have it found in warm-up"),
    "scaling": _scaling,
    "target_bias": _target,
    "reparametrise": _reparametrise,
}
# Arguments that apply to steps in cells alone, with their defaults.
_OF_CELLS = {"option": 2, "grid": "left", "K": None, "midpoint": "uniform"}


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
    grid: str = "left"
    scheme: str = "paper"
    midpoint: str = "uniform"
    steps_per_draw: int | None = None
    scaling: tuple[float, ...] | None = None
    target_bias: float = 0.05
    reparametrise: str | tuple[tuple[str, str], ...] = "auto"  # or "no", or pairs of variable and choice
    automatic: bool = field(default=False, compare=False, repr=False)  # scheme="auto" was requested

    @classmethod
    def checked(cls, method: str, *, dynamics: Any, **values: Any) -> MethodArguments:
        """Check everything that can be checked without a model; arguments that are left out have their defaults."""
        _choice(*METHODS[method].dynamics)("dynamics", dynamics)
        arguments = cls(method, dynamics, **{name: _CHECKS[name](name, value) for name, value in values.items()})
        if arguments.midpoint == "importance" and arguments.option == 1:
            raise ValueError(
                "midpoint='importance' does not apply to option=1, which marks every cell with probability 1/K: leave "
                "midpoint out, or use option=2"
            )
        of_cells = [name for name, default in _OF_CELLS.items() if getattr(arguments, name) != default]
        if arguments.scheme == "auto":
            automatic = method == "PoissonULMC" and not of_cells
            return replace(arguments, scheme="recycled" if automatic else "paper", automatic=automatic)
        if arguments.scheme == "recycled":
            for name in of_cells:
                raise ValueError(
                    f"{name}={getattr(arguments, name)!r} does not apply to scheme='recycled', whose one midpoint is "
                    f"uniform over the whole step: leave {name} out, or use scheme='paper'"
                )
        return arguments

    @property
    def words(self) -> str:
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
        if self.method == "GHMC":
            return GHMC
        scheme = Scheme.CONTINUOUS if self.method == "RLMC" else Scheme.CELLS
        dynamics = _DYNAMICS[self.dynamics]
        if self.scheme == "recycled":
            scheme = Scheme.RECYCLED
            dynamics = HARMONIC
        power = IMPORTANCE_POWER if self.midpoint == "importance" else 0.0
        return Kernel(int(scheme), dynamics, self.option, _OFFSETS[self.grid], power)

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


class TunedParameters(NamedTuple):
    """The parameters that an engine runs with: step size, K, friction, whitened coordinates, transitions per draw."""

    step_size: float
    K: int
    friction: float
    coordinates: Coordinates
    steps_per_draw: int


class Block(NamedTuple):
    """Draws of one block of warm-up, one for each transition.

    Positions ``z`` and gradients are ``(chain, n, d)``, the others ``(chain, n)``, as in
    :class:`pmm_mcmc.engines.contract.Chunk`.  Straight from an engine ``gradient`` is the evaluation
    ``(chain, n, width)``.
    """

    position: np.ndarray
    gradient: np.ndarray
    lp: np.ndarray
    unstable: np.ndarray
    refined: np.ndarray
    model_failures: np.ndarray
    accept: np.ndarray

    @classmethod
    def of(cls, chunk: Any) -> Block:
        """Return the fields of an engine's chunk that warm-up uses."""
        values = (getattr(chunk, "evaluation" if name == "gradient" else name) for name in cls._fields)
        return cls(*values)

    @classmethod
    def newest(cls, blocks: Sequence[Block], limit: int | None = None) -> Block:
        """Return the newest ``limit`` draws of successive blocks as one, by default all."""
        if len(blocks) == 1 and limit is None:
            return blocks[0]
        missing = sum(block.lp.shape[1] for block in blocks) if limit is None else limit
        pieces = []
        for block in reversed(blocks):
            if missing > 0:
                pieces.append(cls(*(array[:, -missing:] for array in block)))
                missing -= block.lp.shape[1]
        return cls(*(np.concatenate(array, axis=1) for array in zip(*reversed(pieces), strict=True)))

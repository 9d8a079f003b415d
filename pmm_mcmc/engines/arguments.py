"""The arguments of a method, checked one by one with errors that have a remedy, and what follows before any draw."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pmm_mcmc.langevin.methods import GHMC, HARMONIC, MALA, METHODS, OVERDAMPED, UNDERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.midpoints import IMPORTANCE_POWER

type Scaling = str | Sequence[float] | np.ndarray
type Reparametrise = str | bool | Mapping[str, str]

_DYNAMICS = {"overdamped": OVERDAMPED, "underdamped": UNDERDAMPED}
_OFFSETS = {"left": 0.0, "centred": 0.5}  # of a midpoint in its cell, by grid
_LARGEST_K = 2**20
# Defaults of the arguments that only a step in cells has.
_CELL_DEFAULTS = {"option": 2, "grid": "auto", "K": None, "midpoint": "uniform"}

# Names of the field, and of the paper's letters, for arguments that have other names here.
_SYNONYMS = {
    **dict.fromkeys(("alpha", "h", "eta", "epsilon", "eps", "dt", "step_scale", "stepsize", "lr"), "step_size"),
    **dict.fromkeys(("gamma", "damping"), "friction"),
    **dict.fromkeys(("n_midpoints", "cells", "k"), "K"),
    **dict.fromkeys(("thin", "thinning", "path_length"), "steps_per_draw"),
    **dict.fromkeys(("mass_matrix", "metric", "preconditioner"), "scaling"),
}


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
    def checked(
        cls, method: str, *, dynamics: str = "", step_size: float | str = "auto", K: int | str = "auto",
        friction: float | str = "auto", option: int = 2, grid: str = "auto", scheme: str = "paper",
        midpoint: str = "uniform", steps_per_draw: int | str = "auto", scaling: Scaling = "auto",
        target_bias: float = 0.05, reparametrise: Reparametrise = "auto",
    ) -> MethodArguments:  # fmt: skip
        """Check everything that can be checked without a model; a method without a choice of dynamics has its own."""
        if dynamics == "":
            dynamics = METHODS[method].dynamics[0]
        check_choice("dynamics", dynamics, *METHODS[method].dynamics)
        check_choice("option", option, 1, 2)
        check_choice("grid", grid, "auto", *_OFFSETS)
        check_choice("scheme", scheme, "auto", "paper", "recycled")
        check_choice("midpoint", midpoint, "uniform", "importance")
        if method == "MALA":
            friction = 1.0  # which has no effect: velocities are fresh, and nothing is to be tried
        wrong = isinstance(target_bias, bool | np.bool_) or not isinstance(target_bias, numbers.Real)
        if wrong or not 1e-4 <= target_bias <= 0.5:
            raise ValueError(
                f"target_bias={target_bias!r}: must be a number between 0.0001 and 0.5, in posterior standard "
                "deviations"
            )
        arguments = cls(
            method,
            dynamics,
            step_size=_number("step_size", step_size, "to have it found in warm-up"),
            K=_count("K", K, "to have it follow from the step size", _LARGEST_K),
            friction=_number("friction", friction, "for 1 in the posterior's own scale"),
            option=option,
            grid=grid,
            scheme=scheme,
            midpoint=midpoint,
            steps_per_draw=_count("steps_per_draw", steps_per_draw, "to have it found in warm-up"),
            scaling=_scaling(scaling),
            target_bias=float(target_bias),
            reparametrise=_reparametrise(reparametrise),
        )
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
        return Kernel(int(scheme), dynamics, self.option, _OFFSETS[self.grid], power)

    @property
    def noncentring(self) -> dict[str, str] | None:
        """The requested choice by variable, or None where nothing may be non-centred.

        A fixed ``scaling`` excludes non-centring, since it is a scaling of the model's own coordinates.
        """
        if self.reparametrise == "no" or self.scaling is not None:
            return None
        return {name: choice for name, choice in self._choices if choice != "integrated"}

    @property
    def integrated(self) -> list[str]:
        """The variables that are requested to be integrated out."""
        return [name for name, choice in self._choices if choice == "integrated"]

    @property
    def _choices(self) -> tuple[tuple[str, str], ...]:
        return () if isinstance(self.reparametrise, str) else self.reparametrise

    @property
    def fixed_K(self) -> int | None:
        """The fixed K, 1 for methods without K, and None where warm-up chooses it."""
        return self.K if self.method in ("PoissonOLMC", "PoissonULMC") and self.scheme == "paper" else 1

    @property
    def sees_curvature(self) -> bool:
        """Whether a step uses more than one gradient, so that it can estimate the curvature and be refined."""
        scheme = self.kernel.scheme
        return not self.kernel.adjusted and (scheme != Scheme.CELLS or self.fixed_K != 1 or self.grid == "centred")


def check_choice(name: str, value: object, *choices: object) -> None:
    """Raise ``ValueError`` unless a value is one of the choices."""
    if isinstance(value, bool | np.bool_) or not any(type(value) is type(c) and value == c for c in choices):
        names = ", ".join(map(repr, choices))
        raise ValueError(f"{name}={value!r}: must be {' or '.join(names.rsplit(', ', 1))}")


def _is_auto(value: object) -> bool:
    return isinstance(value, str) and value == "auto"


def _number(name: str, value: object, remedy: str) -> float | None:
    """Return a checked positive, finite number; ``None`` for "auto"."""
    if _is_auto(value):
        return None
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real) or not 0.0 < float(value) < math.inf:
        raise ValueError(f"{name}={value!r}: must be a positive, finite number, or 'auto' {remedy}")
    return float(value)


def _count(name: str, value: Any, remedy: str, largest: int | None = None) -> int | None:
    """Return a checked integer of at least 1 and at most the ``largest``; ``None`` for "auto"."""
    if _is_auto(value):
        return None
    wrong = isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral)
    if wrong or value < 1 or (largest is not None and value > largest):
        limit = "" if largest is None else f" and at most {largest}"
        raise ValueError(f"{name}={value!r}: must be an integer of at least 1{limit}, or 'auto' {remedy}")
    return int(value)


def _reparametrise(value: object) -> str | tuple[tuple[str, str], ...]:
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
        if not isinstance(name, str) or choice not in ("centred", "noncentred", "integrated", "auto"):
            raise ValueError(
                f"reparametrise={dict(value)!r}: {name!r}: {choice!r} must be the name of a variable with 'centred', "
                "'noncentred', 'integrated' or 'auto'"
            )
    return tuple(sorted((name, choice) for name, choice in value.items() if choice != "auto"))


def _scaling(value: object) -> tuple[float, ...] | None:
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


def unknown_argument(name: str, value: object, called: str, names: list[str]) -> TypeError:
    """Return the error for an argument that is none of the ``names``, one of which may be meant."""
    near = [_SYNONYMS[name]] if _SYNONYMS.get(name) in names else difflib.get_close_matches(name, names, 1)
    if name == "target_accept":
        near = []
    meant = f"; did you mean {near[0]}?" if near else f", which takes {', '.join(names)}"
    text = repr(value)
    text = f"<{type(value).__name__}>" if "\n" in text else text
    return TypeError(f"{name}={text} is no argument of {called}{meant}")

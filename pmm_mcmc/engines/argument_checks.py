"""Checks of the arguments of a method, one by one: each returns the checked value or raises an error with a remedy."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["CHECKS", "OFFSETS", "choice", "unknown_argument"]

OFFSETS = {"left": 0.0, "centred": 0.5}  # of a midpoint in its cell, by grid


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _positive(kind: type, remedy: str, largest: float = math.inf) -> Callable[[str, Any], Any]:
    """Return the check of a positive, finite number of a kind, not above the ``largest``; ``None`` for "auto"."""
    convert: Any = int if kind is numbers.Integral else float
    expected = "an integer of at least 1" if convert is int else "a positive, finite number"
    expected += f" and at most {largest}" * (largest < math.inf)

    def check(name: str, value: Any) -> Any:
        if _is_auto(value):
            return None
        wrong = isinstance(value, bool | np.bool_) or not isinstance(value, kind)
        if wrong or not 0 < value <= largest or value == math.inf:
            raise ValueError(f"{name}={value!r}: must be {expected}, or 'auto' {remedy}")
        return convert(value)

    return check


def choice(*choices: Any) -> Callable[[str, Any], Any]:
    """Return the check that a value is one of the choices."""

    def check(name: str, value: Any) -> Any:
        if isinstance(value, bool | np.bool_) or not any(type(value) is type(c) and value == c for c in choices):
            names = ", ".join(map(repr, choices))
            raise ValueError(f"{name}={value!r}: must be {' or '.join(names.rsplit(', ', 1))}")
        return value

    return check


def _target_bias(name: str, value: Any) -> float:
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


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "step_size": _positive(numbers.Real, "to have it found in warm-up"),
    "K": _positive(numbers.Integral, "to have it follow from the step size", 2**20),
    "friction": _positive(numbers.Real, "for 1 in the posterior's own scale"),
    "option": choice(1, 2),
    "grid": choice("auto", *OFFSETS),
    "scheme": choice("auto", "paper", "recycled"),
    "midpoint": choice("uniform", "importance"),
    "steps_per_draw": _positive(numbers.Integral, "to have it found in warm-up"),
    "scaling": _scaling,
    "target_bias": _target_bias,
    "reparametrise": _reparametrise,
}

# Names of the field, and of the paper's letters, for arguments that have other names here.
_SYNONYMS = {
    **dict.fromkeys(("alpha", "h", "eta", "epsilon", "eps", "dt", "step_scale", "stepsize", "lr"), "step_size"),
    **dict.fromkeys(("gamma", "damping"), "friction"),
    **dict.fromkeys(("n_midpoints", "cells", "k"), "K"),
    **dict.fromkeys(("thin", "thinning", "path_length"), "steps_per_draw"),
    **dict.fromkeys(("mass_matrix", "metric", "preconditioner"), "scaling"),
}


def unknown_argument(name: str, value: Any, called: str, names: list[str]) -> TypeError:
    """Return the error for an argument that is none of the ``names``, one of which may be meant."""
    near = [_SYNONYMS[name]] if _SYNONYMS.get(name) in names else difflib.get_close_matches(name, names, 1)
    if name == "target_accept":
        near = []
    meant = f"; did you mean {near[0]}?" if near else f", which takes {', '.join(names)}"
    text = repr(value)
    text = f"<{type(value).__name__}>" if "\n" in text else text
    return TypeError(f"{name}={text} is no argument of {called}{meant}")

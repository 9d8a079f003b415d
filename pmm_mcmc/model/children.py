"""Children of log densities that are no PyMC model: their order, and the structure that they make."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from pmm_mcmc.coordinates.structure import Child, Structure

__all__ = ["described", "in_order", "structure_of"]


def in_order(needs: Mapping[Any, Collection[Any]]) -> list[Any]:
    """Return the keys, each after those that it needs; without those that need themselves or each other."""
    ordered: list[Any] = []
    while ready := [key for key in needs if key not in ordered and set(needs[key]) <= set(ordered)]:
        ordered += ready
    return ordered


def described(children: Mapping[str, tuple[slice, Any, Any]], choices: Mapping[str, str]) -> list[Child]:
    """Return the children that are not to be centred, from coordinates, location and scale of each.

    Raises
    ------
    ValueError
        If a choice names a child that does not exist.
    """
    for name in choices:
        if name not in children:
            names = ", ".join(children)
            raise ValueError(f"reparametrise: {name!r} is none of the children of the LogDensity: {names}")
    out = []
    for name, (coordinates, *laws) in children.items():
        choice = choices.get(name)
        if choice != "centred":
            shape = (coordinates.stop - coordinates.start,)
            parents = [getattr(law, "names", ()) for law in laws]
            out.append(Child(name, "elementwise", coordinates.start, shape, choice == "noncentred", *parents))
    return out


def structure_of(d: int, children: Sequence[Child], scales: Callable[..., Any], pull: Callable[..., Any]) -> Structure:
    """Return the structure of children whose scales have no sign; ``scales`` and ``pull`` are those of the class."""
    return Structure(d, children, np.zeros(0, int), np.zeros((d, 0), int), (), scales, pull)

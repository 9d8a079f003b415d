"""Children, the variables that may be non-centred: an order, parents first, and those that are not to be centred."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pmm_mcmc.coordinates.child import Child

__all__ = ["in_order", "noncentred_children"]


def in_order(needs: Mapping[Any, Collection[Any]]) -> list[Any]:
    """Return the keys, each after those that it needs; without those that need themselves or each other."""
    ordered: list[Any] = []
    while ready := [key for key in needs if key not in ordered and set(needs[key]) <= set(ordered)]:
        ordered += ready
    return ordered


def noncentred_children(children: Mapping[str, tuple[slice, Any, Any]], choices: Mapping[str, str]) -> list[Child]:
    """Return the children that are not to be centred, from coordinates, location and scale of each."""
    for name in choices:
        if name not in children:
            names = ", ".join(children)
            raise ValueError(f"reparametrise: {name!r} is none of the children of the LogDensity: {names}")
    noncentred = []
    for name, (coordinates, *laws) in children.items():
        choice = choices.get(name)
        if choice != "centred":
            shape = (coordinates.stop - coordinates.start,)
            parents = [getattr(law, "names", ()) for law in laws]
            noncentred.append(Child(name, "elementwise", coordinates.start, shape, choice == "noncentred", *parents))
    return noncentred

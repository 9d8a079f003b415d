"""Children, the variables that may be non-centred: an order, parents first, and those that are not to be centred."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

__all__ = ["in_order", "not_centred"]


def in_order(needs: Mapping[Any, Collection[Any]]) -> list[Any]:
    """Return the keys, each after those that it needs; without those that need themselves or each other."""
    ordered: list[Any] = []
    while ready := [key for key in needs if key not in ordered and set(needs[key]) <= set(ordered)]:
        ordered += ready
    return ordered


def not_centred(children: Iterable[str], choices: Mapping[str, str]) -> dict[str, bool]:
    """Return the names of the children of a LogDensity that are not to be centred, and whether each is fixed."""
    names = list(children)
    for name in choices:
        if name not in names:
            raise ValueError(f"reparametrise: {name!r} is none of the children of the LogDensity: {', '.join(names)}")
    return {name: choices.get(name) == "noncentred" for name in names if choices.get(name) != "centred"}

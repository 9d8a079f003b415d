"""Bisection whose last halvings follow from a root that takes fewer evaluations."""

from __future__ import annotations

from collections.abc import Callable

from scipy.optimize import brentq

__all__ = ["bisected"]

# Halvings by evaluation, after which a bracket has one root.
_EVALUATED = 7
# Distance from the root, relative to it, within which the function itself is asked, and the accuracy of the root.
_NEAR = 1e-8
_ACCURACY = 1e-10


def bisected(
    excess: Callable[[float], float], low: float, high: float, count: int, mean: Callable[[float, float], float]
) -> float:
    """Return the lower end of a bracket after ``count`` halvings at the ``mean`` of its ends, to the last bit.

    ``excess`` is finite, and at most 0 below its root.
    """
    root = None
    sides: set[bool] = set()
    for i in range(count):
        if root is None and i >= _EVALUATED and len(sides) == 2:
            root = brentq(excess, low, high, xtol=_ACCURACY * high, rtol=_ACCURACY)
        middle = mean(low, high)
        if root is None or abs(middle - root) <= _NEAR * root:
            below = excess(middle) <= 0.0
        else:
            below = middle < root
        if below:
            low = middle
        else:
            high = middle
        sides.add(below)
    return low

"""Reference moments: closed forms, quadrature over one variable, and those of long runs as stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pmm_mcmc.workbench.targets.target import Reference

__all__ = ["DATA", "Grid", "bent_pairs", "from_moments", "funnel", "gaussian_moments", "stored"]

DATA = Path(__file__).parent / "data"


def from_moments(moments: np.ndarray, source: str) -> Reference:
    """Return an exact reference from raw moments 1, 2 and 4, shape ``(3, d)``."""
    mean, second, fourth = moments
    return Reference(mean, second, fourth - second**2, True, source)


def stored(name: str) -> Reference:
    """Return the moments of a long run from ``data/references.json``."""
    entry = json.loads((DATA / "references.json").read_text(encoding="utf-8"))[name]
    return Reference(**entry, exact=False)


def gaussian_moments(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Return raw moments 1, 2 and 4 of Gaussians, stacked along a new first axis."""
    return np.stack([mean, mean**2 + variance, mean**4 + 6 * mean**2 * variance + 3 * variance**2])


def bent_pairs(
    pairs: int, mean: float, sd: float, curve: Callable[[np.ndarray], np.ndarray], noise_variance: float
) -> np.ndarray:
    """Return moments of pairs a ~ N(mean, sd^2), b ~ N(curve(a), noise): first all a, then all b.

    They are exact if ``curve`` is a polynomial of degree at most 19: the quadrature is exact up to degree 79.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    centre = curve(mean + sd * nodes)
    bent = gaussian_moments(centre, np.full_like(centre, noise_variance)) @ (weights / weights.sum())
    straight = gaussian_moments(np.array(mean), np.array(sd**2))
    return np.repeat(np.column_stack([straight, bent]), pairs, axis=1)


def funnel(sd: float, others: int) -> np.ndarray:
    """Return moments of y ~ N(0, sd^2) and x ~ N(0, exp(y)), from E exp(k y) = exp(k^2 sd^2 / 2)."""
    neck = gaussian_moments(np.array([0.0]), np.array([sd**2]))
    scaled = np.array([0.0, np.exp(sd**2 / 2), 3 * np.exp(2 * sd**2)])
    return np.concatenate([neck, np.repeat(scaled[:, None], others, axis=1)], axis=1)


class Grid(NamedTuple):
    """A density of one variable on equidistant nodes.

    The trapezoidal rule is exact to rounding for a smooth density that vanishes at both ends (Trefethen and Weideman,
    2014), if the nodes resolve it.
    """

    nodes: np.ndarray
    weight: np.ndarray

    @classmethod
    def of(cls, log_density: Callable[[np.ndarray], np.ndarray], low: float, high: float, points: int) -> Grid:
        """Evaluate an unnormalised log density on a grid."""
        nodes = np.linspace(low, high, points)
        log_weight = log_density(nodes)
        weight = np.exp(log_weight - log_weight.max())
        return cls(nodes, weight / weight.sum())

    def moments(self) -> np.ndarray:
        """Return raw moments 1, 2 and 4."""
        return np.stack([self.nodes, self.nodes**2, self.nodes**4]) @ self.weight

"""Exact moments: closed forms, quadrature over one variable, and transfer matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pmm_mcmc.workbench.targets.target import Reference

__all__ = ["Grid", "Ring", "bent_pairs", "draw_index", "from_moments", "funnel", "gaussian_moments", "within"]


def from_moments(moments: np.ndarray, source: str) -> Reference:
    """Return an exact reference from raw moments 1, 2 and 4, shape ``(3, d)``."""
    first, second, fourth = moments
    return Reference(first, second, fourth - second**2, True, source)


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
    rest = np.array([0.0, np.exp(sd**2 / 2), 3 * np.exp(2 * sd**2)])
    return np.concatenate([neck, np.repeat(rest[:, None], others, axis=1)], axis=1)


@dataclass(frozen=True)
class Grid:
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

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw nodes, spread uniformly over their cells; this adds a twelfth of the squared spacing to the variance."""
        return self.nodes[draw_index(self.weight, n, rng)] + within(self.nodes, n, rng)


def draw_index(weight: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw ``n`` indices with these probabilities."""
    cumulative = np.cumsum(weight)
    # By rounding the last sum may be slightly below the number drawn.
    return np.minimum(np.searchsorted(cumulative, rng.random(n), side="right"), len(weight) - 1)


def within(nodes: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw ``n`` distances from a node to places in its cell."""
    return (rng.random(n) - 0.5) * (nodes[1] - nodes[0])


class Ring:
    r"""The law of sites on a ring, :math:`p \propto \prod_i T(x_i, x_{i+1})`, by its transfer matrix.

    A site's moment of order k is :math:`\mathrm{tr}(D^k T^n) / \mathrm{tr}\,T^n` with D the diagonal matrix of the
    nodes: the integral over all other sites is exact to rounding, as :class:`Grid` is.

    Parameters
    ----------
    log_transfer
        The logarithm of T, symmetric.
    sites
        Their number, n.
    low, high, points
        The grid.
    """

    def __init__(
        self,
        log_transfer: Callable[[np.ndarray, np.ndarray], np.ndarray],
        sites: int,
        low: float,
        high: float,
        points: int,
    ):
        self.sites = sites
        self.nodes = np.linspace(low, high, points)
        transfer = np.exp(log_transfer(self.nodes[:, None], self.nodes[None, :]))
        values, self._vectors = np.linalg.eigh(transfer)
        scale = values.max()
        self._values, self._transfer = values / scale, transfer / scale
        weight = self._power(sites).diagonal()
        self.site = Grid(self.nodes, weight / weight.sum())

    def _power(self, k: int) -> np.ndarray:
        return (self._vectors * self._values**k) @ self._vectors.T

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw rings ``(n, sites)``: the first site, then each given the previous and the first one."""
        count = len(self.nodes)
        first = draw_index(self.site.weight, n, rng)
        at = np.empty((n, self.sites), dtype=int)
        at[:, 0] = first
        for i in range(1, self.sites):
            # Powers of a positive matrix are positive up to rounding.
            back = np.maximum(self._power(self.sites - i), 0.0)
            cumulative = np.cumsum(self._transfer[at[:, i - 1]] * back[first], axis=1)
            uniform = rng.random(n) * cumulative[:, -1]
            at[:, i] = np.minimum((cumulative < uniform[:, None]).sum(axis=1), count - 1)
        return self.nodes[at] + within(self.nodes, n * self.sites, rng).reshape(at.shape)

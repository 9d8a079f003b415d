"""Steps to a total variation distance on Gaussians, by exact variances, against the exponents of the paper's Table 1.

Half of the coordinates have the precision lambda = 1, half the precision L; the start is N(0, I / L), the friction
2 sqrt(L).  A step is linear given its midpoint, so that the covariance of each coordinate follows an exact linear
recursion.  The law is taken to be the product of Gaussians of these variances.  It is one given the midpoints of all
steps; that they are shared by the coordinates makes it a mixture, and how wide is reported beside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from scipy.linalg import expm
from scipy.special import gammainc, gammaincc
from scipy.stats import chi2

from pmm_mcmc.langevin.gaussian_law import step_maps
from pmm_mcmc.langevin.methods import OVERDAMPED, UNDERDAMPED, Kernel, Scheme

__all__ = ["distance", "fewest", "kullback_leibler", "report", "spread", "total_variation", "variances"]

# Dimension, condition number and distance: one of them varies, the others are the middle ones.
DIMENSIONS, CONDITIONS, DISTANCES = (8, 32, 128, 512), (4, 16, 64, 256), (0.03, 0.01, 0.003, 0.001)
MIDDLE = (8, 4, 0.01)
RIGHT = "     raw  without log  paper's bound"
OTHERS = (("KL", "sqrt(KL / 2) <= eps"), ("W2", "W2 <= eps / sqrt(lambda)"))
CELLS, MOST_CELLS = 4.0, 512


def corollary_K(dynamics: int, alpha: float, d: int, L: float) -> int:
    """K as the corollaries scale it; they leave the constant open."""
    scale = 1.0 / (alpha * L * math.sqrt(d)) if dynamics == OVERDAMPED else 1.0 / (alpha * d ** (1 / 3) * L ** (5 / 6))
    return min(math.ceil(CELLS * scale), MOST_CELLS)


def _method(dynamics: int, K: Callable, table: tuple) -> tuple:
    return dynamics, Kernel(Scheme.CELLS, dynamics, 2, 0.0), K, table


# Name: dynamics, kernel, K of (alpha, d, L), and Table 1's exponents of (d, L / lambda, 1 / eps).
METHODS = {
    "LMC": _method(OVERDAMPED, lambda *_: 1, (1, 2, 2)),
    "Poisson, the corollary's K": _method(OVERDAMPED, lambda *a: corollary_K(OVERDAMPED, *a), (3 / 4, 3 / 2, 1)),
    "underdamped LMC": _method(UNDERDAMPED, lambda *_: 1, (1 / 2, 3 / 2, 1)),
    "underdamped Poisson, the corollary's K": _method(
        UNDERDAMPED, lambda *a: corollary_K(UNDERDAMPED, *a), (5 / 12, 17 / 12, 1 / 2)
    ),
}


@cache
def recursion(kernel: Kernel, alpha: float, friction: float, K: int) -> tuple[np.ndarray, np.ndarray]:
    """Matrix and inhomogeneity of the recursion of the covariance on the unit Gaussian, as vectors of four."""
    maps = np.array(step_maps(kernel, alpha, friction, K))
    on_state, on_noise = maps[:, :, :2], maps[:, :, 2:]
    return (
        np.einsum("pij,pkl->ikjl", on_state, on_state).reshape(4, 4) / len(maps),
        np.einsum("pij,pkj->ik", on_noise, on_noise).ravel() / len(maps),
    )


class _Group:
    """The variance of the coordinates of one precision, relative to the target's, after any number of steps."""

    def __init__(self, kernel: Kernel, alpha: float, K: int, precision: float, L: float):
        root = math.sqrt(precision)
        scaled = precision * alpha if kernel.dynamics == OVERDAMPED else root * alpha
        self.T, noise = recursion(kernel, scaled, 2.0 * math.sqrt(L) / root, K)
        self.stable = bool(np.abs(np.linalg.eigvals(self.T)).max() < 1.0)
        self.limit = np.linalg.solve(np.eye(4) - self.T, noise) if self.stable else noise
        velocity = 0.0 if kernel.dynamics == OVERDAMPED else 1.0
        self.start = np.array([precision / L, 0.0, 0.0, velocity]) - self.limit

    def after(self, n: int) -> float:
        return float((self.limit + np.linalg.matrix_power(self.T, n) @ self.start)[0])


def variances(kernel: Kernel, alpha: float, K: int, L: float) -> tuple[_Group, _Group]:
    """Return the two groups of coordinates."""
    return _Group(kernel, alpha, K, 1.0, L), _Group(kernel, alpha, K, L, L)


def kullback_leibler(relative: np.ndarray, d: int) -> float:
    """Kullback-Leibler divergence of a product of Gaussians, ``d / 2`` of each of two relative variances."""
    r = np.asarray(relative) - 1.0
    return float(0.25 * d * np.sum(r - np.log1p(r)))


@cache
def _chi_square(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a quadrature for a chi square of ``n`` degrees of freedom."""
    nodes, weights = np.polynomial.legendre.leggauss(300)
    # In the root of the chi square, whose density has no singularity.
    low, high = np.sqrt(chi2.ppf([1e-13, 1.0 - 1e-13], n))
    root = low + 0.5 * (high - low) * (1.0 + nodes)
    return root**2, (high - low) * weights * root * chi2.pdf(root**2, n)


def total_variation(relative: np.ndarray, d: int) -> float:
    """Total variation distance of the same: of two scaled chi squares, over one of which is integrated."""
    s, n = np.asarray(relative, float), d // 2
    if np.all(np.abs(s - 1.0) < 1e-14):
        return 0.0
    s = s[np.argsort(np.abs(s - 1.0))]  # the second is not 1
    slope, level = 1.0 / s - 1.0, -n * np.log(s).sum()
    r, weights = _chi_square(n)

    def probability(scale: np.ndarray) -> float:
        threshold = (level - slope[0] * scale[0] * r) / (slope[1] * scale[1])
        inside = gammainc if slope[1] > 0.0 else gammaincc
        return float(weights @ inside(0.5 * n, 0.5 * np.maximum(threshold, 0.0)))

    return abs(probability(s) - probability(np.ones(2)))


def distance(measure: str, relative: np.ndarray, d: int, L: float) -> float:
    """Return a distance of the product from the target: TV, the root of half the divergence, or W2."""
    if measure == "TV":
        return total_variation(relative, d)
    if measure == "KL":
        return math.sqrt(0.5 * kullback_leibler(relative, d))
    return math.sqrt(0.5 * d * float(np.sum((np.sqrt(relative) - 1.0) ** 2 / np.array([1.0, L]))))


def first(measure: str, groups: tuple[_Group, _Group], d: int, L: float, eps: float) -> int:
    """First step after which the distance is at most ``eps``, which it is in the end."""

    def far(n: int) -> bool:
        return distance(measure, np.array([g.after(n) for g in groups]), d, L) > eps

    high = 1
    while far(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if far(middle) else (low, middle)
    return high


@cache
def fewest(measure: str, name: str, d: int, L: float, eps: float) -> tuple[int, float]:
    """Fewest steps over all step sizes, and the step size."""
    dynamics, kernel, K, _ = METHODS[name]

    def groups(j: int) -> tuple[float, tuple[_Group, _Group]]:
        alpha = 2.0 ** (-0.125 * j) / (L if dynamics == OVERDAMPED else math.sqrt(L))
        return alpha, variances(kernel, alpha, K(alpha, d, L), L)

    def biased(j: int) -> bool:
        _, pair = groups(j)
        return not all(g.stable for g in pair) or distance(measure, np.array([g.limit[0] for g in pair]), d, L) > eps

    low, high = -1, 256
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if biased(middle) else (low, middle)
    # The best step is somewhat shorter than the longest one whose bias is small enough.
    tried = [(first(measure, pair, d, L, eps), alpha) for alpha, pair in map(groups, range(high, high + 16))]
    return min(tried)


@cache
def log_factor(measure: str, dynamics: int, d: int, L: float, eps: float) -> float:
    """Time in which the diffusion itself comes to ``eps``, in units of its slowest relaxation time."""
    friction = 2.0 * math.sqrt(L)
    rate = 1.0 if dynamics == OVERDAMPED else 0.5 * friction - math.sqrt(0.25 * friction**2 - 1.0)

    def relative(time: float, precision: float) -> float:
        if dynamics == OVERDAMPED:
            return 1.0 + (precision / L - 1.0) * math.exp(-2.0 * precision * time)
        flow = expm(time * np.array([[0.0, 1.0], [-precision, -friction]]))[0]
        return 1.0 + (precision / L - 1.0) * flow[0] ** 2

    def far(time: float) -> bool:
        return distance(measure, np.array([relative(time, 1.0), relative(time, L)]), d, L) > eps

    low, high = 0.0, 1.0
    while far(high):
        high *= 2.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if far(middle) else (low, middle)
    return high * rate


def spread(name: str, d: int, L: float, eps: float) -> float:
    """How much the mixture matters: spread of ``|x|^2`` by the midpoints over its shift by the bias.

    Of the coordinates of precision ``L``, at the best step, in units of the spread that ``|x|^2`` has anyway.  Given
    its midpoint a step takes a covariance ``S`` to ``A S + n``; ``second`` is the variance of ``S`` when stationary.
    """
    dynamics, kernel, K, _ = METHODS[name]
    _, alpha = fewest("TV", name, d, L, eps)
    scaled, friction = (alpha * L, 1.0) if dynamics == OVERDAMPED else (alpha * math.sqrt(L), 2.0)
    maps = np.array(step_maps(kernel, scaled, friction, K(alpha, d, L)))
    A = np.einsum("pij,pkl->pikjl", maps[:, :, :2], maps[:, :, :2]).reshape(-1, 4, 4)
    n = np.einsum("pij,pkj->pik", maps[:, :, 2:], maps[:, :, 2:]).reshape(-1, 4)
    mean = np.linalg.solve(np.eye(4) - A.mean(axis=0), n.mean(axis=0))
    moved = A @ mean + n - mean
    transfer = np.einsum("pij,pkl->ikjl", A, A).reshape(16, 16) / len(A)
    second = np.linalg.solve(np.eye(16) - transfer, (moved.T @ moved).ravel() / len(A))[0]
    return float(0.5 * d * second / (math.sqrt(0.5 * d) * abs(mean[0] - 1.0)))


def _exponents(measure: str, name: str, axis: int, values: tuple) -> dict:
    """Steps along one axis, and the exponent, raw and with the logarithm of the diffusion's own time taken out."""
    n, clean, alphas = [], [], []
    for value in values:
        at = tuple(value if i == axis else middle for i, middle in enumerate(MIDDLE))
        found, alpha = fewest(measure, name, *at)
        n.append(found)
        alphas.append(alpha)
        clean.append(found / log_factor(measure, METHODS[name][0], *at))
    x = np.log(values) * (-1.0 if axis == 2 else 1.0)
    slopes = [float(np.polyfit(x, np.log(y), 1)[0]) for y in (n, clean)]
    return {"values": list(values), "steps": n, "alpha": alphas, "slope": slopes[0], "slope without log": slopes[1]}


def report(quick: bool) -> tuple[list[str], dict]:
    """Tables of steps against dimension, condition number and distance."""
    axes = (("d", DIMENSIONS), ("L / lambda", CONDITIONS), ("1 / eps", DISTANCES))
    d, L, eps = MIDDLE
    lines, kept = (
        [f"Steps to TV <= eps on Gaussians, best step; d = {d}, L / lambda = {L}, eps = {eps:g} where held"],
        {},
    )
    for axis, (words, values) in enumerate(axes):
        values = values[:3] if quick else values
        shown = [1.0 / v for v in values] if axis == 2 else values
        lines.append(f"  {words:42}" + "".join(f"{v:>8.4g}" for v in shown) + RIGHT)
        for name, (*_, table) in METHODS.items():
            found = _exponents("TV", name, axis, values)
            steps = "".join(f"{n:>8}" for n in found["steps"])
            slopes = f"{found['slope']:>8.2f}{found['slope without log']:>13.2f}{table[axis]:>15.2f}"
            lines.append(f"    {name:40}{steps}{slopes}")
            kept.setdefault(name, {})[words] = {**found, "paper": table[axis]}
    lines.append("  The same exponents without log (d, L / lambda, 1 / eps), by other distances")
    for measure, words in OTHERS[: 0 if quick else None]:
        for name in METHODS:
            found = [_exponents(measure, name, i, v)["slope without log"] for i, (_, v) in enumerate(axes)]
            lines.append(f"    {words:26}{name:40}" + "".join(f"{f:>8.2f}" for f in found))
            kept[name][measure] = found
    lines.append(
        "  What the product of Gaussians leaves out: spread of |x|^2 by the midpoints over its shift by the bias"
    )
    for name in (n for n in METHODS if "Poisson" in n):
        found = [spread(name, n, L, eps) for n in (DIMENSIONS[:3] if quick else DIMENSIONS)]
        lines.append(f"    {name:40}" + "".join(f"{f:>8.2g}" for f in found))
        kept[name]["spread"] = found
    return lines, kept

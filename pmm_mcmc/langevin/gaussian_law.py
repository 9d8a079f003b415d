r"""The exact stationary law of every unadjusted method on a Gaussian.

On the potential ``curvature * y^2 / 2`` a step with given midpoints is a linear map of the state and of standard normal
noise.  With ``M`` acting on the state and ``N`` on the noise, the stationary covariance solves

.. math:: S = E[M S M^T] + E[N N^T],

with the expectation over the midpoints.  This is the biased law itself, without Monte Carlo error and for steps of any
size.  Warm-up takes its step sizes from it, and the tests compare the samplers with it.
"""

from __future__ import annotations

import functools

import numpy as np

from pmm_mcmc.langevin.flows import Flow, flows
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.midpoints import cell_weight, continuous_weight, inverse_probability

__all__ = ["stationary_covariance", "step_maps", "variance_error"]

# Cells above which the law is that of Option 2 for large K, of Option 1 that of as many.
_MOST_CELLS = 512
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


def _flow(kernel: Kernel, h: float | np.ndarray, friction: float):
    """Return the flow of a method's dynamics over a time."""
    name = ("overdamped", "underdamped", "harmonic")[kernel.dynamics]
    return getattr(flows, name)(h, friction)


def _matrices(flow):
    """Return a flow as matrices: ``A`` ``(..., 2, 2)``, ``G`` ``(..., 2)`` and a root of the noise ``(..., 2, 2)``."""
    zero = np.zeros_like(flow.a_uu)
    a = np.array([[flow.a_uu, flow.a_uv], [flow.a_vu, flow.a_vv]], dtype=float)
    root = np.array([[flow.n_uv, flow.n_uu], [flow.n_vv, zero]], dtype=float)
    g = np.array([flow.g_u, flow.g_v], dtype=float)
    return np.moveaxis(a, (0, 1), (-2, -1)), np.moveaxis(g, 0, -1), np.moveaxis(root, (0, 1), (-2, -1))


def _maps_of_cells(kernel, alpha, friction, K, curvature):
    """Return weights ``(n,)`` and maps ``(n, 2, width)`` of state and noises to the new state, for midpoints in cells.

    Under Option 2 there is a map for each marked cell, and its weight is the cell's probability.  Under Option 1, where
    cells are marked independently, there are the mean map and the correction by each cell with the variance of its
    mark.
    """
    # All quantities are rows over the position, the velocity and two normals for each piece of the step: a cell, or
    # half of one where midpoints lie in the centre.
    pieces = K * (2 if kernel.offset else 1)
    width = 2 + 2 * pieces
    state = np.eye(2, width)
    drift = np.zeros(width)
    drift[0] = -curvature
    transfer, _, root = _matrices(_flow(kernel, alpha / pieces, friction))
    cell = _flow(kernel, alpha / K, friction)
    shares = np.empty(K)
    corrections = np.empty((K, 2, width))
    path = np.zeros((2, width))  # of the noise, up to piece j
    for j in range(pieces):
        if not kernel.offset or j % 2 == 1:  # a midpoint may lie here
            i = j // 2 if kernel.offset else j
            a, g, _ = _matrices(_flow(kernel, alpha * j / pieces, friction))
            position = a[0] @ state + g[0] * drift + path[0]
            remaining = _flow(kernel, alpha * (K - 1 - i) / K, friction)
            inverse = inverse_probability(float(i), K, kernel.power)
            shares[i] = 1.0 / inverse
            corrections[i] = np.outer(cell_weight(remaining, cell, inverse), -curvature * position - drift)
        path = transfer @ path
        path[:, 2 + 2 * j : 4 + 2 * j] += root
    a, g, _ = _matrices(_flow(kernel, alpha, friction))
    uncorrected = a @ state + np.outer(g, drift) + path
    if kernel.option == 2:
        return shares, uncorrected + corrections
    mean = uncorrected + corrections.sum(axis=0) / K
    return np.array([1.0, *[1.0 / K - 1.0 / K**2] * K]), np.concatenate([mean[None], corrections])


def _maps_of_one_midpoint(kernel, alpha, friction, curvature):
    """Return weights and maps from state and noises to the new state, for a midpoint anywhere in the step.

    There is a map for each quadrature node of the midpoint's time.  In the recycled scheme the previous midpoint, with
    its drift, is part of the state.
    """
    recycled = kernel.scheme == Scheme.RECYCLED
    n = 3 if recycled else 2
    remainder = curvature - 1.0 if kernel.dynamics == HARMONIC else curvature  # of the curvature that the flow leaves
    state = np.eye(2, n + 4)
    drift = np.zeros(n + 4)
    drift[2 if recycled else 0] = -remainder
    step, midpoint, remaining, shares, weight = _at_nodes(kernel, float(alpha), float(friction))
    a, g, _ = step
    a_mid, g_mid, root_mid = midpoint
    a_remaining, _, root_remaining = remaining
    nodes = len(shares)
    path = np.zeros((nodes, 2, n + 4))
    path[:, :, n : n + 2] = root_mid
    position = a_mid[:, 0] @ state + g_mid[:, :1] * drift + path[:, 0]
    path = a_remaining @ path
    path[:, :, n + 2 :] += root_remaining
    base = np.zeros_like(drift) if kernel.scheme == Scheme.CONTINUOUS else drift
    new = a @ state + np.outer(g, base) + path + weight[:, :, None] * (-remainder * position - base)[:, None, :]
    if recycled:
        new = np.concatenate([new, position[:, None, :]], axis=1)
    return shares, new


@functools.lru_cache(maxsize=1024)
def _at_nodes(kernel, alpha, friction):
    """Return the flows over a step, to its midpoint and from it, probabilities and the midpoint's weights.

    They are those at the quadrature nodes of the midpoint's time, and do not depend on the curvature.
    """
    fraction, shares, inverse = _quadrature(kernel.power)
    time = fraction * alpha
    n = len(time)
    entries = _flow(kernel, np.concatenate([[alpha], time, alpha - time]), friction)
    step, midpoint, remaining = (
        Flow(*(entry[rows] for entry in entries)) for rows in (0, slice(1, n + 1), slice(n + 1, None))
    )
    w = np.stack(np.broadcast_arrays(*continuous_weight(remaining, alpha, kernel.dynamics != OVERDAMPED)), axis=-1)
    return _matrices(step), _matrices(midpoint), _matrices(remaining), shares, inverse[:, None] * w


def _quadrature(power: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return quadrature nodes for the time of one midpoint in (0, 1), probabilities and the inverse density there."""
    fraction = 0.5 * (1.0 + _NODES)
    shares = 0.5 * _WEIGHTS
    if power == 0.0:
        return fraction, shares, np.ones_like(fraction)
    # For powers that are multiples of 1/4 the integrands are smooth in the fourth root of the time.
    inverse = 1.0 / ((1.0 + power) * fraction ** (4.0 * power))
    return fraction**4, shares * 4.0 * fraction**3 / inverse, inverse


def step_maps(kernel: Kernel, step_size: float, friction: float, K: int) -> np.ndarray:
    """Return the maps from position, velocity and standard normal noise to the state after a step, on a unit Gaussian.

    They are ``(n, 2, 2 + noises)``, one for each midpoint.  For the recycled scheme, whose draws are its
    midpoints, the maps lead to the midpoints; for Option 1 they are those with one marked cell.
    """
    if kernel.scheme == Scheme.RECYCLED:
        a, _, root = _matrices(_flow(kernel, 0.5 * step_size * (1.0 + _NODES), friction))
        return np.concatenate([a, root], axis=2)
    if kernel.scheme == Scheme.CONTINUOUS:
        return _maps_of_one_midpoint(kernel, step_size, friction, 1.0)[1]
    return _maps_of_cells(kernel._replace(option=2), step_size, friction, K, 1.0)[1]


def stationary_covariance(
    kernel: Kernel, step_size: float, friction: float, K: int | None, curvature: float = 1.0
) -> np.ndarray | None:
    """Return the stationary covariance on the Gaussian of precision ``curvature``; None if second moments diverge.

    It is ``(2, 2)`` for position and velocity (overdamped: the second row is zero); in the recycled scheme ``(3, 3)``,
    with the midpoint.  Step size, friction and ``K`` are in the coordinates of the Gaussian; ``K=None`` is the limit of
    Option 2 for large K.  Adjusted methods are refused: their stationary law is the target.
    """
    weights, matrices = _maps(kernel, step_size, friction, K, curvature)
    transfer = _transfer(weights, matrices)
    if _radius(transfer) >= 1.0:
        return None
    n = matrices.shape[1]
    on_noise = matrices[:, :, n:]
    noise = np.einsum("p,pij,pkj->ik", weights, on_noise, on_noise)
    return np.linalg.solve(np.eye(n * n) - transfer, noise.ravel()).reshape(n, n)


def growth_of_moments(kernel: Kernel, step_size: float, friction: float, K: int | None, curvature: float) -> float:
    """Return the factor by which second moments grow in a step: below 1 if there is a stationary law."""
    return _radius(_transfer(*_maps(kernel, step_size, friction, K, curvature)))


def _maps(kernel: Kernel, step_size: float, friction: float, K: int | None, curvature: float):
    """Return weights ``(n,)`` and maps of all midpoints."""
    if kernel.adjusted:
        raise ValueError(f"{Scheme(kernel.scheme).name} is adjusted: its stationary law is the target")
    if K is None and kernel.option == 1:
        raise ValueError("Option 1 has no limit here: give K")
    if K is not None and K > _MOST_CELLS:  # whose maps would not fit into memory
        K = _MOST_CELLS if kernel.option == 1 else None
    if kernel.scheme == Scheme.CELLS and K is not None:
        return _maps_of_cells(kernel, step_size, friction, K, curvature)
    return _maps_of_one_midpoint(kernel, step_size, friction, curvature)


def _transfer(weights: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    """Return the linear map of second moments over a step, as a matrix."""
    n = matrices.shape[1]
    on_state = matrices[:, :, :n]
    return np.einsum("p,pij,pkl->ikjl", weights, on_state, on_state).reshape(n * n, n * n)


def _radius(transfer: np.ndarray) -> float:
    """Return the spectral radius; infinite for a matrix that is not finite."""
    return float(np.abs(np.linalg.eigvals(transfer)).max()) if np.isfinite(transfer).all() else np.inf


def variance_error(kernel: Kernel, step_size: float, friction: float, K: int | None, curvature: float = 1.0) -> float:
    """Return the relative error of the variance of the draws on a Gaussian; infinite where there is no variance."""
    covariance = stationary_covariance(kernel, step_size, friction, K, curvature)
    if covariance is None:
        return np.inf
    index = 2 if kernel.scheme == Scheme.RECYCLED else 0
    return float(covariance[index, index] * curvature - 1.0)

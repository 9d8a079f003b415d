"""Damped Gauss-Newton steps for one sink after the other, compiled: what a search for funnels takes its time for."""

from __future__ import annotations

import math

import numba
import numpy as np

from pmm_mcmc.coefficients import select
from pmm_mcmc.noncentring.saturation import build_saturation

__all__ = ["KAPPA", "fitted"]

# Residuals beyond are taken for outliers; a standard Gaussian of the wrong scale leaves them well below.
KAPPA = 3.0
_ENOUGH, _MOST_DAMPING = 1e-5, 1e6  # of the loss, what a step must bring; where no step brings anything
_LARGEST_STEP = 1.0
_RIDGE = 1e-10

_saturate = numba.njit(build_saturation(np, select))


@numba.njit(cache=True, nogil=True, error_model="numpy")
def fitted(theta, free, sink, by_scale, by_location, by_anchor, x, g, iterations):
    """Fit sinks from where they stand: see :func:`pmm_mcmc.noncentring.fit.fit`.

    Parameters
    ----------
    theta, free : (m, p) float, (m, p) bool
        As :class:`pmm_mcmc.noncentring.fit.Sinks` has them, and what of it may change.
    sink, by_scale, by_location, by_anchor : int arrays
        Of the sinks.
    x, g : (d, n)
        Draws and gradients.
    iterations : int
        Most steps.

    Returns
    -------
    (m, p) ndarray, (m,) ndarray
        ``theta`` and the mean loss of each.
    """
    m, p = theta.shape
    k, end = by_scale.shape[1], 2 + by_scale.shape[1] + by_location.shape[1]
    theta, loss = theta.copy(), np.empty(m)
    source, active = np.empty(p, np.int64), np.empty(p, np.int64)
    row, trial, step, root = np.empty(p), np.empty(p), np.empty(p), np.empty((p, p))
    work, jacobian, weighted = np.empty((5, x.shape[1])), np.empty((p + 1, x.shape[1])), np.empty((p + 1, x.shape[1]))
    for s in range(m):
        used = 0
        for c in range(p):
            if 1 <= c <= k:
                source[c] = by_scale[s, c - 1]
            elif 2 + k <= c < end:
                source[c] = by_location[s, c - 2 - k]
            else:
                source[c] = by_anchor[s, c - end] if end <= c < p - 2 else -1
            row[c] = theta[s, c]
            if free[s, c] and (source[c] >= 0 or c == 0 or c == 1 + k or c >= p - 2):
                active[used] = c
                used += 1
        own, own_g = x[sink[s]], g[sink[s]]
        loss[s], slopes = _linearised(row, active[:used], source, k, end, own, own_g, x, work, jacobian, weighted)
        damping = 1e-2
        for _ in range(iterations if loss[s] < np.inf else 0):
            _solve(slopes, damping, root, step[:used])
            shrink = 1.0
            if used and active[0] == 0 and abs(step[0]) > _LARGEST_STEP:
                shrink = _LARGEST_STEP / abs(step[0])
            trial[:] = row
            promised = 0.0
            for a in range(used):
                trial[active[a]] += shrink * step[a]
                promised -= 2.0 / x.shape[1] * shrink * step[a] * slopes[a, used]
            if not promised > _ENOUGH * loss[s]:
                break
            new, new_slopes = _linearised(trial, active[:used], source, k, end, own, own_g, x, work, jacobian, weighted)
            if new < loss[s]:
                done = loss[s] - new < _ENOUGH * loss[s]
                loss[s] = new
                row, trial, slopes = trial, row, new_slopes
                damping *= 0.2
            else:
                done = damping > _MOST_DAMPING
                damping *= 5.0
            if done:
                break
        theta[s] = row
    return theta, loss


@numba.njit(error_model="numpy")
def _linearised(theta, active, source, k, end, own, own_g, x, work, jacobian, weighted):
    """Return the mean loss of a sink, infinite where it is not finite, and the Hessian by what is active.

    Its last column is the gradient: the last row of both arrays of derivatives takes the residuals.
    """
    n, p, used = x.shape[1], theta.size, active.size
    ceiling, loss = theta[p - 2], 0.0
    v, location, anchor, by_ceiling = work[0], work[1], work[2], work[3]
    v[:], location[:], anchor[:] = theta[0], theta[1 + k], theta[p - 1]
    for c in range(1, p - 2):
        if source[c] >= 0:
            share, total = x[source[c]], v if c <= k else location if c < end else anchor
            for i in range(n):
                total[i] += theta[c] * share[i]
    residuals = jacobian[used]
    for i in range(n):
        log, w = v[i], 1.0
        if ceiling < np.inf:
            log, w = _saturate(v[i], ceiling)
        apart, scale = location[i] - anchor[i], math.exp(log)
        z, g_z = (own[i] - anchor[i] - w * apart) / scale, own_g[i] * scale
        residuals[i] = z + g_z
        outlying = (residuals[i] / KAPPA) ** 2
        loss += math.log1p(outlying)
        # What v, or the ceiling with the opposite sign, does to the location; without a ceiling nothing.
        moved = 2.0 * w * (1.0 - w) * apart / scale
        v[i], by_ceiling[i] = (g_z - z) * w + moved, (g_z - z) * (1.0 - w) - moved
        location[i], anchor[i] = -w / scale, -(1.0 - w) / scale
        work[4, i] = 1.0 / (1.0 + outlying)
    for a in range(used + 1):
        if a < used:
            c = active[a]
            values = by_ceiling if c == p - 2 else v if c <= k else location if c < end else anchor
            if source[c] >= 0:
                share = x[source[c]]
                for i in range(n):
                    jacobian[a, i] = values[i] * share[i]
            else:
                for i in range(n):
                    jacobian[a, i] = values[i]
        for i in range(n):
            weighted[a, i] = work[4, i] * jacobian[a, i]
    loss *= KAPPA**2 / n
    return loss if loss < np.inf else np.inf, np.dot(weighted[: used + 1], jacobian[: used + 1].T)


@numba.njit(error_model="numpy")
def _solve(slopes, damping, root, step):
    """Fill the damped step, by Cholesky's method; zero where it is not finite."""
    p = step.size
    largest = 0.0
    for a in range(p):
        largest = max(largest, slopes[a, a])
    for a in range(p):
        for b in range(a + 1):
            total = slopes[a, b]
            if a == b:
                total += damping * total + _RIDGE * largest + 1e-300
            for c in range(b):
                total -= root[a, c] * root[b, c]
            root[a, b] = math.sqrt(total) if a == b else total / root[b, b]
        total = -slopes[a, p]
        for c in range(a):
            total -= root[a, c] * step[c]
        step[a] = total / root[a, a]
    for a in range(p - 1, -1, -1):
        total = step[a]
        for c in range(a + 1, p):
            total -= root[c, a] * step[c]
        step[a] = total / root[a, a]
    for a in range(p):
        if not math.isfinite(step[a]):
            step[a] = 0.0

"""The map of :mod:`pmm_mcmc.noncentring.funnel_map` at one point, as loops for numba: what an engine runs each step."""

from __future__ import annotations

import math

import numba
import numpy as np

from pmm_mcmc.coefficients import select
from pmm_mcmc.noncentring.saturation import build_saturation

__all__ = ["place", "pull_back"]

_saturate = numba.njit(build_saturation(np, select))


@numba.njit
def place(sink, start, source, slope, load, anchor_load, log_scale, location, ceiling, anchor, x, work):
    """Turn ``z``, which ``x`` holds, into the model's position in place; return the log determinant.

    ``work (4, m)`` is filled with ``z``, ``e^L``, ``w`` and ``c + C x - e - E x`` of each sink, for :func:`pull_back`.
    """
    total = 0.0
    for k in range(sink.size):
        v, at, apart = log_scale[k], anchor[k], location[k] - anchor[k]
        for p in range(start[k], start[k + 1]):
            v += slope[p] * x[source[p]]
            at += anchor_load[p] * x[source[p]]
            apart += (load[p] - anchor_load[p]) * x[source[p]]
        log, w = _saturate(v, ceiling[k])
        work[0, k], work[1, k], work[2, k], work[3, k] = x[sink[k]], math.exp(log), w, apart
        x[sink[k]] = at + w * apart + work[1, k] * x[sink[k]]
        total += log
    return total


@numba.njit
def pull_back(sink, start, source, slope, load, anchor_load, gradient, work):
    """Turn the gradient at ``x`` into that of the log density of ``z``, log determinant included, in place."""
    for k in range(sink.size - 1, -1, -1):
        g = gradient[sink[k]]
        g_z = g * work[1, k]
        w = work[2, k]
        by_v = w * (1.0 + work[0, k] * g_z) - 2.0 * w * (1.0 - w) * work[3, k] * g
        gradient[sink[k]] = g_z
        for p in range(start[k], start[k + 1]):
            gradient[source[p]] += slope[p] * by_v + (load[p] * w + anchor_load[p] * (1.0 - w)) * g

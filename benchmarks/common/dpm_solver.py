"""Multistep solvers to hold the method against: DPM-Solver++ (2M), (3M) and the stochastic SDE-DPM-Solver++ (2M).

Lu et al., arXiv:2211.01095, in terms of the estimate of the data, at levels evenly spaced in log signal-to-noise ratio.
"""

from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmm_mcmc.diffusion.gaussian import gains
from pmm_mcmc.diffusion.jax import checked, finite


class Row(NamedTuple):
    """One call: ``X <- x X + d D + d_before D_before + d_earlier D_earlier + noise Z``, ``D`` the data at ``level``."""

    level: int
    x: float
    d: float
    d_before: float
    d_earlier: float
    noise: float


def multistep_solver(schedule, n_calls, order=2, stochastic=False):
    r"""The coefficients of the calls of a solver, whose last step is of first order.

    The step is :math:`h` in half the log signal-to-noise ratio.  Earlier calls give the slope and the curvature of the
    estimate of the data, with which the ODE is integrated exactly (algorithm 2 of the paper for order 2; for order 3
    the curvature counts half in much published code, which leaves that solver of the second order).  The SDE has noise
    :math:`\sqrt{(1 - \bar\alpha)(1 - e^{-2h})}` and twice the exponent in the integrals.
    """
    assert 1 <= n_calls <= schedule.N and order in (2, 3) and not (stochastic and order == 3)
    ratio = 0.5 * np.log(schedule.signal[1:] / schedule.noise[1:])
    levels = _levels(ratio, n_calls)
    rows = []
    for i, (level, next_level) in enumerate(pairwise(levels)):
        h = ratio[next_level - 1] - ratio[level - 1]
        exponent = 2.0 * h if stochastic else h
        signal = np.sqrt(schedule.signal[next_level])
        weight = -signal * np.expm1(-exponent)
        data = np.array([weight, 0.0, 0.0])
        previous_length = (ratio[level - 1] - ratio[levels[max(i - 1, 0)] - 1]) / h
        if i >= 2 and order == 3 and i < n_calls - 2:
            earlier_length = (ratio[levels[i - 1] - 1] - ratio[levels[i - 2] - 1]) / h
            slope_now = np.array([1.0, -1.0, 0.0]) / previous_length
            slope_then = np.array([0.0, 1.0, -1.0]) / earlier_length
            curvature = (slope_now - slope_then) / (previous_length + earlier_length)
            data += signal * (1.0 + np.expm1(-h) / h) * (slope_now + previous_length * curvature)
            data += signal * (1.0 - 2.0 * (np.expm1(-h) + h) / h**2) * curvature
        elif i >= 1:
            data += weight * np.array([0.5, -0.5, 0.0]) / previous_length
        shrink = np.sqrt(schedule.noise[next_level] / schedule.noise[level]) * np.exp(h - exponent)
        noise = np.sqrt(schedule.noise[next_level] * -np.expm1(-exponent)) if stochastic else 0.0
        of_data, of_previous, of_earlier = map(float, data)
        rows.append(Row(int(level), float(shrink), of_data, of_previous, of_earlier, float(noise)))
    return [*rows, Row(int(levels[-1]), 0.0, 1.0, 0.0, 0.0, 0.0)]


def _levels(ratio, n_calls):
    """Return the levels of the calls, evenly spaced in the log ratios of levels 1 to N as far as these allow."""
    wanted = np.linspace(ratio[-1], ratio[0], n_calls)
    levels = np.array([1 + int(np.abs(ratio - value).argmin()) for value in wanted])
    # Near the clean end the levels lie further apart than the even spacing, and the solver takes each of them.
    order = np.arange(n_calls)
    return np.minimum(np.maximum.accumulate((levels + order)[::-1])[::-1] - order, ratio.size - order)


def dpm_solver_variance(schedule, variances, n_calls, order=2, stochastic=False):
    """The exact variance of the samples for Gaussian data."""
    data = np.asarray(variances, dtype=float)
    exact = gains(schedule, "x0", data.ravel())
    # Covariance of the state and of the two estimates of the data before.
    covariance = np.zeros((data.size, 3, 3))
    covariance[:, 0, 0] = 1.0
    for row in multistep_solver(schedule, n_calls, order, stochastic):
        step = np.zeros((data.size, 3, 3))
        step[:, 1, 0] = exact[row.level]
        step[:, 0] = row.d * step[:, 1] + np.array([row.x, row.d_before, row.d_earlier])
        step[:, 2, 1] = 1.0
        covariance = step @ covariance @ step.swapaxes(1, 2)
        covariance[:, 0, 0] += row.noise**2
    return covariance[:, 0, 0].reshape(data.shape)


def dpm_solver_sample(network, x_T, schedule, n_calls, *, order=2, key=None, prediction="epsilon"):
    """Samples by the solver of the ODE or, with a ``key``, of the SDE."""
    rows = multistep_solver(schedule, n_calls, order, stochastic=key is not None)
    network, initial = checked(network, x_T, schedule, prediction, rows[0].level)
    on_state, on_output = schedule.conversion(prediction, "x0")
    levels = np.array([row.level for row in rows])
    columns = np.column_stack([on_state[levels], on_output[levels], np.array([row[1:] for row in rows])])

    def body(carry, inputs):
        x, previous, earlier = carry
        (of_x, of_output, keep, of_data, of_previous, of_earlier, noise), timestep, draw = inputs
        data = of_x * x + of_output * network(x, jnp.broadcast_to(timestep, x.shape[:1]))
        new = keep * x + of_data * data + of_previous * previous + of_earlier * earlier
        if draw is not None:
            new = new + noise * jax.random.normal(draw, x.shape, x.dtype)
        return (new, data, previous), None

    draws = None if key is None else jax.random.split(key, len(rows))
    inputs = (jnp.asarray(columns, initial.dtype), jnp.asarray(schedule.timesteps[levels - 1]), draws)
    (x, *_), _ = lax.scan(body, (initial, jnp.zeros_like(initial), jnp.zeros_like(initial)), inputs)
    return finite(x)

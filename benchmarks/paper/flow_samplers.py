"""Samplers of flow-matching models by network calls: those that are in use, each by its own formula, and ours.

All start from pure noise and are functions ``sample(key, network, x)``; ``network(x, s)`` predicts noise minus data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmm_mcmc.diffusion import DiffusionSchedule, plan_blocks, poisson_midpoint_sample
from pmm_mcmc.diffusion.jax import ddpm_sample, dpm_solver_sample, sde_dpm_solver_sample
from pmm_mcmc.diffusion.schedule import flow_scale, shifted

__all__ = ["FAMILIES", "NOISE", "Sample"]

Sample = Callable[[jax.Array, Any, jax.Array], jax.Array]

# The finest detail that should be right, and above the largest eigenvalue of the covariance of the data: 2.8 for the
# digits, 2.3 for the 25 Gaussians.
DATA_VARIANCES = (1e-3, 3.0)
# Amounts of noise that are tried, where a family has one: eta of CPS, otherwise a of Flow-GRPO.
NOISE = {
    "CPS": (0.3, 0.5, 0.7, 0.9),
    "Euler-SDE": (0.3, 0.5, 0.7, 1.0, 2**0.5),
    "Poisson midpoint": (0.0, 0.3, 0.5, 0.7, 1.0, 2**0.5),
}


def sigmas(calls: int, shift: float) -> np.ndarray:
    """Noise levels from 1 to 0, as pipelines of FLUX type pass them, shifted."""
    return np.append(shifted(np.linspace(1.0, 1.0 / calls, calls), shift), 0.0)


def euler(s: np.ndarray, _: float) -> np.ndarray:
    """``FlowMatchEulerDiscreteScheduler``: factors of state, prediction and noise in each step."""
    return np.column_stack([np.ones(len(s) - 1), np.diff(s), np.zeros(len(s) - 1)])


def euler_sde(s: np.ndarray, a: float) -> np.ndarray:
    """Flow-GRPO (arXiv:2505.05470), as its authors' code has it: at pure noise with the second level in place of 1."""
    now, dt = s[:-1], np.diff(s)
    variance = a**2 * now / (1.0 - np.where(now == 1.0, s[1], now))
    on_output = dt * (1.0 + variance * (1.0 - now) / (2.0 * now))
    return np.column_stack([1.0 + variance / (2.0 * now) * dt, on_output, np.sqrt(-variance * dt)])


def renoised(s: np.ndarray, kept: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Factors where the next state is the data at its level, with ``kept`` of the predicted noise and some new."""
    now, after = s[:-1], s[1:]
    return np.column_stack([1.0 - after + kept, kept * (1.0 - now) - (1.0 - after) * now, noise])


def cps(s: np.ndarray, eta: float) -> np.ndarray:
    """Coefficients-preserving sampling (arXiv:2509.05952)."""
    noise = s[1:] * np.sin(eta * np.pi / 2.0)
    return renoised(s, np.sqrt(s[1:] ** 2 - noise**2), noise)


def full(s: np.ndarray, _: float) -> np.ndarray:
    """``FlowMatchEulerDiscreteScheduler(stochastic_sampling=True)``."""
    return renoised(s, np.zeros(len(s) - 1), s[1:])


def one_call(formula: Callable, calls: int, noise: float, shift: float) -> Sample:
    """Sample with one call in each step."""
    s = sigmas(calls, shift)
    factors = formula(s, noise)

    def sample(key: jax.Array, network: Any, x: jax.Array) -> jax.Array:
        def body(x: jax.Array, inputs: tuple) -> tuple:
            (on_state, on_output, on_noise), level, draw = inputs
            output = network(x, jnp.broadcast_to(level, x.shape[:1]))
            return on_state * x + on_output * output + on_noise * jax.random.normal(draw, x.shape, x.dtype), None

        inputs = (jnp.asarray(factors, x.dtype), jnp.asarray(s[:-1], x.dtype), jax.random.split(key, calls))
        return lax.scan(body, x, inputs)[0]

    return sample


def heun(calls: int, _: float, shift: float) -> Sample:
    """``FlowMatchHeunDiscreteScheduler`` with its own levels: two calls a step, one in the last, from 0.001."""
    s = np.append(shifted(np.linspace(1.0, 0.001, (calls + 1) // 2), shift), 0.0)

    def sample(key: jax.Array, network: Any, x: jax.Array) -> jax.Array:
        def body(x: jax.Array, inputs: tuple) -> tuple:
            level, after = (jnp.broadcast_to(value, x.shape[:1]) for value in inputs)
            first = network(x, level)
            step = (after - level)[:, None]
            return x + step * 0.5 * (first + network(x + step * first, after)), None

        x, _ = lax.scan(body, x, (jnp.asarray(s[:-2], x.dtype), jnp.asarray(s[1:-1], x.dtype)))
        return x - s[-2] * network(x, jnp.full(x.shape[:1], s[-2], x.dtype))

    return sample


def solver(calls: int, stochastic: float, shift: float) -> Sample:
    """DPM-Solver++ (2M): ``shift`` 0 for levels even in the log signal-to-noise ratio, which suit it best."""
    # Its time is infinite at pure noise.
    top = 0.999
    levels = np.arange(1, 1000) / 1000 if shift == 0.0 else np.minimum(sigmas(calls, shift)[-2::-1], top)
    schedule = DiffusionSchedule.from_sigmas(levels)

    def sample(key: jax.Array, network: Any, x: jax.Array) -> jax.Array:
        x = x * float(flow_scale(top))
        if stochastic:
            return sde_dpm_solver_sample(key, network, x, schedule, calls, prediction="flow")
        return dpm_solver_sample(network, x, schedule, calls, prediction="flow")

    return sample


def chain(calls: int, a: float, shift: float) -> Sample:
    """The SDE itself, in as many steps as there are calls."""
    schedule = DiffusionSchedule.flow(calls, a, shift=shift)
    return lambda key, network, x: ddpm_sample(key, network, x, schedule, prediction="flow")


def midpoint(calls: int, a: float, shift: float) -> Sample:
    """Ours: the SDE in 1000 steps, in blocks planned for the variances of the data."""
    schedule = DiffusionSchedule.flow(1000, a, shift=shift)
    blocks = plan_blocks(schedule, calls // 2, DATA_VARIANCES)
    return lambda key, network, x: poisson_midpoint_sample(key, network, x, schedule, blocks, prediction="flow")


FAMILIES: dict[str, Callable[[int, float, float], Sample]] = {
    "Euler": partial(one_call, euler),
    "Euler, stochastic_sampling": partial(one_call, full),
    "Euler-SDE": partial(one_call, euler_sde),
    "CPS": partial(one_call, cps),
    "Heun": heun,
    "DPM-Solver++ 2M": lambda calls, _, shift: solver(calls, 0.0, shift),
    "SDE-DPM-Solver++": lambda calls, _, shift: solver(calls, 1.0, shift),
    "SDE itself": chain,
    "Poisson midpoint": midpoint,
}

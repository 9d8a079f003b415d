r"""Samplers in JAX: the Poisson midpoint method and, to compare, DDPM and DDIM.

Each is one ``lax.scan`` over the calls of the network and can be put under ``jax.jit``; outside of it every call
traces the network anew.  Nothing of JAX's configuration is touched: arrays keep the type of the first state.

All take flow-matching models too: with a schedule of :meth:`~pmm_mcmc.diffusion.schedule.DiffusionSchedule.flow` and
``prediction="flow"`` the network is called with states :math:`(1 - s) x_0 + s \epsilon` and with their ``s``.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pmm_mcmc.diffusion.blocks import Blocks
from pmm_mcmc.diffusion.interpolation import Row, following, make_rows, make_table
from pmm_mcmc.diffusion.jax_scan import (
    Network,
    checked,
    draw,
    draw_and_keep,
    finite,
    go_to,
    marked_cells,
    one_midpoint,
    rows_at,
    scan,
    typed_key,
)
from pmm_mcmc.diffusion.schedule import DiffusionSchedule, flow_scale

__all__ = [
    "Trajectory",
    "ddim_sample",
    "ddpm_sample",
    "poisson_midpoint_sample",
    "poisson_midpoint_trajectory",
    "trajectory_log_prob",
]


def poisson_midpoint_sample(
    key: jax.Array,
    eps_fn: Network,
    x_T: jax.Array,
    schedule: DiffusionSchedule,
    blocks: Blocks,
    *,
    prediction: str = "epsilon",
) -> jax.Array:
    r"""Sample by the Poisson midpoint method: blocks of the chain at about two network calls each.

    Parameters
    ----------
    key
        Random key of JAX.
    eps_fn
        The network: a function of the states ``(samples, ...)`` and of their times ``(samples,)``, whole numbers as in
        ``schedule.timesteps``.
    x_T
        States at the first level of the blocks; for new samples standard normal.
    schedule
        The chain that is approximated.
    blocks
        How: see :class:`~pmm_mcmc.diffusion.blocks.Blocks` and :func:`~pmm_mcmc.diffusion.planner.plan_blocks`.
    prediction
        What ``eps_fn`` predicts: ``"epsilon"``, ``"score"``, ``"x0"``, ``"v"`` or ``"flow"``.

    Returns
    -------
    x_0 : as x_T
        The samples.  With one midpoint a block each sample draws its own; under Option 1, where their number varies,
        all samples share the marked cells (each has the right law, but they are not independent).

    Raises
    ------
    ValueError
        If shapes or settings are impossible, or, outside of ``jax.jit``, samples are not finite.

    Notes
    -----
    Equations at :func:`~pmm_mcmc.diffusion.interpolation.advance`; ``eps_fn`` is called ``blocks.calls`` times, on
    average under Option 1, each time with all samples.
    """
    network, x = checked(eps_fn, x_T, schedule, prediction, blocks.edges[0])
    key_midpoints, key_noise = jax.random.split(typed_key(key))
    table = make_table(schedule, blocks, prediction)
    if blocks.midpoint == "bernoulli":
        levels = marked_cells(key_midpoints, table)
        active = levels > 0
    else:
        levels = one_midpoint(key_midpoints, table, blocks, x.shape[0])
        active = None
    keys = jax.random.split(key_noise, len(levels))
    x, _ = scan(network, x, *rows_at(table, levels, x.dtype), draw, keys, active)
    return finite(x)


class Trajectory(NamedTuple):
    """Samples with their states and log densities, for policy gradients and importance weights.

    Attributes
    ----------
    states
        ``(calls + 1, samples, ...)``: where the network was called, and at last the samples.
    levels
        ``(calls, samples)``: of the schedule, at which it was called.
    log_prob
        ``(calls, samples)``: log density of each state given those before it in its block.  0 where a call adds no
        noise, as the last does if its midpoint is one update from the end.
    """

    states: jax.Array
    levels: jax.Array
    log_prob: jax.Array


def poisson_midpoint_trajectory(
    key: jax.Array,
    eps_fn: Network,
    x_T: jax.Array,
    schedule: DiffusionSchedule,
    blocks: Blocks,
    *,
    prediction: str = "epsilon",
) -> Trajectory:
    """Sample as :func:`poisson_midpoint_sample`, with all states on the way and their log-probabilities.

    Parameters and errors as there, but that Option 1, with its varying number of calls, is refused, and so is a chain
    without noise, which has no densities.
    """
    network, x = checked(eps_fn, x_T, schedule, prediction, blocks.edges[0])
    _has_densities(schedule, blocks)
    key_midpoints, key_noise = jax.random.split(typed_key(key))
    table = make_table(schedule, blocks, prediction)
    levels = one_midpoint(key_midpoints, table, blocks, x.shape[0])
    rows, timesteps = rows_at(table, levels, x.dtype)
    keys = jax.random.split(key_noise, len(levels))
    _, (visited, noise) = scan(network, x, rows, timesteps, draw_and_keep, keys)
    scales = _scales(schedule, prediction, levels, visited)
    states = jnp.concatenate([jnp.asarray(x_T)[None], visited * scales])
    finite(states)
    return Trajectory(states, levels, _log_density(rows, noise, scales))


def trajectory_log_prob(
    eps_fn: Network,
    trajectory: Trajectory,
    schedule: DiffusionSchedule,
    blocks: Blocks,
    *,
    prediction: str = "epsilon",
) -> jax.Array:
    """Return a network's log-probabilities of the states of a trajectory, such as one drawn with another network.

    Parameters
    ----------
    eps_fn
        The network; the result can be differentiated by its parameters.
    trajectory
        Of :func:`poisson_midpoint_trajectory` with the same schedule, blocks and kind of prediction.
    schedule, blocks, prediction
        As there.

    Returns
    -------
    log_prob : ``(calls, samples)``
        As :class:`Trajectory` has it.
    """
    network, x = checked(eps_fn, trajectory.states[0], schedule, prediction, blocks.edges[0])
    _has_densities(schedule, blocks)
    rows, timesteps = rows_at(make_table(schedule, blocks, prediction), trajectory.levels, x.dtype)
    visited = trajectory.states[1:]
    scales = _scales(schedule, prediction, trajectory.levels, visited)
    _, noise = scan(network, x, rows, timesteps, go_to, visited / scales)
    return _log_density(rows, noise, scales)


def _has_densities(schedule: DiffusionSchedule, blocks: Blocks) -> None:
    """Raise an error if states have no densities, or calls no fixed number."""
    if blocks.midpoint == "bernoulli":
        raise ValueError("midpoint='bernoulli' has a varying number of calls; for log-probabilities use 'importance'")
    if not np.any(schedule.coefficients(blocks.frozen).sigma > 0.0):
        raise ValueError(
            f"{schedule!r} adds no noise, and a state that follows without noise has no density: take eta > 0, of a "
            "flow noise_level > 0"
        )


def _scales(schedule: DiffusionSchedule, prediction: str, levels: jax.Array, states: jax.Array) -> jax.Array:
    """Return the factors that turn the states after each call into the network's, in a shape to multiply."""
    scale = flow_scale(schedule.sigmas) if prediction == "flow" else np.ones(schedule.N + 1)
    return jnp.asarray(scale, states.dtype)[following(levels, jnp)].reshape(*levels.shape, *(1,) * (states.ndim - 2))


def _log_density(rows: Row, noise: jax.Array, scales: jax.Array) -> jax.Array:
    """Return the log density of the states, ``(calls, samples)``, from the standard normal noise that led to each."""
    d = noise[0, 0].size
    deviation = rows.fresh_sd * scales.reshape(rows.fresh_sd.shape)
    squares = jnp.sum(noise.reshape(*noise.shape[:2], -1) ** 2, axis=2, dtype=rows.fresh_sd.dtype)
    log_scale = jnp.log(jnp.where(deviation > 0.0, deviation, 1.0)) + 0.5 * np.log(2.0 * np.pi)
    return jnp.where(deviation > 0.0, -0.5 * squares - d * log_scale, 0.0)


def ddpm_sample(
    key: jax.Array, eps_fn: Network, x_T: jax.Array, schedule: DiffusionSchedule, *, prediction: str = "epsilon"
) -> jax.Array:
    """Sample by the chain itself, one network call a step; for fewer steps give ``schedule.respaced(n_steps)``.

    Parameters and result as of :func:`poisson_midpoint_sample`.
    """
    network, x = checked(eps_fn, x_T, schedule, prediction, schedule.N)
    levels = np.arange(schedule.N, 0, -1)
    table = make_table(schedule, Blocks((*levels, 0)), prediction)
    rows = Row(*(jnp.asarray(c, x.dtype) for c in make_rows(table, levels, following(levels))))
    keys = jax.random.split(typed_key(key), len(levels))
    x, _ = scan(network, x, rows, jnp.asarray(table.timestep[levels]), draw, keys)
    return finite(x)


def ddim_sample(
    key: jax.Array,
    eps_fn: Network,
    x_T: jax.Array,
    schedule: DiffusionSchedule,
    n_steps: int,
    *,
    eta: float = 0.0,
    prediction: str = "epsilon",
) -> jax.Array:
    """Sample by DDIM with ``n_steps`` evenly spaced steps (Song et al., arXiv:2010.02502, equation 12).

    Parameters and result as of :func:`poisson_midpoint_sample`; ``eta`` scales the noise, of variant 2 whatever that of
    the schedule, and without noise (``eta = 0``) the key has no effect.
    """
    chain = DiffusionSchedule(schedule.signal[1:], "2", timesteps=schedule.timesteps).respaced(n_steps, eta=eta)
    return ddpm_sample(key, eps_fn, x_T, chain, prediction=prediction)

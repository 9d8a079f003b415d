r"""The adjusted trajectories of a witness, from many draws at once: proposals, acceptance, and what noise alone does.

A trajectory is that of an exact leg (:data:`pmm_mcmc.langevin.methods.TRAJECTORIES`).  Three things make its mean more
precise, and leave it what it is:

- both outcomes of the Metropolis test count, with their probabilities;
- the *shadow*, the trajectory of the same noise on the Gaussian that the coordinates whiten, ends near the proposal,
  and its mean given the start is found without any gradient: the difference of the two is a control variate;
- so is the start itself, whose mean is that of the whole run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pmm_mcmc.engines.arguments import TunedParameters
from pmm_mcmc.engines.contract import Engine, model_side
from pmm_mcmc.langevin.flows import flows
from pmm_mcmc.langevin.transitions import kick, malt_log_ratio, path, refreshed

__all__ = ["Ends", "Proposals", "expected_shadow", "follow"]

_FRESH = 8  # pairs of shadows with opposite noise for each start: what they add to the variance is a sixteenth


class Proposals(NamedTuple):
    """Ends of trajectories ``(n, d)``: model positions, acceptance probabilities ``(n,)``, whitened shadows."""

    x: np.ndarray
    accept: np.ndarray
    shadow: np.ndarray


class Ends(NamedTuple):
    """What trajectories make of parameters, ``(chain, n, p)`` each, ``accept`` ``(chain, n, 1)``.

    ``shadow_mean`` and ``shadow_square`` are expectations given the start of a shadow's distance from the mean of the
    run and of its square.
    """

    proposed: np.ndarray
    accept: np.ndarray
    shadow: np.ndarray
    shadow_mean: np.ndarray
    shadow_square: np.ndarray


def follow(engine: Engine, tuned: TunedParameters, state: np.ndarray, rng: np.random.Generator) -> Proposals:
    """Follow one trajectory from each of the states ``(n, 4 d + 2)`` to its proposal, for ``K`` gradients."""
    n, d = state.shape[0], state.shape[1] // 4
    flow, step = flows.harmonic(tuned.step_size, 0.0), tuned.step_size
    kept = np.exp(-tuned.friction * step)
    now, start = state.copy(), state[:, :d]
    u, v, b, gained = start, rng.standard_normal((n, d)), state[:, 2 * d : 3 * d], np.zeros((n, d))
    shadow, shadow_v, evaluation = u, v, np.empty(0)
    with np.errstate(all="ignore"):  # a trajectory that overflows is not accepted
        for _ in range(tuned.K):
            fresh = rng.standard_normal((n, d))
            shadow, shadow_v = path(shadow, refreshed(shadow_v, fresh, kept), 0.0, 0.0, flow)
            v, gain = kick(refreshed(v, fresh, kept), b, step)
            u, v = path(u, v, 0.0, 0.0, flow)
            gained += gain
            now[:, :d] = u
            evaluation = engine.evaluate(tuned.coordinates, now)
            b = now[:, 2 * d : 3 * d].copy()
            v, gain = kick(v, b, step)
            gained += gain
        log_ratio = now[:, 4 * d] - state[:, 4 * d] + malt_log_ratio(start, u, gained).sum(axis=1)
        accept = np.where(np.isnan(log_ratio), 0.0, np.exp(np.minimum(log_ratio, 0.0)))
        x, _ = model_side(tuned.coordinates.place(u), evaluation)
    return Proposals(x, accept, shadow)


def expected_shadow(
    values: Callable[[np.ndarray], np.ndarray],
    tuned: TunedParameters,
    start: np.ndarray,
    mean: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the expectations of :class:`Ends`, from shadows with fresh noise, for no gradients.

    ``values`` returns the parameters of whitened positions ``(n, d)``, ``start`` are those of the starts, and ``mean``
    are the parameters' means over the run.
    """
    flow, slowed = flows.harmonic(tuned.step_size, 0.0), np.exp(-tuned.friction * tuned.step_size)
    kept, speed = 1.0, 0.0
    for _ in range(tuned.K):
        kept, speed = path(kept, refreshed(speed, 0.0, slowed), 0.0, 0.0, flow)
    spread = np.sqrt(1.0 - kept**2)  # the shadow leaves N(0, I) as it is
    first, second = np.zeros(()), np.zeros(())
    for _ in range(_FRESH):
        apart = spread * rng.standard_normal(start.shape)
        for end in (kept * start + apart, kept * start - apart):
            away = values(end) - mean
            first, second = first + away, second + away**2
    return first / (2 * _FRESH), second / (2 * _FRESH)

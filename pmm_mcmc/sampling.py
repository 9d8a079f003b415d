"""Chains of one engine, warmed up together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pmm_mcmc.engines.contract import Engine
from pmm_mcmc.engines.ensemble import Ensemble
from pmm_mcmc.methods import Settings
from pmm_mcmc.tuning.schedule import Warmup
from pmm_mcmc.tuning.setting import Block, Tuned

__all__ = ["Warmed", "warm_up"]


class Warmed(NamedTuple):
    """Chains ready to sample: the ensemble, its setting, and the gradients that each chain took to get there."""

    ensemble: Ensemble
    tuned: Tuned
    n_grad: np.ndarray
    warmup: Warmup


def warm_up(engine: Engine, settings: Settings, starts: np.ndarray, *, length: int, rng: np.random.Generator) -> Warmed:
    """Warm chains up together, until the setting has been frozen and found good.

    Parameters
    ----------
    engine
        Of the method that the settings are for.
    settings
        What is given and what is to be found.
    starts : (chain, d)
        Positions with a finite log density, apart from each other.
    length
        Most transitions that each chain may take.
    rng
        For keys and velocities.

    Returns
    -------
    Warmed
        Chains, setting and gradients spent.

    Raises
    ------
    ValueError
        If the log density or its gradient is not finite at one of the starts.
    """
    chains = len(starts)
    gradients = engine.gradient_at(starts)
    bad = np.flatnonzero(~np.isfinite(gradients).all(axis=1))
    if bad.size:
        raise ValueError(f"starts[{bad[0]}]: the log density or its gradient is not finite there; start elsewhere")
    warmup = Warmup.start(settings, length, starts, gradients)
    tuned = warmup.tuned
    ensemble = Ensemble.start(engine, tuned.coordinates, starts, rng)
    n_grad = np.full(chains, 2)
    while not (warmup.finished or warmup.ready):
        chunk = ensemble.advance(engine, tuned, warmup.boundary - warmup.done, tolerance=warmup.tolerance)
        n_grad = n_grad + chunk.n_grad.sum(axis=1)
        warmup.observe(Block.of(chunk))
        new = warmup.update(engine.gradient_at)
        ensemble.copy_from(warmup.source)
        ensemble.change(engine, tuned.coordinates, new.coordinates)
        tuned = new
    if not warmup.finished:
        warmup.stop()
        tuned = warmup.update()
    return Warmed(ensemble, tuned, n_grad + -(-warmup.n_grad // chains), warmup)

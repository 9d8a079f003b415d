"""One row of the comparison: a sampler on a target from one seed, in gradients, effective samples and seconds."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
from targets import TARGETS, reference
from versus.first_times import corrected_crossing, lengthened
from versus.ours import SAMPLERS, Ours

__all__ = ["PEERS", "build", "measured"]

PEERS = ("PyMC NUTS", "nutpie NUTS", "NumPyro NUTS", "MCLMC", "MCLMC, short tuning")
CHAINS = 8
# Draws of each chain and coordinates whose effective samples are computed: more would take longer than the run.
EFFECTIVE_DRAWS, FIRST_COORDINATES, COORDINATES = 8000, 10, 50


def build(name: str, model: pm.Model, chains: int) -> Any:
    """Compile a sampler: ours, without non-centring, which changes what is sampled, or a peer."""
    if name in SAMPLERS:
        ours = Ours(name, model, chains, reparametrise=False)
        # Whatever is compiled when it is first used is compiled here.
        ours.begin(0, length=300)
        ours.lengthen(10)
        return ours
    from versus import jax_peers, peers

    makers: dict[str, Callable[[], Any]] = {
        "PyMC NUTS": lambda: peers.PyMCNUTS(model, chains),
        "nutpie NUTS": lambda: peers.Nutpie(model, chains),
        "nutpie low rank": lambda: peers.Nutpie(model, chains, adaptation="low_rank"),
        "NumPyro NUTS": lambda: jax_peers.NumPyroNUTS(model, chains),
        "MCLMC": lambda: jax_peers.MCLMC(model, chains),
        "MCLMC, short tuning": lambda: jax_peers.MCLMC(model, chains, tuner_steps=4_000),
    }
    return makers[name]()


@lru_cache(maxsize=1)
def _built(target: str, sampler: str) -> Any:
    return build(sampler, TARGETS[target].build(), CHAINS)


def effective(draws: np.ndarray) -> list[float]:
    """Return the smallest bulk effective sample size of coordinates, and of their squares: of at most 50 coordinates.

    Of long runs every n-th draw is taken, so that at most 8,000 of each chain remain, and of many coordinates the
    first ten and forty more, evenly spaced.
    """
    d = draws.shape[2]
    if d > COORDINATES:
        rest = np.linspace(FIRST_COORDINATES, d - 1, COORDINATES - FIRST_COORDINATES).round().astype(int)
        draws = draws[:, :, np.concatenate([np.arange(FIRST_COORDINATES), rest])]
    x = draws[:, :: math.ceil(draws.shape[1] / EFFECTIVE_DRAWS)]
    return [float(np.min(az.ess(values, method="bulk", chain_axis=0, draw_axis=1))) for values in (x, x**2)]


def _finite(value: float) -> float | None:
    """JSON has no infinity: None is "not within what was spent"."""
    return float(value) if math.isfinite(value) else None


def measured(target: str, name: str, seed: int, seconds: float) -> dict[str, Any]:
    """Run a sampler until its errors are settled, or as long as ``seconds`` of CPU allow, and return its row."""
    known, sampler = reference(target), _built(target, name)
    began = time.process_time()
    load = os.getloadavg()[0]
    sampler.begin(seed)
    run, found = lengthened(sampler, known, seconds - (time.process_time() - began))
    total = float(run.gradients_per_draw.sum())
    ess, ess_square = effective(run.draws)
    pooled = (np.mean(run.draws**2, axis=(0, 1)) - known.second) ** 2 / known.variance_of_square
    return {
        "d": len(known.second),
        "chains": CHAINS,
        "warm_up": float(np.median(run.warmup_gradients)),
        **{name: {kind: _finite(value) for kind, value in vars(c).items()} for name, c in found.items()},
        "corrected": _finite(corrected_crossing(run, known)),
        "spent": found["b2_max"].spent,
        "pooled": float(pooled.max()),
        "draws": run.draws.shape[1],
        "ess_per_1000": 1000 * ess / total,
        "ess_square_per_1000": 1000 * ess_square / total,
        "ess_per_second": ess / sampler.seconds,
        "ess_square_per_second": ess_square / sampler.seconds,
        "warm_up_seconds": sampler.warm_up_seconds,
        "seconds": sampler.seconds,
        "failing": sampler.failing,
        "load": round(load, 1),
        "note": run.note,
    }

"""The peak memory of a run, from the sizes of its arrays; ``python -m benchmarks memory`` holds it against processes.

What is there at one time, for ``C`` chains in ``d`` coordinates with evaluations of width ``w``:

always      the state of the chains, ``C (4 d + 2 + w)`` numbers
warm-up     in a change of coordinates a second state and three positions of each chain; in a fit of the preconditioner
            positions and gradients of the window and of the newest block, and those of the window in order of time,
            centred and scaled
draws       all draws so far, a chunk of all chains, and the batch of chains that advances
the end     all draws, the state twice more for the checkpoint, and what the verdict has: whitened draws; or
            terms of the folds, the draws of one in few coordinates, and eight copies of some parameters
moments     two numbers for each chain and value; while a chunk is added, its newest half as the engine returned it,
            a copy of its values, and a few numbers for each chain and value
JAX         the buffers of a compiled call
"""

from __future__ import annotations

import math
from typing import Any

from pmm_mcmc.coordinates.scale import MOST_DENSE
from pmm_mcmc.diagnostics.calibration import CALIBRATION as DIAGNOSTICS
from pmm_mcmc.diagnostics.folds import count_virial_terms
from pmm_mcmc.diagnostics.parameters import SLAB
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.warmup import timetable
from pmm_mcmc.warmup.calibration import CALIBRATION
from pmm_mcmc.warmup.pooled import training_chains

__all__ = ["peak_bytes"]


def peak_bytes(
    plan: SamplingPlan, chains: int, draws: int, rows: int, *, tune: int, warming: int = 0, moments: bool = False
) -> int:
    """Return the bytes that a run needs beyond what the process has before it.

    Parameters
    ----------
    plan
        What is sampled.
    chains, draws, rows
        Chains, draws of each, and draws of a chunk.
    tune, warming
        Length of the warm-up at most, and draws of it that are kept.
    moments
        Whether moments are kept in place of draws.
    """
    engine: Any = plan.engine
    each = plan.numbers_per_draw
    d, width = engine.d, engine.width
    rows = min(rows, draws)
    state = chains * (4 * d + 2 + width)
    batch = plan.batch("auto", chains)(rows)
    drawing = batch * rows * each + (chains * rows * each if batch < chains or rows < draws else 0)
    if moments:
        values = sum(math.prod(array.shape[2:]) for array in plan.empty(1)["posterior"].values())
        kept, ending = 2 * chains * values, 0
        adding = (rows + 4) * chains * values
        newest = batch * -(-rows // 2) * (d + width + 6)
        drawing = max(drawing, chains * rows * each + adding + newest)
    else:
        kept, ending = chains * (draws + warming) * each, 2 * state
        ending += _verdict(chains * draws, d, len(plan.layout.names))
    device = 0
    if plan.attributes["backend"] == "jax":
        device = engine.group * (2 * engine.capacity * (d + width + 7) + 2 * (4 * d + 2 + width))
    return 8 * (state + device + max(_warm_up(plan, chains, tune), kept + max(drawing, ending)))


def _verdict(n: int, d: int, parameters: int) -> int:
    """Return the numbers that a verdict has beside ``n`` draws: the terms of all folds or of one, or whitened draws."""
    fold = min(n, DIAGNOSTICS.fitted_draws + n // DIAGNOSTICS.folds)
    slab = min(n * parameters, max(SLAB // 8, n))
    terms = fold * count_virial_terms(fold, d)
    kept = DIAGNOSTICS.folds * terms
    in_fold = 3 * terms + (kept if kept <= 2 * n * d else 0) + (2 * fold * d if d <= MOST_DENSE else 0) + 8 * slab
    return max(in_fold, 2 * n * d if 1 < d <= MOST_DENSE and n > 3 * d else 0)


def _warm_up(plan: SamplingPlan, chains: int, tune: int) -> int:
    """Return the numbers that a warm-up has beside the state, if it ends as early as it may."""
    if tune == 0:
        return 0
    d, width = plan.engine.d, plan.engine.width
    done, block, shortest = 0, 0, timetable.shortest_block(chains)
    while done < min(CALIBRATION.least_adapted, tune):
        done, block = timetable.end_of_growing(done, tune, False, shortest), done
    block, trained = done - block, min(chains, training_chains(d))
    window = trained * d * max(math.ceil(CALIBRATION.window * done), block)
    fit = 8 * window + trained * (d + width) * block + (0 if plan.engine.structure is None else 2 * window)
    moving = chains * (7 * d + 2)
    advancing = plan.batch("auto", chains)(block) * block * (d + width) + 2 * window
    return max(moving, fit, advancing)

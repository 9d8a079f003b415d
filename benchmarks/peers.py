"""Gradients that other samplers need: ``python benchmarks/peers.py [target ...]`` prints the table.

PyMC's NUTS with its defaults (jitter and adapted diagonal scale, 1000 tuning iterations) and BlackJAX's MCLMC with its
own tuner start from points of the same law, uniform within one unit of the model's initial point, and run on the same
log density. Gradients are counted as follows.

* NUTS: leapfrog steps (``n_steps``), of warm-up too. The gradient at the start of a trajectory is known from the
  last one and is not counted, although PyMC 6.4 evaluates it again.
* MCLMC: evaluations in a step of its integrator, counted when the step is traced: two for the isokinetic minimal-norm
  (McLachlan) one, which takes the gradient at two new positions and reuses the last. The tuner takes a third of
  ``tuner_steps`` in steps (a tenth for each of its three phases, and a third of a tenth after the scale was set).

Needs ``jax`` and ``blackjax``. A run is lengthened fourfold until both statistics are settled in its first half or the
next one would take longer than the limit, or too much memory: no draw is left out, which would change the figures.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm

__all__ = ["Crossing", "Run", "curves", "gradients_to", "mclmc", "nuts"]

LIMIT = 0.01
STATISTICS = {"b2_max": np.max, "b2_avg": np.mean}
# The length that BlackJAX's tuner is told, of which it spends a third: 6.7 thousand gradients.
TUNER_STEPS = 10_000
MEMORY = 3 * 2**30  # bytes of positions
CHUNK = 500  # draws in one call of a compiled loop
FIRST, GROWTH = {"NUTS": 1000, "MCLMC": 10_000}, 4
SEED = 1
HEADER = """\
Gradients a chain until the error b2 of the second moments is below {limit}, medians over {chains} chains, seed {seed}.
{versions}; MCLMC's tuner is told {tuner} steps.

warm-up   gradients of tuning                       total    warm-up and gradients to b2_max
b2_max    first time that the median is below       spent    gradients after warm-up
10-90 %   of the chains' own first times            final    median of b2_max after them
settled   b2_max stays below from here              pooled   b2_max of all chains' draws together
b2_avg    as b2_max, mean over coordinates          secs     of CPU of the last run, with compilation

          warm-up   b2_max         10-90 %  settled   b2_avg    total    spent    final   pooled  secs"""


@dataclass(frozen=True)
class Run:
    """Chains of one sampler and what they cost.

    Attributes
    ----------
    name : str
        The sampler.
    draws : array, shape (chain, draw, d)
        Unconstrained positions after warm-up, raveled in the order of ``model.continuous_value_vars``.
    gradients_per_draw : array, shape (chain, draw)
        Gradients spent from one kept draw to the next.
    warmup_gradients : array, shape (chain,)
        Gradients spent before the first of them.
    log_density_gradients : array, shape (chain, draw, d), optional
        Gradient of the log density at the draws.
    note : str
        What a reader of the table should know.
    """

    name: str
    draws: np.ndarray
    gradients_per_draw: np.ndarray
    warmup_gradients: np.ndarray
    log_density_gradients: np.ndarray | None = None
    note: str = ""


@dataclass(frozen=True)
class Crossing:
    """When an error fell below the limit, in gradients a chain after warm-up; ``inf`` where it never did.

    Attributes
    ----------
    first, settled : float
        First time that the median over chains is below the limit, and the time from which it stays there.
    low, high : float
        10 % and 90 % quantile over chains of the chain's own first time.
    spent : float
        Length of the common gradient axis: the smallest total over chains.
    final : float
        Median over chains of the error at its end.
    """

    first: float
    settled: float
    low: float
    high: float
    spent: float
    final: float

    def __str__(self) -> str:
        return f"{self.first:.0f}" if math.isfinite(self.first) else f">{self.spent:.0f}"


def curves(draws: np.ndarray, reference: Any, statistic: str) -> np.ndarray:
    r"""Error of each chain's running estimate of the second moments, after each draw, shape (chain, draw).

    .. math:: b^2_i(t) = \frac{\bigl(\frac1t \sum_{s \le t} x_{s,i}^2 - E[x_i^2]\bigr)^2}{\mathrm{Var}[x_i^2]}

    with the maximum (``"b2_max"``) or the mean (``"b2_avg"``) over coordinates i.

    Raises
    ------
    ValueError
        If the statistic is another one, or the shapes do not agree.
    """
    if statistic not in STATISTICS:
        raise ValueError(f"statistic={statistic!r} is unknown: take one of {', '.join(STATISTICS)}")
    if draws.ndim != 3 or draws.shape[2:] != np.shape(reference.second):
        raise ValueError(
            f"draws of shape {draws.shape} do not fit a reference of shape {np.shape(reference.second)}: "
            "pass (chain, draw, d)"
        )
    count = np.arange(1, draws.shape[1] + 1)[:, None]
    return np.stack(
        [
            STATISTICS[statistic](
                (np.cumsum(chain**2, axis=0) / count - reference.second) ** 2 / reference.variance_of_square, axis=1
            )
            for chain in draws
        ]
    )


def _first(holds: np.ndarray, spent: np.ndarray) -> float:
    """Gradients spent when a condition holds for the first time, infinite if it never does."""
    return float(spent[np.argmax(holds)]) if holds.any() else math.inf


def gradients_to(
    draws: np.ndarray, gradients: np.ndarray, reference: Any, statistic: str, limit: float = LIMIT
) -> Crossing:
    """Gradients a chain, after warm-up, until the error of the second moments is below a limit.

    Every chain's error is a step function of the gradients that the chain has spent; before its first draw it is
    infinite. The curve of the table is the median over chains of these functions on one gradient axis, up to where
    the first chain ends, and the figure is the first time that it is below ``limit``. A curve may rise again
    (`Crossing.settled`), and a chain's own time may be far from the median's (`Crossing.low`, `Crossing.high`).

    Parameters
    ----------
    draws : array, shape (chain, draw, d)
        Unconstrained positions, see `Run`.
    gradients : array, shape (chain, draw)
        Gradients spent for each draw.
    reference
        ``second``, the expectation of x^2, and ``variance_of_square``, its variance, of shape (d,).
    statistic : {"b2_max", "b2_avg"}
        Maximum or mean over coordinates.
    limit
        The bar.

    Returns
    -------
    Crossing

    Raises
    ------
    ValueError
        If the statistic is another one, the shapes do not agree, or a draw is not finite.
    """
    if np.shape(gradients) != draws.shape[:2]:
        raise ValueError(f"gradients of shape {np.shape(gradients)} do not fit draws of shape {draws.shape}")
    if not np.all(np.isfinite(draws)):
        raise ValueError("draws: some are not finite; no error can be computed from them")
    errors = curves(draws, reference, statistic)
    spent = np.cumsum(gradients, axis=1)
    own = [_first(e < limit, s) for e, s in zip(errors, spent, strict=True)]
    low, high = np.quantile(own, [0.1, 0.9], method="inverted_cdf")
    end = spent[:, -1].min()
    axis = np.unique(spent)
    axis = axis[axis <= end]
    # Column 0 stands for the time before the first draw.
    padded = np.hstack([np.full((len(errors), 1), math.inf), errors])
    on_axis = [e[np.searchsorted(s, axis, side="right")] for e, s in zip(padded, spent, strict=True)]
    median = np.median(on_axis, axis=0)
    below = median < limit
    stays = np.logical_and.accumulate(below[::-1])[::-1]
    return Crossing(_first(below, axis), _first(stays, axis), float(low), float(high), float(end), float(median[-1]))


def nuts(model: pm.Model, draws: int, chains: int = 8, seed: int = 1, *, tune: int = 1000) -> Run:
    """PyMC's own NUTS with its defaults, chains one after the other; see `Run` and the module for the counts.

    Parameters
    ----------
    model
        All of its variables must be continuous.
    draws
        Draws of each chain after warm-up.
    chains, seed
        Number of chains and seed of all of them.
    tune
        Warm-up iterations of each chain.
    """
    with model, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dt = pm.sample(
            draws=draws,
            tune=tune,
            chains=chains,
            cores=1,
            nuts_sampler="pymc",
            random_seed=seed,
            discard_tuned_samples=False,
            compute_convergence_checks=False,
            progressbar=False,
            quiet=True,
            idata_kwargs={"include_transformed": True},
        )
    flat = [np.asarray(dt["posterior"][v.name]).reshape(chains, draws, -1) for v in model.continuous_value_vars]
    divergences = int(dt["sample_stats"]["diverging"].sum())
    return Run(
        name="NUTS",
        draws=np.concatenate(flat, axis=2),
        gradients_per_draw=np.asarray(dt["sample_stats"]["n_steps"]),
        warmup_gradients=np.asarray(dt["warmup_sample_stats"]["n_steps"].sum("draw")),
        note=f"{divergences} divergences" if divergences else "",
    )


def mclmc(model: pm.Model, draws: int, chains: int = 8, seed: int = 1, *, tuner_steps: int = TUNER_STEPS) -> Run:
    """BlackJAX's microcanonical Langevin sampler with its own tuner, each chain tuned by itself, chains in one batch.

    Parameters
    ----------
    model
        All of its variables must be continuous.
    draws
        Steps of each chain after tuning; each is a draw.
    chains, seed
        Number of chains and seed of all of them.
    tuner_steps
        The ``num_steps`` of ``blackjax.mclmc_find_L_and_step_size``: about a third of it is spent.
    """
    import blackjax
    import jax
    from jax_density import jax_log_density, starts

    density = jax_log_density(model)
    begin = starts(model, chains, seed, jax.jit(density))
    kernel = blackjax.mclmc.build_kernel()
    tune_key, sample_key = jax.random.split(jax.random.key(seed))
    evaluations = steps_taken = 0

    def counting(x):
        nonlocal evaluations
        evaluations += 1
        return density(x)

    one = blackjax.mclmc.init(begin[0], density, tune_key)
    jax.eval_shape(lambda key, state: kernel(key, state, counting, np.ones(begin.shape[1]), 1.0, 1.0), tune_key, one)

    def tuned(key, x):
        nonlocal steps_taken
        state_key, key = jax.random.split(key)
        state, parameters, steps_taken = blackjax.mclmc_find_L_and_step_size(
            mclmc_kernel=kernel,
            num_steps=tuner_steps,
            state=blackjax.mclmc.init(x, density, state_key),
            rng_key=key,
            logdensity_fn=density,
        )
        return state, parameters

    state, parameters = jax.jit(jax.vmap(tuned))(jax.random.split(tune_key, chains), begin)

    def step(carry, i):
        state, parameters, key = carry
        scale, L, size = parameters.inverse_mass_matrix, parameters.L, parameters.step_size
        state, _ = kernel(jax.random.fold_in(key, i), state, density, scale, L, size)
        return (state, parameters, key), state.position

    @jax.jit
    def chunk(carry, first):
        return jax.vmap(lambda c: jax.lax.scan(step, c, first + jax.numpy.arange(CHUNK)))(carry)

    positions = np.empty((chains, draws, begin.shape[1]))
    carry = (state, parameters, jax.random.split(sample_key, chains))
    for first in range(0, draws, CHUNK):
        carry, block = chunk(carry, first)
        positions[:, first : first + CHUNK] = block[:, : draws - first]
    L, size = np.median(parameters.L), np.median(parameters.step_size)
    return Run(
        name="MCLMC",
        draws=positions,
        gradients_per_draw=np.full((chains, draws), evaluations),
        warmup_gradients=np.full(chains, 1 + evaluations * steps_taken),
        note=f"L {L:.2g}, step {size:.2g}",
    )


RUNNERS: dict[str, Callable[..., Run]] = {"NUTS": nuts, "MCLMC": mclmc}


def measure(sampler: str, model: pm.Model, reference: Any, chains: int, seed: int, limit: float) -> None:
    """Run a sampler as long as it needs, or as ``limit`` seconds of CPU allow, and print its row."""
    draws = FIRST[sampler]
    while True:
        began = time.process_time()
        run = RUNNERS[sampler](model, draws, chains, seed)
        seconds = time.process_time() - began
        found = {name: gradients_to(run.draws, run.gradients_per_draw, reference, name) for name in STATISTICS}
        done = all(c.settled <= 0.5 * c.spent for c in found.values())
        if done or GROWTH * seconds > limit or GROWTH * run.draws.nbytes > MEMORY:
            break
        draws *= GROWTH
    worst, mean = found["b2_max"], found["b2_avg"]
    second = np.mean([np.mean(chain**2, axis=0) for chain in run.draws], axis=0)
    pooled = np.max((second - reference.second) ** 2 / reference.variance_of_square)
    warmup = np.median(run.warmup_gradients)
    total = f"{'' if math.isfinite(worst.first) else '>'}{warmup + min(worst.first, worst.spent):.0f}"
    chains_own = f"{worst.low:.0f}-{worst.high:.0f}"
    print(
        f"  {sampler:6s} {warmup:8.0f} {worst!s:>8s} {chains_own:>15s} {worst.settled:8.0f} {mean!s:>8s} {total:>8s} "
        f"{worst.spent:8.0f} {worst.final:8.2g} {pooled:8.2g} {seconds:5.0f}  {run.note}",
        flush=True,
    )


def main() -> None:
    from targets import TARGETS, reference

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="names of targets (default: all)")
    parser.add_argument("--samplers", nargs="*", default=list(RUNNERS), choices=list(RUNNERS))
    parser.add_argument("--chains", type=int, default=8)
    parser.add_argument("--minutes", type=float, default=5.0, help="limit of CPU time for one sampler on one target")
    parser.add_argument("--quick", action="store_true", help="the first, short run only")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.targets) - set(TARGETS))
    if unknown:
        parser.error(f"unknown target {', '.join(unknown)}: take some of {', '.join(TARGETS)}")
    limit = 0.0 if arguments.quick else 60 * arguments.minutes
    versions = ", ".join(f"{n} {importlib.metadata.version(n)}" for n in ("pymc", "blackjax", "jax", "numpy"))
    print(HEADER.format(limit=LIMIT, chains=arguments.chains, seed=SEED, versions=versions, tuner=TUNER_STEPS))
    for name in arguments.targets or TARGETS:
        model, known = TARGETS[name].build(), reference(name)
        print(f"{name} (d={len(known.second)})", flush=True)
        for sampler in arguments.samplers:
            measure(sampler, model, known, arguments.chains, SEED, limit)


if __name__ == "__main__":
    main()

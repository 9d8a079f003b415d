"""What the learnt non-centring brings: ``python benchmarks/noncentring.py [target ...]`` prints the table.

Centred hierarchies (``benchmarks/hierarchies.py``) and targets that need nothing, through ``pmm.sample`` with
``PoissonULMC(scheme="recycled")``: a gradient a transition, every transition a draw.  Errors are in the unconstrained
coordinates of the centred form, also of runs on the form that is non-centred by hand.  The sinks of Neal's funnel,
whose squares have next to infinite variance, are left out of the errors.  ``--peers`` adds PyMC's NUTS, nutpie, MCLMC
and WALNUTS on the centred form (``benchmarks/more_peers.py`` and ``jax_peers.py`` say how they are tuned and their
gradients counted), and ``--flow`` nutpie with its adaptation by a normalising flow: one chain, which takes minutes to
train.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from first_times import Crossing, Run, gradients_to
from hierarchies import HIERARCHIES, hierarchy_reference
from make_references import flat_draws
from targets import TARGETS, Reference, reference

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.verdict import bias_table
from pmm_mcmc.model.result_tree import flat_names

CHAINS, TUNE, LIMIT = 8, 1900, 0.01
# Transitions for each draw of which the verdict is made.
THIN = 4
# A bias of a mean, in posterior sds, that a trusted run must not have; and the standard errors that show it.
BIASED, CLEARLY = 0.1, 3.0
NEED_NOTHING = (
    *("eight_schools", "rosenbrock36", "banana", "phi4", "mixture20", "latent_ar", "galaxies", "stochastic_volatility"),
    *("breast_cancer", "poisson_glm", "negative_binomial_glm", "gaussian100", "rotated100"),
)
OURS = ("auto", "False", "by hand")
# Draws of each chain.
PEERS = {"PyMC NUTS": 2000, "nutpie NUTS": 2000, "MCLMC": 20_000, "WALNUTS": 2000}
FLOW = {"nutpie flow": 2000}
HEADER = """\
{chains} chains, {draws} draws each; gradients count for each chain.

auto, False  reparametrise= on the centred form            biased   worst error of a mean in posterior sds, +- its
by hand      on the form non-centred by hand                        standard error: raw, and Stein-corrected
tuning       gradients of the warm-up                      verdict  of pmm.verdict; WRONG: a trusted mean is off by .1
b2_max       gradients until it is below {limit} (median)    fails    unstable transitions after warm-up
b2_avg       likewise, mean over coordinates               total    tuning and b2_max

   seed sampler      tuning   b2_max   b2_avg    total   biased raw       corrected  verdict    fails non-centred"""


@dataclass(frozen=True)
class Known:
    """What is known of a target: moments of the coordinates that are judged, how many they are, and their names."""

    moments: Reference
    shown: int
    labels: list[str]


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    sampler: str
    run: Run
    result: Any = None
    verdict: Any = None
    fails: int = 0
    words: str = ""


def ours(sampler: str, model: pm.Model, centred: pm.Model, draws: int, seed: int, known: Known) -> Row:
    """Run our sampler on a model, and judge it in the coordinates of the centred one."""
    step = pmm.PoissonULMC(
        scheme="recycled", steps_per_draw=1, reparametrise="auto" if sampler == "auto" else False, model=model
    )
    with model:
        dt = pmm.sample(
            step, draws, tune=TUNE, chains=CHAINS, random_seed=seed, progressbar=False, compute_convergence_checks=False
        )
    stats = dt["sample_stats"].dataset
    spent, total = stats["n_grad"].values, stats["n_grad_total"].values[:, -1]
    x = flat_draws(centred, dt) if model is not centred else stats["unconstrained"].values
    run = Run(sampler, x[..., : known.shown], spent, total - spent.sum(axis=1))
    tree = judged(x, stats, dt["posterior"].attrs)
    words = dt["posterior"].attrs.get("reparametrisation", "")
    return Row(sampler, run, bias_table(tree), pmm.verdict(tree), int(stats["unstable"].sum()), words)


def judged(x: np.ndarray, stats: Any, attrs: Any) -> xr.DataTree:
    """Return every few draws with the coordinates ``x`` as parameters, as what bias and verdict are made of."""
    names = ["gradient", "unconstrained", "noncentred", "expected_bias", "halving_cost"]
    kept = stats[[name for name in names if name in stats]].isel(draw=slice(THIN - 1, None, THIN))
    counts = stats[["unstable", "model_failures", "steps_per_draw"]].coarsen(draw=THIN).sum()
    posterior = xr.Dataset({"x": (("chain", "draw", "i"), x[:, THIN - 1 :: THIN])}, attrs=attrs)
    return xr.DataTree.from_dict(
        {"posterior": posterior, "sample_stats": kept.merge(counts.drop_vars("draw"), compat="override")}
    )


def row(seed: int, found: Row, known: Known) -> str:
    """Return the line of a run."""
    run, moments = found.run, known.moments
    worst, mean = (gradients_to(run.draws, run.gradients_per_draw, moments, b, LIMIT) for b in ("b2_max", "b2_avg"))
    sd, means = np.sqrt(moments.variance_of_x), run.draws.mean(axis=1)
    error = np.hypot(means.std(axis=0, ddof=1) / np.sqrt(len(means)), moments.se_mean) / sd
    off = (means.mean(axis=0) - moments.mean) / sd
    j = int(np.argmax(np.abs(off)))
    corrected, verdict = "", ""
    if found.result is not None:
        after = (found.result["mean_corrected"].to_numpy()[: known.shown] - moments.mean) / sd
        wrong = ((np.abs(off) > BIASED) & (np.abs(off) > CLEARLY * error)).any()
        corrected = f"{after[np.argmax(np.abs(after))]:+.3f}"
        verdict = "no" + ", rightly" * bool(wrong) if not found.verdict.trusted else "WRONG trust" if wrong else "trust"
    warmup = float(np.median(run.warmup_gradients))
    return (
        f"{seed:7d} {found.sampler:11s} {warmup:7.0f} {worst!s:>8s} {mean!s:>8s} {total(warmup, worst):>8s}   "
        f"{off[j]:+.3f} +- {error[j]:.3f} {corrected:>7s}  {verdict:12s} {found.fails:5d} "
        f"{known.labels[j]}; {found.words or run.note or '-'}"
    )


def total(warmup: float, crossing: Crossing) -> str:
    """Return gradients of tuning and of sampling as text, a bound where the error has not come down."""
    reached = math.isfinite(crossing.first)
    return f"{'' if reached else '>'}{warmup + (crossing.first if reached else crossing.spent):.0f}"


def known_of(name: str, centred: pm.Model) -> Known:
    """Return what is known of a target."""
    hierarchy = HIERARCHIES.get(name)
    moments = reference(name) if hierarchy is None else hierarchy_reference(name)
    shown = len(moments.mean) if hierarchy is None or hierarchy.shown is None else hierarchy.shown
    point = centred.initial_point(0)
    labels = flat_names([(var.name, np.shape(point[var.name])) for var in centred.continuous_value_vars])
    part = Reference(*(getattr(moments, field)[:shown] for field in Reference.__dataclass_fields__))
    return Known(part, shown, labels)


def theirs(name: str, model: pm.Model, draws: int, seed: int, known: Known) -> Row:
    """Run another sampler."""
    from versus_rows import build

    sampler = build(name, model, known.moments, 1 if name in FLOW else CHAINS)
    sampler.begin(seed)
    sampler.lengthen(draws)
    run = sampler.run()
    kept = Run(name, run.draws[..., : known.shown], run.gradients_per_draw, run.warmup_gradients, note=run.note)
    return Row(name, kept, fails=sampler.failing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=[*HIERARCHIES, *NEED_NOTHING])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3, 4, 5])
    parser.add_argument("--others", type=int, default=2, help="seeds for False and by hand: so many of the first")
    parser.add_argument("--samplers", nargs="*", default=OURS, choices=OURS)
    parser.add_argument("--draws", type=int, default=4000)
    with_seeds = "with as many seeds as --others; all of them without a name"
    parser.add_argument("--peers", nargs="*", choices=PEERS, metavar="name", help=f"{', '.join(PEERS)}, {with_seeds}")
    parser.add_argument("--flow", action="store_true", help="nutpie's flow, with the first seed")
    arguments = parser.parse_args()
    print(HEADER.format(limit=LIMIT, chains=CHAINS, draws=arguments.draws), flush=True)
    for name in arguments.targets:
        hierarchy = HIERARCHIES.get(name)
        centred = TARGETS[name].build() if hierarchy is None else hierarchy.build(True)
        by_hand = None if hierarchy is None else hierarchy.build(False)
        known = known_of(name, centred)
        print(f"{name} (d={len(known.labels)}): {(hierarchy or TARGETS[name]).note}", flush=True)
        for sampler in arguments.samplers:
            model = by_hand if sampler == "by hand" else centred
            seeds = arguments.seeds if sampler == "auto" else arguments.seeds[: arguments.others]
            for seed in seeds if model is not None else ():
                print(row(seed, ours(sampler, model, centred, arguments.draws, seed, known), known), flush=True)
        asked = () if arguments.peers is None else arguments.peers or PEERS
        peers = {sampler: PEERS[sampler] for sampler in asked}
        for sampler, draws in {**peers, **(FLOW if arguments.flow else {})}.items():
            for seed in arguments.seeds[: 1 if sampler in FLOW else arguments.others]:
                print(row(seed, theirs(sampler, centred, draws, seed, known), known), flush=True)


if __name__ == "__main__":
    sys.exit(main())

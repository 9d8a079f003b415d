"""Hierarchies as they are written, non-centred in warm-up: ``python -m benchmarks hierarchies [name ...]``.

The centred form of the models of ``hierarchy_forms.py`` through ``pmm.sample`` with ``PoissonULMC(scheme="recycled")``:
a gradient a transition, every transition a draw.  Errors are in the unconstrained coordinates of the centred form, also
of runs on the form that is non-centred by hand.  The children of Neal's funnel, whose squares have next to infinite
variance, are left out of the errors.  ``--peers`` adds others on the centred form (``versus/`` says how they are tuned
and their gradients counted).

``--references`` writes ``results/hierarchies.json``: moments of those without exact ones, by a long run of NUTS on the
non-centred form, in the unconstrained coordinates of the centred one.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from hierarchy_forms import HIERARCHIES
from make_references import flat_draws, mean_and_error, one_sd_up, worst
from targets import Reference
from versus.first_times import LIMIT, Crossing, Run, gradients_to
from versus.rows import build

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.summary import bias_table
from pmm_mcmc.model.result_tree import flat_names

PATH = Path(__file__).parent / "results" / "hierarchies.json"
COMMAND = "python -m benchmarks hierarchies --references"
LONG = {"chains": 4, "tune": 1000, "draws": 4000, "target_accept": 0.9, "random_seed": 1}
FIELDS = tuple(Reference.__dataclass_fields__)
CHAINS, TUNE = 8, 1900
# Transitions for each draw of which the verdict is made.
THIN = 4
# A bias of a mean, in posterior sds, that a trusted run must not have; and the standard errors that show it.
BIASED, CLEARLY = 0.1, 3.0
OURS = ("auto", "by hand")
# Draws of each chain.
PEERS = {"PyMC NUTS": 2000, "nutpie NUTS": 2000, "MCLMC": 20_000, "WALNUTS": 2000}
HEADER = """\
{chains} chains, {draws} draws each; gradients count for each chain.

auto         non-centred in warm-up, on the centred form   biased   worst error of a mean in posterior sds, +- its
by hand      on the form non-centred by hand                        standard error: raw, and Stein-corrected
tuning       gradients of the warm-up                      verdict  of pmm.verdict; WRONG: a trusted mean is off by .1
b2_max       gradients until it is below {limit} (median)    fails    unstable transitions after warm-up
b2_avg       likewise, mean over coordinates               total    tuning and b2_max

   seed sampler      tuning   b2_max   b2_avg    total   biased raw       corrected  verdict    fails non-centred"""


@dataclass(frozen=True)
class Known:
    """What is known of a model: moments of the coordinates that are judged, how many they are, and their names."""

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


def make_reference(name: str) -> dict[str, Any]:
    """Return moments by NUTS with the settings and the diagnostics of the run behind them."""
    began = time.process_time()
    quiet = {"progressbar": False, "quiet": True, "compute_convergence_checks": False, "cores": 1}
    with HIERARCHIES[name].build(False), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tree = pm.sample(**LONG, **quiet)
    model = HIERARCHIES[name].build(True)
    x = flat_draws(model, tree)
    (mean, se_mean), (second, se_second), (fourth, _) = (mean_and_error(x**k) for k in (1, 2, 4))
    found = Reference(mean, second, second - mean**2, fourth - second**2, se_mean, se_second)
    arrays = {field: [float(f"{v:.8g}") for v in getattr(found, field)] for field in FIELDS}
    divergences = int(tree["sample_stats"]["diverging"].sum())
    entry = {"command": f"{COMMAND} {name}", "sampler": f"NUTS of pymc {pm.__version__}, non-centred form", **LONG}
    entry |= {"divergences": divergences, **worst(x), "log_density_one_sd_up": one_sd_up(model, arrays)}
    print(f"{name} (d={x.shape[2]}): {time.process_time() - began:.0f} s of CPU {entry}", flush=True)
    return entry | arrays


def reference(name: str, centred: pm.Model) -> Reference:
    """Return the moments of a hierarchy in the coordinates of its centred form."""
    if HIERARCHIES[name].exact is not None:
        return HIERARCHIES[name].exact()
    stored = json.loads(PATH.read_text()).get(name) if PATH.exists() else None
    if stored is None or not np.isclose(one_sd_up(centred, stored), stored["log_density_one_sd_up"], rtol=1e-6):
        raise ValueError(f"name={name!r}: no moments of this model as it is are stored: run {COMMAND} {name}")
    return Reference(**{field: np.array(stored[field]) for field in FIELDS})


def known_of(name: str, centred: pm.Model) -> Known:
    """Return what is known of a model."""
    moments = reference(name, centred)
    shown = HIERARCHIES[name].shown or len(moments.mean)
    point = centred.initial_point(0)
    labels = flat_names([(var.name, np.shape(point[var.name])) for var in centred.continuous_value_vars])
    return Known(Reference(*(getattr(moments, field)[:shown] for field in FIELDS)), shown, labels)


def ours(sampler: str, model: pm.Model, centred: pm.Model, draws: int, seed: int, known: Known) -> Row:
    """Run our sampler on a model, and judge it in the coordinates of the centred one."""
    reparametrise = "auto" if sampler == "auto" else False
    step = pmm.PoissonULMC(scheme="recycled", steps_per_draw=1, reparametrise=reparametrise, model=model)
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
    counts = stats[["unstable", "model_failures", "steps_per_draw"]].coarsen(draw=THIN, boundary="trim").sum()
    posterior = xr.Dataset({"x": (("chain", "draw", "i"), x[:, THIN - 1 :: THIN])}, attrs=attrs)
    return xr.DataTree.from_dict(
        {"posterior": posterior, "sample_stats": kept.merge(counts.drop_vars("draw"), compat="override")}
    )


def theirs(name: str, model: pm.Model, seed: int, known: Known) -> Row:
    """Run another sampler."""
    sampler = build(name, model, known.moments, CHAINS)
    sampler.begin(seed)
    sampler.lengthen(PEERS[name])
    run = sampler.run()
    kept = Run(name, run.draws[..., : known.shown], run.gradients_per_draw, run.warmup_gradients, note=run.note)
    return Row(name, kept, fails=sampler.failing)


def line(seed: int, found: Row, known: Known) -> str:
    """Return the line of a run."""
    run, moments = found.run, known.moments
    largest, mean = (gradients_to(run.draws, run.gradients_per_draw, moments, b) for b in ("b2_max", "b2_avg"))
    sd, means = np.sqrt(moments.variance_of_x), run.draws.mean(axis=1)
    error = np.hypot(means.std(axis=0, ddof=1) / np.sqrt(len(means)), moments.se_mean) / sd
    off = (means.mean(axis=0) - moments.mean) / sd
    j = int(np.argmax(np.abs(off)))
    corrected, verdict = "", ""
    if found.result is not None:
        after = (found.result["mean_cv"].to_numpy()[: known.shown] - moments.mean) / sd
        wrong = ((np.abs(off) > BIASED) & (np.abs(off) > CLEARLY * error)).any()
        corrected = f"{after[np.argmax(np.abs(after))]:+.3f}"
        verdict = "no" + ", rightly" * bool(wrong) if not found.verdict.trusted else "WRONG trust" if wrong else "trust"
    warmup = float(np.median(run.warmup_gradients))
    return (
        f"{seed:7d} {found.sampler:11s} {warmup:7.0f} {largest!s:>8s} {mean!s:>8s} {total(warmup, largest):>8s}   "
        f"{off[j]:+.3f} +- {error[j]:.3f} {corrected:>7s}  {verdict:12s} {found.fails:5d} "
        f"{known.labels[j]}; {found.words or run.note or '-'}"
    )


def total(warmup: float, crossing: Crossing) -> str:
    """Return gradients of tuning and of sampling as text, a bound where the error has not come down."""
    reached = math.isfinite(crossing.first)
    return f"{'' if reached else '>'}{warmup + (crossing.first if reached else crossing.spent):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(HIERARCHIES)} (default: all)")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3, 4, 5])
    parser.add_argument("--others", type=int, default=2, help="seeds by hand and of peers: so many of the first")
    parser.add_argument("--samplers", nargs="*", default=OURS, choices=OURS)
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--peers", nargs="*", choices=PEERS, metavar="name", help=f"{', '.join(PEERS)} (default: all)")
    parser.add_argument("--references", action="store_true", help="only run the long NUTS again, and keep its moments")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in HIERARCHIES]:
        parser.error(f"unknown model {', '.join(unknown)}: take some of {', '.join(HIERARCHIES)}")
    names = given.names or list(HIERARCHIES)
    if given.references:
        for name in [name for name in names if HIERARCHIES[name].exact is None]:
            stored = {**(json.loads(PATH.read_text()) if PATH.exists() else {}), name: make_reference(name)}
            lines = (f" {json.dumps(key)}: {json.dumps(stored[key])}" for key in HIERARCHIES if key in stored)
            PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    print(HEADER.format(limit=LIMIT, chains=CHAINS, draws=given.draws), flush=True)
    for name in names:
        forms = {"auto": HIERARCHIES[name].build(True), "by hand": HIERARCHIES[name].build(False)}
        known = known_of(name, forms["auto"])
        print(f"{name} (d={len(known.labels)}): {HIERARCHIES[name].note}", flush=True)
        for sampler in given.samplers:
            for seed in given.seeds if sampler == "auto" else given.seeds[: given.others]:
                print(
                    line(seed, ours(sampler, forms[sampler], forms["auto"], given.draws, seed, known), known),
                    flush=True,
                )
        for sampler in () if given.peers is None else given.peers or PEERS:
            for seed in given.seeds[: given.others]:
                print(line(seed, theirs(sampler, forms["auto"], seed, known), known), flush=True)


if __name__ == "__main__":
    main()

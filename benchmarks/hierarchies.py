"""Hierarchies as they are written, non-centred in warm-up: ``python -m benchmarks hierarchies``.

``pmm.sample()`` as it is, on the centred form of the models of ``hierarchy_forms.py`` (``auto``) and on the form that
is non-centred by hand (``by hand``).  Errors are in the unconstrained coordinates of the centred form.  The children of
Neal's funnel, whose squares have next to infinite variance, are left out of the errors.  Others run on the centred form
where they are named (``common/peers.py``: how they are tuned, and gradients counted).  ``--quick`` makes 100 draws.
"""

from __future__ import annotations

import sys
from functools import cache

import pymc as pm
from hierarchy_forms import HIERARCHIES
from posteriors import BIASED, failures_of, gradients_of, judged, overheard
from scoreboard.entries import ENTRIES
from scoreboard.measure import errors_and_costs, theirs
from scoreboard.truth import Truth
from tables import RESULTS, Row, Rows, grouped
from tasks import Task, main

import pmm_mcmc as pmm

CHAINS, TUNE, DRAWS = 8, 1900, 2000
OURS = ("auto", "by hand")
# Draws of each chain.
PEERS = {"PyMC NUTS": 2000, "nutpie NUTS": 2000, "MCLMC": 20_000}
HEADER = f"""\
{CHAINS} chains, {DRAWS} draws each; gradients count for each chain, warm-up included.

auto         non-centred in warm-up, on the centred form   mean, sd  worst errors in posterior sds, with z; W: off by
by hand      on the form non-centred by hand                         more than {BIASED} beyond chance
warm-up      gradients before the first draw               fails     draws that followed a divergence
b2_max       gradients until it is below 0.01 (median)     b2_avg    likewise, mean over coordinates

   seed sampler     warm-up   b2_max   b2_avg          mean            sd  verdict      fails"""


@cache
def known_of(target: str) -> tuple[pm.Model, Truth]:
    """Return the centred form with what is known of it."""
    entry = ENTRIES[f"hierarchies/{target}"]
    return entry.build(), entry.truth()


def measured(target: str, sampler: str, seed: int, draws: int) -> Row:
    """Return the row of a run."""
    centred, truth = known_of(target)
    with overheard():
        if sampler in PEERS:
            found = theirs(centred, truth, sampler, seed, CHAINS, min(draws, PEERS[sampler]))
            return {"d": len(truth.labels), **found}
        model = centred if sampler == "auto" else HIERARCHIES[target].build(False)
        options = {"tune": TUNE, "chains": CHAINS, "random_seed": seed, "progressbar": False}
        tree = pmm.sample(draws=draws, model=model, **options)
        stats = tree["sample_stats"].dataset
        row = errors_and_costs(truth, truth.draws(centred, tree), *gradients_of(stats))
        words = tree["posterior"].attrs.get("reparametrisation", "")
        return {**row, **judged(tree), "unstable": failures_of(stats), "note": words}


def line(row: Row) -> str:
    """Return the line of a run."""
    if "error" in row:
        return f"{row['seed']:7d} {row['sampler']:11s} failed: {row['error']}"
    first = [f"{row[b]:.0f}" if row.get(b) is not None else f">{row['gradients']:.0f}" for b in ("b2_max", "b2_avg")]
    errors = [f"{one['off']:+.3f} ({one['z']:+.1f}){'W' * one['wrong']}" for one in (row["mean"], row["sd"])]
    return (
        f"{row['seed']:7d} {row['sampler']:11s} {row['warm_up']:7.0f} {first[0]:>8s} {first[1]:>8s} {errors[0]:>13s} "
        f"{errors[1]:>13s}  {row['state']:12s} {row['unstable']:5d} {row['mean']['of']}; {row.get('note', '')}"
    )


def page(rows: Rows, facts: str) -> str:
    """Return the page."""
    lines = [HEADER, facts]
    for target, of_target in grouped(rows).items():
        lines += [f"{target}: {HIERARCHIES[target].note}", *map(line, of_target)]
    return "\n".join(lines) + "\n"


TASK = Task(
    words=__doc__,
    path=RESULTS / "hierarchy_runs.json",
    measure=measured,
    page=page,
    models=list(HIERARCHIES),
    samplers=OURS,
    others=list(PEERS),
    quick=["funnel10"],
    quick_samplers=OURS[:1],
    seeds=range(1, 6),
    seconds=900.0,
    setting=lambda asked: {"draws": 100 if asked.quick else DRAWS},
)

if __name__ == "__main__":
    sys.exit(main(TASK))

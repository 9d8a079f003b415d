"""Adjusted draws against unadjusted ones, on every model and on narrow densities: ``python -m benchmarks gate``.

The models are those of the scoreboard and the raw densities of ``densities.py``; ``--models`` takes families, keys and
patterns with stars.  Each has a process of its own, in which ``pmm.sample()`` runs by default with adjusted draws and
without, from each seed, after a short run that compiles.  ``--backends numba jax`` runs both on these by name, for
their seconds; ``default`` leaves the choice to the sampler, and is what all tables but that of seconds are of.
``--half`` takes the models that settings are chosen by (``tuned``), or the others (``held``).  A run that takes longer
than ``--seconds`` is a failure, which is a row.

``--write`` keeps ``results/gate.json`` and the page, ``gate.txt``, up to date after every run, and begins where the
rows in there end; ``--again`` runs what is chosen anew, ``--page`` prints the page and runs nothing.  ``--quick`` runs
two models from one seed, 100 draws of them, and returns 1 if an adjusted run is wrong and trusted, or a run fails.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from gate.entries import ENTRIES, HELD, QUICK
from gate.measure import ADJUSTED, DRAWS, UNADJUSTED, measured
from gate.page import page
from scoreboard.entries import chosen
from scoreboard.page import verdict_of
from scoreboard.processes import brought_up
from versus.kept import about, append, read, told

PATH = Path(__file__).parents[1] / "results" / "gate.json"


def render(rows: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    return page(rows, told(rows, facts))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=[], help="families, keys or patterns (default: all)")
    parser.add_argument("--half", choices=["tuned", "held"], help="half of the models (default: both)")
    parser.add_argument("--kinds", nargs="*", default=[ADJUSTED, UNADJUSTED], choices=[ADJUSTED, UNADJUSTED])
    parser.add_argument("--backends", nargs="*", default=["default"], choices=["default", "numba", "jax"])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=300.0, help="limit of a run, compilation included")
    parser.add_argument("--jobs", type=int, default=1, help="models that are run at a time")
    parser.add_argument("--quick", action="store_true", help="two models or --models, one seed, 100 draws")
    parser.add_argument("--again", action="store_true", help="run also what is kept")
    parser.add_argument("--write", action="store_true", help=f"keep the rows in {PATH.parent.name}/{PATH.name}")
    parser.add_argument("--list", action="store_true", help="name the models, * those held out, and run nothing")
    parser.add_argument("--page", action="store_true", help="print the page of what is kept, and run nothing")
    asked = parser.parse_args(arguments)
    if asked.quick and asked.write:
        parser.error("--quick is for a look, and --write keeps whole runs: leave one of them out")
    try:
        keys = chosen(asked.models or (list(QUICK) if asked.quick else []), ENTRIES)
    except ValueError as error:
        parser.error(str(error))
    if asked.half:
        keys = [key for key in keys if (key in HELD) == (asked.half == "held")]
    if asked.list:
        print("\n".join(f"{key}{'*' * (key in HELD)}" for key in keys))
        return 0
    facts = about()
    if asked.page:
        print(render(read(PATH), facts))
        return 0
    samplers = [kind if on == "default" else f"{kind} {on}" for on in asked.backends for kind in asked.kinds]
    seeds = asked.seeds[:1] if asked.quick else asked.seeds
    made = brought_up(
        partial(measured, draws=100 if asked.quick else DRAWS),
        keys,
        samplers,
        seeds,
        seconds=asked.seconds,
        jobs=asked.jobs,
        old=read(PATH) if asked.write and not asked.again else [],
        keep=partial(append, PATH, facts=facts, words=render) if asked.write else None,
    )
    print(render(read(PATH) if asked.write else made, facts))
    # Unadjusted draws may be wrong.
    counted = [row for row in made if "error" in row or row["sampler"].startswith(ADJUSTED)]
    return verdict_of(counted) if asked.quick else 0


if __name__ == "__main__":
    sys.exit(main())

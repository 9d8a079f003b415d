"""Every model of the field, and what a run says of itself against the truth: ``python -m benchmarks scoreboard``.

The models are posteriordb's, those that other samplers publish figures on, some odd ones, and the sets of the other
benchmarks; ``--models`` takes families, keys and patterns with stars.  Each model has a process of its own, and is run
by ``pmm.sample()`` with its defaults (``default``), by the same without adjustment (``unadjusted``) and by the paper's
method with K = 16 (``paper``), from each seed; ``--peers`` adds others, and ``--schemes "every step"`` asks for the
gradients to b2 < .01 alone, of the models that have a goal for them.  A run that takes longer than ``--seconds`` is a
failure, which is a row.

``--write`` keeps ``results/scoreboard.json`` and the page, ``scoreboard.txt``, up to date after every run, and begins
where the rows in there end; ``--again`` runs what is chosen anew.  ``--quick`` runs ten models from one seed, two at a
time, and returns 1 if a run is wrong and trusted, or fails.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from scoreboard.entries import QUICK, chosen
from scoreboard.goals import EVERY_STEP, GOALS
from scoreboard.measure import PEERS, SCHEMES, measured
from scoreboard.page import page, verdict_of
from scoreboard.processes import brought_up
from versus.kept import about, append, read, told

PATH = Path(__file__).parents[1] / "results" / "scoreboard.json"


def render(rows: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    return page(rows, told(rows, facts))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=[], help="families, keys or patterns (default: all)")
    for name, kinds, default in (("scheme", [*SCHEMES, EVERY_STEP], list(SCHEMES)), ("peer", PEERS, [])):
        words = {"metavar": name, "help": ", ".join(kinds)}
        parser.add_argument(f"--{name}s", nargs="*", default=default, choices=kinds, **words)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=600.0, help="limit of a run, compilation included")
    parser.add_argument("--jobs", type=int, default=1, help="models that are run at a time")
    parser.add_argument("--quick", action="store_true", help="ten models or --models, one seed, two at a time")
    parser.add_argument("--again", action="store_true", help="run also what is kept")
    parser.add_argument("--write", action="store_true", help=f"keep the rows in {PATH.parent.name}/{PATH.name}")
    parser.add_argument("--list", action="store_true", help="name the models, and run nothing")
    given = parser.parse_args(arguments)
    if given.quick and given.write:
        parser.error("--quick is for a look, and --write keeps what three seeds gave: leave one of them out")
    samplers = [*given.schemes, *given.peers]
    models = list(QUICK) if given.quick else list(GOALS) if samplers == [EVERY_STEP] else []
    try:
        keys = chosen(given.models or models)
    except ValueError as error:
        parser.error(str(error))
    if given.list:
        print("\n".join(keys))
        return 0
    if given.quick:
        samplers, given.seeds, given.jobs = given.schemes[:1], given.seeds[:1], 2
    facts = about()
    made = brought_up(
        measured,
        keys,
        samplers,
        given.seeds,
        seconds=given.seconds,
        jobs=given.jobs,
        old=read(PATH) if given.write and not given.again else [],
        keep=partial(append, PATH, facts=facts, words=render) if given.write else None,
    )
    print(render(read(PATH) if given.write else made, facts))
    return verdict_of(made) if given.quick else 0


if __name__ == "__main__":
    sys.exit(main())

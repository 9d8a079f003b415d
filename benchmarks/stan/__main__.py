"""Stan programs that others wrote, by default and by Stan's NUTS: ``python -m benchmarks stan PATH``.

PATH is a checkout of posteriordb; without one the programs of ``benchmarks/stan/programs``, which are written here.
Each program has a process of its own; a run that takes longer than ``--seconds`` is a failure, which is a row.  Where
posteriordb has no reference draws, NUTS of ten times the length is one if it has converged; it is kept beside the
database.  ``--write`` keeps ``results/stan.json`` and the page ``stan.txt`` up to date after every run, and begins
where the rows in there end.  ``--quick`` returns 1 if a run is wrong and trusted, or fails.
"""

from __future__ import annotations

import argparse
import sys
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from scoreboard.page import verdict_of
from scoreboard.processes import brought_up
from stan.database import HERE, programs
from stan.measure import DEFAULT, NUTS, UNADJUSTED, measured
from stan.page import page
from versus.kept import about, append, read, told

PATH = Path(__file__).parents[1] / "results" / "stan.json"


def render(rows: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    return page(rows, told(rows, facts))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", type=Path, default=HERE, help="a checkout of posteriordb")
    parser.add_argument("--programs", nargs="*", default=["*"], help="names, or patterns with stars (default: all)")
    samplers = [NUTS, DEFAULT, UNADJUSTED]
    parser.add_argument("--samplers", nargs="*", default=samplers, choices=samplers)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=300.0, help="limit of a run, its reference included")
    parser.add_argument("--jobs", type=int, default=1, help="programs that are run at a time")
    parser.add_argument("--quick", action="store_true", help="one seed, by default and by NUTS")
    parser.add_argument("--again", action="store_true", help="run also what is kept")
    parser.add_argument("--write", action="store_true", help=f"keep the rows in {PATH.parent.name}/{PATH.name}")
    parser.add_argument("--page", action="store_true", help="print the page of what is kept, and run nothing")
    asked = parser.parse_args(arguments)
    facts = about()
    if asked.page:
        print(render(read(PATH), facts))
        return 0
    try:
        keys = [key for key in programs(asked.path) if any(fnmatch(key, pattern) for pattern in asked.programs)]
    except ValueError as error:
        parser.error(str(error))
    made = brought_up(
        partial(measured, root=asked.path.resolve()),
        keys,
        [NUTS, DEFAULT] if asked.quick else asked.samplers,
        asked.seeds[:1] if asked.quick else asked.seeds,
        seconds=asked.seconds,
        jobs=asked.jobs,
        old=read(PATH) if asked.write and not asked.again else [],
        keep=partial(append, PATH, facts=facts, words=render) if asked.write else None,
    )
    print(render(read(PATH) if asked.write else made, facts))
    return verdict_of([row for row in made if row["sampler"] == DEFAULT]) if asked.quick else 0


if __name__ == "__main__":
    sys.exit(main())

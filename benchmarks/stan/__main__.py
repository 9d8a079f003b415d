"""Stan programs that others wrote, by default and by Stan's NUTS: ``python -m benchmarks stan PATH``.

PATH is a checkout of posteriordb; without one the programs of ``benchmarks/stan/programs``, which are written here.
Where posteriordb has no reference draws, NUTS of ten times the length is one if it has converged; it is kept beside the
database.
"""

from __future__ import annotations

import sys
from pathlib import Path

from stan.database import HERE, programs
from stan.measure import AS_WRITTEN, DEFAULT, NUTS, UNADJUSTED, measured
from stan.page import page
from tables import RESULTS
from tasks import Task, main

TASK = Task(
    words=__doc__,
    path=RESULTS / "stan.json",
    measure=measured,
    page=page,
    models=lambda asked: programs(asked.path),
    samplers=[NUTS, DEFAULT, UNADJUSTED],
    others=[AS_WRITTEN],
    quick_samplers=[NUTS, DEFAULT],
    setting=lambda asked: {"root": asked.path.resolve()},
    judged=lambda row: row["sampler"] == DEFAULT,
    arguments={"path": {"nargs": "?", "type": Path, "default": HERE, "help": "a checkout of posteriordb"}},
)

if __name__ == "__main__":
    sys.exit(main(TASK))

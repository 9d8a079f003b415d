"""Adjusted draws against unadjusted ones, on every model and on narrow densities: ``python -m benchmarks gate``.

The models are those of the scoreboard and the raw densities of ``densities.py``, in two groups: ``tuned``, by which
settings are chosen, and ``held``.  ``pmm.sample()`` runs with adjusted draws and without, after a short run that
compiles; ``adjusted numba`` and the like are on a backend by name, for their seconds, where others leave the choice to
the sampler.  ``--quick`` makes 100 draws of two models.
"""

from __future__ import annotations

import sys

from gate.entries import ENTRIES, HELD, QUICK
from gate.measure import ADJUSTED, DRAWS, KINDS, measured
from gate.page import page
from tables import RESULTS
from tasks import Task, main

TASK = Task(
    words=__doc__,
    path=RESULTS / "gate.json",
    measure=measured,
    page=page,
    models=list(ENTRIES),
    samplers=KINDS,
    others=[f"{kind} {backend}" for backend in ("numba", "jax") for kind in KINDS],
    quick=QUICK,
    groups={"tuned": ENTRIES.keys() - HELD, "held": HELD},
    setting=lambda asked: {"draws": 100 if asked.quick else DRAWS},
    judged=lambda row: "error" in row or row["sampler"].startswith(ADJUSTED),  # unadjusted draws may be wrong
)

if __name__ == "__main__":
    sys.exit(main(TASK))

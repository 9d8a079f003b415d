"""Every model of the field, and what a run says of itself against the truth: ``python -m benchmarks scoreboard``.

The models are posteriordb's, those that other samplers publish figures on, some odd ones, and the sets of the other
benchmarks.  Each is run by ``pmm.sample()`` with its defaults (``default``), by the same without adjustment
(``unadjusted``), by the paper's method with K = 16 (``paper``), and by other samplers where these are named, among them
two steps in PyMC's own loop (``step GHMC``, ``step PoissonULMC``).
``--quick`` runs ten models.
"""

from __future__ import annotations

import sys

from scoreboard.entries import ENTRIES, QUICK
from scoreboard.measure import PEERS, SCHEMES, measured
from scoreboard.page import page
from tables import RESULTS
from tasks import Task, main

TASK = Task(
    words=__doc__,
    path=RESULTS / "scoreboard.json",
    measure=measured,
    page=page,
    models=list(ENTRIES),
    samplers=list(SCHEMES),
    others=PEERS,
    quick=QUICK,
    quick_samplers=["default"],
    quick_jobs=2,
    seconds=600.0,
)

if __name__ == "__main__":
    sys.exit(main(TASK))

"""Our samplers against others, in gradients and seconds: ``python -m benchmarks versus``.

Eight chains of every sampler start within one unit of the model's initial point, and are lengthened until both errors
are settled in the first half of the run, or the next length would take longer than a minute of CPU (``--quick``: at
once).  Ours are warmed up together by the package's own schedule, as ``pmm.sample`` does, and every transition is a
draw.  ``peers.py`` and ``jax_peers.py`` say how others are tuned and how gradients are counted.  Needs ``.[bench]``; a
sampler that is not installed is a failure, which is a row.
"""

from __future__ import annotations

import sys

from tables import RESULTS
from targets import TARGETS
from tasks import Task, main
from versus.ours import SAMPLERS
from versus.rows import PEERS, measured
from versus.table import page

ORDER = (
    *("gaussian100", "breast_cancer", "poisson_glm", "eight_schools", "mixture20", "phi4"),
    *("banana", "rotated100", "gaussian1000", "stochastic_volatility"),
)
TASK = Task(
    words=__doc__,
    path=RESULTS / "versus.json",
    measure=measured,
    page=page,
    models=lambda asked: TARGETS if asked.models else ORDER,
    samplers=[*SAMPLERS, *PEERS],
    quick=ORDER[:1],
    quick_samplers=list(SAMPLERS),
    seconds=900.0,
    setting=lambda asked: {"seconds": 0.0 if asked.quick else 60.0},
)

if __name__ == "__main__":
    sys.exit(main(TASK))

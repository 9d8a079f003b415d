"""Starts at which the log density is lower by orders of magnitude than in the posterior, and where to begin instead.

A Poisson regression whose linear predictor is 40 at a random start has a log density of -e^40 there, and a curvature as
large: a step that is stable there moves nothing elsewhere.
"""

from __future__ import annotations

import numpy as np

from pmm_mcmc.engines.contract import Engine, evaluated_at
from pmm_mcmc.warmup.ascent import FIRST_STEP, Ascents

__all__ = ["raised_starts"]

# A start is low if the first step of an ascent promises so many nats for each coordinate.  Chosen on 36 Stan programs
# of posteriordb, of which random starts of 23 promise less (those of GLMM_Poisson, which failed, 1e10 to 1e17).  On 35
# others gradients for 400 effective draws are 0.96 times those without the rule (geometric mean; median 1.00).
_LOW = 1e3
# Gradients of an ascent, and ascents that go on side by side, whose memory is 16 positions each.
_GRADIENTS = 200
_TOGETHER = 16


def raised_starts(
    engine: Engine, starts: np.ndarray, gradients: np.ndarray, density_parameters: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return starts ``(n, d)``, the gradients there, and the number of gradients spent on each.

    The ascent from a low start goes on while its next step promises at least ``d`` nats; a start that has gained less
    stays.  Log densities of a Gaussian's draws have a standard deviation of ``sqrt(d / 2)``.  Positions are ``z`` of
    :mod:`pmm_mcmc.coordinates.structure`; ``gradients`` ``(n, d)`` are those at ``starts``.
    """

    def density(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(all="ignore"):
            lp, evaluation = evaluated_at(engine.evaluate, z, density_parameters)
        return lp, evaluation[:, : engine.d]

    raised = np.array(starts)
    gradients = np.array(gradients)
    n_grad = np.zeros(len(starts), int)
    low = np.flatnonzero(FIRST_STEP * np.linalg.norm(gradients, axis=1) > _LOW * engine.d)
    for i in range(0, len(low), _TOGETHER):
        rows = low[i : i + _TOGETHER]
        lp, _ = density(starts[rows])
        ends = Ascents.of(density, starts[rows], starts[rows], _GRADIENTS * len(rows), enough=engine.d)
        n_grad[rows] = 1 - (-ends.spent // len(rows))
        gained = ends.lp - lp >= engine.d
        raised[rows[gained]] = ends.position[gained]
        gradients[rows[gained]] = ends.gradient[gained]
    return raised, gradients, n_grad

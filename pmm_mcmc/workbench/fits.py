"""Fits of one compiled model to many data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pmm_mcmc.api import (
    THRESHOLDS,
    Convergence,
    Gathered,
    Groups,
    Request,
    Sampling,
    SamplingPlan,
    StoppingRule,
    StopRequest,
    Verdict,
    begun,
    convergence,
    density_at,
    judge,
    model_starts,
    read,
    spread_starts,
    starts,
)

__all__ = ["Fit", "Fits"]

# Draws of each chain after which a fit may end: where means are known to the verdict's limit, and chains agree.
_ENDS = (250, 500, 1000)


class Fit(NamedTuple):
    """A fit: draws by name ``(chain, draw, ...)``, convergence of all parameters ``(p,)``, gradients, verdict.

    ``start`` says what became of the setting it began with: "fits", "refined" or "dropped"; empty without one.
    """

    draws: dict[str, np.ndarray]
    convergence: Convergence
    gradients: int
    verdict: Verdict
    start: str


class Fits:
    """Fits of the model of a request to the data that it has at the time.

    The plan, its compiled functions and the model's initial point serve all fits.  A warm-up is each fit's own, or that
    from the start of the request: the setting of another fit, kept unchecked, took two to thirty times the gradients
    where scales differ between data.
    """

    def __init__(self, request: Request, announce: Callable[[str], None]):
        self.plan = SamplingPlan.of(request, announce)
        self._request = request
        self._centre = model_starts(self.plan.model, self.plan.model.value_vars, None, 1)[0][0]

    def fit(self, seed: list[int]) -> Fit:
        """Sample the model with its present data, by random numbers that depend on the seed alone."""
        plan = self.plan
        chains = self._request.chains
        rng = np.random.default_rng(seed)
        positions = spread_starts(self._centre, chains, None, lambda x: density_at(plan.engine, x)[1], rng)
        if positions is None:
            positions = starts(plan, rng)  # which says why there is none
        run = begun(plan, positions, rng)
        draws = _Draws(chains)
        rule = _ConvergenceRule(draws)
        sampling = Sampling(plan, run, draws, rule, _SILENT)
        sampling.go(StopRequest())
        tree = plan.layout.tree(draws.groups, plan.attributes | run.attributes(plan.setting))
        for name, report in run.reports().items():
            tree[name] = report
        outcome = "" if run.warm_start is None else run.warm_start.outcome
        return Fit(draws.groups["posterior"], rule.convergence, int(run.n_grad.mean()), judge(read(tree)), outcome)


class _Draws:
    """Recorder of the draws of a run, as :class:`pmm_mcmc.run.phases.Sampling` has it."""

    rows = _ENDS[0]

    def __init__(self, chains: int):
        self._gathered = Gathered(chains, _ENDS[-1])

    def put(self, groups: Groups, complete: bool = True) -> None:
        """Record a chunk, but none of a warm-up."""
        if "posterior" in groups:
            self._gathered.append(groups)

    def note(self, attributes: dict[str, Any]) -> None:
        """Attributes are not kept."""

    @property
    def groups(self) -> Groups:
        """The draws so far, by group and name."""
        return self._gathered.upto(self._gathered.done)


class _ConvergenceRule(StoppingRule):
    """The rule that a run ends where chains agree, and all means are known to the limit of the verdict."""

    def __init__(self, draws: _Draws):
        super().__init__(_ENDS)
        self._draws = draws
        self.convergence = Convergence(*[np.empty(0)] * 3)

    def suffices(self) -> bool:
        """Return whether the draws so far have converged."""
        values = self._draws.groups["posterior"].values()
        self.convergence = convergence(np.concatenate([v.reshape(*v.shape[:2], -1) for v in values], axis=2))
        unknown = self.convergence.ess_bulk < THRESHOLDS.mcse**-2.0
        return not (unknown | (self.convergence.r_hat > THRESHOLDS.r_hat)).any()


class _Silent:
    """A console of a run that says nothing."""

    def log(self, *_: Any) -> None:
        """Log nothing."""

    update = log


_SILENT: Any = _Silent()

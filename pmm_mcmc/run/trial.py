"""How a run begins: from starts, or on trial, with the setting and the draws of a former one.

A run that starts from another evaluates the new density at draws of that one.  Unless these rule it out, its chains
begin at some of them, and its first block tries the setting (:mod:`pmm_mcmc.warmup.warm_start`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pmm_mcmc.coordinates.affine import refitted
from pmm_mcmc.engines.contract import Engine, Ensemble, chains_of, empty_state, log_det_of
from pmm_mcmc.langevin.methods import GHMC, OVERDAMPED
from pmm_mcmc.run.finished_run import FinishedRun
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.state import Run
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.equilibration import Equilibration, adjusted_setting
from pmm_mcmc.warmup.warm_start import DROPPED, FITS, WarmStart, number_of_candidates, resampled, warmup_from
from pmm_mcmc.warmup.warm_up import Warming

__all__ = ["cold_run", "judge_start", "prepare", "run_on_trial"]


def cold_run(plan: SamplingPlan, starts: np.ndarray, rng: np.random.Generator) -> Run:
    """Return a run that starts at positions ``(chain, d)``: see :meth:`pmm_mcmc.warmup.warm_up.Warming.start`."""
    tune = plan.request.tune
    warming = Warming.start(plan.engine, plan.arguments, starts, tune, rng, checked=not plan.equilibrates)
    if plan.equilibrates and warming.finished:
        kernel = plan.engine.kernel
        warming.ensemble.rest_at_draws(kernel, GHMC)
        warming.tuned = adjusted_setting(warming.tuned, kernel, warming.tuned.step_size)
    nothing = np.zeros(len(starts), np.int64)
    return Run(warming, not warming.finished, 0, nothing)


def prepare(plan: SamplingPlan, run: Run) -> None:
    """Compile what the run goes on with."""
    if not plan.request.adjusted or run.tuning:
        run.warming.ensemble.prepare(plan.engine, run.tuned)
    if plan.request.adjusted:
        run.warming.ensemble.prepare(plan.adjusted_engine, run.tuned)


def run_on_trial(plan: SamplingPlan, former: FinishedRun, trial: WarmStart, rng: np.random.Generator) -> Run:
    """Return a run that tries the setting or, if former draws show that it does not fit, one from a cold start."""
    chains = plan.request.chains
    setting = former.setting
    noncentring = setting.coordinates.density_parameters
    n_grad = np.zeros(chains, np.int64)
    if (0 if noncentring is None else len(noncentring)) != plan.engine.structure.n_parameters:
        trial.end(DROPPED, "the hierarchy is another")
        return _dropped(plan, trial, n_grad, rng)
    draws = _evaluated(former, plan.engine, number_of_candidates(chains))
    n_grad += -(-len(draws.z) // chains)
    trial.look_at(setting, draws.z, draws.gradient)
    if trial.outcome == DROPPED:
        return _dropped(plan, trial, n_grad, rng)
    starts = plan.request.superchains or chains
    chosen, trial.pareto_k = resampled(draws.log_ratio, starts, rng)
    chosen = chosen[np.arange(chains) * starts // chains]
    keys = rng.integers(0, 2**64, size=(chains, 2), dtype=np.uint64)
    ensemble = Ensemble(draws.state[chosen], draws.evaluation[chosen], keys)
    if not trial.outcome and plan.arguments.scaling is None:
        trial.former = setting.coordinates
        finite = np.isfinite(draws.log_ratio)
        setting = setting._replace(coordinates=refitted(trial.former, draws.z[finite], draws.gradient[finite]))
        ensemble.change_coordinates(plan.engine, trial.former, setting.coordinates)
    if plan.engine.kernel.dynamics != OVERDAMPED:
        chains_of(ensemble.state).v[...] = rng.standard_normal((chains, plan.engine.d))
    run = Run(Warming(ensemble, setting, None, n_grad), True, 0, np.zeros(chains, np.int64), warm_start=trial)
    if trial.outcome or not plan.equilibrates:
        nothing = np.zeros((1, len(draws.z)))
        _warm_up_from(plan, run, Block(draws.z[None], draws.gradient[None], *[nothing] * 5))
        return run
    run.equilibration = Equilibration.begin(run.warming, plan.engine.kernel, plan.arguments, plan.request.tune)
    equilibrated = former.run.equilibration
    if equilibrated is not None:
        run.equilibration.tuned = equilibrated.tuned._replace(coordinates=setting.coordinates, steps_per_draw=1)
        run.equilibration.fixed = 0
    return run


def judge_start(plan: SamplingPlan, run: Run, block: Block) -> None:
    """Judge a former setting by a block of draws; unless it fits, warm-up follows, from it or from a cold start."""
    trial = run.warm_start
    assert trial is not None
    warming = run.warming
    trial.judge(plan.engine, run.tuned, block)
    if trial.outcome == FITS:
        return
    run.equilibration = None
    run.unstable = np.zeros_like(run.unstable)
    if trial.outcome == DROPPED:
        rng = np.random.default_rng(warming.ensemble.keys[0])
        run.warming = _dropped(plan, trial, run.n_grad, rng).warming
        return
    if plan.equilibrates:
        warming.ensemble.rest_at_draws(GHMC, plan.engine.kernel)
    z, gradient = plan.engine.structure.folded(block.position, block.gradient[..., : plan.engine.d])
    _warm_up_from(plan, run, block._replace(position=z, gradient=gradient))


def _dropped(plan: SamplingPlan, trial: WarmStart, n_grad: np.ndarray, rng: np.random.Generator) -> Run:
    """Return a run as if there had been no trial of a former setting, which cost ``n_grad`` gradients ``(chain,)``."""
    run = cold_run(plan, trial.starts, rng)
    run.warming.n_grad += n_grad
    run.warm_start = trial
    return run


def _warm_up_from(plan: SamplingPlan, run: Run, draws: Block) -> None:
    """Go on with a warm-up that begins with the former setting, or only checks it if it fits or is on trial."""
    trial = run.warm_start
    warming = run.warming
    tune = plan.request.tune
    assert trial is not None
    warming.warmup = warmup_from(
        plan.arguments, tune, warming.tuned, draws, chains=len(run.n_grad), adjusts=plan.equilibrates,
        fits=not trial.outcome,
    )  # fmt: skip
    warming.tuned = warming.warmup.tuned


def _evaluated(former: FinishedRun, engine: Engine, number: int) -> _FormerDraws:
    """Return about so many draws with the new density there; NaN in place of what is not finite."""
    coordinates = former.setting.coordinates
    x, former_lp = former.draws(number)
    z, _ = engine.structure.to_z(x, coordinates.density_parameters)
    state = empty_state(coordinates.whiten(z), np.zeros(engine.d))
    evaluation = engine.evaluate(coordinates, state)
    log_ratio = chains_of(state).lp[:, 0] - log_det_of(evaluation, engine.d) - former_lp
    gradient = np.where(np.isfinite(log_ratio)[:, None], evaluation[:, : engine.d], np.nan)
    log_ratio[~np.isfinite(gradient).all(axis=1)] = np.nan
    return _FormerDraws(z, state, evaluation, gradient, log_ratio)


class _FormerDraws(NamedTuple):
    """Draws ``z`` ``(n, d)`` of a finished run, as states of an engine on the new density, with its evaluations."""

    z: np.ndarray
    state: np.ndarray
    evaluation: np.ndarray
    gradient: np.ndarray  # (n, d): of the new log density
    log_ratio: np.ndarray  # (n,): the new log density minus the former one

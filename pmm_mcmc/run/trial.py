"""How a run begins: from starts, or on trial, with the setting and the draws of a former one.

A run that starts from another evaluates the new density at draws of that one.  Unless these rule it out, its chains
begin at some of them, and its first block tries the setting (:mod:`pmm_mcmc.warmup.warm_start`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pmm_mcmc.coordinates.affine import refitted
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import (
    Engine,
    Ensemble,
    chains_of,
    empty_state,
    in_model_coordinates,
    log_det_of,
)
from pmm_mcmc.langevin.methods import GHMC, OVERDAMPED
from pmm_mcmc.run.former_run import DRAWS, TRIAL, WARM_UP, FinishedRun, Run
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.equilibration import Equilibration, adjusted_setting
from pmm_mcmc.warmup.warm_start import (
    DROPPED,
    REFINED,
    WarmStart,
    number_of_candidates,
    relearnt,
    resampled,
    warmup_from,
)
from pmm_mcmc.warmup.warm_up import Warming

__all__ = ["begun", "go_on_from", "prepare", "start_anew"]


def begun(plan: SamplingPlan, starts: np.ndarray, rng: np.random.Generator) -> Run:
    """Return a run whose chains are at positions ``(chain, d)`` or, if it starts from another run, on trial."""
    request = plan.request
    if request.start is None:
        return _cold_run(plan.engine, plan.arguments, starts, request.tune, plan.equilibrates, rng)
    return _run_on_trial(plan, request.start, starts, rng)


def prepare(plan: SamplingPlan, run: Run) -> None:
    """Compile what the run goes on with."""
    if not plan.request.adjusted or run.tuning:
        run.warming.ensemble.prepare(plan.engine, run.tuned)
    if plan.request.adjusted:
        run.warming.ensemble.prepare(plan.adjusted_engine, run.tuned)


def _cold_run(
    engine: Engine, arguments: MethodArguments, starts: np.ndarray, tune: int, equilibrates: bool,
    rng: np.random.Generator,
) -> Run:  # fmt: skip
    """Return a run that starts at positions ``(chain, d)``: see :meth:`pmm_mcmc.warmup.warm_up.Warming.start`."""
    warming = Warming.start(engine, arguments, starts, tune, rng, checked=not equilibrates)
    if equilibrates and warming.finished:
        warming.ensemble.rest_at_draws(engine.kernel, GHMC)
        warming.tuned = adjusted_setting(warming.tuned, engine.kernel, warming.tuned.step_size)
    return Run(warming, DRAWS if warming.finished else WARM_UP, 0, np.zeros(len(starts), np.int64))


def _run_on_trial(plan: SamplingPlan, former: FinishedRun, starts: np.ndarray, rng: np.random.Generator) -> Run:
    """Return a run that tries a former setting or, if former draws show that it does not fit, one from a cold start.

    The ``starts`` ``(chain, d)`` are those of the cold one.
    """
    engine = plan.engine
    arguments = plan.arguments
    tune = plan.request.tune
    chains = len(starts)
    trial = WarmStart(starts)
    setting = former.setting
    noncentring = setting.coordinates.density_parameters
    n_grad = np.zeros(chains, np.int64)
    if (0 if noncentring is None else len(noncentring)) != engine.structure.n_parameters:
        trial.end(DROPPED, "the hierarchy is another")
        return _dropped(trial, n_grad, engine, arguments, tune, plan.equilibrates, rng)
    draws = _evaluated(former, engine, number_of_candidates(chains))
    n_grad += -(-len(draws.z) // chains)
    trial.look_at(setting, draws.z, draws.gradient)
    if trial.outcome == DROPPED:
        return _dropped(trial, n_grad, engine, arguments, tune, plan.equilibrates, rng)
    finite = np.isfinite(draws.log_ratio)
    draws = _FormerDraws(*(array[finite] for array in draws))
    groups = plan.request.superchains or chains
    chosen, trial.pareto_k = resampled(draws.log_ratio, groups, rng)
    chosen = chosen[np.arange(chains) * groups // chains]
    keys = rng.integers(0, 2**64, size=(chains, 2), dtype=np.uint64)
    ensemble = Ensemble(draws.state[chosen], draws.evaluation[chosen], keys)
    window = (draws.z, draws.gradient)
    if trial.outcome == REFINED and arguments.scaling is None:
        x, of_x = in_model_coordinates(draws.z, draws.evaluation)
        setting, ensemble, window, cost = relearnt(engine, setting, x, of_x, chosen, keys)
        n_grad += -(-cost // chains)
    elif arguments.scaling is None:
        trial.former = setting.coordinates
        setting = setting._replace(coordinates=refitted(trial.former, *window))
        ensemble.change_coordinates(engine, trial.former, setting.coordinates)
    if engine.kernel.dynamics != OVERDAMPED:
        chains_of(ensemble.state).v[...] = rng.standard_normal((chains, engine.d))
    phase = WARM_UP if trial.outcome == REFINED else TRIAL
    run = Run(Warming(ensemble, setting, None, n_grad), phase, 0, np.zeros(chains, np.int64), warm_start=trial)
    if phase == WARM_UP or not plan.equilibrates:
        nothing = np.zeros((1, len(draws.z)))
        block = Block(*(array[None] for array in window), *[nothing] * 5)
        _warm_up_from(run, block, arguments, tune, adjusts=plan.equilibrates, fits=phase == TRIAL)
        return run
    run.equilibration = Equilibration.begin(run.warming, engine.kernel, arguments, tune)
    equilibrated = former.run.equilibration
    if equilibrated is not None:
        run.equilibration.tuned = equilibrated.tuned._replace(coordinates=setting.coordinates, steps_per_draw=1)
        run.equilibration.fixed = 0
    return run


def start_anew(run: Run, engine: Engine, arguments: MethodArguments, tune: int, equilibrates: bool) -> None:
    """Drop the setting after its trial for a warm-up from a cold start."""
    assert run.warm_start is not None
    run.equilibration = None
    rng = np.random.default_rng(run.warming.ensemble.keys[0])
    run.warming = _dropped(run.warm_start, run.n_grad, engine, arguments, tune, equilibrates, rng).warming


def go_on_from(
    run: Run, draws: Block, engine: Engine, arguments: MethodArguments, tune: int, equilibrates: bool
) -> None:
    """Begin a warm-up with the setting after its trial, of which these are the ``draws``."""
    run.equilibration = None
    if equilibrates:
        run.warming.ensemble.rest_at_draws(GHMC, engine.kernel)
    z, gradient = engine.structure.folded(draws.position, draws.gradient[..., : engine.d])
    window = draws._replace(position=z, gradient=gradient)
    _warm_up_from(run, window, arguments, tune, adjusts=equilibrates, fits=False)


def _dropped(
    trial: WarmStart, n_grad: np.ndarray, engine: Engine, arguments: MethodArguments, tune: int, equilibrates: bool,
    rng: np.random.Generator,
) -> Run:  # fmt: skip
    """Return a run as if there had been no trial of a former setting, which cost ``n_grad`` gradients ``(chain,)``."""
    run = _cold_run(engine, arguments, trial.starts, tune, equilibrates, rng)
    run.warming.n_grad += n_grad
    run.warm_start = trial
    return run


def _warm_up_from(run: Run, draws: Block, arguments: MethodArguments, tune: int, *, adjusts: bool, fits: bool) -> None:
    """Go on with a warm-up that begins with the former setting, or only checks it if it ``fits``."""
    warming = run.warming
    warming.warmup = warmup_from(
        arguments, tune, warming.tuned, draws, chains=len(run.n_grad), adjusts=adjusts, fits=fits
    )
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

"""How a run begins: from starts, or on trial, with the setting and the draws of a former one.

A run that starts from another evaluates the new density at draws of that one.  Unless these rule it out, its chains
begin at some of them, and its first block tries the setting (:mod:`pmm_mcmc.warmup.warm_start`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pymc as pm
from pymc.exceptions import SamplingError

from pmm_mcmc.coordinates.affine import refitted
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import (
    Engine,
    Ensemble,
    chains_of,
    empty_state,
    in_model_coordinates,
    log_det_of,
    start_noncentring,
)  # fmt: skip
from pmm_mcmc.langevin.methods import GHMC, OVERDAMPED
from pmm_mcmc.model.checks import bad_start_message, failing_check
from pmm_mcmc.model.initial_points import INITIAL, JITTER, model_starts, spread_starts, vector_starts
from pmm_mcmc.model.pymc_density import flat_layout
from pmm_mcmc.model.user_density import LogDensity
from pmm_mcmc.run.former_run import DRAWS, TRIAL, WARM_UP, FinishedRun, Run
from pmm_mcmc.run.request import Initvals
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


def starts(
    engine: Engine, model: pm.Model | None, density: LogDensity | None, initvals: Initvals | None, chains: int,
    superchains: int | None, rng: np.random.Generator,
) -> np.ndarray:  # fmt: skip
    """Return the initial points ``(chain, d)`` of the chains, all with a finite log density and gradient.

    Chains of one of the ``superchains`` start together.
    """
    d = engine.d
    if model is not None:
        points, jitter = model_starts(model, model.value_vars, initvals, chains)
    elif initvals is None:
        points = np.zeros((chains, d))
        jitter = True
    else:
        named = None if density is None else density.start
        points = vector_starts(named, initvals, chains, d)
        jitter = False
    if jitter:
        width = INITIAL if model is None else JITTER
        spread = spread_starts(points[0], chains, superchains, lambda x: _gradient_at(engine, x), rng, width)
        if model is not None:
            _refuse_broken_sums(engine, model, points[0])
        if spread is not None:
            if model is not None and (spread == points[0]).all(axis=1).any():
                _refuse_lonely(engine, model, points[0], rng)
            return spread
    bad = np.flatnonzero(~np.isfinite(_gradient_at(engine, points)).all(axis=1))
    if bad.size:
        position = points[bad[0]]
        if model is not None:
            raise SamplingError(bad_start_message(model, point_of(model, position)))
        reason = "" if density is None else density.explain(position)
        raise SamplingError(
            f"the log density or its gradient is not finite where chain {bad[0]} starts ({position})"
            f"{': ' * bool(reason)}{reason}. Give initvals="
        )
    return points


def _gradient_at(engine: Engine, x: np.ndarray) -> np.ndarray:
    """Return gradients at the model's positions ``(n, d)``, with respect to the coordinates of the start."""
    density_parameters = start_noncentring(engine)
    return engine.gradient_at(engine.structure.to_z(x, density_parameters)[0], density_parameters)


def _refuse_lonely(engine: Engine, model: pm.Model, start: np.ndarray, rng: np.random.Generator) -> None:
    """Raise an error if the log density is finite at the model's start alone, as at parameters that make data of 0."""
    near = start + 1e-3 * rng.uniform(-1.0, 1.0, size=(10, len(start)))
    if not np.isfinite(_gradient_at(engine, near)).all(axis=1).any():
        raise SamplingError(bad_start_message(model, point_of(model, near[0]), "near the initial point"))


def _refuse_broken_sums(engine: Engine, model: pm.Model, start: np.ndarray) -> None:
    """Raise an error if a check of a sum, which rounding breaks, fails at most positions around a model's start."""
    near = start + JITTER * np.random.default_rng(0).uniform(-1.0, 1.0, size=(10, len(start)))
    bad = np.flatnonzero(~np.isfinite(_gradient_at(engine, near)).all(axis=1))
    if 2 * len(bad) > len(near):
        point = point_of(model, near[bad[0]])
        check = failing_check(model, point)
        if check is not None and "sum" in check[0]:
            raise SamplingError(bad_start_message(model, point, "near the initial point"))


def point_of(model: pm.Model, position: np.ndarray) -> dict[str, np.ndarray]:
    """Return a position of a model by variable."""
    point = {}
    start = 0
    for name, shape, size, dtype in flat_layout(model.value_vars, model.initial_point(0)):
        point[name] = position[start : start + size].reshape(shape).astype(dtype)
        start += size
    return point


def begun(
    engine: Engine, arguments: MethodArguments, starts: np.ndarray, tune: int, equilibrates: bool,
    former: FinishedRun | None, superchains: int | None, rng: np.random.Generator,
) -> Run:  # fmt: skip
    """Return a run whose chains are at positions ``(chain, d)`` or, if it starts from a former run, on trial."""
    if former is None:
        return _cold_run(engine, arguments, starts, tune, equilibrates, rng)
    return _run_on_trial(engine, arguments, starts, tune, equilibrates, former, superchains, rng)


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


def _run_on_trial(
    engine: Engine, arguments: MethodArguments, starts: np.ndarray, tune: int, equilibrates: bool,
    former: FinishedRun, superchains: int | None, rng: np.random.Generator,
) -> Run:  # fmt: skip
    """Return a run that tries a former setting or, if former draws show that it does not fit, one from a cold start.

    The ``starts`` ``(chain, d)`` are those of the cold one.
    """
    chains = len(starts)
    trial = WarmStart(starts)
    setting = former.setting
    noncentring = setting.coordinates.density_parameters
    n_grad = np.zeros(chains, np.int64)
    if (0 if noncentring is None else len(noncentring)) != engine.structure.n_parameters:
        trial.end(DROPPED, "the hierarchy is another")
        return _dropped(trial, n_grad, engine, arguments, tune, equilibrates, rng)
    draws = _evaluated(former, engine, number_of_candidates(chains))
    n_grad += -(-len(draws.z) // chains)
    trial.look_at(setting, draws.z, draws.gradient)
    if trial.outcome == DROPPED:
        return _dropped(trial, n_grad, engine, arguments, tune, equilibrates, rng)
    finite = np.isfinite(draws.log_ratio)
    draws = _FormerDraws(*(array[finite] for array in draws))
    groups = superchains or chains
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
    if phase == WARM_UP or not equilibrates:
        nothing = np.zeros((1, len(draws.z)))
        block = Block(*(array[None] for array in window), *[nothing] * 5)
        _warm_up_from(run, block, arguments, tune, adjusts=equilibrates, fits=phase == TRIAL)
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

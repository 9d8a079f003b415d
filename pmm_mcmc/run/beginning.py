"""The state of a run, which its checkpoint holds, and how it begins: from starts, or with what a finished run found.

A finished run goes on, or another starts from it.  That one evaluates the new density at its draws and, unless these
rule it out, its chains begin at some of them, and its first block tries the setting
(:mod:`pmm_mcmc.warmup.warm_start`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from pymc.exceptions import SamplingError

from pmm_mcmc.coordinates.affine import Coordinates, refitted
from pmm_mcmc.diagnostics.parameters import evenly_spaced
from pmm_mcmc.engines import contract
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.langevin.methods import GHMC, OVERDAMPED
from pmm_mcmc.model.checks import bad_start_message, failing_check
from pmm_mcmc.model.initial_points import INITIAL, JITTER, model_starts, spread_starts, vector_starts
from pmm_mcmc.model.pymc_density import flat_layout
from pmm_mcmc.model.result_tree import BLOCK_LOGP
from pmm_mcmc.model.user_density import LogDensity
from pmm_mcmc.run.driver import Groups
from pmm_mcmc.run.storage import StoreError, open_store
from pmm_mcmc.run.storage.checkpoint import decode
from pmm_mcmc.run.storage.store import SOURCE, stored_identity, stored_run_state
from pmm_mcmc.steps.pymc_step import values_at
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.curvature import LocalCurvature
from pmm_mcmc.warmup.equilibration import EQUILIBRATION, Equilibration, adjusted_setting, report_of
from pmm_mcmc.warmup.noncentring import NoncentringFit
from pmm_mcmc.warmup.warm_start import (
    DROPPED,
    REFINED,
    WarmStart,
    number_of_candidates,
    relearnt,
    resampled,
    warmup_from,
)
from pmm_mcmc.warmup.warm_up import Warming, Warmup

type Initvals = Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | np.ndarray

# The phases of a run: see :mod:`pmm_mcmc.run.phases`.
TRIAL = "trial"
WARM_UP = "warm-up"
DRAWS = "draws"


@dataclass
class Run:
    """The state of a run: all that it needs to continue bit for bit.

    Attributes
    ----------
    warming
        The warm-up with its chains, which are the chains of the run.
    phase
        The name of what it does at present.
    done
        Number of finished draws.
    unstable : (chain,)
        Transitions rejected in the current phase.
    equilibration
        None before it, and in runs without one.
    warm_start
        The trial of a former run's setting, in runs that start from one.
    """

    warming: Warming
    phase: str
    done: int
    unstable: np.ndarray
    equilibration: Equilibration | None = None
    warm_start: WarmStart | None = None

    @property
    def tuning(self) -> bool:
        """Whether the draws are still to come."""
        return self.phase != DRAWS

    @property
    def n_grad(self) -> np.ndarray:
        """The gradients ``(chain,)`` spent in all."""
        return self.warming.n_grad

    @property
    def tuned(self) -> contract.TunedParameters:
        """The current tuned parameters."""
        return self.warming.tuned if self.equilibration is None else self.equilibration.tuned

    def attributes(self, names: Sequence[str]) -> dict[str, Any]:
        """Return these numbers of the setting as attributes of the result; of adjusted draws there are none."""
        setting = {name: np.asarray(getattr(self.tuned, name)).item() for name in names}
        return setting if self.warm_start is None else setting | {"start": self.warm_start.outcome}

    def reports(self, new: bool = False) -> dict[str, xr.Dataset]:
        """Return the groups of the result beside its draws, those alone that the last chunk changed if ``new``."""
        if self.equilibration is None or (new and (self.tuning or self.done)):
            return {}
        return {EQUILIBRATION: report_of(self.equilibration, len(self.n_grad))}


# The group with the final state of a run in a result in memory.
CHECKPOINT = "checkpoint"
# An argument with its value in the text of a step.
_FIELD = re.compile(r"\w+=.+?(?=, \w+=|\)$)")
# The types in a checkpoint.
TYPES = (
    Block, Coordinates, contract.Ensemble, Equilibration, LocalCurvature, NoncentringFit, Run, MethodArguments,
    contract.TunedParameters, Warming, Warmup, WarmStart,
)  # fmt: skip


class FinishedRun(NamedTuple):
    """A run from its result: identity, state at the end and, if the draws are in memory, arguments of its step."""

    result: xr.DataTree
    identity: dict[str, Any]
    run: Run
    arguments: MethodArguments | None = None

    @classmethod
    def in_memory(cls, result: object) -> FinishedRun:
        """Read the checkpoint that :class:`MemoryRecorder` adds to a result, which goes on.

        Raises
        ------
        ValueError
            If there is no checkpoint, or the result has been changed.
        """
        if not isinstance(result, xr.DataTree) or CHECKPOINT not in result.children:
            raise ValueError(
                f"dt=<{type(result).__name__}>: must be the whole result of pmm.sample, with its group {CHECKPOINT!r}; "
                "a run in a store goes on with pmm.sample(draws, store=..., resume=True), whose draws include those "
                "that are there"
            )
        finished = cls._of_checkpoint(result, "dt")
        sizes = result["posterior"].sizes
        chains = finished.identity["chains"]
        done = finished.run.done
        if (sizes["chain"], sizes["draw"]) != (chains, done):
            raise ValueError(
                f"dt: has {sizes['chain']} chains of {sizes['draw']} draws, and the run made {chains} of {done}; give "
                "the result as it was returned"
            )
        return finished

    @classmethod
    def of_start(cls, start: object) -> FinishedRun:
        """Read the result, in memory or in a store, from whose setting another run starts.

        Raises
        ------
        ValueError
            If it has none.
        """
        if isinstance(start, dict | list):
            raise ValueError(f"start={start!r}: must be a finished run; values to start at are initvals=")
        path = start if isinstance(start, str | os.PathLike) else getattr(start, "encoding", {}).get(SOURCE)
        try:
            if isinstance(start, xr.DataTree) and CHECKPOINT in start.children:
                finished = cls._of_checkpoint(start, "start")
            elif path is not None:
                state, _ = stored_run_state(path, TYPES)
                finished = cls(open_store(path), stored_identity(path), state)
            elif isinstance(start, xr.DataTree):
                raise ValueError(
                    "start=<DataTree>: has not the setting of its run, as single groups and results of pm.sample; "
                    "give the whole result of pmm.sample, or leave start out"
                )
            else:
                raise ValueError(
                    f"start=<{type(start).__name__}>: must be a result of pmm.sample, or the path of its store"
                )
        except StoreError as error:
            raise ValueError(f"start must be a result of pmm.sample, or the path of its store; {error}") from error
        if not isinstance(finished.run, Run) or finished.run.tuning or not finished.identity["tune"]:
            raise ValueError(
                "start: its run had no warm-up or ended during it, so that it has no setting; leave start out"
            )
        return finished

    @classmethod
    def _of_checkpoint(cls, result: xr.DataTree, name: str) -> FinishedRun:
        data = np.asarray(result[CHECKPOINT]["state"].values, dtype=np.uint8).tobytes()
        identity, arguments, run = decode(data, TYPES, name)
        return cls(result, identity, run, arguments)

    def groups(self, empty: Groups) -> Groups:
        """Return the recorded arrays of the groups and names in ``empty``."""
        missing = [f"{g}/{n}" for g in empty for n in empty[g] if g not in self.result or n not in self.result[g]]
        if missing:
            raise ValueError(f"dt: {missing[0]} has been taken out of it; give the result as it was returned")
        return {g: {n: np.asarray(self.result[g][n].values) for n in names} for g, names in empty.items()}

    def check(self, arguments: MethodArguments, names: Sequence[str]) -> None:
        """Raise ``ValueError`` if the step is another one than that of a new run, or its coordinates are others."""
        if self.identity["method"] != repr(arguments):
            arguments_of_steps = [set(_FIELD.findall(text)) for text in (self.identity["method"], repr(arguments))]
            former_step, step = (", ".join(sorted(a - b)) for a, b in (arguments_of_steps, arguments_of_steps[::-1]))
            raise ValueError(
                f"start: is the result of a step with {former_step}, and this one has {step}; give the same step=, or "
                "leave start out"
            )
        former = self.identity["coordinates"]
        new = coordinate_labels(names)
        if former != new or len(self.setting.coordinates.centre) != len(names):
            raise ValueError(
                f"start: is the result of other variables, up to {', '.join(former)}, and this model has those up to "
                f"{', '.join(new)}; give a result for the same variables and shapes, or leave start out"
            )

    @property
    def setting(self) -> contract.TunedParameters:
        """The setting that the warm-up found."""
        return self.run.warming.tuned

    def draws(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return about so many draws ``(n, d)`` in the model's coordinates, and their log densities ``(n,)``."""
        stats = self.result["sample_stats"].to_dataset() if "sample_stats" in self.result else xr.Dataset()
        d = len(self.setting.coordinates.centre)
        if "unconstrained" in stats and stats.sizes["draw"]:
            chains, rows = evenly_spaced(stats.sizes["chain"], stats.sizes["draw"], number)
            chosen_draws = stats.isel(chain=chains, draw=rows)
            x = chosen_draws["unconstrained"].values.reshape(-1, d).astype(float)
            lp = chosen_draws["lp"].values.ravel()
            return x, lp - chosen_draws[BLOCK_LOGP].values.ravel() if BLOCK_LOGP in stats else lp
        ensemble = self.run.warming.ensemble
        chosen = np.unique(np.linspace(0, len(ensemble.state) - 1, number).astype(int))
        last = contract.chains_of(ensemble.state[chosen])
        evaluation = ensemble.evaluation[chosen]
        x, _ = contract.in_model_coordinates(self.setting.coordinates.place(last.evaluated), evaluation)
        return x, last.lp[:, 0] - contract.log_det_of(evaluation, d)


def coordinate_labels(names: Sequence[str]) -> list[str]:
    """Return the last label of each variable of the sampled vector, in order: its name and shape."""
    return list({name.partition("[")[0]: name for name in names}.values())


def starts(
    engine: contract.Engine, model: pm.Model | None, density: LogDensity | None, initvals: Initvals | None, chains: int,
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
            # A check of a sum, which rounding breaks, fails at most positions around a start.
            near = points[0] + JITTER * np.random.default_rng(0).uniform(-1.0, 1.0, size=(10, len(points[0])))
            bad = np.flatnonzero(~np.isfinite(_gradient_at(engine, near)).all(axis=1))
            if 2 * len(bad) > len(near):
                point = point_of(model, near[bad[0]])
                check = failing_check(model, point)
                if check is not None and "sum" in check[0]:
                    raise SamplingError(bad_start_message(model, point, "near the initial point"))
        if spread is not None:
            if model is not None and (spread == points[0]).all(axis=1).any():
                # There may be a density at the start alone, as at parameters that make data of 0.
                near = points[0] + 1e-3 * rng.uniform(-1.0, 1.0, size=(10, len(points[0])))
                if not np.isfinite(_gradient_at(engine, near)).all(axis=1).any():
                    raise SamplingError(bad_start_message(model, point_of(model, near[0]), "near the initial point"))
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


def _gradient_at(engine: contract.Engine, x: np.ndarray) -> np.ndarray:
    """Return gradients at the model's positions ``(n, d)``, with respect to the coordinates of the start."""
    density_parameters = contract.start_noncentring(engine)
    return engine.gradient_at(engine.structure.to_z(x, density_parameters)[0], density_parameters)


def point_of(model: pm.Model, position: np.ndarray) -> dict[str, np.ndarray]:
    """Return a position of a model by variable."""
    return values_at(flat_layout(model.value_vars, model.initial_point(0)), position)


@dataclass(frozen=True)
class Approach:
    """How chains come to the posterior: by a warm-up of at most ``tune`` transitions, and an equilibration or not."""

    engine: contract.Engine
    arguments: MethodArguments
    tune: int
    equilibrates: bool

    def begun(
        self, starts: np.ndarray, former: FinishedRun | None, superchains: int | None, rng: np.random.Generator
    ) -> Run:
        """Return a run whose chains are at ``starts`` ``(chain, d)`` or, if it starts from a former one, on trial.

        If former draws show that the former setting does not fit, it starts cold.
        """
        if former is None:
            return self._cold(starts, rng)
        engine = self.engine
        chains = len(starts)
        trial = WarmStart(starts)
        setting = former.setting
        noncentring = setting.coordinates.density_parameters
        n_grad = np.zeros(chains, np.int64)
        if (0 if noncentring is None else len(noncentring)) != engine.structure.n_parameters:
            trial.end(DROPPED, "the hierarchy is another")
            return self._dropped(trial, n_grad, rng)
        draws = _FormerDraws.evaluated(former, engine, number_of_candidates(chains))
        n_grad += -(-len(draws.z) // chains)
        trial.look_at(setting, draws.z, draws.gradient)
        if trial.outcome == DROPPED:
            return self._dropped(trial, n_grad, rng)
        finite = np.isfinite(draws.log_ratio)
        draws = _FormerDraws(*(array[finite] for array in draws))
        groups = superchains or chains
        chosen, trial.pareto_k = resampled(draws.log_ratio, groups, rng)
        chosen = chosen[np.arange(chains) * groups // chains]
        keys = rng.integers(0, 2**64, size=(chains, 2), dtype=np.uint64)
        ensemble = contract.Ensemble(draws.state[chosen], draws.evaluation[chosen], keys)
        window = (draws.z, draws.gradient)
        if trial.outcome == REFINED and self.arguments.scaling is None:
            x, of_x = contract.in_model_coordinates(draws.z, draws.evaluation)
            setting, ensemble, window, cost = relearnt(engine, setting, x, of_x, chosen, keys)
            n_grad += -(-cost // chains)
        elif self.arguments.scaling is None:
            trial.former = setting.coordinates
            setting = setting._replace(coordinates=refitted(trial.former, *window))
            ensemble.change_coordinates(engine, trial.former, setting.coordinates)
        if engine.kernel.dynamics != OVERDAMPED:
            contract.chains_of(ensemble.state).v[...] = rng.standard_normal((chains, engine.d))
        phase = WARM_UP if trial.outcome == REFINED else TRIAL
        run = Run(Warming(ensemble, setting, None, n_grad), phase, 0, np.zeros(chains, np.int64), warm_start=trial)
        if phase == WARM_UP or not self.equilibrates:
            nothing = np.zeros((1, len(draws.z)))
            block = Block(*(array[None] for array in window), *[nothing] * 5)
            self._warm_up_from(run, block, fits=phase == TRIAL)
            return run
        run.equilibration = Equilibration.begin(run.warming, engine.kernel, self.arguments, self.tune)
        equilibrated = former.run.equilibration
        if equilibrated is not None:
            run.equilibration.tuned = equilibrated.tuned._replace(coordinates=setting.coordinates, steps_per_draw=1)
            run.equilibration.fixed = 0
        return run

    def start_anew(self, run: Run) -> None:
        """Drop the setting after its trial for a warm-up from a cold start."""
        assert run.warm_start is not None
        run.equilibration = None
        rng = np.random.default_rng(run.warming.ensemble.keys[0])
        run.warming = self._dropped(run.warm_start, run.n_grad, rng).warming

    def go_on_from(self, run: Run, draws: Block) -> None:
        """Begin a warm-up with the setting after its trial, of which these are the ``draws``."""
        engine = self.engine
        run.equilibration = None
        if self.equilibrates:
            run.warming.ensemble.rest_at_draws(GHMC, engine.kernel)
        z, gradient = engine.structure.folded(draws.position, draws.gradient[..., : engine.d])
        self._warm_up_from(run, draws._replace(position=z, gradient=gradient), fits=False)

    def _cold(self, starts: np.ndarray, rng: np.random.Generator) -> Run:
        """Return a run that starts at positions ``(chain, d)``: see :meth:`pmm_mcmc.warmup.warm_up.Warming.start`."""
        engine = self.engine
        warming = Warming.start(engine, self.arguments, starts, self.tune, rng, checked=not self.equilibrates)
        if self.equilibrates and warming.finished:
            warming.ensemble.rest_at_draws(engine.kernel, GHMC)
            warming.tuned = adjusted_setting(warming.tuned, engine.kernel, warming.tuned.step_size)
        return Run(warming, DRAWS if warming.finished else WARM_UP, 0, np.zeros(len(starts), np.int64))

    def _dropped(self, trial: WarmStart, n_grad: np.ndarray, rng: np.random.Generator) -> Run:
        """Return a run as if there had been no trial of a former setting, which cost ``n_grad`` gradients."""
        run = self._cold(trial.starts, rng)
        run.warming.n_grad += n_grad
        run.warm_start = trial
        return run

    def _warm_up_from(self, run: Run, draws: Block, *, fits: bool) -> None:
        """Go on with a warm-up that begins with the former setting, or only checks it if it ``fits``."""
        warming = run.warming
        warming.warmup = warmup_from(
            self.arguments, self.tune, warming.tuned, draws, chains=len(run.n_grad), adjusts=self.equilibrates,
            fits=fits,
        )  # fmt: skip
        warming.tuned = warming.warmup.tuned


class _FormerDraws(NamedTuple):
    """Draws ``z`` ``(n, d)`` of a finished run, as states of an engine on the new density, with its evaluations."""

    z: np.ndarray
    state: np.ndarray
    evaluation: np.ndarray
    gradient: np.ndarray  # (n, d): of the new log density
    log_ratio: np.ndarray  # (n,): the new log density minus the former one

    @classmethod
    def evaluated(cls, former: FinishedRun, engine: contract.Engine, number: int) -> _FormerDraws:
        """Return about so many draws with the new density there; NaN in place of what is not finite."""
        coordinates = former.setting.coordinates
        x, former_lp = former.draws(number)
        z, _ = engine.structure.to_z(x, coordinates.density_parameters)
        state = contract.empty_state(coordinates.whiten(z), np.zeros(engine.d))
        evaluation = engine.evaluate(coordinates, state)
        log_ratio = contract.chains_of(state).lp[:, 0] - contract.log_det_of(evaluation, engine.d) - former_lp
        gradient = np.where(np.isfinite(log_ratio)[:, None], evaluation[:, : engine.d], np.nan)
        log_ratio[~np.isfinite(gradient).all(axis=1)] = np.nan
        return cls(z, state, evaluation, gradient, log_ratio)

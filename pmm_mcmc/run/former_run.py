"""A finished run as the start of another: its setting, and draws for the starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from pmm_mcmc.diagnostics.parameters import evenly_spaced
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import TunedParameters, chains_of, empty_state, in_model_coordinates, log_det_of
from pmm_mcmc.engines.ensemble import Ensemble
from pmm_mcmc.langevin.methods import OVERDAMPED
from pmm_mcmc.run.fingerprint import coordinate_labels
from pmm_mcmc.run.finished_run import CHECKPOINT, TYPES
from pmm_mcmc.run.phases import Run
from pmm_mcmc.run.storage import StoreError, open_store
from pmm_mcmc.run.storage.checkpoint import decode
from pmm_mcmc.run.storage.reading import SOURCE
from pmm_mcmc.run.storage.recovery import stored_identity, stored_run_state
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.equilibration import Equilibration
from pmm_mcmc.warmup.warm_start import DROPPED, WarmStart, number_of_candidates, resampled
from pmm_mcmc.warmup.warming import Warming

if TYPE_CHECKING:
    from pmm_mcmc.run.plan import SamplingPlan
    from pmm_mcmc.run.request import Request

__all__ = ["FormerRun"]


class FormerRun(NamedTuple):
    """A finished run: its result, its identity, and its state at the end."""

    result: xr.DataTree
    identity: dict[str, Any]
    run: Run

    @classmethod
    def of(cls, start: Any) -> FormerRun:
        """Read the setting of a result in memory or in a store.

        Raises
        ------
        ValueError
            If it has none.
        """
        what = f"start={type(start).__name__}(...): must be a result of pmm.sample, or the path of its store"
        path = start if isinstance(start, str | os.PathLike) else getattr(start, "encoding", {}).get(SOURCE)
        try:
            if isinstance(start, xr.DataTree) and CHECKPOINT in start.children:
                data = np.asarray(start[CHECKPOINT]["state"].values, dtype=np.uint8).tobytes()
                identity, _, run = decode(data, TYPES, "start")
            elif path is not None:
                identity = stored_identity(path)
                run, _ = stored_run_state(path, TYPES)
                start = open_store(path)
            else:
                raise ValueError(
                    f"{what}: this one has not the setting of its run, as results of pm.sample or with keep='moments'; "
                    "leave start out"
                )
        except StoreError as error:
            raise ValueError(f"{what}; {error}") from error
        if not isinstance(run, Run) or run.tuning or not identity["tune"]:
            raise ValueError("start: its run has no setting that a warm-up found to the end; leave start out")
        return cls(start, identity, run)

    def check(self, arguments: MethodArguments, names: Sequence[str]) -> None:
        """Raise ``ValueError`` if the step is another one than that of a new run, or its coordinates are others."""
        if self.identity["method"] != repr(arguments):
            raise ValueError(
                f"start: is the result of {self.identity['method']}, and the step is {arguments!r}; give the same "
                "step=, or leave start out"
            )
        former = self.identity["coordinates"]
        new = coordinate_labels(names)
        if former != new or len(self.setting.coordinates.centre) != len(names):
            raise ValueError(
                f"start: is the result of other variables, up to {', '.join(former)}, and this model has those up to "
                f"{', '.join(new)}; give a result for the same variables and shapes, or leave start out"
            )

    @property
    def setting(self) -> TunedParameters:
        """The setting that the warm-up found."""
        return self.run.warming.tuned

    def draws(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return about so many draws ``(n, d)`` in the model's coordinates, and their log densities ``(n,)``."""
        stats = self.result["sample_stats"].to_dataset() if "sample_stats" in self.result else xr.Dataset()
        d = len(self.setting.coordinates.centre)
        if "unconstrained" in stats and stats.sizes["draw"]:
            chains, rows = evenly_spaced(stats.sizes["chain"], stats.sizes["draw"], number)
            chosen_draws = stats[["unconstrained", "lp"]].isel(chain=chains, draw=rows)
            x = chosen_draws["unconstrained"].values.reshape(-1, d).astype(float)
            return x, chosen_draws["lp"].values.ravel()
        ensemble = self.run.warming.ensemble
        chosen = np.unique(np.linspace(0, len(ensemble.state) - 1, number).astype(int))
        last = chains_of(ensemble.state[chosen])
        evaluation = ensemble.evaluation[chosen]
        x, _ = in_model_coordinates(self.setting.coordinates.place(last.evaluated), evaluation)
        return x, last.lp[:, 0] - log_det_of(evaluation, d)

    def begin(self, plan: SamplingPlan, request: Request, trial: WarmStart, rng: np.random.Generator) -> Run:
        """Return a run that tries the setting or, if former draws show that it does not fit, one from a cold start."""
        engine = plan.engine
        chains = request.chains
        setting = self.setting
        noncentring = setting.coordinates.density_parameters
        ensemble = Ensemble(np.empty((chains, 0)), np.empty((chains, 0)), np.empty((chains, 2)))
        warming = Warming(ensemble, setting, None, np.zeros(chains, np.int64))
        run = Run(warming, True, 0, warming.n_grad, np.zeros(chains, np.int64), warm_start=trial)
        if (0 if noncentring is None else len(noncentring)) != engine.structure.n_parameters:
            trial.end(DROPPED, "the hierarchy is another")
            run.start_cold(plan, request.tune, rng)
            return run
        x, lp = self.draws(number_of_candidates(chains))
        z, _ = engine.structure.to_z(x, noncentring)
        state = empty_state(setting.coordinates.whiten(z), np.zeros(engine.d))
        evaluation = engine.evaluate(setting.coordinates, state)
        ratios = chains_of(state).lp[:, 0] - log_det_of(evaluation, engine.d) - lp
        gradient = np.where(np.isfinite(ratios)[:, None], evaluation[:, : engine.d], np.nan)
        run.n_grad = np.full(chains, -(-len(x) // chains))
        trial.look_at(setting, z, gradient)
        if trial.outcome == DROPPED:
            run.start_cold(plan, request.tune, rng)
            return run
        count = request.superchains or chains
        ratios[~np.isfinite(gradient).all(axis=1)] = np.nan
        chosen, trial.pareto_k = resampled(ratios, count, rng)
        chosen = chosen[np.arange(chains) * count // chains]
        keys = rng.integers(0, 2**64, size=(chains, 2), dtype=np.uint64)
        run.warming.ensemble = Ensemble(state[chosen], evaluation[chosen], keys)
        if engine.kernel.dynamics != OVERDAMPED:
            chains_of(run.warming.ensemble.state).v[...] = rng.standard_normal((chains, engine.d))
        run.warming.n_grad = run.n_grad.copy()
        if trial.outcome or not plan.equilibrates:
            nothing = np.zeros((1, len(z)))
            run.warm_up_from(plan, request.tune, Block(z[None], gradient[None], *[nothing] * 5))
            return run
        run.equilibration = Equilibration.begin(run.warming, engine.kernel, plan.arguments, request.tune)
        former = self.run.equilibration
        if former is not None:
            run.equilibration.tuned = former.tuned._replace(coordinates=setting.coordinates, steps_per_draw=1)
            run.equilibration.fixed = 0
        return run

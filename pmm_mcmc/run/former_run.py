"""The state of a run, which its checkpoint holds; and a finished one, which goes on, or from which another starts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.parameters import evenly_spaced
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import (
    Ensemble,
    TunedParameters,
    chains_of,
    in_model_coordinates,
    log_det_of,
)
from pmm_mcmc.model.result_tree import BLOCK_LOGP
from pmm_mcmc.run.driver import Groups
from pmm_mcmc.run.storage import StoreError, open_store
from pmm_mcmc.run.storage.checkpoint import decode
from pmm_mcmc.run.storage.store import SOURCE, stored_identity, stored_run_state
from pmm_mcmc.steps.methods import BY_NAME
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.curvature import LocalCurvature
from pmm_mcmc.warmup.equilibration import EQUILIBRATION, Equilibration, report_of
from pmm_mcmc.warmup.noncentring import NoncentringFit
from pmm_mcmc.warmup.warm_start import WarmStart
from pmm_mcmc.warmup.warm_up import Warming, Warmup

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
    def tuned(self) -> TunedParameters:
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
    Block, Coordinates, Ensemble, Equilibration, LocalCurvature, NoncentringFit, Run, MethodArguments,
    TunedParameters, Warming, Warmup, WarmStart,
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

    def step(self) -> Any:
        """Return a step with the arguments of the run."""
        assert self.arguments is not None
        return BY_NAME[self.arguments.method].of_arguments(self.arguments, self.identity["keep_gradients"])

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
    def setting(self) -> TunedParameters:
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
        last = chains_of(ensemble.state[chosen])
        evaluation = ensemble.evaluation[chosen]
        x, _ = in_model_coordinates(self.setting.coordinates.place(last.evaluated), evaluation)
        return x, last.lp[:, 0] - log_det_of(evaluation, d)


def coordinate_labels(names: Sequence[str]) -> list[str]:
    """Return the last label of each variable of the sampled vector, in order: its name and shape."""
    return list({name.partition("[")[0]: name for name in names}.values())

"""A finished run that continues from its result in memory, and the types of a checkpoint."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pmm_mcmc import steps
from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.engines.ensemble import Ensemble
from pmm_mcmc.run.chunks import Groups
from pmm_mcmc.run.phases import Run
from pmm_mcmc.run.storage.checkpoint import decode
from pmm_mcmc.run.until import DRAWS
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.curvature import LocalCurvature
from pmm_mcmc.warmup.equilibration import Equilibration
from pmm_mcmc.warmup.friction import FrictionTrial
from pmm_mcmc.warmup.noncentring import NoncentringFit
from pmm_mcmc.warmup.other_modes import OtherModes
from pmm_mcmc.warmup.schedule import Warmup
from pmm_mcmc.warmup.warm_start import WarmStart
from pmm_mcmc.warmup.warming import Warming

__all__ = ["CHECKPOINT", "TYPES", "FinishedRun"]

# The group with the final state of a run in a result in memory.
CHECKPOINT = "checkpoint"
# The types in a checkpoint.
TYPES = (
    Block, Coordinates, Ensemble, Equilibration, FrictionTrial, LocalCurvature, NoncentringFit, Run, MethodArguments,
    OtherModes, TunedParameters, Warming, Warmup, WarmStart,
)  # fmt: skip


class FinishedRun(NamedTuple):
    """A run, from the checkpoint in its result: identity, arguments of its step, and state at the end."""

    result: xr.DataTree
    identity: dict[str, Any]
    arguments: MethodArguments
    run: Run

    @classmethod
    def of(cls, result: Any) -> FinishedRun:
        """Read the checkpoint that :class:`MemoryRecorder` adds to a result.

        Raises
        ------
        ValueError
            If there is no checkpoint, or the result has been changed.
        """
        if not isinstance(result, xr.DataTree) or CHECKPOINT not in result.children:
            raise ValueError(_no_checkpoint(result))
        data = np.asarray(result[CHECKPOINT]["state"].values, dtype=np.uint8).tobytes()
        identity, arguments, run = decode(data, TYPES, "dt")
        sizes = result["posterior"].sizes
        if (sizes["chain"], sizes["draw"]) != (identity["chains"], run.done):
            raise ValueError(
                f"dt: has {sizes['chain']} chains of {sizes['draw']} draws, and the run made {identity['chains']} of "
                f"{run.done}; give the result as it was returned"
            )
        return cls(result, identity, arguments, run)

    def step(self) -> Any:
        """Return a step with the arguments of the run."""
        return getattr(steps, self.arguments.method).of_arguments(self.arguments, self.identity["keep_gradients"])

    def groups(self, empty: Groups) -> Groups:
        """Return the recorded arrays of the groups and names in ``empty``."""
        missing = [f"{g}/{n}" for g in empty for n in empty[g] if g not in self.result or n not in self.result[g]]
        if missing:
            raise ValueError(f"dt: {missing[0]} has been taken out of it; give the result as it was returned")
        return {g: {n: np.asarray(self.result[g][n].values) for n in names} for g, names in empty.items()}


def _no_checkpoint(result: Any) -> str:
    """Return why what has no checkpoint cannot be extended, and what can be done."""
    posterior = result.children.get("posterior") if isinstance(result, xr.DataTree) else None
    if posterior is None:
        return (
            f"dt=<{type(result).__name__}>: must be the whole result that pmm.sample returned, a DataTree; a run in a "
            "store goes on with pmm.sample(..., store=..., resume=True)"
        )
    if posterior.attrs.get("inference_library") != "pmm_mcmc":
        return "dt: is no result of pmm.sample, so that nothing is known to go on from; sample with pmm.sample"
    more = posterior.sizes["draw"] + DRAWS
    return (
        f"dt: has no group {CHECKPOINT!r}; if its draws are in a store, it goes on with "
        f"pmm.sample({more}, store=..., resume=True), whose draws include those that are there"
    )

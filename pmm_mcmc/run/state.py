"""The state of a run: what its checkpoint holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.warmup.equilibration import EQUILIBRATION, Equilibration, report_of
from pmm_mcmc.warmup.warm_start import WarmStart
from pmm_mcmc.warmup.warming import Warming

__all__ = ["DRAWS", "EQUILIBRATION", "TRIAL", "WARM_UP", "Run"]

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

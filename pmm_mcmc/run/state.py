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
from pmm_mcmc.warmup.warm_up import Warming

__all__ = ["Run"]


@dataclass
class Run:
    """The state of a run: all that it needs to continue bit for bit.

    Attributes
    ----------
    warming
        The warm-up with its chains, which are the chains of the run.
    tuning
        Whether the warm-up, or the equilibration after it, is still in progress.
    done
        Number of finished draws after it.
    unstable : (chain,)
        Transitions rejected in the current phase.
    equilibration
        None before it, and in runs without one.
    warm_start
        The trial of a former run's setting, in runs that start from one.
    """

    warming: Warming
    tuning: bool
    done: int
    unstable: np.ndarray
    equilibration: Equilibration | None = None
    warm_start: WarmStart | None = None

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

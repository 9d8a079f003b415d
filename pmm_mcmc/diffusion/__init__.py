"""The Poisson midpoint method for diffusion models: N steps of DDPM approximated by N/K steps of two network calls.

Needs NumPy alone; :mod:`pmm_mcmc.diffusion.jax` needs JAX, :mod:`pmm_mcmc.diffusion.diffusers` and
:mod:`pmm_mcmc.diffusion.diffusers_flow` torch and diffusers.
Names are loaded when they are used.

>>> from pmm_mcmc.diffusion import Blocks, DiffusionSchedule, gaussian_variance
>>> schedule = DiffusionSchedule.named("linear", 1000)
>>> blocks = Blocks.shrinking(1000, 10)
>>> blocks.calls
20.0
>>> float(gaussian_variance(schedule, 1.0, blocks).round(3))
0.995
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_NAMES = {
    "Blocks": "pmm_mcmc.diffusion.blocks",
    "DiffusionSchedule": "pmm_mcmc.diffusion.schedule",
    "PoissonMidpointFlowScheduler": "pmm_mcmc.diffusion.diffusers_flow",
    "PoissonMidpointScheduler": "pmm_mcmc.diffusion.diffusers",
    "gaussian_variance": "pmm_mcmc.diffusion.gaussian",
    "plan_blocks": "pmm_mcmc.diffusion.planner",
    "poisson_midpoint_sample": "pmm_mcmc.diffusion.jax",
    "poisson_midpoint_trajectory": "pmm_mcmc.diffusion.jax",
    "trajectory_log_prob": "pmm_mcmc.diffusion.jax",
}

# What a name needs that the package itself does not, with the extra that installs it.
_EXTRAS = {"jax": "jax", "torch": "diffusers", "diffusers": "diffusers"}

__all__ = [
    "Blocks",
    "DiffusionSchedule",
    "PoissonMidpointFlowScheduler",
    "PoissonMidpointScheduler",
    "gaussian_variance",
    "plan_blocks",
    "poisson_midpoint_sample",
    "poisson_midpoint_trajectory",
    "trajectory_log_prob",
]

if TYPE_CHECKING:
    from pmm_mcmc.diffusion.blocks import Blocks
    from pmm_mcmc.diffusion.diffusers import PoissonMidpointScheduler
    from pmm_mcmc.diffusion.diffusers_flow import PoissonMidpointFlowScheduler
    from pmm_mcmc.diffusion.gaussian import gaussian_variance
    from pmm_mcmc.diffusion.jax import (
        poisson_midpoint_sample,
        poisson_midpoint_trajectory,
        trajectory_log_prob,
    )
    from pmm_mcmc.diffusion.planner import plan_blocks
    from pmm_mcmc.diffusion.schedule import DiffusionSchedule


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        try:
            return getattr(importlib.import_module(_NAMES[name]), name)
        except ModuleNotFoundError as error:
            if error.name not in _EXTRAS:
                raise
            extra = _EXTRAS[error.name]
            raise ImportError(f"{name} needs {error.name}: install it, or pip install 'pmm-mcmc[{extra}]'") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

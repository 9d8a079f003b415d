"""What warm-up finds, what it looks at, and the setting of a run without it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from pmm_mcmc.coordinates import Coordinates
from pmm_mcmc.methods import Settings
from pmm_mcmc.tuning.friction import DEFAULT_FRICTION
from pmm_mcmc.tuning.step_size import allowed_error, midpoint_count

__all__ = ["Block", "Tuned", "fixed_setting"]


class Tuned(NamedTuple):
    """What the engine runs with: step size, K, friction, whitened coordinates, transitions per draw.

    ``halving_cost`` is the factor in gradients that half the ``target_bias`` would take, ``expected_bias`` what
    :func:`pmm_mcmc.tuning.step_size.expected_bias` says of this step; NaN where that is not known.
    """

    step_size: float
    K: int
    friction: float
    coordinates: Coordinates
    steps_per_draw: int
    halving_cost: float = math.nan
    expected_bias: float = math.nan


class Block(NamedTuple):
    """Draws of one block, one a transition; positions and gradients ``(chain, n, d)``, the others ``(chain, n)``.

    As it comes from an engine ``gradient`` is all that the density said, ``(chain, n, width)``.

    ``unstable`` counts transitions that were rejected, ``redone`` those that were taken in parts, ``model_failures``
    those of the rejected ones that the model is to blame for.
    """

    position: np.ndarray
    gradient: np.ndarray
    lp: np.ndarray
    unstable: np.ndarray
    redone: np.ndarray
    model_failures: np.ndarray
    accept: np.ndarray

    @classmethod
    def of(cls, chunk: Any) -> Block:
        """Take from an engine's chunk what the tuner looks at."""
        return cls(*(getattr(chunk, name) for name in cls._fields))


def fixed_setting(settings: Settings, centre: np.ndarray, sites: np.ndarray | None = None) -> Tuned:
    """Return the setting of a run without warm-up; raise where the step size is not given."""
    if settings.step_size is None:
        raise ValueError(
            f"step_size='auto' with tune=0: {settings.method} finds its step size in warm-up. "
            "Give step_size=, or let it tune (tune=1000)"
        )
    scale = np.ones_like(centre) if settings.scaling is None else np.array(settings.scaling)
    friction = settings.friction or DEFAULT_FRICTION
    K = midpoint_count(settings, settings.step_size, friction, 1.0, allowed_error(settings.target_bias, len(centre)))
    coordinates = Coordinates(centre.copy(), scale, sites)
    return Tuned(settings.step_size, K, friction, coordinates, settings.steps_per_draw or 1)

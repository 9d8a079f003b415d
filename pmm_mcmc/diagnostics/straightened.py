"""The coordinates in which a run is judged: those of a map that straightens its funnels, where it has any."""

from __future__ import annotations

from typing import Any

import numpy as np

from pmm_mcmc.noncentring.funnel_map import FunnelMap
from pmm_mcmc.noncentring.learn import learn_map

__all__ = ["MAP", "WORDS", "learnt_map", "straightened"]

# Attributes of a result: the map, and what was straightened, in words.
MAP, WORDS = "funnel_map", "reparametrisation"

# Draws that a map is learnt from: few enough for a second, and for the others to be new to it.
_TEACHING = 4000


def learnt_map(dt: Any) -> FunnelMap | None:
    """Return the map that straightens a run's funnels, to be passed on as ``reparametrise=``.

    Parameters
    ----------
    dt
        A result with gradients, as for :func:`pmm_mcmc.bias`, of any sampler.

    Returns
    -------
    FunnelMap or None
        The map that the run has learnt in warm-up, if the result holds it, as that of ``pmm.sample`` does; else what
        its draws teach.  None where there are no funnels.

    Raises
    ------
    ValueError
        If the result holds no gradients.
    """
    from pmm_mcmc.diagnostics.reading import read

    return read(dt, strict=True).funnels


def straightened(
    position: np.ndarray, gradient: np.ndarray, stored: str | None = None
) -> tuple[FunnelMap | None, np.ndarray, np.ndarray]:
    """Return the map of a run, if it has funnels, with positions and gradients ``(chain, draw, d)`` in its coordinates.

    Stein's identities hold in any coordinates.  In a funnel's own their terms have heavy tails, and explain little.
    """
    chains, draws, d = position.shape
    if stored:
        funnels: FunnelMap | None = FunnelMap.from_json(stored).checked(d)
    else:
        few = slice(None, None, max(1, chains * draws // _TEACHING))
        x, g = (part[:, few].swapaxes(0, 1).reshape(-1, d) for part in (position, gradient))
        funnels = learn_map(x, g, np.tile(np.arange(chains), len(x) // chains)).map
    if funnels is None:
        return None, position, gradient
    with np.errstate(all="ignore"):
        z = funnels.to_z(position)
        slope = funnels.pull_back(z, gradient)
    if not (np.isfinite(z).all() and np.isfinite(slope).all()):
        return None, position, gradient
    return funnels, z, slope

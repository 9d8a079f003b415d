"""How far a run was non-centred, and the coordinates in which it is judged."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr

__all__ = ["SITES", "WORDS", "judged_positions", "noncentring"]

# Attributes of a result: the numbers of the non-centring, and what is non-centred, in words.
SITES, WORDS = "noncentring", "reparametrisation"


def noncentring(dt: Any) -> xr.Dataset:
    r"""Return how far each variable was sampled non-centred, element by element.

    Parameters
    ----------
    dt
        A result of :func:`pmm_mcmc.sample`.

    Returns
    -------
    xarray.Dataset
        For each child the mean over chains of :math:`1 / (1 + \sigma^2 h)`, the prior's share of what is known of an
        element: 1 is the non-centred form, 0 the centred one.  Shapes are those of the unconstrained variables.  Empty
        where nothing was non-centred.

    Raises
    ------
    ValueError
        If the result does not say, as those of ``pm.sample`` do not, whose chains learn it each for itself.
    """
    attrs = dt["posterior"].attrs if "posterior" in dt.children else dt["posterior_mean"].attrs
    if "backend" not in attrs:
        raise ValueError("dt: does not say how far it was non-centred; a result of pmm.sample does")
    degree = json.loads(attrs[SITES])["degree"] if SITES in attrs else {}
    arrays = {name: np.asarray(values) for name, values in degree.items()}
    named = {name: (tuple(f"{name}_dim_{i}" for i in range(a.ndim)), a) for name, a in arrays.items()}
    return xr.Dataset(named, attrs={WORDS: attrs.get(WORDS, "")})


def judged_positions(stats: Any) -> np.ndarray:
    """Return the positions ``(chain, draw, d)`` that the gradients of a result are those of a log density at."""
    name = "noncentred" if "noncentred" in stats else "unconstrained"
    return np.asarray(stats[name].values, dtype=float)

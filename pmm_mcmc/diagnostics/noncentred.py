"""How far a run was non-centred."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr

from pmm_mcmc.diagnostics.parameters import checked

__all__ = ["NONCENTRING", "WORDS", "noncentring"]

# Attributes of a result: the numbers of the non-centring, and what is non-centred, in words.
NONCENTRING = "noncentring"
WORDS = "reparametrisation"


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
        element: 1 is the non-centred form, 0 the centred one.  Dims and coordinates are those of the variable in
        ``dt``; a variable with fewer free elements than elements, such as a ``ZeroSumNormal``, has a number for each
        free one and dims of its own.  Empty where nothing was non-centred.

    Raises
    ------
    TypeError, ValueError
        If ``dt`` is no result, or does not hold it: a step of ``pm.sample`` does not keep it.
    """
    posterior = checked(dt)["posterior"].dataset
    if "backend" not in posterior.attrs:
        raise ValueError(
            "dt: is no result of pmm_mcmc.sample; sample with it, and pass what it returns (a step of pm.sample does "
            "not keep its non-centring)"
        )
    attrs = posterior.attrs
    degree = json.loads(attrs[NONCENTRING])["degree"] if NONCENTRING in attrs else {}
    return xr.Dataset(
        {name: _like(posterior.get(name), name, np.asarray(values)) for name, values in degree.items()},
        attrs={WORDS: attrs.get(WORDS, "")},
    )


def _like(draws: xr.DataArray | None, name: str, values: np.ndarray) -> xr.DataArray:
    """Return the elements' values, with the dims and coordinates of the variable's draws where they fit."""
    if draws is not None:
        one = draws.isel(chain=0, draw=0, drop=True, missing_dims="ignore")
        if one.shape == values.shape:
            return one.copy(data=values)
    return xr.DataArray(values, dims=[f"{name}_dim_{i}" for i in range(values.ndim)])

"""Stein-corrected posterior expectations of any smooth function of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pmm_mcmc.diagnostics.parameters import Result
from pmm_mcmc.diagnostics.reading import BIASES, read, table_of
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS


def expectation(dt: Result, function: Callable[[xr.Dataset], Any]) -> pd.DataFrame:
    r"""Estimate the posterior expectation of a function of the parameters, corrected for bias and noise.

    The plain mean of the function over the draws has the sampler's bias and noise; the Stein correction
    (``pmm_mcmc.diagnostics.control_variates``) removes the part of both that the gradients explain.  With
    regressors :math:`t_k` whose posterior expectation is zero, fitted to the function on other chains,

    .. math:: E\,f \approx \frac1n \sum_i \Big( f(x_i) - \sum_k \beta_k\, t_k(x_i) \Big) .

    Parameters
    ----------
    dt
        A result whose ``sample_stats`` hold ``gradient`` and ``unconstrained``: every step method here stores them.
    function
        Called once with the posterior group, an ``xarray.Dataset`` whose variables have dimensions ``chain`` and
        ``draw``; returns a ``DataArray`` with these two and any others, or a ``Dataset`` or dict of them.  A value may
        depend on its own draw only.  Use functions of NumPy and xarray.

    Returns
    -------
    pandas.DataFrame
        The columns of ``pmm_mcmc.summary(dt, kind="bias")``, a row for each element, labelled as by ArviZ.  A single
        ``DataArray`` goes by the name of the function (``value`` for a lambda), those of a dict or ``Dataset`` by their
        own.

    Raises
    ------
    TypeError
        If ``function`` is not callable, or returns anything but real numbers in these containers.
    ValueError
        If the result has no gradients, or fewer than 20 draws; if a returned array lacks ``chain`` or ``draw``, or has
        other coordinates along them than the posterior.

    See Also
    --------
    pmm_mcmc.summary : The parameters themselves.

    Notes
    -----
    Smooth matters: for indicators and other jumps the regressors explain little, the plain mean is kept and the bias is
    NaN, not measurable.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     a, b = pm.Normal("a", 1), pm.Normal("b")
    ...     dt = pm.sample(500, tune=300, chains=2, step=pmm.PoissonULMC(), random_seed=1, progressbar=False)
    >>> table = pmm.expectation(dt, lambda p: {"sum": p["a"] + p["b"], "product": p["a"] * np.exp(p["b"])})
    >>> list(table.index)
    ['sum', 'product']
    >>> bool(abs(table.loc["sum", "mean_cv"] - 1.0) < 1e-3)
    True
    """
    if not callable(function):
        raise TypeError(
            f"function={function!r}: must be callable with the posterior, such as lambda p: p['a'] * np.exp(p['b'])"
        )
    run = read(dt)
    posterior = run.posterior
    if run.gradient is None:
        raise ValueError(
            f"the result holds no gradients, or draws too few for a corrected estimate, below {THRESHOLDS.fewest}: "
            "sample with a step of pmm_mcmc that moves all continuous variables of the model, and keep_gradients=True"
        )
    returned = function(posterior)
    if not isinstance(returned, Mapping):
        name = getattr(function, "__name__", "value")
        returned = {"value" if name == "<lambda>" else name: returned}
    if not returned:
        raise TypeError("function returned nothing in a dict: must return a DataArray, or a Dataset or dict of them")
    checked = [_checked(str(name), value, posterior) for name, value in returned.items()]
    # One by one: what is found of a function does not depend on what else was asked for.
    runs = [replace(run, posterior=value.to_dataset().assign_attrs(posterior.attrs)) for value in checked]
    return pd.concat([table_of(each) for each in runs])[list(BIASES)]


def _checked(name: str, value: object, posterior: xr.Dataset) -> xr.DataArray:
    """Return a value by draw, with its name; raise an error where it is none."""
    if not isinstance(value, xr.DataArray):
        raise TypeError(
            f"function returned {type(value).__name__} for {name!r}: must return a DataArray with dimensions chain and "
            "draw, or a Dataset or dict of them (compute with the Dataset that it is given, not with its .values)"
        )
    if value.dtype.kind not in "biuf":
        raise TypeError(f"function returned dtype {value.dtype} for {name!r}: must be real numbers")
    for dim in ("chain", "draw"):
        if dim not in value.dims or not np.array_equal(value[dim], posterior[dim]):
            raise ValueError(
                f"function returned {dict(value.sizes)} for {name!r}: must return the value at each of the draws, "
                f"{dict(posterior.sizes)}, in the order of {dim!r}, not a mean over them (reduce other dimensions by "
                "name, as in p['x'].sum('x_dim_0'))"
            )
    return value.reset_coords(drop=True).transpose("chain", "draw", ...).rename(name)

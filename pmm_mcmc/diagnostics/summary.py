"""Estimates of a result: corrected means beside ArviZ's columns, those of any function, and its non-centring."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from html import escape
from typing import Any, Literal

import numpy as np
import pandas as pd
import xarray as xr
from arviz_base import extract
from arviz_stats import summary as arviz_summary
from arviz_stats.base.stats_utils import round_num
from arviz_stats.summary import SummaryDataFrame

from pmm_mcmc.diagnostics.parameters import Parameters, Result, checked
from pmm_mcmc.diagnostics.reading import BIASES, NONCENTRING, WORDS, Run, read, table_of
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.diagnostics.verdict import COLUMNS, judge


def noncentring(dt: Result) -> xr.Dataset:
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


_CORRECTED = ("mean_cv", "mcse_cv")
_BIAS = ("bias", "bias_se")  # of unadjusted draws alone
# The standard error that says how many digits of an estimate are shown.
_ERRORS = {"mean": "mcse_mean", "sd": "mcse_sd", "median": "mcse_median"} | dict([_CORRECTED, _BIAS])
# Beginnings of columns that are shown to a tenth of the standard deviation where the table has no error of theirs.
_QUANTILES = ("mean", "median", "eti", "hdi")


def summary(
    dt: Result,
    var_names: str | list[str] | None = None,
    *,
    kind: str = "short",
    round_to: str | int | None = "auto",
    **options: Any,
) -> pd.DataFrame:
    """Summarise a result: corrected means with their errors, beside ArviZ's convergence diagnostics.

    A corrected mean (``pmm_mcmc.diagnostics.control_variates``) has a smaller error than the plain one, and of
    unadjusted draws a smaller bias.

    Parameters
    ----------
    dt
        A result of any sampler.  Without
        gradients, as with NUTS, the corrected mean is the plain mean with its standard error.
    var_names
        Parameters to show; all by default.
    kind
        "short": ``mean_cv``, ``mcse_cv``, ``sd`` of the draws, ``r_hat`` and ``ess_bulk``, the last two
        ArviZ's; of unadjusted draws also ``bias`` and ``bias_se``.  "all", or any other kind that ``arviz.summary``
        knows: its columns, then the corrected ones and ``ess_per_grad`` (``ess_bulk`` for each gradient spent, warm-up
        included).  "bias": ``mean``, ``mcse``, ``mean_cv``, ``mcse_cv``, ``bias`` (the plain minus the corrected mean),
        ``bias_se``, ``bias_sd_units`` (over the corrected standard deviation); the same of standard deviations, ``sd``,
        ``sd_cv``, ``mcse_sd_cv``, ``bias_of_sd``, ``bias_of_sd_se``; and ``unexplained``, the share of a mean's noise,
        and so about the share of its bias, that the correction does not remove.
    round_to
        "auto" shows a standard error with two digits and an estimate with the places that its error supports, as ArviZ
        does, but never 0 for a value that is not 0; the values in the frame are not rounded.  "none" shows all digits;
        a number, or a format such as "3g", is used as by ``arviz.summary``.
    **options
        For ``arviz.summary``: ``filter_vars``, ``coords``; ``ci_prob`` and the like with its own kinds.

    Returns
    -------
    pandas.DataFrame
        A row a parameter, labelled as by ArviZ; a notebook shows the verdict above it.  The sentence of
        :func:`pmm_mcmc.verdict`, which is always on all parameters, is in ``.attrs["verdict"]``.  A constant, also one
        that varies by rounding only, has no ``r_hat``.  Biases are NaN, and corrected estimates equal to the plain
        ones, where nothing can be corrected: the gradients explain too little of the parameter; there are none, or
        fewer than 20 draws; or the Stein identity fails as it does at an edge or a jump of the density (then in all
        rows).  NaN does not mean that there is no bias.  A bias contains the noise of the raw estimate, which
        ``bias_se`` measures.  Where a mean is not corrected, ``mcse_cv`` is the largest of ArviZ's ``mcse_mean`` and
        the standard errors between batches and between chains.

    Raises
    ------
    TypeError, ValueError
        If ``dt`` is no result of sampling, or an argument does not go with it; the message has the remedy.

    See Also
    --------
    pmm_mcmc.verdict : The verdict alone.
    """
    dt = checked(dt)
    run = read(dt)
    selection = {name: options[name] for name in ("filter_vars", "coords") if name in options}
    labels = _labels(dt, var_names, **selection)
    sentence = judge(run).sentence
    table = run.table if set(labels) <= set(run.table.index) else table_of(run)
    n = run.chains * run.draws
    table = table.loc[labels].assign(sd=lambda rows: rows["sd"] * np.sqrt(n / max(n - 1, 1)))  # ArviZ's divisor
    extra = _BIAS if run.unadjusted else ()
    if kind == "short":
        unknown = set(options) - set(selection)
        if unknown:
            raise ValueError(f"{min(unknown)}: goes with kind='all' or another kind of arviz.summary")
        out = table[[*_CORRECTED, "sd", *extra, "r_hat", "ess_bulk"]]
    elif kind == "bias":
        out = table[list(BIASES)]
    else:
        out = _beside_arviz(run, table[[*_CORRECTED, *extra]], dt, var_names=var_names, kind=kind, **options)
    out = rounded(out, round_to)
    out.attrs["verdict"] = sentence
    if WORDS in run.posterior.attrs:
        out.attrs[WORDS] = run.posterior.attrs[WORDS]
    return out


class Summary(SummaryDataFrame):
    """A table of estimates; a notebook shows the verdict above it, and what its columns are below."""

    @property
    def _constructor(self) -> type[Summary]:
        return Summary

    def _repr_html_(self) -> str:
        head = f"<p>{escape(self.attrs['verdict'])}</p>" if "verdict" in self.attrs else ""
        note = f"<p>{COLUMNS}.</p>" if "mcse_cv" in self else ""
        return f"{head}{super()._repr_html_()}{note}"


def rounded(table: pd.DataFrame, round_to: str | int | None) -> pd.DataFrame:
    """Return a table that shows rounded numbers: "auto" by their standard errors, "none" all digits, else as ArviZ."""
    if round_to in ("none", "None"):
        return pd.DataFrame(table)
    if round_to not in ("auto", None):
        return pd.DataFrame(table).map(lambda value: round_num(value, round_to))
    return Summary(table, fmt_map={name: dict(zip(table.index, _shown(table, name), strict=True)) for name in table})


def _shown(table: pd.DataFrame, name: str) -> list[str]:
    values = table[name].astype(float)
    if name == "r_hat" or (name.startswith("ess_") and name != "ess_per_grad"):
        return [f"{value:.3f}" if name == "r_hat" else f"{np.floor(value):.0f}" for value in values]
    errors = values * np.nan
    if _ERRORS.get(name) in table:
        errors = table[_ERRORS[name]]
    elif name.startswith(_QUANTILES) and "sd" in table:
        errors = 0.05 * table["sd"]
    if name == "sd" and "mcse_sd" not in table and "ess_bulk" in table:
        errors = values / np.sqrt(2.0 * table["ess_bulk"].clip(lower=1.0))
    if name in _ERRORS and "sd" in table:  # what a correction leaves of a Gaussian is rounding
        values = values.mask(values.abs() < 1e-9 * table["sd"], 0.0)
        errors = np.maximum(errors, 1e-5 * table["sd"])
    return [_number(value, error) for value, error in zip(values, errors.astype(float), strict=True)]


def _number(value: float, error: float) -> str:
    """Format a number with the places that two standard errors support, or with two digits if there is no error."""
    if not 0.0 < error < np.inf or value == 0.0:
        return f"{value:.2g}"
    places = -int(np.floor(np.log10(2.0 * error)))
    text = f"{value:.3g}" if places < 0 else f"{value:.{places}f}"
    return text if float(text) else f"{value:.1g}"


def bias_table(dt: Result) -> pd.DataFrame:
    """Return the columns of ``summary(dt, kind="bias")`` for all parameters of a result of any sampler."""
    return table_of(read(dt))[list(BIASES)]


def _labels(
    dt: xr.DataTree,
    var_names: str | list[str] | None,
    filter_vars: Literal["like", "regex"] | None = None,
    coords: Mapping[str, Any] | None = None,
) -> list[str]:
    options: dict[str, Any] = {"filter_vars": filter_vars, "combined": False, "keep_dataset": True}
    try:
        posterior: Any = extract(dt, var_names=var_names, **options)
    except KeyError:
        present = ", ".join(map(str, dt["posterior"].data_vars))
        elements = "; coords= chooses elements" if "[" in str(var_names).strip("[]") else ""
        raise ValueError(f"var_names={var_names!r}: the result has {present}{elements}") from None
    try:
        return Parameters(posterior.sel(coords or {})).labels
    except KeyError:
        named = {str(dim): values.values.tolist() for dim, values in posterior.coords.items() if dim in (coords or {})}
        present = str(named) if named else ", ".join(map(str, posterior.dims))
        raise ValueError(f"coords={coords!r}: the result has {present}") from None


def _beside_arviz(run: Run, columns: pd.DataFrame, dt: xr.DataTree, **options: Any) -> pd.DataFrame:
    """Return ArviZ's summary with other columns beside it, and ``ess_per_grad`` if gradients were counted."""
    with np.errstate(all="ignore"):  # NumPy warns of the r_hat of constants
        out = pd.DataFrame(arviz_summary(with_numbers(dt), **{"round_to": "none", **options}))
    out[list(columns)] = columns.reindex(out.index)
    if "ess_bulk" in out and "n_grad_total" in run.stats:
        out["ess_per_grad"] = out["ess_bulk"].astype(float) / float(run.stats["n_grad_total"].isel(draw=-1).sum())
    return out


def with_numbers(dt: xr.DataTree) -> xr.DataTree:
    """Return a result with Booleans as 0 and 1: ArviZ takes no quantiles of Booleans."""
    posterior = dt["posterior"].to_dataset()
    flags = {name: values.astype(int) for name, values in posterior.data_vars.items() if values.dtype == bool}
    return dt.assign({"posterior": xr.DataTree(posterior.assign(flags))}) if flags else dt


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
        Called with the posterior group, an ``xarray.Dataset`` whose variables have dimensions ``chain`` and ``draw``
        (twice where a block was integrated out: with its mirror image, too); returns a ``DataArray`` with these two and
        any others, or a ``Dataset`` or dict of them.  A value may depend on its own draw only.  Use functions of NumPy
        and xarray.

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
    arrays = _returned(function, posterior)
    averages: list[xr.Dataset | None] = [None] * len(arrays)
    if run.averages is not None:
        mirrored = _returned(function, 2.0 * run.averages - posterior)
        averages = [
            (0.5 * (one + other)).rename(one.name).to_dataset() for one, other in zip(arrays, mirrored, strict=True)
        ]
    # One by one: what is found of a function does not depend on what else was asked for.
    runs = [
        replace(run, posterior=value.to_dataset().assign_attrs(posterior.attrs), averages=average)
        for value, average in zip(arrays, averages, strict=True)
    ]
    return pd.concat([table_of(each) for each in runs])[list(BIASES)]


def _returned(function: Callable[[xr.Dataset], Any], posterior: xr.Dataset) -> list[xr.DataArray]:
    """Return the values of a function by draw, with their names; raise an error where they are none."""
    returned = function(posterior)
    if not isinstance(returned, Mapping):
        name = getattr(function, "__name__", "value")
        returned = {"value" if name == "<lambda>" else name: returned}
    if not returned:
        raise TypeError("function returned nothing in a dict: must return a DataArray, or a Dataset or dict of them")
    return [_checked_array(str(name), value, posterior) for name, value in returned.items()]


def _checked_array(name: str, value: object, posterior: xr.Dataset) -> xr.DataArray:
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

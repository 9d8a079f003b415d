"""The bias of a run, parameter by parameter, and a verdict in words."""

from __future__ import annotations

from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pandas as pd
from arviz_base import xarray_sel_iter
from arviz_base.labels import BaseLabeller
from scipy.stats import chi2, poisson
from scipy.stats import f as f_distribution

from pmm_mcmc.batches import degrees_of_freedom, largest_t
from pmm_mcmc.diagnostics.nested import nested_r_hat
from pmm_mcmc.diagnostics.stein import Corrected, corrected_expectations
from pmm_mcmc.diagnostics.straightened import straightened
from pmm_mcmc.noncentring.funnel_map import FunnelMap
from pmm_mcmc.tuning.virial import stein_identity

__all__ = ["Verdict", "bias", "stein_identity", "verdict"]

# The limits of the verdict, in posterior standard deviations where they are lengths.
_UNSTABLE_RATE = 2e-4
_R_HAT = 1.01  # PyMC's own: a run that PyMC warns of is not to be trusted here
_BETWEEN_CHAINS = 0.05
_BIAS = 0.075  # so that what is trusted is below 0.1, twice the default target, with an error of its own
_SHORTER = "halve step_size, or reparametrise"
_VIRIAL, _VIRIAL_Z = 0.075, 4.0
_VIRIAL_MEAN_SQUARE = 0.01
# Where the step may well bias means by the first of these, all biases must be seen to be below the second.  Tuned steps
# have 0.05; the curvature behind it is found anew in each warm-up, and so this may vary by a factor of 5.
_EXPECTED, _RULED_OUT = 0.3, 0.1
# How often chance alone may bring about one of these reasons, in a run.
_CHANCE = 0.01
# Draws without which there is no cross-fitting at all.
_FEWEST = 20


class Verdict(NamedTuple):
    """Whether a run may be trusted, one sentence that says so, and the reasons if not."""

    trusted: bool
    sentence: str
    reasons: tuple[str, ...]


class _Run(NamedTuple):
    """Arrays of a result: labels of the p parameters, and values, positions, gradients as (chain, draw, ...).

    ``straight`` and ``slope`` are positions and gradients in the coordinates of ``funnels``, if there are any, and
    ``own`` says which of the former a parameter is.
    """

    labels: list[str]
    values: np.ndarray
    own: np.ndarray
    position: np.ndarray
    gradient: np.ndarray
    straight: np.ndarray
    slope: np.ndarray
    funnels: FunnelMap | None


def _read(dt: Any, var_names: Any = None) -> _Run:
    stats = dt["sample_stats"] if "sample_stats" in dt.children else None
    if stats is None or "gradient" not in stats or "unconstrained" not in stats:
        raise ValueError(
            "the result holds no gradients (sample_stats 'gradient' and 'unconstrained'): sample with a step method of "
            "pmm_mcmc that moves all variables of the model, with keep_gradients=True"
        )
    position, gradient = (np.asarray(stats[name].values, dtype=float) for name in ("unconstrained", "gradient"))
    chains, draws = position.shape[:2]
    if draws < 4 or chains * draws < _FEWEST:
        raise ValueError(f"{chains} x {draws} draws are too few to measure a bias: draw at least {_FEWEST}")
    posterior = dt["posterior"].dataset
    if var_names is not None:
        posterior = posterior[[var_names] if isinstance(var_names, str) else list(var_names)]
    labeller, labels, columns = BaseLabeller(), [], []
    for name, selection, index in xarray_sel_iter(posterior, skip_dims={"chain", "draw"}):
        labels.append(labeller.make_label_flat(name, selection, index))
        columns.append(np.asarray(posterior[name].isel(index).values, dtype=float))
    values = np.stack(columns, axis=-1)
    funnels, straight, slope = straightened(dt, position, gradient)
    # Which parameters are coordinates themselves, untransformed: told by their values.
    same = values[0, 0][:, None] == straight[0, 0][None, :]
    own = np.full(len(labels), -1)
    for i, j in zip(*np.nonzero(same), strict=True):
        if np.array_equal(values[..., i], straight[..., j]):
            own[i] = j
    return _Run(labels, values, own, position, gradient, straight, slope, funnels)


def _sd(second: Corrected) -> tuple[np.ndarray, np.ndarray]:
    """Corrected standard deviations and their errors, from corrected central second moments (delta method)."""
    sd = np.sqrt(np.maximum(second.value, 0.0))
    return sd, second.se / np.maximum(2.0 * sd, 1e-300)


def bias(dt: Any, var_names: Any = None) -> pd.DataFrame:
    """Estimate the discretisation bias of each parameter's mean and standard deviation.

    Raw minus Stein-corrected estimate (:mod:`pmm_mcmc.diagnostics.stein`), on the scale of the parameter.

    Parameters
    ----------
    dt
        A result whose ``sample_stats`` hold ``gradient`` and ``unconstrained``: every step method here stores them.
    var_names
        Parameters to report; all by default.

    Returns
    -------
    pandas.DataFrame
        A row a parameter: ``mean``, ``mcse``, ``mean_corrected``, ``mcse_corrected``, ``bias``, ``bias_se``,
        ``bias_sd_units`` (over the corrected standard deviation), then ``sd``, ``sd_corrected``, ``mcse_sd_corrected``,
        ``bias_of_sd``, ``bias_of_sd_se`` and ``unexplained``, the part of a mean's noise, and so about of its bias,
        that the correction leaves.  Biases are NaN where the gradients explain too little of the parameter to
        measure them: not measurable is not none.  They hold the noise of the raw estimate too, which is what the
        standard errors beside them are about.

    Raises
    ------
    ValueError
        If the result holds no gradients, or fewer than 20 draws.
    """
    return _table(_read(dt, var_names))


def _table(run: _Run) -> pd.DataFrame:
    first = corrected_expectations(run.values, run.straight, run.slope, run.own)
    centred = (run.values - first.value) ** 2
    second = corrected_expectations(centred, run.straight, run.slope, run.own, follow=run.values)
    sd, sd_error = _sd(second)
    with np.errstate(invalid="ignore"):  # values that are not finite have no standard deviation
        raw_sd = (run.values - run.values[:1, :1]).std(axis=(0, 1))
    return pd.DataFrame(
        {
            "mean": first.raw,
            "mcse": first.raw_se,
            "mean_corrected": first.value,
            "mcse_corrected": first.se,
            "bias": first.bias,
            "bias_se": first.bias_se,
            "bias_sd_units": first.bias / np.where(sd > 0.0, sd, np.nan),
            "sd": raw_sd,
            "sd_corrected": np.where(second.used, sd, raw_sd),
            "mcse_sd_corrected": sd_error,
            "bias_of_sd": np.where(second.used, raw_sd - sd, np.nan),
            "bias_of_sd_se": second.bias_se / np.maximum(2.0 * sd, 1e-300),
            "unexplained": first.left,
        },
        index=run.labels,
    )


def verdict(dt: Any) -> Verdict:
    """Say in one sentence whether a run may be trusted and, if not, what fails and what to do.

    A run is not trusted if too many transitions were unstable, if chains disagree, if the Stein identity fails for a
    coordinate, or if the bias of a standard deviation, or of a mean with what the correction has left of it, exceeds
    0.075 posterior standard deviations; nor if the step is much longer than warm-up would have made it and the draws
    do not rule out a bias of 0.1.  The weights of separate modes are seen by none of these but the disagreement of
    chains that started apart.

    Parameters
    ----------
    dt
        A result with gradients, as for :func:`bias`.

    Returns
    -------
    Verdict
        ``trusted``, ``sentence``, ``reasons``.
    """
    if "posterior_mean" in dt.children:  # draws were not kept
        from pmm_mcmc.diagnostics.moments_summary import moments_verdict

        return moments_verdict(dt)
    run = _read(dt)
    return _judge(dt, run, _table(run))


def _judge(dt: Any, run: _Run, table: pd.DataFrame) -> Verdict:
    reasons: list[str] = []
    stats = dt["sample_stats"]
    if "unstable" in stats and "acceptance_rate" not in stats:
        unstable, transitions = int(stats["unstable"].sum()), int(stats["steps_per_draw"].sum())
        # More than chance would give at the rate that is harmless: one event in a short run says nothing.
        if poisson.sf(unstable - 1, _UNSTABLE_RATE * transitions) < 0.05:
            by_model = int(stats["model_failures"].sum()) if "model_failures" in stats else 0
            remedy = "the model is not finite there: look at model.debug()" if 2 * by_model > unstable else _SHORTER
            reasons.append(f"{unstable} of {transitions} transitions were unstable ({remedy})")
    chains = run.values.shape[0]
    degrees = degrees_of_freedom(*run.position.shape[:2])
    moving = table["sd"].to_numpy() > 0.0  # neither constant nor, somewhere, not finite
    if chains > 1:
        r_hat, kind = np.ones(len(run.labels)), "r_hat"
        with np.errstate(all="ignore"):  # of chains that stand still, it is infinite
            if "superchains" in dt["posterior"].attrs:  # many chains, perhaps of few draws
                kind, nested = "nested r_hat", nested_r_hat(dt).reindex(run.labels).to_numpy()
                r_hat[moving] = nested[moving]
            else:
                r_hat[moving] = [float(az.rhat(run.values[..., i])) for i in np.flatnonzero(moving)]
        worst = int(r_hat.argmax())
        if r_hat[worst] > _R_HAT:
            reasons.append(f"chains disagree: {kind} of {run.labels[worst]} is {r_hat[worst]:.3g} (draw more)")
        else:
            apart = _errors_of_means(run.values, moving)
            worst = int(np.argmax(apart))
            if apart[worst] > _BETWEEN_CHAINS:
                reasons.append(
                    f"the mean of {run.labels[worst]} is known to {apart[worst]:.2f} posterior sd only (draw more)"
                )
    excess, z, mean_square = stein_identity(run.straight, run.slope)
    off = (np.abs(excess) > _VIRIAL) & (np.abs(z) > max(_VIRIAL_Z, largest_t(len(z), degrees)))
    # Chance alone makes the z-scores' own mean square about 1.
    chance = f_distribution.ppf(1.0 - _CHANCE, max(len(z), 1), degrees)
    with np.errstate(over="ignore"):  # of a coordinate that does not move
        throughout = mean_square > _VIRIAL_MEAN_SQUARE and float(np.mean(z**2)) > max(_VIRIAL_Z, chance)
    if off.any() or throughout:
        worst = int(np.argmax(np.where(off, np.abs(excess), 0.0))) if off.any() else int(np.argmax(np.abs(excess)))
        reasons.append(
            f"E[x dF/dx] is {1 + excess[worst]:.2f} where it must be 1, for {_name(run, worst)} ({_SHORTER})"
        )
    scale = table["sd_corrected"].where(table["sd_corrected"] > 0.0)
    for what, name, left in (("mean", "bias", table["unexplained"]), ("sd", "bias_of_sd", 0.0)):
        size, error = (table[name] / scale).abs(), (table[f"{name}_se"] / scale).abs()
        whole = size / (1.0 - left)
        large = whole[(whole > _BIAS) & (size > largest_t(len(size), degrees) * error)]
        if len(large):
            label = large.idxmax()
            reasons.append(f"the {what} of {label} is off by {100 * large[label]:.0f} % of a posterior sd ({_SHORTER})")
    size, error, left = table["bias"].abs() / scale, table["bias_se"] / scale, table["unexplained"]
    size = size + 2.0 * error + left / (1.0 - left) * (size - 2.0 * error).clip(lower=0.0)
    of_sd = (table["bias_of_sd"].abs() + 2.0 * table["bias_of_sd_se"]) / scale
    small = (size < _RULED_OUT) & (of_sd < _RULED_OUT) | (table["sd"] == 0.0)
    reasons.extend(_too_long(stats, bool(small.all())))
    if reasons:
        return Verdict(False, "Do not trust this run: " + "; ".join(reasons) + ".", tuple(reasons))
    measured, varying = size.notna(), int((table["sd"] != 0.0).sum())
    bound = float(np.ceil(100 * size[measured].max())) if measured.any() else np.nan
    if chains == 1:
        caveat = " One chain: agreement between chains was not checked."
    else:
        caveat = ""
    if not measured.any():
        sentence = "No sign of bias, but it is not measurable for any parameter: compare with half the step size."
    elif measured.sum() == varying:
        which = f"all {varying} parameters" if varying > 1 else "the only parameter"
        sentence = f"Bias below {bound:.0f} % of a posterior sd in {which}."
    else:
        sentence = (
            f"Bias below {bound:.0f} % of a posterior sd in {measured.sum()} of {varying} parameters, not measurable "
            "in the others and without other signs there."
        )
    return Verdict(True, sentence + caveat + _price(stats), ())


def _too_long(stats: Any, ruled_out: bool) -> list[str]:
    """Return the reason, if any, to expect harm of the step in use, unless the draws rule it out."""
    expected = float(np.max(stats["expected_bias"].values)) if "expected_bias" in stats else np.nan
    if not expected > _EXPECTED or (ruled_out and np.isfinite(expected)):
        return []
    tuned = "halving_cost" in stats and bool(np.isfinite(stats["halving_cost"].values).all())
    remedy = "lower target_bias" if tuned else "leave step_size out"
    if np.isinf(expected):
        return [f"steps of this size are not stable where the posterior is steepest ({remedy})"]
    return [
        f"steps of this size may bias means by {100 * expected:.0f} % of a posterior sd, and the draws do not rule out "
        f"that they do harm ({remedy}, or draw more)"
    ]


def _price(stats: Any) -> str:
    """Return what half the bias would cost, where the sampler says so."""
    if "halving_cost" not in stats:
        return ""
    factor = float(np.max(stats["halving_cost"].values))
    return f" Half of that would take {factor:.1f} times the gradients (target_bias)." if np.isfinite(factor) else ""


def _errors_of_means(values: np.ndarray, moving: np.ndarray) -> np.ndarray:
    """Return standard errors of means, in standard deviations: ArviZ's, or the chains' own where they differ by more.

    A few chains give a noisy standard error: theirs counts only where chance among all parameters would not reach it.
    """
    chains, _, p = values.shape
    within, between = np.zeros(p), np.zeros(p)
    for i in np.flatnonzero(moving):
        sd = values[..., i].std()
        within[i] = float(az.mcse(values[..., i], method="mean")) / sd
        between[i] = values[..., i].mean(axis=1).std(ddof=1) / np.sqrt(chains) / sd
    chance = np.sqrt(chi2.ppf(1.0 - _CHANCE / p, chains - 1) / (chains - 1))
    return np.where(between > chance * within, between, within)


def _name(run: _Run, coordinate: int) -> str:
    """Return the parameter that a coordinate is, or that follows it most closely."""
    if (run.own == coordinate).any():
        return run.labels[int(np.flatnonzero(run.own == coordinate)[0])]
    x = run.straight[..., coordinate].ravel()
    flat = run.values.reshape(-1, len(run.labels))
    with np.errstate(all="ignore"):
        correlation = np.nan_to_num(np.abs([np.corrcoef(x, f)[0, 1] for f in flat.T]))
    return run.labels[int(np.argmax(correlation))]

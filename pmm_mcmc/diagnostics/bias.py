"""The bias of a run, parameter by parameter, and a verdict in words."""

from __future__ import annotations

from typing import Any, NamedTuple

import arviz as az
import numpy as np
import pandas as pd
from arviz_base import xarray_sel_iter
from arviz_base.labels import BaseLabeller
from scipy.stats import chi2

from pmm_mcmc.batches import degrees_of_freedom
from pmm_mcmc.diagnostics.judging import (
    CHANCE,
    PROBE_REPLICAS,
    Measured,
    Verdict,
    bias_reasons,
    calm,
    conclude,
    disagreement_reasons,
    identity_reasons,
    length_reasons,
    unstable_reasons,
    whole,
)
from pmm_mcmc.diagnostics.nested import nested_r_hat
from pmm_mcmc.diagnostics.stein import Corrected, corrected_expectations
from pmm_mcmc.diagnostics.noncentred import judged_positions
from pmm_mcmc.tuning.virial import stein_identity

__all__ = ["Verdict", "bias", "stein_identity", "verdict"]

# Draws without which there is no cross-fitting at all.
_FEWEST = 20


class _Run(NamedTuple):
    """Arrays of a result: labels of the p parameters, and values, positions, gradients as (chain, draw, ...).

    ``judged`` are the positions that the gradients are of, ``position`` those of the model's coordinates, and ``own``
    says which of the former a parameter is.
    """

    labels: list[str]
    values: np.ndarray
    own: np.ndarray
    position: np.ndarray
    gradient: np.ndarray
    judged: np.ndarray


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
    judged = judged_positions(stats)
    # Which parameters are coordinates themselves, untransformed: told by their values.
    same = values[0, 0][:, None] == judged[0, 0][None, :]
    own = np.full(len(labels), -1)
    for i, j in zip(*np.nonzero(same), strict=True):
        if np.array_equal(values[..., i], judged[..., j]):
            own[i] = j
    return _Run(labels, values, own, position, gradient, judged)


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
    first = corrected_expectations(run.values, run.judged, run.gradient, run.own)
    centred = (run.values - first.value) ** 2
    second = corrected_expectations(centred, run.judged, run.gradient, run.own, follow=run.values)
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


def verdict(dt: Any, *, probe: Any = None) -> Verdict:
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
    probe
        What :func:`pmm_mcmc.bias_probe` found for this result, if it was asked: a bias that it sees counts as one that
        gradients show, unless more than one transition in a hundred was taken in parts, and where it rules out one of
        0.1 everywhere, and its order holds, a step is not too long.

    Returns
    -------
    Verdict
        ``trusted``, ``sentence``, ``reasons``.

    Raises
    ------
    TypeError
        If ``probe`` is not what :func:`pmm_mcmc.bias_probe` returns.
    ValueError
        If it is one of other parameters, or if draws were not kept: then there is nothing to probe.
    """
    if probe is not None and not (hasattr(probe, "table") and hasattr(probe, "order_holds")):
        raise TypeError(f"probe={probe!r}: must be what pmm_mcmc.bias_probe(dt, step) returns")
    if "posterior_mean" in dt.children:  # draws were not kept
        from pmm_mcmc.diagnostics.moments_summary import moments_verdict

        if probe is not None:
            raise ValueError("probe: cannot be one of this result, whose draws were not kept; leave it out")
        return moments_verdict(dt)
    run = _read(dt)
    return _judge(dt, run, _table(run), probe)


def _judge(dt: Any, run: _Run, table: pd.DataFrame, probe: Any = None) -> Verdict:
    reasons: list[str] = []
    stats = dt["sample_stats"]
    moving = table["sd"].to_numpy() > 0.0  # neither constant nor, somewhere, not finite
    errors, unstable = _errors_of_means(run.values, moving), 0
    if "unstable" in stats and "acceptance_rate" not in stats:
        by_model = int(stats["model_failures"].sum()) if "model_failures" in stats else 0
        unstable, transitions = int(stats["unstable"].sum()), int(stats["steps_per_draw"].sum())
        reasons += unstable_reasons(unstable, errors, transitions, by_model)
    chains = run.values.shape[0]
    degrees = degrees_of_freedom(*run.position.shape[:2])
    if chains > 1:
        reasons += _disagreement(dt, run, moving, errors)
    reasons += identity_reasons(*stein_identity(run.judged, run.gradient), degrees, lambda i: _name(run, i))
    found = _measured(run.labels, table)
    reasons += bias_reasons(found, degrees)
    ruled_out = found.ruled_out and calm(unstable, run.position.shape[0] * run.position.shape[1])
    if probe is not None:
        seen = _probed(run.labels, probe.table, moving)
        if whole(stats):  # else the run has less bias than the probe sees
            reasons += [f"by step halving {reason}" for reason in bias_reasons(seen, PROBE_REPLICAS - 1)]
        ruled_out |= probe.order_holds and seen.ruled_out
    reasons += length_reasons(stats, ruled_out)
    return conclude(reasons, found, "parameter", chains, stats, probed=probe is not None)


def _probed(labels: list[str], table: pd.DataFrame, moving: np.ndarray) -> Measured:
    """Return biases that step halving shows, which are in units of the posterior sds already."""
    if list(table.index) != list(labels):
        raise ValueError(
            f"probe: is one of {len(table)} parameters ({', '.join(map(str, table.index[:3]))}, ...), the result has "
            f"{len(labels)} ({', '.join(labels[:3])}, ...): give the probe of this result"
        )
    columns = (table[name].abs().to_numpy() for name in ("bias", "bias_se", "bias_of_sd", "bias_of_sd_se"))
    of_mean, of_mean_se, of_sd, of_sd_se = columns
    return Measured(labels, of_mean, of_mean_se, np.zeros(len(labels)), of_sd, of_sd_se, moving)


def _measured(labels: list[str], table: pd.DataFrame) -> Measured:
    """Return biases in units of the posterior sds."""
    scale = table["sd_corrected"].where(table["sd_corrected"] > 0.0)
    mean, mean_se, of_sd, of_sd_se = (
        (table[name].abs() / scale).to_numpy() for name in ("bias", "bias_se", "bias_of_sd", "bias_of_sd_se")
    )
    return Measured(
        labels, mean, mean_se, table["unexplained"].to_numpy(), of_sd, of_sd_se, table["sd"].to_numpy() != 0.0
    )


def _disagreement(dt: Any, run: _Run, moving: np.ndarray, errors: np.ndarray) -> list[str]:
    """Say whether chains disagree, or leave a mean too uncertain."""
    r_hat, kind = np.ones(len(run.labels)), "r_hat"
    with np.errstate(all="ignore"):  # of chains that stand still, it is infinite
        if "superchains" in dt["posterior"].attrs:  # many chains, perhaps of few draws
            kind, nested = "nested r_hat", nested_r_hat(dt).reindex(run.labels).to_numpy()
            r_hat[moving] = nested[moving]
        else:
            r_hat[moving] = [float(az.rhat(run.values[..., i])) for i in np.flatnonzero(moving)]
    return disagreement_reasons(run.labels, r_hat, errors, kind)


def _errors_of_means(values: np.ndarray, moving: np.ndarray) -> np.ndarray:
    """Return standard errors of means, in standard deviations: ArviZ's, or the chains' own where they differ by more.

    A few chains give a noisy standard error: theirs counts only where chance among all parameters would not reach it.
    """
    chains, _, p = values.shape
    within, between = np.zeros(p), np.zeros(p)
    for i in np.flatnonzero(moving):
        sd = values[..., i].std()
        within[i] = float(az.mcse(values[..., i], method="mean")) / sd
        if chains > 1:
            between[i] = values[..., i].mean(axis=1).std(ddof=1) / np.sqrt(chains) / sd
    if chains == 1:
        return within
    chance = np.sqrt(chi2.ppf(1.0 - CHANCE / p, chains - 1) / (chains - 1))
    return np.where(between > chance * within, between, within)


def _name(run: _Run, coordinate: int) -> str:
    """Return the parameter that a coordinate is, or that follows it most closely."""
    if (run.own == coordinate).any():
        return run.labels[int(np.flatnonzero(run.own == coordinate)[0])]
    x = run.judged[..., coordinate].ravel()
    flat = run.values.reshape(-1, len(run.labels))
    with np.errstate(all="ignore"):
        correlation = np.nan_to_num(np.abs([np.corrcoef(x, f)[0, 1] for f in flat.T]))
    return run.labels[int(np.argmax(correlation))]

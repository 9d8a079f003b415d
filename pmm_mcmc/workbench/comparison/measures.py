"""The columns of the table: effective draws, errors and cost of a run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import arviz as az
import numpy as np
from scipy.stats import t

from pmm_mcmc.diagnostics.stein import corrected_expectations
from pmm_mcmc.warmup.standard_errors import degrees_of_freedom, spread
from pmm_mcmc.workbench.comparison.distances import floored_wasserstein, stein_discrepancy
from pmm_mcmc.workbench.comparison.reference import Truth
from pmm_mcmc.workbench.comparison.runs import Trace

__all__ = ["AGAINST_TRUTH", "B2_LIMIT", "COLUMNS", "MATTERS", "error_curve", "errors", "gradients_to_limit", "row"]

# Limit of b2 for "converged" in the literature on unadjusted samplers.
B2_LIMIT = 0.01
# Smallest error that matters, in posterior standard deviations, as in the verdict on a single run.
MATTERS = 0.1
# Quantiles of the tails, Stan's.
_TAILS = (0.05, 0.95)

COLUMNS: dict[str, str] = {
    "trusted": "Whether the run is trusted by its own diagnostics, without the reference: pmm_mcmc.verdict for the "
    "samplers of this package, PyMC's warnings (divergences, R-hat, ESS) for NUTS; nothing where there is no run.",
    "ess_bulk_per_1000": "Effective draws of the worst parameter (bulk) for 1,000 gradients, warm-up included.",
    "ess_tail_per_1000": "Effective draws in the tails of the worst parameter for 1,000 gradients, warm-up included.",
    "ess_square_per_1000": "Effective draws for E[x^2] of the worst parameter for 1,000 gradients, warm-up included.",
    "ess_bulk_per_s": "Effective draws of the worst parameter (bulk) for a second of processor time, warm-up "
    "included, compilation not.",
    "ess_tail_per_s": "Effective draws in the tails of the worst parameter for a second of processor time.",
    "ess_square_per_s": "Effective draws for E[x^2] of the worst parameter for a second of processor time.",
    "r_hat": "Largest rank-normalised R-hat over the parameters.",
    "b2_max": "Median over chains of the largest b2 of a parameter, at the end of the run: b2 is the squared error of "
    "a chain's E[x^2] over Var[x^2].",
    "grads_to_b2": "Gradients of a chain, warm-up included, until b2_max is below 0.01 for the first time; infinite "
    "where it never is.",
    "mean_error": "Largest error of a posterior mean, all chains together, in posterior standard deviations.",
    "mean_error_se": "Its standard error; the largest of many errors is beyond one or two of them by chance.",
    "mean_error_noise": "Bound that noise alone exceeds in 5 of 100 runs, for all parameters at once.",
    "mean_error_at": "The parameter whose mean has the largest error.",
    "mean_cv": "As mean_error, with Stein-corrected means (pmm_mcmc.summary), for every sampler.",
    "mean_cv_se": "Its standard error.",
    "sd_error": "Largest relative error of a posterior standard deviation.",
    "sd_error_se": "Its standard error.",
    "sd_error_noise": "Bound that noise alone exceeds in 5 of 100 runs, for all parameters at once.",
    "sd_error_at": "The parameter whose standard deviation has the largest error.",
    "sd_cv": "As sd_error, with Stein-corrected standard deviations.",
    "sd_cv_se": "Its standard error.",
    "wasserstein": "Sliced Wasserstein distance to the reference draws, in posterior standard deviations.",
    "wasserstein_floor": "95 % quantile of the same distance for independent, exact draws, as many as the run has "
    "effective ones.",
    "occupancy": "Share of the draws in each mode, with standard error between chains.",
    "occupancy_error": "Largest difference of these shares from the modes' true weights.",
    "occupancy_se": "Standard error of that share.",
    "occupancy_at": "The mode whose share has the largest error.",
    "ksd": "Kernel Stein discrepancy of up to 1,000 draws spread over the run; blind to the weights of separate modes.",
    "ksd_floor": "Its root mean square for independent, exact draws, as many as the run has effective ones by its "
    "gradients.",
    "unstable": "Transitions after warm-up that were rejected as unstable; divergences of NUTS.",
    "grads_warmup": "Gradients of the warm-up, all chains.",
    "grads_sampling": "Gradients after the warm-up, all chains.",
    "seconds_compile": "Seconds of processor time (all cores together) of compilation in this process.",
    "seconds_warmup": "Seconds of processor time of the warm-up.",
    "seconds_sampling": "Seconds of processor time of sampling.",
    "draws": "Draws of each chain that were kept.",
    "setting": "The tuned parameters.",
    "says": "The run's own verdict.",
    "error": "Why the other columns of this row, or its errors, are empty.",
}
# Columns that stay empty for a sampler that is itself the reference.
AGAINST_TRUTH = tuple(c for c in COLUMNS if c.startswith(("b2_", "grads_to_", "mean_", "sd_", "wasserstein")))


def error_curve(trace: Trace, truth: Truth) -> tuple[np.ndarray, np.ndarray]:
    r"""Return gradients spent by a chain, draw by draw, and the median over chains of its error.

    The error of each chain is that of the running estimates from its draws after warm-up,

    .. math:: b^2_{max}(t) = \max_i \frac{(\frac1t \sum_{s \le t} x_{s,i}^2 - E[x_i^2])^2}{Var[x_i^2]} .

    Gradients are averaged over chains, draw by draw, since chains spend different numbers.
    """
    count = np.arange(1, trace.position.shape[1] + 1)[:, None]
    own = np.array(
        [
            np.max((np.cumsum(x**2, axis=0) / count - truth.second_moment) ** 2 / truth.square_variance, axis=1)
            for x in trace.position
        ]
    )
    return trace.warmup_n_grad.mean() + np.cumsum(trace.n_grad.mean(axis=0)), np.median(own, axis=0)


def gradients_to_limit(spent: np.ndarray, error: np.ndarray, limit: float = B2_LIMIT) -> float:
    """Return the gradients of a chain when its error is first below the limit; infinite if it never is."""
    below = error < limit
    return float(spent[np.argmax(below)]) if below.any() else math.inf


def row(trace: Trace, truth: Truth, labels: list[str], modes: Any, seed: int) -> dict[str, Any]:
    """Measure one run: a value for each of :data:`COLUMNS` that applies to it."""
    ess = _effective(trace.position)
    spent, error = error_curve(trace, truth)
    seconds = trace.seconds.warmup + trace.seconds.sampling
    found: dict[str, Any] = {"trusted": trace.ran.trusted}
    found |= {f"ess_{kind}_per_1000": 1000.0 * n / trace.spent for kind, n in ess.items()}
    found |= {f"ess_{kind}_per_s": n / seconds for kind, n in ess.items()}
    found |= {"r_hat": _r_hat(trace.position), "b2_max": float(error[-1])}
    found["grads_to_b2"] = gradients_to_limit(spent, error)
    found |= errors(trace, truth, labels)
    rng = np.random.default_rng(seed)
    if truth.draws is not None:
        distance = floored_wasserstein(trace.position / truth.sd, truth.draws / truth.sd, ess["bulk"], rng)
        found |= {"wasserstein": distance.value, "wasserstein_floor": distance.floor}
    if modes is not None:
        found |= _occupancy(trace.position, modes)
    if trace.gradient is not None:
        # The discrepancy depends on gradients alone: it varies as they do, and not with slow moves between modes.
        effective = float(np.min(_each(trace.gradient, lambda g: az.ess(g, method="mean"))))
        distance = stein_discrepancy(trace.position / truth.sd, trace.gradient * truth.sd, effective)
        found |= {"ksd": distance.value, "ksd_floor": distance.floor}
    return found | {
        "unstable": trace.unstable,
        "grads_warmup": int(trace.warmup_n_grad.sum()),
        "grads_sampling": int(trace.n_grad.sum()),
        "seconds_compile": trace.seconds.compile,
        "seconds_warmup": trace.seconds.warmup,
        "seconds_sampling": trace.seconds.sampling,
        "draws": trace.position.shape[1],
        "setting": trace.setting,
        "says": trace.ran.sentence,
    }


def _each(position: np.ndarray, statistic: Callable[[np.ndarray], Any]) -> np.ndarray:
    with np.errstate(all="ignore"):  # a constant coordinate has no effective draws and no R-hat
        return np.array([float(statistic(position[..., i])) for i in range(position.shape[-1])])


def _effective(position: np.ndarray) -> dict[str, float]:
    """Return effective draws of the worst parameter, of each kind; 0 if a parameter is constant."""
    kinds = {
        "bulk": lambda x: az.ess(x, method="bulk"),
        "tail": lambda x: az.ess(x, method="tail", prob=_TAILS),
        "square": lambda x: az.ess(x**2, method="mean"),
    }
    moving = position.std(axis=(0, 1)) > 0
    return {kind: float(np.min(_each(position, f))) if moving.all() else 0.0 for kind, f in kinds.items()}


def _r_hat(position: np.ndarray) -> float:
    found = _each(position, az.rhat)
    return float(np.max(np.where(np.isfinite(found), found, np.inf)))


def errors(trace: Trace, truth: Truth, labels: list[str]) -> dict[str, Any]:
    """Return the largest errors of means and standard deviations, raw and corrected, of all chains together."""
    x, sd = trace.position, truth.sd
    chains, draws, d = x.shape
    square = (x - truth.mean) ** 2
    # Noise alone puts the largest error of all parameters beyond this in 5 % of runs.
    noise = t.ppf(1.0 - 0.5 * 0.05 / d, degrees_of_freedom(chains, draws))
    # The spread about the true mean: its square root is a standard deviation, with the delta method for the error.
    estimates = {
        "mean_error": (x.mean(axis=(0, 1)), spread(x)),
        "sd_error": (square.mean(axis=(0, 1)), spread(square)),
    }
    if trace.gradient is not None:
        z, slope = x if trace.noncentred is None else trace.noncentred, trace.gradient
        own = np.where((z == x).all(axis=(0, 1)), np.arange(d), -1)
        first = corrected_expectations(x, z, slope, own)
        second = corrected_expectations(square, z, slope, own, follow=x)
        estimates |= {"mean_cv": (first.value, first.se), "sd_cv": (second.value, second.se)}
    found: dict[str, Any] = {}
    for name, (value, error) in estimates.items():
        if name.startswith("mean"):
            off, se = (value - truth.mean) / sd, np.hypot(error, truth.error) / sd
        else:
            root = np.sqrt(np.maximum(value, 0.0))
            off, se = root / sd - 1.0, np.hypot(error / (2.0 * np.maximum(root, 1e-300)), truth.error_of_sd) / sd
        worst = int(np.argmax(np.abs(off)))
        found |= {name: float(np.abs(off[worst])), f"{name}_se": float(se[worst])}
        if name.endswith("error"):
            found |= {f"{name}_noise": float(noise * se[worst]), f"{name}_at": labels[worst]}
    return found


def _occupancy(position: np.ndarray, modes: Any) -> dict[str, Any]:
    which = np.asarray(modes.label(position))
    inside = np.stack([which == i for i in range(len(modes.names))], axis=-1).astype(float)
    part, error = inside.mean(axis=(0, 1)), spread(inside)
    worst = int(np.argmax(np.abs(part - modes.weights)))
    told = ", ".join(
        f"{name} {p:.2f} ± {e:.2f} (true {w:.2f})"
        for name, p, e, w in zip(modes.names, part, error, modes.weights, strict=True)
    )
    return {
        "occupancy": told,
        "occupancy_error": float(abs(part[worst] - modes.weights[worst])),
        "occupancy_se": float(error[worst]),
        "occupancy_at": modes.names[worst],
    }

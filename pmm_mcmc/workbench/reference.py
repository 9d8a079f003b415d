"""The reference of a comparison (a target's moments, a user's draws or a long, trusted run) and errors against it."""

from __future__ import annotations

from typing import Any, NamedTuple

import arviz as az
import numpy as np
from scipy.stats import t

from pmm_mcmc.api import NOT_TRUSTED, degrees_of_freedom, standard_error, verdict
from pmm_mcmc.workbench.comparison import PEERS, Run, run, unconstrained_draws

__all__ = ["COLUMNS", "Truth", "row", "truth_for", "truth_of_draws"]

COLUMNS: dict[str, str] = {
    "trusted": "Whether pmm.verdict trusts the run, without the reference.",
    "gradients": "Gradients of all chains, warm-up included.",
    "per_draw": "Gradients for an effective draw of the worst parameter (bulk), warm-up included.",
    "mean_error": "Largest error of a posterior mean, in posterior standard deviations.",
    "mean_noise": "Bound that noise alone exceeds in 5 of 100 runs, for all parameters at once.",
    "mean_at": "The parameter whose mean has the largest error.",
    "sd_error": "Largest relative error of a posterior standard deviation.",
    "sd_noise": "Bound that noise alone exceeds in 5 of 100 runs, for all parameters at once.",
    "sd_at": "The parameter whose standard deviation has the largest error.",
    "says": "What pmm.verdict says of the run, or why there is none.",
}
# Budget of a reference run, in budgets of a sampler.
_LONGER = 5


class Truth(NamedTuple):
    """Mean and standard deviation of each unconstrained coordinate with their standard errors: ``(d,)`` each."""

    mean: np.ndarray
    sd: np.ndarray
    error: np.ndarray
    error_of_sd: np.ndarray


def truth_for(target: Any, model: Any, reference: Any, n_grad: int, chains: int, seed: int) -> tuple[Truth | None, str]:
    """Return the reference, or None if nothing can be trusted to be one, and a sentence about it."""
    if reference is None and target is not None:
        moments = target.reference
        error = np.zeros_like(moments.mean) if moments.error is None else moments.error
        # A user's target may lack the errors of its second moments.
        return Truth(moments.mean, moments.sd, error, np.nan_to_num(moments.error_of_sd)), moments.source
    if reference is None or (isinstance(reference, str) and reference == "nuts"):
        return _of_a_long_run(model, n_grad, chains, seed + 1)
    if "posterior" not in getattr(reference, "children", ()):
        raise TypeError(
            f"reference={reference!r}: must be 'nuts' for a long run, a result of pm.sample or pmm.sample, or None"
        )
    judgement = verdict(reference)
    if judgement.state == NOT_TRUSTED:
        return None, f"None, for the draws that were given are not to be trusted. {judgement.sentence}"
    position = unconstrained_draws(reference, model)
    return truth_of_draws(position), f"The draws that were given: {_size(position)}."


def _of_a_long_run(model: Any, n_grad: int, chains: int, seed: int) -> tuple[Truth | None, str]:
    """Run NUTS and, if it is not trusted, ``pmm.sample``; return the first that is trusted."""
    refused = ""
    for sampler in ("nuts", "default"):
        try:
            long = run(sampler, model, _LONGER * n_grad, chains, seed)
        except Exception as error:  # the other may not fail
            refused += f" {PEERS[sampler]} is none: {error}."
            continue
        if long.verdict.trusted:
            source = f"A run of {PEERS[sampler]} of {_LONGER} times the budget: {_size(long.position)}."
            return truth_of_draws(long.position), source + refused
        refused += f" {PEERS[sampler]} is none: {long.verdict.sentence}"
    return None, f"None, so that no errors are known.{refused}"


def _size(position: np.ndarray) -> str:
    return f"{position.shape[1]:,} draws of each of {position.shape[0]} chains"


def truth_of_draws(position: np.ndarray) -> Truth:
    """Return a reference from unconstrained draws ``(chain, draw, d)``.

    Raises
    ------
    ValueError
        If there are too few draws, a draw is not finite, or a coordinate is constant.
    """
    chains, draws, _ = position.shape
    if chains * draws < 100:
        raise ValueError(f"reference: {chains} x {draws} draws are too few; bring at least 100")
    if not np.all(np.isfinite(position)):
        raise ValueError("reference: some draws are not finite on the unconstrained scale; leave them out")
    mean = position.mean(axis=(0, 1))
    sd = position.std(axis=(0, 1))
    if not np.all(sd > 0):
        raise ValueError(f"reference: coordinate {int(np.argmin(sd))} is the same in all draws; bring draws that vary")
    return Truth(mean, sd, standard_error(position), standard_error((position - mean) ** 2) / (2.0 * sd))


def row(run: Run, truth: Truth | None, labels: list[str]) -> dict[str, Any]:
    """Return the values of :data:`COLUMNS` of a run; those of errors only where there is a reference."""
    x = run.position
    chains, draws, d = x.shape
    with np.errstate(all="ignore"):  # a constant coordinate has no effective draws
        effective = min(float(az.ess(x[..., i], method="bulk")) for i in range(d))
    values = {
        "trusted": run.verdict.trusted,
        "gradients": run.n_grad,
        "per_draw": run.n_grad / effective if x.std(axis=(0, 1)).all() else np.inf,
        "says": run.verdict.sentence,
    }
    if truth is None:
        return values
    # The spread about the true mean: its square root is a standard deviation, with the delta method for the error.
    square = (x - truth.mean) ** 2
    sd = np.sqrt(square.mean(axis=(0, 1)))
    sd_se = standard_error(square) / (2.0 * np.maximum(sd, 1e-300))
    # Noise alone puts the largest error of all parameters beyond this many standard errors in 5 % of runs.
    limit = t.ppf(1.0 - 0.5 * 0.05 / d, degrees_of_freedom(chains, draws))
    for name, error, se in (
        ("mean", x.mean(axis=(0, 1)) - truth.mean, np.hypot(standard_error(x), truth.error)),
        ("sd", sd - truth.sd, np.hypot(sd_se, truth.error_of_sd)),
    ):
        size = np.abs(error) / truth.sd
        worst = int(np.argmax(size))
        values[f"{name}_error"] = float(size[worst])
        values[f"{name}_noise"] = float(limit * se[worst] / truth.sd[worst])
        values[f"{name}_at"] = labels[worst]
    return values

"""What a verdict is made of: limits, and the reasons not to trust a run, or to leave it undecided.

Biases and their errors are in posterior standard deviations throughout, NaN where they are not measurable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import f as f_distribution
from scipy.stats import poisson

from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.statement import Reason, Verdict, beside, concluded
from pmm_mcmc.warmup.calibration import CALIBRATION as WARMUP
from pmm_mcmc.warmup.standard_errors import largest_t

__all__ = [
    "Measured",
    "bias_reasons",
    "calm",
    "conclude",
    "disagreement_reasons",
    "divergence_reasons",
    "identity_holds",
    "identity_reasons",
    "length_reasons",
    "shorter",
    "size_reasons",
    "unstable_reasons",
    "walled",
    "whole",
]

_MORE = "draw more"


class Measured(NamedTuple):
    """Sizes of biases and their standard errors, ``(p,)`` each, of means and of standard deviations.

    ``left`` is the part of the bias of a mean that the correction is expected to have left, ``moving`` says what is not
    a constant, ``error`` is the standard error of the corrected mean with what the correction has left.
    """

    labels: Sequence[str]
    of_mean: np.ndarray
    of_mean_se: np.ndarray
    left: np.ndarray
    of_sd: np.ndarray
    of_sd_se: np.ndarray
    moving: np.ndarray
    error: np.ndarray

    @property
    def bounds(self) -> np.ndarray:
        """Two standard errors beyond the bias of a mean, with what the correction has left of it."""
        sure = np.maximum(self.of_mean - 2.0 * self.of_mean_se, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):  # nothing was corrected, and all is left
            return self.of_mean + 2.0 * self.of_mean_se + self.left / (1.0 - self.left) * sure

    @property
    def ruled_out(self) -> bool:
        """Whether every bias is seen to be small."""
        small = (self.bounds < CALIBRATION.ruled_out) & (self.of_sd + 2.0 * self.of_sd_se < CALIBRATION.ruled_out)
        return bool(np.all(small | ~self.moving))

    @property
    def known(self) -> np.ndarray:
        """Two standard errors of each corrected mean, NaN where the bias is not measurable or nothing varies."""
        return np.where(np.isfinite(self.of_mean) & self.moving, 2.0 * self.error, np.nan)


def shorter(stats: Any) -> str:
    """Say what to do about a step that is too long, with the figure where it is known."""
    to = ""
    if "step_size" in stats and np.isfinite(stats["step_size"].values).any():
        now = float(np.nanmin(stats["step_size"].values))
        to = f" to {0.5 * now:.2g}"
    return f"halve step_size{to}, or reparametrise"


def unstable_reasons(
    unstable: int, error: np.ndarray, transitions: int, by_model: int, where: str = "", remedy: str = ""
) -> list[Reason]:
    """Say whether more transitions were unstable than are harmless; one event in a short run says nothing.

    What a chain was kept from it would have left after an autocorrelation time.  So about the part of the posterior is
    missing that this is of the effective draws, of which the slowest parameter has the fewest.

    Parameters
    ----------
    unstable, transitions
        How many were, of how many.
    error : (p,)
        Standard errors of means in posterior standard deviations, one over the root of the effective draws each; zero
        or NaN for a constant.
    by_model
        How many of the unstable ones were due to the model.
    where, remedy
        Words: where most of them were; what to do if they are not due to the model.
    """
    effective = min((1.0 / e**2 for e in error if e > 0.0), default=float(transitions))
    harmless = int(poisson.isf(0.05, CALIBRATION.unstable_rate * effective))
    if unstable <= harmless:
        return []
    words = f"{unstable} of {transitions} transitions were unstable{where}, limit {harmless}"
    if 2 * by_model > unstable:
        remedy = (
            "the model is not finite there, and a shorter step will not help: look at model.debug(), and bound "
            "parameters by their priors"
        )
    return [Reason("unstable", words, remedy, value=float(unstable), limit=float(harmless))]


def walled(stats: Any, draws: int) -> bool:
    """Whether so many draws met places where the model is not finite that it may end at a wall."""
    return "model_failures" in stats and int(stats["model_failures"].sum()) > poisson.isf(
        0.05, CALIBRATION.unstable_rate * draws
    )


def divergence_reasons(stats: Any) -> list[Reason]:
    """Say how many transitions of NUTS diverged, if any did."""
    count = int(stats["diverging"].sum()) if "diverging" in stats else 0
    if not count:
        return []
    words = f"{count} of {stats['diverging'].size} transitions diverged"
    return [Reason("divergences", words, "raise target_accept, or reparametrise", value=float(count), limit=0.0)]


def calm(unstable: int, draws: int) -> bool:
    """Whether so few transitions were unstable that draws may rule out the harm of a long step."""
    return bool(poisson.sf(unstable - 1, CALIBRATION.calm_rate * draws) >= 0.05)


def whole(stats: Any) -> bool:
    """Whether so few transitions were taken in parts that a run has the bias of whole steps."""
    return "refined" not in stats or bool(
        stats["refined"].sum() <= CALIBRATION.refined_share * stats["steps_per_draw"].sum()
    )


def size_reasons(chains: int, draws: int) -> list[Reason]:
    """Say whether there are too few draws to judge, or too few chains to compare."""
    fewest, of_chain = CALIBRATION.fewest, CALIBRATION.fewest_of_chain
    if draws < of_chain or chains * draws < fewest:
        few = f"{chains} x {draws} draws are too few to judge, limit {fewest} and {of_chain} of each chain"
        return [Reason("few_draws", few, _MORE, value=float(chains * draws), limit=float(fewest))]
    if chains == 1:
        return [
            Reason("one_chain", "one chain cannot be compared with others", "run four chains", value=1.0, limit=2.0)
        ]
    return []


def disagreement_reasons(
    labels: Sequence[str], r_hat: np.ndarray, apart: np.ndarray, kind: str = "r_hat"
) -> list[Reason]:
    """Say whether chains disagree or, where they agree, leave a mean too uncertain.

    Parameters
    ----------
    labels
        Of the parameters.
    r_hat, apart : (p,)
        That of each, and the standard error of its mean in posterior standard deviations; NaN for a constant.
    kind
        What the first of them is called.
    """
    for code, values, limit, digits in (("r_hat", r_hat, CALIBRATION.r_hat, 3), ("mcse", apart, CALIBRATION.mcse, 2)):
        if (values > limit).any():
            worst = int(np.nanargmax(values))
            value, against = beside(values[worst], limit, digits)
            words = f"{kind} of {labels[worst]} is {value}, limit {against}"
            if code == "mcse":
                words = f"the mean of {labels[worst]} is known to {value} posterior sd only, limit {against}"
            return [Reason(code, words, _MORE, labels[worst], float(values[worst]), limit)]
    return []


def _fails(
    excess: np.ndarray, z: np.ndarray, mean_square: float, degrees: int, times: float = 1.0
) -> tuple[np.ndarray, bool]:
    """Where the Stein identity fails, by more than so many times what chance may do, and whether it does throughout."""
    off = (np.abs(excess) > CALIBRATION.identity_excess) & (
        np.abs(z) > times * max(WARMUP.identity_z, largest_t(len(z), degrees))
    )
    # Chance alone makes the z-scores' own mean square about 1.
    chance = f_distribution.ppf(1.0 - WARMUP.chance, max(len(z), 1), degrees)
    with np.errstate(over="ignore"):  # of a coordinate that does not move
        throughout = mean_square > CALIBRATION.identity_mean_square and float(np.mean(z**2)) > max(
            WARMUP.identity_z, chance
        )
    return off, bool(throughout)


def identity_holds(
    excess: np.ndarray, z: np.ndarray, mean_square: float, degrees: int, moving: np.ndarray | bool = True
) -> bool:
    """Whether Stein's identity, if it fails, does so as it does where steps are too long.

    Coordinates that do not move have none.

    Where the density has an edge or a jump it does not hold of the posterior itself, and nothing can be corrected by
    it: what is missing at an edge is missing in every draw.
    """
    off, _ = _fails(excess, z, mean_square, degrees, CALIBRATION.edge_z)
    return not bool((off & moving & ((excess < 0.0) | (excess > CALIBRATION.widest))).any())


def identity_reasons(
    excess: np.ndarray,
    z: np.ndarray,
    mean_square: float,
    degrees: int,
    name: Callable[[int], str],
    remedy: str = "",
    moving: np.ndarray | bool = True,
) -> list[Reason]:
    """Say whether the Stein identity fails, for a coordinate or throughout."""
    off, throughout = _fails(excess, z, mean_square, degrees)
    if not (off.any() or throughout):
        return []
    worst = int(np.argmax(np.where(off, np.abs(excess), 0.0))) if off.any() else int(np.argmax(np.abs(excess)))
    limit = 1.0 + np.copysign(CALIBRATION.identity_excess, excess[worst])
    value, against = beside(1.0 + excess[worst], limit, 3 if off.any() else 2)
    parameter = name(worst)
    words = f"E[x dF/dx] of {parameter} is {value}, limit {against}"
    if not off.any():
        words = f"E[x dF/dx] is {value} for {parameter} and off 1 by {np.sqrt(2.0 * mean_square):.2f} on average, " + (
            f"limit {np.sqrt(2.0 * CALIBRATION.identity_mean_square):.2f}"
        )
    elif not identity_holds(excess, z, mean_square, degrees, moving):
        remedy = (
            "the density may have an edge or a jump there, where no Langevin sampler is right: bound a parameter by "
            "its prior, and let no term jump; if it has none, draw more"
        )
    return [Reason("identity", words, remedy, parameter, float(1.0 + excess[worst]), float(limit))]


def bias_reasons(found: Measured, degrees: int, remedy: str = "") -> list[Reason]:
    """Say which bias is too large, beyond what chance would show in so many parameters."""
    reasons = []
    for what, size, error, left in (
        ("mean", found.of_mean, found.of_mean_se, found.left),
        ("sd", found.of_sd, found.of_sd_se, np.zeros_like(found.left)),
    ):
        with np.errstate(divide="ignore"):  # nothing was corrected, and all is left
            whole = size / (1.0 - left)
        large = np.where((whole > CALIBRATION.bias) & (size > largest_t(len(size), degrees) * error), whole, 0.0)
        if large.any():
            worst = int(large.argmax())
            value, limit = beside(100.0 * large[worst], 100.0 * CALIBRATION.bias, 1)
            words = f"the {what} of {found.labels[worst]} is off by {value} % of a posterior sd, limit {limit} %"
            reasons.append(
                Reason(f"bias_of_{what}", words, remedy, found.labels[worst], float(large[worst]), CALIBRATION.bias)
            )
    return reasons


def length_reasons(stats: Any, ruled_out: bool) -> list[Reason]:
    """Return the reason, if any, to expect harm of the step in use, unless the draws rule it out."""
    expected = float(np.max(stats["expected_bias"].values)) if "expected_bias" in stats else np.nan
    if not expected > CALIBRATION.expected_bias or (ruled_out and np.isfinite(expected)):
        return []
    tuned = "halving_cost" in stats and bool(np.isfinite(stats["halving_cost"].values).all())
    remedy = "lower target_bias" if tuned else "leave step_size out"
    if np.isinf(expected):
        words = "steps of this size are not stable where the posterior is steepest"
        return [Reason("step_unstable", words, remedy)]
    value, limit = beside(100.0 * expected, 100.0 * CALIBRATION.expected_bias, 0)
    words = (
        f"steps of this size may bias means by {value} % of a posterior sd, limit {limit} %, and the draws do not rule "
        "out that they do harm"
    )
    return [Reason("step_long", words, f"{remedy}, or draw more", value=expected, limit=CALIBRATION.expected_bias)]


def conclude(
    reasons: list[Reason], found: Measured, stats: Any, kind: str = "parameters", probed: bool = False
) -> Verdict:
    """Put the reasons together or, where there are none, say how well the means are known.

    Parameters
    ----------
    reasons
        Not to trust the run, or to leave it undecided.
    found
        Biases.
    stats
        Statistics of the draws.
    kind
        What the biases are of.
    probed
        Whether the step was halved, which says of a step that was not tuned whether it is too long.
    """
    known = found.known
    varying, measured = int(found.moving.sum()), int(np.isfinite(known).sum())
    if not measured:
        if not reasons and varying:
            words = f"the bias could not be measured for any of the {kind}"
            reasons = [Reason("unmeasured", words, "compare with half the step size: pmm.workbench.bias_probe does")]
        return concluded(reasons, "nothing varies.")
    worst = int(np.nanargmax(known))
    limit = 2.0 * CALIBRATION.mcse  # two standard errors of a corrected mean: as much as those of a plain mean may be
    if known[worst] > limit:
        value, against = beside(100.0 * known[worst], 100.0 * limit, 0)
        label = found.labels[worst]
        words = f"the corrected mean of {label} is known to {value} % of a posterior sd only, limit {against} %"
        reasons = [*reasons, Reason("bound", words, _MORE, label, float(known[worst]), limit)]
    within = f"within {max(1.0, np.ceil(100.0 * known[worst])):.0f} % of a posterior sd, with 95 % confidence each"
    good = f"all corrected means are {within}."
    if measured < varying:
        good = f"corrected means are {within}; the bias of {varying - measured} of {varying} {kind} is not measurable."
    if not probed and not found.ruled_out and _unseen(stats):
        good += " No warm-up has seen whether the step is too long: pmm.workbench.bias_probe can."
    return concluded(reasons, good)


def _unseen(stats: Any) -> bool:
    """Whether a step was never compared with the curvature of the posterior."""
    return "expected_bias" in stats and bool(np.isnan(stats["expected_bias"].values).any())

"""The reasons not to trust a run, or to leave it undecided.

Biases and their errors are in posterior standard deviations, NaN where they are not measurable.  Limits are in
:mod:`pmm_mcmc.diagnostics.calibration`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.stats import f as f_distribution
from scipy.stats import poisson

from pmm_mcmc.diagnostics.breaks import Break
from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.measured import Measured
from pmm_mcmc.diagnostics.statement import MORE, Reason, Verdict, beside, concluded
from pmm_mcmc.warmup.calibration import CALIBRATION as WARMUP
from pmm_mcmc.warmup.standard_errors import largest_t
from pmm_mcmc.warmup.stein_identity import Identity

__all__ = [
    "bias_reasons",
    "break_reasons",
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
]


def shorter(stats: Any) -> str:
    """Return the remedy for a step that is too long, with the step size to try where one is known."""
    to = ""
    if "step_size" in stats and np.isfinite(stats["step_size"].values).any():
        now = float(np.nanmin(stats["step_size"].values))
        to = f" to {0.5 * now:.2g}"
    return f"halve step_size{to}, or reparametrise"


def unstable_reasons(
    unstable: int, error: np.ndarray, transitions: int, by_model: int, where: str = "", remedy: str = ""
) -> list[Reason]:
    """Return a reason if more transitions were unstable than are harmless.

    An unstable transition keeps a chain out of a region in which it would have stayed for about an autocorrelation
    time, that is for one effective draw.  So the share of the posterior that is missing is about the number of unstable
    transitions over that of effective draws; the slowest parameter has the fewest of these.  The limit allows for
    chance, so that one event in a short run is no reason.

    Parameters
    ----------
    unstable, transitions
        Number of unstable transitions, and of all.
    error : (p,)
        Standard errors of means in posterior standard deviations, one over the root of the effective draws each; zero
        or NaN for a constant.
    by_model
        Number of unstable transitions that are due to the model.
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


def break_reasons(found: Break | None, parameter: str, value: float) -> list[Reason]:
    """Return a reason if the log density has a jump or a wall between draws.

    ``parameter`` and ``value`` are its place on the scale of the model; ``value`` is NaN where that is not known.
    """
    if found is None:
        return []
    where = f"along {parameter}"
    if np.isfinite(value):
        where = f"where {parameter} is near {value:.3g}" if found.fixed else f"{where}, as where it is near {value:.3g}"
    if found.kind == "wall":
        remedy = f"give {parameter} a prior that ends there, such as pm.Truncated, in place of the wall"
        return [Reason("wall", f"the density ends at a wall {where}", remedy, parameter)]
    remedy = (
        "no gradient shows a jump: put a smooth step in its place (pm.math.sigmoid), sum or integrate it out, or "
        f"sample {parameter} with a method that needs no gradient (pm.Slice)"
    )
    words = f"the log density jumps by {found.size:.2g} {where}"
    return [Reason("jump", words, remedy, parameter, found.size, CALIBRATION.jump)]


def walled(stats: Any, draws: int) -> bool:
    """Return whether so many transitions met values that are not finite that the density may end at a wall."""
    limit = poisson.isf(0.05, CALIBRATION.unstable_rate * draws)
    return "model_failures" in stats and int(stats["model_failures"].sum()) > limit


def divergence_reasons(stats: Any) -> list[Reason]:
    """Return a reason if transitions of NUTS diverged."""
    count = int(stats["diverging"].sum()) if "diverging" in stats else 0
    if not count:
        return []
    words = f"{count} of {stats['diverging'].size} transitions diverged"
    return [Reason("divergences", words, "raise target_accept, or reparametrise", value=float(count), limit=0.0)]


def calm(unstable: int, draws: int) -> bool:
    """Return whether so few transitions were unstable that the draws can show that a long step does no harm."""
    return bool(poisson.sf(unstable - 1, CALIBRATION.calm_rate * draws) >= 0.05)


def size_reasons(chains: int, draws: int) -> list[Reason]:
    """Return a reason if there are too few draws to judge, or one chain alone."""
    fewest, of_chain = CALIBRATION.fewest, CALIBRATION.fewest_of_chain
    if draws < of_chain or chains * draws < fewest:
        few = f"{chains} x {draws} draws are too few to judge, limit {fewest} and {of_chain} of each chain"
        return [Reason("few_draws", few, MORE, value=float(chains * draws), limit=float(fewest))]
    if chains == 1:
        return [
            Reason("one_chain", "one chain cannot be compared with others", "run four chains", value=1.0, limit=2.0)
        ]
    return []


def disagreement_reasons(
    labels: Sequence[str], r_hat: np.ndarray, error: np.ndarray, kind: str = "r_hat"
) -> list[Reason]:
    """Return a reason if chains disagree or, where they agree, if a mean is too uncertain.

    Parameters
    ----------
    labels
        Names of the parameters.
    r_hat, error : (p,)
        r_hat, and the standard error of the mean in posterior standard deviations; NaN for a constant.
    kind
        Name of the first in words, "r_hat" or "nested r_hat".
    """
    for code, values, limit, digits in (("r_hat", r_hat, CALIBRATION.r_hat, 3), ("mcse", error, CALIBRATION.mcse, 2)):
        if (values > limit).any():
            worst = int(np.nanargmax(values))
            value, against = beside(values[worst], limit, digits)
            words = f"{kind} of {labels[worst]} is {value}, limit {against}"
            if code == "mcse":
                words = f"the mean of {labels[worst]} is known to {value} posterior sd only, limit {against}"
            return [Reason(code, words, MORE, labels[worst], float(values[worst]), limit)]
    return []


def _off(identity: Identity, degrees: int, times: float = 1.0) -> np.ndarray:
    """Return where the Stein identity fails, by ``times`` the limit of chance or more.

    ``degrees`` are the degrees of freedom of the standard errors in ``z``.
    """
    sure = times * max(WARMUP.identity_z, largest_t(len(identity.z), degrees))
    return (np.abs(identity.excess) > CALIBRATION.identity_excess) & (np.abs(identity.z) > sure)


def _off_on_average(identity: Identity, degrees: int) -> bool:
    """Return whether the Stein identity fails on average over all coordinates."""
    # By chance the mean square of the z-scores is about 1; collinear coordinates have the same z-score.
    chance = f_distribution.ppf(1.0 - WARMUP.chance, identity.independent, degrees)
    with np.errstate(over="ignore"):  # a coordinate that does not move
        large = float(np.mean(identity.z**2)) > max(WARMUP.identity_z, chance)
    return bool(identity.mean_square > CALIBRATION.identity_mean_square and large)


def identity_holds(identity: Identity, degrees: int, moving: np.ndarray | bool = True) -> bool:
    """Return whether the Stein identity can correct the draws: it holds, or fails as it does for too long a step.

    At an edge or a jump of the density the identity fails for the posterior itself, in either direction and by far, and
    nothing can be corrected by it.  Coordinates that do not move are left out.
    """
    excess, off = identity.excess, _off(identity, degrees, CALIBRATION.edge_z)
    return not bool((off & moving & ((excess < 0.0) | (excess > CALIBRATION.widest))).any())


def identity_reasons(
    identity: Identity,
    degrees: int,
    name: Callable[[int], str],
    remedy: str = "",
    moving: np.ndarray | bool = True,
    together: Identity | None = None,
) -> list[Reason]:
    """Return a reason if the Stein identity fails, in one coordinate or on average over all.

    ``together`` is that of whitened coordinates, for the average; by default the same.
    """
    off = _off(identity, degrees)
    one = bool(off.any())
    shown = identity if one or together is None else together
    if not (one or _off_on_average(shown, degrees)):
        return []
    excess = shown.excess
    worst = int(np.argmax(np.where(off, np.abs(excess), 0.0))) if one else int(np.argmax(np.abs(excess)))
    limit = 1.0 + np.copysign(CALIBRATION.identity_excess, excess[worst])
    value, against = beside(1.0 + excess[worst], limit, 3 if one else 2)
    parameter = name(worst)
    if (excess[worst] if one else excess.mean()) < 0.0:  # too long a step widens
        remedy = "long steps widen, and this is too narrow: draw more, or reparametrise"
    words = f"E[x dF/dx] of {parameter} is {value}, limit {against}"
    if not one:
        symbols = "E[x dF/dx]" if together is None else "E[y dF/dy] of whitened coordinates y"
        average, most = np.sqrt(2.0 * shown.mean_square), np.sqrt(2.0 * CALIBRATION.identity_mean_square)
        words = f"{symbols} is {value} for {parameter} and off 1 by {average:.2f} on average, limit {most:.2f}"
    elif not identity_holds(identity, degrees, moving):
        remedy = (
            "the density may have an edge or a jump there, where no Langevin sampler is right: bound a parameter by "
            "its prior, and let no term jump; if it has none, draw more"
        )
    return [Reason("identity", words, remedy, parameter, float(1.0 + excess[worst]), float(limit))]


def bias_reasons(measured: Measured, degrees: int, remedy: str = "") -> list[Reason]:
    """Return a reason for the largest bias of a mean, and of a standard deviation, that is too large beyond chance."""
    reasons = []
    for what, size, error, left in (
        ("mean", measured.of_mean, measured.of_mean_se, measured.left),
        ("sd", measured.of_sd, measured.of_sd_se, np.zeros_like(measured.left)),
    ):
        with np.errstate(divide="ignore"):  # left = 1: nothing was corrected
            full = size / (1.0 - left)
        large = np.where((full > CALIBRATION.bias) & (size > largest_t(len(size), degrees) * error), full, 0.0)
        if large.any():
            worst = int(large.argmax())
            value, limit = beside(100.0 * large[worst], 100.0 * CALIBRATION.bias, 1)
            words = f"the {what} of {measured.labels[worst]} is off by {value} % of a posterior sd, limit {limit} %"
            reasons.append(
                Reason(f"bias_of_{what}", words, remedy, measured.labels[worst], float(large[worst]), CALIBRATION.bias)
            )
    return reasons


def length_reasons(stats: Any, ruled_out: bool) -> list[Reason]:
    """Return a reason if the step is expected to bias means, unless the draws rule that out."""
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
    reasons: list[Reason],
    measured: Measured,
    stats: Any,
    kind: str = "parameters",
    note: str = "",
) -> Verdict:
    """Return the verdict: the reasons or, if there are none, how well the means are known.

    Parameters
    ----------
    reasons
        All that were found so far.
    measured
        Biases.
    stats
        Statistics of the draws.
    kind
        Noun for what the biases are of.
    note
        A sentence to add where there are no reasons.
    """
    known = measured.known
    varying, count = int(measured.moving.sum()), int(np.isfinite(known).sum())
    if not count:
        if not reasons and varying:
            words = f"the bias could not be measured for any of the {kind}"
            reasons = [Reason("unmeasured", words, "sample with adjusted=True")]
        return concluded(reasons, "nothing varies.")
    worst = int(np.nanargmax(known))
    limit = 2.0 * CALIBRATION.mcse  # two standard errors of a corrected mean: as much as those of a plain mean may be
    if known[worst] > limit:
        value, against = beside(100.0 * known[worst], 100.0 * limit, 0)
        label = measured.labels[worst]
        words = f"the corrected mean of {label} is known to {value} % of a posterior sd only, limit {against} %"
        reasons = [*reasons, Reason("bound", words, MORE, label, float(known[worst]), limit)]
    within = f"within {max(1.0, np.ceil(100.0 * known[worst])):.0f} % of a posterior sd, with 95 % confidence each"
    good = f"all corrected means are {within}."
    if count < varying:
        unknown = np.flatnonzero(measured.moving & ~np.isfinite(known))
        least = unknown[np.argsort(-np.nan_to_num(measured.error[unknown], nan=np.inf), kind="stable")]
        which = _few([measured.labels[i] for i in least])
        good = f"corrected means are {within}; the bias of {which} is not measurable: sample with adjusted=True."
    if not measured.ruled_out and _unseen(stats):
        good += " No warm-up has seen whether the step is too long: sample with adjusted=True."
    return concluded(reasons, good + note)


def _few(labels: list[str]) -> str:
    """Return two names and the number of the others, or all of up to three."""
    if len(labels) > 3:
        labels = [*labels[:2], f"{len(labels) - 2} more"]
    *first, last = labels
    return f"{', '.join(first)} and {last}" if first else last


def _unseen(stats: Any) -> bool:
    """Return whether the step was never compared with the curvature of the posterior."""
    return "expected_bias" in stats and bool(np.isnan(stats["expected_bias"].values).any())

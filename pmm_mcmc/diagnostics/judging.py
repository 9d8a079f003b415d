"""What a verdict is made of: limits, reasons not to trust a run, and the sentence where there are none.

Biases and their errors are in posterior standard deviations throughout, NaN where they are not measurable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import f as f_distribution
from scipy.stats import poisson

from pmm_mcmc.batches import largest_t

__all__ = [
    "BETWEEN_CHAINS",
    "BIAS",
    "CHANCE",
    "PROBE_REPLICAS",
    "R_HAT",
    "Measured",
    "Verdict",
    "bias_reasons",
    "calm",
    "conclude",
    "disagreement_reasons",
    "identity_reasons",
    "length_reasons",
    "unstable_reasons",
    "whole",
]

# Of effective draws; twice as many let a mean through that was off by 0.1 posterior sds (docs/unadjusted.md).
_UNSTABLE_RATE = 1e-3
# Of draws, beyond which draws at a step that is too long do not acquit it: they are not from where it would have led.
_CALM = 2e-4
# Of transitions, beyond which a probe, whose copies take steps whole, says little of a run that takes them in parts.
_IN_PARTS = 0.01
R_HAT = 1.01  # PyMC's own: a run that PyMC warns of is not to be trusted here
BETWEEN_CHAINS = 0.05
BIAS = 0.075  # so that what is trusted is below 0.1, twice the default target, with an error of its own
_SHORTER = "halve step_size, or reparametrise"
_VIRIAL, _VIRIAL_Z = 0.075, 4.0
_VIRIAL_MEAN_SQUARE = 0.01
# Where the step may well bias means by the first of these, all biases must be seen to be below the second.  Tuned steps
# have 0.05; the curvature behind it is found anew in each warm-up, and so this may vary by a factor of 5.
_EXPECTED, _RULED_OUT = 0.3, 0.1
# How often chance alone may bring about one of the reasons, in a run.
CHANCE = 0.01
# Independent replicas of a probe by step halving.
PROBE_REPLICAS = 32


class Verdict(NamedTuple):
    """Whether a run may be trusted, one sentence that says so, and the reasons if not."""

    trusted: bool
    sentence: str
    reasons: tuple[str, ...]


class Measured(NamedTuple):
    """Sizes of biases and their standard errors, ``(p,)`` each, of means and of standard deviations.

    ``left`` is the part of the bias of a mean that the correction is expected to have left, ``moving`` says what is not
    a constant.
    """

    labels: Sequence[str]
    of_mean: np.ndarray
    of_mean_se: np.ndarray
    left: np.ndarray
    of_sd: np.ndarray
    of_sd_se: np.ndarray
    moving: np.ndarray

    @property
    def bounds(self) -> np.ndarray:
        """Two standard errors beyond the bias of a mean, with what the correction has left of it."""
        sure = np.maximum(self.of_mean - 2.0 * self.of_mean_se, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):  # nothing was corrected, and all is left
            return self.of_mean + 2.0 * self.of_mean_se + self.left / (1.0 - self.left) * sure

    @property
    def ruled_out(self) -> bool:
        """Whether every bias is seen to be small."""
        small = (self.bounds < _RULED_OUT) & (self.of_sd + 2.0 * self.of_sd_se < _RULED_OUT)
        return bool(np.all(small | ~self.moving))


def unstable_reasons(unstable: int, error: np.ndarray, transitions: int, by_model: int) -> list[str]:
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
    """
    effective = min((1.0 / e**2 for e in error if e > 0.0), default=float(transitions))
    if poisson.sf(unstable - 1, _UNSTABLE_RATE * effective) >= 0.05:
        return []
    remedy = "the model is not finite there: look at model.debug()" if 2 * by_model > unstable else _SHORTER
    return [f"{unstable} of {transitions} transitions were unstable ({remedy})"]


def calm(unstable: int, draws: int) -> bool:
    """Whether so few transitions were unstable that draws may rule out the harm of a long step."""
    return bool(poisson.sf(unstable - 1, _CALM * draws) >= 0.05)


def whole(stats: Any) -> bool:
    """Whether so few transitions were taken in parts that a run has the bias of whole steps."""
    return "redone" not in stats or bool(stats["redone"].sum() <= _IN_PARTS * stats["steps_per_draw"].sum())


def disagreement_reasons(labels: Sequence[str], r_hat: np.ndarray, apart: np.ndarray, kind: str = "r_hat") -> list[str]:
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
    if (r_hat > R_HAT).any():
        worst = int(np.nanargmax(r_hat))
        return [f"chains disagree: {kind} of {labels[worst]} is {r_hat[worst]:.3g} (draw more)"]
    if (apart > BETWEEN_CHAINS).any():
        worst = int(np.nanargmax(apart))
        return [f"the mean of {labels[worst]} is known to {apart[worst]:.2f} posterior sd only (draw more)"]
    return []


def identity_reasons(
    excess: np.ndarray, z: np.ndarray, mean_square: float, degrees: int, name: Callable[[int], str]
) -> list[str]:
    """Say whether the Stein identity fails, for a coordinate or throughout."""
    off = (np.abs(excess) > _VIRIAL) & (np.abs(z) > max(_VIRIAL_Z, largest_t(len(z), degrees)))
    # Chance alone makes the z-scores' own mean square about 1.
    chance = f_distribution.ppf(1.0 - CHANCE, max(len(z), 1), degrees)
    with np.errstate(over="ignore"):  # of a coordinate that does not move
        throughout = mean_square > _VIRIAL_MEAN_SQUARE and float(np.mean(z**2)) > max(_VIRIAL_Z, chance)
    if not (off.any() or throughout):
        return []
    worst = int(np.argmax(np.where(off, np.abs(excess), 0.0))) if off.any() else int(np.argmax(np.abs(excess)))
    return [f"E[x dF/dx] is {1 + excess[worst]:.2f} where it must be 1, for {name(worst)} ({_SHORTER})"]


def bias_reasons(found: Measured, degrees: int) -> list[str]:
    """Say which bias is too large, beyond what chance would show in so many parameters."""
    reasons = []
    for what, size, error, left in (
        ("mean", found.of_mean, found.of_mean_se, found.left),
        ("sd", found.of_sd, found.of_sd_se, np.zeros_like(found.left)),
    ):
        with np.errstate(divide="ignore"):  # nothing was corrected, and all is left
            whole = size / (1.0 - left)
        large = np.where((whole > BIAS) & (size > largest_t(len(size), degrees) * error), whole, 0.0)
        if large.any():
            worst = int(large.argmax())
            percent = f"{100 * large[worst]:.0f} % of a posterior sd"
            reasons.append(f"the {what} of {found.labels[worst]} is off by {percent} ({_SHORTER})")
    return reasons


def length_reasons(stats: Any, ruled_out: bool) -> list[str]:
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


def conclude(
    reasons: list[str],
    found: Measured,
    kind: str,
    chains: int,
    stats: Any,
    unmeasured: str = "",
    probed: bool = False,
) -> Verdict:
    """Put the reasons together or, where there are none, say how large a bias there may be.

    Parameters
    ----------
    reasons
        Not to trust the run.
    found
        Biases.
    kind
        What they are of: "parameter", "unconstrained coordinate".
    chains
        How many: of one it is said that there was nothing to compare it with.
    stats
        Statistics of the draws, for what half the bias would cost.
    unmeasured
        Why nothing was measured, if that is known.
    probed
        Whether the step was halved, which says of a step that was not tuned whether it is too long.
    """
    if reasons:
        return Verdict(False, "Do not trust this run: " + "; ".join(reasons) + ".", tuple(reasons))
    bounds, varying = found.bounds, int(found.moving.sum())
    measured = int(np.isfinite(bounds).sum())
    bound = f"Bias below {np.ceil(100 * np.nanmax(bounds)):.0f} % of a posterior sd in" if measured else ""
    if not measured:
        reason = unmeasured or f"is not measurable for any {kind}: compare with half the step size"
        sentence = f"No sign of bias, but it {reason}."
    elif measured == varying:
        sentence = f"{bound} all {varying} {kind}s." if varying > 1 else f"{bound} the only {kind}."
    else:
        sentence = (
            f"{bound} {measured} of {varying} {kind}s, not measurable in the others and without other signs there."
        )
    caveat = " One chain: agreement between chains was not checked." if chains == 1 else ""
    if not probed and "expected_bias" in stats and np.isnan(stats["expected_bias"].values).any():
        caveat += " No warm-up has seen whether the step is too long: pmm.bias_probe can."
    return Verdict(True, sentence + caveat + _price(stats), ())


def _price(stats: Any) -> str:
    """Return what half the bias would cost, where the sampler says so."""
    if "halving_cost" not in stats:
        return ""
    factor = float(np.max(stats["halving_cost"].values))
    return f" Half of that would take {factor:.1f} times the gradients (target_bias)." if np.isfinite(factor) else ""

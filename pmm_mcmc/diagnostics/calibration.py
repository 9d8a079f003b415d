"""The thresholds of the verdict and of the Stein corrections, each with what it is and where it was measured.

Biases are in posterior standard deviations.  ``python benchmarks/thresholds.py`` halves and doubles each threshold and
prints what changes (``benchmarks/results/thresholds.txt``); ``python benchmarks/calibration.py`` measures all of them
together: how often good and bad step sizes are trusted (``benchmarks/results/calibration.txt``).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CALIBRATION", "Calibration"]


@dataclass(frozen=True)
class Calibration:
    """Thresholds of the diagnostics."""

    # -- what makes a run not trusted --------------------------------------------------------------------------------

    r_hat: float = 1.01
    """Largest r_hat: PyMC's own, since a run that PyMC warns of is not to be trusted here."""
    bias: float = 0.075
    """Largest bias of a mean or a standard deviation: with an error of its own it stays below 0.1, twice the default
    ``target_bias``."""
    unstable_rate: float = 1e-3
    """Unstable transitions for each effective draw; two in a thousand let a mean through that was off by 0.1
    (an item response model, docs/unadjusted.md)."""
    identity_excess: float = 0.075
    """Excess of the Stein identity over 1 in one coordinate, if it is beyond chance."""
    identity_mean_square: float = 0.01
    """Half the mean squared excess of the identity over all coordinates."""
    widest: float = 1.0
    """Excess of the identity that a long step explains: steps that are too long widen, but do not double a variance."""
    edge_z: float = 1.5
    """Factor on the limit of chance beyond which the identity fails as at an edge of the density: there it fails by
    tens of standard errors, and chance reaches this once in 1e5 runs that are refused for it."""

    # -- what leaves a run undecided ---------------------------------------------------------------------------------

    fewest: int = 20
    """Draws of all chains below which nothing is judged: too few to fit the correction on other draws."""
    fewest_of_chain: int = 4
    """Draws of each chain below which ArviZ has no r_hat or effective sample size: halves of one draw do not vary."""
    mcse: float = 0.05
    """Standard error of a plain mean; of a corrected mean two standard errors may be twice this."""
    expected_bias: float = 0.3
    """Expected bias of the step (``target_bias`` is 0.05) above which all biases must be seen to be below
    ``ruled_out``.  The curvature behind it is found anew in each warm-up, and varies by a factor of 5."""
    ruled_out: float = 0.1
    """See ``expected_bias``."""
    calm_rate: float = 2e-4
    """Unstable transitions for each draw above which draws cannot rule out the harm of a long step: they are not from
    where it would have led."""
    refined_share: float = 0.01
    """Share of refined transitions above which a probe, whose copies take whole steps, says little of the run."""
    probe_replicas: int = 32
    """Independent replicas of a probe by step halving."""

    # -- which parameters are judged ---------------------------------------------------------------------------------

    always_judged: int = 200
    """Parameters that are always judged, the first ones; or twice the number of coordinates, if that is more."""
    always_without_gradients: int = 2000
    """The same where the number of coordinates is not known, and judging costs less."""
    worst_judged: int = 50
    """Deterministics beyond them that are judged, the worst by each of the measures of a first look."""

    # -- Stein corrections -------------------------------------------------------------------------------------------

    gain_of_all: float = 1.25
    """Factor by which corrections must reduce the mean squared standard error of all functions to be used
    throughout."""
    gain_of_one: float = 0.5
    """Squared standard error of one corrected function over the raw one's, at most."""
    gain_of_virial: float = 1.5
    """Factor by which virial terms, which are many, must reduce one function's squared standard error further."""
    beyond_doubt: float = 2.0
    """Standard errors from which on a bias is real, and the part that its correction leaves counts as an error."""
    virial_terms: int = 300
    """Virial terms at most; sums of neighbours where there are more coordinates."""
    draws_a_term: int = 20
    """Draws for each virial term, at least."""
    ridge: float = 0.005
    """Ridge of the virial terms for each draw, over the variance of a term."""
    folds: int = 16
    """Groups of chains that are left out in turn, at most."""
    fitted_draws: int = 100_000
    """Draws that coefficients are fitted on, at most.  Bounds time: of 512 chains 2.4 s in place of 83 s of CPU."""
    moment_pieces: int = 64
    """Groups of chains that co-moments are kept of where draws are not: enough for standard errors, few enough for the
    memory."""


CALIBRATION = Calibration()

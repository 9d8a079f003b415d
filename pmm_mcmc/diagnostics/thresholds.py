"""Thresholds of verdict, Stein corrections and search for modes: the meaning of each, and its measured effect.

Biases are in posterior standard deviations.  The verdict trusted none of 1,288 replicates with a bias above 0.1, and
refused 790 of 5,112 with a bias below 0.05 and enough draws (``benchmarks/frozen/calibration.txt``).  Each threshold
was then halved and doubled (near 1: its distance from 1) on 24 runs, of which 16 are trusted as they are
(``benchmarks/frozen/thresholds.txt``).  "Changes 7, 7 of 24 runs, trusted 16, 18" says: with half the threshold 7
verdicts change and 16 runs are trusted, with twice the threshold 7 and 18; of the search for modes, "changes 4, 3 of 8
runs" counts those that differ (in the file ascents are called climbs, and those from candidates scouts).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of the diagnostics."""

    # -- what makes a run not trusted --------------------------------------------------------------------------------

    r_hat: float = 1.01
    """Largest r_hat: PyMC's own, since a run that PyMC warns of is not to be trusted here.  Changes 24, 24 of 24 runs,
    trusted 1, 17."""
    bias: float = 0.075
    """Largest bias of a mean or a standard deviation: with an error of its own it stays below 0.1, twice the default
    ``target_bias``.  Changes 5, 5 of 24 runs."""
    unstable_rate: float = 1e-3
    """Unstable transitions for each effective draw; two in a thousand let a mean through that was off by 0.1 (an item
    response model).  Changes no run."""
    identity_excess: float = 0.075
    """Excess of the Stein identity over 1 in one coordinate, if it is beyond chance.  Changes 3, 3 of 24 runs."""
    identity_pieces: int = 64
    """Batches of all chains together that standard errors of the identity are computed from.  By 16, seven regressions
    of posteriordb (``nes``) were refused together at one seed of 31, and 4 % of antithetic runs (correlation -.9, four
    chains of 1,000), which are .5 % with 64 and errors from autocorrelations."""
    identity_mean_square: float = 0.01
    """Half the mean squared excess of the identity over all coordinates.  Changes no run."""
    widest: float = 1.0
    """Largest excess of the identity that a long step explains: steps that are too long widen, but do not double a
    variance.  Changes no run."""
    mass: float = 0.01
    """Smallest mass of other modes, relative to the chains' own, that makes a run not trusted; a tenth of it is
    mentioned."""
    restarts: int = 100
    """Chains that come from the reference of a ladder to the posterior, from which a weight of one half is known to
    .05.  Not measured."""
    restarts_of_mode: int = 10
    """The same for each mode: its weight is known to a third.  Not measured."""
    evidence_gap: float = 3.0
    """Difference of forward and backward log evidence in its standard errors, by which levels of a ladder contradict
    each other.  Of 290 runs on ``python -m benchmarks ladder gaussian binomial mixture`` 2.8 % were beyond.  Half,
    double: 21, 0.3 %."""
    narrowing: float = 0.3
    """Correlation of a coordinate with the log squared gradient of the others (400 draws) above which a neck is
    searched along it: six times its error by chance.  .35 to .65 at the neck of a Brownian motion."""
    agree: float = 0.1
    """Largest difference of distribution functions, over the middle 90 % of draws, at which a prediction of a neck is
    believed: .02 to .06 where it was right."""
    edge_z: float = 1.5
    """Factor on the limit of chance beyond which the identity fails as at an edge of the density, by tens of standard
    errors: chance reaches this once in 1e5 runs that are refused for it.  Changes no run."""

    # -- where draws are not corrected -------------------------------------------------------------------------------

    jump: float = 0.1
    """Smallest jump of the log density that counts.  One of 0.1 moves a mean by at most 0.05 standard deviations: the
    root of p (1 - p) with p = 1/2 on either side, times 0.1."""

    # -- what leaves a run undecided ---------------------------------------------------------------------------------

    fewest: int = 20
    """Draws of all chains below which nothing is judged: too few to fit the correction on other draws.  Changes no
    run."""
    fewest_of_chain: int = 4
    """Draws of each chain below which ArviZ has no r_hat: halves of one draw do not vary."""
    mcse: float = 0.05
    """Standard error of a plain mean; two standard errors of a corrected mean may be twice this.  Changes 22, 2 of 24
    runs, trusted 0, 16."""

    # -- which parameters are judged ---------------------------------------------------------------------------------

    always_judged: int = 200
    """Parameters that are always judged, the first ones; of unadjusted draws twice the number of coordinates, if that
    is more.  Bounds time: ``benchmarks/frozen/overhead.txt``."""
    worst_judged: int = 50
    """Parameters beyond them that are judged, the worst by each of two quick measures.  Bounds time."""

    # -- Stein corrections -------------------------------------------------------------------------------------------

    gain_of_all: float = 1.25
    """Factor by which corrections must reduce the mean squared standard error of all functions; if they do not,
    ``gain_of_one`` is smaller by it.  Changes 0, 1 of 24 runs.  Without it corrected intervals cover too rarely."""
    gain_of_one: float = 0.5
    """Squared standard error of a corrected function over the raw one's, at most.  Changes 7, 7 of 24 runs, trusted 16,
    18."""
    gain_of_virial: float = 1.5
    """Factor by which virial terms, which are many, must reduce one function's squared standard error further.  Changes
    4, 3 of 24 runs."""
    beyond_doubt: float = 2.0
    """A bias larger than this many standard errors is real; the part its correction leaves then counts as error.
    Changes 7, 2 of 24 runs, trusted 15, 16."""
    virial_terms: int = 300
    """Virial terms at most; sums of neighbours where there are more coordinates.  Bounds time."""
    draws_a_term: int = 20
    """Draws for each virial term, at least.  Changes 0, 4 of 24 runs."""
    draws_a_cubic_term: int = 300
    """The same where there are cubic ones.  With 100 corrected variances of four logistic variables cover .86 in place
    of .95, with 375 .93.  By ``python -m benchmarks first_call --trust`` cubic terms leave 1 of 45 runs trusted with an
    sd more than 7.5 % off, chance included, without them 5; on bananas they know an sd to 1 % in place of 3 to 5."""
    ridge: float = 0.005
    """Ridge of the virial terms for each draw, over the variance of a term.  Changes 3, 4 of 24 runs."""
    folds: int = 16
    """Groups of chains that are left out in turn, at most: with the next, 512 chains take 2.4 s in place of 83."""
    fitted_draws: int = 20_000
    """Draws that coefficients are fitted on, at most: five times as many gave standard errors smaller by 0 to 1 % for
    two to eight times the CPU seconds (log-gamma targets in 9 to 250 coordinates)."""


THRESHOLDS = Thresholds()


@dataclass(frozen=True)
class SearchThresholds:
    """Thresholds of the search for modes: lengths are whitened, log densities in nats, shares between 0 and 1."""

    # -- gradients ---------------------------------------------------------------------------------------------------

    gradients: int = 1500
    """Gradients of a search, of all chains together, without places along coordinates.  With 54 to 80, as warm-up left
    them, 6 of 18 runs on pharmacokinetics whose rates change places were trusted with one mode missing."""
    candidate_share: float = 0.1
    """Share of these for candidates that are not along coordinates."""
    ascent_share: float = 0.7
    """Share of these for candidates and the ascents from them; the others go to the maxima that they reach.  An ascent
    takes 3 to 6 gradients where the posterior is near a Gaussian, 20 to 40 in a mixture."""
    least_ascent: int = 8
    """Gradients for an ascent, at least.  Changes 3, 3 of 8 runs."""

    # -- where ascents start -----------------------------------------------------------------------------------------

    on_axes: int = 768
    """Places along coordinates at most, beyond the gradients of the search: six on both sides of 64.  With 276 places
    4 of 8 runs on a mode a fifth as wide, on an axis of 31 to 60, were trusted without it."""
    ascents: int = 24
    """The best of them, from which ascents start, at most."""
    ascents_together: int = 4
    """Ascents that are made together.  Changes 0, 3 of 8 runs."""
    chain_ascents: int = 4
    """Ascents from the highest draws, which lead into what is narrow within the chains.  Changes 4, 4 of 8 runs."""
    nearest: float = 2.0
    """Smallest root mean square of the coordinates of a candidate that is not from the prior; along a coordinate its
    smallest distance.  Changes 2, 3 of 8 runs."""
    furthest: float = 32.0
    """The largest.  Changes 3, 2 of 8 runs."""
    spacing: float = 1.5
    """Ratio of neighbouring distances along a coordinate: that of the furthest and nearest places from which an ascent
    ends at a mode a fifth as wide."""

    # -- masses ------------------------------------------------------------------------------------------------------

    draws: int = 128
    """Draws whose density is evaluated, and as many of the Gaussian that is as wide, for the mass of the chains."""
    most_modes: int = 8
    """Maxima that are weighed, at most."""
    places: int = 48
    """Draws of Student's t about a maximum in each of three rounds, or up to six, for its mass."""
    mass: float = 0.01
    """Mass of a mode over that of all from which on its weight matters; from ten times less on it is mentioned.
    Changes no run."""
    visited: float = 0.1
    """Draws in the region of a mode over those that its mass asks for, from which on chains visit it: how often is a
    matter of their agreement."""
    expected: float = 3.0
    """Draws that a mass asks for, below which it is chance if there is none: once in twenty."""
    effective: float = 5.0
    """Effective places, below which a mass is not known."""
    hidden_mass: float = 0.17
    """Mass around the chains over that of all draws, from which it is reported.  In a funnel whose mouth a short
    warm-up has not met it is .16 at most in 20 runs; in slabs with a quarter of the mass .20 to .35, with half of it
    .64 to 1.0 unless chains are in both.  With .25, 4 of 30 runs on slabs were trusted and off by .8 sd and more, with
    .17 none."""
    exact_hessian: int = 250
    """Most coordinates in which the volume of a mode follows from its full Hessian matrix, and a mass from places."""
    lanczos_steps: int = 8
    """Products of the Hessian matrix with each of two directions where there are more."""


SEARCH = SearchThresholds()

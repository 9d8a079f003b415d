"""The thresholds of the search for modes that no chain has visited: the meaning of each, and its measured effect.

"Changes 4, 3 of 8 runs" counts those that differ with half and with twice the threshold
(``benchmarks/frozen/thresholds.txt``, where ascents are called climbs, and those from candidates scouts).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SEARCH", "SearchThresholds"]


@dataclass(frozen=True)
class SearchThresholds:
    """Thresholds of the search for modes: lengths are whitened, log densities in nats, shares between 0 and 1."""

    # -- gradients ---------------------------------------------------------------------------------------------------

    search_share: float = 0.4
    """Gradients that the search may spend, over those of the warm-up.  Changes 8, 7 of 8 runs."""
    most_gradients: int = 3000
    """Gradients that it may spend where there are many chains: more find nothing that these do not."""
    candidate_share: float = 0.4
    """Share of these for candidates."""
    ascent_share: float = 0.7
    """Share of these for candidates and the ascents from them; the others go to the maxima that they reach.  An ascent
    takes 3 to 6 gradients where the posterior is near a Gaussian, 20 to 40 in a mixture."""
    least_ascent: int = 8
    """Gradients for an ascent, at least.  Changes 3, 3 of 8 runs."""

    gradients_elsewhere: int = 10
    """Gradients of the short search that follows a start from a former run, for each of four chains or more."""

    # -- where ascents start -----------------------------------------------------------------------------------------

    candidates: int = 256
    """Places whose density is evaluated, at most.  Changes 2, 1 of 8 runs."""
    ascents: int = 12
    """The best of them, from which ascents start, at most.  Changes 3, 2 of 8 runs."""
    ascents_together: int = 4
    """Ascents that are made together.  Changes 0, 3 of 8 runs."""
    chain_ascents: int = 4
    """Ascents from the newest draws of the chains, at most.  Changes 4, 4 of 8 runs."""
    nearest: float = 2.0
    """Smallest root mean square of the coordinates of a candidate that is not from the prior; along a coordinate its
    smallest distance.  Changes 2, 3 of 8 runs."""
    furthest: float = 32.0
    """The largest.  Changes 3, 2 of 8 runs."""
    spacing: float = 1.5
    """Ratio of neighbouring distances along a coordinate: that of the furthest and nearest places from which an ascent
    ends at a mode a fifth as wide."""

    # -- which maxima are other modes --------------------------------------------------------------------------------

    most_modes: int = 4
    """Maxima that are examined, the highest ones.  Changes no run."""
    lowest: float = 7.0
    """How much lower than the chains' a maximum may be to be examined: a thousandth of the density."""
    lowest_each: float = 1.5
    """The same for each coordinate more: there a mode may be 4.5 times as wide."""
    points_between: int = 7
    """Points between two maxima at which a dip of the log density is looked for.  Changes 3, 3 of 8 runs."""
    dip: float = 1.0
    """Dip of the log density below which two maxima are of one mode.  Changes no run."""
    short_chains: int = 3
    """Short chains that start at a maximum, to see whether they stay."""
    longest_stay: int = 100
    """Transitions of each of them at most, as far as gradients are left."""

    # -- masses ------------------------------------------------------------------------------------------------------

    mass: float = 0.01
    """Mass of a mode over that of all from which on its weight matters; from ten times less on it is mentioned.
    Changes no run."""
    hidden_mass: float = 0.17
    """Mass around the chains, or of a narrow mode within theirs, over that of all draws, from which it is reported.  In
    a funnel whose mouth a short warm-up has not met it is .16 at most in 20 runs; in slabs with a quarter of the mass
    .20 to .35, with half of it .64 to 1.0 unless chains are in both.  With .25, 4 of 30 runs on slabs were trusted and
    off by .8 sd and more, with .17 none."""
    exact_hessian: int = 30
    """Most coordinates in which the volume of a mode follows from its full Hessian matrix."""
    lanczos_steps: int = 8
    """Products of the Hessian matrix with each of two directions where there are more."""
    flattest: float = 1e-8
    """Smallest curvature of a maximum over its largest, below which it is none."""


SEARCH = SearchThresholds()

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

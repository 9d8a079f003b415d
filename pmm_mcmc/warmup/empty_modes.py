"""Chains in a mode with next to no mass beside another mode: where they should start again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pmm_mcmc.warmup.ascent import Density
from pmm_mcmc.warmup.maxima import Maximum, are_close, are_one_mode, hessian_spectrum, log_mass
from pmm_mcmc.warmup.search_thresholds import SEARCH

__all__ = ["starts_elsewhere"]

# A mode has next to no mass if its log mass is lower by so much, and by so much for each coordinate: Laplace's log mass
# is right to a fraction of a nat in each.  Two modes nearer than this in mass are left to the verdict.
_NATS = 20.0
_NATS_EACH = 0.5
# Gradients for the ascent of a chain that may have to move.
_ASCENT = 40


def starts_elsewhere(
    chains: np.ndarray,
    chain_maxima: list[Maximum],
    others: list[Maximum],
    density: Density,
    ascend: Callable[[np.ndarray, np.ndarray, int], list[Maximum]],
    rng: np.random.Generator,
) -> tuple[np.ndarray, int]:
    """Return whitened starts ``(chain, d)``, and how many of them are elsewhere than the ``chains`` ``(chain, d)``.

    Of two modes, a chain in one that has next to no mass starts in the other, at a draw of the Gaussian with its
    curvature.  ``chain_maxima`` are those of the modes of chains, ``others`` those of other modes.
    """
    count, d = chains.shape
    maxima = [*chain_maxima, *others]
    # Of more chains some maxima are not known, and of more coordinates no curvature in all directions.  Where there are
    # more modes than two there may be others still: chains that disagree say so, and chains that are moved do not.
    if count > SEARCH.chain_ascents or d > SEARCH.exact_hessian or len(maxima) != 2:
        return chains, 0
    masses = [log_mass(maximum, density) for maximum in maxima]
    lightest = int(np.argmin(masses))
    empty = maxima[lightest]
    heaviest = maxima[1 - lightest]
    far = max(masses) - masses[lightest] > _NATS + _NATS_EACH * d and np.isfinite(masses[lightest])
    if not far or are_one_mode(empty, heaviest, density):
        return chains, 0
    moves = np.array([any(are_close(end, empty) for end in ascend(y[None], y, _ASCENT)) for y in chains])
    values, vectors = hessian_spectrum(heaviest, density)
    draws = heaviest.y + (rng.standard_normal((count, d)) / np.sqrt(values)) @ vectors.T
    return np.where(moves[:, None], draws, chains), int(moves.sum())

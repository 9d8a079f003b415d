"""The mixture of Gaussians from which a ladder starts: one for each mode that annealing or an ascent has met.

Its weights are those of the modes if these are Gaussians: the mass of a mode with density ``p`` is the exponential of
the mean of ``log p`` over its draws and of their entropy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pmm_mcmc.coordinates.affine import MOST_DENSE, best_coordinates
from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.model.tempered import GaussianMixture
from pmm_mcmc.tempering.mode_weights import MOST_MODES, mode_labels
from pmm_mcmc.tempering.path import Points, TemperingPath

__all__ = ["fitted_mixture"]

# Ascents by which draws are assigned to modes.
_ASCENTS = 64
# Draws that a Gaussian is fitted to at least.
_FEWEST = 20
# Numbers of all Gaussians at most: 8 MiB.
_NUMBERS = 2**20
_LOG_2PI_E = float(np.log(2.0 * np.pi)) + 1.0


def fitted_mixture(
    path: TemperingPath, setting: TunedParameters, draws: Points, unmet: Sequence[Points]
) -> tuple[GaussianMixture, int]:
    """Return a Gaussian for each mode of the draws, and the number of gradients of the ascents to modes.

    The ``draws`` ``(n, ...)`` at the posterior, whose ``setting`` it is, are in order of time; ``unmet`` are draws of
    each mode that they have not met.
    """
    density = path.whitened_density(setting.coordinates)
    n_grad = 0

    def counted(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal n_grad
        n_grad += len(y)
        return density(y)

    label = mode_labels(setting.coordinates.whiten(draws.position), counted, _ASCENTS)
    order = np.argsort(-np.bincount(label), kind="stable")
    d = path.d
    limit = max(1, min(MOST_MODES, _NUMBERS // (d * d if d <= MOST_DENSE else d)))
    by_mode = [draws.take(label == k) for k in order[: max(1, limit - len(unmet))]]
    met = [points for points in by_mode if len(points.position) >= _FEWEST] or [draws]
    parts = [_gaussian(points) for points in [*met, *unmet]]
    mixture = GaussianMixture(*(np.concatenate(each) for each in zip(*parts, strict=True)))
    entropy = mixture.log_volume + 0.5 * d * _LOG_2PI_E
    return mixture._replace(log_weight=mixture.log_weight + entropy), n_grad


def _gaussian(points: Points) -> GaussianMixture:
    """Return a Gaussian, whose weight is the mean log density of the draws."""
    fitted = best_coordinates(points.position, points.slope(1.0))
    d = points.position.shape[1]
    if d > MOST_DENSE:
        root = points.position.std(axis=0)
    else:
        root = (fitted.place(np.eye(d)) - fitted.centre).T
    one = GaussianMixture.of(fitted.centre, root)
    return one._replace(log_weight=np.array([points.lp.mean()]))

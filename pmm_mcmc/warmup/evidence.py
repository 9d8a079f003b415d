"""What draws say of the setting that they were made with: whether it fits them, and which one would."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.scale import best_coordinates
from pmm_mcmc.engines.settings import Block, MethodArguments
from pmm_mcmc.langevin.methods import HARMONIC, Scheme
from pmm_mcmc.warmup.calibration import CALIBRATION
from pmm_mcmc.warmup.curvature import LocalCurvature
from pmm_mcmc.warmup.friction import largest_spread
from pmm_mcmc.warmup.stein_identity import too_wide
from pmm_mcmc.warmup.step_size import lipschitz_bound, rare_curvature

__all__ = ["curvature", "failed", "fits", "refitted", "successive_curvature", "visibly_wide", "whitened"]


def failed(block: Block) -> np.ndarray:
    """Return which transitions ``(chain, n)`` a whole step failed to make because of its length."""
    return (block.unstable - block.model_failures) > 0


def whitened(coordinates: Coordinates, block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and gradients of a block in the coordinates."""
    return coordinates.whiten(block.position), coordinates.pull_back(block.gradient)


def fits(coordinates: Coordinates, block: Block, usable: np.ndarray) -> bool:
    """Whether coordinates that were fitted on older draws whiten those of a block."""
    if not usable.any() or block.position.shape[2] == 0:
        return bool(usable.any())
    y, g = (part[usable] for part in whitened(coordinates, block))
    misfit = np.sort((y**2).mean(axis=1) + (g**2).mean(axis=1))
    kept = misfit[: math.ceil(0.99 * len(misfit))].mean()
    return bool(kept < CALIBRATION.misfit) and largest_spread(y) < CALIBRATION.slow_sd


def refitted(settings: MethodArguments, coordinates: Coordinates, window: Block, usable: np.ndarray) -> Coordinates:
    """Return the coordinates that whiten the usable draws; where the scale is given, only their centre is new."""
    # In order of time, the chains side by side.
    in_order = usable.T.ravel()
    d = window.position.shape[2]
    position = window.position.swapaxes(0, 1).reshape(usable.size, d)[in_order]
    if settings.scaling is not None:
        return coordinates._replace(centre=position.mean(axis=0))
    return best_coordinates(position, window.gradient.swapaxes(0, 1).reshape(usable.size, d)[in_order])


def visibly_wide(block: Block, usable: np.ndarray, target_bias: float) -> bool:
    """Whether a bias well above the target shows in draws that are past the transient, if they are enough to say so."""
    if (
        block.lp.shape[1] < CALIBRATION.least_judged
        or usable.mean() < CALIBRATION.settled_share
        or block.position.shape[2] == 0
    ):
        return False
    return too_wide(block.position, block.gradient, target_bias)


def successive_curvature(
    settings: MethodArguments, coordinates: Coordinates, position: np.ndarray, gradient: np.ndarray, usable: np.ndarray
) -> float:
    """Return :func:`~pmm_mcmc.warmup.step_size.lipschitz_bound` of draws ``(chain, n, d)`` in the coordinates."""
    y, g = coordinates.whiten(position), coordinates.pull_back(gradient)
    return lipschitz_bound(y, g, usable, settings.kernel.dynamics == HARMONIC, settings.sees_curvature)


def curvature(
    settings: MethodArguments,
    coordinates: Coordinates,
    window: Block,
    usable: np.ndarray,
    local: LocalCurvature,
    gradient_at: Callable[[np.ndarray], np.ndarray] | None,
) -> float:
    """Return the largest whitened curvature that matters to the step.

    With a function for the gradient at a position ``(d,)``, steep directions are looked for at draws too.
    """
    adjusted = settings.kernel.scheme == Scheme.MALA
    if gradient_at is None or adjusted or window.position.shape[2] < 2:
        return successive_curvature(settings, coordinates, window.position, window.gradient, usable)
    y, g = whitened(coordinates, window)
    harmonic = settings.kernel.dynamics == HARMONIC

    def gradient_there(at: np.ndarray) -> np.ndarray:
        return coordinates.pull_back(gradient_at(coordinates.place(at)))

    typical = local(y[usable], g[usable], gradient_there, harmonic)
    return max(rare_curvature(y, g, usable, harmonic, settings.sees_curvature), typical)

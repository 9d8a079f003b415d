"""Whether the setting of a warm-up fits the draws of its newest block, and the preconditioner and curvature they show.

Masks named ``usable`` ``(chain, n)`` are true for draws past the transient (:mod:`pmm_mcmc.warmup.block`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pmm_mcmc.coordinates.affine import MOST_DENSE, Coordinates, best_coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.langevin.methods import HARMONIC
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.curvature import LocalCurvature, curvature_bound, rare_curvature
from pmm_mcmc.warmup.thresholds import THRESHOLDS


def failed(block: Block) -> np.ndarray:
    """Return which transitions ``(chain, n)`` failed because the step is too long, not because of the model."""
    return (block.unstable - block.model_failures) > 0


def whitened(coordinates: Coordinates, block: Block) -> tuple[np.ndarray, np.ndarray]:
    """Return positions and gradients of a block in whitened coordinates."""
    return coordinates.whiten(block.position), coordinates.pull_back(block.gradient)


def whitens(coordinates: Coordinates, block: Block, usable: np.ndarray) -> bool:
    """Return whether a preconditioner that was fitted on older draws whitens those of a block."""
    if not usable.any() or block.position.shape[2] == 0:
        return bool(usable.any())
    y, g = (_rows(array, usable) for array in whitened(coordinates, block))
    misfit = np.sort((y**2).mean(axis=1) + (g**2).mean(axis=1))
    trimmed = misfit[: math.ceil(0.99 * len(misfit))].mean()  # with heavy tails few draws would decide
    return bool(trimmed < THRESHOLDS.misfit) and largest_spread(y) < THRESHOLDS.slow_sd


def largest_spread(position: np.ndarray) -> float:
    """Return the largest standard deviation of whitened draws ``(n, d)`` along a principal direction."""
    n, d = position.shape
    centred = position - position.mean(axis=0)
    if d > min(MOST_DENSE, n // 2):
        return float(np.sqrt((centred**2).mean(axis=0).max()))
    variance = np.linalg.eigvalsh(centred.T @ centred / n)[-1]
    # The largest of n independent draws of a unit Gaussian is about (1 + sqrt(d/n))^2 (Marchenko and Pastur).
    return float(np.sqrt(variance) / (1.0 + np.sqrt(d / n)))


def fitted_coordinates(
    arguments: MethodArguments, coordinates: Coordinates, window: Block, usable: np.ndarray
) -> Coordinates:
    """Return the preconditioner fitted to the usable draws; of a fixed ``scaling`` only the centre is fitted."""
    # Rows in order of time: all chains at one transition, then all at the next.
    position = _rows(window.position.swapaxes(0, 1), usable.T)
    if arguments.scaling is not None:
        return coordinates._replace(centre=position.mean(axis=0))
    fitted = best_coordinates(position, _rows(window.gradient.swapaxes(0, 1), usable.T))
    return fitted._replace(density_parameters=coordinates.density_parameters)


def _rows(draws: np.ndarray, usable: np.ndarray) -> np.ndarray:
    """Return the usable ones of draws ``(., ., d)`` as ``(n, d)``, where all are without a second copy."""
    return draws.reshape(usable.size, draws.shape[2]) if usable.all() else draws[usable]


def curvature(
    arguments: MethodArguments,
    coordinates: Coordinates,
    window: Block,
    usable: np.ndarray,
    local: LocalCurvature,
    gradient_at: Callable[[np.ndarray], np.ndarray] | None = None,
) -> float:
    """Return the largest whitened curvature that matters to the step.

    ``gradient_at`` evaluates the gradient at a position ``(d,)``; with it, ``local`` finds the steepest directions.
    """
    y, g = whitened(coordinates, window)
    harmonic = arguments.kernel.dynamics == HARMONIC
    if gradient_at is None or arguments.kernel.adjusted or window.position.shape[2] < 2:
        return curvature_bound(y, g, usable, harmonic, arguments.sees_curvature)

    def whitened_gradient(point: np.ndarray) -> np.ndarray:
        return coordinates.pull_back(gradient_at(coordinates.place(point)))

    typical = local(_rows(y, usable), _rows(g, usable), whitened_gradient, harmonic)
    return max(rare_curvature(y, g, usable, harmonic, arguments.sees_curvature), typical)

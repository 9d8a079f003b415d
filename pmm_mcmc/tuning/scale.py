r"""Diagonal scale and centre of the whitened coordinates, from pairs of position and gradient.

For a diagonal map ``x = m + s y`` the divergence from the Gaussian N(m, s^2) to the posterior that uses gradients
only (Fisher divergence) is smallest at

.. math:: s_i^2 = \sqrt{Var x_i / Var g_i}, \qquad m_i = \bar x_i + s_i^2 \bar g_i,

with ``g`` the gradient of the log density.  On an uncorrelated Gaussian this is exact from two distinct points,
wherever they lie.
"""

from __future__ import annotations

import numpy as np

from pmm_mcmc.coordinates import Coordinates

__all__ = ["affine_scale", "best_coordinates", "diagonal_scale", "settled"]

# Dense scales are tried up to this many coordinates, with so much damping (the r of affine_scale).
MOST_DENSE = 300
_DAMPINGS = (1e-3, 1.0, 10.0, 100.0, 1000.0)


def diagonal_scale(position: np.ndarray, gradient: np.ndarray, previous: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return centre and scale of shape ``(d,)`` from ``(n, d)`` positions and gradients.

    A coordinate in which position or gradient does not vary, or whose estimate is not a finite number, keeps its
    previous scale and is centred at its mean.
    """
    with np.errstate(all="ignore"):
        ratio = position.var(axis=0) / gradient.var(axis=0)
        scale = ratio**0.25
    usable = np.isfinite(scale) & (scale > 0.0)
    scale = np.where(usable, scale, previous)
    shift = np.where(usable, scale**2 * gradient.mean(axis=0), 0.0)
    # Off the posterior the gradient's mean says little: keep the centre within what has been seen.
    centre = np.clip(position.mean(axis=0) + shift, position.min(axis=0), position.max(axis=0))
    return centre, scale


def settled(potential: np.ndarray, d: int) -> np.ndarray:
    """Which of the draws, in order of time, are out of the start-up transient, as a mask of shape ``(n,)``.

    Draws whose potential exceeds the median of the newest quarter by more than ``d/2 + 6 sqrt(d/2) + 5`` (six
    standard deviations and more of a Gaussian's) carry gradients that would spoil the scale.
    """
    newest = potential[-max(1, len(potential) // 4) :]
    keep = potential <= np.median(newest) + d / 2 + 6 * np.sqrt(d / 2) + 5
    return keep if keep.sum() >= 2 else np.ones(len(potential), dtype=bool)


def best_coordinates(position: np.ndarray, gradient: np.ndarray) -> Coordinates:
    r"""Return diagonal or dense coordinates, whichever whitens the newest of the draws ``(n, d)`` better.

    Candidates are fitted on the older 60 % and judged on the rest by
    :math:`J = mean |W^{-1} (x - m)|^2 + mean |W^T g|^2`, which is ``2 d`` at best; a dense one must win by 2 %.  The
    winner is fitted anew on all.
    """
    n, d = position.shape
    ones = np.ones(d)
    split = int(0.6 * n)
    choice: float | None = None
    if 1 < d <= MOST_DENSE and split > 1 and n - split > 1:
        old_x, old_g, new_x, new_g = position[:split], gradient[:split], position[split:], gradient[split:]
        best = 0.98 * _misfit(Coordinates(*diagonal_scale(old_x, old_g, ones)), new_x, new_g)
        for damping in _DAMPINGS:
            candidate = _dense(old_x, old_g, damping)
            misfit = np.inf if candidate is None else _misfit(candidate, new_x, new_g)
            if misfit < best:
                choice, best = damping, misfit
    found = None if choice is None else _dense(position, gradient, choice)
    return found or Coordinates(*diagonal_scale(position, gradient, ones))


def _dense(position: np.ndarray, gradient: np.ndarray, damping: float) -> Coordinates | None:
    """Return dense coordinates, or None where draws of the transient leave them without a finite inverse."""
    try:
        with np.errstate(all="ignore"):
            found = Coordinates(*affine_scale(position, gradient, dense=True, damping=damping))
            usable = np.all(np.isfinite(found.scale)) and np.linalg.cond(found.scale) < 1e12
    except np.linalg.LinAlgError:
        return None
    return found if usable else None


def _misfit(coordinates: Coordinates, position: np.ndarray, gradient: np.ndarray) -> float:
    with np.errstate(all="ignore"):
        y, g = coordinates.whiten(position), coordinates.pull_back(gradient)
        misfit = float((y**2).sum(axis=1).mean() + (g**2).sum(axis=1).mean())
    return misfit if np.isfinite(misfit) else np.inf


def affine_scale(
    position: np.ndarray, gradient: np.ndarray, *, dense: bool, damping: float = 1e-3
) -> tuple[np.ndarray, np.ndarray]:
    r"""Centre and root ``W`` of the Gaussian nearest to positions and gradients ``(n, d)`` in Fisher divergence.

    In units of the diagonal scale ``s``, with :math:`A = Cov\,x + I r/n` and :math:`B = Cov\,g + I r/n`,

    .. math:: \Sigma = A^{1/2} (A^{1/2} B A^{1/2})^{-1/2} A^{1/2}, \qquad W = s\,\Sigma^{1/2}, \qquad
       m = \bar x + W W^T \bar g,

    the geometric mean of ``A`` and the inverse of ``B``: without damping exact on any Gaussian from ``d + 1`` pairs,
    wherever they lie.

    Parameters
    ----------
    position, gradient
        Pairs, whole rows.
    dense
        The whole matrix, or its diagonal form.
    damping
        ``r``: how many draws the unit matrix counts for.

    Returns
    -------
    centre : (d,)
        The mean ``m``.
    root : (d, d), or (d,) where not ``dense``
        ``W`` (symmetric up to the diagonal units), or the diagonal scale.
    """
    n, d = position.shape
    _, s = diagonal_scale(position, gradient, np.ones(d))
    mean, mean_gradient = position.mean(axis=0), gradient.mean(axis=0)
    if not dense:
        return mean + s**2 * mean_gradient, s
    ridge = damping / n * np.eye(d)
    a = np.cov(position / s, rowvar=False).reshape(d, d) + ridge
    b = np.cov(gradient * s, rowvar=False).reshape(d, d) + ridge
    root_a = _symmetric_power(a, 0.5)
    sigma = root_a @ _symmetric_power(root_a @ b @ root_a, -0.5) @ root_a
    root = s[:, None] * _symmetric_power(sigma, 0.5)
    return mean + root @ (root.T @ mean_gradient), root


def _symmetric_power(matrix: np.ndarray, power: float) -> np.ndarray:
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    floor = 1e-15 * max(float(values[-1]), 1e-285)
    return (vectors * np.maximum(values, floor) ** power) @ vectors.T

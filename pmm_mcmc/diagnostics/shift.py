r"""The shift of draws between places of unequal curvature, which a step makes and no gradient shows.

A step makes draws too wide where the posterior is steep, and they are there too rarely
(:func:`pmm_mcmc.langevin.gaussian_law.density_shift`).  With :math:`\psi(x)` the sum of the shifts of all directions at
a draw, the mean of a function ``f`` is off by :math:`-\mathrm{Cov}(f, \psi)` to first order.  The curvatures are found
at some draws of a run, at its end, by Lanczos' method from differences of gradients.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.measured import Measured
from pmm_mcmc.diagnostics.statement import Reason
from pmm_mcmc.langevin.lanczos import spectrum

__all__ = ["ATTRIBUTE", "shift_at", "shift_reasons"]

# Attribute of a result: the shifts at some draws, as JSON.
ATTRIBUTE = "shift"
# Draws that are looked at first; products at each, over a whitened distance.
_FIRST, _PRODUCTS, _APART = 48, 4, 1e-3
# Draws below which a covariance is no evidence, and the bias that is left alone: half of the largest.
_LEAST, _SMALL = 32, 0.5 * CALIBRATION.bias


def shift_at(
    draws: np.ndarray,
    first: np.ndarray,
    gradient: Callable[[np.ndarray], np.ndarray],
    shift: Callable[[np.ndarray], np.ndarray],
    most: int,
) -> str:
    """Find the shift at some of the draws, at more of them where it varies.

    Parameters
    ----------
    draws : (n, d)
        Whitened positions from all chains.
    first : (n,)
        The first unconstrained coordinate of each, by which it is found again.
    gradient
        Gradients ``(m, d)`` of the whitened log density.
    shift
        Shifts of curvatures, as of :func:`pmm_mcmc.langevin.gaussian_law.density_shift`.
    most
        Gradients at most, beyond those of the first 48 draws.

    Returns
    -------
    str
        The attribute of a result: a JSON object with the number of ``gradients`` that were evaluated, the ``first``
        coordinates of draws and the ``shift`` there.
    """
    spent, rng = 0, np.random.default_rng(draws.shape[1])

    def shifts(y: np.ndarray) -> np.ndarray:
        nonlocal spent
        here, d = gradient(y), y.shape[1]
        spent += len(y)

        def product(v: np.ndarray) -> np.ndarray:
            nonlocal spent
            spent += len(v)
            return (here - gradient(y + _APART * v)) / _APART

        values, weights = spectrum(product, rng.choice([-1.0, 1.0], size=y.shape) / np.sqrt(d), _PRODUCTS)
        return d * np.asarray((weights * shift(values)).sum(axis=1))

    with np.errstate(all="ignore"):  # densities that are not finite, or vast
        which = slice(None, None, -(-len(draws) // _FIRST))
        found = shifts(draws[which])
        more = min(len(draws), most // (_PRODUCTS + 1))
        # No mean is off by more of its sd than the shift varies.
        if more > _FIRST and np.nan_to_num(found).std() > _SMALL:
            which = slice(None, None, -(-len(draws) // more))
            found = shifts(draws[which])
    good = np.isfinite(found)
    return json.dumps({"gradients": spent, "first": first[which][good].tolist(), "shift": found[good].tolist()})


def shift_reasons(
    attrs: Any, position: np.ndarray, read: Callable[[np.ndarray], np.ndarray], measured: Measured, step: float
) -> list[Reason]:
    """Return a reason if a mean whose bias is not measurable may be off by the step, to first order.

    Parameters
    ----------
    attrs
        Attributes of the result.
    position : (chain, draw, d)
        Unconstrained positions.
    read
        Function that returns the draws ``(chain, draw, n)`` of parameters by their numbers in ``measured``.
    measured
        Biases.
    step
        The step size.
    """
    unknown = np.flatnonzero(measured.moving & ~np.isfinite(measured.of_mean) & np.isfinite(measured.error))
    if ATTRIBUTE not in attrs or not len(unknown):
        return []
    known = json.loads(attrs[ATTRIBUTE])
    shift_of = dict(zip(known["first"], known["shift"], strict=True))
    first = position[..., 0]
    chain, draw = np.nonzero(np.isin(first, known["first"]))
    shift = np.array([shift_of[value] for value in first[chain, draw].tolist()])
    if len(shift) < _LEAST:
        return []
    values = read(unknown)[chain, draw]
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.nan_to_num((values - values.mean(axis=0)) / values.std(axis=0))
    products = z * (shift - shift.mean())[:, None]
    off, error = np.abs(products.mean(axis=0)), products.std(axis=0) / np.sqrt(len(shift))
    matters = (off > 2.0 * error) & (off > _SMALL)
    whole = np.where(matters, 2.0 * measured.error[unknown] + off, 0.0)
    worst, limit = int(whole.argmax()), 2.0 * CALIBRATION.mcse  # as for the means whose bias is measured
    if not whole[worst] > limit:
        return []
    label = measured.labels[int(unknown[worst])]
    words = (
        f"the mean of {label} is known to {100.0 * whole[worst]:.0f} % of a posterior sd only (two standard errors, "
        f"and {100.0 * off[worst]:.0f} % by which the step is predicted to move it), limit {100.0 * limit:.0f} %"
    )
    remedy = f"halve step_size to {0.5 * step:.2g}, or sample with exact=True"
    return [Reason("shift", words, remedy, label, float(whole[worst]), limit)]

r"""Midpoint laws: where in a step the drift is looked at again, and with which weight it counts.

A step of length ``alpha`` has ``K`` cells.  Cell ``i`` is *marked* with probability ``1 / K``: independently
of the others (Option 1), or exactly one cell in all (Option 2).  The midpoint of a marked cell lies at its
left end (``offset = 0``, the paper's grid) or in its centre (``offset = 1/2``), and the drift found there
replaces the frozen one within the cell, ``K`` times over:
:math:`w_i = K A_{(K-1-i) \alpha / K} G_{\alpha / K}`.

Option 2 may also draw late cells more often (*importance* law): with
:math:`q_i = ((i + 1) / K)^{1 + p} - (i / K)^{1 + p}`, ``p`` the *power* of the law, in place of ``1 / K``, and
:math:`1 / q_i` in place of ``K`` in the weight, which leaves the mean of the correction as it is.  It grows with the
time since the start of the step, from nothing: so its variance falls.

For ``K`` without bound Option 2 becomes one midpoint uniform in ``(0, alpha)`` with weight
:math:`\alpha A_{\alpha - \tau} G'_0`, the *continuous* law (randomised midpoint; recycled scheme).
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba.extending import register_jitable

from pmm_mcmc.langevin.flows import Flow, select

__all__ = [
    "LATE",
    "build_cells",
    "cell_weight",
    "continuous_weight",
    "expected_gradients",
    "next_cell",
    "one_cell",
    "one_in",
]

# Power of the importance law.  Higher ones take more variance away at long steps, and make short ones less accurate:
# an error of the variance that the uniform law happens to cancel is then in plain sight.
LATE = 0.25


def build_cells(xp: Any, where: Callable[..., Any]) -> SimpleNamespace:
    """Return the laws of the marked cells over an array library, as in :func:`pmm_mcmc.langevin.flows.build_flows`.

    Cells are whole numbers kept as floats.

    Parameters
    ----------
    xp, where
        Array namespace and its ``where``.
    """

    @register_jitable
    def one_cell(uniform, K, power):
        # Option 2: the marked cell, from one uniform number.
        part = uniform if power == 0.0 else uniform ** (1.0 / (1.0 + power))
        return xp.minimum(xp.floor(part * K), K - 1.0)

    @register_jitable
    def next_cell(cell, uniform, K):
        # Option 1: the next marked cell after ``cell`` (start with -1); K or more means none.
        # The gap is geometric with success probability 1 / K; with one cell it is marked for certain.
        missed = xp.log1p(-where(K > 1, 1.0 / K, 0.5))
        gap = xp.floor(xp.minimum(xp.log1p(-uniform) / missed, 1.0 * K))
        return cell + 1.0 + where(K > 1, gap, 0.0)

    return SimpleNamespace(one_cell=one_cell, next_cell=next_cell)


_cells = build_cells(np, select)
one_cell, next_cell = _cells.one_cell, _cells.next_cell


@register_jitable
def one_in(cell: Any, K: Any, power: Any) -> Any:
    """Return in how many steps a cell is marked once in the mean: the inverse of its probability."""
    if power == 0.0:
        return 1.0 * K
    return 1.0 / (((cell + 1.0) / K) ** (1.0 + power) - (cell / K) ** (1.0 + power))


@register_jitable
def cell_weight(rest: Flow, cell: Flow, times: Any) -> tuple[Any, Any]:
    """Weight of a cell that is marked once in so many ``times`` (:func:`one_in`).

    From the flows over a ``cell`` and over the ``rest`` of the step after it.
    """
    return (
        times * (rest.a_uu * cell.g_u + rest.a_uv * cell.g_v),
        times * (rest.a_vu * cell.g_u + rest.a_vv * cell.g_v),
    )


@register_jitable
def continuous_weight(rest: Flow, alpha: Any, has_velocity: Any) -> tuple[Any, Any]:
    """Weight of a midpoint of the continuous law, from the flow over the ``rest`` of the step after it."""
    if has_velocity:
        return alpha * rest.a_uv, alpha * rest.a_vv
    return alpha * rest.a_uu, 0.0 * alpha


def expected_gradients(K: int, grid: str, power: float = 0.0) -> float:
    """Return the expected gradients of one step of the two-gradient scheme, under either option.

    One at the start of the step and one in each marked cell, of which there is one on average; on the left
    grid a marked first cell (probability ``1 / K``, or less under the importance law) needs no gradient of its own.
    """
    return 2.0 - 1.0 / one_in(0.0, K, power) if grid == "left" else 2.0

r"""Midpoint laws: the times within a step at which the drift is evaluated again, and the weights of these drifts.

A step of length ``alpha`` has ``K`` cells.  Cell ``i`` is *marked* with probability ``1 / K``: independently
of the others (Option 1), or exactly one cell in all (Option 2).  The midpoint of a marked cell lies at its
left end (``offset = 0``, the paper's grid) or in its centre (``offset = 1/2``).  The drift there, minus that
at the start of the step, is added with the weight :math:`w_i = K A_{(K-1-i) \alpha / K} G_{\alpha / K}`.

Option 2 may also mark late cells more often (*importance* law): with probability
:math:`q_i = ((i + 1) / K)^{1 + p} - (i / K)^{1 + p}` in place of ``1 / K``, where ``p`` is the *power* of the law, and
:math:`1 / q_i` in place of ``K`` in the weight.  The mean of the correction is the same.  Its variance is smaller,
since the correction grows from zero with the time since the start of the step.

As ``K`` grows, Option 2 tends to one midpoint uniform in ``(0, alpha)`` with weight
:math:`\alpha A_{\alpha - \tau} G'_0`, where :math:`G'_0 = dG_h / dh` at 0: the *continuous* law (randomised midpoint;
recycled scheme).
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba.extending import register_jitable

from pmm_mcmc.langevin.flows import Flow, select

# Power of the importance law.  Higher powers reduce the variance of long steps further, but make short steps less
# accurate: they lose a cancellation of variance errors that the uniform law has.
IMPORTANCE_POWER = 0.25


def build_cells(xp: Any, where: Callable[..., Any]) -> SimpleNamespace:
    """Return the laws of the marked cells, which are whole numbers kept as floats.

    Arguments are those of :func:`pmm_mcmc.langevin.flows.build_flows`.
    """

    @register_jitable
    def one_cell(uniform, K, power):
        """Return the marked cell of Option 2 from a uniform number."""
        fraction = uniform if power == 0.0 else uniform ** (1.0 / (1.0 + power))
        return xp.minimum(xp.floor(fraction * K), K - 1.0)

    @register_jitable
    def next_cell(cell, uniform, K):
        """Return the next marked cell of Option 1 after ``cell`` (-1 at first); K or more if there is none."""
        # The gap is geometric with success probability 1 / K; a single cell is always marked.
        missed = xp.log1p(-where(K > 1, 1.0 / K, 0.5))
        gap = xp.floor(xp.minimum(xp.log1p(-uniform) / missed, 1.0 * K))
        return cell + 1.0 + where(K > 1, gap, 0.0)

    return SimpleNamespace(one_cell=one_cell, next_cell=next_cell)


_cells = build_cells(np, select)
one_cell = _cells.one_cell
next_cell = _cells.next_cell


@register_jitable
def inverse_probability(cell: Any, K: Any, power: Any) -> Any:
    """Return the inverse of the probability that a cell is marked."""
    if power == 0.0:
        return 1.0 * K
    return 1.0 / (((cell + 1.0) / K) ** (1.0 + power) - (cell / K) ** (1.0 + power))


@register_jitable
def cell_weight(remaining: Flow, cell: Flow, inverse: Any) -> tuple[Any, Any]:
    """Return the weight of a cell, on position and velocity.

    ``remaining`` is the flow from the end of the cell to that of the step, ``cell`` that over the cell, and ``inverse``
    is :func:`inverse_probability`.
    """
    return (
        inverse * (remaining.a_uu * cell.g_u + remaining.a_uv * cell.g_v),
        inverse * (remaining.a_vu * cell.g_u + remaining.a_vv * cell.g_v),
    )


@register_jitable
def continuous_weight(remaining: Flow, alpha: Any, has_velocity: Any) -> tuple[Any, Any]:
    """Return the weight of a midpoint of the continuous law; ``remaining`` is the flow from it to the step's end."""
    if has_velocity:
        return alpha * remaining.a_uv, alpha * remaining.a_vv
    return alpha * remaining.a_uu, 0.0 * alpha

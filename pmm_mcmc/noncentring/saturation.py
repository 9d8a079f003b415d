"""The scale of a sink, written once over the namespace of an array library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["build_saturation"]


def build_saturation(xp: Any, where: Callable[..., Any]) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return the function of log scale ``v`` and ceiling that gives ``L`` and ``w``.

    Parameters
    ----------
    xp
        Array namespace: ``numpy`` or ``jax.numpy``.
    where
        ``where(condition, a, b)``: ``xp.where`` for arrays, :func:`pmm_mcmc.coefficients.select` for scalars.
    """

    def saturate(v, ceiling):
        """Return the log scale ``v`` below a ceiling, perhaps infinite, and its derivative by ``v``."""
        above = xp.exp(-2.0 * xp.abs(v - ceiling))
        w = where(v < ceiling, 1.0, above) / (1.0 + above)
        return xp.minimum(v, ceiling) - 0.5 * xp.log1p(above), w

    return saturate

"""What the kernels of a group of chains share, traced by JAX: their counts, and work for a few of them in batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

# A batch is this share of a group (one over it).
_SHARE = 16

# Positions (n, d) to log densities (n, 1), evaluations (n, width) and drifts (n, d).
Drift = Callable[[Any], tuple[Any, Any, Any]]


class Counts(NamedTuple):
    """Statistics of a transition of each chain, ``(g,)``; see :class:`pmm_mcmc.engines.contract.Chunk`."""

    accept: Any
    n_grad: Any
    unstable: Any
    refined: Any
    model_failures: Any


def total(x: Any) -> Any:
    """Return sums over coordinates, ``(n, 1)``."""
    return jnp.sum(x, axis=-1, keepdims=True)


def as_count(x: Any) -> Any:
    """Return a column ``(g, 1)`` as integers ``(g,)``."""
    return x.astype(jnp.int32)[:, 0]


def choose(condition: Any, new: Any, old: Any) -> Any:
    """Return the arrays of ``new`` where a condition holds, else those of ``old``, whose types stay."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b).astype(b.dtype), new, old)


def renew_few(selected: Any, tree: Any, renew: Callable[[Any], Any]) -> Any:
    """Return a tree of arrays ``(g, ...)`` in which the ``selected`` rows ``(g,)``, which are few, are renewed.

    The indices of selected rows are brought to the front, and as many batches of them as there are go through
    ``renew``, which returns the new values of rows by their indices, as a tree of the same form.
    """
    g = len(selected)
    batch = -(-g // _SHARE)
    ranks = jnp.cumsum(selected, dtype=jnp.int32)
    places = jnp.where(selected, ranks - 1, _SHARE * batch)
    indices = jnp.zeros(_SHARE * batch, jnp.int32).at[places].set(jnp.arange(g, dtype=jnp.int32), mode="drop")

    def some(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        """Renew the rows of one batch."""
        i, values = carry
        batch_rows = lax.dynamic_slice(indices, (i * batch,), (batch,))
        # Surplus rows of the last batch are dropped.
        to = jnp.where(i * batch + jnp.arange(batch) < ranks[-1], batch_rows, g)
        put = lambda old, new: old.at[to].set(new.astype(old.dtype), mode="drop")  # noqa: E731
        return i + 1, jax.tree.map(put, values, renew(batch_rows))

    return lax.while_loop(lambda carry: carry[0] * batch < ranks[-1], some, (0, tree))[1]

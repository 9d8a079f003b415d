"""Counts of gradients that are really evaluated, by a callback in the compiled code."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Counter"]


class Counter:
    """A log density in JAX that counts its gradients, and its values without one, as they are evaluated.

    One for each chain, also of chains in a batch; slow, so for short runs.

    Parameters
    ----------
    density
        The log density, a JAX function of a vector.
    """

    def __init__(self, density: Any):
        import jax

        self.gradients = self.values = 0

        def seen(name):
            def count(_):
                setattr(self, name, getattr(self, name) + 1)
                return np.float64(0)

            # The zero that comes back is added, so that no evaluation is left out and none is made for its own sake.
            return lambda x: jax.pure_callback(count, jax.ShapeDtypeStruct((), np.float64), x, vmap_method="sequential")

        value_seen, gradient_seen = seen("values"), seen("gradients")

        @jax.custom_vjp
        def counting(x):
            return density(x) + value_seen(x)

        def forward(x):
            value, gradient = jax.value_and_grad(density)(x)
            return value, gradient + gradient_seen(x)

        counting.defvjp(forward, lambda gradient, out: (out * gradient,))
        self.density = counting

    def __call__(self, x: Any) -> Any:
        """The log density at x."""
        return self.density(x)

"""The log density of a PyMC model as a JAX function, with the gradient that every other sampler uses."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pymc.model.transform.optimization import freeze_dims_and_data
from pymc.pytensorf import join_nonshared_inputs, rewrite_pregrad


def jax_log_density(model: pm.Model) -> Callable[[Any], Any]:
    """Log density of a model over its raveled unconstrained variables, ``f(x) -> scalar``, in double precision.

    Its derivative is pytensor's gradient of the same graph, evaluated together with the value: JAX does not
    differentiate, and one call of ``jax.value_and_grad`` is one gradient.  All variables must be continuous.
    """
    import jax

    jax.config.update("jax_enable_x64", True)
    frozen = freeze_dims_and_data(model)
    by_name = {v.name: v for v in frozen.value_vars}
    (logp,), flat = join_nonshared_inputs(
        point=frozen.initial_point(0),
        outputs=[rewrite_pregrad(frozen.logp())],
        inputs=[by_name[v.name] for v in model.continuous_value_vars],
        make_inputs_shared=False,
    )
    with warnings.catch_warnings():
        # Checks of parameters cannot be traced: out of their range the log density is not finite or not meaningful.
        warnings.filterwarnings("ignore", "Skipping", UserWarning)
        compiled = pytensor.function([flat], [logp, pytensor.grad(logp, flat)], mode="JAX", trust_input=True)
    # The traceable function behind a compiled one has no public name.
    both = compiled.vm.jit_fn
    shared = [jax.numpy.asarray(s.get_value(borrow=True)) for s in compiled.get_shared()]

    @jax.custom_vjp
    def log_density(x):
        return both(x, *shared)[0]

    log_density.defvjp(lambda x: tuple(both(x, *shared)), lambda gradient, out: (out * gradient,))
    return log_density


def starts(model: pm.Model, chains: int, seed: int, log_density: Callable[[np.ndarray], Any]) -> np.ndarray:
    """Starting points within one unit of the model's initial point, of finite log density, shape (chain, d)."""
    rng = np.random.default_rng(seed)
    point = model.initial_point(0)
    centre = np.concatenate([np.ravel(point[v.name]) for v in model.continuous_value_vars]).astype(float)
    found: list[np.ndarray] = []
    for _ in range(100 * chains):
        x = centre + rng.uniform(-1.0, 1.0, size=centre.size)
        if np.isfinite(log_density(x)):
            found.append(x)
        if len(found) == chains:
            return np.stack(found)
    raise RuntimeError("the log density is not finite around the model's initial point: give the model initvals")

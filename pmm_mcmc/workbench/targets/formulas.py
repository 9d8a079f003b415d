"""Targets defined by one formula that PyTensor and JAX both evaluate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from pmm_mcmc.workbench.targets.target import Target, labels_of

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["from_formula"]

Formula = Callable[[Any, Any], Any]


def from_formula(formula: Formula, variable: str, shape: tuple[int, ...], **rest: Any) -> Target:
    """Return the target with log density ``formula(x, xp)`` of one array; ``xp`` is ``pytensor.tensor`` or JAX's."""
    return Target(
        build=partial(_in_pymc, formula, variable, shape),
        log_density_of=partial(_in_jax, formula=formula, shape=shape),
        labels=labels_of(**{variable: shape}),
        **rest,
    )


def _in_pymc(formula: Formula, variable: str, shape: tuple[int, ...]) -> pm.Model:
    import pymc as pm
    import pytensor.tensor as pt

    with pm.Model() as model:
        x = pm.Flat(variable, shape=shape)
        pm.Potential("log_density", formula(x, pt))
    return model


def _in_jax(q: Any, formula: Formula, shape: tuple[int, ...]) -> Any:
    import jax.numpy as jnp

    return formula(q.reshape(shape), jnp)

"""Checks of the arguments of ``compare``, before anything runs."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pmm_mcmc.steps.base import LangevinStep
from pmm_mcmc.workbench import targets
from pmm_mcmc.workbench.comparison.peers import PEERS
from pmm_mcmc.workbench.comparison.runs import FEWEST, name_of

__all__ = ["check_numbers", "named_samplers", "posterior_of", "seed_of"]


def seed_of(random_seed: Any) -> int:
    """Return an integer from a seed of any of NumPy's kinds; raise ``ValueError`` for others."""
    if isinstance(random_seed, np.random.Generator):
        return int(random_seed.integers(2**31))
    if isinstance(random_seed, np.random.SeedSequence):
        return int(random_seed.generate_state(1)[0])
    if isinstance(random_seed, bool) or not isinstance(random_seed, numbers.Integral) or random_seed < 0:
        raise ValueError(
            f"random_seed={random_seed!r}: must be a non-negative integer, or a Generator or SeedSequence of NumPy"
        )
    return int(random_seed)


def check_numbers(*, n_grad: Any, chains: Any) -> None:
    """Raise ``ValueError`` for wrong or too small numbers."""
    for name, value, least in (("chains", chains, 2), ("n_grad", n_grad, 0)):
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
            raise ValueError(f"{name}={value!r}: must be an integer of at least {least}")
    if n_grad < 2 * FEWEST * chains:
        raise ValueError(f"n_grad={n_grad}: is for all {chains} chains; give at least {2 * FEWEST * chains}")


def posterior_of(given: Any) -> tuple[Any, Any, str]:
    """Return the target (None for a model), the model and a title."""
    import pymc as pm

    if isinstance(given, str):
        given = targets.get(given)
    if isinstance(given, pm.Model):
        target, model, title = None, given, given.name or "Your model"
    elif hasattr(given, "reference") and callable(getattr(given, "model", None)):
        target, model, title = given, given.model(), given.title
    else:
        raise TypeError(
            f"model_or_target={given!r}: must be a PyMC model, a target of pmm.workbench.targets, or the name of one"
        )
    discrete = [value.name for value in model.value_vars if value not in model.continuous_value_vars]
    if discrete:
        raise ValueError(
            f"{', '.join(discrete)}: discrete variables have no gradient to count; marginalise them out first"
        )
    if not model.continuous_value_vars:
        raise ValueError("model_or_target: the model has no free variable; there is nothing to sample")
    return target, model, title


def named_samplers(samplers: Any, model: Any) -> dict[str, Any]:
    """Check the samplers, and name them."""
    if isinstance(samplers, str) or not isinstance(samplers, Sequence | Mapping):
        raise TypeError(f"samplers={samplers!r}: must be a list, such as [pmm.PoissonULMC(), 'nuts'], or a dict")
    if not samplers:
        raise ValueError("samplers: is empty; name at least one")
    pairs = list(samplers.items()) if isinstance(samplers, Mapping) else [(None, sampler) for sampler in samplers]
    named: dict[str, Any] = {}
    for given, sampler in pairs:
        if isinstance(sampler, str):
            if sampler not in PEERS:
                raise ValueError(f"samplers: {sampler!r} is unknown; the ones with a name are {', '.join(PEERS)}")
            name = {"default": "pmm.sample", "nuts": "NUTS", "nutpie": "nutpie"}[sampler]
        elif not isinstance(sampler, LangevinStep):
            raise TypeError(
                f"samplers: {sampler!r} is none; take 'default', steps such as pmm.PoissonULMC() (with brackets), "
                "'nuts' or 'nutpie'"
            )
        else:
            name = name_of(sampler)
            if sampler.model is not None and sampler.model is not model:
                raise ValueError(f"samplers: {name} was made for another model; make it outside any")
            if not sampler.keep_gradients:
                raise ValueError(f"samplers: {name} has keep_gradients=False; leave it out, the table needs gradients")
        name = name if given is None else str(given)
        if name in named:
            raise ValueError(f"samplers: {name} is there twice; leave one out, or give names with a dict")
        named[name] = sampler
    return named

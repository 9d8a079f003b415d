"""Compiled functions of a PyMC model, cached on the model and freed with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pymc as pm
import pytensor

__all__ = ["model_cache", "state_of"]


class _Cache(dict[str, dict[Any, Any]]):
    """A part of a model that is neither copied nor pickled with it: addresses of machine code mean nothing there."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_Cache, ())


def model_cache(model: pm.Model, what: str) -> dict[Any, Any]:
    """Return the dictionary of a kind of things that are compiled once for a model.

    It is an attribute of the model: what is compiled refers to the model's variables, so that a dictionary of all
    models, even one with weak references to them, would keep each of them, and its machine code, for ever.
    """
    return model.__dict__.setdefault("_pmm_mcmc", _Cache()).setdefault(what, {})


def state_of(model: pm.Model, vars: Sequence[Any]) -> tuple[Any, ...]:
    """Return what changes if variables are added to a model, or the precision of its graphs is another."""
    variables = (*vars, *model.basic_RVs, *model.potentials, *model.deterministics)
    return (*map(id, variables), pytensor.config.floatX)

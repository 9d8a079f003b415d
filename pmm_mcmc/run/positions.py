"""Positions of a plan's model: starts of chains, the density there, and unconstrained positions from named values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytensor
import xarray as xr
from pymc.exceptions import SamplingError
from pytensor.compile.mode import Mode
from pytensor.graph.replace import clone_replace

from pmm_mcmc.engines.contract import Engine, evaluated_at, in_model_coordinates, log_det_of
from pmm_mcmc.model.checks import bad_start_message, failing_check
from pmm_mcmc.model.functions import building
from pmm_mcmc.model.initial_points import (
    INITIAL,
    JITTER,
    initial_draws,
    model_starts,
    prior_draws,
    spread_starts,
    vector_starts,
)
from pmm_mcmc.model.pymc_density import flat_layout
from pmm_mcmc.run.plan import SamplingPlan

__all__ = ["Unconstraining", "check_near", "density_at", "draws_of_prior", "starts", "unconstraining_of"]


def starts(plan: SamplingPlan, rng: np.random.Generator) -> np.ndarray:
    """Return the initial points ``(chain, d)`` of the chains, all with a finite log density and gradient."""
    d = plan.engine.d
    model = plan.model
    initvals = plan.request.initvals
    chains = plan.request.chains
    if model is not None:
        points, jitter = model_starts(model, model.value_vars, initvals, chains)
    elif initvals is None:
        points = np.zeros((chains, d))
        jitter = True
    else:
        named = None if plan.density is None else plan.density.start
        points = vector_starts(named, initvals, chains, d)
        jitter = False
    if jitter:
        width = INITIAL if model is None else JITTER
        groups = plan.request.superchains
        spread = spread_starts(points[0], chains, groups, lambda x: _gradient_at(plan.engine, x), rng, width)
        if model is not None:
            _refuse_broken_sums(plan, points[0])
        if spread is not None:
            if model is not None and (spread == points[0]).all(axis=1).any():
                _refuse_lonely(plan, points[0], rng)
            return spread
    bad = np.flatnonzero(~np.isfinite(_gradient_at(plan.engine, points)).all(axis=1))
    if bad.size:
        raise _bad_start(plan, points[bad[0]], int(bad[0]))
    return points


def draws_of_prior(plan: SamplingPlan, rng: np.random.Generator) -> np.ndarray:
    """Return draws ``(n, d)`` of the prior in the model's coordinates; of Stan's uniform starts if it has none."""
    key = rng.integers(2**62, size=2)
    if plan.model is not None:
        return prior_draws(plan.model, plan.model.value_vars, key)
    drawn = None if plan.density is None or plan.density.prior is None else plan.density.prior(key)
    return initial_draws(plan.engine.d, key) if drawn is None or not len(drawn) else drawn


def _gradient_at(engine: Engine, x: np.ndarray) -> np.ndarray:
    """Return gradients at the model's positions ``(n, d)``, with respect to the coordinates of the start."""
    density_parameters = _parameters(engine)
    return engine.gradient_at(engine.structure.to_z(x, density_parameters)[0], density_parameters)


def density_at(engine: Engine, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log densities ``(n,)`` and gradients at the model's positions ``(n, d)``; NaN where not finite."""
    density_parameters = _parameters(engine)
    z, _ = engine.structure.to_z(x, density_parameters)
    lp, evaluation = evaluated_at(engine.evaluate, z, density_parameters)
    return lp - log_det_of(evaluation, engine.d), in_model_coordinates(z, evaluation)[1]


def _parameters(engine: Engine) -> np.ndarray | None:
    """Return the non-centring of a start; None without hierarchy: a ladder's density has other parameters."""
    return None if engine.structure.is_identity else engine.structure.initial_noncentring()


def _refuse_lonely(plan: SamplingPlan, start: np.ndarray, rng: np.random.Generator) -> None:
    """Raise an error if the log density is finite at the model's start alone, as at parameters that make data of 0."""
    near = start + 1e-3 * rng.uniform(-1.0, 1.0, size=(10, len(start)))
    if not np.isfinite(_gradient_at(plan.engine, near)).all(axis=1).any():
        raise SamplingError(bad_start_message(plan.model, _point(plan, near[0]), "near the initial point"))


def _refuse_broken_sums(plan: SamplingPlan, start: np.ndarray) -> None:
    """Raise an error if a check of a sum, which rounding breaks, fails at most positions around a model's start."""
    near = start + JITTER * np.random.default_rng(0).uniform(-1.0, 1.0, size=(10, len(start)))
    bad = np.flatnonzero(~np.isfinite(_gradient_at(plan.engine, near)).all(axis=1))
    if 2 * len(bad) > len(near):
        point = _point(plan, near[bad[0]])
        check = failing_check(plan.model, point)
        if check is not None and "sum" in check[0]:
            raise SamplingError(bad_start_message(plan.model, point, "near the initial point"))


def check_near(plan: SamplingPlan, draws: np.ndarray) -> tuple[str, str] | None:
    """Return a check of a model's log density that fails near draws ``(n, d)``, and what helps; None if none does."""
    if plan.model is None or len(draws) < 2:
        return None
    near = draws + np.roll(draws, 1, axis=0) - np.roll(draws, 2, axis=0)
    bad = np.flatnonzero(~np.isfinite(density_at(plan.engine, near)[0]))
    return failing_check(plan.model, _point(plan, near[bad[0]])) if bad.size else None


def _point(plan: SamplingPlan, position: np.ndarray) -> dict[str, np.ndarray]:
    """Return a position of a model by variable."""
    point = {}
    start = 0
    for name, shape, size, dtype in flat_layout(plan.model.value_vars, plan.model.initial_point(0)):
        point[name] = position[start : start + size].reshape(shape).astype(dtype)
        start += size
    return point


def _bad_start(plan: SamplingPlan, position: np.ndarray, chain: int) -> Exception:
    if plan.model is None:
        reason = plan.density.explain(position) if plan.density is not None else ""
        return SamplingError(
            f"the log density or its gradient is not finite where chain {chain} starts ({position})"
            f"{': ' * bool(reason)}{reason}. Give initvals="
        )
    return SamplingError(bad_start_message(plan.model, _point(plan, position)))


class Unconstraining:
    """The map from values of the free variables of a plan, by their ``names``, to its positions."""

    def __init__(self, plan: SamplingPlan):
        self._density = plan.density
        self._layout = plan.layout
        self._d = plan.engine.d
        self._function: Any = None
        values = plan.layout.values(np.zeros((1, 1, self._d)))
        if plan.model is not None:
            self._function = unconstraining_of(plan.model)
            self.names = [rv.name for rv in plan.model.free_RVs]
        elif plan.density is not None and plan.density.start is not None:
            self.names = [name for name in values if self._is_free(name, values[name][0, 0])]
        else:
            self.names = list(values)

    def _is_free(self, name: str, value: np.ndarray) -> bool:
        """Return whether a variable of the result is one of the density, by whether chains may start at its value."""
        assert self._density is not None and self._density.start is not None
        try:
            self._density.start({name: value})
        except ValueError:
            return False
        return True

    def values_at(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return the values ``(n, *shape)`` by name at positions ``(n, d)``."""
        values = self._layout.values(x[None])
        return {name: values[name][0] for name in self.names}

    def of_posterior(self, posterior: xr.Dataset) -> np.ndarray:
        """Return the positions ``(n, d)`` of draws, chain by chain."""
        missing = [name for name in self.names if name not in posterior]
        if missing:
            raise ValueError(f"dt: has no {missing[0]!r}, a variable of the model; give the model of the result")
        arrays = {name: posterior[name].transpose("chain", "draw", ...).values for name in self.names}
        return self.of_values({name: array.reshape(-1, *array.shape[2:]) for name, array in arrays.items()})

    def of_values(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the positions ``(n, d)`` of values ``(n, *shape)`` by name, NaN where there is none."""
        arrays = [np.asarray(values[name]) for name in self.names]
        x = np.full((len(arrays[0]), self._d), np.nan)
        for i in range(len(x)):
            try:
                x[i] = self._position({name: array[i] for name, array in zip(self.names, arrays, strict=True)})
            except ValueError:  # outside of a support
                continue
        return x

    def _position(self, values: dict[str, np.ndarray]) -> np.ndarray:
        with np.errstate(all="ignore"):
            if self._function is not None:
                return np.concatenate([np.ravel(array) for array in self._function(*values.values())])
            if self._density is not None and self._density.start is not None:
                return self._density.start(values)
            return np.concatenate([np.ravel(array) for array in values.values()])


def unconstraining_of(model: Any) -> Any:
    """Return a function from the values of a PyMC model's free variables to their unconstrained ones."""
    inputs = [rv.type(name=rv.name) for rv in model.free_RVs]
    transforms = [model.rvs_to_transforms[rv] for rv in model.free_RVs]
    outputs = [
        rv if transform is None else transform.forward(rv, *rv.owner.inputs)
        for rv, transform in zip(model.free_RVs, transforms, strict=True)
    ]
    with building():
        outputs = clone_replace(outputs, dict(zip(model.free_RVs, inputs, strict=True)), rebuild_strict=False)
        mode = Mode(linker="py", optimizer=None)
        return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")

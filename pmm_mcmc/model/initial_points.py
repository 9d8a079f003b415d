"""Initial points of chains."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pmm_mcmc.model.functions import building, model_cache, state_of

# Tries for a start, and after how many of them the box that it is drawn from changes.
_TRIES = 20
_TRIES_OF_A_BOX = 4
# Half the sides of the boxes that starts are drawn from: PyMC's jitter around a model's own start, and, without one,
# Stan's initial distribution around the origin.  Of ten runs of Stan's Lotka-Volterra model that started within 1 of
# the origin three ended among modes without mass, of ten that started within 2 none.
JITTER = 1.0
INITIAL = 2.0
# Largest number of prior draws for the search for modes (pmm_mcmc.diagnostics.mode_search), and of numbers in them.
_PRIOR_DRAWS = 24
_PRIOR_NUMBERS = 2**20


def spread_starts(
    centre: np.ndarray,
    chains: int,
    superchains: int | None,
    gradient_at: Callable[[np.ndarray], np.ndarray],
    rng: np.random.Generator,
    width: float = JITTER,
) -> np.ndarray | None:
    """Return random starts ``(chain, d)`` within ``width`` of ``centre``, half the side of the first box.

    Later tries are from boxes nearer to the centre or, if log density or gradient are not finite there, from larger
    ones.  The chains of a superchain share a start; without ``superchains`` each has its own.  ``gradient_at`` returns
    gradients at positions ``(n, d)``, NaN where a value is not finite.  Returns None if no start with a finite gradient
    was found for a chain, and ``centre`` is none.
    """

    def centre_is_finite() -> bool:
        return bool(np.isfinite(gradient_at(centre[None])).all())

    count = superchains or chains
    starts = np.tile(centre, (count, 1))
    missing = np.arange(count)
    factor = 1.0
    for i in range(_TRIES):
        if i == _TRIES_OF_A_BOX:
            factor = 0.5 if centre_is_finite() else 2.0
        tried = centre + width * factor ** (i // _TRIES_OF_A_BOX) * rng.uniform(-1.0, 1.0, size=(count, len(centre)))
        good = np.isfinite(gradient_at(tried[missing])).all(axis=1)
        starts[missing[good]] = tried[missing[good]]
        missing = missing[~good]
        if not missing.size:
            break
    if missing.size and not centre_is_finite():
        return None
    return starts[np.arange(chains) * count // chains]


def for_chains(initvals: Any, chains: int) -> list[Any]:
    """Return the values of each start: one for all chains, or one per chain."""
    if not isinstance(initvals, list | tuple):
        return [initvals]
    if len(initvals) != chains:
        raise ValueError(
            f"initvals has {len(initvals)} entries: must be one dict, or a list of one for each of {chains} chains"
        )
    return list(initvals)


def checked_values(
    values: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], whose: str
) -> dict[str, np.ndarray]:
    """Return values by name as arrays, after a check of their names and shapes."""
    arrays = {}
    for name, value in values.items():
        if name not in shapes:
            raise ValueError(f"initvals: {name!r} is no variable of {whose}, which has {', '.join(shapes)}")
        try:
            arrays[name] = np.asarray(value, dtype=float)
        except (TypeError, ValueError):
            arrays[name] = np.empty((0,) * (1 + len(shapes[name])))
        if arrays[name].shape != tuple(shapes[name]):
            raise ValueError(f"initvals[{name!r}]={value!r}: must be numbers of shape {tuple(shapes[name])}")
    return arrays


def _point_function(model: Any, overrides: Mapping[str, Any] | None) -> Callable[[int], dict[str, np.ndarray]]:
    """Return PyMC's function from a seed to a point of the model, compiled once where no value is given as numbers."""
    from pymc.initial_point import make_initial_point_fn

    options = {"model": model, "overrides": overrides, "return_transformed": True}
    values = (*model.rvs_to_initial_values.values(), *(overrides or {}).values())
    if not all(value is None or isinstance(value, str) for value in values):
        return make_initial_point_fn(**options)
    functions = model_cache(model, "points")
    transforms = [model.rvs_to_transforms[rv] for rv in model.free_RVs]
    key = (state_of(model, model.free_RVs), *map(id, transforms), *values)
    if key not in functions:
        # With variables and transforms their ids are not used again.
        with building():
            functions[key] = make_initial_point_fn(**options), transforms, list(model.free_RVs)
    return functions[key][0]


def initial_point(model: Any) -> dict[str, np.ndarray]:
    """Return ``model.initial_point(0)``, by a function that is compiled once."""
    return {name: np.array(value) for name, value in _point_function(model, None)(0).items()}


def flat_position(point: Mapping[str, Any], vars: Any) -> np.ndarray:
    """Return the values of variables at a point, in their order, as one vector ``(d,)``."""
    return np.concatenate([np.zeros(0), *(np.ravel(point[var.name]).astype(float) for var in vars)])


def model_starts(model: Any, vars: Any, initvals: Any, chains: int) -> tuple[np.ndarray, bool]:
    """Return initial points ``(chain, d)`` of a model, and whether they are the model's default.

    ``vars`` are the model's value variables in flat order.  ``initvals`` are those of ``pm.sample``, checked by
    :func:`pmm_mcmc.model.checks.check_initvals`: values of random variables by name, or a list of them, one per chain.
    """
    names = {*(rv.name for rv in model.free_RVs), *(var.name for var in vars)}  # not those that are integrated out
    points = []
    for values in for_chains(initvals, chains):
        within = None if values is None else {n: v for n, v in values.items() if getattr(n, "name", n) in names}
        points.append(flat_position(_point_function(model, within)(0), vars))
    return np.stack(points)[np.arange(chains) % len(points)], initvals is None


def vector_starts(
    named: Callable[[Mapping[str, Any]], np.ndarray] | None, initvals: Any, chains: int, d: int
) -> np.ndarray:
    """Return initial points ``(chain, d)`` of a log density that is no PyMC model.

    ``initvals`` are an array ``(d,)`` or ``(chains, d)``; values by name, or a list of them, one per chain.  ``named``
    is the map from values by name to the vector, if its variables have names.
    """
    arrays = f"must be an array of shape ({d},) or ({chains}, {d}), in unconstrained coordinates"
    several = list(initvals) if isinstance(initvals, list | tuple) else [initvals]
    if several and all(isinstance(values, Mapping) for values in several):
        if named is None:
            raise ValueError(f"initvals={initvals!r}: the LogDensity has one vector and no names; {arrays}")
        points = np.stack([named(values) for values in for_chains(initvals, chains)])
        return points[np.arange(chains) % len(points)]
    names = ", or a dict of values by name" * (named is not None)
    try:
        points = np.asarray(initvals, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(f"initvals={initvals!r}: {arrays}{names}") from None
    if points.shape not in ((d,), (chains, d)):
        raise ValueError(f"initvals has shape {points.shape}: {arrays}{names}")
    return np.broadcast_to(points, (chains, d)).copy()


def count_of_draws(d: int) -> int:
    """Return the number of prior draws of ``d`` coordinates that the search for modes looks at."""
    return min(_PRIOR_DRAWS, 1 + _PRIOR_NUMBERS // max(1, d))


def initial_draws(d: int, key: np.ndarray) -> np.ndarray:
    """Return draws ``(n, d)`` that are uniform within 2 of the origin, where Stan starts its chains.

    They stand for a prior that nobody can draw from: on the model's own scale, which may be thousands of posterior
    standard deviations away.
    """
    return np.random.default_rng(key).uniform(-INITIAL, INITIAL, size=(count_of_draws(d), d))


def prior_draws(model: Any, vars: Any, key: np.ndarray) -> np.ndarray:
    """Return draws ``(n, d)`` of a model's prior in unconstrained coordinates; where it is improper, of Stan's starts.

    They depend on ``key``, two integers; ``vars`` are the model's value variables in flat order.
    """
    d = flat_position(initial_point(model), vars).size
    seeds = np.random.default_rng(key).integers(2**30, size=_PRIOR_DRAWS)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            draw = _point_function(model, {rv.name: "prior" for rv in model.free_RVs})
            return np.stack([flat_position(draw(int(seed)), vars) for seed in seeds[: count_of_draws(d)]])
    except Exception:  # a flat prior, or one that cannot be drawn from
        return initial_draws(d, key)

"""Checks of a PyMC model and of initial values, made before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm
from pymc.logprob.utils import ParameterValueError
from pymc.util import get_transformed_name
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor import as_tensor
from pytensor.tensor.random.op import RandomVariable

from pmm_mcmc.model.families import family_of
from pmm_mcmc.model.initial_points import checked_values, for_chains
from pmm_mcmc.model.interpreted import python_function

__all__ = [
    "check_direction",
    "check_discrete",
    "check_free",
    "check_initvals",
    "check_model",
    "flat_priors",
    "missing_data",
    "model_of",
]

# What PyMC appends to the name of data for their missing values.
_IMPUTED = "_unobserved"
# Most coordinates of a model with flat priors whose posterior is looked at for a direction without end.
_MOST_COORDINATES = 200


def model_of(model: Any) -> Any:
    """Return a model or, for None, that of the context; raise ``TypeError`` if there is none."""
    try:
        return pm.modelcontext(model)
    except TypeError:
        raise TypeError("model=None, outside `with model:`: give model=, or call this inside the model") from None


def check_free(model: pm.Model) -> None:
    """Raise ``ValueError`` if a model has no free variables."""
    if not model.free_RVs:
        raise ValueError(
            "the model has no free variables, so there is nothing to sample: all of them are observed, or it is empty; "
            "leave observed= out where a value is to be inferred"
        )


def check_discrete(model: pm.Model, otherwise: str) -> None:
    """Raise ``ValueError`` if a model has free discrete variables; ``otherwise`` ends the message."""
    discrete = [model.values_to_rvs[v].name for v in model.value_vars if v not in model.continuous_value_vars]
    imputed = [name.removesuffix(_IMPUTED) for name in discrete if name.endswith(_IMPUTED)]
    if imputed:
        raise ValueError(
            f"{', '.join(imputed)}: has missing values (NaN), of which PyMC makes discrete variables; leave these rows "
            "of the data out: they say nothing about the other variables"
        )
    others = [rv for rv in model.free_RVs if rv.name not in discrete]
    needed = set(ancestors([*model.observed_RVs, *model.potentials, *others]))
    if discrete and not any(model[name] in needed for name in discrete):
        raise ValueError(
            f"{', '.join(discrete)}: discrete variables without data below them are predictions: leave them out of the "
            "model, add them after sampling, and draw them with pm.sample_posterior_predictive(dt, "
            f"var_names={discrete!r})"
        )
    if discrete:
        raise ValueError(
            f"{', '.join(discrete)}: discrete variables have no gradient; marginalise them out, with "
            f"`import pymc_extras as pmx; model = pmx.marginalize(model, {discrete!r})`{otherwise}"
        )


def check_model(model: pm.Model, point: Mapping[str, np.ndarray], method: str) -> None:
    """Raise ``ValueError`` for a model that ``pmm.sample`` cannot sample, or whose posterior is improper."""
    check_free(model)
    check_discrete(model, f", or use pm.sample(step=pmm.{method}()), where PyMC samples them by a method of its own")
    for rv in flat_priors(model):
        if rv not in set(ancestors([other for other in (*model.basic_RVs, *model.potentials) if other is not rv])):
            proper = "HalfNormal" if "Half" in family_of(rv) else "Normal"
            raise ValueError(
                f"{rv.name}: the posterior is improper, since the prior of {rv.name} is flat and no data depend on it; "
                f'give it a proper prior, such as pm.{proper}("{rv.name}", sigma=10), or use it in the likelihood'
            )
    missing = missing_data(model, point)
    if missing:
        raise ValueError(missing)


def flat_priors(model: pm.Model) -> list[Any]:
    """Return the free variables with a flat prior."""
    return [rv for rv in model.free_RVs if family_of(rv) in ("FlatRV", "HalfFlatRV")]


def missing_data(model: pm.Model, point: Mapping[str, np.ndarray]) -> str:
    """Say which data are NaN where that makes the log density NaN at a point; "" where nothing is."""
    data = ancestors([*model.basic_RVs, *model.potentials, *model.rvs_to_values.values()])
    remedy = "leave these out, or pass observed= the array itself: PyMC makes variables of its missing values"
    held = {node: array for node in data if (array := _held(node)) is not None}
    for node, array in held.items():
        if np.ma.is_masked(array):  # as pm.set_data leaves them
            return f"{node.name}: {np.ma.count_masked(array)} of {array.size} data are missing; {remedy}"
    for rv in model.observed_RVs:
        array = held.get(model.rvs_to_values[rv], np.zeros(0))
        if np.isinf(array).any():
            return f"{rv.name}: {np.isinf(array).sum()} of {array.size} observed values are infinite; leave these out"
    if not any(np.isnan(array).any() for array in held.values()):
        return ""
    for term in (*model.observed_RVs, *model.potentials):
        graph = model.logp(vars=[term], sum=False)[0]
        inputs = [var for var in model.value_vars if var in set(ancestors([graph]))]
        try:
            (values,) = python_function(inputs, [graph])(*(point[var.name] for var in inputs))
        except ParameterValueError:  # of a distribution that refuses a NaN
            return f"{term.name}: data that it depends on are NaN; leave these rows out"
        indices = np.argwhere(np.isnan(values))
        if len(indices):
            place = f", the first at {indices[0].tolist()}" if values.ndim else ""
            return (
                f"{term.name}: {len(indices)} of {values.size} log densities are NaN{place}, since data are; {remedy}"
            )
    return ""


def _held(node: Any) -> np.ndarray | None:
    """Return the floating point numbers of constants and of shared data."""
    held = node.data if isinstance(node, Constant) else None
    held = node.get_value(borrow=True) if isinstance(node, SharedVariable) else held
    return held if isinstance(held, np.ndarray) and held.dtype.kind == "f" else None


def check_initvals(model: pm.Model, initvals: Any, chains: int) -> None:
    """Raise ``ValueError`` unless ``initvals`` are values of variables of the model, in their shapes."""
    for values in for_chains(initvals, chains):
        if values is None:
            continue
        if not isinstance(values, Mapping):
            raise ValueError(f"initvals={values!r}: must be a dict of values by name, or a list of them")
        shapes: dict[Any, Any] = {rv.name: rv.type.shape for rv in model.free_RVs}
        named: dict[Any, Any] = {getattr(name, "name", name): value for name, value in values.items()}
        transformed: set[Any] = {
            get_transformed_name(rv.name, transform)
            for rv in model.free_RVs
            if (transform := model.rvs_to_transforms[rv]) is not None
        }
        if transformed & set(named) or any(None in shapes.get(name, ()) for name in named):
            shapes = {n: tuple(map(int, s)) for n, s in model.eval_rv_shapes().items() if n in shapes or n in named}
        # Other values are ways to find one, such as "prior".
        numbers = {n: v for n, v in named.items() if n not in shapes or not _is_strategy(v)}
        for name, value in checked_values(numbers, shapes, "the model").items():
            if name not in transformed and _is_outside(model, model[name], value):
                raise ValueError(f"initvals[{name!r}]={numbers[name]!r}: is not inside the support of {name}")


def _is_outside(model: pm.Model, rv: Any, value: np.ndarray) -> bool:
    """Return whether a value is outside the support of a variable or at its edge, as far as its transform says so."""
    transform = model.rvs_to_transforms[rv]
    if transform is None:
        return False
    unconstrained = transform.forward(as_tensor(value), *rv.owner.inputs)
    if any(node.owner is not None and isinstance(node.owner.op, RandomVariable) for node in ancestors([unconstrained])):
        return False
    with np.errstate(all="ignore"):
        return not np.isfinite(python_function([], [unconstrained])()[0]).all()


def _is_strategy(value: Any) -> bool:
    return value is None or isinstance(value, str | Variable)


def check_direction(
    model: pm.Model, start: np.ndarray, density_at: Callable[..., tuple[np.ndarray, np.ndarray]]
) -> None:
    """Raise ``ValueError`` if flat priors leave a direction in which the posterior does not change, and is improper.

    ``density_at`` returns log densities and gradients at positions ``(n, d)``.  All gradients are orthogonal to such a
    direction, and the log density far along it is that of the start.
    """
    flat = [rv.name for rv in flat_priors(model)]
    d = len(start)
    if not flat or d > _MOST_COORDINATES:
        return
    rng = np.random.default_rng(0)
    x = start + rng.normal(size=(d + 5, d))
    with np.errstate(all="ignore"):
        g = density_at(x)[1]
        g = g[np.isfinite(g).all(axis=1)]
        if len(g) <= d:
            return
        size = np.abs(g).max(axis=0)
        size[size == 0.0] = 1.0
        _, strengths, directions = np.linalg.svd(g / size)
        direction = directions[-1] / size
        direction *= 10.0 / np.abs(direction).max()
        lp = density_at(start + np.array([[0.0], [1.0], [-1.0]]) * direction)[0]
    if strengths[-1] < 1e-12 * strengths[0] and np.allclose(lp[1:], lp[0], rtol=1e-9, atol=1e-9):
        point = model.initial_point(0)
        ends = np.cumsum([0, *(np.size(point[var.name]) for var in model.value_vars)])
        moved = [
            model.values_to_rvs[var].name
            for var, begin, end in zip(model.value_vars, ends[:-1], ends[1:], strict=True)
            if np.abs(direction[begin:end]).max(initial=0.0) > 1e-6
        ]
        raise ValueError(
            f"the posterior is improper: it does not change when {', '.join(moved)} move together, since the prior of "
            f"{', '.join(flat)} is flat; give {'it' if len(flat) == 1 else 'them'} a proper prior, such as pm.Normal"
        )

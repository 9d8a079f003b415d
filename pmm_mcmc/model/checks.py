"""What is wrong with a PyMC model, its data or its starts: checks before compilation, and why a start is bad."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm
from pymc.logprob.utils import ParameterValueError
from pymc.util import get_transformed_name
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor import as_tensor
from pytensor.tensor.random.op import RandomVariable

from pmm_mcmc.model.functions import python_function
from pmm_mcmc.model.hierarchy import family_of
from pmm_mcmc.model.initial_points import checked_values, for_chains

# What a log density raises where a check that is written into it fails.
CHECKS = (ParameterValueError, AssertionError)
_OTHERWISE = "start elsewhere with initvals=, or look at model.debug()"
_FEW_BITS = ("int8", "int16", "uint8", "uint16")
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
    missing = _missing_data(model, point)
    if missing:
        raise ValueError(missing)


def flat_priors(model: pm.Model) -> list[Any]:
    """Return the free variables with a flat prior."""
    return [rv for rv in model.free_RVs if family_of(rv) in ("FlatRV", "HalfFlatRV")]


def _missing_data(model: pm.Model, point: Mapping[str, np.ndarray]) -> str:
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
        try:
            values = _log_density(model, term, point)
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
        numbers = {n: v for n, v in named.items() if n not in shapes or not isinstance(v, str | Variable | None)}
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


def bad_start_message(model: pm.Model, point: Mapping[str, np.ndarray], where: str = "at the initial point") -> str:
    """Return an error message that names the terms whose log density is not finite at a point, and what to do."""
    missing = _missing_data(model, point)
    if missing:
        return missing
    reasons = [reason for term in (*model.basic_RVs, *model.potentials) if (reason := _reason(model, term, point))]
    terms = "; ".join(reasons) or f"none by itself: only the gradient; {_OTHERWISE}"
    return f"the log density or its gradient is not finite {where}. Terms that are not finite: {terms}"


def failing_check(model: pm.Model, point: Mapping[str, np.ndarray]) -> tuple[str, str] | None:
    """Return the check of a log density that fails at a point, and what helps; None if none does."""
    for term in (*model.basic_RVs, *model.potentials):
        try:
            _log_density(model, term, point)
        except CHECKS as error:
            sums, remedy = _of_check(model, term, point, str(error))
            return f"a check of {term.name} fails ({error}{sums})", remedy
        except Exception:
            continue
    return None


def refuse_what_does_not_fit(model: pm.Model, point: Mapping[str, np.ndarray]) -> None:
    """Raise ``ValueError`` if sizes of data or parameters do not fit together, with the term and its sizes."""
    for term in (*model.basic_RVs, *model.potentials):
        try:
            _log_density(model, term, point)
        except CHECKS:
            continue
        except (ValueError, IndexError, TypeError) as error:
            what = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise ValueError(
                f"{term.name}: {_sizes(model, term, point)}do not fit together ({what}); give all data of one size to "
                "the same pm.set_data(), with new coords where a dimension has labels"
            ) from error


def refuse_overflows(model: pm.Model, log_density: Any) -> None:
    """Raise ``ValueError`` if whole numbers of 8 or 16 bits overflow in a log density, as PyTensor holds small ones.

    The square of ``sigma=36`` is 16 there, and the log density stays finite.
    """
    # PyMC computes some of them while it writes the log density.
    for graph in ancestors([log_density, *(graph for rv in model.basic_RVs for graph in rv.owner.inputs)]):
        if graph.owner is None or getattr(graph.type, "dtype", "") not in _FEW_BITS:
            continue
        numbers = [leaf for leaf in ancestors([graph]) if leaf.owner is None]
        if not all(isinstance(leaf, Constant | SharedVariable) for leaf in numbers):
            continue
        floats = {leaf: leaf.astype("float64") for leaf in numbers if getattr(leaf.type, "dtype", "") in _FEW_BITS}
        try:
            exact = clone_replace(graph, floats, rebuild_strict=False)
        except (TypeError, NotImplementedError):  # an index, or an operation on bits
            continue
        value, exact_value = python_function([], [graph, exact])()
        if np.array_equal(value, exact_value):
            continue
        users = [rv.name for rv in model.basic_RVs if not set(numbers).isdisjoint(ancestors(rv.owner.inputs))]
        off = np.asarray(value != exact_value)
        raise ValueError(
            f"{', '.join(users) or 'the log density'}: PyTensor holds its whole numbers in {8 * value.itemsize} bits, "
            f"where {np.asarray(exact_value)[off].flat[0]:g} overflows to {value[off].flat[0]}; write them with a "
            "point, as 100.0, and data as floats"
        )


def _value(model: pm.Model, graph: Any, point: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return a graph of value variables at a point."""
    graph = graph.values if hasattr(graph.type, "dims") else graph
    needed = set(ancestors([graph]))
    inputs = [var for var in model.value_vars if var in needed]
    with np.errstate(all="ignore"):
        return python_function(inputs, [graph])(*(point[var.name] for var in inputs))[0]


def _log_density(model: pm.Model, term: Any, point: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the log densities of the elements of a term at a point."""
    return _value(model, model.logp(vars=[term], sum=False)[0], point)


def _parameters(model: pm.Model, rv: Any, point: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the values of a variable's parameters, as far as they are arrays of numbers."""
    graphs = [each for each in rv.owner.inputs if hasattr(each.type, "dtype")] if rv.owner is not None else []
    values = []
    for graph in model.replace_rvs_by_values(graphs):
        try:
            values.append(_value(model, graph, point))
        except Exception:  # a parameter that is at fault itself, or a component that is random
            continue
    return values


def _sizes(model: pm.Model, term: Any, point: Mapping[str, np.ndarray]) -> str:
    if term not in model.basic_RVs:
        return "its parts "
    shapes = [str(np.shape(each)) for each in _parameters(model, term, point) if np.size(each) > 1]
    try:
        data = _value(model, model.rvs_to_values[term], point).shape if term in model.observed_RVs else ()
    except Exception:
        data = ()
    of_data = f"its data of shape {data} and " * bool(data)
    return f"{of_data}its parameters {'of shape ' + ', '.join(shapes) + ' ' if shapes else ''}"


def _reason(model: pm.Model, term: Any, point: Mapping[str, np.ndarray]) -> str:
    """Return a term with what is wrong with it, and what helps; "" if it is finite."""
    try:
        values = _log_density(model, term, point)
    except CHECKS as error:
        sums, remedy = _of_check(model, term, point, str(error))
        return f"{term.name}, of which a check fails ({error}{sums}); {remedy}"
    bad = ~np.isfinite(values)
    if not bad.any():
        return ""
    value = float(np.asarray(values)[bad].ravel()[0])
    if term in model.observed_RVs:
        data = np.asarray(_value(model, model.rvs_to_values[term], point))
        if bad.shape == data.shape:
            some = ", ".join(f"{each:.4g}" for each in np.unique(data[bad].astype(float))[:3])
            return (
                f"{term.name} ({value}), of {bad.sum()} of its {data.size} data ({some}); are all its data possible? "
                "Leave these out, move them into the support, or choose a distribution that has them there; else "
                f"{_OTHERWISE}"
            )
        return f"{term.name} ({value}); are all its data possible? {_OTHERWISE.capitalize()}"
    return f"{term.name} ({value}); {_OTHERWISE}"


def _of_check(model: pm.Model, term: Any, point: Mapping[str, np.ndarray], message: str) -> tuple[str, str]:
    """Return the sum at which a check fails, and what helps against it."""
    if "sum" in message and term in model.basic_RVs:
        for each in _parameters(model, term, point):
            sums = np.asarray(each, dtype=float).sum(axis=-1) if np.ndim(each) else np.zeros(0)
            off = sums[(np.abs(sums - 1.0) < 0.5) & (sums != 1.0)].ravel()
            if off.size:
                worst = off[np.argmax(np.abs(off - 1.0))]
                remedy = "let the last one take the rest (1 minus the sum of the others), or divide them by their sum"
                return f"; they sum to {worst:.9g} here", remedy
    return "", f"keep its parameters in range by a transformation or their priors; else {_OTHERWISE}"

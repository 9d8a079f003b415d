"""Why the log density of a PyMC model has no finite value at a point: the term, what is wrong with it, what helps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pymc as pm
from pymc.logprob.utils import ParameterValueError
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors

from pmm_mcmc.model.checks import missing_data
from pmm_mcmc.model.interpreted import python_function

__all__ = ["CHECKS", "bad_start_message", "failing_check", "refuse_what_does_not_fit"]

# What a log density raises where a check that is written into it fails.
CHECKS = (ParameterValueError, AssertionError)
_OTHERWISE = "start elsewhere with initvals=, or look at model.debug()"


def bad_start_message(model: pm.Model, point: Mapping[str, np.ndarray], where: str = "at the initial point") -> str:
    """Return an error message that names the terms whose log density is not finite at a point, and what to do."""
    missing = missing_data(model, dict(point))
    if missing:
        return missing
    reasons = [reason for term in (*model.basic_RVs, *model.potentials) if (reason := _reason(model, term, point))]
    terms = "; ".join(reasons) or f"none by itself: only the gradient; {_OTHERWISE}"
    return f"the log density or its gradient is not finite {where}. Terms that are not finite: {terms}"


def failing_check(model: pm.Model, point: Mapping[str, np.ndarray]) -> tuple[str, str] | None:
    """Return the check of a log density that fails at a point, and what helps; None if none does."""
    for term in (*model.basic_RVs, *model.potentials):
        try:
            _values(model, [model.logp(vars=[term], sum=False)[0]], point)
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
            _values(model, [model.logp(vars=[term], sum=False)[0]], point)
        except CHECKS:
            continue
        except (ValueError, IndexError, TypeError) as error:
            what = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise ValueError(
                f"{term.name}: {_sizes(model, term, point)}do not fit together ({what}); give all data of one size to "
                "the same pm.set_data(), with new coords where a dimension has labels"
            ) from error


def _values(model: pm.Model, graphs: list[Any], point: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return graphs of value variables at a point."""
    graphs = [graph.values if hasattr(graph.type, "dims") else graph for graph in graphs]
    needed = set(ancestors(graphs))
    inputs = [var for var in model.value_vars if var in needed]
    with np.errstate(all="ignore"):
        return python_function(inputs, graphs)(*(point[var.name] for var in inputs))


def _parameters(model: pm.Model, rv: Any, point: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return the values of a variable's parameters, as far as they are arrays of numbers."""
    graphs = [each for each in rv.owner.inputs if hasattr(each.type, "dtype")] if rv.owner is not None else []
    values = []
    for graph in model.replace_rvs_by_values(graphs):
        try:
            values += _values(model, [graph], point)
        except Exception:  # a parameter that is at fault itself, or a component that is random
            continue
    return values


def _sizes(model: pm.Model, term: Any, point: Mapping[str, np.ndarray]) -> str:
    if term not in model.basic_RVs:
        return "its parts "
    shapes = [str(np.shape(each)) for each in _parameters(model, term, point) if np.size(each) > 1]
    try:
        data = _values(model, [model.rvs_to_values[term]], point)[0].shape if term in model.observed_RVs else ()
    except Exception:
        data = ()
    of_data = f"its data of shape {data} and " * bool(data)
    return f"{of_data}its parameters {'of shape ' + ', '.join(shapes) + ' ' if shapes else ''}"


def _reason(model: pm.Model, term: Any, point: Mapping[str, np.ndarray]) -> str:
    """Return a term with what is wrong with it, and what helps; "" if it is finite."""
    try:
        (values,) = _values(model, [model.logp(vars=[term], sum=False)[0]], point)
    except CHECKS as error:
        sums, remedy = _of_check(model, term, point, str(error))
        return f"{term.name}, of which a check fails ({error}{sums}); {remedy}"
    bad = ~np.isfinite(values)
    if not bad.any():
        return ""
    value = float(np.asarray(values)[bad].ravel()[0])
    if term in model.basic_RVs and _overflows(term):
        return (
            f"{term.name} ({value}), whose whole numbers PyTensor holds in 8 bits, where their sums and differences "
            "overflow; write them with a point, as 100.0"
        )
    if term in model.observed_RVs:
        data = np.asarray(_values(model, [model.rvs_to_values[term]], point)[0])
        if bad.shape == data.shape:
            some = ", ".join(f"{each:.4g}" for each in np.unique(data[bad].astype(float))[:3])
            return (
                f"{term.name} ({value}), of {bad.sum()} of its {data.size} data ({some}); are all its data possible? "
                "Leave these out, move them into the support, or choose a distribution that has them there; else "
                f"{_OTHERWISE}"
            )
        return f"{term.name} ({value}); are all its data possible? {_OTHERWISE.capitalize()}"
    return f"{term.name} ({value}); {_OTHERWISE}"


def _overflows(rv: Any) -> bool:
    """Return whether sums, differences or products of a variable's constants go beyond 8 bits, in which they are."""
    constants = [
        float(np.max(np.abs(each.data.astype(float))))
        for each in ancestors(rv.owner.inputs)
        if isinstance(each, Constant) and getattr(each.type, "dtype", "") == "int8" and each.data.size
    ]
    return any(a + b > 127 or a * b > 127 for i, a in enumerate(constants) for b in constants[i + 1 :])


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

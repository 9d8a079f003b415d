"""Hashes by which a stored run recognises its model and data, in another process and after the model is rebuilt.

The model's hash is one of expressions, not of objects: an expression is hashed from its operation and the hashes of its
inputs.  Automatic names, order of construction, shared subexpressions and Python's hash seed have no influence.  The
hash covers the terms of the log density and the outputs in a result.  Data enter it by name and type; a second hash
covers their values.
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.random.type import RandomType

__all__ = ["data_fingerprint", "model_fingerprint"]


def model_fingerprint(model: pm.Model, vars: Sequence[Any]) -> str:
    """Return a hash of a model: priors, likelihood, deterministics, shapes, names, coordinates.

    Parameters
    ----------
    model
        A PyMC model.
    vars
        Its value variables, in the order of a flat position.

    Returns
    -------
    str
        SHA-256 in hexadecimal digits, the same in every process with the same versions of PyMC and pytensor.

    Notes
    -----
    Python functions within a model (the random function of a ``CustomDist``, user-defined operations) enter with code,
    defaults and closure, but without the globals that they use.  Initial values are not hashed: they do not change the
    posterior.
    """
    leaves: dict[Any, Any] = {var: ("value", var.name) for var in model.value_vars}
    leaves |= {model.rvs_to_values[rv]: ("observed", rv.name) for rv in model.observed_RVs}
    leaves |= {var: ("data", var.name) for var in model.data_vars if var not in leaves}
    hasher = _Hasher(leaves)
    terms, outputs = _graphs(model)
    coords = {dim: values if values is None else np.asarray(values) for dim, values in model.coords.items()}
    return hasher.of(
        {
            "vars": [(var.name, hasher.type(var.type)) for var in vars],
            "terms": {name: hasher.variable(term) for name, term in terms.items()},
            "outputs": [(var.name, hasher.variable(var)) for var in outputs],
            "observed": [(rv.name, hasher.type(model.rvs_to_values[rv].type)) for rv in model.observed_RVs],
            "data": {var.name: hasher.type(var.type) for var in model.data_vars},
            "coords": coords,
            "dims": {name: list(dims) for name, dims in model.named_vars_to_dims.items()},
            "check_bounds": model.check_bounds,
        }
    ).hex()


def data_fingerprint(model: pm.Model) -> str:
    """Return a hash of the current data of a model: observed values, ``pm.Data`` and other shared values.

    Parameters
    ----------
    model
        A PyMC model.

    Returns
    -------
    str
        SHA-256 in hexadecimal digits.
    """
    hasher = _Hasher({}, values=True)
    observed = {rv.name: model.rvs_to_values[rv] for rv in model.observed_RVs}
    terms, outputs = _graphs(model)
    seen = ancestors([*terms.values(), *outputs])
    shared = dict.fromkeys(v for v in seen if isinstance(v, SharedVariable) and not isinstance(v.type, RandomType))
    return hasher.of(
        {
            "observed": {name: hasher.variable(value) for name, value in observed.items()},
            "data": {var.name: hasher.variable(var) for var in model.data_vars},
            # A set: values without a name have no fixed order.
            "shared": {(var.name or "", hasher.variable(var)) for var in shared},
        }
    ).hex()


def _graphs(model: pm.Model) -> tuple[dict[str, Any], list[Any]]:
    """Return the terms of the log density by name, and the variables that a result contains."""
    factors = [*model.basic_RVs, *model.potentials]
    terms = model.logp(vars=factors, sum=False) if factors else []
    return {var.name: term for var, term in zip(factors, terms, strict=True)}, model.unobserved_value_vars


class _Hasher:
    """Hashes of objects and of graphs down to ``leaves``; with ``values``, shared values are hashed too."""

    def __init__(self, leaves: Mapping[Any, Any], values: bool = False):
        self._values = values
        self._within: set[int] = set()
        self._known: dict[Any, bytes] = {var: self.of(leaf) for var, leaf in leaves.items()}

    # -- graphs ------------------------------------------------------------------------------------------------------

    def variable(self, variable: Variable) -> bytes:
        """Return the hash of an expression."""
        for node in toposort([variable], blockers=self._known):
            inputs = [self._known.get(var) or self._leaf(var) for var in node.inputs]
            applied = self.of((self._op(node.op), inputs))
            for i, output in enumerate(node.outputs):
                self._known.setdefault(output, self.of((applied, i, self.type(output.type))))
        return self._known.get(variable) or self._leaf(variable)

    def _leaf(self, variable: Any) -> bytes:
        if isinstance(variable, Constant):
            what: Any = ("constant", variable.data)
        elif isinstance(variable, SharedVariable) and self._values:
            what = ("shared", variable.get_value(borrow=True))
        else:
            what = ("input", variable.name)
        self._known[variable] = self.of((what, self.type(variable.type)))
        return self._known[variable]

    def _op(self, op: Op) -> Any:
        props = getattr(op, "__props__", None)
        inner = None
        if isinstance(op, HasInnerGraph):
            numbered = {var: ("argument", i) for i, var in enumerate(op.inner_inputs)}
            inside = _Hasher(numbered, self._values)
            inner = [inside.variable(out) for out in op.inner_outputs]
            props = [name for name in (props or ("info",)) if hasattr(op, name)]
        if props is None:
            return (type(op), vars(op))
        return (type(op), inner, {name: getattr(op, name) for name in props})

    def type(self, type_: Any) -> Any:
        """Return the attributes that identify a type."""
        return (type(type_), getattr(type_, "dtype", None), getattr(type_, "shape", None), getattr(type_, "dims", None))

    # -- objects -----------------------------------------------------------------------------------------------------

    def of(self, obj: Any) -> bytes:
        """Return the hash of an object from its type and contents."""
        kind, parts = self._parts(obj)
        digest = hashlib.sha256(kind.encode())
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.digest()

    def _parts(self, obj: Any) -> tuple[str, Iterable[bytes]]:
        kind = type(obj).__qualname__
        if obj is None or obj is Ellipsis or isinstance(obj, bool | int | float | complex | str):
            return kind, [repr(obj).encode()]
        if isinstance(obj, bytes | bytearray | memoryview):
            return "bytes", [bytes(obj)]
        if isinstance(obj, np.ndarray | np.generic):
            return self._array(np.asarray(obj))
        if isinstance(obj, np.dtype):
            return "dtype", [obj.str.encode()]
        if isinstance(obj, set | frozenset):
            return "set", sorted(map(self.of, obj))
        if isinstance(obj, Mapping):
            return "mapping", sorted(self.of(key) + self.of(value) for key, value in obj.items())
        if isinstance(obj, slice):
            return kind, map(self.of, (obj.start, obj.stop, obj.step))
        if isinstance(obj, type | types.ModuleType | types.BuiltinFunctionType | np.ufunc):
            return "name", [f"{getattr(obj, '__module__', '')}.{getattr(obj, '__qualname__', obj.__name__)}".encode()]
        return self._compound(kind, obj)

    def _compound(self, kind: str, obj: Any) -> tuple[str, Iterable[bytes]]:
        if id(obj) in self._within:
            return "itself", []
        self._within.add(id(obj))
        try:
            if isinstance(obj, list | tuple):
                contents: Any = list(obj)
            elif isinstance(obj, Variable):
                return "variable", [self.variable(obj)]
            elif isinstance(obj, Op):
                contents = [self._op(obj)]
            elif isinstance(obj, types.FunctionType):
                cells = [cell.cell_contents for cell in obj.__closure__ or ()]
                contents = [obj.__code__, obj.__defaults__, obj.__kwdefaults__, cells]
            elif isinstance(obj, types.CodeType):
                contents = [obj.co_code, obj.co_consts, obj.co_names, obj.co_varnames, obj.co_freevars]
            elif isinstance(obj, types.MethodType):
                contents = [obj.__func__, obj.__self__]
            elif isinstance(obj, partial):
                contents = [obj.func, obj.args, obj.keywords]
            elif hasattr(obj, "tocoo"):
                contents = [type(obj), obj.tocoo().coords, obj.tocoo().data, obj.shape]
            else:
                slots = {name: getattr(obj, name, None) for name in getattr(type(obj), "__slots__", ())}
                contents = [type(obj), slots, getattr(obj, "__dict__", {})]
            return kind, [self.of(part) for part in contents]
        finally:
            self._within.discard(id(obj))

    def _array(self, array: np.ndarray) -> tuple[str, Iterable[bytes]]:
        if array.dtype == object:
            return "objects", [repr(array.shape).encode(), *map(self.of, array.ravel().tolist())]
        if array.dtype.names is not None or array.dtype.kind not in "biufcSUmM":
            return "array", [repr(array.dtype).encode(), repr(array.tolist()).encode()]
        contiguous = np.ascontiguousarray(array)
        return "array", [array.dtype.str.encode(), repr(array.shape).encode(), contiguous.tobytes()]

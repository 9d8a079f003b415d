"""Which parameters of a Stan program may be sampled non-centred: named by the user, or read from its statements.

A statement ``theta ~ normal(mu, tau)`` makes ``theta`` a child.  Location and scale are expressions of one parameter
and of data, such as ``10 * mu``, ``mu[group]`` or ``1 / sqrt(precision)``.  What is not understood stays centred: the
map is a change of variables whatever the density is, so that a misread statement costs gradients and no draw is wrong.
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from pmm_mcmc.model.c_hierarchy import BOUNDED, IDENTITY, LOWER, UPPER, LocationOrScale, PointerChild, parent_value
from pmm_mcmc.model.children import in_order

__all__ = ["named_children", "read_children"]

_log = logging.getLogger("pmm_mcmc")

# Families whose value is location + scale * noise, with the places of the two among the arguments.
_FAMILIES = {
    "normal": (0, 1), "cauchy": (0, 1), "double_exponential": (0, 1), "logistic": (0, 1), "student_t": (1, 2),
}  # fmt: skip
_FAMILY = "|".join(_FAMILIES)
_NAME = r"(?:to_vector\(\s*)?([A-Za-z]\w*)\s*((?:\[[^\]]*\])?)\s*\)?"
# theta ~ normal(     to_vector(theta[2]) ~ normal(
_SAMPLED = re.compile(rf"(?<![\w\]]){_NAME}\s*~\s*({_FAMILY})\s*\(")
# normal_lpdf(theta |
_ADDED = re.compile(rf"({_FAMILY})_lu?pdf\s*\(\s*{_NAME}\s*\|")
# sd = 1 / sqrt(precision);
_DEFINED = re.compile(r"(?<![\w\]])([A-Za-z]\w*)\s*=(?!=)([^;]*);")


class _Unreadable(Exception):
    """An expression that is not one parameter with data."""


class _Term(NamedTuple):
    """An expression of at most one parameter, ``constant + factor * value ** power``: see :class:`LocationOrScale`.

    Each field but ``names`` is a number, or an array of the shape of the expression.
    """

    constant: Any
    factor: Any = 0.0
    power: Any = 1.0
    kind: Any = IDENTITY
    low: Any = 0.0
    width: Any = 0.0
    coordinate: Any = -1
    names: tuple[str, ...] = ()

    @property
    def is_constant(self) -> bool:
        return not self.names

    def times(self, by: Any) -> _Term:
        return self._replace(constant=self.constant * by, factor=self.factor * by)

    def to_the(self, power: float) -> _Term:
        if self.is_constant:
            return _Term(np.power(self.constant, power))
        if np.any(self.constant != 0.0):
            raise _Unreadable
        return self._replace(factor=np.power(self.factor, power), power=np.multiply(self.power, power))

    def exponential(self) -> _Term:
        if self.is_constant:
            return _Term(np.exp(self.constant))
        if np.any(self.kind != IDENTITY) or np.any(self.power != 1.0):
            raise _Unreadable
        return self._replace(constant=0.0, factor=np.exp(self.constant), power=self.factor, kind=LOWER)

    def at_index(self, index: np.ndarray) -> _Term:
        arrays = [name for name in self._fields[:-1] if np.ndim(getattr(self, name))]
        return self._replace(**{name: getattr(self, name)[index] for name in arrays})

    def parent(self, shape: tuple[int, ...], order: np.ndarray) -> LocationOrScale:
        """Return the expression as that of each element of a child, in the order of its coordinates."""
        *coefficients, coordinate = (np.broadcast_to(field, shape).ravel()[order].astype(float) for field in self[:-1])
        return LocationOrScale(coordinate.astype(np.int64), np.stack(coefficients, axis=1), self.names)


class _Reader:
    """The parameters of a Stan model and its data, and expressions of them."""

    def __init__(self, model: Any, places: Mapping[str, tuple[tuple[int, ...], np.ndarray]], data: Mapping[str, Any]):
        self.places = places
        self._kinds = _kinds_of(model)
        self._definitions: dict[str, str] = {}
        self._values = {name: _Term(np.asarray(value)) for name, value in data.items() if _is_numeric(value)}

    def define(self, code: str) -> None:
        """Read the variables that the program defines once, by an expression."""
        expressions: dict[str, list[str]] = {}
        for name, expression in _DEFINED.findall(code):
            expressions.setdefault(name, []).append(expression)
        self._definitions = {name: texts[0] for name, texts in expressions.items() if len(texts) == 1}

    def term(self, expression: str) -> _Term:
        """Return an expression of the Stan language as a term.

        Raises
        ------
        _Unreadable
            If it is no constant and depends on more than one parameter, or not as :class:`_Term` says.
        """
        text = re.sub(r"\.([*/^])", r"\1", expression).replace("^", "**").strip()
        try:
            return self._term(ast.parse(text, mode="eval").body)
        except (SyntaxError, IndexError, ValueError, RecursionError) as error:
            raise _Unreadable from error

    def _term(self, node: ast.expr) -> _Term:
        match node:
            case ast.Constant(value=int() | float() as value):
                return _Term(float(value))
            case ast.Name(id=name):
                return self._named(name)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return self._term(inner).times(-1.0)
            case ast.BinOp(left=left, op=op, right=right):
                return self._combined(self._term(left), op, self._term(right))
            case ast.Subscript(value=inner, slice=index):
                position = self._term(index)
                if not position.is_constant:
                    raise _Unreadable
                return self._term(inner).at_index(np.asarray(position.constant).astype(int) - 1)
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return self._called(name, [self._term(argument) for argument in arguments])
        raise _Unreadable

    def _named(self, name: str) -> _Term:
        if name in self.places:
            _, columns = self.places[name]
            if any(self._kinds[column] is None for column in columns):
                raise _Unreadable
            return self._parameter(name)
        if name in self._values:
            return self._values[name]
        if name in self._definitions:
            expression = self._definitions.pop(name)  # a definition that needs itself ends here
            self._values[name] = self.term(expression)
            return self._values[name]
        raise _Unreadable

    def _parameter(self, name: str) -> _Term:
        shape, columns = self.places[name]
        kinds = np.array([self._kinds[column] for column in columns]).reshape(*shape, 3)
        kind, low, width = np.moveaxis(kinds, -1, 0)
        return _Term(0.0, 1.0, 1.0, kind, low, width, columns.reshape(shape), (name,))

    @staticmethod
    def _combined(left: _Term, op: ast.operator, right: _Term) -> _Term:
        match op:
            case ast.Sub():
                return _Reader._combined(left, ast.Add(), right.times(-1.0))
            case ast.Div():
                return _Reader._combined(left, ast.Mult(), right.to_the(-1.0))
            case ast.Pow() if right.is_constant and np.ndim(right.constant) == 0:
                return left.to_the(float(right.constant))
        if left.is_constant:
            left, right = right, left
        match op:
            case ast.Mult() if right.is_constant:
                return left.times(right.constant)
            case ast.Add() if right.is_constant:
                return left._replace(constant=left.constant + right.constant)
        raise _Unreadable

    @staticmethod
    def _called(name: str, terms: list[_Term]) -> _Term:
        powers = {"sqrt": 0.5, "square": 2.0, "inv": -1.0, "inv_sqrt": -0.5}
        if name in powers and len(terms) == 1:
            return terms[0].to_the(powers[name])
        if name == "exp" and len(terms) == 1:
            return terms[0].exponential()
        if name in ("to_vector", "rep_vector", "rep_array") and terms and np.ndim(terms[0].coordinate) == 0:
            return terms[0]
        raise _Unreadable

    def child(self, name: str, location: str, scale: str) -> PointerChild:
        """Return a parameter as a child with these location and scale.

        Raises
        ------
        _Unreadable
            If the parameter is not free, an expression is not understood, or has another shape.
        """
        shape, columns = self.places[name]
        begin = int(columns.min())
        order = np.argsort(columns)
        free = all(self._kinds[column] == (IDENTITY, 0.0, 0.0) for column in columns)
        if not free or not np.array_equal(columns[order], begin + np.arange(len(columns))):
            raise _Unreadable
        try:
            parents = [self.term(expression).parent(shape, order) for expression in (location, scale)]
        except ValueError as error:
            raise _Unreadable from error
        return PointerChild(slice(begin, begin + len(columns)), *parents)


def _is_numeric(value: Any) -> bool:
    try:
        return np.asarray(value).dtype.kind in "iuf"
    except ValueError:
        return False


def _kinds_of(model: Any) -> list[tuple[int, float, float] | None]:
    """Return kind, lower bound and width of each coordinate, from values at four points; None for any other map."""
    labels = model.param_unc_names()
    column = {label: i for i, label in enumerate(model.param_names())}
    ts = 0.0, 1.0, -1.0, 2.0
    try:
        points = [np.asarray(model.param_constrain(np.full(len(labels), t)), dtype=float) for t in ts]
    except RuntimeError:  # where Stan has no value at one of them
        return [None] * len(labels)
    return [_kind(ts, [values[column[label]] for values in points]) if label in column else None for label in labels]


def _kind(ts: tuple[float, ...], values: list[float]) -> tuple[int, float, float] | None:
    """Return kind, lower bound and width of a coordinate with these values at 0, 1 and other points."""
    zero = values[0]
    width = (values[1] - zero) / (1.0 / (1.0 + np.exp(-1.0)) - 0.5)
    candidates = [
        (IDENTITY, 0.0, 0.0),
        (LOWER, zero - 1.0, 0.0),
        (UPPER, 0.0, zero + 1.0),
        (BOUNDED, zero - 0.5 * width, width),
    ]
    for candidate in candidates:
        if np.allclose([parent_value.py_func(*candidate, t)[0] for t in ts], values, rtol=1e-9):
            return candidate
    return None


def named_children(
    model: Any, places: Mapping[str, Any], data: Mapping[str, Any], children: Any
) -> dict[str, PointerChild]:
    """Return the children that a user names, in an order in which each comes after those it depends on."""
    form = 'must be a dict such as {"theta": ("mu", "tau")}: location and scale, as the Stan program writes them'
    if not isinstance(children, Mapping):
        raise ValueError(f"children={children!r}: {form}")
    reader = _Reader(model, places, data)
    named = {}
    for name, parents in children.items():
        if name not in places:
            raise ValueError(f"children: {name!r} is none of the parameters of the Stan model: {', '.join(places)}")
        if not isinstance(parents, tuple) or len(parents) != 2:
            raise ValueError(f"children[{name!r}]={parents!r}: {form}")
        try:
            named[name] = reader.child(name, str(parents[0]), str(parents[1]))
        except _Unreadable:
            raise ValueError(
                f"children[{name!r}]={parents!r}: {name} must be a parameter without bounds, and location and scale "
                "numbers or expressions of one parameter and of data, in the shape of the child or one number"
            ) from None
    ordered = _ordered(named)
    if len(ordered) < len(named):
        raise ValueError(f"children: {', '.join(n for n in named if n not in ordered)} depend on themselves")
    return ordered


def read_children(model: Any, places: Mapping[str, Any], data: Mapping[str, Any], code: str) -> dict[str, PointerChild]:
    """Return the children that the statements of a program name, in an order in which each comes after its parents."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", code, flags=re.DOTALL)
    code = code.split("generated quantities")[0]
    # The index of a loop stands for all elements, but where one is defined.
    for loop in set(re.findall(r"\bfor\s*\(\s*(\w+)\s+in\b", code)):
        code = re.sub(rf"\[\s*{loop}\s*\](?!\s*=[^=])", "", code)
    reader = _Reader(model, places, data)
    reader.define(code)
    children: dict[str, PointerChild] = {}
    for name, index, location, scale in _statements(code):
        if index or name not in places or name in children:
            continue
        try:
            child = reader.child(name, location, scale)
        except _Unreadable:
            _log.debug("%s stays centred: %s and %s are not understood", name, location, scale)
            continue
        if child.location.names or child.scale.names:
            children[name] = child
    return _ordered(children)


def _statements(code: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, index, location and scale of each statement of a family of locations and scales."""
    sampled = [(match, match.group(1, 2, 3)) for match in _SAMPLED.finditer(code)]
    added = [(match, match.group(2, 3, 1)) for match in _ADDED.finditer(code)]
    for match, (name, index, family) in sampled + added:
        arguments = _arguments(code[match.end() :])
        location, scale = _FAMILIES[family]
        if len(arguments) > scale:
            yield name, index, arguments[location], arguments[scale]


def _arguments(text: str) -> list[str]:
    """Return the arguments of a call, which commas separate, up to its closing parenthesis."""
    parts = [""]
    depth = 0
    for letter in text:
        if letter in ")]}" and depth == 0:
            return parts
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return []


def _ordered(children: dict[str, PointerChild]) -> dict[str, PointerChild]:
    """Return the children in order; those that depend on themselves are left out."""
    needs = {name: set(child.location.names + child.scale.names) & set(children) for name, child in children.items()}
    return {name: children[name] for name in in_order(needs)}

"""Which parameters of a Stan program may be sampled non-centred: named by the user, or read from its statements.

A statement ``theta ~ normal(mu, tau)`` makes ``theta`` a child, and ``theta = mu + tau * z`` with ``z ~ std_normal()``
makes ``z`` one whose offset the program has.  Location and scale are expressions of one parameter
and of data, such as ``10 * mu``, ``mu[group]`` or ``1 / sqrt(precision)``.  What is not understood stays centred: the
map is a change of variables whatever the density is, so that a misread statement costs gradients and no draw is wrong.
"""

from __future__ import annotations

import ast
import logging
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors

from pmm_mcmc.api import MOST_GROUPED, Child, ChildVariable, Law, ordered_children

__all__ = ["StanChildren", "kinds_of"]

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
# z ~ std_normal(     to_vector(z) ~ normal(0, 1)     std_normal_lpdf(z_1[1]
_STANDARD = re.compile(
    rf"(?<![\w\]]){_NAME}\s*~\s*(?:std_normal\s*\(|normal\s*\(\s*0\s*,\s*1\s*\))|std_normal_lu?pdf\s*\(\s*{_NAME}"
)
# diag_pre_multiply(tau, L) * z     scale_r_cor(z_1, sd_1, L_1)
_CORRELATED = (
    re.compile(r"diag_pre_multiply\s*\(\s*(?P<sd>\w+)\s*,\s*(?P<factor>\w+)\s*\)\s*\*\s*(?P<name>\w+)"),
    re.compile(r"scale_r_cor\s*\(\s*(?P<name>\w+)\s*,\s*(?P<sd>\w+)\s*,\s*(?P<factor>\w+)\s*\)"),
)
# theta = mu + tau * z;
_ASSIGNED = re.compile(r"(?<![=<>!])=(?!=)([^;{}]*);")
# sd = 1 / sqrt(precision);
_DEFINED = re.compile(r"(?<![\w\]])([A-Za-z]\w*)\s*=(?!=)([^;]*);")


# What an expression that is not understood raises.
_UNREADABLE = SyntaxError, LookupError, ValueError, TypeError, RecursionError
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sqrt": pt.sqrt, "square": pt.sqr, "inv": lambda x: 1.0 / x, "inv_sqrt": lambda x: 1.0 / pt.sqrt(x), "exp": pt.exp,
}  # fmt: skip
# Kind and numbers of a coordinate that is the value itself, and of one that is of no kind.
_FREE = "identity", 0.0, 0.0
_OTHER = "", 0.0, 0.0
# Values of a parameter at its coordinate ``t``, with two numbers.
_CONSTRAINED: dict[str, Callable[..., Any]] = {
    "identity": lambda xp, low, width, t: t,
    "lower": lambda xp, low, width, t: low + xp.exp(t),
    "upper": lambda xp, low, width, t: width - xp.exp(t),
    "bounded": lambda xp, low, width, t: low + width / (1.0 + xp.exp(-t)),
}


class StanChildren:
    """The parameters of a Stan model that may be non-centred: those that a user names or, for None, of a program.

    ``places`` are shape and coordinates, in C order, of each parameter, ``kinds`` those of :func:`kinds_of`; ``data``
    are values by name.

    Attributes
    ----------
    shapes : dict
        Variables of the coordinates of each parameter, in their order, with their shapes.
    children : dict of ChildVariable
        In an order in which each comes after its parents.
    """

    def __init__(
        self,
        places: Mapping[str, tuple[tuple[int, ...], np.ndarray]],
        kinds: list[tuple[str, float, float]],
        data: Mapping[str, Any],
        children: Any,
        code: str,
    ):
        in_order = sorted(places, key=lambda name: places[name][1].min())
        self._places = places
        self._variables = {name: pt.vector(name, dtype="float64", shape=(len(places[name][1]),)) for name in in_order}
        self.shapes = {variable: variable.type.shape for variable in self._variables.values()}
        self._kinds = kinds
        self._values = {name: np.asarray(value, float) for name, value in data.items() if _is_numeric(value)}
        self._definitions: dict[str, str] = {}
        read = self._of_statements(code) if children is None else self._named(children)
        self.children = {variable.child.name: variable for variable in ordered_children(read)}
        if children is not None and len(self.children) < len(read):
            names = [each.child.name for each in read if each.child.name not in self.children]
            raise ValueError(f"children: {', '.join(names)} depend on themselves")

    def _named(self, children: Any) -> list[ChildVariable]:
        """Return the children that a user names."""
        form = 'must be a dict such as {"theta": ("mu", "tau")}: location and scale, as the Stan program writes them'
        if not isinstance(children, Mapping):
            raise ValueError(f"children={children!r}: {form}")
        named = []
        for name, parents in children.items():
            if name not in self._places:
                names = ", ".join(self._places)
                raise ValueError(f"children: {name!r} is none of the parameters of the Stan model: {names}")
            if not isinstance(parents, tuple) or len(parents) != 2:
                raise ValueError(f"children[{name!r}]={parents!r}: {form}")
            try:
                named.append(self._child(name, str(parents[0]), str(parents[1])))
            except _UNREADABLE:
                raise ValueError(
                    f"children[{name!r}]={parents!r}: {name} must be a parameter without bounds, and location and "
                    "scale numbers or expressions of one parameter and of data, in the shape of the child or one number"
                ) from None
        return named

    def _of_statements(self, code: str) -> list[ChildVariable]:
        """Return the children that the statements of a program name."""
        code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", code, flags=re.DOTALL)
        code = code.split("generated quantities")[0]
        # The index of a loop stands for all elements, but where one is defined.
        for loop in set(re.findall(r"\bfor\s*\(\s*(\w+)\s+in\b", code)):
            code = re.sub(rf"\[\s*{loop}\s*\](?!\s*=[^=])", "", code)
        self._define(code)
        children: dict[str, ChildVariable] = {}
        for name, index, location, scale in _statements(code):
            if index or name not in self._places or name in children:
                continue
            try:
                child = self._child(name, location, scale)
            except _UNREADABLE:
                _log.debug("%s stays centred: %s and %s are not understood", name, location, scale)
                continue
            if child.parents:
                children[name] = child
        needed = {variable.name for child in children.values() for variable in child.parents}
        standard = {match[1] or match[3] for match in _STANDARD.finditer(code)} & set(self._places)
        texts = [_plain(text) for text in _ASSIGNED.findall(code)]
        names = sorted(standard - set(children) - needed)
        offsets = [offset for name in names if (offset := self._correlated(name, code) or self._offset(name, texts))]
        made = {offset.value for offset in offsets}
        return [*children.values(), *(offset for offset in offsets if not offset.parents & made)]

    def _offset(self, name: str, texts: list[str]) -> ChildVariable | None:
        """Return a parameter of which the program makes effects, ``mu + tau * z``; None if it makes none."""
        effects = [effect for text in texts if re.search(rf"\b{name}\b", text) and (effect := _effect(text, name))]
        location, scale = (_of_rows(self._places[name][0], {row: pair[i] for row, *pair in effects}) for i in (0, 1))
        for place in (location, "0"):
            try:
                offset = self._child(name, place, scale, is_offset=True)
            except _UNREADABLE:
                continue
            return offset if offset.child.scale else None
        return None

    def _correlated(self, name: str, code: str) -> ChildVariable | None:
        """Return a matrix of which the program makes groups of correlated effects; None if it makes none."""
        match = next((m for form in _CORRELATED for m in form.finditer(code) if m["name"] == name), None)
        if match is None or not re.search(rf"cholesky_factor_corr\s*\[[^\]]*\]\s*{match['factor']}\b", code):
            return None
        shape, columns = self._places[name]
        order = columns.reshape(shape).T.ravel()
        if len(shape) != 2 or shape[0] > MOST_GROUPED or match["sd"] not in self._places or (np.diff(order) != 1).any():
            return None
        K, count = shape
        sd = self._parameter(match["sd"])
        if sd.type.shape != (K,):
            return None
        value = self._variables[name]
        parents = [self._variables[match[parent]] for parent in ("sd", "factor")]
        self.shapes[value] = (count, K)
        law = Law(pt.zeros((count, K)), sd[:, None] * _factor_of(parents[1], K), symmetric=True, kind="grouped")
        child = Child(name, "grouped", int(order[0]), (count, K), False, (), (match["sd"], match["factor"]), True)
        return ChildVariable(child, value, law, set(parents))

    def _define(self, code: str) -> None:
        """Read the variables that the program defines once, by an expression."""
        expressions: dict[str, list[str]] = {}
        for name, expression in _DEFINED.findall(code):
            expressions.setdefault(name, []).append(expression)
        self._definitions = {name: texts[0] for name, texts in expressions.items() if len(texts) == 1}

    def _term(self, expression: str) -> Any:
        """Return an expression of the Stan language as a graph or, without parameters, as an array."""
        return self._node(ast.parse(_plain(expression), mode="eval").body)

    def _node(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=int() | float() as value):
                return np.asarray(float(value))
            case ast.Name(id=name):
                return self._value(name)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self._node(inner)
            case ast.List(elts=elements):
                return pt.stack([self._node(element) for element in elements])
            case ast.BinOp(left=left, op=op, right=right):
                return _OPERATORS[type(op)](self._node(left), self._node(right))
            case ast.Subscript(value=inner, slice=index):
                position = self._node(index)
                if isinstance(position, Variable):
                    raise ValueError("a parameter as an index")
                return self._node(inner)[position.astype(int) - 1]
            case ast.Call(func=ast.Name(id=("to_vector" | "rep_vector" | "rep_array")), args=[inner, *_]):
                value = self._node(inner)
                if value.ndim and isinstance(value, Variable):
                    raise ValueError("another order")
                return value
            case ast.Call(func=ast.Name(id=name), args=[inner]):
                return _FUNCTIONS[name](self._node(inner))
        raise ValueError("not understood")

    def _value(self, name: str) -> Any:
        if name in self._places:
            return self._parameter(name)
        if name not in self._values:
            expression = self._definitions.pop(name)  # a definition that needs itself ends here
            self._values[name] = self._term(expression)
        return self._values[name]

    def _parameter(self, name: str) -> Any:
        """Return a parameter on its own scale."""
        shape, columns = self._places[name]
        kinds, low, width = zip(*(self._kinds[column] for column in columns), strict=True)
        (kind,) = set(kinds)
        t = _reordered(self._variables[name], columns - columns.min())
        value = _CONSTRAINED[kind](pt, np.array(low), np.array(width), t)
        return value[0] if shape == () else value if len(shape) == 1 else value.reshape(shape)

    def _child(self, name: str, location: str, scale: str, is_offset: bool = False) -> ChildVariable:
        """Return a parameter as a child with these location and scale.

        Raises
        ------
        _UNREADABLE
            If the parameter is not free, an expression is not understood, depends on several, or has another shape.
        """
        shape, columns = self._places[name]
        order = np.argsort(columns)
        if any(self._kinds[column] != _FREE for column in columns):
            raise ValueError("bounds")
        terms = [self._term(location), abs(self._term(scale))]
        names = []
        for i, term in enumerate(terms):
            graph = pt.as_tensor_variable(term)
            parents = [variable for variable in ancestors([graph]) if variable in self.shapes]
            if len(parents) > 1 or np.broadcast_shapes(graph.type.shape, shape) != shape:
                raise ValueError("several parameters, or another shape")
            if graph.ndim:
                graph = graph if graph.type.shape == shape else pt.broadcast_to(graph, shape)
                graph = _reordered(graph if graph.ndim == 1 else graph.ravel(), order)
            terms[i] = graph
            names.append(tuple(variable.name for variable in parents))
        value = self._variables[name]
        variables = {self._variables[parent] for parent in names[0] + names[1]}
        place, of_scale = names
        child = Child(name, "elementwise", int(columns.min()), value.type.shape, False, place, of_scale, is_offset)
        return ChildVariable(child, value, Law(terms[0], terms[1], symmetric=True), variables)


def _factor_of(t: Any, K: int) -> Any:
    """Return Stan's Cholesky factor of a correlation matrix at its coordinates."""
    rows: list[Any] = []
    tanh = iter(pt.tanh(t[k]) for k in range(K * (K - 1) // 2))
    for i in range(K):
        left = pt.ones(())
        for _ in range(i):
            rows.append(next(tanh) * pt.sqrt(left))
            left = left - rows[-1] ** 2
        rows += [pt.sqrt(left), *[pt.zeros(())] * (K - i - 1)]
    return pt.stack(rows).reshape((K, K))


def _plain(expression: str) -> str:
    """Return an expression of the Stan language as Python writes it, elementwise."""
    return " ".join(re.sub(r"\.([*/^])", r"\1", expression).replace("^", "**").split())


def _effect(text: str, name: str) -> tuple[int, str, str] | None:
    """Return row, location and scale of the effect that a sum makes of an offset: 0 is the row of a whole offset."""
    try:
        terms = list(_terms(ast.parse(text, mode="eval").body))
    except _UNREADABLE:
        return None
    products = [_product(term, name) for term in terms]
    if sum(product is not None for product in products) != 1:
        return None
    location = " + ".join(ast.unparse(term) for term, product in zip(terms, products, strict=True) if product is None)
    (product,) = (product for product in products if product is not None)
    return product[0], location or "0", product[1]


def _terms(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            yield from _terms(left)
            yield from _terms(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            yield from _terms(left)
            yield ast.UnaryOp(ast.USub(), right)
        case _:
            yield node


def _product(node: ast.expr, name: str) -> tuple[int, str] | None:
    """Return the row and the factor of an offset in a product."""
    match node:
        case ast.Name(id=named) if named == name:
            return 0, "1"
        case ast.Subscript(value=ast.Name(id=named), slice=index) if named == name:
            return (index.value if isinstance(index, ast.Constant) and isinstance(index.value, int) else 0), "1"
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            for one, other in ((left, right), (right, left)):
                if product := _product(one, name):
                    return product[0], f"{product[1]} * ({ast.unparse(other)})"
    return None


def _of_rows(shape: tuple[int, ...], rows: Mapping[int, str]) -> str:
    """Return the expression of a whole parameter from those of its rows, "" where one has none."""
    if 0 in rows:
        return rows[0]
    if not shape or set(rows) != set(range(1, shape[0] + 1)):
        return ""
    return f"[{', '.join(rows[k] if len(shape) == 1 else f'[{rows[k]}]' for k in sorted(rows))}]"


def _reordered(vector: Any, order: np.ndarray) -> Any:
    """Return a vector in another order."""
    return vector if np.array_equal(order, np.arange(len(order))) else vector[order]


def _is_numeric(value: Any) -> bool:
    try:
        return np.asarray(value).dtype.kind in "iuf"
    except ValueError:
        return False


def kinds_of(model: Any, labels: list[str]) -> list[tuple[str, float, float]]:
    """Return kind and numbers of :data:`_CONSTRAINED` of each coordinate, from values at four points; "" for others."""
    column = {label: i for i, label in enumerate(model.param_names())}
    ts = np.array([0.0, 1.0, -1.0, 2.0])
    try:
        points = [np.asarray(model.param_constrain(np.full(len(labels), t)), dtype=float) for t in ts]
    except RuntimeError:  # where Stan has no value at one of them
        return [_OTHER] * len(labels)
    return [_kind(ts, [values[column[label]] for values in points]) if label in column else _OTHER for label in labels]


def _kind(ts: np.ndarray, values: list[float]) -> tuple[str, float, float]:
    """Return kind and numbers of a coordinate with these values at 0, 1 and other points."""
    zero = values[0]
    width = (values[1] - zero) / (1.0 / (1.0 + np.exp(-1.0)) - 0.5)
    candidates = [
        _FREE, ("lower", zero - 1.0, 0.0), ("upper", 0.0, zero + 1.0), ("bounded", zero - 0.5 * width, width)
    ]  # fmt: skip
    for kind, *numbers in candidates:
        if np.allclose(_CONSTRAINED[kind](np, *numbers, ts), values, rtol=1e-9):
            return kind, *numbers
    return _OTHER


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

"""Functions of PyTensor graphs: kept with their model, built fast, and run in NumPy without compilation.

Compilation takes numba seconds for any model, and most of a minute for some.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.rewriting.basic import EquilibriumGraphRewriter, in2out, node_rewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import graph_inputs
from pytensor.link.vm import VMLinker
from pytensor.scalar.math import Log1mexp, Softplus
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from pytensor.tensor.rewriting.ofg import inline_ofg_node
from scipy.linalg import solve_triangular


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


_lock = threading.Lock()
_before: list[tuple[int, bool]] = []  # what each of the blocks that build graphs now has to restore


@contextmanager
def building() -> Iterator[None]:
    """Build graphs without PyTensor's notes of who built what and without the collection of garbage: a third faster."""
    from pytensor import config

    with _lock:
        _before.append(_before[0] if _before else (config.traceback__limit, gc.isenabled()))
        config.traceback__limit = 0
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            limit, collects = _before.pop()
            if not _before:
                config.traceback__limit = limit
                if collects:
                    gc.enable()


# Without the exclusion, recognised sums of exponentials would be compiled, each as a separate function.
_PYTHON = RewriteDatabaseQuery(include=["fast_compile", "py_only"], exclude=["symbolic_op_recognition"])
# Most arguments of a NumPy function with one result.
_MOST_TERMS = 31


@node_rewriter([Elemwise, OpFromGraph])
def _in_numpy(fgraph, node):
    if isinstance(node.op, OpFromGraph):
        return inline_ofg_node(node)
    x = node.inputs[0]
    scalar_op = node.op.scalar_op
    if isinstance(scalar_op, Softplus):
        new = pt.maximum(x, 0) + pt.log1p(pt.exp(-abs(x)))
    elif isinstance(scalar_op, Log1mexp):
        new = pt.switch(x < -np.log(2.0), pt.log1p(-pt.exp(x)), pt.log(-pt.expm1(x)))
    elif isinstance(scalar_op, ps.Clip):
        new = pt.minimum(pt.maximum(x, node.inputs[1]), node.inputs[2])
    else:
        return None
    return [new.astype(node.outputs[0].dtype)]


_IN_NUMPY = EquilibriumGraphRewriter([_in_numpy], max_use_ratio=100)


def in_numpy(graphs: list[Any]) -> list[Any]:
    """Replace operations that would be compiled, or called element by element for lack of a NumPy function."""
    return list(rewrite_graph(graphs, include=(), custom_rewrite=_IN_NUMPY, clone=True))


def in_products(graphs: list[Any], worst: float) -> list[Any]:
    """Replace what is solved with a constant triangular factor by a product, for which a GPU need not call a library.

    Factors with a condition number from ``worst`` on stay: the product loses digits with its square.
    """

    @node_rewriter([Blockwise, SolveTriangular])
    def multiply(fgraph: Any, node: Any) -> Any:
        op = getattr(node.op, "core_op", node.op)
        factor, b = node.inputs
        if not isinstance(op, SolveTriangular) or not all(isinstance(v, Constant) for v in graph_inputs([factor])):
            return None
        (values,) = python_function([], in_numpy([factor]))()
        n = values.shape[-1]
        if values.size != n * n or op.unit_diagonal or not np.linalg.cond(values.reshape(n, n)) < worst:
            return None
        inverse = solve_triangular(values.reshape(n, n), np.eye(n), lower=op.lower).astype(node.outputs[0].dtype)
        return [b @ inverse.T if op.b_ndim == 1 else inverse @ b]

    return list(rewrite_graph(graphs, include=(), custom_rewrite=in2out(multiply), clone=True))


@node_rewriter([Elemwise])
def _part_by_part(fgraph: Any, node: Any) -> Any:
    # The log densities of a model are one sum, of as many terms as it has variables.
    terms = node.inputs
    if len(terms) <= _MOST_TERMS or not isinstance(node.op.scalar_op, ps.Add | ps.Mul):
        return None
    while len(terms) > _MOST_TERMS:
        terms = [node.op(*terms[:_MOST_TERMS]), *terms[_MOST_TERMS:]]
    return [node.op(*terms)]


def python_mode(keep: bool = False) -> Mode:
    """Return a mode in which nothing is compiled; ``keep`` says whether values stay in memory after a call."""
    mode = Mode(VMLinker(use_cloop=False, c_thunks=False, allow_gc=not keep), _PYTHON)
    return mode.register((in2out(_part_by_part, name="part_by_part"), 1000.0))  # after all others, which merge sums


@building()
def python_function(inputs: list[Any], outputs: list[Any], keep: bool = False) -> Any:
    """Return a function of PyTensor in which nothing is compiled."""
    return pytensor.function(inputs, outputs, mode=python_mode(keep), trust_input=True, on_unused_input="ignore")


def batched_function(flat: Any, graphs: list[Any]) -> Any:
    """Return a function of positions ``(n, d)`` that returns the values ``(n, ...)`` of graphs of one position."""
    batch = pt.matrix("positions", dtype=flat.dtype, shape=(None, flat.type.shape[0]))
    # What does not depend on the position is repeated for each.
    repeated = [
        pt.broadcast_to(batched, (batch.shape[0], *(batched.shape[1:] if batched.ndim > one.ndim else batched.shape)))
        for one, batched in zip(graphs, vectorize_graph(graphs, {flat: batch}), strict=True)
    ]
    return python_function([batch], repeated)

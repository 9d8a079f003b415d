"""Outputs of a pytensor graph at many flat positions, with or without JAX.

**Without JAX** the graph of one draw gets a batch dimension and runs operation by operation in NumPy.  This needs no
compilation, which takes numba seconds for any model and most of a minute for some.  A graph whose operations would be
Python loops over draws (scans, batches of small matrices) is compiled by numba for one draw instead.

Names used here that pytensor does not document or may move: ``pytensor.graph.replace.vectorize_graph``,
``pytensor.tensor.rewriting.ofg.inline_ofg_node``, ``Blockwise.core_op`` and ``batch_ndim``, ``function.vm.storage_map``
of the Python linker and ``function.vm.jit_fn`` of the JAX linker; ``jax.config.values``, and ``__wrapped__`` of what
``jax.jit`` returns.  ``tests/model/test_outputs.py`` fails first if one of them moves.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.rewriting.basic import EquilibriumGraphRewriter, in2out, node_rewriter
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.link.vm import VMLinker
from pytensor.scalar.math import Log1mexp, Softplus
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.rewriting.ofg import inline_ofg_node

from pmm_mcmc.model.products import numba_mode
from pmm_mcmc.model.result_tree import in_blocks

__all__ = ["Compiled", "Graph", "Kind", "ManyDraws", "compile_graph"]

_log = logging.getLogger("pmm_mcmc")

# Most draws and bytes of a block: intermediate results then stay in the processor's cache.
_MOST_ROWS = 1024
_MOST_BYTES = 2**22
# Without the exclusion, recognised sums of exponentials would be compiled, each as a separate function.
_PYTHON = RewriteDatabaseQuery(include=["fast_compile", "py_only"], exclude=["symbolic_op_recognition"])
# Most arguments of a NumPy function with one result.
_MOST_TERMS = 31


class Kind(NamedTuple):
    """Shape and dtype of one draw of an output."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Graph(NamedTuple):
    """Outputs of one draw as functions of its flat position."""

    flat: Any
    outputs: list[Any]


@node_rewriter([Elemwise, OpFromGraph])
def _in_numpy(fgraph, node):
    """Replace operations that would be compiled first, or called element by element for lack of a NumPy function."""
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


def python_function(inputs: list[Any], outputs: list[Any], keep: bool = False) -> Any:
    """Return a function of PyTensor in which nothing is compiled."""
    return pytensor.function(inputs, outputs, mode=python_mode(keep), trust_input=True, on_unused_input="ignore")


class _Single:
    """One draw at a time in Python, which shows shapes and the memory that a draw needs."""

    def __init__(self, graph: Graph):
        self._function = python_function([graph.flat], graph.outputs, keep=True)

    def __call__(self, x: np.ndarray) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [np.array(value) for value in self._function(x)]

    def memory(self) -> int:
        """Return the bytes of all values that the last call computed."""
        cells = self._function.vm.storage_map.items()
        return sum(getattr(cell[0], "nbytes", 0) for variable, cell in cells if variable.owner is not None)


class _Vectorised:
    """The graph with a batch dimension, in NumPy.

    Raises
    ------
    NotImplementedError
        If an operation would be a Python loop over draws, or over draws and more.
    """

    pads = True

    def __init__(self, graph: Graph):
        flat, outputs = graph
        batch = pt.matrix("positions", shape=(None, flat.type.shape[0]), dtype=flat.dtype)
        batched = vectorize_graph(outputs, {flat: batch})
        self._alike = [one.type.ndim == new.type.ndim for one, new in zip(outputs, batched, strict=True)]
        self._function = python_function([batch], batched)
        for node in self._function.maker.fgraph.apply_nodes:
            op = node.op
            if isinstance(op, Blockwise) and (isinstance(op.core_op, HasInnerGraph) or op.batch_ndim(node) > 1):
                raise NotImplementedError(str(op))

    def __call__(self, block: np.ndarray) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            values = self._function(block)
        # Outputs that do not depend on the position have no batch dimension.
        return [
            np.broadcast_to(value, (len(block), *np.shape(value))) if alike else value
            for value, alike in zip(values, self._alike, strict=True)
        ]


class _Loop:
    """One draw at a time, compiled by numba."""

    pads = False

    def __init__(self, graph: Graph):
        self._function = pytensor.function(
            [graph.flat], graph.outputs, mode=numba_mode(), trust_input=True, on_unused_input="ignore"
        )

    def __call__(self, block: np.ndarray) -> list[np.ndarray]:
        return [np.stack(values) for values in zip(*(self._function(x) for x in block), strict=True)]


@contextmanager
def double_precision() -> Iterator[None]:
    """Run JAX in double precision, and restore the user's choice afterwards.

    pytensor changes it for the whole process when its JAX backend is first imported.
    """
    import jax

    chosen = jax.config.values["jax_enable_x64"]
    try:
        with jax.enable_x64(True):
            yield
    finally:
        if jax.config.values["jax_enable_x64"] != chosen:
            jax.config.update("jax_enable_x64", chosen)


class _Jax:
    """The graph under ``jax.vmap``.

    Attributes
    ----------
    traces : int
        Number of times that JAX has traced it.
    """

    pads = True

    def __init__(self, graph: Graph):
        with double_precision(), _without_checks():
            compiled = pytensor.function(
                [graph.flat], graph.outputs, mode="JAX", trust_input=True, on_unused_input="ignore"
            )
        # The function without its own jit, under which sizes would be traced.
        self._one = getattr(compiled.vm.jit_fn, "__wrapped__", compiled.vm.jit_fn)
        self._shared = compiled.get_shared()
        self._sources: list[Any] = [None] * len(self._shared)
        self._data: list[Any] = []
        self._sizes: dict[int, int] | None = None
        self._batched: Callable[..., Any] | None = None
        self.traces = 0

    def __call__(self, block: np.ndarray) -> list[np.ndarray]:
        with double_precision(), _without_checks():
            self._refresh()
            assert self._batched is not None
            return [np.asarray(value) for value in self._batched(block, self._data)]

    def _refresh(self) -> None:
        """Move new data to the device."""
        import jax

        values = [shared.get_value(borrow=True) for shared in self._shared]
        if self._batched is not None and all(new is old for new, old in zip(values, self._sources, strict=True)):
            return
        self._sources = values
        arrays = [np.asarray(value) for value in values]
        self._data = [jax.device_put(array) for array in arrays]
        # Lengths of mutable dimensions are shared integers, which JAX must know when it traces.
        sizes = {i: int(a) for i, a in enumerate(arrays) if a.ndim == 0 and np.issubdtype(a.dtype, np.integer)}
        if self._batched is None or sizes != self._sizes:

            def one(x: Any, data: list[Any]) -> Any:
                self.traces += 1
                return self._one(x, *(sizes.get(i, array) for i, array in enumerate(data)))

            self._sizes = sizes
            self._batched = jax.jit(jax.vmap(one, (0, None)))


@contextmanager
def _without_checks() -> Iterator[None]:
    # Checks of values cannot be traced, and pytensor warns of each.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Skipping", UserWarning)
        yield


class Compiled(NamedTuple):
    """The graph of one draw, and the functions that evaluate it for one draw and for many."""

    graph: Graph
    single: _Single
    batched: _Vectorised | _Loop | _Jax


def compile_graph(graph: Graph, backend: str, start: np.ndarray) -> Compiled:
    """Compile a graph for many draws; ``start`` is a position for trial evaluations."""
    start = start.astype(graph.flat.dtype)
    plain = list(rewrite_graph(graph.outputs, include=(), custom_rewrite=_IN_NUMPY, clone=True))
    in_numpy = graph._replace(outputs=plain)
    single = _Single(in_numpy)
    single(start)
    if backend == "jax":
        try:
            batched = _Jax(graph)
            batched(np.repeat(start[None, :], _rows(single, start), axis=0))
            return Compiled(graph, single, batched)
        except (NotImplementedError, TypeError, IndexError) as error:  # operations, or shapes that depend on values
            _log.debug("JAX cannot compute what is derived from the draws; NumPy does: %s", error)
    try:
        vectorised = _Vectorised(in_numpy)
        if _agree(vectorised, single, start) and _same_in_any_place(vectorised, start, _rows(single, start)):
            return Compiled(graph, single, vectorised)
    except (NotImplementedError, TypeError, ValueError) as error:
        _log.debug("not vectorised: %s", error)
    return Compiled(graph, single, _Loop(graph))


def _rows(single: _Single, start: np.ndarray) -> int:
    """Return the number of draws in a block, from the memory of the last single evaluation."""
    memory = max(single.memory(), start.nbytes, 1)
    return min(_MOST_ROWS, 2 ** int(np.log2(max(_MOST_BYTES // memory, 1))))


def _agree(batched: _Vectorised, single: _Single, start: np.ndarray) -> bool:
    """Return whether a block of two draws gives the values of each alone: some operations vectorise wrongly."""
    block = np.stack([start, start + np.asarray(0.01, start.dtype)])
    of_block = batched(block)
    of_single = [single(x) for x in block]
    return all(
        values.shape == (2, *one.shape)
        and np.allclose(values[i], one, rtol=np.sqrt(np.finfo(start.dtype).eps), equal_nan=True)
        for i in range(2)
        for values, one in zip(of_block, of_single[i], strict=True)
    )


def _same_in_any_place(batched: _Vectorised, start: np.ndarray, rows: int) -> bool:
    """Return whether the values of a draw are the same bits at any place in a block.

    They differ if the processor's matrix products treat the last rows differently from the first.
    """
    block = start + (0.1 * np.sin(np.arange(rows * len(start)))).reshape(rows, len(start)).astype(start.dtype)
    values = batched(block)
    for order in (np.arange(rows)[::-1], np.roll(np.arange(rows), 1), np.roll(np.arange(rows), rows // 2 + 1)):
        again = batched(np.ascontiguousarray(block[order]))
        if any(one[order].tobytes() != new.tobytes() for one, new in zip(values, again, strict=True)):
            return False
    return True


class ManyDraws:
    """Outputs of a model at many flat positions, computed in blocks of a fixed number of draws: nothing is recompiled.

    Attributes
    ----------
    kinds : dict of Kind
        Shape and dtype of each output for one draw.
    rows : int
        Draws of a block.
    """

    def __init__(self, names: Sequence[str], compiled: Compiled, start: np.ndarray):
        self._batched = compiled.batched
        self._dtype = np.dtype(compiled.graph.flat.dtype)
        values = compiled.single(start.astype(self._dtype))
        self.kinds = {name: Kind(a.shape, a.dtype) for name, a in zip(names, values, strict=True)}
        self.rows = _rows(compiled.single, start)

    @property
    def traces(self) -> int:
        """Number of times that JAX has traced the outputs."""
        return getattr(self._batched, "traces", 0)

    def __call__(self, position: np.ndarray) -> dict[str, np.ndarray]:
        """Return the outputs ``(chain, n, *shape)`` at positions ``(chain, n, d)``."""
        flat = np.asarray(position, dtype=self._dtype)
        return in_blocks(self._batched, flat, self.kinds, self.rows, self._batched.pads)

"""Variables, dims and data of a PyMC model at many flat positions, as PyMC and ArviZ make them, with or without JAX.

**Without JAX** the graph of one draw gets a batch dimension and runs operation by operation in NumPy.  A graph whose
operations would be Python loops over draws (scans, batches of small matrices) is compiled by numba for one draw
instead.

Names that pytensor or JAX do not document or may move, here and in :mod:`pmm_mcmc.model.functions`:
``pytensor.graph.replace.vectorize_graph``, ``pytensor.tensor.rewriting.ofg.inline_ofg_node``, ``Blockwise.core_op`` and
``batch_ndim``, ``function.vm.storage_map`` of the Python linker and ``function.vm.jit_fn`` of the JAX linker;
``jax.config.values``, and ``__wrapped__`` of what ``jax.jit`` returns.  Of PyMC: ``Model.unobserved_value_vars``,
``pymc.util.get_default_varnames``, ``pymc.backends.arviz.coords_and_dims_for_inferencedata``, ``find_observations`` and
``find_constants``, ``pymc.pytensorf.join_nonshared_inputs``, and the rewrites ``local_check_parameter_to_ninf_switch``
and ``local_remove_check_parameter``.  ``tests/model/test_outputs.py`` fails first if one of them moves.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_constants, find_observations
from pymc.pytensorf import join_nonshared_inputs
from pymc.util import get_default_varnames
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.random.type import RandomType

from pmm_mcmc.model.functions import batched_function, building, in_numpy, model_cache, python_function, state_of
from pmm_mcmc.model.initial_points import flat_position
from pmm_mcmc.model.native import numba_mode
from pmm_mcmc.model.pymc_density import flat_layout
from pmm_mcmc.model.result_tree import ResultTree, flat_names, in_blocks

_log = logging.getLogger("pmm_mcmc")

# Most draws and bytes of a block: intermediate results then stay in the processor's cache.
_MOST_ROWS = 1024
_MOST_BYTES = 2**22


class _Vectorised:
    """The graph with a batch dimension, in NumPy.

    Raises
    ------
    NotImplementedError
        If an operation would be a Python loop over draws, or over draws and more.
    """

    pads = True  # needs blocks of one size: see pmm_mcmc.model.result_tree.in_blocks

    def __init__(self, flat: Any, outputs: list[Any]):
        self._function = batched_function(flat, outputs)
        for node in self._function.maker.fgraph.apply_nodes:
            op = node.op
            if isinstance(op, Blockwise) and (isinstance(op.core_op, HasInnerGraph) or op.batch_ndim(node) > 1):
                raise NotImplementedError(str(op))

    def __call__(self, block: np.ndarray) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return self._function(block)


class _Loop:
    """One draw at a time, compiled by numba."""

    pads = False

    def __init__(self, flat: Any, outputs: list[Any]):
        self._function = pytensor.function(
            [flat], outputs, mode=numba_mode(), trust_input=True, on_unused_input="ignore"
        )

    def __call__(self, block: np.ndarray) -> list[np.ndarray]:
        return [np.stack(values) for values in zip(*(self._function(x) for x in block), strict=True)]


@contextmanager
def _double_precision() -> Iterator[None]:
    """Run JAX in double precision, and restore the user's choice afterwards.

    pytensor changes it for the whole process when its JAX backend is first imported.
    """
    import jax

    chosen = jax.config.values["jax_enable_x64"]
    try:
        # Checks of values cannot be traced, and pytensor warns of each.
        with jax.enable_x64(True), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Skipping", UserWarning)
            yield
    finally:
        if jax.config.values["jax_enable_x64"] != chosen:
            jax.config.update("jax_enable_x64", chosen)


def jax_function(flat: Any, outputs: list[Any], single: bool = False) -> tuple[Any, list[Any]]:
    """Return graphs as a function of a position and of shared data, for JAX to trace, and the shared variables."""
    import jax

    # Compilation moves constants to the device, in the current precision, in which they may have to be rounded.
    with _double_precision(), jax.enable_x64(not single), jax.ensure_compile_time_eval():
        warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
        compiled = pytensor.function([flat], outputs, mode="JAX", trust_input=True, on_unused_input="ignore")
    # The function without its own jit, under which sizes would be traced, has no public name.
    return compiled.vm.jit_fn.__wrapped__, compiled.get_shared()


def _processor() -> Any:
    """Return the CPU, or None where JAX is kept from it: for blocks as small as these an accelerator would wait."""
    import jax

    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def is_length(value: Any) -> bool:
    """Whether data are a length of a mutable dimension: a shared integer, which JAX must know when it traces."""
    return np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.integer)


class _Jax:
    """The graph under ``jax.vmap``.

    Attributes
    ----------
    traces : int
        Number of times that JAX has traced it.
    """

    pads = True

    def __init__(self, flat: Any, outputs: list[Any]):
        import jax

        of_one, self._shared = jax_function(flat, outputs)
        self._data: list[np.ndarray] = []
        self._on_device: list[Any] = []
        self.traces = 0

        def of_block(block: Any, sizes: tuple[tuple[int, int], ...], data: list[Any]) -> Any:
            self.traces += 1
            arguments = [dict(sizes).get(i, array) for i, array in enumerate(data)]
            return jax.vmap(lambda x: of_one(x, *arguments))(block)

        self._batched = jax.jit(of_block, static_argnums=1)

    def __call__(self, block: np.ndarray) -> list[np.ndarray]:
        import jax

        data = [shared.get_value(borrow=True) for shared in self._shared]
        with _double_precision(), jax.default_device(_processor()):
            if len(self._data) != len(data) or any(new is not old for new, old in zip(data, self._data, strict=True)):
                self._on_device = [jax.device_put(np.asarray(value)) for value in data]
                self._data = data
            sizes = tuple((i, int(value)) for i, value in enumerate(data) if is_length(value))
            return [np.asarray(values) for values in self._batched(block, sizes, self._on_device)]


class ManyDraws:
    """Outputs of a graph, by name, at many flat positions: in blocks of a fixed number of draws, compiled once.

    ``flat`` is the input of the graphs, a position; ``backend`` is ``"jax"``, or ``"numba"`` for evaluation without
    JAX; ``start`` is a position for trial evaluations.

    Attributes
    ----------
    rows : int
        Draws of a block.
    """

    def __init__(self, flat: Any, outputs: Mapping[str, Any], backend: str, start: np.ndarray):
        self._names = list(outputs)
        self._dtype = np.dtype(flat.dtype)
        self._graphs = list(outputs.values())
        self._flat = flat
        self._single = python_function([flat], in_numpy(self._graphs), keep=True)
        self.measure(start)
        self.of_block = self._compiled(backend, start.astype(self._dtype))

    def measure(self, start: np.ndarray) -> None:
        """Look at one draw with the present data, which may have changed shapes, and at the memory that it takes."""
        self._of_one = dict(zip(self._names, self._one(start), strict=True))
        cells = self._single.vm.storage_map.items()
        memory = sum(getattr(cell[0], "nbytes", 0) for variable, cell in cells if variable.owner is not None)
        memory = max(memory, start.size * self._dtype.itemsize, 1)
        self.rows = min(_MOST_ROWS, 2 ** int(np.log2(max(_MOST_BYTES // memory, 1))))

    @property
    def traces(self) -> int:
        """Number of times that JAX has traced the outputs."""
        return getattr(self.of_block, "traces", 0)

    def __call__(self, position: np.ndarray) -> dict[str, np.ndarray]:
        """Return the outputs ``(chain, n, *shape)`` at positions ``(chain, n, d)``."""
        flat = np.asarray(position, dtype=self._dtype)
        return in_blocks(self.of_block, flat, self._of_one, self.rows, self.of_block.pads)

    def _compiled(self, backend: str, start: np.ndarray) -> _Vectorised | _Loop | _Jax:
        if backend == "jax":
            try:
                batched = _Jax(self._flat, self._graphs)
                batched(np.repeat(start[None, :], self.rows, axis=0))
                return batched
            except (NotImplementedError, TypeError, IndexError) as error:  # operations, or shapes that depend on values
                _log.debug("JAX cannot compute what is derived from the draws; NumPy does: %s", error)
        try:
            vectorised = _Vectorised(self._flat, in_numpy(self._graphs))
            block = np.stack([start, start + np.asarray(0.01, start.dtype)])
            of_block = vectorised(block)
            agree = all(  # some operations vectorise wrongly
                values.shape == (2, *one.shape)
                and np.allclose(values[i], one, rtol=np.sqrt(np.finfo(start.dtype).eps), equal_nan=True)
                for i in range(2)
                for values, one in zip(of_block, self._one(block[i]), strict=True)
            )
            if agree and _same_in_any_place(vectorised, start, self.rows):
                return vectorised
        except (NotImplementedError, TypeError, ValueError) as error:
            _log.debug("not vectorised: %s", error)
        return _Loop(self._flat, self._graphs)

    def _one(self, x: np.ndarray) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [np.array(value) for value in self._single(x.astype(self._dtype))]


def _same_in_any_place(batched: Callable[[np.ndarray], list[np.ndarray]], start: np.ndarray, rows: int) -> bool:
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


def coords_and_dims(model: pm.Model) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Return the model's current coordinates by dimension, and dimensions by variable."""
    return coords_and_dims_for_inferencedata(model)


def _data_of(model: pm.Model) -> dict[str, dict[str, Any]]:
    """Return the data groups that PyMC adds to a result."""
    constant = find_constants(model)
    return {"observed_data": find_observations(model), **({"constant_data": constant} if constant else {})}


def model_layout(model: pm.Model, vars: Sequence[Any], point: dict[str, Any], backend: str = "numba") -> ResultTree:
    """Return the map from flat positions to the variables of a PyMC model.

    ``vars`` are its value variables in flat order, and an initial point gives their shapes; ``backend`` is ``"jax"``,
    or ``"numba"`` for evaluation without JAX.  The functions of the draws are compiled here and cached with the model.
    Data are read when they are used, so that ``pm.set_data`` takes effect; where it changes a shape, build a new
    layout.
    """
    point = {name: np.asarray(value) for name, value in point.items()}
    layout = flat_layout(vars, point)
    key = backend, state_of(model, vars), layout, model.check_bounds
    start = flat_position(point, vars)
    compiled: dict[tuple, ManyDraws] = model_cache(model, "outputs")
    if key in compiled:
        compiled[key].measure(start)
    else:
        # Free variables on their own scale, then deterministics, as graphs of the value variables.
        named = {var.name: var for var in model.unobserved_value_vars}
        outputs = {name: named[name] for name in get_default_varnames(list(named), include_transformed=False)}
        for name, graph in outputs.items():
            if any(isinstance(node.type, RandomType) for node in ancestors([graph])):
                raise ValueError(
                    f"{name} is random: it depends on a draw that the sampler does not make. Leave it out of the model "
                    "and add it afterwards with pm.sample_posterior_predictive"
                )
        outputs = {name: pt.as_tensor(graph, allow_xtensor_conversion=True) for name, graph in outputs.items()}
        joined, flat = join_nonshared_inputs(point=point, outputs=list(outputs.values()), inputs=list(vars))
        # Checks of parameters become values: one draw out of range must not raise for a whole block.
        check = "local_check_parameter_to_ninf_switch" if model.check_bounds else "local_remove_check_parameter"
        include = (
            "minimum_compile", "inline_ofg_expansion", "canonicalize", "stabilize", check, "local_remove_all_assert"
        )  # fmt: skip
        # Inner graphs are not compiled: compiled ones may work in place, and could not be inlined later.
        with building():
            graphs = rewrite_graph(joined, include=include, exclude=("compile_inner_graph",), clone=True)
        compiled[key] = ManyDraws(flat, dict(zip(outputs, graphs, strict=True)), backend, start)
    names = flat_names([(name, shape) for name, shape, *_ in layout])
    return ResultTree(names, compiled[key], lambda: coords_and_dims(model), lambda: _data_of(model))

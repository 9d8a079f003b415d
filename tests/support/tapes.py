"""Graphs by tape and by PyTensor's own evaluation, without rewrites."""

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.fg import FunctionGraph

from pmm_mcmc.tape.build import Builder
from pmm_mcmc.tape.loop import run_tape
from pmm_mcmc.tape.table import trace


def inputs_of(*shapes):
    """Return a flat vector, and values of these shapes that it holds."""
    sizes = [int(np.prod(shape)) for shape in shapes]
    flat = pt.vector("flat", shape=(sum(sizes),), dtype="float64")
    ends = np.cumsum([0, *sizes])
    return flat, [flat[ends[i] : ends[i + 1]].reshape(shape) for i, shape in enumerate(shapes)]


def by_tape(flat, outputs, numbers, data=()):
    """Return outputs at numbers as a tape computes them, and whether its checks held; ``data`` are other inputs."""
    graph = FunctionGraph([flat, *(variable for variable, _ in data)], list(outputs), clone=True)
    builder = Builder()
    start = builder.new((len(numbers),))
    views = [builder.copy(v) for v in trace(builder, graph, [start, *(np.asarray(value) for _, value in data)])]
    tape = builder.finish([start], views)
    workspace = tape.workspace.copy()
    workspace[tape.inputs[0] : tape.inputs[0] + len(numbers)] = numbers
    held = run_tape(tape.code, workspace)
    return [workspace[at : at + v.size].reshape(v.shape) for at, v in zip(tape.outputs, views, strict=True)], held


def by_pytensor(flat, outputs, numbers):
    """Return outputs at numbers as PyTensor computes them, in Python."""
    with np.errstate(all="ignore"):
        return pytensor.function([flat], list(outputs), mode=Mode("py", None), on_unused_input="ignore")(numbers)


def agree(flat, outputs, numbers, rtol=1e-12, what=""):
    """Assert that a tape and PyTensor compute the same, NaN and infinities included; ``what`` is said of a failure."""
    mine, held = by_tape(flat, outputs, numbers)
    assert held
    for value, expected in zip(mine, by_pytensor(flat, outputs, numbers), strict=True):
        expected = np.asarray(expected, dtype=float)
        assert value.shape == expected.shape, what
        finite = np.abs(expected[np.isfinite(expected)])
        np.testing.assert_allclose(value, expected, rtol=rtol, atol=1e-14 * finite.max(initial=0.0), err_msg=what)

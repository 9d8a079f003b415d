"""What an H100 would run, said by its compiler, without one: ``python -m benchmarks gpu_program [model ...]``.

Needs JAX's build for CUDA (``pip install "jax[cuda12]"``, of the version of jax itself, some 5 GB), which compiles for
a GPU that is not there; says so and ends where it is missing.  The programs are those of ``pmm.sample(backend="jax")``
for ``--chains`` chains: warm-up and draws.

group, capacity
    Chains in lockstep on the device, and draws of a call.
nodes
    Kernels and copies of a transition and of writing its draw, where no step is refined: on a GPU all wait for one
    another, some 2 us each.  A conditional counts by its longer branch.
one graph
    Whether the whole call is one CUDA graph: the host then waits for no turn of a loop.
MB
    Of arguments, results and what is in between.
ms
    An estimate of a draw of one transition: 2 us a node, 3 a conditional, and the operands and results of all nodes at
    3.35 TB/s, as if no cache held any.  None of it was measured on a device.
CPU s
    Of compiling.

``--lower`` only lowers all programs for CUDA, ROCm and TPU, which needs no build for them.
"""

from __future__ import annotations

import argparse
import glob
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("JAX_PLATFORMS", "cpu")
MODELS = ("gaussian", "dense", "logistic", "eight_schools", "hierarchy")
PLATFORMS = ("cuda", "rocm", "tpu")
MEMORY = 60 * 2**30  # of an H100's 80 GB, what JAX takes


def build(name: str) -> Any:
    """Return a PyMC model by name."""
    import pymc as pm

    rng = np.random.default_rng(1)
    with pm.Model() as model:
        if name == "gaussian":
            pm.Normal("x", 0.0, np.logspace(-1, 1, 100), shape=100)
        elif name == "dense":
            pm.MvNormal("x", np.zeros(100), np.cov(rng.normal(size=(100, 200))))
        elif name == "logistic":
            beta = pm.Normal("beta", 0.0, 1.0, shape=25)
            pm.Bernoulli("y", logit_p=rng.normal(size=(1000, 25)) @ beta, observed=rng.integers(0, 2, 1000))
        elif name == "eight_schools":
            theta = pm.Normal("theta", pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0), shape=8)
            pm.Normal("y", theta, [15.0, 10, 16, 11, 9, 11, 10, 18], observed=[28.0, 8, -3, 7, -1, 1, 18, 12])
        elif name == "hierarchy":
            effect = pm.Normal("effect", pm.Normal("mu", 0.0, 5.0), pm.HalfNormal("tau", 2.0), shape=1000)
            group = np.repeat(np.arange(1000), 5)
            pm.Normal("y", effect[group], pm.HalfNormal("sigma", 2.0), observed=rng.normal(size=5000))
        else:
            raise SystemExit(f"model={name!r}: take some of {', '.join(MODELS)}")
    return model


def programs(name: str, chains: int, device: Any, precision: str = "float64") -> Iterator[tuple[str, Any, tuple]]:
    """Yield phase, engine and abstract arguments of each phase's compiled call, for a device that may not exist."""
    import jax
    from jax.sharding import SingleDeviceSharding

    from pmm_mcmc.coordinates.affine import Coordinates
    from pmm_mcmc.coordinates.jax_affine import JaxCoordinates
    from pmm_mcmc.engines.contract import Parameters
    from pmm_mcmc.engines.jax_engine import JaxEngine
    from pmm_mcmc.run.plan import SamplingPlan
    from pmm_mcmc.run.request import Request

    adjusted = precision == "float64"
    request = Request(
        model=build(name), chains=8, backend="jax", device="cpu", precision=precision, adjusted=adjusted,
    )  # fmt: skip
    engine = SamplingPlan.of(request).engine
    engine = JaxEngine(engine.kernel, engine._density, chains, precision, [device])
    for phase, one in [("warm-up", engine), ("draws", engine.adjusted())][: 1 + adjusted]:
        d = one.d
        shared = one._density.shared(precision, one.structure.initial_noncentring())
        coordinates = JaxCoordinates.of(Coordinates(np.zeros(d), np.ones(d)), one.dtype, not one.accelerated)
        parameters = Parameters(*(one.dtype.type(1.0) for _ in Parameters._fields))
        span = tuple(np.int32(1) for _ in range(3))

        def of_chains(width: int, one: Any = one) -> np.ndarray:
            return np.broadcast_to(np.zeros((), one.dtype), (one.group, width))

        keys = np.broadcast_to(np.zeros((), np.uint32), (one.group, 2, 2))
        arguments = (parameters, coordinates, shared), (of_chains(4 * d + 2), of_chains(one.width), keys), span
        at = SingleDeviceSharding(device)
        yield (
            phase,
            one,
            jax.tree.map(
                lambda a, at=at: jax.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype, sharding=at), arguments
            ),
        )


# -- what XLA says -----------------------------------------------------------------------------------------------------


def tree_of(text: str) -> list[dict[str, Any]]:
    """Return the sequence of kernels that XLA wrote as nested nodes: loops and conditionals have roles below them."""
    root: list[dict[str, Any]] = []
    stack: list[tuple[int, dict[str, Any]]] = []
    last_loop = 0
    for line in filter(str.strip, text.splitlines()):
        indent = len(line) - len(line.lstrip())
        node = {"kind": "role", "name": line.strip().rstrip(":"), "below": []}
        if match := re.match(r"\s*\d+: (k\w+)", line):
            node["kind"] = match[1]
            last_loop = indent if match[1] == "kWhile" else last_loop
        elif node["name"] == "condition":  # written without indentation
            indent = last_loop + 2
        while stack and stack[-1][0] >= indent:
            stack.pop()
        (stack[-1][1]["below"] if stack else root).append(node)
        stack.append((indent, node))
    return root


def nodes_of(sequence: list[dict[str, Any]]) -> Counter[str]:
    """Return the numbers of kernels, copies, conditionals and loops; loops are not entered."""
    total: Counter[str] = Counter()
    for node in sequence:
        if node["kind"] == "kConditional":
            branches = [nodes_of(role["below"]) for role in node["below"]]
            total += max(branches, key=Counter.total, default=Counter()) + Counter(conditionals=1)
        elif node["kind"] == "kWhile":
            total["loops"] += 1
        elif node["kind"] == "kCommandBuffer":
            total += nodes_of(node["below"])
        else:
            total["copies" if node["kind"] == "kCopy" else "kernels"] += 1
    return total


def loops_of(sequence: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the bodies of the loops of a sequence, through graphs."""
    bodies: list[list[dict[str, Any]]] = []
    for node in sequence:
        if node["kind"] == "kWhile":
            bodies += [role["below"] for role in node["below"] if role["name"] == "body"]
        elif node["kind"] == "kCommandBuffer":
            bodies += loops_of(node["below"])
    return bodies


_SIZES = {"f64": 8, "s64": 8, "u64": 8, "f32": 4, "s32": 4, "u32": 4, "pred": 1}
# Instructions that are no kernel; loops are counted by their own.
_FREE = {
    "parameter",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "constant",
    "while",
    "opt-barrier",
    "call",
    "conditional",
}


def computations_of(text: str) -> dict[str, list[re.Match[str]]]:
    """Return the instructions of XLA's computations by name: name, shape, operation and what follows."""
    computations: dict[str, list[re.Match[str]]] = {}
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$", line):
            current = computations["ENTRY" if head[1] else head[2]] = []
        elif one := re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$", line):
            current.append(one)
    return computations


def sizes_of(shape: str) -> list[int]:
    """Return the bytes of the arrays of a shape, of which a tuple has several."""
    arrays = re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", shape)
    return [_SIZES.get(kind, 0) * int(np.prod([int(n) for n in dims.split(",") if n])) for kind, dims in arrays]


def called(one: re.Match[str], role: str) -> list[str]:
    """Return the computations that an instruction calls in a role."""
    names = re.search(rf"{role}=\{{?([%\w.\-, ]+)", one[4])
    return [name.strip(" %") for name in names[1].split(", ") if name.startswith("%")] if names else []


def traffic_of(computation: str, computations: dict[str, list[re.Match[str]]]) -> int:
    """Return the bytes of operands and results of the kernels of a computation; loops are not entered."""
    total = 0
    arrays = {one[1]: sizes_of(one[2]) for one in computations[computation]}
    for one in computations[computation]:
        inner = computations.get("".join(called(one, "calls")), [])
        result = sum(arrays[one[1]])
        operands = [
            arrays[name][int(index)] if index else sum(arrays[name])  # an array of a tuple, or all that there is
            for name, index in re.findall(r"%([\w.\-]+)(?:#(\d+))?", one[4].partition("), ")[0])
            if name in arrays
        ]
        if one[3] == "conditional":
            branches = called(one, "branch_computations") + called(one, "true_computation")
            branches += called(one, "false_computation")
            total += max(traffic_of(branch, computations) for branch in branches)
        elif one[3] == "call":
            total += traffic_of(called(one, "to_apply")[0], computations)
        elif one[3] not in _FREE and any(i[3] == "dynamic-update-slice" for i in [one, *inner]):
            total += 2 * min(result, sum(size for size in operands if size < result))
        elif one[3] not in _FREE:
            total += result + sum(operands)
    return total


def traffic_of_draw(text: str) -> int:
    """Return the bytes that a draw of one transition moves: the loop over draws and, in it, that over transitions."""
    computations = computations_of(text)
    total = 0
    body = "ENTRY"
    for _ in range(2):
        body = next(called(one, "body")[0] for one in computations[body] if one[3] == "while")
        total += traffic_of(body, computations)
    return total


def compiled_row(name: str, phase: str, engine: Any, arguments: tuple) -> str:
    """Compile a program and return its row of the table."""
    with tempfile.TemporaryDirectory() as folder, engine._precisely():
        lowered = engine._chunk.lower(*arguments)
        began = sum(os.times()[:4])
        compiled = lowered.compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        seconds = sum(os.times()[:4]) - began
        (path,) = glob.glob(f"{folder}/*thunk_sequence_after_thunk_passes.txt")
        sequence = tree_of(Path(path).read_text())
        (path,) = glob.glob(f"{folder}/*gpu_after_optimizations.txt")
        traffic = traffic_of_draw(Path(path).read_text())
    memory = compiled.memory_analysis()
    megabytes = [getattr(memory, f"{kind}_size_in_bytes") / 1e6 for kind in ("argument", "output", "temp")]
    draw = loops_of(sequence)[0]
    (transition,) = loops_of(draw)
    counts = nodes_of(draw) + nodes_of(transition)
    whole = len(sequence) <= 2 and sequence[0]["kind"] == "kCommandBuffer" and bool(loops_of(sequence[0]["below"]))
    nodes = counts["kernels"] + counts["copies"]
    milliseconds = 2e-3 * nodes + 3e-3 * counts["conditionals"] + traffic / 3.35e9
    return (
        f"{name:<14} {phase:<8} {engine.group:>6} {engine.capacity:>8} {nodes:>5} + "
        f"{counts['conditionals']} {'yes' if whole else 'no':>9}  {' + '.join(f'{mb:.0f}' for mb in megabytes):<18} "
        f"{milliseconds:5.2f} {seconds:5.1f}"
    )


def lower(names: list[str], chains: int) -> None:
    """Lower all programs for all platforms, and say what fails."""
    import jax
    from jax import export

    for name in names:
        for precision in ("float64", "mixed", "float32"):
            for phase, engine, arguments in programs(name, chains, jax.devices("cpu")[0], precision):
                with engine._precisely():
                    text = export.export(engine._chunk, platforms=PLATFORMS)(*arguments).mlir_module()
                calls = Counter(re.findall(r"custom_call @([\w.$]+)", text))
                del calls["Sharding"]
                loops = text.count("stablehlo.while")
                print(
                    f"{name:<14} {precision:<8} {phase:<8} {loops} loops, library calls: {dict(calls) or 'none'}",
                    flush=True,
                )


def main() -> None:
    """Compile or lower the programs of some models and print what the compiler says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--chains", type=int, default=16384)
    parser.add_argument("--lower", action="store_true")
    options = parser.parse_args()
    if options.lower:
        lower(options.models, min(options.chains, 256))
        return
    from jax.experimental import topologies

    from pmm_mcmc.engines import jax_engine

    try:
        config = (Path(__file__).parent / "h100.txtpb").read_text()
        topology = topologies.get_topology_desc(platform="cuda", target_config=config, topology="1x1x1")
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        print(f'JAX has no compiler for CUDA here ({reason}); install "jax[cuda12]" of the version of jax')
        return
    jax_engine._memory_of = lambda device: MEMORY
    print(f"{'model':<14} {'phase':<8} {'group':>6} {'capacity':>8} {'nodes':>9} {'one graph':>9}  ", end="")
    print(f"{'MB':<18} {'ms':>5} CPU s")
    for name in options.models:
        for phase, engine, arguments in programs(name, options.chains, topology.devices[0]):
            print(compiled_row(name, phase, engine, arguments), flush=True)


if __name__ == "__main__":
    main()

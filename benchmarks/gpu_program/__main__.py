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
MODELS = ("gaussian", "logistic", "eight_schools", "hierarchy")
PLATFORMS = ("cuda", "rocm", "tpu")
MEMORY = 60 * 2**30  # of an H100's 80 GB, what JAX takes


def build(name: str) -> Any:
    """Return a PyMC model by name."""
    import pymc as pm

    rng = np.random.default_rng(1)
    with pm.Model() as model:
        if name == "gaussian":
            pm.Normal("x", 0.0, np.logspace(-1, 1, 100), shape=100)
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


def compiled_row(name: str, phase: str, engine: Any, arguments: tuple) -> str:
    """Compile a program and return its row of the table."""
    with tempfile.TemporaryDirectory() as folder, engine._precisely():
        lowered = engine._chunk.lower(*arguments)
        began = sum(os.times()[:4])
        compiled = lowered.compile(compiler_options={"xla_dump_to": folder, "xla_dump_hlo_as_text": True})
        seconds = sum(os.times()[:4]) - began
        (path,) = glob.glob(f"{folder}/*thunk_sequence_after_thunk_passes.txt")
        sequence = tree_of(Path(path).read_text())
    memory = compiled.memory_analysis()
    megabytes = [getattr(memory, f"{kind}_size_in_bytes") / 1e6 for kind in ("argument", "output", "temp")]
    draw = loops_of(sequence)[0]
    (transition,) = loops_of(draw)
    counts = nodes_of(draw) + nodes_of(transition)
    whole = len(sequence) <= 2 and sequence[0]["kind"] == "kCommandBuffer" and bool(loops_of(sequence[0]["below"]))
    return (
        f"{name:<14} {phase:<8} {engine.group:>6} {engine.capacity:>8} {counts['kernels'] + counts['copies']:>5} + "
        f"{counts['conditionals']} {'yes' if whole else 'no':>9}  {' + '.join(f'{mb:.0f}' for mb in megabytes):<18} "
        f"{seconds:5.1f}"
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
    print(f"{'model':<14} {'phase':<8} {'group':>6} {'capacity':>8} {'nodes':>9} {'one graph':>9}  {'MB':<18} CPU s")
    for name in options.models:
        for phase, engine, arguments in programs(name, options.chains, topology.devices[0]):
            print(compiled_row(name, phase, engine, arguments), flush=True)


if __name__ == "__main__":
    main()

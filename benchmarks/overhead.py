"""What the sampler costs beyond its gradients: ``python -m benchmarks overhead [table ...]``.

Everything is a ratio within one run, because machines differ and are noisy; times are medians of CPU time.

1. A transition in the engine against its two bare gradient calls, through the same C function pointers.
2. A draw of ``pm.sample`` against a step method that returns its input.
3. Verdict and summary of a run with 10,000 deterministics, beside the run.
4. A call of a C function through the shim of ``LogDensity.from_pointer`` that the engine calls, against a bare call:
   Neal's funnel and a logistic regression of 100 rows, in short turns in which the two alternate, in a loop in C.
"""

from __future__ import annotations

import argparse
import ctypes
import resource
import statistics
import time

import numba
import numpy as np
import pymc as pm
from c_libraries import library
from pymc.step_methods.arraystep import ArrayStepShared

import pmm_mcmc as pmm
from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import MethodArguments, TunedParameters
from pmm_mcmc.engines.contract import empty_state
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.model.log_density import choose_vars, log_density

REPEATS = 7
TURNS, CALLS, ROWS = 401, 200_000, 100
METHODS = {
    "PoissonULMC(K=16)": ("PoissonULMC", {"dynamics": "underdamped", "K": 16}),
    "PoissonULMC(K=16, option=1)": ("PoissonULMC", {"dynamics": "underdamped", "K": 16, "option": 1}),
    "PoissonULMC(scheme='recycled')": ("PoissonULMC", {"dynamics": "underdamped", "scheme": "recycled"}),
    "PoissonOLMC(K=16)": ("PoissonOLMC", {"dynamics": "overdamped", "K": 16}),
    "ULMC": ("ULMC", {"dynamics": "underdamped"}),
    "GHMC": ("GHMC", {"dynamics": "underdamped"}),
}


def gaussian() -> tuple[pm.Model, float]:
    """A 10-dimensional Gaussian and its scale."""
    with pm.Model() as model:
        pm.Normal("x", shape=10)
    return model, 1.0


def logistic() -> tuple[pm.Model, float]:
    """A logistic regression with 1000 observations of 25 covariates."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1000, 25))
    y = (rng.random(1000) < 1 / (1 + np.exp(-x @ rng.normal(size=25) / 3))).astype(int)
    with pm.Model() as model:
        data = pm.Data("data", x)
        slope = pm.Normal("slope", shape=25)
        pm.Bernoulli("y", logit_p=data @ slope, observed=y)
    return model, 0.08


MODELS = {"Gaussian, d=10": gaussian, "logistic regression, n=1000, d=25": logistic}


@numba.njit
def bare_calls(joint, joint_table, gradient, gradient_table, positions, repeat):
    """Call both functions at every position, as the engine would."""
    out, total = np.empty(positions.shape[1]), 0.0
    for _ in range(repeat):
        for i in range(len(positions)):
            x = positions[i]
            total += joint(x.ctypes, out.ctypes, joint_table.ctypes, x.size)
            total += gradient(x.ctypes, out.ctypes, gradient_table.ctypes, x.size)
    return total


@numba.njit
def joint_calls(joint, joint_table, positions, repeat):
    """Call the log density with its gradient alone."""
    out, total = np.empty(positions.shape[1]), 0.0
    for _ in range(repeat):
        for i in range(len(positions)):
            total += joint(positions[i].ctypes, out.ctypes, joint_table.ctypes, positions.shape[1])
    return total


def per_call(function, calls: int) -> float:
    """CPU microseconds for each of ``calls``."""
    began = time.process_time()
    function()
    return (time.process_time() - began) / calls * 1e6


def transitions() -> None:
    """Print table 1."""
    print("\n1. Transition in the engine against its bare calls (CPU microseconds, median of repeats)")
    print(
        f"{'model':35s} {'method':32s} {'gradients':>9s} {'transition':>10s} {'bare':>8s} {'ratio':>6s} {'excess':>7s}"
    )
    for name, build in MODELS.items():
        model, scale = build()
        point = model.initial_point(0)
        density = log_density(choose_vars(None, model), model, point)
        joint, alone = density.function("joint"), density.function("gradient")
        tables = density.table("joint"), density.table("gradient")
        d = density.d
        coordinates = Coordinates(np.zeros(d), np.full(d, scale))
        n = 2000 if "logistic" in name else 100_000
        for label, (method, arguments) in METHODS.items():
            kernel = MethodArguments.checked(method, **arguments).kernel
            engine = NumbaEngine(
                kernel, d, joint, alone, lambda sites: density.table("joint"), lambda sites: density.table("gradient")
            )
            step, K = (0.5 if kernel.dynamics else 0.2), arguments.get("K", 1)
            key = np.array([1, 2], np.uint64)

            def run(rows, thin, engine=engine, step=step, K=K, key=key, coordinates=coordinates):
                state = empty_state(np.zeros(len(coordinates.scale)), np.zeros(len(coordinates.scale)))
                gradient = engine.evaluate(coordinates, state)
                return engine.run(TunedParameters(step, K, 1.0, coordinates, 1), state, gradient, key, 0, rows, thin)

            positions = np.ascontiguousarray(run(200, 5).position)
            gradients = run(n, 1).n_grad.mean()
            repeat = n // 200
            joint_calls(joint, tables[0], positions, 1), bare_calls(joint, tables[0], alone, tables[1], positions, 1)
            ratios, times, bares = [], [], []
            for _ in range(REPEATS):
                t = per_call(lambda run=run: run(n // 100, 100), n)
                one = per_call(lambda: joint_calls(joint, tables[0], positions, repeat), n)
                both = per_call(lambda: bare_calls(joint, tables[0], alone, tables[1], positions, repeat), n)
                bare = one + (gradients - 1.0) * (both - one)
                ratios.append(t / bare), times.append(t), bares.append(bare)
            t, b = statistics.median(times), statistics.median(bares)
            ratio = statistics.median(ratios)
            print(f"{name:35s} {label:32s} {gradients:9.2f} {t:10.2f} {b:8.2f} {ratio:6.2f} {t - b:7.2f}")


class ReturnInput(ArrayStepShared):
    """The cheapest step method there can be."""

    name = "return_input"
    stats_dtypes_shapes = {}  # noqa: RUF012

    def __init__(self, vars=None, model=None, rng=None, blocked=True):
        super().__init__(pm.modelcontext(model).value_vars, {}, rng=rng)

    def astep(self, q0):
        """Return the input."""
        return q0, [{}]


def draws() -> None:
    """Print table 2."""
    print("\n2. A draw of pm.sample, steps_per_draw=1 (CPU microseconds: slope between 1000 and 6000 draws)")
    print(f"{'model':35s} {'returns its input':>17s} {'PoissonULMC':>12s} {'ratio':>6s}")
    model, _ = gaussian()
    options = {"chains": 1, "cores": 1, "tune": 0, "progressbar": False, "compute_convergence_checks": False}

    def slope(step):
        def sample(n):
            began = time.process_time()
            pm.sample(draws=n, step=step, random_seed=1, quiet=True, **options)
            return time.process_time() - began

        return (sample(6000) - sample(1000)) / 5000 * 1e6

    with model:
        trivial, ours = ReturnInput(), pmm.PoissonULMC(K=16, step_size=0.5, steps_per_draw=1)
        slope(trivial), slope(ours)
        pairs = [(slope(trivial), slope(ours)) for _ in range(REPEATS)]
    a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"{'Gaussian, d=10':35s} {a:17.1f} {b:12.1f} {statistics.median(y / x for x, y in pairs):6.2f}")


def ordinal(data: int = 2500) -> pm.Model:
    """An ordinal regression, of which PyMC stores the probability of four categories for each datum, unasked."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(data, 7))
    latent = x @ np.linspace(-1.0, 1.0, 7) + rng.logistic(size=data)
    start, ordered = np.linspace(-1.0, 1.0, 3), pm.distributions.transforms.ordered
    with pm.Model() as model:
        slopes = pm.Normal("slopes", shape=7)
        cuts = pm.Normal("cuts", 0, 3, shape=3, transform=ordered, initval=start)
        pm.OrderedLogistic("y", eta=x @ slopes, cutpoints=cuts, observed=np.digitize(latent, [-1.5, 0.0, 1.5]))
    return model


def many_deterministics() -> None:
    """Print table 3."""
    print("\n3. CPU seconds of verdict and summary with 10,000 deterministics, and MiB beyond the most until then")
    began = time.process_time()
    result = pmm.sample(model=ordinal(), random_seed=1, progressbar=False, compute_convergence_checks=False)
    print(f"{'pmm.sample':46}{time.process_time() - began:8.1f}")
    for name, function in (
        ("pmm.verdict", lambda: pmm.verdict(result)),
        ("pmm.summary of the free variables, after it", lambda: pmm.summary(result, ["slopes", "cuts"])),
        ("pmm.summary of all", lambda: pmm.summary(result)),
    ):
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        function()
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        print(f"{name:46}{time.process_time() - began:8.1f}{more:8.0f}")


def seconds(function: ctypes._CFuncPtr, *arguments: object) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


def c_calls() -> None:
    """Print table 4."""
    print("\n4. A call of a C function (nanoseconds, medians of turns)")
    of_c, rng = library("normal_density"), np.random.default_rng(0)
    of_c.bare_calls.restype = of_c.engine_calls.restype = ctypes.c_double
    rows = np.concatenate([[ROWS], rng.standard_normal(10 * ROWS), rng.integers(2, size=ROWS)])
    for name, n, data in (("funnel", 10, None), ("funnel", 100, None), ("funnel", 1000, None), ("logistic", 10, rows)):
        function = of_c[name]
        density = pmm.LogDensity.from_pointer(function, n, data)
        native, table = density.function("joint"), density.table("joint")
        x, gradient = 0.1 * rng.standard_normal(n), np.empty(n)
        many = CALLS // (n if data is None else len(data))
        both = ctypes.c_size_t(n), x.ctypes, gradient.ctypes
        turns, address = np.empty((TURNS, 2)), ctypes.c_void_p(native.address)
        for turn in turns:
            turn[0] = seconds(
                of_c.bare_calls, function, *both, ctypes.c_long(many), data if data is None else data.ctypes
            )
            turn[1] = seconds(of_c.engine_calls, address, *both, table.ctypes, ctypes.c_long(many))
        (bare, engine), times = np.median(1e9 * turns / many, axis=0), np.median(turns[:, 1] / turns[:, 0])
        print(f"{name:9}{n:5} coordinates: bare {bare:7.1f} ns, in the engine {engine:7.1f} ns, {times:.2f} times")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=int, help="tables to print (default: all)")
    chosen = parser.parse_args().tables or [1, 2, 3, 4]
    for number, table in enumerate((transitions, draws, many_deterministics, c_calls), start=1):
        if number in chosen:
            table()

"""From a model that this machine has never seen to its first draw: ``python -m benchmarks cold_start``.

CPU seconds of ``pmm.sample`` for one draw, in a process of its own, once it has imported the sampler and built the
model: with the loops on disk and nothing of the model, by the tape and by numba; and for the first model from nothing
on disk.  With ``--gradients`` instead the microseconds of a gradient by tape and numba, in one compiled loop, and the
largest relative difference over 100 points.  Without names: the models of the goals, or the whole scoreboard.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from numba import njit
from scoreboard.entries import ENTRIES

import pmm_mcmc as pmm
from pmm_mcmc.model.pymc_density import choose_vars, log_density
from pmm_mcmc.tape.build import Unsupported
from pmm_mcmc.tape.density import TapedDensity

MODELS = (
    "acceptance/breast_cancer", "gallery/eight_schools", "odd/lkj", "odd/latent_gp", "gallery/rugby",
    "published/item_response",
)  # fmt: skip
POINTS = 100


@njit
def repeated(function, x, evaluation, table, n):
    """Call a C function of the engine's signature ``n`` times."""
    value = 0.0
    for _ in range(n):
        value = function(x.ctypes, evaluation.ctypes, table.ctypes, len(x))
    return value


def first_draw(name: str, backend: str) -> float:
    """Return CPU seconds to one draw."""
    model = ENTRIES[name].build()
    sample = pmm.sample  # which imports what a run needs
    began = time.process_time()
    sample(
        1, tune=20, chains=1, cores=1, model=model, backend=backend, random_seed=1, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
    return time.process_time() - began


def elsewhere(name: str, backend: str, folder: str) -> float:
    """Return CPU seconds to one draw in a process whose loops are kept in a folder, and nothing of PyTensor's."""
    with tempfile.TemporaryDirectory() as compiled:
        flags = f"{os.environ.get('PYTENSOR_FLAGS', '')},base_compiledir={compiled}".strip(",")
        environment = os.environ | {"NUMBA_CACHE_DIR": folder, "PYTENSOR_FLAGS": flags}
        command = [sys.executable, "-W", "ignore", "-m", "cold_start", "--one", backend, name]
        return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


def gradients(name: str) -> str:
    """Return a row: microseconds by tape and numba, their ratio, and the largest relative difference."""
    model = ENTRIES[name].build()
    numba = log_density(choose_vars(None, model), model, model.initial_point(0), {})
    try:
        tape = TapedDensity(numba)
    except Unsupported as reason:
        return f"{name:45} no tape runs {reason}"
    rng = np.random.default_rng(1)
    point = model.initial_point(0)
    start = np.concatenate([np.ravel(point[var.name]) for var in model.value_vars]).astype(float)
    points = start + 0.1 * rng.normal(size=(POINTS, len(start)))
    costs = []
    results = []
    for density in (numba, tape):
        function = density.function("joint")
        table = density.table("joint", density.structure.initial_noncentring())
        rows = np.zeros((POINTS, density.width + 1))
        for x, row in zip(points, rows, strict=True):
            row[-1] = repeated(function, x, row[:-1], table, 1)
        calls = 10
        seconds = 0.0
        while seconds < 0.05:
            calls *= 2
            began = time.process_time()
            repeated(function, start, np.zeros(density.width), table, calls)
            seconds = time.process_time() - began
        costs.append(1e6 * seconds / calls)
        results.append(rows)
    expected, mine = results
    finite = np.isfinite(expected)
    scale = np.abs(np.where(finite, expected, 0.0)).max(axis=1, keepdims=True)
    gap = np.abs(np.where(finite, mine - expected, 0.0) / scale).max()
    same = np.array_equal(finite, np.isfinite(mine))
    end = "" if same else "  not finite elsewhere"
    return f"{name:45} {costs[1]:8.1f} {costs[0]:8.1f} {costs[1] / costs[0]:6.2f} {gap:9.1e}{end}"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--one", metavar="BACKEND", help="CPU seconds of one model in this process")
    parser.add_argument("--gradients", action="store_true", help="microseconds of gradients instead of first draws")
    parser.add_argument("--quick", action="store_true", help="one model by the tape alone")
    parser.add_argument("models", nargs="*", help="family/name of the scoreboard")
    options = parser.parse_args()
    if options.one:
        print(first_draw(options.models[0], options.one))
    elif options.gradients:
        print(f"{'microseconds of a gradient':45} {'tape':>8} {'numba':>8} {'ratio':>6} {'gap':>9}")
        for name in options.models or ENTRIES:
            print(gradients(name), flush=True)
    else:
        names = options.models or MODELS[: 1 if options.quick else None]
        with tempfile.TemporaryDirectory() as folder:
            print(f"{'CPU seconds to the first draw':45} {'tape':>8} {'numba':>8}")
            print(f"{'from nothing on disk: ' + names[0]:45} {elsewhere(names[0], 'tape', folder):8.2f}", flush=True)
            for name in names:
                backends = ("tape",) if options.quick else ("tape", "numba")
                seconds = [elsewhere(name, backend, folder) for backend in backends]
                print(f"{name:45} " + " ".join(f"{value:8.2f}" for value in seconds), flush=True)


if __name__ == "__main__":
    main()

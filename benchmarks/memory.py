"""Peak memory of a run, predicted and measured: ``python -m benchmarks memory`` (Linux).

Each row is a process of its own.  It samples a Gaussian, first few draws, so that everything is imported and compiled,
and then the run of the row, verdict included.  Measured is the highest resident memory of that run above what the
process had before it; predicted is what :func:`pmm_mcmc.sample` expects (``pmm_mcmc/run/recorders.py``).
"""

from __future__ import annotations

import argparse
import gc
import logging
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pymc as pm
from posteriors import alone

import pmm_mcmc as pmm
from pmm_mcmc.run import recorders as module
from pmm_mcmc.run.recorders import peak_bytes

# Chains, coordinates, draws of each chain.
SIZES = ["10000,25,60", "1000,2500,20", "64,100000,20"]
MIB = 2**20


def resident(name: str) -> int:
    """Return an entry of this process's status in bytes: ``VmRSS`` now, ``VmHWM`` at most."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def measured(backend: str, chains: int, d: int, draws: int) -> tuple[int, int]:
    """Return predicted and measured bytes of a run in this process."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    predicted = []

    def noted(*args, **options):
        predicted.append(peak_bytes(*args, **options))
        return predicted[-1]

    module.peak_bytes = noted
    with pm.Model():
        pm.Normal("x", 0.0, np.exp(np.random.default_rng(0).normal(size=d)), shape=d)
        run = {"backend": backend, "random_seed": 1, "progressbar": False}
        pmm.sample(draws=8, tune=30, chains=chains if backend == "jax" else 2, **run)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = resident("VmRSS")
        pmm.sample(draws=draws, tune=1000, chains=chains, **run)
    return predicted[-1], resident("VmHWM") - before


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["numba", "jax"])
    parser.add_argument("--sizes", nargs="+", default=SIZES, help="chains,d,draws")
    asked = parser.parse_args()
    print("Peak memory of a run in MiB\n\n chains       d  draws backend predicted measured  ratio")
    for size, backend in product(asked.sizes, asked.backends):
        chains, d, draws = map(int, size.split(","))
        a, b = alone(measured, backend, chains, d, draws)
        cells = f"{chains:7d} {d:7d} {draws:6d} {backend:7s}"
        print(f"{cells} {a / MIB:9.0f} {b / MIB:8.0f} {a / b:6.2f}", flush=True)


if __name__ == "__main__":
    main()

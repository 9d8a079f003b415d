"""Peak memory of a run, predicted and measured: ``python -m benchmarks memory`` (Linux).

Each row is a process of its own.  It samples a Gaussian, first few draws, so that everything is imported and compiled,
and then the run of the row, verdict included.  Measured is the highest resident memory of that run above what the
process had before it; predicted is what :func:`pmm_mcmc.sample` expects (``pmm_mcmc/run/peak.py``).
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import subprocess
import sys
import warnings
from pathlib import Path

# Chains, coordinates, draws of each chain.
SIZES = [(10_000, 25, 60), (1_000, 2_500, 20), (64, 100_000, 20)]
MIB = 2**20


def resident(name: str) -> int:
    """Return an entry of this process's status in bytes: ``VmRSS`` now, ``VmHWM`` at most."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def measured(backend: str, keep: str, chains: int, d: int, draws: int, tune: int = 1000) -> tuple[int, int]:
    """Return predicted and measured bytes of a run in this process."""
    import numpy as np
    import pymc as pm

    import pmm_mcmc as pmm
    from pmm_mcmc.run import sample as module

    predicted, predict = [], module.peak_bytes

    def noted(*args, **options):
        predicted.append(predict(*args, **options))
        return predicted[-1]

    module.peak_bytes = noted
    with pm.Model():
        pm.Normal("x", 0.0, np.exp(np.random.default_rng(0).normal(size=d)), shape=d)
        run = {"backend": backend, "random_seed": 1, "progressbar": False}
        pmm.sample(draws=8, tune=30, chains=chains if backend == "jax" else 2, **run)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = resident("VmRSS")
        pmm.sample(draws=draws, tune=tune, chains=chains, keep=keep, **run)
    module.peak_bytes = predict
    return predicted[-1], resident("VmHWM") - before


def main(rows: list[list[str]]) -> None:
    """Print the table."""
    print("Peak memory of a run in MiB\n\n chains       d  draws backend kept     predicted measured  ratio")
    for row in rows:
        command = [sys.executable, "-W", "ignore", __file__, "--one", *row]
        out = subprocess.run(command, capture_output=True, text=True)
        if out.returncode:
            raise RuntimeError(out.stderr[-2000:])
        a, b = json.loads(out.stdout.splitlines()[-1])
        backend, keep, chains, d, draws = row
        cells = f"{chains:>7s} {d:>7s} {draws:>6s} {backend:7s} {keep:8s}"
        print(f"{cells} {a / MIB:9.0f} {b / MIB:8.0f} {a / b:6.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["numba", "jax"])
    parser.add_argument("--keep", nargs="+", default=["draws", "moments"])
    parser.add_argument(
        "--sizes", nargs="+", default=[",".join(map(str, size)) for size in SIZES], help="chains,d,draws"
    )
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        print(json.dumps(measured(*chosen.one[:2], *map(int, chosen.one[2:]))))
    else:
        sizes = [size.split(",") for size in chosen.sizes]
        main([[b, k, *size] for size in sizes for b in chosen.backends for k in chosen.keep])

"""What a call of a C function costs the engine: ``python -m benchmarks c_call``.

Neal's funnel and a logistic regression of 100 rows in C, called in a loop in C: bare, and through the shim of
``LogDensity.from_pointer`` that the engine calls.  Medians of short turns in which the two alternate, and of their
ratios.
"""

from __future__ import annotations

import argparse
import ctypes
import time

import numpy as np
from c_libraries import library

import pmm_mcmc as pmm

TURNS, NUMBERS, ROWS = 401, 200_000, 100


def seconds(function: ctypes._CFuncPtr, *arguments: object) -> float:
    """Return the seconds of one call."""
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


def main() -> None:
    """Print nanoseconds of a call."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    of_c, rng = library("normal_density"), np.random.default_rng(0)
    of_c.bare_calls.restype = of_c.engine_calls.restype = ctypes.c_double
    rows = np.concatenate([[ROWS], rng.standard_normal(10 * ROWS), rng.integers(2, size=ROWS)])
    for name, n, data in (("funnel", 10, None), ("funnel", 100, None), ("funnel", 1000, None), ("logistic", 10, rows)):
        function = of_c[name]
        density = pmm.LogDensity.from_pointer(function, n, data)
        native, table = density.function("joint"), density.table("joint")
        x, gradient = 0.1 * rng.standard_normal(n), np.empty(n)
        many = NUMBERS // (n if data is None else len(data))
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
    main()

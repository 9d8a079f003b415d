"""Shared libraries that tests compile from C sources beside this file, and what a density says to the engine."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

from pmm_mcmc.model.pytensor_density import PyTensorDensity
from pmm_mcmc.tape.density import TapedDensity

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler (cc, gcc, clang) on the path")


@functools.cache
def library(name, *flags):
    """The library of ``<name>.c``, compiled once in a process."""
    source = Path(__file__).with_name(f"{name}.c")
    target = Path(tempfile.mkdtemp()) / f"{name}.so"
    arguments = [COMPILER, "-O2", "-shared", "-fPIC", *flags, "-o", target, source, "-lm"]
    subprocess.run(arguments, check=True, capture_output=True, timeout=60)
    return ctypes.CDLL(str(target))


def at(density, x, which="joint", noncentring=None):
    """Value and evaluation, as the engine gets them; of a density that is composed of graphs, from its tape."""
    if isinstance(density, PyTensorDensity):
        density.tape = density.tape or TapedDensity(density)
        density = density.tape
    out, x = np.full(density.width, np.nan), np.array(x, dtype=float)
    numbers = ctypes.POINTER(ctypes.c_double)
    native, table = density.function(which), density.table(which, noncentring)
    value = native.ctypes(
        x.ctypes.data_as(numbers), out.ctypes.data_as(numbers), table.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)),
        density.d,
    )  # fmt: skip
    return value, out

"""Shared libraries that tests compile from C sources beside this file, and a BridgeStan model of one."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler (cc, gcc, clang) on the path")
_NUMBERS = np.ctypeslib.ndpointer(dtype=float, flags="C_CONTIGUOUS")


@functools.cache
def library(name, *flags):
    """The library of ``<name>.c``, compiled once in a process."""
    source = Path(__file__).with_name(f"{name}.c")
    target = Path(tempfile.mkdtemp()) / f"{name}.so"
    arguments = [COMPILER, "-O2", "-shared", "-fPIC", *flags, "-o", target, source, "-lm"]
    subprocess.run(arguments, check=True, capture_output=True, timeout=60)
    return ctypes.CDLL(str(target))


class StanModel:
    """What a sampler uses of ``bridgestan.StanModel`` 2.9, which cannot be installed everywhere."""

    def __init__(self, data="", *flags):
        self.stanlib, self.data, self.seed = library("stan_interface", *flags), data, 1234
        self.stanlib.bs_model_construct.restype = ctypes.c_void_p
        self.model = self.stanlib.bs_model_construct(data.encode(), ctypes.c_uint(self.seed), None)
        self.broken = False

    def _text(self, name, *arguments):
        function = getattr(self.stanlib, name)
        function.restype = ctypes.c_char_p
        return function(ctypes.c_void_p(self.model), *arguments).decode()

    def model_info(self):
        return self._text("bs_model_info")

    def param_unc_num(self):
        return self.stanlib.bs_param_unc_num(ctypes.c_void_p(self.model))

    def param_unc_names(self):
        return self._text("bs_param_unc_names").split(",")

    def param_names(self, *, include_tp=False, include_gq=False):
        return self._text("bs_param_names", ctypes.c_bool(include_tp), ctypes.c_bool(include_gq)).split(",")

    def new_rng(self, seed):
        self.stanlib.bs_rng_construct.restype = ctypes.c_void_p
        return ctypes.c_void_p(self.stanlib.bs_rng_construct(ctypes.c_uint(seed), None))

    def param_constrain(self, theta_unc, *, include_tp=False, include_gq=False, rng=None):
        if self.broken:
            raise RuntimeError("normal_rng: Scale parameter is -1")
        out, function = np.empty(9 if include_gq else 8), self.stanlib.bs_param_constrain
        function.argtypes = [ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool, _NUMBERS, _NUMBERS, ctypes.c_void_p]
        assert function(self.model, include_tp, include_gq, theta_unc, out, rng, None) == 0
        return out

    def param_unconstrain(self, theta):
        out, function, message = np.empty(8), self.stanlib.bs_param_unconstrain, ctypes.c_char_p()
        given = np.ascontiguousarray(theta, dtype=float)
        if function(ctypes.c_void_p(self.model), given.ctypes, out.ctypes, ctypes.byref(message)):
            raise RuntimeError(message.value.decode())
        return out

    def log_density_gradient(self, theta_unc):
        function, value, gradient = self.stanlib.bs_log_density_gradient, ctypes.c_double(), np.empty(8)
        message = ctypes.c_char_p()
        code = function(
            ctypes.c_void_p(self.model), ctypes.c_bool(True), ctypes.c_bool(True), theta_unc.ctypes,
            ctypes.byref(value), gradient.ctypes, ctypes.byref(message),
        )  # fmt: skip
        if code:
            raise RuntimeError(message.value.decode())
        return value.value, gradient

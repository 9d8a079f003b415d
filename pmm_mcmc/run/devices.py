"""The choice between numba and JAX and of JAX's device, if necessary by a brief trial.

An accelerator has a cost for starting each operation, which exceeds that of the arithmetic for few chains or a small
model, and some are slow in double precision.  A trial therefore times the gradients of the run's own density.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import numbers
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.model.density import LogDensity, PointerDensity

__all__ = [
    "Jax", "check_choice", "check_count", "choose_backend", "choose_device", "cores", "faster_device",
    "jax_engine", "own_backend", "platforms", "threads_of",
]  # fmt: skip

_log = logging.getLogger("pmm_mcmc")

_DEVICES = ("auto", "cpu", "gpu", "tpu")
_PRECISIONS = ("float64", "mixed", "float32")
# Most chains of a trial, gradients of each in a compiled call, and seconds of a trial after compilation.
_MOST_CHAINS = 4096
_GRADIENTS = 16
_SECONDS = 0.2
# Factor by which the CPU must be faster, so that close calls give the same device every time.
_MARGIN = 1.5


@dataclass(frozen=True)
class Jax:
    """JAX as the backend of a run, for ``backend=`` of :func:`pmm_mcmc.sample`: ``"jax"`` is ``pmm.Jax()``.

    Parameters
    ----------
    device
        "cpu", "gpu", "tpu", or "auto": JAX's accelerator, or the CPU if there is none or if a brief trial shows that
        gradients are clearly faster there.  All local devices of the kind share the chains, and so do all processes
        that ``jax.distributed`` has connected; these must call with equal arguments and one ``store``.
    precision
        "float64"; "mixed" (log density and gradient in single precision, everything else in double); "float32".
    batch
        Number of chains that advance together, which bounds the memory that they need.  "auto": as many as fit into
        about a hundred megabytes.

    Examples
    --------
    >>> Jax(device="gpu")
    Jax(device='gpu', precision='float64', batch='auto')
    """

    device: str = "auto"
    precision: str = "float64"
    batch: int | str = "auto"

    def __post_init__(self) -> None:
        check_choice("device", self.device, _DEVICES)
        check_choice("precision", self.precision, _PRECISIONS)
        if self.batch != "auto":
            check_count("batch", self.batch, 1)


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise ``ValueError`` for a value that is none of the choices."""
    if not (isinstance(value, str) and value in choices):
        raise ValueError(f"{name}={value!r}: must be {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}")


def check_count(name: str, value: Any, least: int, other: str = "") -> None:
    """Raise ``ValueError`` for a count that is no integer or too small."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name}={value!r}: must be an integer of at least {least}{other}")


def faster_device(density: Any, precision: str, chains: int) -> str:
    """Return "cpu" if gradients of a log density are clearly faster there than on JAX's default device, else "auto".

    There is no trial if JAX has no accelerator, or if there are several processes, which would have to agree.  The
    first trial of a density counts for all runs of the process.
    """
    import jax

    default = jax.local_devices()[0]
    if default.platform == "cpu" or jax.process_count() > 1:
        return "auto"
    n = min(chains, _MOST_CHAINS)
    key = "faster", precision, n
    if key not in density.engines:
        try:
            cpu = jax.local_devices(backend="cpu")[0]
        except RuntimeError:  # JAX is configured without the CPU
            return "auto"
        times = [1e3 * _seconds(_trial(density, precision, n, device)) / _GRADIENTS for device in (default, cpu)]
        better = times[1] * _MARGIN < times[0]
        density.engines[key] = "cpu" if better else "auto"
        _log.info(
            "device: %s, since gradients of %d chains take %.2g ms on the %s and %.2g ms on the CPU "
            "(pmm.Jax(device=...) chooses otherwise)",
            "cpu" if better else default.platform, n, times[0], default.platform, times[1],
        )  # fmt: skip
    return density.engines[key]


def _trial(density: Any, precision: str, n: int, device: Any) -> Callable[[], Any]:
    """Return a function that computes successive gradients of ``n`` chains on a device, as a chunk does."""
    import jax

    start = np.random.default_rng(0).standard_normal((n, density.d))

    def run(x: Any, shared: Any) -> Any:
        def step(_: Any, x: Any) -> Any:
            # The evaluation of a non-centred density is longer than the gradient.
            return x + 1e-6 * density.batch(x, shared, precision)[1][:, : density.d].astype(x.dtype)

        return jax.lax.fori_loop(0, _GRADIENTS, step, x)

    def call() -> Any:
        with jax.enable_x64(precision != "float32"):
            return jax.block_until_ready(compiled(x, shared))

    with jax.enable_x64(precision != "float32"):
        dtype = np.float32 if precision == "float32" else np.float64
        x, shared = jax.device_put((start.astype(dtype), density.shared(precision)), device)
        compiled = jax.jit(run)
    return call


def _seconds(call: Callable[[], Any]) -> float:
    """Return the seconds of the fastest of several calls, after compilation."""
    call()
    best = np.inf
    end = time.perf_counter() + _SECONDS
    while best == np.inf or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return float(best)


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_backend(backend: str, device: str, precision: str, is_density: bool) -> str:
    """Return a backend's name for arguments that do not contradict each other, and log the reason."""
    if backend in ("numba", "tape"):
        for name, value, only in (("device", device, "auto"), ("precision", precision, "float64")):
            if value != only and not (name == "device" and value == "cpu"):
                raise ValueError(f"{name}={value!r} needs backend='jax': {backend} runs on the CPU in double precision")
        return backend
    if backend == "jax" or is_density or device in ("gpu", "tpu") or precision != "float64":
        return "jax"
    if device == "auto" and _may_have_accelerator():
        import jax

        if jax.default_backend() != "cpu":
            return "jax"  # choose_device may still choose the CPU
    _log.debug("backend: numba, since JAX has no accelerator here (backend= chooses otherwise)")
    return "numba"


def _may_have_accelerator() -> bool:
    """Return whether JAX is imported already, or installed with a plugin: to import it would take half of a short run.

    Plugins for GPUs are entry points or modules of ``jax_plugins``; that for TPUs is ``libtpu``.
    """
    if "jaxlib" in sys.modules:  # others put a lazy "jax" there
        return True
    if importlib.util.find_spec("jaxlib") is None:
        return False
    plugins = any(importlib.util.find_spec(name) for name in ("jax_plugins", "libtpu"))
    return plugins or bool(importlib.metadata.entry_points(group="jax_plugins"))


def choose_device(density: Any, device: str, precision: str, chains: int) -> str:
    """Return the requested device, or the faster one for "auto"."""
    return faster_device(density, precision, chains) if device == "auto" else device


def platforms(engine: Any) -> list[str]:
    """Return the platform of each device of an engine."""
    return [device.platform for device in getattr(engine, "devices", [])] or ["cpu"]


def jax_engine(arguments: MethodArguments, density: Any, device: str, precision: str, chains: int) -> Any:
    """Return the engine of a method on a density, which is cached for later runs of the same kind."""
    import jax

    from pmm_mcmc.engines.jax_engine import JaxEngine

    try:
        devices = jax.local_devices(backend=None if device == "auto" else device)
    except RuntimeError as error:
        raise ValueError(
            f"device={device!r}: JAX finds none here ({error}); use device='auto', or go on with a stored run on the "
            "kind of device that it began on"
        ) from error
    key = arguments.kernel, chains, precision, tuple(devices), density.static()
    if key not in density.engines:
        density.engines[key] = JaxEngine(arguments.kernel, density, chains, precision, devices)
    return density.engines[key]


def own_backend(density: LogDensity, backend: str) -> str:
    """Return the backend that a log density is written for; raise ``ValueError`` if another one is requested."""
    if backend not in ("auto", density.runs_on):
        what = (
            "a C function; use backend='numba'" if density.runs_on == "numba" else "a JAX function; use backend='jax'"
        )
        raise ValueError(f"backend={backend!r}: this LogDensity is {what} or 'auto'")
    return density.runs_on


def threads_of(threads: int | None, density: PointerDensity) -> int:
    """Return the number of threads that may call a C function."""
    if density.thread_safe:
        return threads or cores()
    if threads is not None and threads > 1:
        raise ValueError(
            f"cores={threads}: the C function is not declared thread-safe, so that chains advance one after the other; "
            "leave cores out, or declare it (from_pointer(..., thread_safe=True), STAN_THREADS=True)"
        )
    return 1

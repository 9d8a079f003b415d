"""What a run runs on: numba or JAX, and on which device, tried briefly where the choice is left open.

An accelerator starts every operation anew, which for few chains or a small model takes longer than the arithmetic; and
some are slow in double precision.  Both show in the gradients that a run is made of.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pmm_mcmc.engines.settings import MethodArguments

__all__ = ["choose_backend", "choose_device", "cores", "faster_device", "jax_engine", "platforms"]

_log = logging.getLogger("pmm_mcmc")

# Chains of a trial at most, gradients of each in a compiled call, and seconds of a trial once it is compiled.
_MOST_CHAINS, _GRADIENTS, _SECONDS = 4096, 16, 0.2
# How much faster the CPU must be: close calls go one way, so that a run begins on the same device every time.
_MARGIN = 1.5


def faster_device(density: Any, precision: str, chains: int) -> str:
    """Return "cpu" where the gradients of so many chains are clearly faster there; else "auto", JAX's default device.

    Parameters
    ----------
    density
        A :class:`pmm_mcmc.LogDensity`.
    precision
        As for :func:`pmm_mcmc.sample`.
    chains
        Chains of the run.

    Returns
    -------
    str
        Without a trial "auto" where JAX has no accelerator, or where several processes would have to agree.  The first
        trial of a density counts for all runs of the process.
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
        except RuntimeError:  # JAX was told to leave the CPU out
            return "auto"
        there, here = (_seconds(_trial(density, precision, n, device)) / _GRADIENTS for device in (default, cpu))
        better = here * _MARGIN < there
        density.engines[key] = "cpu" if better else "auto"
        _log.info(
            "device: %s, since gradients of %d chains take %.2g ms on the %s and %.2g ms on the CPU (device= chooses "
            "otherwise)", "cpu" if better else default.platform, n, 1e3 * there, default.platform, 1e3 * here,
        )  # fmt: skip
    return density.engines[key]


def _trial(density: Any, precision: str, n: int, device: Any) -> Callable[[], Any]:
    """Return a call that takes some gradients of ``n`` chains one after the other on a device, as a chunk does."""
    import jax

    start = np.random.default_rng(0).standard_normal((n, density.d))

    def run(x: Any, shared: Any) -> Any:
        def step(_: Any, x: Any) -> Any:
            # Beside the gradient, more is said of a density that is non-centred.
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
    """Return the seconds of a call once it is compiled: of the fastest of some."""
    call()
    best, end = np.inf, time.perf_counter() + _SECONDS
    while best == np.inf or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return float(best)


def cores() -> int:
    """Return the processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_backend(backend: str, device: str, precision: str, is_density: bool) -> str:
    """Return "numba" or "jax" for what was asked for, and say why.

    Raises
    ------
    ValueError
        Where what was asked for does not go together.
    """
    if backend == "numba":
        if is_density:
            raise ValueError("backend='numba': a LogDensity is a JAX function; use backend='jax' or 'auto'")
        for name, value, only in (("device", device, "auto"), ("precision", precision, "float64")):
            if value != only and not (name == "device" and value == "cpu"):
                raise ValueError(f"{name}={value!r} needs backend='jax': numba runs on the CPU in double precision")
        return backend
    if backend == "jax" or is_density or device in ("gpu", "tpu") or precision != "float64":
        return "jax"
    try:
        import jax
    except ImportError:
        _log.debug("backend: numba, since JAX is not installed")
        return "numba"
    if device == "auto" and jax.default_backend() != "cpu":
        return "jax"  # unless the CPU turns out faster: choose_device
    _log.debug("backend: numba, since JAX has no accelerator here (backend= chooses otherwise)")
    return "numba"


def choose_device(density: Any, device: str, precision: str, chains: int) -> str:
    """Return the device that was asked for; for "auto" the faster one."""
    return faster_device(density, precision, chains) if device == "auto" else device


def platforms(engine: Any) -> list[str]:
    """Return the kinds of devices that an engine runs on."""
    return [device.platform for device in getattr(engine, "devices", [])] or ["cpu"]


def jax_engine(settings: MethodArguments, density: Any, device: str, precision: str, chains: int) -> Any:
    """Return the engine of a method on a density, made once for each kind of run.

    Raises
    ------
    ValueError
        Where JAX finds no such device.
    """
    import jax

    from pmm_mcmc.engines.jax_engine import JaxEngine

    try:
        devices = jax.local_devices(backend=None if device == "auto" else device)
    except RuntimeError as error:
        raise ValueError(
            f"device={device!r}: JAX finds none here ({error}); use device='auto', or go on with a stored run on the "
            "kind of device that it began on"
        ) from error
    key = settings.kernel, chains, precision, tuple(devices), density.static()
    if key not in density.engines:
        density.engines[key] = JaxEngine(settings.kernel, density, chains, precision, devices)
    return density.engines[key]

"""JAX's devices, precision and engines, and numba's threads."""

from __future__ import annotations

import numbers
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from pmm_mcmc.engines.arguments import MethodArguments, check_choice
from pmm_mcmc.model.user_density import LogDensity

__all__ = ["Jax", "backend_of", "check_count", "cores", "group_of", "jax_engine", "platforms", "threads_of"]


@dataclass(frozen=True)
class Jax:
    """JAX as the backend of a run, for ``backend=`` of :func:`pmm_mcmc.sample`: ``"jax"`` is ``pmm.Jax()``.

    Parameters
    ----------
    device
        "cpu", "gpu", "tpu", or "auto": JAX's default, its accelerator or, if there is none, the CPU.  All local devices
        of the kind share the chains, and so do all processes that ``jax.distributed`` has connected; these must call
        with equal arguments and one ``store``.
    precision
        "float64"; "mixed" (log density and gradient in single precision, everything else in double); "float32".

    Examples
    --------
    >>> Jax(device="gpu")
    Jax(device='gpu', precision='float64')
    """

    device: str = "auto"
    precision: str = "float64"

    def __post_init__(self) -> None:
        check_choice("device", self.device, "auto", "cpu", "gpu", "tpu")
        check_choice("precision", self.precision, "float64", "mixed", "float32")


def check_count(name: str, value: Any, least: int, other: str = "") -> None:
    """Raise ``ValueError`` for a count that is no integer or too small."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name}={value!r}: must be an integer of at least {least}{other}")


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def platforms(engine: Any) -> list[str]:
    """Return the platform of each device of an engine."""
    return [device.platform for device in getattr(engine, "devices", [])] or ["cpu"]


def group_of(engine: Any) -> int:
    """Return the number of chains of an engine that advance in lockstep."""
    return getattr(engine, "group", 1)


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
    key = arguments.kernel, chains, precision, tuple(devices), density.lengths()
    if key not in density.engines:
        density.engines[key] = JaxEngine(arguments.kernel, density, chains, precision, devices)
    return density.engines[key]


def backend_of(model: Any, backend: str) -> str:
    """Return the name of a backend; raise ``ValueError`` if a log density is not written for the backend asked for."""
    if not isinstance(model, LogDensity):
        return "numba" if backend == "auto" else backend
    if backend not in ("auto", model.runs_on):
        what = "a C function; use backend='numba'" if model.runs_on == "numba" else "a JAX function; use backend='jax'"
        raise ValueError(f"backend={backend!r}: this LogDensity is {what} or 'auto'")
    return model.runs_on


def threads_of(threads: int | None, density: LogDensity) -> int:
    """Return the number of threads that may call a C function."""
    if density.thread_safe:
        return threads or cores()
    if threads is not None and threads > 1:
        raise ValueError(
            f"cores={threads}: the C function is not declared thread-safe, so that chains advance one after the other; "
            "leave cores out, or declare it (from_pointer(..., thread_safe=True), STAN_THREADS=True)"
        )
    return 1

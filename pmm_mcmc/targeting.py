"""What ``pmm.sample`` samples: a method on a model or a log density, with the engine that runs it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import pmm_mcmc
from pmm_mcmc.engines.contract import Engine
from pmm_mcmc.host import Groups
from pmm_mcmc.hosts import Hosts
from pmm_mcmc.methods import Settings
from pmm_mcmc.results import Layout
from pmm_mcmc.starts import model_starts, spread_starts
from pmm_mcmc.tuning.setting import fixed_setting

__all__ = ["Target"]

_log = logging.getLogger("pmm_mcmc")

_BACKENDS, _DEVICES = ("auto", "numba", "jax"), ("auto", "cpu", "gpu", "tpu")
_PRECISIONS = ("float64", "mixed", "float32")
_GRADIENTS = ("gradient", "unconstrained", "noncentred")
# Chains in one file of a store, where they do not advance in lockstep.
_FILE = 256


@dataclass
class Target:
    """A method on a log density, ready to run.

    Attributes
    ----------
    settings, engine, layout
        The method's arguments, what runs it, and what its draws mean.
    statistics
        Names of the statistics of its draws.
    identity
        What a run must have in common with a stored one to go on with it.
    attributes
        What is said of it in the result.
    group
        Chains that advance in lockstep.
    model
        The PyMC model, if there is one.
    log_likelihood
        Whether its terms are wanted.
    var_names
        The variables that are wanted; all for ``None``.
    """

    settings: Settings
    engine: Engine
    layout: Layout
    statistics: tuple[str, ...]
    identity: dict[str, Any]
    attributes: dict[str, Any]
    group: int
    model: Any
    log_likelihood: bool
    var_names: list[str] | None = None

    @classmethod
    def of(
        cls,
        step: Any,
        model: Any,
        backend: str,
        device: str,
        precision: str,
        chains: int,
        log_likelihood: bool,
        var_names: Sequence[str] | None = None,
        cores: int | None = None,
        begins: Callable[[str], None] = _log.debug,
        adapts: bool = True,
    ) -> Target:
        """Check what was asked for, and build it; see :func:`pmm_mcmc.sample` for the arguments.

        ``begins`` is told what will be sampled, before anything is compiled.
        """
        for name, value, choices in (
            ("backend", backend, _BACKENDS),
            ("device", device, _DEVICES),
            ("precision", precision, _PRECISIONS),
        ):
            if not (isinstance(value, str) and value in choices):
                raise ValueError(f"{name}={value!r}: must be {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}")
        from pmm_mcmc.steps.base import LangevinStep

        if step is None:
            settings = Settings.checked("PoissonULMC", dynamics="underdamped", scheme="auto")
            step = pmm_mcmc.PoissonULMC.of_settings(settings, keep_gradients=True)
        if not isinstance(step, LangevinStep):
            raise ValueError(
                f"step={step!r}: must be a step of pmm_mcmc, such as pmm.PoissonULMC(); pm.sample takes PyMC's own"
            )
        settings, is_density = step.arguments.beside(False), _is_density(model)
        chosen = _backend(backend, device, precision, is_density)
        if cores is not None and chosen == "jax":
            raise ValueError(f"cores={cores!r}: is the number of numba's threads; JAX chooses its own, leave it out")
        if is_density:
            target = cls._of_density(step, settings, model, device, precision, chains, log_likelihood, begins, adapts)
        else:
            on_cpu = "numba" if backend == "auto" and precision == "float64" else chosen
            target = cls._of_model(
                step, settings, model, chosen, on_cpu, device, precision, chains, log_likelihood, cores, begins, adapts
            )
        return target._with_variables(var_names)

    @classmethod
    def _of_density(
        cls,
        step: Any,
        settings: Settings,
        density: Any,
        device: str,
        precision: str,
        chains: int,
        log_likelihood: bool,
        begins: Callable[[str], None],
        adapts: bool,
    ) -> Target:
        if log_likelihood:
            raise ValueError("log_likelihood=True needs a PyMC model: a log density does not say what is observed")
        if not step.free:
            raise ValueError("step was made for a PyMC model: for a LogDensity make it outside any")
        settings.check_coordinates(density.d)
        density = density.noncentred(settings.noncentring if adapts or settings.noncentring else None)
        begins(f"{settings.words}: {density.d} coordinates of a log density")
        engine = _jax_engine(settings, density, _device(density, device, precision, chains), precision, chains)
        said = {"density": density.fingerprint, "data": ""}
        return cls._finished(
            step, settings, engine, Layout.of_vector(density.d), said, "jax", precision, engine.group, None, False
        )

    @classmethod
    def _of_model(
        cls,
        step: Any,
        settings: Settings,
        model: Any,
        backend: str,
        on_cpu: str,
        device: str,
        precision: str,
        chains: int,
        log_likelihood: bool,
        cores: int | None,
        begins: Callable[[str], None],
        adapts: bool,
    ) -> Target:
        import pymc as pm

        from pmm_mcmc.engines.numba_engine import NumbaEngine
        from pmm_mcmc.fingerprint import data_fingerprint, model_fingerprint
        from pmm_mcmc.logdensity import log_density

        own = None if step.free else step.model
        model = pm.modelcontext(own if model is None else model)
        if own is not None and own is not model:
            raise ValueError("step was made for another model than model=: make it outside any, or inside this one")
        discrete = [v.name for v in model.value_vars if v not in model.continuous_value_vars]
        if discrete:
            raise ValueError(
                f"{', '.join(discrete)}: discrete variables have no gradient; marginalise them out, or use "
                f"pm.sample(step=pmm.{settings.method}(...)), where PyMC samples them with a method of its own"
            )
        vars = list(model.value_vars)
        if own is not None and {v.name for v in step.vars} != {v.name for v in vars}:
            left_out = ", ".join(v.name for v in vars if v.name not in {w.name for w in step.vars})
            raise ValueError(f"vars of the step leave {left_out} out: pmm.sample moves all variables; leave vars out")
        begins(f"{settings.words}: [{', '.join(rv.name for rv in model.free_RVs)}]")
        point = model.initial_point(0)
        # Without a warm-up there is nothing to learn sites from.
        density = log_density(vars, model, point, settings.noncentring if adapts or settings.noncentring else None)
        settings.check_coordinates(density.d)
        said = {"density": model_fingerprint(model, vars), "data": data_fingerprint(model)}
        engine: Any
        if backend == "jax":
            from pmm_mcmc.jax_density import LogDensity

            if density.jax is None:
                density.jax = LogDensity.from_model(density, said["density"])
            device = _device(density.jax, device, precision, chains)
            backend = on_cpu if device == "cpu" else backend
        if backend == "jax":
            engine = _jax_engine(settings, density.jax, device, precision, chains)
            group = engine.group
        else:
            engine, group = NumbaEngine.of(settings, density, cores or _cores()), 1
        include = ("posterior", "log_likelihood") if log_likelihood else ("posterior",)
        layout = Layout.of_model(model, vars, point, backend, include)
        return cls._finished(step, settings, engine, layout, said, backend, precision, group, model, log_likelihood)

    @classmethod
    def _finished(
        cls, step: Any, settings: Settings, engine: Any, layout: Layout, said: dict[str, str], backend: str,
        precision: str, group: int, model: Any, log_likelihood: bool,
    ) -> Target:  # fmt: skip
        names = ["lp" if name == "model_logp" else name for name in type(step).stats_dtypes_shapes if name != "warning"]
        without: tuple[str, ...] = () if step.keep_gradients else _GRADIENTS
        without += () if engine.structure is not None else ("noncentred",)
        statistics = tuple(n for n in names if n not in without)
        attributes = {"sampler": settings.method, "backend": backend, "precision": precision}
        identity = {
            **said, "method": repr(settings), "backend": backend, "precision": precision, "group": group,
            "device": _devices(engine)[0], "keep_gradients": step.keep_gradients, "log_likelihood": log_likelihood,
            "pmm_mcmc": pmm_mcmc.__version__,
        }  # fmt: skip
        return cls(settings, engine, layout, statistics, identity, attributes, group, model, log_likelihood)

    def _with_variables(self, names: Any) -> Target:
        """Keep only these variables of the posterior."""
        if names is not None:
            known = list(self.values(np.empty((1, 0, self.engine.d)))["posterior"])
            wanted = [names] if isinstance(names, str) else list(names)
            unknown = [name for name in wanted if name not in known]
            if unknown or not wanted:
                raise ValueError(f"var_names={names!r}: must be some of {', '.join(known)}")
            self.var_names = [name for name in known if name in wanted]
        self.identity["var_names"] = self.var_names
        return self

    def check_fixed(self) -> None:
        """Raise where there is no warm-up to find what was not given."""
        fixed_setting(self.settings, np.zeros(self.engine.d))

    def values(self, position: np.ndarray, tuning: bool = False) -> Groups:
        """Named values of draws ``(chain, n, d)``, of every group that is wanted of the phase."""
        values = self.layout.values(position)
        groups = {"posterior": {n: values[n] for n in values if self.var_names is None or n in self.var_names}}
        if self.log_likelihood and not tuning:
            groups["log_likelihood"] = self.layout.log_likelihood(position)
        return groups

    def empty(self, chains: int, tuning: bool = False) -> Groups:
        """Return arrays of no draws: what the result of a phase has, and of which types."""
        groups = self.values(np.empty((chains, 0, self.engine.d)), tuning)
        shape = (chains, 0)
        stats = {name: np.empty(shape, np.int64 if name in _COUNTS else float) for name in self.statistics}
        groups["sample_stats"] = stats | {n: np.empty((*shape, self.engine.d)) for n in _GRADIENTS if n in stats}
        return groups

    @property
    def file_chains(self) -> int:
        """Chains in one file of a store."""
        return self.group if self.group > 1 else _FILE

    @property
    def devices(self) -> int:
        """Groups that advance at the same time."""
        return len(_devices(self.engine))

    def hosts(self, chains: int) -> Hosts:
        """Return the processes that share the chains."""
        return Hosts.of_jax(chains, self.group) if self.attributes["backend"] == "jax" else Hosts(slice(0, chains))

    @property
    def numbers_per_draw(self) -> int:
        """Numbers that are kept of a draw of one chain."""
        arrays = [a for group in self.empty(1).values() for a in group.values()]
        return sum(int(np.prod(a.shape[2:], dtype=int)) for a in arrays)

    def starts(self, initvals: Any, chains: int, superchains: int | None, rng: np.random.Generator) -> np.ndarray:
        """Return the starts of chains ``(chain, d)``.

        Raises
        ------
        ValueError, SamplingError
            If ``initvals`` does not fit, or nothing is finite there.
        """
        d, gradient_at = self.engine.d, self.engine.gradient_at
        if self.model is not None:
            points, jitter = model_starts(self.model, self.model.value_vars, initvals, chains)
        elif initvals is None:
            points, jitter = np.zeros((chains, d)), True
        else:
            points, jitter = np.asarray(initvals, dtype=float), False
            if points.shape not in ((d,), (chains, d)):
                raise ValueError(f"initvals has shape {points.shape}: must be ({d},) or ({chains}, {d})")
            points = np.broadcast_to(points, (chains, d)).copy()
        if jitter:
            found = spread_starts(points[0], chains, superchains, gradient_at, rng)
            if found is not None:
                return found
        bad = np.flatnonzero(~np.isfinite(gradient_at(points)).all(axis=1))
        if bad.size:
            raise self._bad_start(points[bad[0]], int(bad[0]))
        return points

    def _bad_start(self, position: np.ndarray, chain: int) -> Exception:
        from pymc.exceptions import SamplingError

        if self.model is None:
            return SamplingError(
                f"the log density or its gradient is not finite where chain {chain} starts ({position}): give initvals="
            )
        from pmm_mcmc.logdensity import bad_start_message, flat_layout

        point, begin = {}, 0
        for name, shape, size, dtype in flat_layout(self.model.value_vars, self.model.initial_point(0)):
            point[name] = position[begin : begin + size].reshape(shape).astype(dtype)
            begin += size
        return SamplingError(bad_start_message(self.model, point))


_COUNTS = ("K", "steps_per_draw", "n_grad", "n_grad_total", "unstable", "redone", "model_failures")


def _is_density(model: Any) -> bool:
    # Without importing JAX for those who do not use it.
    return type(model).__module__ == "pmm_mcmc.jax_density"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _backend(backend: str, device: str, precision: str, is_density: bool) -> str:
    """Choose, and say why."""
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
        return "jax"  # unless the CPU turns out faster, see _device
    _log.debug("backend: numba, since JAX has no accelerator here (backend= chooses otherwise)")
    return "numba"


def _device(density: Any, device: str, precision: str, chains: int) -> str:
    from pmm_mcmc.devices import faster_device

    return faster_device(density, precision, chains) if device == "auto" else device


def _devices(engine: Any) -> list[str]:
    """Return the kinds of devices that an engine runs on."""
    return [device.platform for device in getattr(engine, "devices", [])] or ["cpu"]


def _jax_engine(settings: Settings, density: Any, device: str, precision: str, chains: int) -> Any:
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

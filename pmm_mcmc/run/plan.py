"""The plan of a run: a method on a model or a log density, with the engine that runs it."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pymc as pm
import pytensor

from pmm_mcmc._version import __version__
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Chunk, Engine, evaluated_at
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.engines.numba_shared import normals_of_draws
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.engines.taped_engine import c_engine_of, engine_of
from pmm_mcmc.model.block_choice import block_that_helps, block_that_pays
from pmm_mcmc.model.block_draws import drawn_back
from pmm_mcmc.model.checks import check_initvals, check_model, model_of, refuse_what_does_not_fit
from pmm_mcmc.model.gaussian_block import integrated_model
from pmm_mcmc.model.initial_points import initial_point, vector_starts
from pmm_mcmc.model.outputs import model_layout
from pmm_mcmc.model.pymc_density import flat_layout, log_density, periods_of
from pmm_mcmc.model.result_tree import BLOCK_LOGP, BLOCK_MEAN, INTEGRATED, ResultTree, flat_names
from pmm_mcmc.model.tempered import tempered_model
from pmm_mcmc.model.user_density import LogDensity
from pmm_mcmc.run.beginning import Approach, coordinate_labels
from pmm_mcmc.run.driver import Groups, numbers_of
from pmm_mcmc.run.request import Request
from pmm_mcmc.steps.pymc_step import LangevinStep
from pmm_mcmc.steps.statistics import ADJUSTED_STATISTICS, GRADIENTS, OF_STEP, columns_of
from pmm_mcmc.warmup.step_size import fixed_setting

_log = logging.getLogger("pmm_mcmc")

# Statistics that are the same for all draws of a run, and are attributes of its result.
_SETTING = ("step_size", "K", "friction", "steps_per_draw")
# Most bytes of the draws of a batch of chains, between two updates of the progress bar.
_BATCH_BYTES = 2**27
# Chains in one file of a store if they do not advance in lockstep.
_FILE = 256


@dataclass
class SamplingPlan:
    """A request on a log density, ready to run.

    Attributes
    ----------
    request, engine, layout
        What is to be run, its engine, and the map from its draws to a result.
    statistics, setting
        Names of the statistics of its draws, and of the parts of its setting that are attributes of the result.
    identity, attributes
        Entries that must equal those of a stored run to continue it; attributes of the result.
    var_names
        The variables in the result, None for all.
    model, density
        The PyMC model, without variables that are integrated out; or, without one, the log density, which may know
        names, a prior, and why it is not finite.
    free, block
        Names of the free variables of a PyMC model, those that are integrated out included; of those that could be, and
        are not.
    prior_sampler
        On a ladder from the prior, a function of a key and a number that draws from it.
    """

    request: Request
    engine: Engine
    layout: ResultTree
    statistics: tuple[str, ...]
    setting: tuple[str, ...]
    identity: dict[str, Any]
    attributes: dict[str, Any]
    var_names: list[str] | None = None
    model: Any = None
    density: LogDensity | None = None
    free: list[str] | None = None
    block: list[str] = field(default_factory=list)
    prior_sampler: Callable[[Sequence[int], int], np.ndarray] | None = None

    @classmethod
    def of(cls, request: Request, announce: Callable[[str], None] = _log.debug) -> SamplingPlan:
        """Build the plan of a request.

        ``announce`` is called with a line about what will be sampled, before anything is compiled.
        """
        request.check_backend()
        if isinstance(request.model, LogDensity):
            plan = cls._of_density(request, announce)
        else:
            plan = cls._of_model(request, announce)
        if not request.adapts:
            fixed_setting(plan.arguments, np.zeros(plan.engine.d))  # raises if a setting is missing
        return plan

    @classmethod
    def _of_density(cls, request: Request, announce: Callable[[str], None]) -> SamplingPlan:
        """Return the plan for a :class:`pmm_mcmc.LogDensity`."""
        density = request.model
        arguments = request.arguments
        if not request.step.free:
            raise ValueError("step was made for a PyMC model: for a LogDensity make it outside any")
        arguments.check_coordinates(density.d)
        if arguments.integrated:
            raise ValueError(
                f"reparametrise: {', '.join(arguments.integrated)} cannot be integrated out of a LogDensity, whose "
                "graph nobody knows; write it as a PyMC model, or leave it out"
            )
        if request.start is not None:
            request.start.check(arguments, density.layout.names)
        if request.initvals is not None:
            vector_starts(density.start, request.initvals, request.chains, density.d)
        density = density.noncentred(_noncentring(request))
        announce(f"{request.description}: {density.d} coordinates of a log density")
        if request.reference is not None:
            if density.runs_on == "numba":
                raise ValueError(
                    "ladder: of a C function is not there yet; write the density as a JAX function (from_jax), or as a "
                    "PyMC model"
                )
            density = density.tempered()
        engine: Any
        if density.runs_on == "numba":
            engine = c_engine_of(arguments, density, threads_of(request.cores, density))
        else:
            engine = jax_engine(arguments, density, request.device, request.precision, request.chains)
        var_names = _chosen(request.var_names, list(density.layout.values(np.empty((1, 0, density.d)))))
        return cls._of_engine(
            request, engine, density.runs_on, density.layout, np.zeros(density.d), density=density, var_names=var_names
        )

    @classmethod
    def _of_model(cls, request: Request, announce: Callable[[str], None]) -> SamplingPlan:
        """Return the plan for a PyMC model."""
        arguments = request.arguments
        backend = request.backend
        model = _model_of(request)
        point = initial_point(model)
        check_model(model, point, arguments.method)
        check_initvals(model, request.initvals, request.chains)
        _check_vars(request.step, list(model.value_vars))
        var_names = _chosen(request.var_names, [rv.name for rv in model.unobserved_RVs])
        model_of_draws = model
        block = integrated_model(model, point, arguments.integrated)
        if block is None and request.integrates:
            block = block_that_pays(model, point, arguments.noncentring or {})
        if block is not None and (request.precision, pytensor.config.floatX) != ("float64", "float64"):
            raise ValueError(
                f"reparametrise: {', '.join(block.names)} cannot be integrated out in single precision, in which "
                "determinants are lost; leave precision= and floatX at float64, or reparametrise out"
            )
        if block is not None:
            model = block.rest
            point = {var.name: point[var.name] for var in model.value_vars}
        vars = list(model.value_vars)
        if request.start is not None:
            parts = flat_layout(vars, point)
            request.start.check(arguments, flat_names([(name, shape) for name, shape, *_ in parts]))
        announce(f"{request.description}: [{', '.join(rv.name for rv in model.free_RVs)}]")
        if block is not None:
            announce(block.words)
        sampler = None
        if request.reference is None:
            density = log_density(vars, model, point, _noncentring(request))
        else:
            density, sampler = tempered_model(vars, model, point, request.reference)
        arguments.check_coordinates(density.d)
        centre = np.concatenate([np.ravel(point[var.name]) for var in vars]).astype(float)
        threads = request.cores or cores()
        engine: Any
        if backend == "jax":
            from pmm_mcmc.model.jax_density import JaxDensity

            if density.jax is None:
                density.jax = JaxDensity.from_model(density)
            engine = jax_engine(arguments, density.jax, request.device, request.precision, request.chains)
        elif backend == "numba":
            engine = NumbaEngine.of(arguments, density, threads)
        else:
            refuse = functools.partial(refuse_what_does_not_fit, model, point)
            engine = engine_of(arguments, density, centre, threads, request.chains, announce, refuse)
            if isinstance(engine, NumbaEngine):
                backend = "numba"
            elif backend == "tape":
                engine = engine.tape
        engine.periods = periods_of(vars, model)
        outputs = "jax" if backend == "jax" else "numba"
        if block is None:
            layout = model_layout(model, vars, point, outputs)
        else:
            layout = drawn_back(block, model_of_draws, outputs)
        return cls._of_engine(
            request, engine, backend, layout, centre, model=model, var_names=var_names, prior_sampler=sampler,
            free=[rv.name for rv in model_of_draws.free_RVs],
            block=block_that_helps(model, point) if block is None and request.integrates else [],
        )  # fmt: skip

    @classmethod
    def _of_engine(
        cls, request: Request, engine: Engine, backend: str, layout: ResultTree, centre: np.ndarray, **source: Any
    ) -> SamplingPlan:
        """Return the plan for an engine; ``source`` are the fields about what it samples."""
        step = request.step
        arguments = request.arguments
        precision = request.precision
        kinds = ADJUSTED_STATISTICS if request.adjusted else type(step).statistics
        excluded = {*_SETTING, *OF_STEP, "refined"}
        if not step.keep_gradients:
            excluded |= set(GRADIENTS)
        if engine.structure.is_identity:
            excluded.add("noncentred")
        if request.ladder is not None:
            excluded.add("energy")  # each scan draws velocities anew, at every temperature
        statistics = tuple("lp" if name == "model_logp" else name for name in kinds if name not in excluded)
        if layout.draws is not None:
            statistics += (BLOCK_LOGP, *[BLOCK_MEAN] * step.keep_gradients)
        setting = tuple(name for name in _SETTING if name in kinds)
        if request.adjusted and request.adapts and not arguments.kernel.adjusted:
            setting = ()  # the group of the equilibration has it
        sampler = "GHMC" if request.adjusted and not arguments.kernel.adjusted else arguments.method
        attributes = {
            "sampler": sampler, "arguments": json.dumps(step.given), "adjusted": int(request.adjusted),
            "backend": getattr(engine, "words", backend), "precision": precision,
        }  # fmt: skip
        identity = {
            "method": repr(arguments), "backend": backend, "precision": precision, "group": group_of(engine),
            "device": platforms(engine)[0], "keep_gradients": step.keep_gradients,
            "adjusted": request.adjusted, "var_names": source["var_names"], "pmm_mcmc": __version__,
        }  # fmt: skip
        if not engine.structure.is_identity:  # its numbers are a part of what is stored
            identity["noncentring"] = f"{engine.structure.words}: {engine.structure.n_parameters} numbers"
        plan = cls(request, engine, layout, statistics, setting, identity, attributes, **source)
        if layout.draws is not None:
            _, means, _ = layout.draws(np.empty((1, 0, engine.d)), np.empty((1, 0, layout.noise)))
            sizes = {name: math.prod(each.shape[2:]) for name, each in plan._chosen(means)["posterior"].items()}
            attributes[INTEGRATED] = json.dumps(sizes)
        identity |= plan._identity_of_density(centre)
        return plan

    @property
    def arguments(self) -> MethodArguments:
        """The arguments of the method."""
        return self.request.arguments

    @property
    def equilibrates(self) -> bool:
        """Whether an equilibration follows the warm-up, which is by another kernel than the draws."""
        return self.request.adjusted and not self.engine.kernel.adjusted

    @property
    def approach(self) -> Approach:
        """How chains come to the posterior."""
        return Approach(self.engine, self.arguments, self.request.tune, self.equilibrates)

    @property
    def searches(self) -> bool:
        """Whether other modes, jumps and necks are looked for after the draws."""
        return self.request.compute_convergence_checks and "unconstrained" in self.statistics

    @property
    def longest_warmup(self) -> int:
        """The most transitions before the draws."""
        return self.request.tune * (1 + self.equilibrates)

    @functools.cached_property
    def adjusted_engine(self) -> Engine:
        """The engine of adjusted draws."""
        return self.engine if self.engine.kernel.adjusted else self.engine.adjusted()

    def _identity_of_density(self, centre: np.ndarray) -> dict[str, Any]:
        """Return entries by which a density is recognised, in another process and after a model is rebuilt.

        They are its values and gradients at two points near ``centre``, sums of the variables there, the last label of
        each variable of the sampled vector, and type, shape and dims of each variable.
        """
        points = centre + 0.1 * np.random.default_rng(0).standard_normal((2, len(centre)))
        lp, gradient = evaluated_at(self.engine.evaluate, points)
        groups = self.values(points[None])
        variables = {f"{group}/{name}": values for group in groups for name, values in groups[group].items()}
        sums = [values[0].reshape(2, -1).sum(axis=1, dtype=float) for values in variables.values()]
        kinds = {name: f"{values.dtype} {list(values.shape[2:])}" for name, values in variables.items()}
        dims = self.layout.dims
        return {
            "density": np.column_stack([lp, gradient]),
            "derived": np.array(sums).reshape(len(sums), 2),
            "coordinates": coordinate_labels(self.layout.names),
            **{name: " ".join([kind, *dims.get(name.partition("/")[2], ())]) for name, kind in kinds.items()},
        }

    def values(self, position: np.ndarray) -> Groups:
        """Return the named values ``(chain, n, ...)`` of draws ``(chain, n, d)``, by group."""
        return self._chosen(self.layout.values(position))

    def _chosen(self, values: Mapping[str, np.ndarray]) -> Groups:
        return {"posterior": {n: values[n] for n in values if self.var_names is None or n in self.var_names}}

    def groups_of(self, chunk: Chunk, noncentring: np.ndarray | None, n_grad: np.ndarray, prefix: str) -> Groups:
        """Return values and statistics of a chunk of draws by group and name; ``n_grad`` are gradients before it."""
        d = self.engine.d
        x = chunk.model_position
        q, gradient = self.engine.structure.diagnostic_coordinates(
            chunk.position, chunk.evaluation[..., :d], noncentring
        )
        # Control variates need no more than single precision.
        gradient = gradient.astype(np.float32) if self.request.adjusted and "gradient" in self.statistics else gradient
        columns = columns_of(chunk, n_grad, q, gradient)
        columns["lp"] = columns.pop("model_logp")
        if self.layout.draws is None:
            values = self.layout.values(x)
        else:
            noise = normals_of_draws(x, columns["n_grad_total"], self.layout.noise)
            values, means, columns[BLOCK_LOGP] = self.layout.draws(x, noise)
            sizes = json.loads(self.attributes[INTEGRATED])
            flat = [means[name].reshape(*x.shape[:2], size) for name, size in sizes.items()]
            columns[BLOCK_MEAN] = np.concatenate([np.empty((*x.shape[:2], 0)), *flat], axis=2)
            columns["lp"] = columns["lp"] + columns[BLOCK_LOGP]
        groups = {prefix + name: arrays for name, arrays in self._chosen(values).items()}
        groups[prefix + "sample_stats"] = {name: columns[name] for name in self.statistics}
        if self.request.precision == "float32":  # no more digits than were computed
            groups = {
                group: {name: a.astype(np.float32) if a.dtype == float else a for name, a in arrays.items()}
                for group, arrays in groups.items()
            }
        return groups

    def empty(self, chains: int) -> Groups:
        """Return arrays without draws that have the names, shapes and dtypes of the result."""
        structure = self.engine.structure
        noncentring = None if structure.is_identity else structure.initial_noncentring()
        chunk = Chunk.empty((chains, 0), self.engine.d, self.engine.width)
        return self.groups_of(chunk, noncentring, np.zeros(chains, np.int64), "")

    @property
    def file_chains(self) -> int:
        """Number of chains in one file of a store."""
        group = group_of(self.engine)
        return group if group > 1 else _FILE

    @functools.cached_property
    def processes(self) -> Processes:
        """The processes that share the chains."""
        if self.attributes["backend"] == "jax":
            return Processes.of_jax(self.request.chains, group_of(self.engine))
        return Processes(slice(0, self.request.chains))

    def batch(self, rows: int) -> int:
        """Return the number of chains that advance together by ``rows`` draws: whole groups, one per device."""
        unit = group_of(self.engine) * len(platforms(self.engine))
        return min(self.request.chains, max(1, _BATCH_BYTES // (8 * self.numbers_per_draw * rows * unit)) * unit)

    @functools.cached_property
    def numbers_per_draw(self) -> int:
        """Number of recorded numbers of one draw of one chain, of 8 bytes each."""
        return numbers_of(self.empty(1))

    @property
    def later(self) -> str:
        """How a variable that is left out is computed from the result, if it can be."""
        return " and compute it afterwards, with pm.compute_deterministics" if self.model is not None else ""


def _model_of(request: Request) -> pm.Model:
    """Return the PyMC model of a request: its own, that of its step, or that of the enclosing ``with``."""
    step_model = request.step.own_model
    model = model_of(step_model if request.model is None else request.model)
    if not isinstance(model, pm.Model):
        raise ValueError(f"model={type(model).__name__}(...): must be a PyMC model, or a pmm.LogDensity")
    if step_model is not None and step_model is not model:
        raise ValueError("step was made for another model than model=: make it outside any, or inside this one")
    return model


def _chosen(names: str | Sequence[str] | None, valid: Sequence[str]) -> list[str] | None:
    """Return the valid names that are among ``names``; raise ``ValueError`` if there are none, or others."""
    if names is None:
        return None
    wanted = [names] if isinstance(names, str) else list(names)
    if not wanted or set(wanted) - set(valid):
        raise ValueError(f"var_names={names!r}: must be some of {', '.join(valid)}")
    return [name for name in valid if name in wanted]


def _check_vars(step: LangevinStep, vars: list[Any]) -> None:
    """Raise ``ValueError`` for a step that was made for some of the variables."""
    moved = {var.name for var in (vars if step.free else step.vars)}
    left_out = [var.name for var in vars if var.name not in moved]
    if left_out:
        raise ValueError(
            f"vars of the step leave {', '.join(left_out)} out: pmm.sample moves all variables; leave vars out"
        )


def _noncentring(request: Request) -> Any:
    """Return the non-centring to learn or to keep; None without a warm-up, which has no draws to learn it from."""
    noncentring = request.arguments.noncentring
    return noncentring if request.adapts or noncentring else None


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def platforms(engine: Engine) -> list[str]:
    """Return the platform of each device of an engine."""
    return [device.platform for device in getattr(engine, "devices", [])] or ["cpu"]


def group_of(engine: Engine) -> int:
    """Return the number of chains of an engine that advance in lockstep."""
    return getattr(engine, "group", 1)


def jax_engine(arguments: MethodArguments, density: Any, device: str, precision: str, chains: int) -> Any:
    """Return the engine of a method on a density, which is cached for later runs of the same kind."""
    import jax

    from pmm_mcmc.engines.jax_engine import JaxEngine, keep_programs

    keep_programs()
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

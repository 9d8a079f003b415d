"""A model as one step sees it: the variables that it moves, what is compiled for them, and the setting of its chains.

PyMC asks a step for its statistics before chains start, and tells it neither the model then, nor the lengths of warm-up
and run, nor whether to be quiet: they are read from the frame of ``pm.sample``.  Where PyMC has moved it, a step takes
the defaults.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import pymc as pm
from pymc.blocking import PointType
from pymc.sampling import mcmc
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from rich.progress import Progress

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.engines.taped_engine import TapedEngine, engine_of
from pmm_mcmc.model.initial_points import JITTER
from pmm_mcmc.model.pymc_density import choose_vars, flat_layout, log_density, periods_of
from pmm_mcmc.model.pytensor_density import Layout, PyTensorDensity
from pmm_mcmc.warmup.learning import LENGTH, Learnt, learn
from pmm_mcmc.warmup.warm_up import Warming

_log = logging.getLogger("pmm_mcmc")

# Chains by which it is reckoned how long a tape is worth while: those of a default call.
_CHAINS = 4
# Half the side of the box about a start that somebody chose, in which chains start to learn a setting there.
_NEAR = 0.1
# Seconds after which a bar shows the learning.
_PATIENCE = 1.0


class Binding:
    """A method's arguments, a model, and the variables of it that a step moves.

    What is compiled is built on demand and never pickled.

    Attributes
    ----------
    arguments
        Those that were given, with the scheme that suits what others move.
    vars, initial_point
        Value variables, and a start of the model.
    others
        Names of the variables that other steps move.
    has_all_gradients
        Whether the step moves all continuous variables.
    adapts
        Whether chains have a warm-up: without one nothing is non-centred, for the degree is learnt there.
    learnt
        The setting of chains that have a warm-up; None before it is learnt.
    compiled
        Whether chains are so long that they are worth compiled functions: a tape would only delay these.
    """

    def __init__(self, arguments: MethodArguments, model: pm.Model, chosen: Any):
        self.arguments = arguments
        self.model = model
        self.adapts = True
        self.vars = choose_vars(_checked(chosen, model), model)
        self.names = [var.name for var in self.vars]
        self.initial_point = model.initial_point(0)
        self._value_vars = list(model.value_vars)
        d = sum(size for _, _, size, _ in flat_layout(self.vars, self.initial_point))
        arguments.check_coordinates(d, f" of {', '.join(self.names)}")
        self.others = tuple(self.density.others)
        self.arguments = arguments.settled(others=bool(self.others))
        if self.others and self.arguments.scheme == "recycled":
            raise ValueError(
                f"scheme='recycled' beside other steps, which move {', '.join(self.others)}: its draws are midpoints, "
                "and each would take two more gradients; leave scheme out"
            )
        self.has_all_gradients = {var.name for var in model.continuous_value_vars} <= set(self.names)
        self.compiled = False
        self.learnt: Learnt | None = None
        self._learnt_from: list[Any] = []  # the data of the model then

    def __getstate__(self) -> dict[str, Any]:
        rebuilt = ("density", "engine", "compiled_engine", "_data")
        return {name: value for name, value in self.__dict__.items() if name not in rebuilt} | {"_learnt_from": []}

    def is_of(self, model: pm.Model) -> bool:
        """Whether this is of a model as it is now, to which variables may have been added."""
        return model is self.model and self._value_vars == list(model.value_vars)

    def adapting(self, adapts: bool) -> Binding:
        """Return the binding of chains that have a warm-up, or none."""
        if adapts == self.adapts:
            return self
        other = copy.copy(self)  # without what is compiled
        other.adapts = adapts
        other.learnt = None
        return other

    # -- compiled parts ----------------------------------------------------------------------------------------------

    @cached_property
    def density(self) -> PyTensorDensity:
        """The log density of the variables."""
        noncentring = self.arguments.noncentring
        if not self.adapts and not noncentring:
            noncentring = None
        return log_density(self.vars, self.model, self.initial_point, noncentring)

    @cached_property
    def engine(self) -> NumbaEngine | TapedEngine:
        """What advances chains."""
        engine = engine_of(self.arguments, self.density, self.flat(self.initial_point), 1, _CHAINS, _log.info)
        engine.periods = periods_of(self.vars, self.model)
        return engine

    @cached_property
    def compiled_engine(self) -> NumbaEngine:
        """What advances long chains."""
        return self.engine.compile() if isinstance(self.engine, TapedEngine) else self.engine

    def engine_of(self, compiled: bool) -> NumbaEngine | TapedEngine:
        """Return the engine of a chain that is long, or not."""
        return self.compiled_engine if compiled else self.engine

    @cached_property
    def _data(self) -> list[SharedVariable]:
        """The data of the model that may change, as shared variables."""
        density = self.density
        moving = [*density.others.values(), density.density_parameters]
        return [v for v in ancestors([density.logp]) if isinstance(v, SharedVariable) and v not in moving]

    # -- points of PyMC ----------------------------------------------------------------------------------------------

    def show_others(self, point: PointType) -> None:
        """Pass the values of the variables that other steps move to the log density."""
        for name, shared in self.density.others.items():
            shared.set_value(point[name], borrow=True)

    def flat(self, point: PointType) -> np.ndarray:
        """Return the position ``(d,)`` of a point."""
        for name, shape, _, _ in self.density.layout:
            if np.shape(point[name]) != shape:
                raise ValueError(
                    f"{name} has shape {np.shape(point[name])}, and had {shape} when the step method was made: make a "
                    "new one after pm.set_data"
                )
        return np.concatenate([np.ravel(point[name]) for name in self.names]).astype(float)

    def moved(self, point: PointType, position: np.ndarray) -> PointType:
        """Return a point with the values of a position, rounded to the dtypes of the variables."""
        values = {}
        start = 0
        for name, shape, size, dtype in self.density.layout:
            values[name] = position[start : start + size].astype(dtype).reshape(shape)
            start += size
        return {**point, **values} if self.others else values

    # -- what chains start with --------------------------------------------------------------------------------------

    def prepare(self, options: dict[str, Any], start: PointType | None = None) -> None:
        """Compile, and learn the setting unless chains have no warm-up or it is known for the data of the model.

        It is learnt from the model's own start or, where it has no density, near the point at which a chain is to
        ``start``.  ``options`` are those of the call of ``pm.sample``.
        """
        engine = self.engine
        data = [shared.get_value(borrow=True) for shared in self._data]
        current = self.learnt is not None and list(map(id, data)) == list(map(id, self._learnt_from))
        if self.adapts and not current:
            elsewhere = options.get("initial_points", [])[:1] if start is None else [start]
            self.learnt = self._learn(options, [(self.initial_point, JITTER), *((point, _NEAR) for point in elsewhere)])
            self._learnt_from = data
        steps = self.learnt.tuned.steps_per_draw if self.learnt is not None else self.arguments.steps_per_draw or 1
        transitions = int(options.get("tune") or 0) + steps * int(options.get("draws", 0))
        self.compiled = isinstance(engine, TapedEngine) and transitions > engine.switch
        if self.compiled:
            self.compiled_engine  # noqa: B018  # compiled before processes are forked

    def _learn(self, options: dict[str, Any], starts: list[tuple[PointType, float]]) -> Learnt | None:
        """Return the setting learnt within a width of the earliest start that has a density; None if none has."""
        method = self.arguments.method
        with _shown(method, options) as show:
            for point, width in starts:
                self.show_others(point)
                rng = _seed_of(self.arguments, self.density.layout)
                learnt = learn(self.arguments, self.engine, self.flat(point), rng, show, width)
                if learnt is not None:
                    _report(method, learnt, options)
                    return learnt
        return None


def options_of_call() -> dict[str, Any]:
    """Return the arguments, and other variables, of the call of ``pm.sample`` in progress; empty outside one."""
    code = getattr(inspect.unwrap(getattr(mcmc, "sample", options_of_call)), "__code__", None)
    frame = sys._getframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    return dict(frame.f_locals) if frame is not None else {}


def _checked(vars: Any, model: pm.Model) -> Any:
    """Return the variables to choose; raise ``ValueError`` for names, for none, and for those of another model."""
    several = vars if isinstance(vars, list | tuple) else [vars]
    for var in several:
        if isinstance(var, str):
            raise ValueError(f"vars={vars!r}: is a name; give the variable itself, model[{var!r}]")
        if var is not None and getattr(var, "name", "") in model.named_vars:
            if var not in (*model.named_vars.values(), *model.value_vars):
                raise ValueError(f"vars: {var.name} is a variable of another model than the one of this step")
    if vars is not None and not len(several):
        raise ValueError("vars=[]: needs a variable at least; leave it out for all continuous ones")
    return vars


def _seed_of(arguments: MethodArguments, layout: Layout) -> np.random.Generator:
    """Return the random numbers of the learning, which follow from the arguments and the names and shapes of a model.

    PyMC tells no step its seed before chains start.
    """
    text = repr((arguments, [(name, shape) for name, shape, *_ in layout]))
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest()))


@contextmanager
def _shown(method: str, options: dict[str, Any]) -> Iterator[Callable[[Warming], None]]:
    """Yield a function to call after each block of the learning, which a bar shows if it takes long."""
    quiet = options.get("quiet", False) or not options.get("progressbar", True)
    bar = Progress(transient=True, disable=bool(quiet))
    task = bar.add_task(f"{method} learns its setting", total=LENGTH)
    began = time.monotonic()

    def show(warming: Warming) -> None:
        if time.monotonic() - began > _PATIENCE and not bar.live.is_started:
            bar.start()
        bar.update(task, completed=min(warming.ensemble.transition, LENGTH))

    try:
        yield show
    except KeyboardInterrupt:
        _log.warning("Stopped while %s learnt its setting: there are no draws", method)
        raise KeyboardInterrupt from None
    finally:
        bar.stop()


def _report(method: str, learnt: Learnt, options: dict[str, Any]) -> None:
    """Log what was learnt, and remarks, unless the call is to be quiet."""
    if options.get("quiet", False):
        return
    tuned = learnt.tuned
    _log.info(
        "%s learnt its setting for all chains in %s gradients: step_size %.3g, steps_per_draw %d",
        method, f"{learnt.n_grad:,}", tuned.step_size, tuned.steps_per_draw,
    )  # fmt: skip
    lines = learnt.remarks
    tune = options.get("tune")
    if tune is not None and tune < learnt.forgetting:
        lines.append(
            f"tune={tune} is too short: chains forget where they start after {learnt.forgetting} transitions; leave "
            "tune out"
        )
    for line in lines:
        _log.warning("%s: %s", method, line)

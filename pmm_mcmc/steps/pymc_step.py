"""The base class of all step methods: the contract with PyMC's sampling loop, and a model as one step sees it.

Only this module implements the contract of PyMC 6.4 (order of calls, statistics, saved state, pickling, progress
columns); ``tests/steps/test_steps.py`` fails first if it moves. PyMC asks a step for its statistics before chains
start, and tells it neither the model then, nor the lengths of warm-up and run, nor whether to be quiet: they are read
from the frame of ``pm.sample``. Where PyMC has moved it, a step takes the defaults.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from pymc.blocking import PointType, StatsType
from pymc.exceptions import SamplingError
from pymc.sampling import mcmc
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import WithSamplingState, dataclass_state
from pymc.util import get_random_generator
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from rich.progress import Progress

from pmm_mcmc._version import __version__
from pmm_mcmc.engines.arguments import MethodArguments, unknown_argument
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.engines.taped_engine import TapedEngine, engine_of
from pmm_mcmc.model.checks import bad_start_message
from pmm_mcmc.model.initial_points import JITTER
from pmm_mcmc.model.pymc_density import choose_vars, flat_layout, log_density, periods_of
from pmm_mcmc.model.pytensor_density import Layout, PyTensorDensity
from pmm_mcmc.steps.chain import Chain, NotFiniteError
from pmm_mcmc.steps.statistics import GRADIENTS, STATISTICS, progress_columns, progress_values, row_of, warning_of
from pmm_mcmc.warmup.learning import LENGTH, Learnt, learn
from pmm_mcmc.warmup.step_size import fixed_setting
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

    def __init__(self, arguments: MethodArguments, model: pm.Model, chosen: Vars):
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
        values = values_at(self.density.layout, position)
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
                # PyMC tells no step its seed before chains start: this one follows from the arguments and the model.
                text = repr((self.arguments, [(name, shape) for name, shape, *_ in self.density.layout]))
                rng = np.random.default_rng(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest()))
                learnt = learn(self.arguments, self.engine, self.flat(point), rng, show, width)
                if learnt is not None:
                    _report(method, learnt, options)
                    return learnt
        return None


def values_at(layout: Layout, position: np.ndarray) -> dict[str, np.ndarray]:
    """Return a position by variable, rounded to the dtypes of the variables."""
    values = {}
    start = 0
    for name, shape, size, dtype in layout:
        values[name] = position[start : start + size].astype(dtype).reshape(shape)
        start += size
    return values


def options_of_call() -> dict[str, Any]:
    """Return the arguments, and other variables, of the call of ``pm.sample`` in progress; empty outside one."""
    code = getattr(inspect.unwrap(getattr(mcmc, "sample", options_of_call)), "__code__", None)
    frame = sys._getframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    return dict(frame.f_locals) if frame is not None else {}


def _checked(vars: Vars, model: pm.Model) -> Vars:
    """Return the variables to choose; raise ``ValueError`` for names, for none, and for those of another model."""
    several = [vars] if vars is None or isinstance(vars, Variable | str) else list(vars)
    for var in several:
        if isinstance(var, str):
            raise ValueError(f"vars={vars!r}: is a name; give the variable itself, model[{var!r}]")
        if var is not None and getattr(var, "name", "") in model.named_vars:
            if var not in (*model.named_vars.values(), *model.value_vars):
                raise ValueError(f"vars: {var.name} is a variable of another model than the one of this step")
    if vars is not None and not len(several):
        raise ValueError("vars=[]: needs a variable at least; leave it out for all continuous ones")
    return vars


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


type Vars = Variable | Sequence[Variable] | None
type Rng = int | np.random.Generator | None


@dataclass_state
class LangevinState(StepMethodState):
    """The state of a chain: restored into a new step with the same arguments it continues bit for bit."""

    settings: str = field(metadata={"frozen": True})
    tune: bool
    n_tune: int
    n_draws: int
    chain: Chain | None


class LangevinStep(WithSamplingState):
    """A step method whose chain PyMC advances draw by draw; the public classes are the methods.

    It is what was asked for: arguments, and a model with some of its variables or, where it was made outside any, none
    (``free``).  What it is of a model is its :class:`Binding`, made where PyMC asks for the variables.

    PyMC's own base class needs a model to make a step, so that this is registered as one and does not inherit from it.
    """

    name: str
    default_tune_steps = 1000
    statistics: ClassVar[dict[str, tuple[Any, Any]]] = STATISTICS
    _state_class = LangevinState

    def __new__(cls, *args: Any, **kwargs: Any) -> LangevinStep:
        """Create the step; check the names of its arguments."""
        names = [name for name in inspect.signature(cls.__init__).parameters if name != "self"]
        for name in kwargs:
            if name not in names:
                raise unknown_argument(name, kwargs[name], f"pmm.{cls.__name__}", names)
        return object.__new__(cls)

    def __init__(
        self, arguments: MethodArguments, vars: Vars = None, keep_gradients: bool = True, model: pm.Model | None = None,
        blocked: bool = True, rng: Rng = None, *, free: bool = False,
    ):  # fmt: skip
        if blocked is not True:
            raise ValueError(
                f"blocked={blocked!r}: a Langevin sampler moves all its variables together; leave blocked out, "
                "or build one step for each choice of vars="
            )
        if model is None and not free:
            model = _model_of_context()
        if model is None and vars is not None:
            raise ValueError(f"vars={vars!r}: needs a model to choose from: make the step inside it, or pass model=")
        self._asked_for = arguments
        self.keep_gradients = keep_gradients
        self.free = model is None
        self._binding = None if model is None else Binding(arguments, model, vars)
        self.rng = get_random_generator(rng)
        self.tune = True
        self.n_tune = 0
        self.n_draws = 0
        self.chain: Chain | None = None
        self._last_chain = 0  # number of that of the call

    @classmethod
    def of_arguments(cls, arguments: MethodArguments, keep_gradients: bool = True) -> LangevinStep:
        """Return a step with arguments that are already checked, as if created outside any model."""
        step = cls.__new__(cls)
        LangevinStep.__init__(step, arguments, keep_gradients=keep_gradients, free=True)
        return step

    # -- what it is, and of which model ------------------------------------------------------------------------------

    @property
    def arguments(self) -> MethodArguments:
        """The arguments of the method, with those that follow from the model."""
        return self._asked_for if self._binding is None else self._binding.arguments

    @property
    def settings(self) -> str:
        """The arguments in the saved state of a chain: a step that continues it must have the same."""
        return repr(self.arguments)

    @property
    def given(self) -> dict[str, Any]:
        """The arguments that differ from their defaults, by name."""
        arguments = self.arguments
        names = set(inspect.signature(type(self).__init__).parameters)
        names -= {"grid" if arguments.scheme == "recycled" else ""}
        values = {field.name: (getattr(arguments, field.name), field.default) for field in fields(arguments)}
        return {name: value for name, (value, default) in values.items() if name in names and value != default}

    @property
    def model(self) -> pm.Model | None:
        """The model of the step: the one that it was created in or, for a step created outside any, the last one."""
        return None if self._binding is None else self._binding.model

    @property
    def own_model(self) -> pm.Model | None:
        """The model that the step was created in, None for a step created outside any."""
        return None if self.free else self.model

    @property
    def binding(self) -> Binding:
        """The step in its model; a step created outside any has that in context or, without one, the last one."""
        if self.free:
            model = _model_of_context()
            if model is not None and not (self._binding is not None and self._binding.is_of(model)):
                self._binding = Binding(self._asked_for, model, None)
        elif options_of_call().get("model", self.model) is not self.model:
            raise ValueError(
                f"step: {type(self).__name__} was made for another model: make it within the one to sample"
            )
        if self._binding is None:
            raise ValueError(
                "this step was created outside a model and has no variables: create it inside, "
                f"`with model: pm.sample(step=pmm.{self.arguments.method}(...))`, or give it to pmm.sample(model=...)"
            )
        return self._binding

    @property
    def vars(self) -> list[Any]:
        """The variables; a step created outside any model takes those of the model that is in context."""
        return self.binding.vars

    # -- what PyMC asks before chains start ----------------------------------------------------------------------------

    @property
    def stats_dtypes(self) -> list[dict[str, Any]]:
        """The types of the statistics by name; PyMC reads them before any chain starts, and the step learns then."""
        self._prepare()
        return [{name: dtype for name, (dtype, _) in self.stats_dtypes_shapes.items()}]

    @property
    def stats_dtypes_shapes(self) -> dict[str, tuple[Any, Any]]:
        """Types and shapes of the statistics by name, in PyMC's form."""
        return self._statistics_of(self.binding)

    def _statistics_of(self, binding: Binding) -> dict[str, tuple[Any, Any]]:
        # Gradients of several steps do not fit into one array, and control variates need those of all coordinates.
        dropped = () if self.keep_gradients and binding.has_all_gradients else GRADIENTS
        if binding.density.structure.is_identity:
            dropped = (*dropped, "noncentred")
        return {name: kind for name, kind in self.statistics.items() if name not in dropped}

    def _prepare(self, start: PointType | None = None) -> None:
        """Compile and learn what chains need; outside PyMC's loop for a chain at ``start``."""
        options = options_of_call()
        if self.arguments.integrated:
            raise ValueError(
                f"reparametrise: {', '.join(self.arguments.integrated)} cannot be integrated out by pm.sample, which "
                "records what the step moves: call pmm.sample(step=...) with the same step, or leave it out"
            )
        for other in options.get("provided_steps") or []:
            for var in self.vars if other is not self else ():
                if var in other.vars:
                    names = f"{type(self).__name__} and {type(other).__name__}"
                    raise ValueError(f"step: {var.name} is moved by two steps, {names}; give it to one of them")
        self._last_chain = int(options.get("chains", 1)) - 1
        self._binding = self.binding.adapting(options.get("tune") != 0)
        self._binding.prepare(options, start)

    @staticmethod
    def competence(var: Variable, has_grad: bool) -> Competence:
        """Return COMPATIBLE for variables with a gradient: PyMC never assigns the step by itself."""
        return Competence.COMPATIBLE if has_grad else Competence.INCOMPATIBLE

    _progressbar_config = staticmethod(progress_columns)

    @staticmethod
    def _make_progressbar_update_functions() -> tuple[Any]:
        return (progress_values,)

    # -- a chain -----------------------------------------------------------------------------------------------------

    def setup_chain(self, rng: Rng, tune: int, draws: int) -> None:
        """Reset the step before a chain; the only hook that all of PyMC's samplers call then."""
        self.rng = get_random_generator(rng, copy=False)
        if tune == 0:
            fixed_setting(self.arguments, np.zeros(0))  # raises here, not at the first draw
        self.tune = tune > 0
        self.n_tune = tune
        self.n_draws = draws
        self._binding = self.binding.adapting(tune > 0)
        self.chain = None

    def stop_tuning(self) -> None:
        """End the warm-up; PyMC calls this before the first draw after it."""
        if self.chain is not None:
            self.chain.stop_tuning(self.binding.engine_of(self.chain.compiled))
        self.tune = False

    def step(self, point: PointType) -> tuple[PointType, list[StatsType]]:
        """Advance to the next draw."""
        binding = self._binding or self.binding  # not looked for again at each draw
        chain = self._chain_at(point, binding)
        setting = chain.tuned
        gradients = chain.n_grad
        engine = binding.engine_of(chain.compiled)
        chunk = chain.draw(engine)
        new = binding.moved(point, chunk.model_position[0, 0])
        chain.position = binding.flat(new)  # rounded to the dtypes of the variables
        arguments = binding.arguments
        done = chain.iteration - self.n_tune  # draws after the warm-up
        warning = None
        if done == self.n_draws:
            adjusted = arguments.kernel.adjusted
            number = getattr(self.rng.bit_generator.seed_seq, "spawn_key", ())[:1]  # of the chain, as PyMC seeds it
            last = number in ((), (self._last_chain,))
            warning = warning_of(arguments.method, chain.unstable, done, chain.steps_per_draw, adjusted, last)
        stats = row_of(
            self._statistics_of(binding), chunk, setting, gradients, engine.structure,
            friction=setting.friction if arguments.dynamics == "underdamped" else np.nan,
            steps_per_draw=chain.steps_per_draw,
            n_grad_setting=chain.setting_gradients,
            sampler=self._made_by if done == 1 else "",
            warning=warning,
        )  # fmt: skip
        stats.unstable_total = chain.unstable
        stats.tuning = chain.tuning
        return new, [stats]

    def _chain_at(self, point: PointType, binding: Binding) -> Chain:
        """Return the chain at ``point``, where it moves if it is elsewhere, for the values of the other variables."""
        binding.show_others(point)
        position = binding.flat(point)
        moves_all = not binding.others
        try:
            if self.chain is not None:
                moved = not np.array_equal(position, self.chain.position)
                if moved or not moves_all:
                    engine = binding.engine_of(self.chain.compiled)
                    self.chain.relocate(engine, position if moved else None)
                return self.chain
            if self.n_tune and binding.learnt is None:  # outside PyMC's loop
                self._prepare(point)
                if binding.learnt is None:
                    raise NotFiniteError
                binding.show_others(point)
            learnt = binding.learnt if self.n_tune else None
            self.chain = Chain.begin(
                binding.arguments, binding.engine_of(binding.compiled), learnt, position,
                default=np.array_equal(position, binding.flat(binding.initial_point)), moves_all=moves_all,
                n_tune=self.n_tune, compiled=binding.compiled, rng=self.rng,
            )  # fmt: skip
        except NotFiniteError:
            raise SamplingError(bad_start_message(binding.model, point)) from None
        return self.chain

    @property
    def _made_by(self) -> str:
        """The step as JSON: sampler, whether its draws are adjusted, variables, given arguments, and the version."""
        arguments = self.arguments
        vars = [self.binding.model.values_to_rvs[var].name for var in self.vars]
        entries = {"sampler": arguments.method, "adjusted": int(arguments.kernel.adjusted), "vars": vars}
        entries |= {"arguments": self.given, "keep_gradients": int(self.keep_gradients), "pmm_mcmc": __version__}
        return json.dumps(entries)


BlockedStep.register(LangevinStep)


def _model_of_context() -> pm.Model | None:
    """Return the model of the call of ``pm.sample`` in progress, or that of the enclosing ``with``."""
    model = options_of_call().get("model")
    if model is not None:
        return model
    try:
        return pm.modelcontext(None)
    except TypeError:
        return None

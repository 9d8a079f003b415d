"""The base class of all step methods: the contract with PyMC's sampling loop.

Only this module implements the contract of PyMC 6.4 (order of calls, statistics, saved state, pickling, progress
columns); ``tests/steps/test_steps.py`` fails first if it moves.
"""

from __future__ import annotations

import inspect
import json
import logging
from dataclasses import field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from pymc.blocking import PointType, RaveledVars, StatsType
from pymc.exceptions import SamplingError
from pymc.step_methods.arraystep import ArrayStepShared
from pymc.step_methods.compound import Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from rich.progress import TextColumn

from pmm_mcmc._version import __version__
from pmm_mcmc.engines.argument_checks import unknown_argument
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Chunk, TunedParameters
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.engines.taped_engine import TapedEngine, engine_of
from pmm_mcmc.model.checks import bad_start_message
from pmm_mcmc.model.initial_points import JITTER
from pmm_mcmc.model.pymc_density import choose_vars, flat_layout, log_density, periods_of
from pmm_mcmc.model.pytensor_density import PyTensorDensity
from pmm_mcmc.steps.call import Watch, options_of_call, seed_of
from pmm_mcmc.steps.chain import Chain, NotFiniteError
from pmm_mcmc.steps.statistics import (
    GRADIENTS,
    STATISTICS,
    Stats,
    progress_columns,
    progress_values,
    row_of,
    warning_of,
)
from pmm_mcmc.warmup.learning import Learnt, learn
from pmm_mcmc.warmup.step_size import fixed_setting

__all__ = ["LangevinState", "LangevinStep"]

_log = logging.getLogger("pmm_mcmc")

# Chains by which it is reckoned how long a tape is worth while: those of a default call.
_CHAINS = 4
# Half the side of the box about a start that somebody chose, in which chains start to learn a setting there.
_NEAR = 0.1


@dataclass_state
class LangevinState(StepMethodState):
    """The state of a chain: restored into a new step with the same arguments it continues bit for bit."""

    settings: str = field(metadata={"frozen": True})
    tune: bool
    n_tune: int
    n_draws: int
    chain: Chain | None


class LangevinStep(ArrayStepShared):
    """A step method whose chain PyMC advances draw by draw; the public classes are the methods."""

    name: str
    default_blocked = True
    default_tune_steps = 1000
    _state_class = LangevinState
    stats_dtypes_shapes: ClassVar[dict[str, tuple[Any, Any]]] = STATISTICS

    def __new__(cls, *args: Any, **kwargs: Any) -> LangevinStep:
        """Create the step without PyMC's constructor, which fails outside a model; check the names of arguments."""
        names = [name for name in inspect.signature(cls.__init__).parameters if name != "self"]
        for name in kwargs:
            if name not in names:
                raise unknown_argument(name, kwargs[name], f"pmm.{cls.__name__}", names)
        return object.__new__(cls)

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (), {}

    def _begin(self, method: str, values: dict[str, Any]) -> None:
        """Check the arguments of a constructor, which are its local ``values``, and bind the step to its model."""
        vars, keep_gradients, model, blocked, rng = (
            values.pop(name) for name in ("vars", "keep_gradients", "model", "blocked", "rng")
        )
        del values["self"]
        if blocked is not True:
            raise ValueError(
                f"blocked={blocked!r}: a Langevin sampler moves all its variables together; leave blocked out, "
                "or build one step for each choice of vars="
            )
        self._set_arguments(MethodArguments.checked(method, **values), keep_gradients, rng)
        model = _model_of_context() if model is None else model
        self.free = model is None
        if model is not None:
            self._bind(model, vars)
        elif vars is not None:
            raise ValueError(f"vars={vars!r}: needs a model to choose from: make the step inside it, or pass model=")

    @classmethod
    def of_arguments(cls, arguments: MethodArguments, keep_gradients: bool = True) -> LangevinStep:
        """Return a step with arguments that are already checked, as if created outside any model."""
        step = cls.__new__(cls)
        step._set_arguments(arguments, keep_gradients, None)
        return step

    def _set_arguments(self, arguments: MethodArguments, keep_gradients: bool, rng: Any) -> None:
        self.arguments = arguments
        self.keep_gradients = keep_gradients
        self._seed = rng
        self._model: pm.Model | None = None
        self._value_vars: list[Any] = []
        self.free = True
        self.chain: Chain | None = None
        self.learnt: Learnt | None = None
        self._learnt_from: list[Any] = []  # the data of the model then
        self._last_chain = 0

    def _bind(self, model: pm.Model, vars: Any) -> None:
        """Bind the step to a model and some of its variables."""
        chosen = choose_vars(_checked(vars, model), model)
        point = model.initial_point(0)
        d = sum(size for _, _, size, _ in flat_layout(chosen, point))
        self.arguments.check_coordinates(d, f" of {', '.join(var.name for var in chosen)}")
        self._model = model
        self._initial_point = point
        self._value_vars = list(model.value_vars)
        self._adapts = True
        self._drop_compiled()
        super().__init__(chosen, {}, blocked=True, rng=self._seed)
        others = list(self._density.others)
        self.arguments = self.arguments.settled(others=bool(others))
        if others and self.arguments.scheme == "recycled":
            raise ValueError(
                f"scheme='recycled' beside other steps, which move {', '.join(others)}: its draws are midpoints, and "
                "each would take two more gradients; leave scheme out"
            )
        complete = {var.name for var in model.continuous_value_vars} <= {var.name for var in chosen}
        # Gradients of several steps do not fit into one array, and control variates need those of all coordinates.
        dropped = () if self.keep_gradients and complete else GRADIENTS
        if self._density.structure.is_identity:
            dropped = (*dropped, "noncentred")
        statistics = {name: kind for name, kind in type(self).stats_dtypes_shapes.items() if name not in dropped}
        self.stats_dtypes_shapes = statistics  # type: ignore[misc]
        self.tune = True
        self.chain = None
        self.learnt = None
        self._learnt_from = []
        self.n_tune = self.n_draws = 0

    # -- compiled parts: built on demand, never pickled --------------------------------------------------------------

    @property
    def settings(self) -> str:
        """The arguments in the saved state of a chain: a step that continues it must have the same."""
        return repr(self.arguments)

    @property
    def model(self) -> pm.Model | None:
        """The model of the step: the one that it was created in or, for a step created outside any, the last one."""
        return self._model

    @property
    def vars(self) -> list[Any]:
        """The variables; a step created outside any model takes those of the model that is in context."""
        model = _model_of_context() if self.free else None
        if not self.free and options_of_call().get("model", self._model) is not self._model:
            raise ValueError(
                f"step: {type(self).__name__} was made for another model: make it within the one to sample"
            )
        if model is not None and (self._value_vars != list(model.value_vars) or model is not self._model):
            self._bind(model, None)
        if self._model is None:
            raise ValueError(
                "this step was created outside a model and has no variables: create it inside, "
                f"`with model: pm.sample(step=pmm.{self.arguments.method}(...))`, or give it to pmm.sample(model=...)"
            )
        return self._vars

    @vars.setter
    def vars(self, value: list[Any]) -> None:
        self._vars = value

    @property
    def stats_dtypes(self) -> list[dict[str, Any]]:
        """The types of the statistics by name; PyMC reads them before any chain starts, and the step learns then."""
        _ = self.vars
        self._learn_once()
        return [{name: dtype for name, (dtype, _) in self.stats_dtypes_shapes.items()}]

    def _learn_once(self, start: PointType | None = None) -> None:
        """Learn the setting, unless it is known or the chains of the call in progress have no warm-up.

        That is from the model's own start or, where it has no density, near the point at which a chain is to ``start``.
        """
        options = options_of_call()
        self._refuse_shared_variables(options.get("provided_steps") or [])
        self._last_chain = int(options.get("chains", 1)) - 1
        self._adapt(options.get("tune") != 0)
        data = [shared.get_value(borrow=True) for shared in self._data]
        current = self.learnt is not None and list(map(id, data)) == list(map(id, self._learnt_from))
        engine = self._engine
        if options.get("tune") != 0 and not current:
            elsewhere = options.get("initial_points", [])[:1] if start is None else [start]
            watch = Watch(self.arguments.method, options)
            with watch.shown() as show:
                for point, width in ((self._initial_point, JITTER), *((point, _NEAR) for point in elsewhere)):
                    self._show_others(point)
                    rng = seed_of(self.arguments, self._density.layout)
                    self.learnt = learn(self.arguments, engine, self._flat(point), rng, show, width)
                    if self.learnt is not None:
                        watch.report(self.learnt)
                        break
            self._learnt_from = data
        if isinstance(engine, TapedEngine) and engine.waits(self._transitions(options)):
            engine.compile()  # before processes are forked

    def _transitions(self, options: dict[str, Any]) -> int:
        """Return the number of transitions that a chain of a call makes."""
        steps = self.learnt.tuned.steps_per_draw if self.learnt is not None else self.arguments.steps_per_draw or 1
        return int(options.get("tune") or 0) + steps * int(options.get("draws", 0))

    def _refuse_shared_variables(self, steps: list[Any]) -> None:
        """Raise ``ValueError`` if another step of the call moves a variable of this one."""
        for other in steps:
            for var in self._vars if other is not self else ():
                if var in other.vars:
                    names = f"{type(self).__name__} and {type(other).__name__}"
                    raise ValueError(f"step: {var.name} is moved by two steps, {names}; give it to one of them")

    @property
    def given(self) -> dict[str, Any]:
        """The arguments that differ from their defaults, by name."""
        arguments = self.arguments
        names = set(inspect.signature(type(self).__init__).parameters)
        names -= {"grid" if arguments.scheme == "recycled" else ""}
        values = {field.name: (getattr(arguments, field.name), field.default) for field in fields(arguments)}
        return {name: value for name, (value, default) in values.items() if name in names and value != default}

    @property
    def _made_by(self) -> str:
        """The step as JSON: sampler, whether its draws are adjusted, variables, given arguments, and the version."""
        arguments = self.arguments
        vars = [self._model.values_to_rvs[var].name for var in self._vars] if self._model is not None else []
        entries = {"sampler": arguments.method, "adjusted": int(arguments.kernel.adjusted), "vars": vars}
        entries |= {"arguments": self.given, "keep_gradients": int(self.keep_gradients), "pmm_mcmc": __version__}
        return json.dumps(entries)

    @cached_property
    def _data(self) -> list[SharedVariable]:
        """The data of the model that may change, as shared variables."""
        density = self._density
        moving = [*density.others.values(), density.density_parameters]
        return [v for v in ancestors([density.logp]) if isinstance(v, SharedVariable) and v not in moving]

    @cached_property
    def _density(self) -> PyTensorDensity:
        noncentring = self.arguments.noncentring
        if not self._adapts and not noncentring:
            noncentring = None  # which is learnt from draws of the warm-up
        return log_density(self._vars, self._model, self._initial_point, noncentring)

    @cached_property
    def _engine(self) -> NumbaEngine | TapedEngine:
        density = self._density
        engine: NumbaEngine | TapedEngine
        if density.others:  # which a tape would take for data, and be built anew for each draw
            engine = NumbaEngine.of(self.arguments, density)
        else:
            engine = engine_of(self.arguments, density, self._flat(self._initial_point), 1, _CHAINS, _log.info)
        engine.periods = periods_of(self._vars, self._model)
        return engine

    def _drop_compiled(self) -> None:
        for name in ("_density", "_engine", "_data"):
            self.__dict__.pop(name, None)

    def __getstate__(self) -> dict[str, Any]:
        rebuilt = ("_density", "_engine", "_data")
        return {name: value for name, value in self.__dict__.items() if name not in rebuilt} | {"_learnt_from": []}

    # -- PyMC's hooks ------------------------------------------------------------------------------------------------

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Competence:
        """Return COMPATIBLE for variables with a gradient: PyMC never assigns the step by itself."""
        return Competence.COMPATIBLE if has_grad else Competence.INCOMPATIBLE

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Reset the step before a chain; the only hook that all of PyMC's samplers call then."""
        super().setup_chain(rng, tune, draws)
        if tune == 0:
            fixed_setting(self.arguments, np.zeros(0))  # raises here, not at the first draw
        self.tune = tune > 0
        self.n_tune = tune
        self.n_draws = draws
        self._adapt(tune > 0)
        self.chain = None

    def _adapt(self, adapts: bool) -> None:
        """Non-centre the variables of a hierarchy, or not: the degree is learnt, in chains that have a warm-up."""
        if self._adapts != adapts:
            self._adapts = adapts
            self.learnt = None
            self._drop_compiled()

    def stop_tuning(self) -> None:
        """End the warm-up; PyMC calls this before the first draw after it."""
        if self.chain is not None:
            self.chain.stop_tuning(self._engine)
        self.tune = False

    # -- one draw ----------------------------------------------------------------------------------------------------

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Advance to the next draw."""
        chain = self._chain_at(point)
        setting = chain.tuned
        gradients = chain.n_grad
        chunk = chain.draw(self._engine)
        new = self._as_point(chunk.model_position[0, 0])
        chain.position = self._flat(new)  # rounded to the dtypes of the variables
        stats = self._statistics(chain, chunk, setting, gradients)
        return ({**point, **new} if self._density.others else new), [stats]

    def _statistics(self, chain: Chain, chunk: Chunk, setting: TunedParameters, gradients: int) -> Stats:
        """Return the statistics of a draw that began with a setting, after as many ``gradients``."""
        arguments = self.arguments
        done = chain.iteration - self.n_tune  # draws after the warm-up
        row = row_of(
            self.stats_dtypes_shapes, chunk, setting, gradients, self._engine.structure,
            friction=setting.friction if arguments.dynamics == "underdamped" else np.nan,
            steps_per_draw=chain.steps_per_draw,
            n_grad_setting=chain.setting_gradients,
            sampler=self._made_by if done == 1 else "",
            warning=warning_of(
                arguments.method, chain.unstable, self.n_draws, chain.steps_per_draw, arguments.kernel.adjusted,
                self._is_last_chain,
            ) if done == self.n_draws else None,
        )  # fmt: skip
        row.unstable_total = chain.unstable
        row.tuning = chain.tuning
        return row

    @property
    def _is_last_chain(self) -> bool:
        """Whether the chain is the last of its call, by the random numbers that PyMC has given it."""
        number = getattr(self.rng.bit_generator.seed_seq, "spawn_key", ())[:1]
        return number in ((), (self._last_chain,))

    def astep(self, q0: RaveledVars) -> Any:
        """Not used: :meth:`step` works on points."""
        raise NotImplementedError

    def _chain_at(self, point: PointType) -> Chain:
        """Return the chain at ``point``, where it moves if it is elsewhere, for the values of the other variables."""
        self._show_others(point)
        q = self._flat(point)
        moves_all = not self._density.others
        try:
            if self.chain is None:
                if self.n_tune and self.learnt is None:  # outside PyMC's loop
                    self._learn_once(point)
                if self.n_tune and self.learnt is None:
                    raise NotFiniteError
                self._show_others(point)
                self.chain = Chain.begin(
                    self.arguments, self._engine, self.learnt if self.n_tune else None, q,
                    default=np.array_equal(q, self._flat(self._initial_point)), moves_all=moves_all,
                    n_tune=self.n_tune, rng=self.rng,
                )  # fmt: skip
            else:
                moved = not np.array_equal(q, self.chain.position)
                if moved or not moves_all:
                    self.chain.relocate(self._engine, q if moved else None)
        except NotFiniteError:
            raise SamplingError(bad_start_message(self._model, point)) from None
        return self.chain

    def _show_others(self, point: PointType) -> None:
        """Pass the values of the variables that other steps move to the log density."""
        for name, shared in self._density.others.items():
            shared.set_value(point[name], borrow=True)

    def _flat(self, point: PointType) -> np.ndarray:
        for name, shape, _, _ in self._density.layout:
            if np.shape(point[name]) != shape:
                raise ValueError(
                    f"{name} has shape {np.shape(point[name])}, and had {shape} when the step method was made: make a "
                    "new one after pm.set_data"
                )
        return np.concatenate([np.ravel(point[name]) for name in self.var_names]).astype(float)

    def _as_point(self, position: np.ndarray) -> PointType:
        point = {}
        start = 0
        for name, shape, size, dtype in self._density.layout:
            point[name] = position[start : start + size].astype(dtype).reshape(shape)
            start += size
        return point

    # -- progress bar ------------------------------------------------------------------------------------------------

    @staticmethod
    def _progressbar_config(n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list[float]]]:
        return progress_columns(n_chains)

    @staticmethod
    def _make_progressbar_update_functions() -> tuple[Any]:
        return (progress_values,)


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


def _model_of_context() -> pm.Model | None:
    """Return the model of the call of ``pm.sample`` in progress, or that of the enclosing ``with``."""
    model = options_of_call().get("model")
    if model is not None:
        return model
    try:
        return pm.modelcontext(None)
    except TypeError:
        return None

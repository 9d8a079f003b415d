"""The base class of all step methods: the contract with PyMC's sampling loop.

Only this module implements the contract of PyMC 6.4 (order of calls, statistics, saved state, pickling, progress
columns); ``tests/steps/test_steps.py`` fails first if it moves.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from dataclasses import field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from pymc.blocking import PointType, RaveledVars, StatsType
from pymc.exceptions import SamplingError
from pymc.step_methods.arraystep import ArrayStepShared
from pymc.step_methods.compound import Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from rich.progress import TextColumn

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.model.bad_terms import bad_start_message
from pmm_mcmc.model.pymc_density import choose_vars, flat_layout, log_density, periods_of
from pmm_mcmc.model.pytensor_density import PyTensorDensity
from pmm_mcmc.steps.chain import Chain, NotFiniteError
from pmm_mcmc.steps.statistics import GRADIENTS, STATISTICS, Stats, progress_columns, progress_values, rows_of
from pmm_mcmc.warmup.step_size import fixed_setting

__all__ = ["LangevinState", "LangevinStep", "unknown_argument"]


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
        self._forget_ahead()

    def _bind(self, model: pm.Model, vars: Any) -> None:
        """Bind the step to a model and some of its variables."""
        chosen = choose_vars(vars, model)
        point = model.initial_point(0)
        d = sum(size for _, _, size, _ in flat_layout(chosen, point))
        self.arguments.check_coordinates(d, f" of {', '.join(var.name for var in chosen)}")
        self._model = model
        self._initial_point = point
        self._value_vars = list(model.value_vars)
        self._adapts = True
        self._drop_compiled()
        super().__init__(chosen, {}, blocked=True, rng=self._seed)
        self.arguments = self.arguments.settled(others=bool(self._density.others))
        complete = {var.name for var in model.continuous_value_vars} <= {var.name for var in chosen}
        # Gradients of several steps do not fit into one array, and control variates need those of all coordinates.
        dropped = () if self.keep_gradients and complete else GRADIENTS
        if self._density.structure.is_identity:
            dropped = (*dropped, "noncentred")
        statistics = {name: kind for name, kind in type(self).stats_dtypes_shapes.items() if name not in dropped}
        self.stats_dtypes_shapes = statistics  # type: ignore[misc]
        self.tune = True
        self.chain = None
        self.n_tune = self.n_draws = 0
        self._forget_ahead()

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
        """The types of the statistics by name; the step compiles, since PyMC reads them before any chain starts."""
        _ = self.vars, self._engine
        return [{name: dtype for name, (dtype, _) in self.stats_dtypes_shapes.items()}]

    @cached_property
    def _density(self) -> PyTensorDensity:
        noncentring = self.arguments.noncentring
        if not self._adapts and not noncentring:
            noncentring = None  # which is learnt from draws of the warm-up
        return log_density(self._vars, self._model, self._initial_point, noncentring)

    @cached_property
    def _engine(self) -> NumbaEngine:
        engine = NumbaEngine.of(self.arguments, self._density)
        engine.periods = periods_of(self._vars, self._model)
        return engine

    def _drop_compiled(self) -> None:
        for name in ("_density", "_engine"):
            self.__dict__.pop(name, None)

    def __getstate__(self) -> dict[str, Any]:
        self._rewind()
        rebuilt = ("_density", "_engine", "_ahead", "_last_draw")
        return {name: value for name, value in self.__dict__.items() if name not in rebuilt}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget_ahead()

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
        if self._adapts != (tune > 0):
            self._adapts = tune > 0
            self._drop_compiled()
        self.chain = None
        self._forget_ahead()

    def stop_tuning(self) -> None:
        """End the warm-up; PyMC calls this before the first draw after it."""
        if self.chain is not None:
            self.chain.stop_tuning(self._engine)
            self._forget_ahead()
        self.tune = False

    @property
    def sampling_state(self) -> LangevinState:
        """The chain after the last draw handed out."""
        self._rewind()
        return super().sampling_state

    @sampling_state.setter
    def sampling_state(self, state: LangevinState) -> None:
        super(LangevinStep, type(self)).sampling_state.__set__(self, state)
        self._forget_ahead()

    def _rewind(self) -> None:
        if self.chain is not None:
            self.chain.rewind()
        self._forget_ahead()

    def _forget_ahead(self) -> None:
        """Forget the draws computed ahead, with their statistics and the bytes of their values."""
        self._ahead: Iterator[tuple[PointType, Stats, list[bytes]]] = iter(())
        self._last_draw: list[bytes] | None = None

    # -- one draw ----------------------------------------------------------------------------------------------------

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Advance to the next draw."""
        moves_all = not self._density.others
        if not (moves_all and self._is_last_draw(point)):
            self._go_on_from(point, moves_all)
        chain = self.chain
        assert chain is not None
        draw = next(self._ahead, None)
        if draw is None:
            chunk = chain.look_ahead(self._engine, moves_all)
            points = self._as_points(chunk.model_position)
            contents = [[value.tobytes() for value in new.values()] for new in points]
            rows = rows_of(chunk, chain, self.stats_dtypes_shapes, self._engine.structure)
            self._ahead = zip(points, rows, contents, strict=True)
            draw = next(self._ahead)
        new, stats, self._last_draw = draw
        chain.row += 1
        chain.iteration += 1
        return (new if moves_all else {**point, **new}), [stats]

    def _is_last_draw(self, point: PointType) -> bool:
        """Return whether a point has the bits of the last draw handed out: a cheap test before every draw."""
        if self._last_draw is None:
            return False
        try:
            return [point[name].tobytes() for name in self.var_names] == self._last_draw
        except AttributeError:  # plain numbers
            return False

    def astep(self, q0: RaveledVars) -> Any:
        """Not used: :meth:`step` works on points."""
        raise NotImplementedError

    def _go_on_from(self, point: PointType, moves_all: bool) -> None:
        """Move the chain to ``point`` if it is elsewhere, and take over the values of the other variables."""
        for name, shared in self._density.others.items():
            shared.set_value(point[name], borrow=True)
        q = self._flat(point)
        try:
            if self.chain is None:
                self.chain = Chain.begin(
                    self.arguments,
                    self._engine,
                    q,
                    jitter=np.array_equal(q, self._flat(self._initial_point)),
                    moves_all=moves_all,
                    lengths=(self.n_tune, self.n_draws),
                    rng=self.rng,
                )
                return
            last = self._flat(self._as_points(self.chain.latest[None, :])[0])  # rounded to the dtypes of the variables
            moved = not np.array_equal(q, last)
            if moved or not moves_all:
                self.chain.relocate(self._engine, q if moved else None)
                self._forget_ahead()
        except NotFiniteError:
            raise SamplingError(bad_start_message(self._model, point)) from None

    def _flat(self, point: PointType) -> np.ndarray:
        for name, shape, _, _ in self._density.layout:
            if np.shape(point[name]) != shape:
                raise ValueError(
                    f"{name} has shape {np.shape(point[name])}, and had {shape} when the step method was made: make a "
                    "new one after pm.set_data"
                )
        return np.concatenate([np.ravel(point[name]) for name in self.var_names]).astype(float)

    def _as_points(self, position: np.ndarray) -> list[PointType]:
        columns = []
        start = 0
        for _, shape, size, dtype in self._density.layout:
            block = position[:, start : start + size].astype(dtype).reshape(len(position), *shape)
            columns.append([block[i, ...] for i in range(len(position))])
            start += size
        return [dict(zip(self.var_names, values, strict=True)) for values in zip(*columns, strict=True)]

    # -- progress bar ------------------------------------------------------------------------------------------------

    @staticmethod
    def _progressbar_config(n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list[float]]]:
        return progress_columns(n_chains)

    @staticmethod
    def _make_progressbar_update_functions() -> tuple[Any]:
        return (progress_values,)


def unknown_argument(name: str, value: Any, called: str, names: list[str]) -> TypeError:
    """Return the error for an argument that is none of the ``names``, one of which may be meant."""
    near = difflib.get_close_matches(name, names, 1)
    meant = f"; did you mean {near[0]}?" if near else f", which takes {', '.join(names)}"
    text = repr(value)
    text = f"<{type(value).__name__}>" if "\n" in text else text
    return TypeError(f"{name}={text} is no argument of {called}{meant}")


def _model_of_context() -> pm.Model | None:
    try:
        return pm.modelcontext(None)
    except TypeError:
        return None

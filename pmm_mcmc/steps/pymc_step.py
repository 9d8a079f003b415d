"""The base class of all step methods: the contract with PyMC's sampling loop.

Only this module implements the contract of PyMC 6.4 (order of calls, statistics, saved state, pickling, progress
columns); ``tests/steps/test_steps.py`` fails first if it moves.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import field, fields
from typing import Any, ClassVar

import numpy as np
import pymc as pm
from pymc.blocking import PointType, StatsType
from pymc.exceptions import SamplingError
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import WithSamplingState, dataclass_state
from pymc.util import get_random_generator
from rich.progress import TextColumn

from pmm_mcmc._version import __version__
from pmm_mcmc.engines.arguments import MethodArguments, unknown_argument
from pmm_mcmc.model.checks import bad_start_message
from pmm_mcmc.steps.binding import Binding, options_of_call
from pmm_mcmc.steps.chain import Chain, NotFiniteError
from pmm_mcmc.steps.statistics import GRADIENTS, STATISTICS, progress_columns, progress_values, row_of, warning_of
from pmm_mcmc.warmup.step_size import fixed_setting

__all__ = ["LangevinState", "LangevinStep"]


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
        self, arguments: MethodArguments, vars: Any = None, keep_gradients: bool = True, model: pm.Model | None = None,
        blocked: bool = True, rng: Any = None, *, free: bool = False,
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
        self._refuse_shared_variables(options.get("provided_steps") or [])
        self._last_chain = int(options.get("chains", 1)) - 1
        self._binding = self.binding.adapting(options.get("tune") != 0)
        self._binding.prepare(options, start)

    def _refuse_shared_variables(self, steps: list[Any]) -> None:
        """Raise ``ValueError`` if another step of the call moves a variable of this one."""
        for other in steps:
            for var in self.vars if other is not self else ():
                if var in other.vars:
                    names = f"{type(self).__name__} and {type(other).__name__}"
                    raise ValueError(f"step: {var.name} is moved by two steps, {names}; give it to one of them")

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Competence:
        """Return COMPATIBLE for variables with a gradient: PyMC never assigns the step by itself."""
        return Competence.COMPATIBLE if has_grad else Competence.INCOMPATIBLE

    @staticmethod
    def _progressbar_config(n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list[float]]]:
        return progress_columns(n_chains)

    @staticmethod
    def _make_progressbar_update_functions() -> tuple[Any]:
        return (progress_values,)

    # -- a chain -----------------------------------------------------------------------------------------------------

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
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
            self.chain.stop_tuning(self.binding.engine)
        self.tune = False

    def step(self, point: PointType) -> tuple[PointType, list[StatsType]]:
        """Advance to the next draw."""
        binding = self._binding or self.binding  # not looked for again at each draw
        chain = self._chain_at(point, binding)
        setting = chain.tuned
        gradients = chain.n_grad
        chunk = chain.draw(binding.engine)
        new = binding.moved(point, chunk.model_position[0, 0])
        chain.position = binding.flat(new)  # rounded to the dtypes of the variables
        arguments = binding.arguments
        done = chain.iteration - self.n_tune  # draws after the warm-up
        warning = None
        if done == self.n_draws:
            adjusted = arguments.kernel.adjusted
            warning = warning_of(arguments.method, chain.unstable, done, chain.steps_per_draw, adjusted, self._is_last)
        stats = row_of(
            self._statistics_of(binding), chunk, setting, gradients, binding.engine.structure,
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
                    self.chain.relocate(binding.engine, position if moved else None)
                return self.chain
            if self.n_tune and binding.learnt is None:  # outside PyMC's loop
                self._prepare(point)
                if binding.learnt is None:
                    raise NotFiniteError
                binding.show_others(point)
            self.chain = Chain.begin(
                binding.arguments, binding.engine, binding.learnt if self.n_tune else None, position,
                default=np.array_equal(position, binding.flat(binding.initial_point)), moves_all=moves_all,
                n_tune=self.n_tune, rng=self.rng,
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

    @property
    def _is_last(self) -> bool:
        """Whether the chain is the last of its call, by the random numbers that PyMC has given it."""
        number = getattr(self.rng.bit_generator.seed_seq, "spawn_key", ())[:1]
        return number in ((), (self._last_chain,))


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

"""What every step method does: bookkeeping between PyMC's sampling loop and the engine.

The step's contract with PyMC 6.4 (order of calls, statistics, saved state, pickling, progress columns) is met here and
nowhere else; ``tests/test_steps.py`` fails first if it moves.
"""

from __future__ import annotations

import time
from dataclasses import field
from typing import Any

import numpy as np
import pymc as pm
from pymc.blocking import DictToArrayBijection, PointType, RaveledVars, StatsType
from pymc.exceptions import SamplingError
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.arraystep import ArrayStepShared
from pymc.step_methods.compound import Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from rich.progress import TextColumn
from rich.table import Column

from pmm_mcmc.engines.numba_engine import Chunk, Coordinates, NumbaEngine, change_coordinates, empty_state
from pmm_mcmc.logdensity import bad_start_message, check_gradient, choose_vars, flat_layout, log_density
from pmm_mcmc.methods import Scheme, Settings
from pmm_mcmc.steps.report import UnstableReport
from pmm_mcmc.tuning.schedule import Tuned, Warmup, fixed_setting

__all__ = ["LangevinState", "LangevinStep"]

# One call of the engine costs some 30 microseconds: enough draws ahead to make that small, few enough that the progress
# bar and Ctrl-C stay live.  Draws do not depend on it.
_MOST_DRAWS_AHEAD, _SECONDS_AHEAD = 256, 0.05
_PROBES, _PROBE_WIDTH = 8, 0.1
_JITTER_TRIES = 20


class _Stats(dict):
    """Statistics of one draw, with the chain's totals so far for the progress bar."""

    n_grad_total: int
    unstable_total: int
    tuning: bool


@dataclass_state
class LangevinState(StepMethodState):
    """Everything a chain needs to go on: restored into a new step of the same settings it continues bit for bit."""

    settings: str = field(metadata={"frozen": True})
    tune: bool
    n_tune: int
    n_draws: int
    iteration: int
    transition: int
    n_grad_total: int
    pending_grad: int
    key: np.ndarray
    tuned: Tuned | None
    warmup: Warmup | None
    state: np.ndarray | None
    gradient: np.ndarray | None
    position: np.ndarray | None
    report: UnstableReport


class LangevinStep(ArrayStepShared):
    """A chain of one of the methods, advanced draw by draw by PyMC.  Use the classes in :mod:`pmm_mcmc.steps.langevin`."""

    default_blocked = True
    default_tune_steps = 1000
    _state_class = LangevinState
    stats_dtypes_shapes = {
        "step_size": (np.float64, []),
        "K": (np.int64, []),
        "friction": (np.float64, []),
        "steps_per_draw": (np.int64, []),
        "n_grad": (np.int64, []),
        "unstable": (np.int64, []),
        "model_logp": (np.float64, []),
        "warning": (SamplerWarning, None),
    }

    def __init__(self, vars: Any, settings: Settings, *, model: pm.Model | None, blocked: bool, rng: Any):
        if blocked is not True and blocked is not None:
            raise ValueError(
                f"blocked={blocked!r}: a Langevin sampler moves all its variables together; leave blocked out, "
                "or build one step for each choice of vars="
            )
        model = pm.modelcontext(model)
        chosen = choose_vars(vars, model)
        point = model.initial_point(0)
        d = sum(size for _, _, size, _ in flat_layout(chosen, point))
        if settings.scaling is not None and len(settings.scaling) != d:
            names = ", ".join(var.name for var in chosen)
            raise ValueError(
                f"scaling has length {len(settings.scaling)}: must have {d} entries, one for each unconstrained "
                f"coordinate of {names}"
            )
        check_gradient(chosen, model)
        self._settings = settings
        self.settings = repr(settings)
        self._model, self._start = model, point
        self._engine: NumbaEngine | None = None
        self.vars = chosen
        self._connect()
        super().__init__(chosen, {}, blocked=True, rng=rng)
        del self.shared  # a property: the shared variables belong to the compiled log density
        self.tune = True
        self._reset(0, 0)

    # -- compiled parts, built on demand: they are not pickled -------------------------------------------------------

    def _connect(self) -> None:
        density = log_density(self.vars, self._model, self._start)
        joint = density.function("joint")
        only = density.function("gradient") if self._settings.needs_gradient_only else joint
        which = "gradient" if self._settings.needs_gradient_only else "joint"
        self._density = density
        self._engine = NumbaEngine(
            self._settings.kernel, density.d, joint, only, lambda: density.table("joint"), lambda: density.table(which)
        )

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        hidden = ("_engine", "_density", "_points", "_stats", "_chunk")
        return {name: value for name, value in self.__dict__.items() if name not in hidden}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._engine = None
        self._forget_ahead()

    @property
    def shared(self) -> dict[str, Any]:
        """Shared variables that stand for the model's other variables."""
        if self._engine is None:
            self._connect()
        return self._density.others

    @shared.setter
    def shared(self, value: dict[str, Any]) -> None:
        pass

    @shared.deleter
    def shared(self) -> None:
        pass

    # -- PyMC's hooks ------------------------------------------------------------------------------------------------

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Competence:
        """Never assigned without being asked for, but able to sample anything that has a gradient."""
        return Competence.COMPATIBLE if has_grad else Competence.INCOMPATIBLE

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Forget the previous chain; the one hook that every driver calls before a chain."""
        super().setup_chain(rng, tune, draws)
        if tune == 0 and self._settings.step_size is None:
            fixed_setting(self._settings, np.zeros(0))
        self.tune = tune > 0
        self._reset(tune, draws)

    def _reset(self, tune: int, draws: int) -> None:
        self.n_tune, self.n_draws = tune, draws
        self.iteration = self.transition = self.n_grad_total = self.pending_grad = 0
        self.key = np.zeros(2, np.uint64)
        self.tuned: Tuned | None = None
        self.warmup: Warmup | None = None
        self.state = self.gradient = self.position = None
        self.report = UnstableReport()
        self._forget_ahead()

    def stop_tuning(self) -> None:
        """Freeze what has been learnt (PyMC calls this before the first draw that counts)."""
        self._settle()
        if self.warmup is not None:
            self.warmup.length = self.warmup.boundary = self.warmup.done
            self._retune()
        self.tune = False

    @property
    def sampling_state(self) -> LangevinState:
        """The chain as it stands after the last draw handed out."""
        self._settle()
        return super().sampling_state

    @sampling_state.setter
    def sampling_state(self, state: LangevinState) -> None:
        super(LangevinStep, type(self)).sampling_state.__set__(self, state)
        self._forget_ahead()

    # -- one draw ----------------------------------------------------------------------------------------------------

    def step(self, point: PointType) -> tuple[PointType, StatsType]:
        """Advance to the next draw."""
        if self._engine is None:
            self._connect()
        alone = not self._density.others
        if not (alone and point is self._handed_out):
            self._take(point)
        if self._row >= len(self._points):
            self._look_ahead(1 if not alone else self._ahead)
        row = self._row
        self._row += 1
        self.iteration += 1
        new, stats = self._points[row], self._stats[row]
        if not alone:
            new = {**point, **new}
        self._handed_out = new
        return new, [stats]

    def astep(self, q0: RaveledVars) -> Any:
        """Not used: :meth:`step` works on points."""
        raise NotImplementedError

    def _take(self, point: PointType) -> None:
        """Make sure the chain stands where ``point`` says, under the values that the other variables have there."""
        for name, shared in self._density.others.items():
            shared.set_value(point[name], borrow=True)
        q = np.concatenate([np.ravel(point[name]) for name in self.var_names]).astype(float)
        if self.state is None:
            self._begin(q)
            return
        handed = self._chunk.position[self._row - 1] if self._row else self.position
        moved = not np.array_equal(q, self._rounded(handed))
        if not moved and not self._density.others:
            return
        self._settle()
        assert self.tuned is not None and self.state is not None
        d = len(q)
        if moved:
            self.state[:d] = (q - self.tuned.centre) / self.tuned.scale
        before = self.state[4 * d]
        kept = self.state.copy()
        gradient = self._evaluate(self.state)
        if np.isnan(self.state[4 * d]):
            raise SamplingError(bad_start_message(self._model, point))
        if self.state[4 * d] == before and np.array_equal(gradient, self.gradient):
            self.state[:] = kept
        self.gradient, self.position = gradient, q

    def _rounded(self, position: np.ndarray) -> np.ndarray:
        """What is left of a position when it has been stored in the variables' own dtypes."""
        dtypes = {dtype for _, _, _, dtype in self._density.layout}
        return position if dtypes <= {np.dtype(float)} else position.astype(np.float32).astype(float)

    def _evaluate(self, state: np.ndarray) -> np.ndarray:
        assert self._engine is not None and self.tuned is not None
        self.pending_grad += 1
        return self._engine.evaluate(Coordinates(self.tuned.centre, self.tuned.scale), state)

    # -- the start of a chain ----------------------------------------------------------------------------------------

    def _begin(self, q: np.ndarray) -> None:
        d = len(q)
        self.key = self.rng.integers(0, 2**64, size=2, dtype=np.uint64)
        default = np.concatenate([np.ravel(self._start[name]) for name in self.var_names])
        start, gradient = self._overdispersed(q, jitter=np.array_equal(q, default))
        if self.n_tune == 0:
            self.tuned = fixed_setting(self._settings, start)
        else:
            positions, gradients = [start], [gradient]
            for _ in range(_PROBES):
                probe = start + _PROBE_WIDTH * self.rng.uniform(-1.0, 1.0, size=d)
                found = self._finite_gradient(probe)
                if found is not None:
                    positions.append(probe)
                    gradients.append(found)
            self.warmup = Warmup.start(self._settings, self.n_tune, np.array(positions), np.array(gradients))
            self.tuned = self.warmup.tuned
        u = (start - self.tuned.centre) / self.tuned.scale
        self.state = empty_state(u, self.rng.standard_normal(d) * (self._settings.dynamics == "underdamped"))
        self.gradient = self._evaluate(self.state)
        self.position = start

    def _finite_gradient(self, q: np.ndarray) -> np.ndarray | None:
        self.tuned = Tuned(0.0, 1, 0.0, np.zeros(len(q)), np.ones(len(q)), 1)
        state = empty_state(q, np.zeros(len(q)))
        gradient = self._evaluate(state)
        return None if np.isnan(state[4 * len(q)]) else gradient

    def _overdispersed(self, q: np.ndarray, jitter: bool) -> tuple[np.ndarray, np.ndarray]:
        """Start with PyMC's own jitter, uniform in (-1, 1), unless the user chose the initial point."""
        for attempt in range(_JITTER_TRIES if jitter else 0):
            width = 0.5 ** (attempt // 4)
            start = q + width * self.rng.uniform(-1.0, 1.0, size=len(q))
            gradient = self._finite_gradient(start)
            if gradient is not None:
                return start, gradient
        gradient = self._finite_gradient(q)
        if gradient is None:
            point = DictToArrayBijection.rmap(RaveledVars(q, self._point_map()), start_point=self._full_point())
            raise SamplingError(bad_start_message(self._model, point))
        return q, gradient

    def _point_map(self) -> Any:
        return tuple((name, shape, size, dtype) for name, shape, size, dtype in self._density.layout)

    def _full_point(self) -> PointType:
        others = {name: shared.get_value() for name, shared in self._density.others.items()}
        return {name: others.get(name, value) for name, value in self._start.items()}

    # -- looking ahead -----------------------------------------------------------------------------------------------

    def _forget_ahead(self) -> None:
        self._points: list[PointType] = []
        self._stats: list[_Stats] = []
        self._chunk: Chunk | None = None
        self._row = 0
        self._observed = 0
        self._ahead = 1
        self._handed_out: PointType | None = None

    def _settle(self) -> None:
        """Come back from looking ahead to the last draw handed out; what lay beyond will be found again, identically."""
        if self._chunk is None:
            return
        self._observe()
        if self._row:
            row = self._row - 1
            self.state, self.gradient = self._chunk.state[row].copy(), self._chunk.gradient[row].copy()
            self.position = self._rounded(self._chunk.position[row].copy())
            self.transition += self._row * self._thin
            self.n_grad_total = self._stats[row].n_grad_total
            self.pending_grad = 0
        ahead, handed = self._ahead, self._handed_out
        self._forget_ahead()
        self._ahead, self._handed_out = ahead, handed

    def _observe(self) -> None:
        """Pass the draws handed out since the last time to the tuner or, after warm-up, to the report."""
        chunk, rows = self._chunk, slice(self._observed, self._row)
        if chunk is None or rows.start == rows.stop:
            return
        self._observed = self._row
        if self.warmup is not None and self.warmup.done < self.warmup.length:
            unstable, accept = int(chunk.unstable[rows].sum()), float(chunk.accept[rows].sum())
            self.warmup.observe(
                chunk.position[rows].copy(), chunk.gradient[rows].copy(), chunk.lp[rows].copy(), unstable, accept
            )
        else:
            self.report.observe(chunk.position[rows], chunk.unstable[rows], self._thin)

    def _retune(self) -> None:
        """Let the tuner act where a block has ended."""
        warmup = self.warmup
        if warmup is None or warmup.done < warmup.boundary:
            return
        assert self.tuned is not None and self._engine is not None
        old, new = self.tuned, warmup.update()
        self.state = change_coordinates(
            self.state,
            self.gradient,
            Coordinates(old.centre, old.scale),
            Coordinates(new.centre, new.scale),
            self._engine.kernel,
        )
        self.tuned = new
        if warmup.done >= warmup.length:
            self.warmup = None

    @property
    def _thin(self) -> int:
        return self.tuned.steps_per_draw if self.tuned is not None and self.warmup is None else 1

    def _look_ahead(self, rows: int) -> None:
        self._settle()
        self._retune()
        assert self._engine is not None and self.tuned is not None
        left = self.n_tune + self.n_draws - self.iteration
        rows = max(1, min(rows, left) if left > 0 else 1)
        if self.warmup is not None:
            rows = min(rows, self.warmup.boundary - self.warmup.done)
        tuned, thin = self.tuned, self._thin
        began = time.perf_counter()
        state, gradient = self.state.copy(), self.gradient.copy()
        coordinates = Coordinates(tuned.centre, tuned.scale)
        chunk = self._engine.run(
            coordinates, tuned.step_size, tuned.friction, tuned.K, state, gradient, self.key, self.transition, rows, thin
        )
        if self._density.others and self._engine.kernel.scheme == Scheme.RECYCLED:
            # Other variables are drawn given this draw: it must be the end point, not the midpoint before it.
            gradient = self._engine.evaluate(coordinates, state)
            if not np.isnan(state[-2]):
                position = tuned.centre + tuned.scale * state[: len(gradient)]
                chunk.state[0], chunk.gradient[0], chunk.lp[0], chunk.position[0] = state, gradient, state[-2], position
            chunk.n_grad[0] += 1
        seconds = (time.perf_counter() - began) / rows
        self._ahead = int(np.clip(_SECONDS_AHEAD / max(seconds, 1e-9), 1, min(_MOST_DRAWS_AHEAD, 4 * self._ahead)))
        chunk.n_grad[0] += self.pending_grad
        self._chunk, self._row, self._observed = chunk, 0, 0
        self._points = self._as_points(chunk.position)
        self._stats = self._as_stats(chunk, tuned, thin)

    def _as_points(self, position: np.ndarray) -> list[PointType]:
        columns, begin = [], 0
        for _, shape, size, dtype in self._density.layout:
            block = position[:, begin : begin + size].astype(dtype).reshape(len(position), *shape)
            columns.append([block[i, ...] for i in range(len(position))])
            begin += size
        names = self.var_names
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def _as_stats(self, chunk: Chunk, tuned: Tuned, thin: int) -> list[_Stats]:
        totals = (self.n_grad_total + np.cumsum(chunk.n_grad)).tolist()
        failed = (self.report.unstable + np.cumsum(chunk.unstable)).tolist()
        columns = zip(
            chunk.lp.tolist(), chunk.n_grad.tolist(), chunk.unstable.tolist(), chunk.accept.tolist(), strict=True
        )
        rows = []
        for i, (lp, n_grad, unstable, accept) in enumerate(columns):
            stats = _Stats(
                step_size=tuned.step_size,
                K=tuned.K,
                friction=tuned.friction,
                steps_per_draw=thin,
                n_grad=n_grad,
                unstable=unstable,
                acceptance_rate=accept,
                model_logp=lp,
                warning=None,
            )
            for name in [name for name in stats if name not in self.stats_dtypes_shapes]:
                del stats[name]
            stats.n_grad_total, stats.unstable_total = totals[i], failed[i]
            stats.tuning = self.iteration + i < self.n_tune
            rows.append(stats)
        if self.n_draws and self.iteration + len(rows) == self.n_tune + self.n_draws:
            rows[-1]["warning"] = self._closing_warning(chunk, tuned, thin)
        return rows

    def _closing_warning(self, chunk: Chunk, tuned: Tuned, thin: int) -> SamplerWarning | None:
        """Return what the user must hear once, with the chain's last draw."""
        report = self.report.with_rows(chunk.position, chunk.unstable, thin)
        message = report.message(self._coordinate_names(), self._settings, tuned)
        return None if message is None else SamplerWarning(WarningType.BAD_PARAMS, message, "warn")

    def _coordinate_names(self) -> list[str]:
        names = []
        for name, shape, size, _ in self._density.layout:
            for index in np.ndindex(*shape) if size else ():
                names.append(f"{name}[{', '.join(map(str, index))}]" if index else name)
        return names

    # -- progress bar ------------------------------------------------------------------------------------------------

    @staticmethod
    def _progressbar_config(n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list[float]]]:
        fields = {
            "step_size": ("{task.fields[step_size]:0.3f}", "Step size"),
            "K": ("{task.fields[K]}", "K"),
            "n_grad": ("{task.fields[n_grad]}", "Gradients"),
            "unstable": ("{task.fields[unstable]}", "Unstable"),
        }
        columns = [TextColumn(text, table_column=Column(header, ratio=1)) for text, header in fields.values()]
        return columns, {name: [0] * n_chains for name in fields}

    @staticmethod
    def _make_progressbar_update_functions() -> tuple[Any]:
        def update(stats: Any) -> dict[str, Any]:
            return {
                "step_size": stats["step_size"],
                "K": stats["K"],
                "n_grad": stats.n_grad_total,
                "unstable": stats.unstable_total,
                "failing": stats.unstable_total > 0 and not stats.tuning,
            }

        return (update,)

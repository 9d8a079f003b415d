r"""Copies of a chain at steps alpha, alpha/2 and alpha/4, driven by the same Brownian path.

The noise of every step comes from one path per coarse step.  With the path :math:`M_t` since the start of the coarse
step, drawn at all times at which a copy needs it, the noise of a step from ``s`` to ``t`` is
:math:`M_t - A_{t-s} M_s`.  Each copy thus follows exactly the law of its own step size, while copies stay close
together: the difference of their averages has a much smaller error than the averages.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.langevin.flows import Flow, flows
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.midpoints import cell_weight, continuous_weight, next_cell, one_cell, one_in
from pmm_mcmc.langevin.stability import guard_threshold, steepest_curvature
from pmm_mcmc.langevin.transitions import (
    EARLIEST,
    build_limits,
    end,
    fall,
    interpolate,
    interpolate_velocity,
    noise,
    path,
)
from pmm_mcmc.steps.base import LangevinStep

__all__ = ["ProbeDensity", "ProbeSetting", "Sums", "run_copies"]

_LEVELS = 3  # step sizes: the run's own, its half and its quarter
_FLOWS = (flows.overdamped, flows.underdamped, flows.harmonic)
_curvature = build_limits(np, np.where).curvature
_one_cell, _next_cell = np.vectorize(one_cell, otypes=[int]), np.vectorize(next_cell, otypes=[int])


class ProbeSetting(NamedTuple):
    """The method, and step size, friction and K of each replica ``(R, 1)``."""

    kernel: Kernel
    alpha: np.ndarray
    friction: np.ndarray
    K: np.ndarray

    def flow(self, time: np.ndarray) -> Flow:
        """Return the flow over the times ``(R, n)``."""
        return _FLOWS[self.kernel.dynamics](time, self.friction)


class _Level(NamedTuple):
    """Step size ``(R, 1)`` of the copies at one level, flows over a step and one of its cells, limits ``(R,)``."""

    h: np.ndarray
    whole: Flow
    cell: Flow
    threshold: np.ndarray
    steepest: np.ndarray


class _Mark(NamedTuple):
    """A midpoint of each replica ``(R, 1)``: time since the start of the coarse step, weight, whether it exists."""

    time: np.ndarray
    weight: tuple[np.ndarray, np.ndarray]
    active: np.ndarray


class _Copy(NamedTuple):
    """Copies at one level: state, base drift and evaluated point ``(R, d)``, log density and energy there ``(R,)``.

    ``steep`` ``(R,)`` counts steps that a run would refine.
    """

    u: np.ndarray
    v: np.ndarray
    b: np.ndarray
    evaluated: np.ndarray
    lp: np.ndarray
    energy: np.ndarray
    steep: np.ndarray = np.zeros(1, dtype=int)


def levels_of(setting: ProbeSetting, d: int) -> list[_Level]:
    """Return the levels of copies in ``d`` coordinates."""
    levels = []
    for h in (setting.alpha / 2**i for i in range(_LEVELS)):
        each = list(zip(h[:, 0].tolist(), setting.friction[:, 0].tolist(), setting.K[:, 0].tolist(), strict=True))
        threshold = np.array([guard_threshold(setting.kernel, size, friction, K, d) for size, friction, K in each])
        steepest = np.array([steepest_curvature(setting.kernel, *one) for one in each])
        levels.append(_Level(h, setting.flow(h), setting.flow(h / setting.K), threshold, steepest))
    return levels


class ProbeDensity:
    """Log density, drift in whitened coordinates, and parameters of the posterior, for many positions."""

    def __init__(self, step: LangevinStep, coordinates: Coordinates, names: list[str]):
        assert step.model is not None
        self.density, self.coordinates = step._density, coordinates
        self._harmonic = step._arguments.kernel.dynamics == HARMONIC
        self._function = self.density.function("joint")
        self._call = ctypes.CFUNCTYPE(ctypes.c_double, *[ctypes.c_void_p] * 3, ctypes.c_int64)(self._function.address)
        self._table = self.density.table("joint", coordinates.sites)
        outputs = {var.name: var for var in step.model.unobserved_value_vars}
        self._values = pm.pytensorf.compile(
            list(step.vars), [outputs[name] for name in names], on_unused_input="ignore", trust_input=True
        )

    def evaluate(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities ``(n,)``, NaN where they or gradients are not finite, and evaluations ``(n, width)``."""
        z = np.ascontiguousarray(z, dtype=float)
        if z.shape[1] != self.density.d:  # compiled code would write beyond its arrays
            raise ValueError(f"positions of {z.shape[1]} coordinates: the density of the step has {self.density.d}")
        found, lp = np.empty((len(z), self.density.width)), np.empty(len(z))
        for i in range(len(z)):
            row = (z.ctypes.data + i * z.strides[0], found.ctypes.data + i * found.strides[0], self._table.ctypes.data)
            lp[i] = self._call(*row, z.shape[1])
        with np.errstate(all="ignore"):
            return np.where(np.isfinite(lp + found[:, : z.shape[1]].sum(axis=1)), lp, np.nan), found

    def whiten(self, x: np.ndarray) -> np.ndarray:
        """Return the whitened positions of the model's positions ``(n, d)``."""
        structure, sites = self.density.structure, self.coordinates.sites
        z = x if structure is None or sites is None else structure.to_z(x, sites)[0]
        return self.coordinates.whiten(z)

    def place(self, y: np.ndarray) -> np.ndarray:
        """Return the model's positions of whitened positions ``(n, d)``."""
        z, structure, sites = self.coordinates.place(y), self.density.structure, self.coordinates.sites
        return z if structure is None or sites is None else structure.to_x(z, sites)

    def drift(self, y: np.ndarray, active: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities and drifts at the active ones of whitened positions ``(n, d)``, 0 at the others."""
        rows = slice(None) if active is None else active
        lp, b = np.zeros(len(y)), np.zeros_like(y)
        with np.errstate(all="ignore"):
            at = y[rows]
            lp[rows], found = self.evaluate(self.coordinates.place(at))
            b[rows] = self.coordinates.pull_back(found[:, : y.shape[1]]) + (at if self._harmonic else 0.0)
        return lp, b

    def parameters(self, x: np.ndarray) -> np.ndarray:
        """Return the posterior's parameters ``(n, p)`` at positions ``(n, d)``."""
        rows = []
        for position in x:
            point, start = [], 0
            for _, shape, size, dtype in self.density.layout:
                point.append(position[start : start + size].astype(dtype).reshape(shape))
                start += size
            rows.append(np.concatenate([np.ravel(value) for value in self._values(*point)]))
        return np.array(rows, dtype=float)


class _Noise:
    """The noise path since the start of a coarse step, at ``times`` ``(R, n)`` in any order."""

    def __init__(self, setting: ProbeSetting, times: np.ndarray, d: int, rng: np.random.Generator):
        order = np.argsort(times, axis=1, kind="stable")
        self._rank = np.argsort(order, axis=1)
        gaps = setting.flow(np.diff(np.take_along_axis(times, order, axis=1), prepend=0.0, axis=1))
        w = rng.standard_normal((2, len(times), times.shape[1], d))
        mu, mv = np.zeros((2, len(times), d))
        self._u, self._v = np.empty((2, *w.shape[1:]))
        for j in range(times.shape[1]):
            gap = Flow(*(entry[:, j, None] for entry in gaps))
            mu, mv = path(mu, mv, *noise(w[0, :, j], w[1, :, j], gap), gap)
            self._u[:, j], self._v[:, j] = mu, mv

    def between(self, start: int, stop: int, flow: Flow) -> tuple[np.ndarray, np.ndarray]:
        """Return the noise between two of the times, given by their columns and the flow over the gap."""
        rows = np.arange(len(self._rank))
        i, j = self._rank[:, start], self._rank[:, stop]
        return path(-self._u[rows, i], -self._v[rows, i], self._u[rows, j], self._v[rows, j], flow)


def _marks(setting: ProbeSetting, level: _Level, start: np.ndarray, uniform: np.ndarray, rng: Any) -> list[_Mark]:
    """Draw the midpoints of a step; the first takes the given uniform number."""
    kernel, K, h = setting.kernel, setting.K, level.h
    if kernel.scheme in (Scheme.CONTINUOUS, Scheme.RECYCLED):
        weight = continuous_weight(setting.flow(h * (1.0 - uniform)), h, kernel.dynamics != OVERDAMPED)
        return [_Mark(start + h * uniform, weight, np.ones(len(h), dtype=bool))]
    marks: list[_Mark] = []
    cell = _one_cell(uniform, K, kernel.power) if kernel.option == 2 else _next_cell(-1, uniform, K)
    while np.any(cell < K):
        at = np.minimum(cell, K - 1)
        rest = setting.flow(h * (K - 1 - at) / K)
        # A midpoint at the start corrects nothing.
        active = (cell < K) & (at + kernel.offset > 0.0)
        time = start + h * np.where(active, at + kernel.offset, 0.0) / K
        marks.append(_Mark(time, cell_weight(rest, level.cell, one_in(at, K, kernel.power)), active[:, 0]))
        cell = K if kernel.option == 2 else _next_cell(cell, rng.random(cell.shape), K)
    return marks


def _advance(
    setting: ProbeSetting, level: _Level, copy: _Copy, start: np.ndarray, ends: tuple[int, int], first: int,
    marks: list[_Mark], path_noise: _Noise, target: ProbeDensity, rng: np.random.Generator,
) -> tuple[_Copy, np.ndarray]:  # fmt: skip
    """Take one step of each replica; return also which of them were unstable.

    ``ends`` and ``first`` are columns of the noise path: the step's own ends, and the first of its midpoints.
    """
    scheme = setting.kernel.scheme
    base, cu, cv = 0.0 if scheme == Scheme.CONTINUOUS else 1.0, np.zeros_like(copy.u), np.zeros_like(copy.u)
    y, y_velocity, lp, b = copy.u, copy.v, copy.lp, copy.b
    curvature, stiffness = np.zeros(len(y)), 1.0 if setting.kernel.dynamics == HARMONIC else 0.0
    with np.errstate(all="ignore"):
        for k, mark in enumerate(marks):
            at = setting.flow(mark.time - start)
            mu, mv = path_noise.between(ends[0], first + k, at)
            y = interpolate(copy.u, copy.v, copy.b, mu, at)
            y_velocity = interpolate_velocity(copy.u, copy.v, copy.b, mv, at)
            lp, b = target.drift(y, mark.active)
            lost = np.where(np.isnan(lp), np.nan, 0.0)[:, None]
            correction = np.where(mark.active[:, None], b - base * copy.b + lost, 0.0)
            way, rise = y - copy.evaluated, fall(y, copy.evaluated, b, copy.b, stiffness)
            norms = ((one * other).sum(axis=1) for one, other in ((rise, rise), (way, way), (rise, way)))
            counts = mark.active & ((mark.time - start) > EARLIEST * level.h)[:, 0]
            curvature = np.where(counts, np.fmax(curvature, _curvature(*norms, stiffness)), curvature)
            cu, cv = cu + mark.weight[0] * correction, cv + mark.weight[1] * correction
        mu, mv = path_noise.between(*ends, level.whole)
        u, v = end(copy.u, copy.v, base * copy.b, mu, mv, cu, cv, level.whole)
        if scheme == Scheme.RECYCLED:
            evaluated, velocity = y, y_velocity
        else:
            (lp, b), evaluated, velocity = target.drift(u), u, v
        energy = 0.5 * (velocity**2).sum(axis=1) - lp
        good = np.isfinite((u + v).sum(axis=1)) & (energy - copy.energy <= level.threshold)
    steep = copy.steep + (good & (curvature > level.steepest))
    if good.all():
        return _Copy(u, v, b, evaluated, lp, energy, steep), ~good
    # As in the samplers: unstable copies restart at the evaluated point, with a fresh velocity.
    fresh = rng.standard_normal(u.shape) * (setting.kernel.dynamics != OVERDAMPED)
    back = _Copy(copy.evaluated, fresh, copy.b, copy.evaluated, copy.lp, 0.5 * (fresh**2).sum(axis=1) - copy.lp, steep)
    new = _Copy(u, v, b, evaluated, lp, energy, steep)
    return _Copy(
        *(np.where(good if a.ndim == 1 else good[:, None], a, c) for a, c in zip(new, back, strict=True))
    ), ~good


def _coarse_step(
    setting: ProbeSetting, levels: list[_Level], copies: list[_Copy], target: ProbeDensity, rng: np.random.Generator
) -> tuple[list[_Copy], list[np.ndarray], np.ndarray]:
    """Take one step at level 0, two at level 1, four at level 2; return also the draws and the unstable steps."""
    finest = 2 ** (_LEVELS - 1)
    uniforms = [rng.random(setting.alpha.shape)]
    columns = [k * setting.alpha / finest for k in range(finest + 1)]
    plan: list[tuple[int, int, list[_Mark], int]] = []
    for i, level in enumerate(levels):
        if i:
            # The half that contains the coarser midpoint uses it; the other half draws its own.
            halves = [2.0 * uniform - k for uniform in uniforms for k in (0, 1)]
            uniforms = [np.where((u >= 0.0) & (u < 1.0), u, rng.random(u.shape)) for u in halves]
        for k, uniform in enumerate(uniforms):
            marks = _marks(setting, level, k * level.h, uniform, rng)
            plan.append((i, k, marks, len(columns)))
            columns += [mark.time for mark in marks]
    path_noise = _Noise(setting, np.concatenate(columns, axis=1), copies[0].u.shape[1], rng)
    copies, draws = list(copies), [copy.evaluated for copy in copies]
    unstable = np.zeros(_LEVELS, dtype=int)
    recycled = setting.kernel.scheme == Scheme.RECYCLED
    for i, k, marks, first in plan:
        level, width = levels[i], finest // 2**i
        ends = (k * width, (k + 1) * width)
        copies[i], failed = _advance(
            setting, level, copies[i], k * level.h, ends, first, marks, path_noise, target, rng
        )
        unstable[i] += failed.sum()
        # All levels draw at the same time: the end or, in the recycled scheme, the common midpoint.
        common = plan[0][2][0].time / level.h if recycled else np.full(level.h.shape, 2**i - 1)
        draws[i] = np.where(np.floor(common) == k, copies[i].evaluated, draws[i])
    return copies, draws, unstable


class Sums(NamedTuple):
    """Means over the records of each copy.

    Attributes
    ----------
    first, second : (level, R, p)
        Deviations of the parameters from the centre, and their squares.
    distance : (R, p)
        Squared distances between the copies at the first two levels.
    unstable : (level,)
        Unstable transitions.
    steep
        Transitions of the copies at the first level that a run would refine.
    """

    first: np.ndarray
    second: np.ndarray
    distance: np.ndarray
    unstable: np.ndarray
    steep: int


def run_copies(
    setting: ProbeSetting,
    x: np.ndarray,
    centre: np.ndarray,
    target: ProbeDensity,
    transitions: int,
    rng: np.random.Generator,
) -> Sums:
    """Advance copies at all levels from positions ``x`` ``(R, d)`` by ``transitions`` coarse steps.

    ``centre`` ``(p,)`` is subtracted from the parameters before they are summed.
    """
    y = target.whiten(x)
    lp, b = target.drift(y)
    v = rng.standard_normal(y.shape) * (setting.kernel.dynamics != OVERDAMPED)
    levels = levels_of(setting, y.shape[1])
    copies = [_Copy(y, v, b, y, lp, 0.5 * (v**2).sum(axis=1) - lp)] * _LEVELS
    # 200 records of each copy, after a third: copies start together and must drift apart first.
    every, burn = max(1, transitions // 200), transitions // 3
    first, second = np.zeros((2, _LEVELS, len(x), len(centre)))
    distance, unstable, records = np.zeros(first.shape[1:]), np.zeros(_LEVELS, dtype=int), 0
    for i in range(transitions):
        copies, draws, failed = _coarse_step(setting, levels, copies, target, rng)
        unstable += failed
        if i < burn or (transitions - 1 - i) % every:
            continue
        f = np.array([target.parameters(target.place(draw)) for draw in draws]) - centre
        with np.errstate(all="ignore"):
            first, second, distance = first + f, second + f**2, distance + (f[0] - f[1]) ** 2
        records += 1
    return Sums(first / records, second / records, distance / records, unstable, int(np.sum(copies[0].steep)))

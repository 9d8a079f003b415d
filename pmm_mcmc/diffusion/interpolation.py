r"""One call of the network after the other: the method in its efficient form.

The noise is isotropic, so the ``K`` draws of a block need not be made: the path of the noise up to cell ``k`` is
:math:`S_k \sim N(0, V_k)`, :math:`V_k = \sum_j C_{k,j}^2`, and from there to a later cell ``m``

.. math:: S_m = \frac{A_m}{A_k} S_k + \sqrt{V_m - (A_m / A_k)^2 V_k}\, z.

So one Gaussian draw follows each call: :func:`noiseless_next` returns the next point without it, :func:`advance` with
it.  The two are the complete method, written with ``+`` and ``*`` only: the same lines run on NumPy, JAX and torch
arrays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from pmm_mcmc.diffusion.blocks import Blocks
from pmm_mcmc.diffusion.schedule import DiffusionSchedule


class Constants(NamedTuple):
    r"""Interpolation constants of a block of ``K`` steps, with :math:`A_k = a_t \cdots a_{t-k+1}` (erratum c).

    ``A``, ``B`` (the sums :math:`\sum_i B_{k,i}`) and ``V`` are ``(K + 1,)``, by ``k``.  ``remaining`` and
    ``remaining_variance`` are :math:`A_K / A_k` and :math:`V_K - (A_K / A_k)^2 V_k`.  ``weight``, ``(K,)``, is
    :math:`B_{K,\tau+1}` by :math:`\tau`.
    """

    A: np.ndarray
    B: np.ndarray
    V: np.ndarray
    remaining: np.ndarray
    remaining_variance: np.ndarray
    weight: np.ndarray


def constants(a: np.ndarray, b: np.ndarray, sigma: np.ndarray) -> Constants:
    """Return the constants from the coefficients of the updates of a block, each ``(K,)``, the first update first.

    The paper's InterpolationConstants, without a division, so that a vanishing ``a`` does no harm.
    """
    K = len(a)
    A = np.ones(K + 1)
    B = np.zeros(K + 1)
    V = np.zeros(K + 1)
    for k in range(K):
        A[k + 1] = a[k] * A[k]
        B[k + 1] = a[k] * B[k] + b[k]
        V[k + 1] = a[k] ** 2 * V[k] + sigma[k] ** 2
    remaining = np.ones(K + 1)
    remaining_variance = np.zeros(K + 1)
    for k in reversed(range(K)):
        remaining[k] = remaining[k + 1] * a[k]
        remaining_variance[k] = remaining_variance[k + 1] + (remaining[k + 1] * sigma[k]) ** 2
    return Constants(A, B, V, remaining, remaining_variance, remaining[1:] * b)


def probabilities(blocks: Blocks, weight: np.ndarray) -> np.ndarray:
    """Return the probability of each cell of a block to be a midpoint, ``(K,)`` by ``tau``: 0 for the first."""
    K = len(weight)
    tau = np.arange(K)
    if blocks.midpoint == "bernoulli":
        q = np.full(K, 1.0 / K)
    elif blocks.midpoint == "uniform":
        q = np.full(K, 1.0 / max(K - 1, 1))
    else:
        q = np.abs(weight) * np.sqrt(tau)
        q = q / q.sum() if q[1:].any() else np.full(K, 1.0 / max(K - 1, 1))
    q[0] = 0.0
    return q


class Table(NamedTuple):
    """Constants of all blocks by the level of a cell, each ``(N + 1,)``: those of :class:`Constants` and more.

    ``nonzero_A`` is ``A`` without the factors that vanish, for quotients of two cells without such a factor between
    them: only the first update, from pure noise, and the last can have one.
    """

    first: Any  # 1 where a block starts, else 0
    stop: Any  # level at which the block ends
    A: Any
    B: Any
    V: Any
    nonzero_A: Any
    remaining: Any
    remaining_sd: Any  # root of remaining_variance
    A_end: Any  # A_K and B_K of the block
    B_end: Any
    weight: Any  # of a midpoint's correction: that of Constants over the probability
    probability: Any  # of the midpoint
    state_factor: Any  # the prediction which is frozen is state_factor * state + output_factor * output
    output_factor: Any
    timestep: Any  # what the network is told


def make_table(schedule: DiffusionSchedule, blocks: Blocks, prediction: str = "epsilon") -> Table:
    """Return the table of the blocks, for a network that makes a ``prediction``."""
    if blocks.edges[0] > schedule.N:
        raise ValueError(f"blocks start at level {blocks.edges[0]}; the schedule has {schedule.N}. Make them for its N")
    a, b, sigma = schedule.coefficients(blocks.frozen)
    columns = {name: np.zeros(schedule.N + 1) for name in Table._fields}
    columns["A"][0] = 1.0
    columns["stop"] = np.zeros(schedule.N + 1, dtype=int)
    for t, s in zip(blocks.edges[:-1], blocks.edges[1:], strict=True):
        cells = np.arange(t, s, -1)
        c = constants(a[cells], b[cells], sigma[cells])
        q = probabilities(blocks, c.weight)
        columns["first"][t] = 1.0
        columns["stop"][cells] = s
        columns["nonzero_A"][cells[1:]] = np.cumprod(np.where(a[cells] == 0.0, 1.0, a[cells]))[:-1]
        columns["nonzero_A"][t] = 1.0
        columns["A_end"][cells] = c.A[-1]
        columns["B_end"][cells] = c.B[-1]
        columns["remaining_sd"][cells] = np.sqrt(c.remaining_variance[:-1])
        columns["probability"][cells] = q
        columns["weight"][cells] = np.divide(c.weight, q, out=np.zeros_like(q), where=q > 0.0)
        for name in ("A", "B", "V", "remaining"):
            columns[name][cells] = getattr(c, name)[:-1]
    columns["state_factor"], columns["output_factor"] = schedule.conversion(prediction, blocks.frozen)
    columns["timestep"] = np.concatenate([[0], schedule.timesteps])
    return Table(**columns)


def draw_levels(table: Table, blocks: Blocks, rng: np.random.Generator) -> np.ndarray:
    """Return the levels of the network's calls, in order: starts of blocks and random midpoints."""
    levels: list[int] = []
    for t, s in zip(blocks.edges[:-1], blocks.edges[1:], strict=True):
        cells = np.arange(t, s, -1)
        levels.append(t)
        if blocks.midpoint == "bernoulli":
            levels.extend(cells[rng.random(len(cells)) < table.probability[cells]])
        elif len(cells) > 1:
            levels.append(int(rng.choice(cells, p=table.probability[cells])))
    return np.array(levels)


def following(levels: Any, xp: Any = np) -> Any:
    """Return, for each call, the level of the next; 0 after the last."""
    return xp.concatenate([levels[1:], xp.zeros_like(levels[:1])])


class Row(NamedTuple):
    """Coefficients of one call of the network, for :func:`advance`."""

    state_factor: Any  # the prediction which is frozen is state_factor * state + output_factor * output
    output_factor: Any
    first: Any  # 1 at the start of a block, else 0
    weight: Any  # of a midpoint's correction, 0 at the start of a block
    path_factor: Any  # of the path of the noise, up to the next call
    fresh_sd: Any  # standard deviation of the noise that is added to it
    start_factor: Any  # A of the next call, the factor of the block's start
    frozen_factor: Any  # and B, that of the frozen prediction
    last: Any  # 1 at the last call of a block, else 0


def make_rows(table: Table, levels: Any, next_levels: Any, xp: Any = np) -> Row:
    """Return the rows of calls at ``levels``, each followed by the call at ``next_levels``; of any shape.

    ``xp`` is the array module of the table: NumPy, or its like in JAX.
    """
    t = Table(*(column[levels] for column in table))
    last = next_levels <= t.stop
    # At the end of a block the next level is in another block, and its entries are not used.
    path_factor = xp.where(last, t.remaining, table.nonzero_A[next_levels] / t.nonzero_A)
    sd_between = xp.sqrt(xp.maximum(table.V[next_levels] - path_factor**2 * t.V, 0.0))
    return Row(
        state_factor=t.state_factor,
        output_factor=t.output_factor,
        first=t.first,
        weight=xp.where(t.first > 0.0, 0.0, t.weight),
        path_factor=xp.where(t.first > 0.0, 0.0, path_factor),
        fresh_sd=xp.where(last, t.remaining_sd, sd_between),
        start_factor=xp.where(last, t.A_end, table.A[next_levels]),
        frozen_factor=xp.where(last, t.B_end, table.B[next_levels]),
        last=xp.where(last, 1.0, 0.0),
    )


class State(NamedTuple):
    """The state between two calls: block's start, next point, frozen prediction, path of the noise, correction."""

    x: Any
    y: Any
    frozen: Any
    path: Any
    correction: Any


def start(x: Any) -> State:
    """Return the state before the first call."""
    zero = 0.0 * x
    return State(x, x, zero, zero, zero)


class NoiselessPoint(NamedTuple):
    """The next point ``y`` without the path of the noise, with the frozen prediction and the correction."""

    frozen: Any
    correction: Any
    y: Any


def noiseless_next(row: Row, state: State, output: Any) -> NoiselessPoint:
    """Return the next point without the path of the noise, from the network's output at ``state.y``."""
    prediction = row.state_factor * state.y + row.output_factor * output
    frozen = row.first * prediction + (1.0 - row.first) * state.frozen
    correction = (1.0 - row.first) * state.correction + row.weight * (prediction - frozen)
    y = row.start_factor * state.x + row.frozen_factor * frozen + row.last * correction
    return NoiselessPoint(frozen, correction, y)


def with_path(row: Row, state: State, point: NoiselessPoint, path: Any) -> State:
    """Return the next state, with a path of the noise."""
    y = point.y + path
    x = row.last * y + (1.0 - row.last) * state.x
    return State(x, y, point.frozen, path, point.correction)


def advance(row: Row, state: State, output: Any, noise: Any) -> State:
    r"""Return the state at the next call, from the network's output at ``state.y``.

    Over the calls of a block this is the update (PoissonMidpointMethod, step 4, with errata a and b)

    .. math:: X_{t-K} = A_K X_t + \sum_i B_{K,i} f(X_t, t) + S_K
              + \sum_\tau \frac{B_{K,\tau+1}}{q_\tau} \left(f(\hat X_{t-\tau}, t - \tau) - f(X_t, t)\right),
              \quad \hat X_{t-\tau} = A_\tau X_t + \sum_i B_{\tau,i} f(X_t, t) + S_\tau.
    """
    path = row.path_factor * state.path + row.fresh_sd * noise
    return with_path(row, state, noiseless_next(row, state, output), path)


def noise_between(row: Row, state: State, point: NoiselessPoint, y: Any) -> tuple[State, Any]:
    """Return the state at a given ``y`` and the noise that leads there: the inverse of :func:`advance`.

    If a call adds no noise, as the last of a chain may, ``row.fresh_sd`` is 0, and so is the noise that is returned.
    """
    path = y - point.y
    silent = row.fresh_sd == 0.0
    noise = (path - row.path_factor * state.path) * (1.0 - silent) / (row.fresh_sd + silent)
    return with_path(row, state, point, path), noise

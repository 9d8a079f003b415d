"""Two published models as log densities by hand, for NUTS of nutpie where that of the graph takes hours.

A density is of the model's flat unconstrained coordinates, with its gradient, up to a constant, in one pass over the
data; :func:`sampled` compares it with the model's before it draws.  States of stochastic volatility are shifted and
scaled by a fixed band matrix, the Cholesky factor of what a random walk of step ``TYPICAL`` has with two units of
information on each state: a change of coordinates of constant volume, in which trajectories are short.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numba
import numpy as np
import pymc as pm
from scoreboard.posteriordb import data

__all__ = ["BY_HAND", "LONG", "ByHand", "sampled"]

TYPICAL = 0.1
# The scale of the walk and the mean ability mix forty times more slowly than the others; a fourth of the draws is kept.
LONG = {"chains": 4, "tune": 1000, "draws": 16_000, "seed": 1}
KEPT = 4


class ByHand(NamedTuple):
    """A density of flat coordinates, and how they become those of NUTS and the model's variables.

    ``place`` takes coordinates of NUTS to the flat ones, ``back`` gradients the other way, ``out`` flat coordinates to
    the values of the model's variables.
    """

    density: Callable[[np.ndarray, np.ndarray], float]
    place: Callable[[np.ndarray], np.ndarray]
    back: Callable[[np.ndarray], np.ndarray]
    out: Callable[[np.ndarray], np.ndarray]


@numba.njit
def digamma(x: float) -> float:
    below = 0.0
    while x < 10.0:
        below, x = below - 1.0 / x, x + 1.0
    y = 1.0 / (x * x)
    return below + math.log(x) - 0.5 / x - y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y / 132))))


def stochastic_volatility() -> ByHand:
    returns = 100 * np.diff(np.log(data("sp500").closing_prices))
    n = len(returns)
    diagonal, below, start = np.empty(n), np.empty(n), np.full(n, np.log(returns.std()))
    for t in range(n):
        below[t] = -1.0 / TYPICAL**2 / diagonal[t - 1] if t else 0.0
        diagonal[t] = math.sqrt((2.0 if t < n - 1 else 1.0) / TYPICAL**2 + 2.0 - below[t] ** 2)

    @numba.njit
    def density(x, gradient):
        sigma, nu = math.exp(x[0]), math.exp(x[1])
        ends = math.lgamma(0.5 * (nu + 1)) - math.lgamma(0.5 * nu) - 0.5 * math.log(nu)
        lp = x[0] - 50 * sigma + x[1] - 0.1 * nu - n * x[0] + n * ends
        steps, logs, shares = 0.0, 0.0, 0.0
        gradient[2:] = -1.0
        for t in range(n):
            before = x[1 + t] if t else 0.0
            step = (x[2 + t] - before) / sigma
            steps += step * step
            gradient[2 + t] -= step / sigma
            if t:
                gradient[1 + t] += step / sigma
            q = (returns[t] * math.exp(-x[2 + t])) ** 2 / nu
            share = q / (1 + q)
            logs, shares = logs + math.log1p(q), shares + share
            gradient[2 + t] += (nu + 1) * share
            lp -= x[2 + t]
        gradient[0] = 1 - 50 * sigma - n + steps
        by_nu = n * 0.5 * (digamma(0.5 * (nu + 1)) - digamma(0.5 * nu) - 1 / nu) - 0.5 * logs
        gradient[1] = 1 + nu * (-0.1 + by_nu) + 0.5 * (nu + 1) * shares
        return lp - 0.5 * steps - 0.5 * (nu + 1) * logs

    @numba.njit
    def place(z):
        x = z.copy()
        for t in range(n - 1, -1, -1):
            after = below[t + 1] * (x[3 + t] - start[t + 1]) if t < n - 1 else 0.0
            x[2 + t] = start[t] + (z[2 + t] - after) / diagonal[t]
        return x

    @numba.njit
    def back(gradient):
        for t in range(n):
            before = below[t] * gradient[1 + t] if t else 0.0
            gradient[2 + t] = (gradient[2 + t] - before) / diagonal[t]
        return gradient

    return ByHand(density, place, back, lambda x: np.r_[np.exp(x[:2]), x[2:]])


def item_response() -> ByHand:
    answers = np.array([list(row) for row in data("item_response").answers])
    student, question = np.nonzero(answers != ".")
    right, students = answers[student, question] == "1", len(answers)

    @numba.njit
    def density(x, gradient):
        lp = -0.5 * (x[0] - 0.75) ** 2
        gradient[:] = -x
        gradient[0] += 0.75
        for i in range(1, len(x)):
            lp -= 0.5 * x[i] ** 2
        for i in range(len(right)):
            logit = x[0] + x[1 + student[i]] - x[1 + students + question[i]]
            towards = -logit if right[i] else logit
            small = math.exp(-abs(towards))
            lp -= max(towards, 0.0) + math.log1p(small)
            share = (1.0 if towards > 0 else small) / (1.0 + small)
            share = share if right[i] else -share
            gradient[0] += share
            gradient[1 + student[i]] += share
            gradient[1 + students + question[i]] -= share
        return lp

    @numba.njit
    def same(x):
        return x

    return ByHand(density, same, same, lambda x: x)


BY_HAND: dict[str, Callable[[], ByHand]] = {
    "stochastic_volatility": stochastic_volatility,
    "item_response": item_response,
}


def _check(model: pm.Model, hand: ByHand) -> np.ndarray:
    """Return the model's initial point; raise ``ValueError`` where densities have other differences or gradients."""
    both, rng = model.logp_dlogp_function(ravel_inputs=True), np.random.default_rng(0)
    first = np.concatenate([np.ravel(value) for value in model.initial_point(0).values()])
    offsets = []
    for scale in (0.0, 0.1, 0.3):
        x, gradient = first + scale * rng.standard_normal(len(first)), np.empty(len(first))
        value, known = both(x)
        offsets.append(value - hand.density(x, gradient))
        if not np.allclose(gradient, known, rtol=1e-8, atol=1e-8 * np.abs(known).max()):
            raise ValueError("the density by hand has another gradient than the model")
    if np.ptp(offsets) > 1e-8 * abs(value):
        raise ValueError("the density by hand is not that of the model")
    return first


def sampled(model: pm.Model, hand: ByHand) -> tuple[np.ndarray, int]:
    """Return draws ``(chain, draw, p)`` of the model's variables by NUTS, and the number of divergences."""
    import nutpie

    first = _check(model, hand)
    density, place, back = hand.density, hand.place, hand.back

    @numba.njit
    def of_nuts(z):
        gradient = np.empty(len(z))
        return density(place(z), gradient), back(gradient)

    compiled = nutpie.compiled_pyfunc.from_pyfunc(
        len(first),
        lambda: of_nuts,
        lambda *_: lambda z, **__: {"x": hand.out(place(z))},
        [np.dtype(np.float64)],
        [first.shape],
        ["x"],
        make_initial_point_fn=lambda seed: 0.1 * np.random.default_rng(seed).standard_normal(len(first)),
    )
    tree = nutpie.sample(compiled, **LONG, cores=1, progress_bar=False, save_warmup=False)
    return tree["posterior"]["x"].values[:, ::KEPT], int(tree["sample_stats"]["diverging"].sum())

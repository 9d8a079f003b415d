"""Odd models whose posteriors have moments in closed form or by quadrature: the shapes that samplers get wrong.

Each function returns the model and the exact moments of the variables that are judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import gammaln, ndtr
from scoreboard.truth import Truth

from pmm_mcmc.model.result_tree import flat_names

Powers = tuple[Any, Any, Any]


def exact(**variables: Sequence[Powers]) -> Truth:
    """Return the truth about vectors, each a list of E[x], E[x^2] and E[x^4]; of one element, a scalar."""
    shapes = [(name, () if len(rows) == 1 else (len(rows),)) for name, rows in variables.items()]
    mean, second, fourth = np.array([row for rows in variables.values() for row in rows], float).T
    none = np.zeros_like(mean)
    sd = np.sqrt(second - mean**2)
    return Truth(tuple(variables), flat_names(shapes), mean, sd, none, none, second, fourth - second**2)


def gaussians(weight: Sequence[float], mean: Sequence[float], sd: Sequence[float]) -> Powers:
    """Return moments of a mixture of Gaussians."""
    w, m, v = np.array(weight), np.array(mean), np.array(sd) ** 2
    return w @ m, w @ (m**2 + v), w @ (m**4 + 6 * m**2 * v + 3 * v**2)


def on_grid(x: np.ndarray, log_density: np.ndarray) -> Powers:
    """Return moments by the trapezoid rule on an even grid, whose ends are where nothing is left."""
    w = np.exp(log_density - log_density.max())
    w /= w.sum()
    return w @ x, w @ x**2, w @ x**4


def modes(weight: Sequence[float], apart: float, sd: Sequence[float], d: int) -> tuple[pm.Model, Truth]:
    """Two Gaussians so far apart along the first of ``d`` coordinates, with these standard deviations."""
    centre = np.array([0.0, apart])
    with pm.Model() as model:
        x = pm.Flat("x", shape=d)
        at = np.zeros((2, d))
        at[:, 0] = centre
        of_mode = [
            np.log(w) - d * np.log(s) - 0.5 * (((x - m) / s) ** 2).sum() for w, m, s in zip(weight, at, sd, strict=True)
        ]
        pm.Potential("log_density", pt.logsumexp(pt.stack(of_mode)))
    other = gaussians(weight, [0, 0], sd)
    return model, exact(x=[gaussians(weight, centre.tolist(), sd), *[other] * (d - 1)])


def cauchy() -> tuple[pm.Model, Truth]:
    y = np.array([-6.0, -5.2, 4.1, 5.0, 6.3])
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 20)
        pm.Cauchy("y", mu, 1.0, observed=y)
    x = np.linspace(-200, 200, 2_000_001)
    log_density = -0.5 * (x / 20) ** 2 - sum(np.log1p((value - x) ** 2) for value in y)
    return model, exact(mu=[on_grid(x, log_density)])


def student(nu: int) -> tuple[pm.Model, Truth]:
    """Ten independent Student-t coordinates; with two degrees of freedom they are judged by their ranks."""
    with pm.Model() as model:
        x = pm.StudentT("x", nu=nu, mu=0, sigma=1, shape=10)
        if nu == 2:
            pm.Deterministic("rank", 0.5 * (1 + x / pt.sqrt(2 + x**2)))
    if nu == 2:
        return model, exact(rank=[(1 / 2, 1 / 3, 1 / 5)] * 10)
    return model, exact(x=[(0, nu / (nu - 2), 3 * nu**2 / ((nu - 2) * (nu - 4)))] * 10)


def three_groups() -> tuple[pm.Model, Truth]:
    """Means of three groups of three, which say little of the standard deviation between them."""
    y = np.array([[1.2, 0.4, 0.9], [2.1, 2.6, 1.7], [-0.3, 0.6, 0.1]])
    with pm.Model() as model:
        mu, tau, sigma = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 2), pm.HalfNormal("sigma", 2)
        theta = pm.Normal("theta", mu, tau, shape=3)
        pm.Normal("y", theta[:, None], sigma, observed=y)
    # Given tau and sigma, on a grid, (mu, theta) is Gaussian.
    steps = (np.arange(400) + 0.5) / 400
    t, s = (part.ravel() for part in np.meshgrid(15 * steps, 6 * steps))
    prior = np.full((t.size, 4, 4), 25.0)
    prior[:, [1, 2, 3], [1, 2, 3]] += t[:, None] ** 2
    seen = prior[:, 1:, 1:] + (s**2 / 3)[:, None, None] * np.eye(3)
    gain = np.linalg.solve(seen, prior[:, 1:, :]).transpose(0, 2, 1)
    m, at = gain @ y.mean(axis=1), y.mean(axis=1)
    v = np.diagonal(prior - gain @ prior[:, 1:, :], axis1=1, axis2=2)
    log_w = -(t**2 + s**2) / 8 - 6 * np.log(s) - ((y - at[:, None]) ** 2).sum() / (2 * s**2)
    log_w -= (
        0.5 * np.linalg.slogdet(seen)[1]
        + 0.5 * np.linalg.solve(seen, np.tile(at[:, None], (t.size, 1, 1)))[..., 0] @ at
    )
    w = np.exp(log_w - log_w.max())
    w /= w.sum()
    rows = [tuple(w @ p for p in (a, a**2 + b, a**4 + 6 * a**2 * b + 3 * b**2)) for a, b in zip(m.T, v.T, strict=True)]
    scales = {name: [tuple(w @ x**p for p in (1, 2, 4))] for name, x in (("tau", t), ("sigma", s))}
    return model, exact(mu=rows[:1], **scales, theta=rows[1:])


def change_point() -> tuple[pm.Model, Truth]:
    """Counts whose rate changes at a continuous time, as a switch."""
    n, rng = 40, np.random.default_rng(319)
    y = np.concatenate([rng.poisson(5.0, 22), rng.poisson(2.5, 18)])
    with pm.Model() as model:
        at = pm.Uniform("at", 0, n)
        early, late = pm.Exponential("early", 0.2), pm.Exponential("late", 0.2)
        pm.Poisson("y", pt.switch(np.arange(n) < at, early, late), observed=y)
    # With k counts before the change, in (k - 1, k), rates are Gamma.
    k = np.arange(1, n + 1)
    before, total = np.cumsum(y), y.sum()

    def log_marginal(count: Any, times: Any) -> Any:
        return gammaln(1 + count) - (1 + count) * np.log(0.2 + times)

    def gamma(count: Any, times: Any) -> list[Any]:
        a, b = 1 + count, 0.2 + times
        return [a / b, a * (a + 1) / b**2, a * (a + 1) * (a + 2) * (a + 3) / b**4]

    w = log_marginal(before, k) + log_marginal(total - before, n - k)
    w = np.exp(w - w.max())
    w /= w.sum()
    time = [(k**p - (k - 1.0) ** p) / p for p in (2, 3, 5)]
    powers = {"at": time, "early": gamma(before, k), "late": gamma(total - before, n - k)}
    return model, exact(**{name: [tuple(w @ power for power in row)] for name, row in powers.items()})


def uniform_bound() -> tuple[pm.Model, Truth]:
    """The upper end of a uniform distribution: a posterior with an edge where it is largest."""
    y = np.random.default_rng(320).uniform(0, 3, 12)
    low, high, n = y.max(), 10.0, len(y)
    with pm.Model() as model:
        bound = pm.Uniform("bound", 0, high, initval=6.0)
        pm.Uniform("y", 0, bound, observed=y)

    def power(p: int) -> float:
        return (high ** (p + 1 - n) - low ** (p + 1 - n)) / (p + 1 - n)

    return model, exact(bound=[(power(1) / power(0), power(2) / power(0), power(4) / power(0))])


def walls() -> tuple[pm.Model, Truth]:
    """Three standard normal coordinates, the first above -0.5 by a potential that is minus infinity elsewhere."""
    wall = -0.5
    with pm.Model() as model:
        x = pm.Normal("x", shape=3, initval=np.array([0.5, 0.0, 0.0]))
        pm.Potential("wall", pt.switch(x[0] > wall, 0.0, -np.inf))
    q = np.exp(-0.5 * wall**2) / np.sqrt(2 * np.pi) / ndtr(-wall)
    second = 1 + wall * q
    return model, exact(x=[(q, second, 3 * second + wall**3 * q), *[(0, 1, 3)] * 2])


def jump() -> tuple[pm.Model, Truth]:
    """Three standard normal coordinates, the density three times as high where the first is positive."""
    with pm.Model() as model:
        x = pm.Normal("x", shape=3)
        pm.Potential("jump", pt.switch(x[0] > 0, np.log(3.0), 0.0))
    return model, exact(x=[(np.sqrt(2 / np.pi) * 0.5, 1, 3), *[(0, 1, 3)] * 2])


def thin_banana() -> tuple[pm.Model, Truth]:
    """A ridge that bends by little over a length ten thousand times its width, beside three other scales."""
    long, bend, width, scales = 100.0, 1e-6, 0.005, (0.01, 1.0, 30.0)
    with pm.Model() as model:
        a = pm.Normal("a", 0, long)
        pm.Normal("b", bend * a**2, width)
        pm.Normal("c", 0, np.array(scales), shape=3)
    nodes, weight = np.polynomial.hermite_e.hermegauss(40)
    weight = weight / weight.sum()
    m, v = bend * (long * nodes) ** 2, width**2
    b = weight @ m, weight @ (m**2 + v), weight @ (m**4 + 6 * m**2 * v + 3 * v**2)
    return model, exact(a=[gaussians([1], [0], [long])], b=[b], c=[gaussians([1], [0], [s]) for s in scales])


EXACT = {
    "cauchy_five": cauchy,
    "three_groups": three_groups,
    "student_2": lambda: student(2),
    "student_5": lambda: student(5),
    "change_point": change_point,
    "uniform_bound": uniform_bound,
    "walls": walls,
    "jump": jump,
    "thin_banana": thin_banana,
    "modes_3.5": lambda: modes([0.5, 0.5], 3.5, [1.0, 1.0], 5),
    "modes_3.5_widths": lambda: modes([0.4, 0.6], 3.5, [1.0, 0.4], 3),
    "modes_10": lambda: modes([0.3, 0.7], 10.0, [1.0, 1.0], 3),
    "modes_10_widths": lambda: modes([0.5, 0.5], 10.0, [1.0, 0.3], 3),
}

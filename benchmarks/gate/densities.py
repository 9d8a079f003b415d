"""Raw densities with narrow arms, necks, tails and edges, through ``pm.Flat`` and ``pm.Potential``: no graph to read.

Each function returns the model and the exact moments of the variables that are judged; where they come from is said
there.  Most have independent draws besides, by constructions that do not use the moments: a test holds the moments
against means of such draws, and lets runs of independent draws be judged.  Of 100 such runs, of 4 times 400 draws, at
most one was called wrong.  The two regressions have no such draws: see there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from exact_moments import of_gallery
from numpy.random import Generator
from scipy.special import polygamma, psi
from scoreboard.odd_exact import Powers, exact, modes, on_grid
from scoreboard.truth import Truth, from_reference

from pmm_mcmc.workbench.targets.gallery import RING, ROSENBROCK_NOISE, draw_ring, draw_rosenbrock

Exact = tuple[pm.Model, Truth]


class Density(NamedTuple):
    """What returns a model with its moments, and what returns so many independent draws, where something does."""

    exact: Callable[[], Exact]
    drawn: Callable[[Generator, int], np.ndarray] | None = None


MIDDLE: Powers = (0, 1, 3)  # a standard normal coordinate
NOISE, EDGE, STEEP, SMALL, SPIKE = 0.1, -0.5, 0.002, 0.05, 0.08


def density(d: int, log_density: Callable[[Any], Any], start: float = 0.0) -> pm.Model:
    """Return a model of one flat vector ``x``."""
    with pm.Model() as model:
        x = pm.Flat("x", shape=d, initval=np.full(d, start))
        pm.Potential("log_density", log_density(x))
    return model


def of_cumulants(first: float, second: float, third: float, fourth: float) -> Powers:
    """Return E[x], E[x^2] and E[x^4] from the first four cumulants."""
    power = fourth + 4 * third * first + 3 * second**2 + 6 * second * first**2 + first**4
    return first, second + first**2, power


def cross(sd: float) -> Exact:
    """Two coordinates N(0, sd^2) whose product is near zero: y given x is Gaussian, and x is integrated on a grid."""
    model = density(2, lambda x: -0.5 * (x**2).sum() / sd**2 - 0.5 * (x[0] * x[1] / NOISE) ** 2)
    x = np.linspace(-9 * sd, 9 * sd, 900_001)
    row = on_grid(x, -0.5 * (x / sd) ** 2 - 0.5 * np.log(sd**-2 + (x / NOISE) ** 2))
    return model, exact(x=[row, row])


def cross_draws(sd: float, rng: Generator, n: int) -> np.ndarray:
    """Return draws of the prior that are kept with the probability that the product gives."""
    parts: list[np.ndarray] = []
    while sum(map(len, parts)) < n:
        x = rng.normal(0, sd, (20 * n, 2))
        parts.append(x[rng.random(len(x)) < np.exp(-0.5 * (x[:, 0] * x[:, 1] / NOISE) ** 2)])
    return np.concatenate(parts)[:n]


def funnel(sd: float) -> Exact:
    """Neal's funnel, v ~ N(0, sd^2) and 24 x ~ N(0, exp(v)), but mild.

    Judged are v, in closed form, and ``x / sqrt(1 + x^2)``, by quadrature: squares of x have too long tails.
    """
    with pm.Model() as model:
        v, x = pm.Flat("v"), pm.Flat("x", shape=24)
        pm.Deterministic("share", x / pt.sqrt(1 + x**2))
        pm.Potential("log_density", -0.5 * (v / sd) ** 2 - 0.5 * (x**2).sum() * pt.exp(-v) - 12 * v)
    nodes, weight = np.polynomial.hermite_e.hermegauss(80)
    t = np.linspace(-12, 12, 4801)
    wide = np.exp(0.5 * sd * nodes)[:, None] * t
    within = np.exp(-0.5 * t**2)
    joint = np.outer(weight / weight.sum(), within / within.sum())
    square = wide**2 / (1 + wide**2)
    row = (0, (joint * square).sum(), (joint * square**2).sum())
    return model, exact(v=[(0, sd**2, 3 * sd**4)], share=[row] * 24)


def funnel_draws(sd: float, rng: Generator, n: int) -> np.ndarray:
    v = rng.normal(0, sd, (n, 1))
    x = np.exp(0.5 * v) * rng.normal(size=(n, 24))
    return np.hstack([v, x / np.sqrt(1 + x**2)])


def log_gamma() -> Exact:
    """Five logarithms of Gamma(.05) variables, by their cumulants, which are polygamma functions."""
    model = density(5, lambda x: (SMALL * x - pt.exp(x)).sum(), -1.0)
    return model, exact(x=[of_cumulants(psi(SMALL), *(float(polygamma(n, SMALL)) for n in (1, 2, 3)))] * 5)


def logit_beta() -> Exact:
    """Five logits of Beta(.05, .05) variables: each the difference of two logarithms of Gamma variables."""
    model = density(5, lambda x: -SMALL * (pt.softplus(x) + pt.softplus(-x)).sum())
    return model, exact(x=[of_cumulants(0.0, 2 * float(polygamma(1, SMALL)), 0.0, 2 * float(polygamma(3, SMALL)))] * 5)


def log_gamma_draws(rng: Generator, n: int) -> np.ndarray:
    """Return logarithms by g(a) = g(a + 1) u^(1/a), which underflow takes no part of."""
    return np.log(rng.gamma(1 + SMALL, size=(n, 5))) + np.log(rng.random((n, 5))) / SMALL


def logit_beta_draws(rng: Generator, n: int) -> np.ndarray:
    return log_gamma_draws(rng, n) - log_gamma_draws(rng, n)


def student(nu: int = 5, d: int = 30) -> Exact:
    """Thirty coordinates that are jointly Student-t with five degrees of freedom, in closed form."""
    model = density(d, lambda x: -0.5 * (nu + d) * pt.log1p((x**2).sum() / nu))
    return model, exact(x=[(0, nu / (nu - 2), 3 * nu**2 / ((nu - 2) * (nu - 4)))] * d)


def student_draws(rng: Generator, n: int, nu: int = 5, d: int = 30) -> np.ndarray:
    return rng.normal(size=(n, d)) * np.sqrt(nu / rng.chisquare(nu, (n, 1)))


def ring() -> Exact:
    """A ring about 0 of width .05: q = |x|^2 is N(1, .1^2), ten standard deviations above its end at 0."""
    model = density(2, lambda x: -0.5 * (((x**2).sum() - 1) / RING) ** 2, 0.7)
    return model, exact(x=[(0, 1 / 2, 3 / 8 * (1 + RING**2))] * 2)


def steep_edge() -> Exact:
    """Three standard normal coordinates, the first behind a smooth edge .002 wide, by a grid of a fifth of that."""
    model = density(3, lambda x: -0.5 * (x**2).sum() - pt.softplus(-(x[0] - EDGE) / STEEP), 0.5)
    x = np.arange(EDGE - 50 * STEEP, 9.0, STEEP / 20)
    return model, exact(x=[on_grid(x, -0.5 * x**2 - np.logaddexp(0, -(x - EDGE) / STEEP)), MIDDLE, MIDDLE])


def edge_draws(rng: Generator, n: int) -> np.ndarray:
    x = rng.normal(size=(4 * n, 3))
    return x[x[:, 0] > EDGE + STEEP * rng.logistic(size=len(x))][:n]


def modes_draws(apart: float, sd: list[float], d: int, rng: Generator, n: int) -> np.ndarray:
    which = rng.integers(2, size=n)
    x = rng.normal(size=(n, d)) * np.array(sd)[which, None]
    x[:, 0] += apart * which
    return x


def rosenbrock() -> Exact:
    """The eighteen pairs of ``acceptance/rosenbrock36``, whose second is N(first^2, .1), by quadrature."""
    model = density(36, lambda x: -0.5 * ((x[:18] - 1) ** 2 + (x[18:] - x[:18] ** 2) ** 2 / ROSENBROCK_NOISE).sum())
    return model, from_reference(lambda: model, of_gallery("rosenbrock"))


def regression_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(401)
    x = rng.normal(size=(10, 20)) / np.sqrt(20)
    return x, x @ rng.normal(size=20) + 0.1 * rng.normal(size=10)


def interpolating() -> Exact:
    """Twenty N(0, 1) coefficients on ten data, and the logarithm of a HalfNormal(1) noise scale that may be 0.

    Given the scale, which is integrated on a grid, the coefficients are Gaussian.  200,000 draws of the scale's prior,
    weighted by the likelihood, with coefficients by conditioning draws of their prior, agree.
    """
    X, y = regression_data()
    with pm.Model() as model:
        s, b = pm.Flat("log_sigma"), pm.Flat("beta", shape=20)
        misfit = ((y - X @ b) ** 2).sum() * pt.exp(-2 * s)
        pm.Potential("log_density", -0.5 * misfit - 10 * s - 0.5 * (b**2).sum() - 0.5 * pt.exp(2 * s) + s)
    grid = np.linspace(-25, 2.5, 5501)
    axes, lengths, rows = np.linalg.svd(X, full_matrices=False)
    variance = lengths**2 + np.exp(2 * grid)[:, None]
    log_w = -0.5 * (np.log(variance) + (y @ axes) ** 2 / variance).sum(axis=1) - 0.5 * np.exp(2 * grid) + grid
    w = np.exp(log_w - log_w.max())
    w /= w.sum()
    m = (lengths * (y @ axes) / variance) @ rows
    v = 1 - (lengths**2 / variance) @ rows**2
    return model, exact(log_sigma=[on_grid(grid, log_w)], beta=mixed(w, m, v))


def mixed(w: np.ndarray, m: np.ndarray, v: np.ndarray) -> list[Powers]:
    """Return moments of Gaussians (node, p) that weights (node,) mix."""
    return [(w @ a, w @ (a**2 + b), w @ (a**4 + 6 * a**2 * b + 3 * b**2)) for a, b in zip(m.T, v.T, strict=True)]


def covariate_data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(402)
    x = rng.normal(size=60)
    return x + rng.normal(0, 0.6, 60), 0.5 + x + rng.normal(0, 0.6, 60)


def errors_in_variables() -> Exact:
    """Sixty covariates x ~ N(0, s_x^2), seen with errors as w ~ N(x, s_w^2) and as y ~ N(a + b x, s_y^2).

    a and b are N(0, 2^2), the scales HalfNormal(1); only three moments of w and y tell b and the three scales, so that
    s_w and s_y may be 0.  Covariates and a are integrated in closed form, the other four by Gauss-Legendre's rule: with
    more nodes moments move by .002 sd.  24,000 draws of NUTS from the density without the covariates agree, and so do
    four million weighted draws from a box.
    """
    w, y = covariate_data()
    with pm.Model() as model:
        a, b, s, x = pm.Flat("a"), pm.Flat("b"), pm.Flat("log_scale", shape=3), pm.Flat("x", shape=60)
        misfit = pt.stack([(x**2).sum(), ((w - x) ** 2).sum(), ((y - a - b * x) ** 2).sum()])
        prior = -(a**2 + b**2) / 8 + (s - 0.5 * pt.exp(2 * s)).sum()
        pm.Potential("log_density", prior - 0.5 * (misfit * pt.exp(-2 * s)).sum() - 60 * s.sum())
    return model, errors_in_variables_moments()


@cache
def errors_in_variables_moments() -> Truth:
    (w, y), n = covariate_data(), 60
    nodes, weight = np.polynomial.legendre.leggauss(40)

    def between(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
        return low + (high - low) * (nodes + 1) / 2, weight * (high - low) / 2

    axes = [between(*ends) for ends in ((0.2, 3.2), (0.5, 1.8), (0.0, 1.4), (0.0, 1.6))]
    b, sx, sw, sy = (part.ravel() for part in np.meshgrid(*(nodes for nodes, _ in axes), indexing="ij"))
    mass = np.prod(np.meshgrid(*(of for _, of in axes), indexing="ij"), axis=0).ravel()
    # w ~ N(0, u), and y given w ~ N(a + b k w, v): a given these is Gaussian, with variance va and mean ma.
    u = sx**2 + sw**2
    k = sx**2 / u
    v = sy**2 + b**2 * sx**2 * (1 - k)
    va = 1 / (n / v + 1 / 4)
    total = y.sum() - b * k * w.sum()
    left = y @ y - 2 * b * k * (w @ y) + (b * k) ** 2 * (w @ w)
    log_p = -0.5 * (n * np.log(u) + w @ w / u + n * np.log(v) + left / v - va * (total / v) ** 2 - np.log(va))
    log_p += np.log(mass) - b**2 / 8 - 0.5 * (sx**2 + sw**2 + sy**2)
    heavy = log_p > log_p.max() - 20
    b, sx, sw, sy, k, v, va, total, log_p = (part[heavy] for part in (b, sx, sw, sy, k, v, va, total, log_p))
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    ma = va * total / v
    scales = [tuple(p @ np.log(s) ** power for power in (1, 2, 4)) for s in (sx, sw, sy)]
    # x given the rest but a ~ N(k w + c (y - a - b k w), (1 - c b) (1 - k) sx^2), c the regression on what y adds.
    c = b * sx**2 * (1 - k) / v
    vx = (1 - c * b) * (1 - k) * sx**2 + c**2 * va
    means = ((k * w[i] + c * (y[i] - ma - b * k * w[i]))[:, None] for i in range(n))
    latent = [row for mean in means for row in mixed(p, mean, vx[:, None])]
    of_b = tuple(p @ b**power for power in (1, 2, 4))
    return exact(a=mixed(p, ma[:, None], va[:, None]), b=[of_b], log_scale=scales, x=latent)


DENSITIES = {
    "cross_1": Density(partial(cross, 1.0), partial(cross_draws, 1.0)),
    "cross_3": Density(partial(cross, 3.0), partial(cross_draws, 3.0)),
    "funnel_1": Density(partial(funnel, 1.0), partial(funnel_draws, 1.0)),
    "funnel_1.5": Density(partial(funnel, 1.5), partial(funnel_draws, 1.5)),
    "log_gamma": Density(log_gamma, log_gamma_draws),
    "logit_beta": Density(logit_beta, logit_beta_draws),
    "interpolating": Density(interpolating),
    "errors_in_variables": Density(errors_in_variables),
    "modes_3": Density(partial(modes, [0.5, 0.5], 3.0, [1.0, 1.0], 3), partial(modes_draws, 3.0, [1.0, 1.0], 3)),
    "spike": Density(partial(modes, [0.5, 0.5], 0.0, [1.0, SPIKE], 4), partial(modes_draws, 0.0, [1.0, SPIKE], 4)),
    "steep_edge": Density(steep_edge, edge_draws),
    "student_joint": Density(student, student_draws),
    "ring": Density(ring, draw_ring),
    "rosenbrock36": Density(rosenbrock, draw_rosenbrock),
}

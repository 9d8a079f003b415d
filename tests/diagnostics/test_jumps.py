"""Jumps of a log density are found between draws; what is smooth, or bent, is let pass.

The densities are formulas with exact draws of what a sampler makes of them: of the law that follows from the gradient.
"""

import json

import numpy as np
import pytest
from covering import pairs
from results import gaussian, grid

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.edges import DRAWS, largest_jump
from pmm_mcmc.diagnostics.parameters import evenly_spaced
from pmm_mcmc.diagnostics.reading import FINDINGS
from pmm_mcmc.diagnostics.summary import bias_table

pytestmark = pytest.mark.quick


def normal(x):
    return -0.5 * (x**2).sum(axis=1), -x


def jumps(where, size=1.5):
    return lambda x: (normal(x)[0] + size * where(x), -x)


def searched(draws, density):
    """Return the size of the largest jump, and the gradients spent."""
    spent = []
    size = largest_jump(draws, lambda x: spent.append(len(x)) or density(x))
    return size, sum(spent)


def normal_draws(rng, d):
    return rng.normal(size=(48, d))


PLACES = (lambda x: x[:, x.shape[1] // 2] > 0.3, lambda x: x.sum(axis=1) > 0.3)


@pytest.mark.parametrize(("where", "d", "seed"), pairs(PLACES, (1, 3, 100), range(5)))
def test_a_jump_is_found(where, d, seed):
    size, spent = searched(normal_draws(np.random.default_rng(seed), d), jumps(where))
    assert size == pytest.approx(1.5, abs=1e-2) and spent <= 400


def test_stairs_are_jumps_at_several_values():
    draws = np.random.default_rng(1).uniform(0.0, 10.0, size=(48, 1))
    assert largest_jump(draws, lambda x: (3.0 * np.sin(np.floor(x[:, 0])), np.zeros_like(x))) > 1.0


def funnel(x):
    v, t = x[:, :1], x[:, 1:]
    square, d = (t**2).sum(axis=1, keepdims=True) * np.exp(-v), t.shape[1]
    gradient = np.concatenate([-v / 9.0 + 0.5 * square - 0.5 * d, -t * np.exp(-v)], axis=1)
    return (-(v**2) / 18.0 - 0.5 * square - 0.5 * d * v)[:, 0], gradient


def of_funnel(rng):
    v = 3.0 * rng.normal(size=(48, 1))
    return np.concatenate([v, np.exp(v / 2.0) * rng.normal(size=(48, 9))], axis=1)


def banana(sd):
    def density(x):
        off = (x[:, 1] - 1e-6 * x[:, 0] ** 2) / sd**2
        lp = -0.5 * (x[:, 0] / 100.0) ** 2 - 0.5 * (off * sd) ** 2
        return lp, np.stack([-x[:, 0] / 1e4 + 2e-6 * x[:, 0] * off, -off], axis=1)

    def draws(rng):
        x = 100.0 * rng.normal(size=48)
        return np.stack([x, 1e-6 * x**2 + sd * rng.normal(size=48)], axis=1)

    return draws, density


def two_modes(x):
    away = np.array([5.0, 0.0])
    logs = np.stack([normal(x - away)[0], normal(x + away)[0]])
    weight = np.exp(logs[0] - np.logaddexp(*logs))[:, None]
    return np.logaddexp(*logs), -x + away * (2.0 * weight - 1.0)


def smooth_step(x):
    lp = -0.5 * x[:, 0] ** 2 + 1.5 / (1.0 + np.exp(-(x[:, 0] - 0.3) / 0.02))
    return lp, -x + 1.5 / 0.02 / 4.0 / np.cosh((x - 0.3) / 0.04) ** 2


# name: exact draws, log density and gradient
SMOOTH = {
    "normal": (lambda rng: rng.normal(size=(48, 20)), normal),
    "Laplace, kinked": (
        lambda rng: rng.laplace(size=(48, 5)),
        lambda x: (-np.abs(x).sum(axis=1), -np.sign(x)),
    ),
    "Cauchy": (
        lambda rng: rng.standard_cauchy(size=(48, 5)),
        lambda x: (-np.log1p(x**2).sum(axis=1), -2.0 * x / (1.0 + x**2)),
    ),
    "funnel": (of_funnel, funnel),
    "banana": banana(0.005),
    "very thin banana": banana(1e-6),
    "two modes": (lambda rng: rng.normal(size=(48, 2)) + 5.0 * np.sign(rng.normal(size=(48, 1))) * [1, 0], two_modes),
    "steep smooth step": (lambda rng: rng.normal(size=(48, 1)), smooth_step),
    "log gamma": (lambda rng: np.log(rng.gamma(0.5, size=(48, 3))), lambda x: (
        (0.5 * x - np.exp(x)).sum(axis=1), 0.5 - np.exp(x)
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_and_kinked_densities_pass(name):
    draws, density = SMOOTH[name]
    for seed in range(20):
        size, spent = searched(draws(np.random.default_rng(seed)), density)
        assert size == 0.0 and spent <= 400


@pytest.mark.parametrize(("name", "place"), [("funnel", 0.5), ("two modes", 5.2), ("Cauchy", 0.5)])
def test_a_jump_of_a_density_that_is_no_normal_one(name, place):
    draws, density = SMOOTH[name]
    for seed in range(10):
        x = draws(np.random.default_rng(seed))
        size = largest_jump(x, lambda x: (density(x)[0] + 1.0 * (x[:, 0] > place), density(x)[1]))
        assert size == pytest.approx(1.0, abs=0.05)


def test_a_jump_where_the_posterior_is_not_does_not_count():
    """On the way between two modes, where nothing is ever drawn."""
    draws, density = SMOOTH["two modes"]
    x = draws(np.random.default_rng(1))
    assert largest_jump(x, lambda x: (density(x)[0] + 1.0 * (x[:, 0] > 0.0), density(x)[1])) == 0.0


def test_few_draws_and_places_without_a_density_are_left_out():
    draws = normal_draws(np.random.default_rng(1), 3)
    assert largest_jump(draws[:2], normal) == 0.0
    assert largest_jump(draws, lambda x: (np.where(x[:, 0] > 0.0, normal(x)[0], -np.inf), -x)) == 0.0


def test_no_estimate_is_corrected_where_the_density_jumps():
    x = grid(3)
    dt = gaussian(x)
    assert pmm.verdict(dt).trusted and bias_table(dt)["bias"].notna().all()
    dt["posterior"].attrs[FINDINGS] = json.dumps({"jump": 1.5})
    (reason,) = pmm.verdict(dt).reasons
    assert reason.code == "unmeasured" and bias_table(dt)["bias"].isna().all()


def test_draws_are_evenly_spaced_over_all_chains():
    for chains, draws in ((1, 1000), (4, 1000), (100, 7), (4, 5)):
        which, rows = evenly_spaced(chains, draws, DRAWS)
        assert which[-1] < chains and rows[-1] < draws and len(which) > 0.4 * min(chains, 48)
        assert len(which) * len(rows) >= min(33, chains * draws)

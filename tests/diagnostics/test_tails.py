"""The index of tails: known ones, and what a verdict says of them."""

import numpy as np
import pytest
from results import gaussian, grid

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.convergence import tail_index

DRAWS = (4, 1000, 20)


@pytest.mark.parametrize("name", ["normal", "exponential", "uniform", "bernoulli"])
def test_light_tails_are_light(name):
    rng = np.random.default_rng(1)
    values = {
        "normal": rng.normal(size=DRAWS),
        "exponential": -rng.exponential(size=DRAWS),
        "uniform": rng.uniform(size=DRAWS),
        "bernoulli": (rng.random(DRAWS) < 0.3).astype(float),
    }[name]
    assert (tail_index(values) < 0.4).all()


@pytest.mark.parametrize("index", [0.4, 0.8, 1.5])
def test_the_index_of_a_pareto_tail_is_known(index):
    """Either tail; the standard error of one is (1 + k) / sqrt(189)."""
    values = np.random.default_rng(2).random(DRAWS) ** -index
    for sign in (1.0, -1.0):
        assert tail_index(sign * values) == pytest.approx(index, abs=4.5 * (1.0 + index) / np.sqrt(189))


def test_few_draws_have_no_index():
    assert np.isnan(tail_index(np.random.default_rng(3).normal(size=(4, 10, 2)))).all()


def test_unknown_means_and_sds_are_said():
    x = grid(3)
    ordered = np.argsort(np.argsort(x[..., 1].ravel())) + 0.5
    quantiles = (ordered / len(ordered)).reshape(x.shape[:2])
    results = {}
    for index in (0.3, 0.75, 1.5):
        dt = gaussian(x)
        heavy = dt["posterior"]["a"].copy(data=(1.0 - quantiles) ** -index)
        dt["posterior"] = dt["posterior"].to_dataset().assign(ratio=heavy)
        results[index] = pmm.verdict(dt)
    assert "The sd of" not in results[0.3].sentence
    assert "tails" not in {reason.code for reason in results[0.75].reasons}
    (reason,) = (reason for reason in results[1.5].reasons if reason.code == "tails")
    assert reason.parameter == "ratio" and "ratio may have no mean" in reason.words and reason.state == "undecided"
    assert "The sd of ratio is hardly known: the tail is heavy." in results[0.75].sentence


def test_wide_draws_among_narrow_ones_have_a_mean():
    """As of a component that is empty at times, and then as wide as its prior."""
    rng = np.random.default_rng(4)
    dt = gaussian(grid(3))
    wide = np.where(rng.random((4, 600)) < 0.05, 60.0, 1.0) * rng.normal(size=(4, 600))
    assert tail_index(wide[..., None])[0] > 1.0
    dt["posterior"] = dt["posterior"].to_dataset().assign(mu=dt["posterior"]["a"].copy(data=wide))
    assert "tails" not in {reason.code for reason in pmm.verdict(dt).reasons}

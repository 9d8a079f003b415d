"""``r_hat``, ``ess_bulk`` and ``mcse`` of many parameters at once are ArviZ's, to rounding."""

import arviz as az
import numpy as np
import pytest
from results import gaussian, grid

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.convergence import convergence, tail_index

pytestmark = pytest.mark.quick


def series(kind, chains, draws, rng):
    noise = rng.normal(size=(chains, draws))
    if kind == "slow":
        for i in range(1, draws):
            noise[:, i] += 0.97 * noise[:, i - 1]
    elif kind == "alternating":
        for i in range(1, draws):
            noise[:, i] -= 0.8 * noise[:, i - 1]
    elif kind == "apart":
        noise += np.arange(chains)[:, None]
    elif kind == "wider":
        noise *= 1.0 + np.arange(chains)[:, None]
    elif kind == "heavy":
        noise = rng.standard_cauchy(size=(chains, draws))
    elif kind == "discrete":
        noise = np.floor(3.0 * noise)
    elif kind == "flag":
        noise = (noise > 0.3).astype(float)
    return noise


KINDS = ["white", "slow", "alternating", "apart", "wider", "heavy", "discrete", "flag"]


@pytest.mark.parametrize(("chains", "draws"), [(4, 500), (4, 501), (2, 7), (1, 200), (3, 4), (3, 5), (3, 6), (8, 50)])
def test_of_each_parameter_it_is_that_of_arviz(chains, draws):
    rng = np.random.default_rng(1)
    values = np.stack([series(kind, chains, draws, rng) for kind in KINDS for _ in range(3)], axis=-1)
    found = convergence(values)
    with np.errstate(all="ignore"):
        for i in range(values.shape[2]):
            x = values[..., i]
            if np.ptp(x) == 0.0:
                continue
            if chains > 1:
                np.testing.assert_allclose(found.r_hat[i], az.rhat(x), rtol=1e-9)
            np.testing.assert_allclose(found.ess_bulk[i], az.ess(x, method="bulk"), rtol=1e-7, err_msg=KINDS[i // 3])
            np.testing.assert_allclose(found.mcse[i], az.mcse(x, method="mean"), rtol=1e-7)


def test_what_has_none():
    x = np.random.default_rng(1).normal(size=(4, 100, 3))
    x[..., 1], x[2, 5, 2] = 3.0, np.inf
    found = convergence(x)
    assert np.isnan(found.r_hat[1:]).all() and np.isfinite(found.r_hat[0])
    assert found.ess_bulk[1] == 400.0 and np.isnan(found.ess_bulk[2]) and found.mcse[1] == 0.0
    assert np.isnan(convergence(x[:, :3]).r_hat).all() and np.isnan(convergence(x[:1]).r_hat).all()


def test_blocks_do_not_show():
    x = np.random.default_rng(1).normal(size=(4, 1000, 70))  # more than two blocks
    whole, alone = convergence(x), convergence(x[..., 65:66])
    for many, one in zip(whole, alone, strict=True):
        assert many[65] == one[0]


# -- tails -------------------------------------------------------------------------------------------------------------


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

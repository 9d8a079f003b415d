"""Posteriors with an edge: Stein's identity fails of the posterior itself, and nothing is corrected by it."""

import numpy as np
import pytest
from results import gaussian, tree
from scipy import stats

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.summary import bias_table


def within(draws, inside):
    """Exact draws of a normal law, those of them that are inside; and the gradient that the density has there."""
    x = np.random.default_rng(1).normal(size=(40_000, draws))
    return x[inside(x)][:4000].reshape(4, 1000, draws)


@pytest.mark.parametrize(
    "inside", [lambda x: x[:, 0] > 0.0, lambda x: np.abs(x[:, 0]) < 0.8, lambda x: np.abs(x[:, 0]) > 1.0]
)
def test_exact_draws_of_a_density_with_an_edge_are_not_corrected(inside):
    x = within(2, inside)
    dt = gaussian(x)
    table, found = bias_table(dt), pmm.verdict(dt)
    assert table[["bias", "bias_se", "bias_of_sd"]].isna().all(axis=None)
    np.testing.assert_array_equal(table["mean_cv"], table["mean"])
    arviz = pmm.summary(dt, kind="all", round_to="none")["mcse_mean"]
    np.testing.assert_allclose(table["mcse_cv"], np.maximum(table["mcse"], arviz), rtol=1e-9)
    assert found.state == "not trusted" and [reason.code for reason in found.reasons] == ["identity", "unmeasured"]
    assert "edge" in found.sentence and "halve" not in found.sentence.lower()
    np.testing.assert_array_equal(pmm.summary(dt)["mean_cv"], table["mean"])


def test_a_gradient_that_never_changes_is_not_divided_by():
    """Beyond the largest of thirty uniform data the log density of their bound is a straight line."""
    x = stats.expon.rvs(size=(4, 1000, 1), random_state=1) / 30.0
    table = bias_table(tree({"b": 3.0 * np.exp(x[..., 0])}, x, np.full_like(x, -30.0)))
    assert table["bias"].isna().all() and (table["mean_cv"] == table["mean"]).all()


def test_an_edge_across_many_coordinates_is_known_by_what_the_model_refused():
    """No coordinate's own identity sees it."""
    x = np.random.default_rng(1).normal(size=(9000, 20))
    x = x[x.sum(axis=1) > 0.0][:4000].reshape(4, 1000, 20)
    failures = np.zeros((4, 1000), dtype=int)
    steps = np.ones((4, 1000), dtype=int)
    for count, corrected in ((2, True), (40, False)):
        failures[1, :count] = 1
        dt = gaussian(x, unstable=failures, model_failures=failures, steps_per_draw=steps)
        assert bias_table(dt)["bias"].notna().any() == corrected
    found = pmm.verdict(dt)
    assert found.state == "not trusted" and "bound parameters by their priors" in found.sentence

"""Summary and verdict of a result of which only moments were kept, against those of the draws."""

import arviz as az
import numpy as np

import pmm_mcmc as pmm
from pmm_mcmc.model.result_tree import ResultTree
from pmm_mcmc.run.moments import Moments


def of_vector(x, adjusted=True, **more):
    """Moments of draws of a vector, as a result."""
    shape = x.shape[:2]
    stats = {
        "lp": -0.5 * (x**2).sum(axis=-1),
        "n_grad_total": np.full(shape, 100),
    }
    moments = Moments({"x": x})
    moments.add({"posterior": {"x": x}, "sample_stats": stats | more})
    return moments.tree(ResultTree.of_vector(x.shape[-1]), {"adjusted": int(adjusted), "steps_per_draw": 2})


def normal(chains=80, n=200, seed=12, **more):
    x = np.random.default_rng(seed).normal(size=(chains, n, 3))
    return x, of_vector(x, **more)


def test_summary_of_good_draws():
    x, tree = normal()
    table = pmm.summary(tree)
    kept = az.summary(az.from_dict({"posterior": {"x": x}}), round_to="none")
    assert list(table.index) == list(kept.index) and list(table) == ["mean", "sd", "mcse_mean", "r_hat"]
    np.testing.assert_allclose(table["mean"], kept["mean"].astype(float), rtol=1e-10)
    np.testing.assert_allclose(table["sd"], kept["sd"].astype(float), rtol=1e-10)
    means, variances = x.mean(axis=1), x.var(axis=1, ddof=1)
    np.testing.assert_allclose(table["mcse_mean"], means.std(axis=0, ddof=1) / np.sqrt(80), rtol=1e-10)
    identity = az.rhat(az.from_dict({"posterior": {"x": x}}), method="identity")["x"]
    np.testing.assert_allclose(table["r_hat"], identity, rtol=1e-10)
    np.testing.assert_allclose(table["r_hat"] ** 2, 199 / 200 + means.var(axis=0, ddof=1) / variances.mean(axis=0))
    assert pmm.verdict(tree).trusted and table.attrs["verdict"] == pmm.verdict(tree).sentence
    assert pmm.verdict(tree).sentence.startswith("Trusted: all means are within 2 % of a posterior sd")


def test_divergences_are_reported():
    diverging = np.zeros((80, 200), np.int64)
    diverging[3, :60] = 1
    (reason,) = pmm.verdict(normal(diverging=diverging)[1]).reasons
    assert reason.code == "divergences" and reason.words.startswith("60 of 16000 draws followed a divergence")


def test_chains_that_disagree_are_reported():
    x = np.random.default_rng(13).normal(size=(40, 200, 3))
    x[:20, :, 1] += 1.0
    verdict = pmm.verdict(of_vector(x))
    assert verdict.state == "not trusted"
    assert any(str(reason).startswith("r_hat of x[1] is 1.1") for reason in verdict.reasons)
    assert all("draw more" in reason.remedy for reason in verdict.reasons)


def test_precise_means_are_needed():
    """Known to 0.08 standard deviations only: chains of few draws that yet agree."""
    x = np.random.default_rng(15).normal(size=(2, 90, 1))
    x += np.array([0.08, -0.08])[:, None, None] - x.mean(axis=1, keepdims=True)
    verdict = pmm.verdict(of_vector(x))
    assert verdict.state == "undecided"
    assert [str(reason) for reason in verdict.reasons] == [
        "the mean of x[0] is known to 0.08 posterior sd only, limit 0.05"
    ]


def test_one_chain_has_no_standard_errors_and_says_so():
    x, tree = normal(chains=1)
    table = pmm.summary(tree)
    assert table[["mcse_mean", "r_hat"]].isna().all(axis=None)
    np.testing.assert_allclose(table["mean"], x.mean(axis=(0, 1)), rtol=1e-10)
    assert pmm.verdict(tree).state == "undecided" and "one chain" in pmm.verdict(tree).sentence


def test_constants_are_no_obstacle():
    x, _ = normal(chains=4, n=4000)
    x[..., 1] = 0.1
    tree = of_vector(x)
    table = pmm.summary(tree)
    assert table["sd"].iloc[1] == 0.0 and np.isnan(table["r_hat"].iloc[1]) and table["mean"].iloc[1] == 0.1
    assert pmm.verdict(tree).trusted


def test_a_draw_of_each_of_many_chains_is_summarised():
    _, tree = normal(chains=100, n=1)
    assert np.isfinite(pmm.summary(tree)[["mean", "sd", "mcse_mean"]]).all(axis=None)


def test_unadjusted_draws_are_undecided_since_no_bias_is_measured():
    shape = (80, 200)
    unstable, failures = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    verdict = pmm.verdict(normal(adjusted=False)[1])
    (reason,) = verdict.reasons
    assert verdict.state == "undecided" and reason.code == "unmeasured"
    assert reason.remedy.startswith("take adjusted draws: ")
    unstable[3, :60] = 1
    reason, _ = pmm.verdict(normal(adjusted=False, unstable=unstable, model_failures=failures)[1]).reasons
    assert reason.words.startswith("60 of 32000 transitions were unstable, limit ")
    assert reason.remedy.startswith("take adjusted draws: ")
    found = normal(adjusted=False, unstable=unstable, model_failures=unstable)[1]
    assert "model.debug()" in pmm.verdict(found).sentence

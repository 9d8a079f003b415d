"""Corrections, summary and verdict of a result of which only moments were kept, against those of the draws.

What is exact is checked to rounding.  Statistical tests have fixed seeds: z-scores of the mean of independent
replications with |z| < 4.5 (some 1e-5 each), and counts within the central binomial interval that a correct program
leaves once in 1e5.
"""

import arviz as az
import numpy as np
import pytest
from moment_trees import corrections, low_rank, of_vector, whitened
from results import z_of_mean
from scipy import stats

import pmm_mcmc as pmm
from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.moments_summary import moments_summary
from pmm_mcmc.diagnostics.stein import corrected_expectations
from pmm_mcmc.diagnostics.stein_moments import weighted
from pmm_mcmc.warmup.stein_identity import stein_identity

Z, RARE = 4.5, 1e-5


def within(count, n, probability):
    return stats.binom.ppf(RARE / 2, n, probability) <= count <= stats.binom.isf(RARE / 2, n, probability)


# -- corrections -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["diagonal", "dense", "low rank"])
@pytest.mark.parametrize("chains", [2, 5, 100])
def test_corrected_moments_of_any_gaussian_are_exact(form, chains):
    """From draws that are shifted and too wide, with a centre that is off: where the scale is that of the posterior."""
    rng = np.random.default_rng(chains)
    d = 6
    if form == "dense":
        coordinates, covariance = whitened(d, rng)
    else:
        sd = np.geomspace(1e-3, 1e3, d)
        coordinates = Coordinates(rng.normal(size=d) * sd, sd)
        if form == "low rank":
            coordinates = low_rank(d, rng)
        root = coordinates.place(np.eye(d)) - coordinates.centre
        covariance = root.T @ root
    sd = np.sqrt(covariance.diagonal())
    mean = coordinates.centre + 0.4 * sd
    x = coordinates.place(0.3 + 1.3 * rng.normal(size=(chains, 400 // chains + 20, d))) + 0.4 * sd
    g = -np.linalg.solve(covariance, (x - mean).reshape(-1, d).T).T.reshape(x.shape)
    tree = of_vector(x, g, coordinates, (3, 9))
    table = moments_summary(tree)
    np.testing.assert_allclose((table["mean_corrected"] - mean) / sd, 0.0, atol=1e-7)
    np.testing.assert_allclose((table["bias"] - (x.mean(axis=(0, 1)) - mean)) / sd, 0.0, atol=1e-7)
    found = corrections(tree)
    assert found.first.used.all() and found.second.used.all()
    np.testing.assert_allclose(found.second.value * found.scale**2 / covariance.diagonal(), 1.0, atol=1e-7)
    np.testing.assert_allclose(found.sd * found.scale, x.std(axis=(0, 1)), rtol=1e-10)
    verdict = pmm.verdict(tree)
    if chains == 100:
        assert any("the sd of x" in str(reason) for reason in verdict.reasons)
        assert any("E[x dF/dx]" in str(reason) for reason in verdict.reasons)


def test_corrections_agree_with_those_of_kept_draws():
    """By cross-fitting between the same chains, but for the scale, which is that of the warm-up here."""
    rng = np.random.default_rng(8)
    x = 0.05 + 1.05 * rng.logistic(size=(16, 500, 3))
    g = -np.tanh(x / 2)
    kept = corrected_expectations(x, x, g, np.arange(3))
    table = moments_summary(of_vector(x, g, Coordinates(np.full(3, 0.1), np.full(3, 1.7)), (100,)))
    assert kept.used.all()
    np.testing.assert_allclose(table["mean"], kept.raw, rtol=1e-10)
    np.testing.assert_allclose(table["mcse_mean"], kept.raw_se, rtol=1e-10)
    np.testing.assert_allclose(table["mean_corrected"], kept.value, atol=0.2 * kept.se.max())
    np.testing.assert_allclose(table["mcse_corrected"], kept.se, rtol=0.1)
    np.testing.assert_allclose(table["bias_se"], kept.bias_se, rtol=0.1)


@pytest.mark.parametrize(("chains", "n"), [(5, 30), (65, 8)])
def test_each_piece_is_corrected_with_the_slopes_of_the_others(chains, n):
    """By least squares on the draws: 5 pieces of a chain, or 32 of two and one of the chain that is left."""
    rng = np.random.default_rng(18)
    x = 0.2 + rng.logistic(size=(chains, n, 2))
    at = corrections(of_vector(x, -np.tanh(x / 2), Coordinates(np.full(2, 0.1), np.full(2, 1.7)), (3,)))
    assert at.pieces == (5 if chains == 5 else 33) and at.first.used.all() and at.second.used.all()
    size = -(-chains // at.pieces)
    piece = np.repeat(np.arange(chains) // size, n)
    weights = np.bincount(piece) / len(piece)
    for j in range(2):
        u = (x[..., j].ravel() - 0.1) / 1.7
        s1 = 1.7 * np.tanh(x[..., j].ravel() / 2)
        terms = np.stack([s1, u * s1 - 1.0, u * u * s1 - 2.0 * u], axis=1)
        for found, f in ((at.first, u), (at.second, (u - at.first.value[j]) ** 2)):
            corrected = {}
            for order in (1, 2, 3):
                design = np.column_stack([np.ones(len(u)), terms[:, :order]])
                fits = [np.linalg.lstsq(design[piece != i], f[piece != i], rcond=None)[0] for i in range(at.pieces)]
                corrected[order] = np.array(
                    [(f - terms[:, :order] @ fit[1:])[piece == i].mean() for i, fit in enumerate(fits)]
                )
            best = min(corrected, key=lambda order: np.abs(corrected[order] - found.by_chain[:, j]).max())
            np.testing.assert_allclose(found.by_chain[:, j], corrected[best], rtol=1e-7, atol=1e-8)
            np.testing.assert_allclose(found.value[j], weights @ corrected[best], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("chains", [16, 50])
def test_identity_agrees_with_that_of_kept_draws(chains):
    rng = np.random.default_rng(9)
    coordinates, covariance = whitened(3, rng)
    x = coordinates.place(1.1 * rng.normal(size=(chains, 80, 3)))
    g = -(x - coordinates.centre) @ np.linalg.inv(covariance)
    found = corrections(of_vector(x, g, coordinates, (7, 30))).identity
    for one, other in zip(found, stein_identity(x, g), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8)


@pytest.mark.statistical
@pytest.mark.parametrize("chains", [16, 70])
def test_errors_follow_a_t_distribution(chains):
    """Of raw and corrected means, biases and the identity, from draws without bias."""
    rng = np.random.default_rng(10)
    n, ratios = 30, []
    coordinates = Coordinates(np.full(2, 0.2), np.full(2, 1.7))
    for _ in range(120):
        x = rng.logistic(size=(chains, n, 2))
        tree = of_vector(x, -np.tanh(x / 2), coordinates)
        table = moments_summary(tree)
        at = corrections(tree)
        assert at.first.used.all()
        ratios.append(
            [table["mean"] / table["mcse_mean"], table["mean_corrected"] / table["mcse_corrected"],
             table["bias"] / table["bias_se"], at.identity.z]
        )  # fmt: skip
    ratios = np.array(ratios)
    assert at.pieces == (16 if chains == 16 else 35)
    degrees = np.array([chains - 1] + [at.pieces - 1] * 3)
    for ratio, dof in zip(ratios.transpose(1, 0, 2), degrees, strict=True):
        assert within(np.sum(np.abs(ratio) < stats.t.isf(0.025, dof)), ratio.size, 0.95)
    assert np.all(z_of_mean(ratios[:, :3]) < Z)


@pytest.mark.statistical
def test_unequal_pieces_have_honest_errors():
    """Of 65 chains the last piece is half as large as the others; here it is one of two."""
    rng = np.random.default_rng(11)
    n = np.array([8.0, 8.0, 2.0, 8.0])
    values = rng.normal(size=(4000, 4)) / np.sqrt(n)
    mean, error = weighted(n, values.T)
    np.testing.assert_allclose(mean, values @ n / n.sum(), rtol=1e-12)
    # The sum of squares that it makes of pieces of these sizes, exactly.
    w = n / n.sum()
    expected = 4 / 3 * (w**2 * (1 / n - 1 / n.sum())).sum()
    assert z_of_mean(error**2 - expected) < Z and abs(expected * n.sum() - 1.0) < 0.1


# -- summary and verdict -----------------------------------------------------------------------------------------------


def normal(chains=80, n=200, seed=12, **more):
    x = np.random.default_rng(seed).normal(size=(chains, n, 3))
    return x, of_vector(x, -x, Coordinates(np.zeros(3), np.ones(3)), **more)


def test_summary_of_good_draws():
    x, tree = normal()
    table = moments_summary(tree)
    kept = az.summary(az.from_dict({"posterior": {"x": x}}), round_to="none")
    assert list(table.index) == list(kept.index)
    np.testing.assert_allclose(table["mean"], kept["mean"].astype(float), rtol=1e-10)
    np.testing.assert_allclose(table["sd"], kept["sd"].astype(float), rtol=1e-10)
    means, variances = x.mean(axis=1), x.var(axis=1, ddof=1)
    np.testing.assert_allclose(table["mcse_mean"], means.std(axis=0, ddof=1) / np.sqrt(80), rtol=1e-10)
    identity = az.rhat(az.from_dict({"posterior": {"x": x}}), method="identity")["x"]
    np.testing.assert_allclose(table["r_hat"], identity, rtol=1e-10)
    np.testing.assert_allclose(table["r_hat"] ** 2, 199 / 200 + means.var(axis=0, ddof=1) / variances.mean(axis=0))
    np.testing.assert_allclose(table["mean_corrected"], 0.0, atol=1e-9)
    verdict = pmm.verdict(tree)
    assert verdict.trusted and pmm.verdict(tree).sentence == verdict.sentence


def test_unstable_transitions_are_reported():
    shape = (80, 200)
    unstable, failures = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    unstable[3, :60] = 1
    verdict = pmm.verdict(normal(unstable=unstable, model_failures=failures)[1])
    (reason,) = verdict.reasons
    assert reason.words == "60 of 32000 transitions were unstable, limit 24"
    assert reason.remedy.startswith("take adjusted draws: ")
    assert "model.debug()" in pmm.verdict(normal(unstable=unstable, model_failures=unstable)[1]).sentence
    # Rejections of a method that is exact say nothing.
    assert pmm.verdict(normal(unstable=unstable, acceptance_rate=np.ones(shape))[1]).trusted


def test_chains_that_disagree_are_reported():
    rng = np.random.default_rng(13)
    x = rng.normal(size=(40, 200, 3))
    x[:20, :, 1] += 1.0
    verdict = pmm.verdict(of_vector(x, -x, Coordinates(np.zeros(3), np.ones(3))))
    assert any(str(reason).startswith("r_hat of x[1] is 1.1") for reason in verdict.reasons)
    few = rng.normal(size=(4, 60, 2)) + 0.13 * np.array([-1.0, 1.0, 1.0, -1.0])[:, None, None]
    found = pmm.verdict(of_vector(few, -few, Coordinates(np.zeros(2), np.ones(2))))
    assert any("draw more" in reason.remedy for reason in found.reasons)


def test_a_shift_that_all_chains_share_is_reported():
    x = 0.2 + np.random.default_rng(14).normal(size=(80, 200, 2))
    verdict = pmm.verdict(of_vector(x, -x, Coordinates(np.zeros(2), np.ones(2))))
    assert len(verdict.reasons) == 1 and verdict.reasons[0].words.startswith("the mean of x[")
    assert "is off by 2" in verdict.reasons[0].words


def test_precise_means_are_needed():
    """Known to 0.08 standard deviations only: chains of few draws that yet agree."""
    x = np.random.default_rng(15).normal(size=(2, 90, 1))
    x += np.array([0.08, -0.08])[:, None, None] - x.mean(axis=1, keepdims=True)
    verdict = pmm.verdict(of_vector(x, -x, Coordinates(np.zeros(1), np.ones(1))))
    assert verdict.state == "undecided"
    assert [str(reason) for reason in verdict.reasons] == [
        "the mean of x[0] is known to 0.08 posterior sd only, limit 0.05"
    ]


def test_one_chain_has_no_standard_errors_and_says_so():
    x, tree = normal(chains=1)
    table = moments_summary(tree)
    assert table[["mcse_mean", "r_hat", "bias", "bias_se", "mcse_corrected"]].isna().all(axis=None)
    np.testing.assert_allclose(table["mean"], x.mean(axis=(0, 1)), rtol=1e-10)
    assert pmm.verdict(tree).state == "undecided" and "one chain" in pmm.verdict(tree).sentence


def test_a_coordinate_that_does_not_move_is_no_obstacle():
    x = np.random.default_rng(16).normal(size=(20, 200, 3))
    g = -x
    x[..., 1] = 0.1
    tree = of_vector(x, g, Coordinates(np.zeros(3), np.ones(3)), (7,))
    table = moments_summary(tree)
    np.testing.assert_allclose(table["mean_corrected"].iloc[[0, 2]], 0.0, atol=1e-9)
    assert "E[x dF/dx] of x[1] is 0.000, limit 0.925. Long steps widen" in pmm.verdict(tree).sentence
    assert table["sd"].iloc[1] == 0.0 and np.isnan(table["r_hat"].iloc[1]) and np.isnan(table["bias"].iloc[1])
    np.testing.assert_allclose(table["mean_corrected"].iloc[1], 0.1, rtol=1e-12)


def test_what_gradients_do_not_explain_stays_raw():
    rng = np.random.default_rng(17)
    # Two modes: the weights of which no gradient knows.
    x = rng.normal(size=(40, 100, 2)) + 5.0 * rng.choice([-1.0, 1.0], size=(40, 100, 2))
    tree = of_vector(x, 5.0 * np.tanh(5.0 * x) - x, Coordinates(np.zeros(2), np.full(2, 5.0)))
    table = moments_summary(tree)
    assert table["bias"].isna().all() and table["bias_se"].isna().all()
    np.testing.assert_allclose(table["mean_corrected"], table["mean"], rtol=1e-9)
    np.testing.assert_allclose(table["mcse_corrected"], table["mcse_mean"], rtol=1e-9)
    verdict = pmm.verdict(tree)
    assert verdict.sentence.startswith("Undecided: the bias could not be measured for any of the unconstrained")


def test_steps_much_longer_than_tuned_are_trusted_only_where_moments_rule_a_bias_out():
    # Little noise is left in the corrected moments of a Gaussian; two modes leave all of it.
    rng = np.random.default_rng(23)
    gaussian = rng.normal(size=(20, 400, 3))
    x = rng.normal(size=(40, 400, 1)) + 5.0 * rng.choice([-1.0, 1.0], size=(40, 400, 1))
    for expected, alarmed in ((0.2, False), (0.5, True), (np.inf, True)):
        more = {"expected_bias": np.full((40, 400), expected)}
        verdict = pmm.verdict(
            of_vector(x, 5.0 * np.tanh(5.0 * x) - x, Coordinates(np.zeros(1), np.full(1, 5.0)), **more)
        )
        assert any("steps of this size" in str(reason) for reason in verdict.reasons) == alarmed
        more = {"expected_bias": np.full((20, 400), expected)}
        verdict = pmm.verdict(of_vector(gaussian, -gaussian, Coordinates(np.zeros(3), np.ones(3)), **more))
        assert verdict.trusted == (not np.isinf(expected))
    # 4 unstable transitions among 8000 draws leave these able to acquit a long step; 5 do not.
    for count, alarmed in ((4, False), (5, True)):
        unstable = np.zeros((20, 400), np.int64)
        unstable[3, :count] = 1
        more = {"expected_bias": np.full((20, 400), 0.5), "unstable": unstable}
        verdict = pmm.verdict(of_vector(gaussian, -gaussian, Coordinates(np.zeros(3), np.ones(3)), **more))
        assert any("steps of this size" in str(reason) for reason in verdict.reasons) == alarmed

"""``pmm.bias``, ``pmm.verdict`` and ``pmm.summary``: on results made by hand, and on runs of small models.

Draws made by hand are permuted grids of quantiles, whose chains agree but for what a test changes: each reason of the
verdict is set off alone.  Comparisons of runs with exact values are z-scores with 15 degrees of freedom, |z| < 6.5:
a false alarm in 1e5 for each of some 60.
"""

import logging
import warnings

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import special, stats

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.bias import _read, stein_identity
from pmm_mcmc.gaussian import variance_error
from pmm_mcmc.methods import Settings

Z = 6.5
METHODS = [pmm.PoissonULMC, pmm.PoissonOLMC, pmm.RLMC, pmm.ULMC, pmm.OLMC, pmm.MALA]


def grid(d, chains=4, draws=600, seed=1):
    """Standard normal draws: each half of each chain has mean 0 and variance 1 exactly, in random order."""
    quantiles = stats.norm.ppf((np.arange(draws // 2) + 0.5) / (draws // 2))
    rng = np.random.default_rng(seed)
    halves = rng.permuted(np.broadcast_to(quantiles / quantiles.std(), (chains, 2, d, draws // 2)), axis=-1)
    return np.moveaxis(halves, 2, 3).reshape(chains, draws, d)


def tree(posterior, position, gradient, *, coords=None, dims=None, **statistics):
    groups = {
        "posterior": posterior,
        "sample_stats": {"gradient": gradient, "unconstrained": position, **statistics},
    }
    return az.from_dict(groups, coords=coords, dims=dims)


def gaussian(position, **statistics):
    """Draws of a standard normal posterior, right or wrong: ``a``, ``b[0]``, ``b[1]``, ..."""
    posterior = {"a": position[..., 0], "b": position[..., 1:]}
    return tree(posterior, position, -position, **statistics)


def only_reason(dt):
    found = pmm.verdict(dt)
    assert not found.trusted and len(found.reasons) == 1, found
    assert found.sentence == f"Do not trust this run: {found.reasons[0]}."
    return found.reasons[0]


# -- verdict -----------------------------------------------------------------------------------------------------------


def test_a_good_run_is_trusted():
    found = pmm.verdict(gaussian(grid(3)))
    assert found.trusted and found.reasons == ()
    assert found.sentence.startswith("Bias below ") and found.sentence.endswith(" in all 3 parameters.")
    assert pmm.verdict(tree({"a": grid(1)[..., 0]}, grid(1), -grid(1))).sentence.endswith(" in the only parameter.")


@pytest.mark.statistical
def test_chance_among_many_parameters_does_not_refuse_a_run():
    """Short runs of exact draws, at fixed seeds: each of three checks lets one in a hundred through."""
    suspicious = 0
    for seed in range(4):
        x = np.random.default_rng(seed).normal(size=(4, 250, 100))
        excess, z, _ = stein_identity(x, -x)
        suspicious += np.sum((np.abs(excess) > 0.1) & (np.abs(z) > 2.0))
        assert pmm.verdict(tree({"x": x}, x, -x)).trusted
    assert suspicious


@pytest.mark.parametrize(("count", "refused"), [(0, False), (2, False), (3, True), (40, True)])
def test_unstable_transitions(count, refused):
    """Some 0.5 are harmless in 4800: 3 are not chance (level 0.05)."""
    unstable = np.zeros((4, 600), dtype=int)
    unstable[2, :count] = 1
    statistics = {"unstable": unstable, "steps_per_draw": np.full((4, 600), 2)}
    dt = gaussian(grid(3), **statistics)
    if refused:
        assert only_reason(dt) == f"{count} of 4800 transitions were unstable (halve step_size, or reparametrise)"
    else:
        assert pmm.verdict(dt).trusted
    assert pmm.verdict(gaussian(grid(3), acceptance_rate=np.ones((4, 600)), **statistics)).trusted, "MALA rejects them"


def test_chains_in_different_modes_disagree():
    x = grid(3)
    mode = np.zeros((4, 1, 3))
    mode[3, 0, 2] = 6.0
    dt = tree({"a": x[..., 0], "b": (x + mode)[..., 1:]}, x + mode, -x)
    assert only_reason(dt).startswith("chains disagree: r_hat of b[1] is ")


def test_a_run_that_pymc_warns_of_is_not_trusted():
    x = grid(3)
    x[..., 1] += np.array([0.16, -0.16, 0.16, -0.16])[:, None]
    assert 1.01 < float(az.rhat(x[..., 1])) < 1.02
    assert only_reason(gaussian(x)).startswith("chains disagree: r_hat of b[0] is 1.01")


def test_chains_that_are_not_long_enough():
    x = grid(3)
    assert pmm.verdict(gaussian(x)).trusted
    # Neighbours in groups of ten, in random order: a tenth as many independent draws.
    groups = np.sort(x[..., 1].reshape(8, 300), axis=1).reshape(8, 30, 10)
    x[..., 1] = np.random.default_rng(2).permutation(groups, axis=1).reshape(4, 600)
    reason = only_reason(gaussian(x))
    assert reason.startswith("the mean of b[0] is known to 0.0") and reason.endswith(" posterior sd only (draw more)")


def test_chains_that_differ_by_more_than_chance():
    x = grid(3, draws=4000)
    x[..., 1] += np.array([0.12, -0.12, 0.12, -0.12])[:, None]
    assert only_reason(gaussian(x)) == "the mean of b[0] is known to 0.07 posterior sd only (draw more)"


def test_a_coordinate_that_is_too_wide():
    x = grid(4, draws=4000)
    x[..., 2] *= np.sqrt(1.19)
    assert only_reason(gaussian(x)).startswith("E[x dF/dx] is 1.19 where it must be 1, for b[1] (halve step_size")
    x[..., 2] *= np.sqrt(0.81 / 1.19)
    assert "is 0.81 where it must be 1, for b[1]" in only_reason(gaussian(x))
    x[..., 2] *= np.sqrt(1.08 / 0.81)
    assert pmm.verdict(gaussian(x)).trusted


def test_a_coordinate_too_wide_is_named_by_the_parameter_that_follows_it():
    x = grid(3)
    x[..., 2] *= np.sqrt(1.19)
    posterior = {"noise": grid(1, seed=2)[..., 0], "constant": np.ones((4, 600)), "scale": np.exp(x[..., 2] / 4)}
    assert "where it must be 1, for scale " in only_reason(tree(posterior, x, -x))


def test_many_coordinates_that_are_all_a_little_too_wide():
    """None of them by more than four standard errors, but all together."""
    halves = np.sqrt(1.15) * grid(20).reshape(4, 2, 300, 20)
    # Far draws after near ones: the variance is poorly known from the pieces of one chain.
    x = np.take_along_axis(halves, np.abs(halves).argsort(axis=2), axis=2).reshape(4, 600, 20)
    assert np.abs(stein_identity(x, -x)[1]).max() < 4.0
    assert only_reason(gaussian(x)).startswith("E[x dF/dx] is 1.15 where it must be 1, for ")
    assert pmm.verdict(gaussian(x[..., :2] / 1.15**0.5 * 1.1**0.5)).trusted


def test_a_mean_that_is_off():
    shift = np.array([0.0, 1.0, 0.0])
    reason = only_reason(gaussian(grid(3) - 0.15 * shift))
    assert reason == "the bias of b[0] is 15 % of a posterior sd (halve step_size)"
    found = pmm.verdict(gaussian(grid(3) + 0.09 * shift))
    assert found.trusted and float(found.sentence.split()[2]) >= 9


def test_noise_is_not_called_bias():
    x = np.random.default_rng(4).normal(size=(1, 100, 3))
    x = (x - x.mean(axis=1)) / x.std(axis=1)
    assert pmm.verdict(gaussian(x + 0.12)).trusted, "one standard error and a little"
    assert "the bias of " in only_reason(gaussian(x + 0.7))


def test_one_chain_says_what_was_not_checked():
    found = pmm.verdict(gaussian(grid(3, chains=1)))
    assert found.trusted
    assert found.sentence.endswith("in all 3 parameters. One chain: agreement between chains was not checked.")


def test_not_measurable_is_said():
    x, noise = grid(2), grid(1, seed=2)[..., 0]
    table = pmm.bias(tree({"x": x, "noise": noise}, x, -x))
    assert table.loc["noise", ["bias", "bias_se", "bias_sd_units", "bias_of_sd", "bias_of_sd_se"]].isna().all()
    assert table.loc["noise", "mean_corrected"] == table.loc["noise", "mean"]
    assert table.loc["noise", "sd_corrected"] == table.loc["noise", "sd"]
    found = pmm.verdict(tree({"x": x, "noise": noise}, x, -x))
    assert found.trusted and "in 2 of 3 parameters, not measurable in the others" in found.sentence
    found = pmm.verdict(tree({"noise": noise}, x, -x))
    assert found.trusted and "not measurable for any parameter: compare with half the step size" in found.sentence


def test_constants_and_values_that_are_not_finite():
    x = grid(2)
    odd = np.exp(x[..., 0])
    odd[3, 5] = np.inf
    posterior = {"x": x, "constant": np.full((4, 600), 0.1)}
    dt = tree(posterior, x, -x)
    assert pmm.verdict(dt).sentence.endswith("in all 2 parameters.")
    row = pmm.bias(dt).loc["constant"]
    assert row["mean"] == row["mean_corrected"] == 0.1
    assert row["sd"] == row["sd_corrected"] == row["bias"] == row["bias_se"] == 0.0
    assert pmm.summary(dt).loc["constant", "mean_corrected"] == 0.1
    dt = tree({**posterior, "odd": odd}, x, -x)
    assert pmm.bias(dt).loc["odd", ["bias", "sd", "mcse_corrected"]].isna().all()
    assert "in 2 of 3 parameters" in pmm.verdict(dt).sentence
    # What is wrong elsewhere is still found.
    x[0] += 1.0
    assert not pmm.verdict(tree({"odd": odd, "x": x}, x, -x)).trusted


def test_chains_that_never_moved():
    still = np.broadcast_to(grid(2)[:, :1], (4, 100, 2)).copy()
    assert "chains disagree: r_hat of " in pmm.verdict(tree({"x": still}, still, -still)).sentence
    assert not pmm.verdict(tree({"x": still[:1]}, still[:1], -still[:1])).trusted


# -- table and summary -------------------------------------------------------------------------------------------------


def test_bias_on_a_gaussian_is_what_was_put_in():
    x = grid(3, draws=2000) * [1.0, 1.2, 1.0] + [0.0, 0.0, 0.3]
    table = pmm.bias(gaussian(x))
    assert list(table.columns) == [
        "mean", "mcse", "mean_corrected", "mcse_corrected", "bias", "bias_se", "bias_sd_units",
        "sd", "sd_corrected", "mcse_sd_corrected", "bias_of_sd", "bias_of_sd_se",
    ]  # fmt: skip
    expected = {
        "mean": [0.0, 0.0, 0.3], "mean_corrected": 0.0, "bias": [0.0, 0.0, 0.3], "bias_sd_units": [0.0, 0.0, 0.3],
        "sd": [1.0, 1.2, 1.0], "sd_corrected": 1.0, "bias_of_sd": [0.0, 0.2, 0.0],
    }  # fmt: skip
    for column, values in expected.items():
        np.testing.assert_allclose(table[column], np.broadcast_to(values, 3), atol=1e-5, err_msg=column)
    assert np.all(table["mcse_corrected"] < 1e-5) and np.all(table["mcse"] > 1e-3)


def test_error_of_a_standard_deviation():
    """By the delta method, 1 / sqrt(2 N) of independent draws where the correction leaves no noise."""
    x = np.random.default_rng(3).normal(size=(1, 4000, 50))
    table = pmm.bias(tree({"x": x}, x, -x))
    ratio = np.sqrt(np.mean(table["bias_of_sd_se"] ** 2) * 2 * 4000)
    assert abs(ratio - 1.0) < Z / np.sqrt(2 * 50 * 15)
    assert np.all(np.abs(table["bias_of_sd"]) < Z * table["bias_of_sd_se"])


def test_labels_are_those_of_arviz():
    x = grid(7)
    posterior = {"z": x[..., :6].reshape(4, 600, 2, 3), "a": x[..., 6], "total": x.sum(axis=-1)}
    dims = {"z": ["side", "year"]}
    dt = tree(posterior, x, -x, coords={"side": ["left", "right"], "year": [2010, 2020, 2030]}, dims=dims)
    table = pmm.bias(dt)
    assert list(table.index) == list(az.summary(dt).index)
    assert "z[right, 2030]" in table.index
    np.testing.assert_allclose(table["mean"], [0.0] * 8, atol=1e-12)
    np.testing.assert_allclose(table.loc["total", "sd_corrected"], np.sqrt(7), rtol=1e-5)
    for var_names in ("z", ["total", "a"]):
        assert list(pmm.bias(dt, var_names).index) == list(az.summary(dt, var_names=var_names).index)
        assert list(pmm.summary(dt, var_names).index) == list(az.summary(dt, var_names=var_names).index)
    shown = pmm.summary(dt, ["~z"])
    assert list(shown.index) == ["a", "total"]
    np.testing.assert_array_equal(shown["mcse_corrected"], table["mcse_corrected"].loc[["a", "total"]])


def test_coordinates_are_recognised_by_all_their_values():
    x = grid(2)
    x[0, 0] = 1.0, 0.5
    dt = tree({"clipped": np.maximum(x[..., 0], 0.0), "x": x, "half": x[..., 0] / 2}, x, -x)
    assert _read(dt).own.tolist() == [-1, 0, 1, -1]


def test_summary_is_that_of_arviz_and_more():
    x = grid(3) + np.array([0.0, 0.0, 0.05])
    spent = np.arange(1, 601) * np.array([2, 3, 2, 3])[:, None]
    dt = gaussian(x, n_grad_total=spent)
    table, plain, biases = pmm.summary(dt), az.summary(dt, round_to="none"), pmm.bias(dt)
    more = ["mean_corrected", "mcse_corrected", "bias", "bias_se"]
    assert list(table.columns) == [*plain.columns, *more, "ess_per_grad"]
    np.testing.assert_array_equal(table[plain.columns], plain)
    np.testing.assert_array_equal(table[more], biases[more])
    np.testing.assert_allclose(table["ess_per_grad"], plain["ess_bulk"] / 6000)
    assert table.attrs["verdict"] == pmm.verdict(dt).sentence
    assert "eti89_lb" not in pmm.summary(dt, kind="diagnostics") and "ess_bulk" not in pmm.summary(dt, kind="stats")


@pytest.mark.parametrize(("shift", "level"), [(0.0, logging.INFO), (0.3, logging.WARNING)])
def test_the_verdict_is_logged_once(caplog, shift, level):
    dt = gaussian(grid(3) + np.array([shift, 0.0, 0.0]))
    with caplog.at_level(logging.DEBUG):
        table = pmm.summary(dt, "b")
    logged = [(record.name, record.levelno, record.getMessage()) for record in caplog.records]
    assert logged == [("pmm_mcmc", level, table.attrs["verdict"])]
    assert ("the bias of a is 30 %" in logged[0][2]) == (level == logging.WARNING), "it is on all parameters"
    caplog.clear()
    pmm.bias(dt), pmm.verdict(dt)
    assert not caplog.records


@pytest.mark.parametrize("function", [pmm.bias, pmm.verdict, pmm.summary])
def test_what_cannot_be_judged_is_refused(function):
    x = grid(2)
    for statistics in ({}, {"sample_stats": {"lp": x[..., 0]}}, {"sample_stats": {"gradient": x}}):
        with pytest.raises(ValueError, match=r"holds no gradients .*keep_gradients=True"):
            function(az.from_dict({"posterior": {"x": x}, **statistics}))
    for chains, draws in ((1, 19), (8, 3)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ArviZ wonders at more chains than draws
            dt = gaussian(np.random.default_rng(1).normal(size=(chains, draws, 3)))
        with pytest.raises(ValueError, match=f"{chains} x {draws} draws are too few"):
            function(dt)


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.pymc
@pytest.mark.statistical
def test_bias_of_a_step_far_too_long_is_the_exact_one(sample):
    kernel = Settings.checked("PoissonULMC", dynamics="underdamped").kernel
    exact = np.sqrt(1.0 + variance_error(kernel, 1.5, 1.0, 32)) - 1.0
    assert exact > 0.05
    with pm.Model():
        pm.Normal("x", 5.0, 10.0, shape=4)
        step = pmm.PoissonULMC(step_size=1.5, K=32, friction=1.0, scaling=np.full(4, 10.0), steps_per_draw=4)
        dt = sample(step, draws=8000, chains=4)
    table = pmm.bias(dt)
    z = (table["bias_of_sd"] / 10.0 - exact) / (table["bias_of_sd_se"] / 10.0)
    assert np.all(np.abs(z) < Z), z
    assert np.all(table["bias_of_sd"] > Z * table["bias_of_sd_se"])
    assert np.all(np.abs(table["bias"]) < Z * table["bias_se"])  # the mean has none
    np.testing.assert_allclose(table["sd_corrected"], 10.0, rtol=1e-5)
    np.testing.assert_allclose(table["mean_corrected"], 5.0, atol=1e-4)
    found = pmm.verdict(dt)
    assert not found.trusted and "E[x dF/dx] is 1.1" in found.sentence


@pytest.mark.pymc
@pytest.mark.statistical
@pytest.mark.parametrize("method", [pmm.PoissonULMC, pmm.MALA])
def test_a_tuned_run_is_trusted_on_transformed_parameters_too(sample, method):
    """HalfNormal, Dirichlet and deterministics, with known means and standard deviations."""
    with pm.Model():
        pm.HalfNormal("s", 3.0)
        p = pm.Dirichlet("p", np.array([4.0, 5.0, 6.0]))
        x = pm.Normal("x")
        pm.Deterministic("e", pm.math.exp(x / 2))
        pm.Deterministic("odds", p[0] / p[1])
        dt = sample(method(), draws=3000, tune=1000, chains=4)
    table = pmm.summary(dt)
    assert table.attrs["verdict"].startswith("Bias below "), table.attrs["verdict"]
    known = {
        "s": stats.halfnorm(scale=3.0),
        **{f"p[{i}]": stats.beta(a, 15 - a) for i, a in enumerate((4, 5, 6))},
        "x": stats.norm(),
        "e": stats.lognorm(0.5),
        "odds": stats.betaprime(4, 5),
    }
    assert set(table.index) == set(known)
    biases = pmm.bias(dt)
    for name, law in known.items():
        row = biases.loc[name]
        assert abs(row["mean_corrected"] - law.mean()) < Z * row["mcse_corrected"] + 1e-6, name
        assert abs(row["sd_corrected"] - law.std()) < Z * row["mcse_sd_corrected"] + 1e-6, name
    gain = (biases["mcse_corrected"] / biases["mcse"]) ** 2
    assert np.all(gain[["p[0]", "p[1]", "p[2]", "x", "e"]] < 0.1), gain
    gain = (biases["mcse_sd_corrected"] / biases["bias_of_sd_se"]) ** 2
    assert np.all(gain[["p[0]", "p[1]", "p[2]", "x", "e"]] < 0.5), gain


@pytest.mark.pymc
@pytest.mark.parametrize(
    "method",
    [*METHODS, lambda: pmm.PoissonULMC(scheme="recycled")],
)
def test_gradients_kept_are_those_of_the_draws(sample, gradient_model, method):
    model, logp, dlogp = gradient_model
    with model:
        dt = sample(method(), draws=30, tune=60, chains=2)
    kept = dt["sample_stats"]
    assert kept["gradient"].shape == kept["unconstrained"].shape == (2, 30, 3)
    for chain, draw in ((0, 0), (1, 17), (1, 29)):
        q = kept["unconstrained"].values[chain, draw]
        point = {"x": q[0], "p_simplex__": q[1:]}
        np.testing.assert_allclose(kept["gradient"].values[chain, draw], dlogp(point), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(kept["lp"].values[chain, draw], logp(point), rtol=1e-9)
        assert dt["posterior"]["x"].values[chain, draw] == q[0]
        np.testing.assert_allclose(dt["posterior"]["p"].values[chain, draw], special.softmax([*q[1:], -q[1:].sum()]))


@pytest.fixture(scope="module")
def gradient_model():
    with pm.Model() as model:
        pm.Logistic("x")
        pm.Dirichlet("p", np.array([4.0, 5.0, 6.0]))
    return model, model.compile_logp(), model.compile_dlogp()


@pytest.mark.pymc
def test_where_no_gradients_are_kept_the_summary_says_so(sample):
    with pm.Model() as model:
        x = pm.Normal("x")
        n = pm.Poisson("n", 3.0)
    with model:
        beside = sample([pmm.PoissonULMC([x]), pm.Metropolis([n])], draws=20, tune=20)
    with pm.Model():
        pm.Normal("x")
        off = sample(pmm.PoissonULMC(keep_gradients=False), draws=20, tune=20)
    for dt in (beside, off):
        assert "gradient" not in dt["sample_stats"] and "unconstrained" not in dt["sample_stats"]
        with pytest.raises(ValueError, match=r"moves all variables of the model, with keep_gradients=True"):
            pmm.summary(dt)

"""``pmm.workbench.compare``: budgets, known biases, references that are none, failures as rows, early errors.

Statistical tests are z-scores at a fixed seed with a false-alarm rate of 1e-5 each.
"""

import math
import textwrap

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.statement import NOT_TRUSTED, TRUSTED, Verdict
from pmm_mcmc.workbench import compare, comparison, entrants, targets
from pmm_mcmc.workbench.entrants import Run, run, step_name
from pmm_mcmc.workbench.measures import MEASURES, beyond_noise, kernel_stein_discrepancy, measured, score_of, sliced_w2
from pmm_mcmc.workbench.reference import Truth, model_labels, truth_of_draws, truth_of_target, unconstrained_draws
from pmm_mcmc.workbench.targets import Reference, Target

CHAINS, BUDGET, SEEDS = 4, 16_000, 2
FINE, BAD = Verdict(TRUSTED, "Trusted: fine.", ()), Verdict(NOT_TRUSTED, "Not trusted: 3 transitions diverged.", ())


def build():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    return model


def right(x):
    return x[..., 0] > 0


GAUSSIAN = Target(
    "gaussian", "Two Gaussians", "Nothing is hard.", build,
    lambda: Reference([0, 0], [1, 1], [2, 2], exact=True, source="A formula."),
    lambda rng, n: rng.normal(size=(n, 2)), right, (0.5, 0.5),
)  # fmt: skip


def independent(model, seed, n_grad):
    """A sampler of somebody else, which tells no gradients."""
    return az.from_dict({"posterior": {"x": np.random.default_rng(seed).normal(size=(4, n_grad // 60, 2))}})


def shifted(model, seed, n_grad):
    return az.from_dict({"posterior": {"x": independent(model, seed, n_grad)["posterior"]["x"].values + 0.3}})


def apart(model, seed, n_grad):
    far = np.array([0.0, 0.0, 5.0, 5.0])[:, None, None]
    return az.from_dict({"posterior": {"x": independent(model, seed, n_grad)["posterior"]["x"].values + far}})


@pytest.fixture(scope="module")
def report():
    model = build()
    with model:
        nuts = pm.NUTS(target_accept=0.9)
    samplers = {
        "recycled": pmm.PoissonULMC(scheme="recycled"),
        "biased": pmm.ULMC(step_size=1.0, friction=2.0, scaling=[1.0, 1.0]),
        "ours": "default",
        "tempered": pmm.temper,
        "NUTS": nuts,
        "nutpie, if it were there": "nutpie",
        "independent": independent,
        "apart": apart,
        "draws": independent(None, 7, BUDGET),
    }
    target = Target("gaussian", "Two Gaussians", "", lambda: model, *list(vars(GAUSSIAN).values())[4:8])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pymc.sampling.mcmc.NUTPIE_INSTALLED", False)
        return compare(target, samplers, n_grad=BUDGET, seeds=SEEDS, chains=CHAINS, progressbar=False)


@pytest.mark.pymc
def test_every_sampler_spends_the_budget_or_says_that_its_warm_up_took_more(report):
    assert list(report.table) == list(report.columns) and set(MEASURES) < set(report.columns)
    spent = report.table["gradients"]
    within = spent[["recycled", "biased", "ours"]]
    assert np.all(within > 0.97 * BUDGET) and np.all(within <= BUDGET)
    for name in ("NUTS", "tempered"):
        draws = spent[name] - report.table.loc[name, "warm_up"]
        beyond = report.table.loc[name, "warm_up"] > BUDGET / 2
        assert beyond and 0.9 * BUDGET / 2 < draws <= BUDGET / 2
    assert spent[["independent", "apart", "draws"]].isna().all()
    assert (repr(report).count("+\N{PLUS-MINUS SIGN}") == 0) and "+ " in repr(report)


@pytest.mark.pymc
@pytest.mark.parametrize("name", ["default", "recycled"])
def test_draws_and_gradients_are_those_of_sample(name):
    step = None if name == "default" else pmm.PoissonULMC(scheme="recycled")
    found = run(step or name, build(), 20_000, CHAINS, 1)
    draws = found.position.shape[1]
    direct = pmm.sample(
        draws + 10, step=None if name == "default" else pmm.PoissonULMC(scheme="recycled"), chains=CHAINS,
        model=build(), random_seed=1, progressbar=False, compute_convergence_checks=False,
    )  # fmt: skip
    np.testing.assert_array_equal(found.position, direct["sample_stats"]["unconstrained"].values[:, :draws])
    assert found.gradients[-1] == direct["sample_stats"]["n_grad_total"].isel(draw=draws - 1).sum()


@pytest.mark.pymc
def test_a_step_of_nuts_starts_anew_for_each_seed_and_its_gradients_are_leapfrog_steps():
    model = build()
    with model:
        step = pm.NUTS()
    found = [run(step, model, 8_000, 2, seed) for seed in (3, 3)]
    again = run("nuts", build(), 8_000, 2, 3)
    draws = again.position.shape[1]
    direct = pm.sample(
        draws + 10, tune=1000, chains=2, cores=1, random_seed=3, model=build(), nuts_sampler="pymc", quiet=True,
        discard_tuned_samples=False, progressbar=False, compute_convergence_checks=False,
    )  # fmt: skip
    warm_up = float(direct["warmup_sample_stats"]["n_steps"].sum())
    steps = direct["sample_stats"]["n_steps"].values[:, :draws].sum()
    np.testing.assert_array_equal(again.position, direct["posterior"]["x"].values[:, :draws])
    assert again.warm_up == warm_up and again.gradients[-1] == warm_up + steps
    np.testing.assert_array_equal(found[0].position, found[1].position)


@pytest.mark.pymc
@pytest.mark.statistical
def test_a_known_bias_is_found_and_the_exact_ones_are_not(report):
    # The exact law: a variance of 1.308 for ULMC with step 1 and friction 2.
    line = report.table.loc["biased"]
    assert line["sd_beyond"] and abs(line["sd_off"] - (math.sqrt(1.308) - 1)) < 5 * line["sd_error_se"] + 0.02
    assert line["trusted"] == 0
    for name in ("recycled", "ours", "tempered", "NUTS", "independent", "draws"):
        line = report.table.loc[name]
        # 4 standard errors of a weight of .5, with the few effective draws of the shortest run.
        assert not line["sd_beyond"] and not line["mean_beyond"] and line["mode_error"] < 0.06
        assert line["r_hat"] < 1.03


@pytest.mark.pymc
def test_no_cost_where_chains_disagree_and_no_row_is_dropped(report):
    assert len(report.table) == 9
    line = report.table.loc["apart"]
    lines = repr(report).splitlines()
    assert line["r_hat"] > 1.5 and line["not_trusted"] == SEEDS and pd.isna(line["per_mean"])
    assert line["mode_error"] == pytest.approx(0.25, abs=0.02)
    assert "No cost and no star where chains disagree (r_hat above 1.1): apart." in repr(report)
    assert pd.isna(line["mean_beyond"]) and not any(text.startswith("apart") and "*" in text for text in lines)
    failed = report.table.loc["nutpie, if it were there"]
    assert pd.isna(failed["trusted"]) and pd.isna(failed["gradients"]) and "nutpie not found" in failed["says"]


@pytest.mark.pymc
def test_all_numbers_have_an_error_over_seeds_but_those_of_one_run(report):
    ours = report.table.loc["ours"]
    assert all(ours[f"{name}_se"] >= 0 for name in MEASURES)
    assert all(pd.isna(report.table.loc["draws", f"{name}_se"]) for name in MEASURES)
    values = [float(each["mean_error"]) for each in report.runs["ours"]]
    assert len(values) == SEEDS and ours["mean_error_se"] == pytest.approx(np.std(values, ddof=1) / np.sqrt(SEEDS))


@pytest.mark.pymc
def test_a_comparison_prints_80_columns(report):
    lines = repr(report).splitlines()
    assert lines[:2] == ["Two Gaussians", "Reference: A formula."] and max(map(len, lines)) <= 80
    assert any(line.startswith("biased") and line.rstrip().count("*") for line in lines)
    assert any(line.startswith("nutpie, if it were \N{HORIZONTAL ELLIPSIS}") for line in lines)
    assert " ".join(lines).count("nutpie, if it were there: seed 1: nutpie not found") == 1
    html = report._repr_html_()
    assert html.startswith("<p><b>Two Gaussians</b><br>Reference: A formula.</p><table") and "nutpie not found" in html


@pytest.mark.pymc
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_figure_has_the_numbers_and_is_the_current_one_of_pyplot(report, theme):
    plt.close("all")
    figure = report.figure(theme)
    assert plt.gcf() is figure and figure.get_figwidth() == 7.0 and len(figure.axes) == 4
    errors, _, modes, marginal = figure.axes
    ran = [name for name, runs in report.runs.items() if runs]
    lines = {line.get_label(): line for line in errors.get_lines()}
    assert list(lines) == [name[:19] + "\N{HORIZONTAL ELLIPSIS}" if len(name) > 20 else name for name in ran]
    expected = np.median([each["curve_error"] for each in report.runs["ours"]], axis=0)
    np.testing.assert_array_equal(lines["ours"].get_ydata(), expected)
    assert len(errors.collections) == len(ran) - 3  # three tell no gradients
    weights = [line.get_xdata()[0] for line in modes.get_lines() if line.get_marker() == "o"]
    assert len(weights) == SEEDS * (len(ran) - 1) + 1
    assert weights[0] == float(report.runs["recycled"][0]["mode_weights"][1])
    assert marginal.get_xlabel() == "x[0]" or marginal.get_xlabel() == "x[1]"
    plt.close("all")
    with pytest.raises(ValueError, match="theme='grey': must be 'light' or 'dark'"):
        report.figure("grey")


@pytest.mark.pymc
def test_a_folder_keeps_what_has_run(tmp_path, monkeypatch):
    calls = []

    def counted(sampler, model, budget, chains, seed):
        calls.append((sampler, seed))
        return run(sampler, model, budget, chains, seed)

    monkeypatch.setattr(comparison, "run", counted)
    options = {"n_grad": 6000, "chains": 2, "folder": tmp_path / "kept", "progressbar": False}
    found = compare(GAUSSIAN, {"A": independent}, seeds=2, **options)
    again = compare(GAUSSIAN, {"A": independent, "B": shifted}, seeds=3, **options)
    assert [seed for _, seed in calls] == [1, 2, 3, 1, 2, 3]
    pd.testing.assert_frame_equal(compare(GAUSSIAN, {"A": independent}, seeds=2, **options).table, found.table)
    assert len(calls) == 6 and again.table.loc["B", "mean_off"] == pytest.approx(0.3, abs=0.05)
    with pm.Model() as other:
        pm.Normal("x", 1.0, 1.0, shape=2)
    compare(other, {"A": independent}, seeds=1, reference=independent(None, 1, 60_000), **options)
    assert len(calls) == 7


@pytest.mark.pymc
def test_conclusions_are_what_seeds_carry():
    dt = independent(None, 99, 60_000)
    far = compare(build(), {"A": independent, "B": shifted}, n_grad=30_000, reference=dt, mode=right, progressbar=False)
    assert "Least error of the means: A; behind it: B." in far.conclusions
    assert any(line.startswith("Least error of the modes' weights: A; ") for line in far.conclusions)
    alike = {"A": independent, "B": lambda model, seed, n_grad: independent(model, seed + 50, n_grad)}
    near = compare(build(), alike, n_grad=30_000, reference=dt, progressbar=False)
    assert len(near.conclusions) == 2 and not any("behind" in line for line in near.conclusions)
    assert repr(near).endswith(textwrap.fill(near.conclusions[-1], 79, subsequent_indent="  "))
    one = compare(build(), {"A": independent, "B": shifted}, n_grad=30_000, reference=dt, seeds=1, progressbar=False)
    assert one.conclusions == [] and one.table["mean_error_se"].isna().all()


@pytest.mark.pymc
def test_progress_is_a_line_a_run(capsys):
    compare(GAUSSIAN, {"A": independent}, n_grad=6000, seeds=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(", after")[0].rstrip() for line in lines[:2]] == [f"Two Gaussians: A, seed {k}" for k in (1, 2)]
    assert len(lines) == 3 and lines[2].startswith("Two Gaussians: 1 samplers in")


@pytest.mark.pymc
def test_modes_that_a_run_does_not_visit_are_weighed_by_its_search():
    target = targets.get("mixture_unequal")

    def in_both(model, seed, n_grad):
        return az.from_dict({"posterior": {"x": target.draw(np.random.default_rng(seed), 1200).reshape(2, 600, 20)}})

    def in_one(model, seed, n_grad):
        x = np.random.default_rng(seed).normal(size=(2, 600, 20))
        x[..., 0] -= 1.2
        return az.from_dict({"posterior": {"x": x}})

    found = compare(target, [in_one, in_both], seeds=2, progressbar=False)
    assert found.table.loc["in_one", "elsewhere"] == pytest.approx(0.3, abs=0.15)
    assert found.table.loc["in_both", "elsewhere"] == 0.0 and "unvisited" in repr(found)


@pytest.mark.pymc
def test_long_runs_end_where_their_draws_would_not_fit(monkeypatch):
    monkeypatch.setattr(entrants, "_MOST_NUMBERS", 20_000)
    assert run("default", build(), BUDGET, CHAINS, 1).gradients[-1] < 0.9 * BUDGET


# -- the reference -----------------------------------------------------------------------------------------------------


def long_runs(monkeypatch, **judged):
    """Let reference runs be made up, with these verdicts."""
    made = []

    def made_up(sampler, model, budget, chains, seed):
        made.append((sampler, budget, seed))
        if judged[sampler] is None:
            raise FloatingPointError("it exploded")
        return Run(np.random.default_rng(1).normal(size=(2, 100, 2)), 0.0, np.arange(100.0), judged[sampler])

    monkeypatch.setattr(comparison, "run", made_up)
    truth, source = truth_for(None, reference=None)
    return truth, source, made


def truth_for(model, reference):
    return comparison._truth_for(None, model, reference, 1000, 2, 7, comparison._Cache(None, np.zeros(1)))


def test_a_run_of_nuts_that_is_trusted_is_the_reference(monkeypatch):
    truth, source, made = long_runs(monkeypatch, nuts=FINE)
    assert made == [("nuts", 5000, 1_000_007)]
    assert source == "A run of NUTS of 5 times the budget: 100 draws of each of 2 chains."
    assert truth.mean.shape == truth.error_of_sd.shape == (2,) and truth.draws.shape == (200, 2)


@pytest.mark.parametrize(("nuts", "words"), [(BAD, BAD.sentence), (None, "it exploded.")])
def test_a_run_of_nuts_that_warns_of_itself_is_none_and_ours_is(monkeypatch, nuts, words):
    truth, source, made = long_runs(monkeypatch, nuts=nuts, default=FINE)
    assert [sampler for sampler, *_ in made] == ["nuts", "default"] and truth is not None
    assert source.startswith("A run of pmm.sample of 5 times the budget") and source.endswith(f"NUTS is none: {words}")


@pytest.mark.pymc
def test_where_no_run_is_trusted_there_is_no_reference_and_no_errors(monkeypatch):
    truth, source, _ = long_runs(monkeypatch, nuts=BAD, default=BAD)
    assert truth is None and source.startswith("None, so that no errors are known. NUTS is none: Not trusted")
    assert "pmm.sample is none: Not trusted" in source
    monkeypatch.setattr(comparison, "_truth_for", lambda *_: (None, source))
    monkeypatch.setattr(comparison, "run", run)
    found = compare(build(), {"A": pmm.ULMC()}, n_grad=4000, seeds=1, chains=2, progressbar=False)
    assert found.table[["mean_error", "sd_error"]].isna().all(axis=None) and found.table.loc["A", "gradients"] > 0
    assert "Reference: None, so that no errors" in repr(found) and len(found.figure().axes) == 2
    plt.close("all")


@pytest.mark.pymc
def test_own_draws_are_the_reference_unless_their_verdict_refuses_them():
    dt = az.from_dict({"posterior": {"x": np.random.default_rng(9).normal(size=(2, 400, 2))}})
    truth, source = truth_for(build(), dt)
    assert source == "The draws that were given: 400 draws of each of 2 chains."
    np.testing.assert_allclose(truth.mean, dt["posterior"]["x"].mean(("chain", "draw")))
    separate = az.from_dict({"posterior": {"x": dt["posterior"]["x"].values + np.array([[[0.0]], [[3.0]]])}})
    truth, source = truth_for(build(), separate)
    assert truth is None and source.startswith("None, for the draws that were given are not to be trusted. Not trusted")
    with pm.Model() as other:
        pm.Normal("y")
    with pytest.raises(ValueError, match="the result has no draws of y"):
        truth_for(other, dt)
    with pytest.raises(TypeError, match=r"reference=\[1.0\]: must be 'nuts' for a long run"):
        truth_for(build(), [1.0])


def test_reference_draws_must_be_enough_finite_and_varied():
    good = np.random.default_rng(10).normal(size=(2, 60, 1))
    assert truth_of_draws(good).sd == pytest.approx(good.std())
    for bad, match in ((good[:, :20], "too few"), (np.where(good > 2, np.nan, good), "finite"), (0 * good, "the same")):
        with pytest.raises(ValueError, match=match):
            truth_of_draws(bad)


@pytest.mark.pymc
def test_draws_on_the_users_scale_become_unconstrained():
    with pm.Model(coords={"side": ["east", "west"]}) as model:
        top = pm.HalfNormal("top")
        pm.Uniform("u", 0.0, top, dims="side")
        pm.Dirichlet("w", np.ones(3))
        pm.Normal("free")
    dt = pmm.sample(
        step=pmm.ULMC(step_size=0.2), draws=20, tune=0, chains=2, model=model, random_seed=1, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
    expected = dt["sample_stats"]["unconstrained"].values
    found = unconstrained_draws(type(dt).from_dict({"posterior": dt["posterior"].dataset}), model)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(unconstrained_draws(dt, model), expected)
    labels = ["log top", "interval u[east]", "interval u[west]", "simplex w[0]", "simplex w[1]", "free"]
    assert model_labels(model) == labels


# -- what needs no run -------------------------------------------------------------------------------------------------


def measures_of(x, truth=None, warm_up=1000.0, **options):
    gradients = warm_up + 8.0 * np.arange(1, x.shape[1] + 1)
    return measured(Run(x, warm_up, gradients, FINE), truth, options.get("mode"), options.get("weights"), np.negative)


def test_errors_and_costs_are_the_textbook_ones():
    rng = np.random.default_rng(11)
    x = rng.normal(3.0, 2.0, size=(4, 1000, 1))
    nothing = np.zeros(1)
    exact = rng.normal(3.0, 2.0, size=(50_000, 1))
    found = measures_of(x, Truth(nothing + 3, nothing + 2, nothing, nothing, exact))
    assert found["mean_error"] == pytest.approx(abs(x.mean() - 3) / 2)
    assert found["sd_error"] == pytest.approx(abs(np.sqrt(np.mean((x - 3) ** 2)) / 2 - 1))
    off = np.quantile(x, [0.05, 0.95]) - np.quantile(exact, [0.05, 0.95])
    assert found["tail_error"] == pytest.approx(np.abs(off).max() / 2)
    assert found["gradients"] == 9000 and found["per_mean"] == pytest.approx(8000 / az.ess(x[..., 0], method="bulk"))
    square = az.ess((x[..., 0] - 3) ** 2, method="bulk")
    assert found["per_square"] == pytest.approx(8000 / square)
    assert found["r_hat"] == pytest.approx(float(az.rhat(x[..., 0]))) == found["curve_r_hat"][-1]
    assert found["curve_gradients"][-1] == 9000 and found["curve_error"][-1] == pytest.approx(found["mean_error"])
    half = measures_of(x, mode=lambda x: x[..., 0] > 3, weights=np.array([0.9, 0.1]))
    assert half["mode_weights"].sum() == 1 and half["mode_error"] == pytest.approx(0.9 - (x <= 3).mean())
    assert np.isnan(half["mean_error"]) and np.isnan(half["coverage"])


@pytest.mark.statistical
def test_coverage_and_noise_have_their_levels():
    rng = np.random.default_rng(12)
    truth = Truth(np.zeros(50), np.ones(50), np.zeros(50), np.zeros(50))
    runs = [measures_of(rng.normal(size=(4, 100, 50)), truth) for _ in range(6)]
    # 300 intervals: 95 % of them, within 4.4 standard errors of .0126.
    assert abs(np.mean([each["coverage"] for each in runs]) - 0.95) < 0.056
    beyond = beyond_noise(runs, truth)
    assert not beyond["mean"][0] and not beyond["sd"][0]
    moved = [measures_of(rng.normal(size=(4, 100, 50)) + 0.2 * (np.arange(50) == 7), truth) for _ in range(6)]
    assert beyond_noise(moved, truth)["mean"][:2] == (True, 7)


@pytest.mark.statistical
def test_distances_are_those_of_formulas():
    rng = np.random.default_rng(13)
    x = rng.normal(size=(4000, 2))
    # Of a shift m the sliced distance is |m| over the square root of d.
    assert sliced_w2(x + np.array([0.6, 0.8]), rng.normal(size=(50_000, 2))) == pytest.approx(np.sqrt(0.5), rel=0.15)
    assert sliced_w2(x, rng.normal(size=(50_000, 2))) < 0.06
    one, two = np.array([[0.3]]), np.array([[0.3], [1.0]])
    # k_0(x, x) = |score|^2 + d, and by hand for two points of a standard normal law.
    assert kernel_stein_discrepancy(one, -one) == pytest.approx(np.sqrt(0.09 + 1))
    base = 1.49
    cross = 0.3 / base**0.5 - 0.49 * base**-1.5 * -1 * -1 + base**-1.5 - 3 * 0.49 * base**-2.5
    assert kernel_stein_discrepancy(two, -two) == pytest.approx(np.sqrt((1.09 + 2 + 2 * cross) / 4), rel=1e-6)
    few = x[:256]
    assert kernel_stein_discrepancy(few + 0.5, -(few + 0.5)) > 2 * kernel_stein_discrepancy(few, -few)


@pytest.mark.pymc
def test_scores_are_the_gradients_of_the_unconstrained_density():
    with pm.Model() as model:
        pm.HalfNormal("s")
        pm.Normal("x", 1.0, 2.0, shape=(2, 2))
    points = np.random.default_rng(14).normal(size=(3, 5))
    expected = np.concatenate([1 - np.exp(2 * points[:, :1]), -(points[:, 1:] - 1) / 4], axis=1)
    np.testing.assert_allclose(score_of(model)(points), expected)


@pytest.mark.statistical
@pytest.mark.parametrize("name", [name for name in targets.list() if targets.get(name).draw is not None])
def test_draws_of_a_target_have_its_moments_and_mode_weights(name):
    target = targets.get(name)
    truth = truth_of_target(target)
    n = len(truth.draws)
    error = np.abs(truth.draws.mean(axis=0) - truth.mean) / truth.draws.std(axis=0)
    assert error.max() < 5 / np.sqrt(n)
    if name != "funnel":  # its squares have a standard deviation of 14,000
        assert np.abs(truth.draws.std(axis=0) / truth.sd - 1).max() < 0.03
    if target.mode is not None:
        share = np.bincount(target.mode(truth.draws).astype(int)) / n
        assert np.abs(share - target.mode_weights).max() < 5 * 0.5 / np.sqrt(n)


def test_names_say_what_is_not_a_default():
    assert step_name(pmm.PoissonULMC(K=16, grid="centred")) == "PoissonULMC(K=16, grid='centred')"
    assert step_name(pmm.RLMC(dynamics="overdamped")) == "RLMC(dynamics='overdamped')"
    assert step_name(pmm.ULMC(scaling=[1.0])) == "ULMC(scaling=...)" and step_name(pmm.GHMC()) == "GHMC"


@pytest.mark.parametrize(
    "options, error, match",
    [
        ({"n_grad": 0.5}, ValueError, "n_grad=0.5"),
        ({"n_grad": 70}, ValueError, "n_grad=70: must be an integer of at least 100"),
        ({"chains": 1}, ValueError, "chains=1: must be an integer of at least 2"),
        ({"seeds": 0}, ValueError, "seeds=0: must be an integer of at least 1"),
        ({"samplers": [pm.Model]}, TypeError, "samplers: <class 'pymc.*is none; take 'default'"),
        ({"random_seed": -1}, ValueError, "random_seed=-1: must be"),
        ({"samplers": []}, ValueError, "samplers: is empty"),
        ({"samplers": "nuts"}, TypeError, "must be a list"),
        ({"samplers": ["NUTS"]}, ValueError, "'NUTS' is unknown; the ones with a name are default, nuts, nutpie"),
        ({"samplers": [pmm.ULMC]}, TypeError, "with brackets"),
        ({"samplers": [pmm.ULMC(), pmm.ULMC()]}, ValueError, "ULMC is there twice"),
        ({"reference": "NUTS"}, TypeError, "reference='NUTS'"),
        ({"model_or_target": 3}, TypeError, "model_or_target=3: must be a PyMC model"),
    ],
)
def test_wrong_arguments_are_named_before_anything_runs(options, error, match):
    arguments = {"model_or_target": targets.get("mixture_4sd"), "samplers": [pmm.ULMC()], **options}
    with pytest.raises(error, match=match):
        compare(arguments.pop("model_or_target"), arguments.pop("samplers"), **arguments)


def test_models_and_steps_that_do_not_fit_are_refused():
    with pm.Model() as discrete:
        pm.Poisson("n", 3.0)
    with pytest.raises(ValueError, match="n: discrete variables"):
        compare(discrete, [pmm.ULMC()])
    with build():
        step = pmm.ULMC()
    with pytest.raises(ValueError, match="ULMC was made for another model"):
        compare(GAUSSIAN, [step])

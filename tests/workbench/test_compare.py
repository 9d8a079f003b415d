"""``pmm.workbench.compare``: budgets, known biases, references that are none, failures as rows, early errors.

Statistical tests are z-scores at a fixed seed with a false-alarm rate of 1e-5 each.
"""

import math

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.statement import NOT_TRUSTED, TRUSTED, Verdict
from pmm_mcmc.workbench import compare, targets
from pmm_mcmc.workbench import reference as references
from pmm_mcmc.workbench.comparison import model_labels, name_of, run
from pmm_mcmc.workbench.reference import COLUMNS, Run, Truth, row, truth_for, truth_of_draws, unconstrained_draws
from pmm_mcmc.workbench.targets import Reference, Target

CHAINS, BUDGET = 4, 40_000
FINE, BAD = Verdict(TRUSTED, "Trusted: fine.", ()), Verdict(NOT_TRUSTED, "Not trusted: 3 transitions diverged.", ())


def build():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    return model


GAUSSIAN = Target(
    "gaussian", "Two Gaussians", "Nothing is hard.", build,
    lambda: Reference([0, 0], [1, 1], [2, 2], exact=True, source="A formula."),
)  # fmt: skip


@pytest.fixture(scope="module")
def report():
    samplers = {
        "recycled": pmm.PoissonULMC(scheme="recycled"),
        "biased": pmm.ULMC(step_size=1.0, friction=2.0, scaling=[1.0, 1.0]),
        "ours": "default",
        "NUTS": "nuts",
        "nutpie, if it were there": "nutpie",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pymc.sampling.mcmc.NUTPIE_INSTALLED", False)
        return compare(GAUSSIAN, samplers, n_grad=BUDGET, chains=CHAINS, random_seed=1)


@pytest.mark.pymc
def test_every_sampler_spends_the_budget_and_no_gradient_more(report):
    assert list(report.table) == list(COLUMNS) == list(report.columns)
    spent = report.table["gradients"].dropna()
    assert list(spent.index) == ["recycled", "biased", "ours", "NUTS"]
    assert np.all(spent > 0.97 * BUDGET) and np.all(spent <= BUDGET)


@pytest.mark.pymc
@pytest.mark.parametrize("given", ["default", "recycled"])
def test_draws_and_gradients_are_those_of_sample(given):
    step = given if given == "default" else pmm.PoissonULMC(scheme="recycled")
    found = run(step, build(), 20_000, CHAINS, 1)
    draws = found.position.shape[1]
    direct = pmm.sample(
        draws + 10, step=None if given == "default" else pmm.PoissonULMC(scheme="recycled"), chains=CHAINS,
        model=build(), random_seed=1, progressbar=False, compute_convergence_checks=False,
    )  # fmt: skip
    np.testing.assert_array_equal(found.position, direct["sample_stats"]["unconstrained"].values[:, :draws])
    assert found.n_grad == direct["sample_stats"]["n_grad_total"].isel(draw=draws - 1).sum()


@pytest.mark.pymc
def test_gradients_of_nuts_are_the_leapfrog_steps_of_its_trees():
    found = run("nuts", build(), 20_000, 2, 3)
    draws = found.position.shape[1]
    direct = pm.sample(
        draws + 10, tune=1000, chains=2, cores=1, random_seed=3, model=build(), nuts_sampler="pymc", quiet=True,
        discard_tuned_samples=False, progressbar=False, compute_convergence_checks=False,
    )  # fmt: skip
    np.testing.assert_array_equal(found.position, direct["posterior"]["x"].values[:, :draws])
    steps = direct["sample_stats"]["n_steps"].values[:, :draws].sum() + direct["warmup_sample_stats"]["n_steps"].sum()
    assert found.n_grad == steps and found.verdict.trusted


@pytest.mark.pymc
@pytest.mark.statistical
def test_a_known_bias_is_found_and_the_exact_ones_are_not(report):
    # The exact law: a variance of 1.308 for ULMC with step 1 and friction 2.
    line = report.table.loc["biased"]
    # The bound is Student's 2.5 % quantile of two parameters; three of them are beyond 1e-5.
    assert abs(line["sd_error"] - (math.sqrt(1.308) - 1)) < 3 * line["sd_noise"]
    assert line["sd_error"] > line["sd_noise"] and not line["trusted"]
    for name in ("recycled", "ours", "NUTS"):
        line = report.table.loc[name]
        assert line["mean_error"] < 3 * line["mean_noise"] and line["sd_error"] < 3 * line["sd_noise"]


@pytest.mark.pymc
def test_a_failure_is_a_row_with_a_reason(report):
    line = report.table.loc["nutpie, if it were there"]
    assert line["trusted"] is None and pd.isna(line["gradients"]) and line["says"].startswith("nutpie not found")


@pytest.mark.pymc
def test_a_comparison_prints_80_columns_and_what_is_more_than_noise(report):
    lines = repr(report).splitlines()
    assert lines[:2] == ["Two Gaussians", "Reference: A formula."] and max(map(len, lines)) <= 80
    assert any(line.startswith("biased") and line.endswith("*") for line in lines)
    assert any(line.split()[-5:] == 5 * ["\N{EM DASH}"] for line in lines)
    assert any(line.startswith("nutpie, if it were there: nutpie not found") for line in lines)
    html = report._repr_html_()
    assert html.startswith("<p><b>Two Gaussians</b><br>Reference: A formula.</p><table") and "nutpie not found" in html


@pytest.mark.pymc
def test_the_figure_has_the_numbers_and_is_the_current_one_of_pyplot(report):
    plt.close("all")
    figure = report.figure()
    assert plt.gcf() is figure and figure.get_figwidth() == 7.0
    errors, costs = figure.axes
    ran = report.table[report.table["gradients"].notna()]
    assert [label.get_text() for label in errors.get_yticklabels()] == list(ran.index)
    drawn = {line.get_label(): line.get_xdata() for line in errors.get_lines()}
    np.testing.assert_array_equal(drawn["mean"], ran["mean_error"].astype(float))
    np.testing.assert_array_equal(drawn["sd"], ran["sd_error"].astype(float))
    np.testing.assert_array_equal([bar.get_width() for bar in costs.patches], ran["per_draw"].astype(float))
    plt.close("all")


@pytest.mark.pymc
def test_budgets_that_do_not_reach_are_rows_that_name_one_that_does():
    found = compare(GAUSSIAN, ["nuts", pmm.GHMC()], n_grad=1200, chains=4, random_seed=1)
    assert all("of 1,200 gradients and left too few" in says for says in found.table["says"])
    enough = int(found.table.loc["GHMC", "says"].split("n_grad=")[1].split()[0])
    again = compare(GAUSSIAN, [pmm.GHMC()], n_grad=enough, chains=4, random_seed=1)
    assert again.table["gradients"].notna().all()
    with pytest.raises(ValueError, match="no sampler ran"):
        found.figure()


@pytest.mark.pymc
def test_long_runs_end_where_their_draws_would_not_fit(monkeypatch):
    monkeypatch.setattr(references, "_MOST_NUMBERS", 20_000)
    assert run("default", build(), BUDGET, CHAINS, 1).n_grad < 0.9 * BUDGET


# -- the reference -----------------------------------------------------------------------------------------------------


def long_runs(monkeypatch, **judged):
    """Let reference runs be made up, with these verdicts."""
    made = []

    def made_up(sampler, model, budget, chains, seed):
        made.append((sampler, budget, seed))
        if judged[sampler] is None:
            raise FloatingPointError("it exploded")
        return Run(np.random.default_rng(1).normal(size=(2, 100, 2)), budget, judged[sampler])

    monkeypatch.setattr(references, "run", made_up)
    truth, source = truth_for(None, None, None, 1000, 2, 7)
    return truth, source, made


def test_a_run_of_nuts_that_is_trusted_is_the_reference(monkeypatch):
    truth, source, made = long_runs(monkeypatch, nuts=FINE)
    assert made == [("nuts", 5000, 8)]
    assert source == "A run of NUTS of 5 times the budget: 100 draws of each of 2 chains."
    assert truth.mean.shape == truth.error_of_sd.shape == (2,)


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
    found = compare(build(), {"A": pmm.ULMC()}, n_grad=4000, chains=2)
    assert found.table[["mean_error", "sd_error"]].isna().all(axis=None) and found.table.loc["A", "per_draw"] > 0
    assert "Reference: None, so that no errors" in repr(found) and found.figure()
    plt.close("all")


@pytest.mark.pymc
def test_own_draws_are_the_reference_unless_their_verdict_refuses_them():
    dt = az.from_dict({"posterior": {"x": np.random.default_rng(9).normal(size=(2, 400, 2))}})
    truth, source = truth_for(None, build(), dt, 1000, 2, 1)
    assert source == "The draws that were given: 400 draws of each of 2 chains."
    np.testing.assert_allclose(truth.mean, dt["posterior"]["x"].mean(("chain", "draw")))
    apart = az.from_dict({"posterior": {"x": dt["posterior"]["x"].values + np.array([[[0.0]], [[3.0]]])}})
    truth, source = truth_for(None, build(), apart, 1000, 2, 1)
    assert truth is None and source.startswith("None, for the draws that were given are not to be trusted. Not trusted")
    with pm.Model() as other:
        pm.Normal("y")
    with pytest.raises(ValueError, match="reference: it has no draws of y"):
        truth_for(None, other, dt, 1000, 2, 1)
    with pytest.raises(TypeError, match=r"reference=\[1.0\]: must be 'nuts' for a long run"):
        truth_for(None, build(), [1.0], 1000, 2, 1)


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


@pytest.mark.statistical
def test_errors_and_costs_are_the_textbook_ones():
    # Rate 1e-5: standard errors of 16 pieces vary by 18 % of themselves.
    position = np.random.default_rng(11).normal(3.0, 2.0, size=(4, 1000, 1))
    nothing, one = np.zeros(1), np.ones(1)
    truth = Truth(3 * one, 2 * one, nothing, nothing)
    found = row(Run(position, 8000, FINE), truth, ["it"])
    assert found["mean_error"] == pytest.approx(abs(position.mean() - 3) / 2)
    assert found["sd_error"] == pytest.approx(abs(np.sqrt(np.mean((position - 3) ** 2)) / 2 - 1))
    assert 0.8 < found["mean_noise"] * np.sqrt(4000) < 4.5 and found["mean_at"] == found["sd_at"] == "it"
    assert 0.8 < found["sd_noise"] * np.sqrt(8000) < 4.5
    assert found["per_draw"] == pytest.approx(8000 / az.ess(position[..., 0], method="bulk"))
    vague = row(Run(position, 8000, FINE), truth._replace(error=2 * one, error_of_sd=4 * one), ["it"])
    assert vague["mean_noise"] == pytest.approx(0.5 * vague["sd_noise"], rel=0.01) and vague["mean_noise"] > 1.9
    assert row(Run(0 * position, 8000, FINE), None, ["it"])["per_draw"] == math.inf


def test_names_say_what_is_not_a_default():
    assert name_of(pmm.PoissonULMC(K=16, grid="centred")) == "PoissonULMC(K=16, grid='centred')"
    assert name_of(pmm.RLMC(dynamics="overdamped")) == "RLMC(dynamics='overdamped')"
    assert name_of(pmm.GHMC()) == "GHMC"


@pytest.mark.parametrize(
    "options, error, match",
    [
        ({"n_grad": 0.5}, ValueError, "n_grad=0.5"),
        ({"n_grad": 70}, ValueError, "n_grad=70: must be an integer of at least 100"),
        ({"chains": 1}, ValueError, "chains=1: must be an integer of at least 2"),
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

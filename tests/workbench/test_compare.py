"""``pmm.workbench.compare``: budgets kept to the gradient, known biases found, failures as rows, early errors.

Statistical tests are z-scores at a fixed seed with a false-alarm rate of 1e-5 each.
"""

import dataclasses
import json
import math
import sys

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pymc as pm
import pytest
import xarray as xr
from matplotlib.text import Text
from pymc.step_methods.hmc.integration import CpuLeapfrogIntegrator
from scipy.stats import t

import pmm_mcmc as pmm
from pmm_mcmc.warmup.standard_errors import degrees_of_freedom
from pmm_mcmc.workbench.comparison import compare
from pmm_mcmc.workbench.comparison.inputs import seed_of
from pmm_mcmc.workbench.comparison.measures import error_curve
from pmm_mcmc.workbench.comparison.reference import model_labels, unconstrained_draws

CHAINS, BUDGET = 4, 40_000
RATE = 1e-5


@dataclasses.dataclass(frozen=True)
class Known:
    mean: np.ndarray
    second_moment: np.ndarray
    square_variance: np.ndarray
    sd: np.ndarray
    exact: bool = True
    source: str = "A formula."
    error: None = None


class Sides:
    names = ("left", "right")
    weights = np.array([0.5, 0.5])

    @staticmethod
    def label(x):
        return (x[..., 0] > 0).astype(int)


class Gaussian:
    """Two standard Gaussians, with the interface of a target."""

    name, title, note, ndim, labels = "gaussian", "Two Gaussians", "Nothing is hard.", 2, ("x[0]", "x[1]")
    reference = Known(np.zeros(2), np.ones(2), np.full(2, 2.0), np.ones(2))
    modes, trustworthy = Sides(), True

    @staticmethod
    def model():
        with pm.Model() as model:
            pm.Normal("x", shape=2)
        return model

    @staticmethod
    def sample(n, rng):
        return rng.normal(size=(n, 2))


def biased():
    return pmm.ULMC(step_size=1.0, friction=2.0, scaling=[1.0, 1.0])


@pytest.fixture(scope="module")
def counted():
    """Leapfrog steps that PyMC takes, counted where it takes them."""
    taken, step = [0], CpuLeapfrogIntegrator.step

    def counting(self, *arguments):
        taken[0] += 1
        return step(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuLeapfrogIntegrator, "step", counting)
        yield taken


@pytest.fixture(scope="module")
def report(counted):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "nutpie", None)
        samplers = {
            "recycled": pmm.PoissonULMC(scheme="recycled"),
            "biased": biased(),
            "GHMC": pmm.GHMC(),
            "ours": "default",
            "NUTS": "nuts",
            "nutpie": "nutpie",
        }
        return compare(Gaussian(), samplers, n_grad=BUDGET, chains=CHAINS, random_seed=1)


def limit(report, name):
    draws = int(report.table.loc[name, "draws"])
    return t.isf(RATE / 2, degrees_of_freedom(CHAINS, draws))


@pytest.mark.pymc
def test_every_sampler_spends_the_budget_and_no_gradient_more(report, counted):
    assert [trace.name for trace in report.traces] == ["recycled", "biased", "GHMC", "ours", "NUTS"]
    for trace in report.traces:
        assert 0.97 * BUDGET < trace.spent <= BUDGET
        assert trace.position.shape == trace.gradient.shape == (*trace.n_grad.shape, 2)
        line = report.table.loc[trace.name]
        assert line["grads_warmup"] + line["grads_sampling"] == trace.spent
        single = trace.name in ("GHMC", "ours")  # gradients of adjusted draws are kept in single precision
        np.testing.assert_allclose(trace.gradient, -trace.position, rtol=2e-7 if single else 1e-9)


@pytest.mark.pymc
def test_gradients_of_nuts_are_the_leapfrog_steps_that_it_took(report, counted):
    spent = next(trace.spent for trace in report.traces if trace.name == "NUTS")
    # All that was taken, but for the draws of the last block that went beyond the budget.
    assert spent <= counted[0] <= spent + CHAINS * 10 * 20


@pytest.mark.pymc
def test_gradients_and_draws_are_those_of_sample(report):
    trace = report.traces[0]
    draws = trace.position.shape[1]
    direct = pmm.sample(
        pmm.PoissonULMC(scheme="recycled"), draws + 10, chains=CHAINS, model=Gaussian.model(), random_seed=1,
        progressbar=False, compute_convergence_checks=False,
    )  # fmt: skip
    np.testing.assert_array_equal(trace.position, direct["sample_stats"]["unconstrained"].values[:, :draws])
    total = direct["sample_stats"]["n_grad_total"].isel(draw=draws - 1).values
    np.testing.assert_array_equal(trace.warmup_n_grad + trace.n_grad.sum(axis=1), total)


@pytest.mark.pymc
def test_the_default_is_that_of_sample(report):
    trace = next(trace for trace in report.traces if trace.name == "ours")
    draws = trace.position.shape[1]
    direct = pmm.sample(
        draws=draws + 10, chains=CHAINS, model=Gaussian.model(), random_seed=1, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
    np.testing.assert_array_equal(trace.position, direct["sample_stats"]["unconstrained"].values[:, :draws])
    assert ", acceptance " in trace.setting and trace.setting.startswith("step size ")


@pytest.mark.pymc
@pytest.mark.statistical
def test_a_known_bias_is_found_and_the_exact_ones_are_not(report):
    # The exact law: a variance of 1.308 for ULMC with step 1 and friction 2.
    line = report.table.loc["biased"]
    assert abs(line["sd_error"] - (math.sqrt(1.308) - 1)) < limit(report, "biased") * line["sd_error_se"] + 0.001
    assert line["sd_error"] > line["sd_error_noise"]
    for name in ("recycled", "GHMC", "ours", "NUTS"):
        line = report.table.loc[name]
        for what in ("mean_error", "sd_error"):
            assert line[what] < 2 * limit(report, name) * line[f"{what}_se"]
    assert any("biased is off: the sd of" in sentence for sentence in report.verdict)


@pytest.mark.pymc
@pytest.mark.statistical
def test_stein_correction_takes_the_bias_away(report):
    line = report.table.loc["biased"]
    assert line["sd_cv"] < 0.1 * line["sd_error"]
    assert report.table.loc["NUTS", "sd_cv"] < 0.01


@pytest.mark.pymc
@pytest.mark.statistical
def test_distances_and_modes(report):
    table = report.table
    assert table.loc["biased", "wasserstein"] > table.loc["biased", "wasserstein_floor"]
    assert table.loc["biased", "ksd"] > 1.5 * table.loc["biased", "ksd_floor"]
    for name in ("recycled", "GHMC", "ours", "NUTS"):
        assert table.loc[name, "wasserstein"] < 1.5 * table.loc[name, "wasserstein_floor"]
        error = table.loc[name, "occupancy_error"]
        assert error < limit(report, name) * table.loc[name, "occupancy_se"]
    assert table.loc["NUTS", "occupancy"].startswith("left 0.")


@pytest.mark.pymc
def test_effective_draws_are_those_of_arviz(report):
    trace = report.traces[-1]
    line = report.table.loc[trace.name]
    bulk = min(az.ess(trace.position[..., i], method="bulk") for i in range(2))
    tail = min(az.ess(trace.position[..., i], method="tail", prob=(0.05, 0.95)) for i in range(2))
    square = min(az.ess(trace.position[..., i] ** 2, method="mean") for i in range(2))
    assert line["ess_bulk_per_1000"] == pytest.approx(1000 * bulk / trace.spent)
    assert line["ess_tail_per_1000"] == pytest.approx(1000 * tail / trace.spent)
    assert line["ess_square_per_1000"] == pytest.approx(1000 * square / trace.spent)
    seconds = trace.seconds.warmup + trace.seconds.sampling
    assert line["ess_bulk_per_s"] == pytest.approx(bulk / seconds)
    assert line["r_hat"] == pytest.approx(max(az.rhat(trace.position[..., i]) for i in range(2)))


@pytest.mark.pymc
def test_a_failure_is_a_row_with_a_reason(report):
    assert report.failures == {"nutpie": "nutpie is not installed: pip install nutpie"}
    assert report.table.loc["nutpie", "error"] == report.failures["nutpie"]
    assert report.table.loc["nutpie", "trusted"] is None
    assert report.table.loc["NUTS", "error"] is None or pd.isna(report.table.loc["NUTS", "error"])
    assert any(sentence.startswith("nutpie failed: nutpie is not installed") for sentence in report.verdict)


@pytest.mark.pymc
def test_a_comparison_prints_what_is_read_first(report):
    said = repr(report)
    lines = said.splitlines()
    assert lines[0] == "Two Gaussians" and max(map(len, lines)) <= 80
    assert any(line.split() == ["nutpie", *5 * ["\N{EM DASH}"]] for line in lines)
    assert any(line.split()[:2] in (["biased", "no"], ["biased", "yes"]) for line in lines)
    assert " ".join(report.verdict[0].split()) in " ".join(said.split())


@pytest.mark.pymc
def test_json_holds_the_table_and_nulls(report, tmp_path):
    path = tmp_path / "report.json"
    report.to_json(path)
    read = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda text: pytest.fail(text))
    again = pd.DataFrame.from_dict(read["table"], orient="index")
    assert list(again.index) == list(report.table.index) and list(again) == list(report.table)
    for column in ("mean_error", "grads_sampling", "ess_tail_per_s"):
        expected = report.table[column].astype(float).to_numpy()
        np.testing.assert_array_equal(again[column].astype(float).to_numpy(), expected)
    assert read["table"]["biased"]["grads_to_b2"] is None and math.isinf(report.table.loc["biased", "grads_to_b2"])
    assert read["table"]["nutpie"]["r_hat"] is None
    assert set(read["curves"]) == {trace.name for trace in report.traces}
    assert read["columns"] == report.columns and set(report.columns) == set(report.table)


@pytest.mark.pymc
def test_figures_name_samplers_and_parameters(report):
    found = report.figures()
    assert set(found) == {"Error against gradients", "Effective draws", "Marginals", "Ranks", "Modes"}
    assert all(len(caption) > 40 for _, caption in found.values())
    lines = report.plot_bias_vs_grad().axes[0].get_lines()
    assert {"recycled", "biased", "GHMC", "ours", "NUTS"} <= {line.get_label() for line in lines}
    spent, error = error_curve(report.traces[0], report.truth)
    np.testing.assert_allclose(lines[0].get_xdata()[[0, -1]], spent[[0, -1]])
    np.testing.assert_allclose(lines[0].get_ydata()[[0, -1]], error[[0, -1]])
    assert {"x[0]", "x[1]"} <= {axis.get_title() for axis in report.plot_marginals().axes}


@pytest.mark.pymc
def test_one_figure_fits_a_paper_and_is_the_current_one_of_pyplot(report, tmp_path):
    plt.close("all")
    figure = report.figure()
    assert plt.gcf() is figure and figure.get_figwidth() == 7.0
    assert all(axis.get_xlabel() for axis in figure.axes) and len(figure.axes) == 3
    names = [label.get_text() for label in figure.axes[1].get_yticklabels()]
    assert names == ["recycled", "biased", "GHMC", "ours", "NUTS"]
    sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text()]
    assert 6.5 <= min(sizes) and max(sizes) <= 9
    assert not [image for axis in figure.axes for image in axis.get_images()]
    plt.savefig(tmp_path / "figure.pdf")
    assert (tmp_path / "figure.pdf").stat().st_size > 5000
    plt.close("all")


@pytest.mark.pymc
def test_every_plot_is_a_figure_of_pyplot_and_a_page_leaves_none(report, tmp_path):
    plt.close("all")
    for name in ("plot_bias_vs_grad", "plot_ess_per_grad", "plot_marginals", "plot_ranks", "plot_modes"):
        figure = getattr(report, name)()
        assert plt.gcf() is figure, name
    assert len(plt.get_fignums()) == 5
    plt.close("all")
    own = plt.figure()
    report.figures()
    report.to_html(tmp_path / "report.html")
    assert plt.get_fignums() == [own.number] and plt.gcf() is own
    plt.close("all")


@pytest.mark.pymc
def test_a_notebook_shows_a_figure_once(report, monkeypatch):
    figure = report.plot_bias_vs_grad()
    with pytest.raises(NotImplementedError):  # IPython then shows it as it does any other
        figure._ipython_display_()
    assert plt.fignum_exists(figure.number)
    monkeypatch.setattr(plt, "get_backend", lambda: "inline")
    with pytest.raises(NotImplementedError):
        figure._ipython_display_()
    assert not plt.fignum_exists(figure.number), "the end of the cell does not show it again"


@pytest.fixture(scope="module")
def constrained():
    with pm.Model(coords={"side": ["east", "west"]}) as model:
        top = pm.HalfNormal("top")
        pm.Uniform("u", 0.0, top, dims="side")
        pm.Dirichlet("w", np.ones(3))
        pm.Normal("free")
    return model


@pytest.mark.pymc
def test_draws_on_the_users_scale_become_unconstrained(constrained):
    dt = pmm.sample(
        pmm.ULMC(step_size=0.2), 20, tune=0, chains=2, model=constrained, random_seed=1, progressbar=False,
        compute_convergence_checks=False,
    )  # fmt: skip
    expected = dt["sample_stats"]["unconstrained"].values
    found = unconstrained_draws(type(dt).from_dict({"posterior": dt["posterior"].dataset}), constrained)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)
    np.testing.assert_array_equal(unconstrained_draws(dt, constrained), expected)
    labels = model_labels(constrained)
    assert labels == ["log top", "interval u[east]", "interval u[west]", "simplex w[0]", "simplex w[1]", "free"]


@pytest.mark.pymc
def test_own_draws_are_the_reference_and_others_are_refused(constrained):
    dt = az.from_dict({"posterior": {"x": np.random.default_rng(9).normal(size=(2, 400, 2))}})
    found = compare(Gaussian.model(), [pmm.ULMC(), biased()], n_grad=8000, chains=2, random_seed=3, reference=dt)
    assert "Your own draws (400 of each of 2 chains)." in " ".join(found.notes)
    assert list(found.table.index) == ["ULMC", "ULMC(step_size=1.0, friction=2.0, scaling=...)"]
    np.testing.assert_allclose(found.truth.mean, dt["posterior"]["x"].mean(("chain", "draw")))
    assert "occupancy" not in found.table
    with pytest.raises(ValueError, match="reference: it has no draws of top, u, w, free"):
        compare(constrained, [pmm.ULMC()], reference=dt)
    with pytest.raises(TypeError, match="reference=list: must be a DataTree"):
        compare(constrained, [pmm.ULMC()], reference=[1.0])


@pytest.mark.pymc
def test_a_run_of_nuts_is_the_reference_and_the_row_of_nuts(counted):
    before = counted[0]
    found = compare(Gaussian.model(), [pmm.ULMC(), "nuts"], n_grad=20_000, chains=2, random_seed=4)
    assert any(note.startswith("Reference: A run of NUTS of 5 times the budget") for note in found.notes)
    assert any(note.startswith("NUTS is the first part of the reference run") for note in found.notes)
    assert not found.truth.exact and not found.failures
    # One run of NUTS, not two.
    assert counted[0] - before < 1.05 * 100_000
    trace, line = found.traces[1], found.table.loc["NUTS"]
    np.testing.assert_array_equal(trace.position[0], found.truth.draws[: trace.position.shape[1]])
    assert 0.97 * 20_000 < trace.spent <= 20_000 and line["grads_warmup"] + line["grads_sampling"] == trace.spent
    assert line["trusted"] in (True, False) and 0 < line["mean_error"] < 0.3


@pytest.mark.pymc
def test_a_reference_whose_warm_up_takes_the_budget_is_a_row_without_errors():
    found = compare(Gaussian.model(), [pmm.ULMC(), "nuts"], n_grad=6000, chains=2, random_seed=4, reference="nuts")
    line = found.table.loc["NUTS"]
    assert line["grads_warmup"] + line["grads_sampling"] > 25_000 and line["ess_bulk_per_1000"] > 0
    assert line["trusted"] in (True, False) and pd.isna(line["mean_error"]) and pd.isna(line["grads_to_b2"])
    assert "NUTS" not in found.failures and [trace.name for trace in found.traces] == ["ULMC"]
    sentence = next(sentence for sentence in found.verdict if sentence.startswith("NUTS: its warm-up alone took"))
    assert "n_grad=6,000" in sentence and "the whole reference run" in sentence


@pytest.mark.pymc
def test_nuts_that_cannot_fit_the_budget_is_not_run(monkeypatch, counted):
    before = counted[0]
    found = compare(Gaussian(), ["nuts", pmm.ULMC()], n_grad=9000, chains=4, random_seed=1)
    assert counted[0] == before
    why = found.failures["NUTS"]
    assert why.startswith(
        "not run, for its warm-up would not fit the budget: 1,000 iterations in 4 chains take some 9,514"
    )
    assert why.endswith("of 9,000: give a larger n_grad, or fewer chains")
    assert found.table.loc["NUTS", "trusted"] is None
    # Where the floor lets it begin, the first chain shows that the others will not make up for it.
    monkeypatch.setattr("pmm_mcmc.workbench.comparison.peers.least_of", lambda d: 0.0)
    found = compare(Gaussian(), ["nuts"], n_grad=7000, chains=4, random_seed=1)
    assert counted[0] - before < 1.5 * 7000 / 4 + 20
    assert "in 1 of 4 chains: give n_grad=" in found.failures["NUTS"]


@pytest.mark.pymc
def test_a_seed_of_any_kind_comes_to_an_integer_that_is_told():
    seed = seed_of(np.random.default_rng(7))
    runs = [
        compare(Gaussian(), [pmm.ULMC(step_size=0.3, scaling=[1.0, 1.0])], n_grad=4000, chains=2, random_seed=given)
        for given in (np.random.default_rng(7), seed)
    ]
    assert all(f"random_seed={seed};" in run.notes[-1] for run in runs)
    np.testing.assert_array_equal(*(run.traces[0].position for run in runs))
    assert seed_of(np.random.SeedSequence(7)) == seed_of(np.random.SeedSequence(7)) != seed
    assert seed_of(np.int64(3)) == 3


@pytest.mark.pymc
def test_long_runs_are_thinned_and_counted_all_the_same(monkeypatch, counted):
    monkeypatch.setattr("pmm_mcmc.workbench.comparison.runs._MOST_NUMBERS", 20_000)
    before = counted[0]
    found = compare(Gaussian(), [pmm.GHMC(), "nuts"], n_grad=BUDGET, chains=CHAINS, random_seed=1)
    taken = counted[0] - before
    assert not found.failures
    for trace in found.traces:
        assert 3 * trace.position.size <= 25_000
        assert 0.9 * BUDGET < trace.spent <= BUDGET
    assert found.traces[1].spent <= taken <= 1.2 * found.traces[1].spent


class Nutpie:
    """What ``compare`` needs of nutpie 0.16: exact draws, 7 gradients each, one divergence."""

    @staticmethod
    def compile_pymc_model(model):
        return model

    @staticmethod
    def sample(compiled, *, draws, tune, chains, cores, seed, save_warmup, store_unconstrained, progress_bar):
        assert save_warmup and store_unconstrained and cores == 1

        def stats(n):
            position = np.random.default_rng(seed).normal(size=(chains, n, 2))
            diverging = np.zeros((chains, n), bool)
            diverging[0, 3] = True
            dims, steps = ("chain", "draw"), np.full((chains, n), 7)
            drawn = (*dims, "unconstrained_dim"), position
            return xr.Dataset({"n_steps": (dims, steps), "unconstrained_draw": drawn, "diverging": (dims, diverging)})

        return xr.DataTree.from_dict({"sample_stats": stats(draws), "warmup_sample_stats": stats(tune)})


@pytest.mark.pymc
def test_nutpie_is_run_and_counted(monkeypatch):
    monkeypatch.setitem(sys.modules, "nutpie", Nutpie)
    found = compare(Gaussian(), ["nutpie"], n_grad=35_000, chains=2, random_seed=1)
    line = found.table.loc["nutpie"]
    assert line["grads_warmup"] == 2 * 1000 * 7
    assert line["grads_sampling"] == 7 * 2 * line["draws"] and line["draws"] == 21_000 // 14
    assert line["unstable"] == 1 and line["says"] == "Do not trust this run: 1 divergence."
    small = compare(Gaussian(), ["nutpie"], n_grad=14_100, chains=2, random_seed=1)
    assert small.failures["nutpie"].startswith("the warm-up took 14,000 of 14,100 gradients")


@pytest.mark.pymc
def test_budgets_that_do_not_reach_are_rows_that_name_one_that_does():
    found = compare(Gaussian(), ["nuts", pmm.GHMC()], n_grad=1200, chains=4, random_seed=1)
    assert "of 1,200 gradients and left too few" in found.failures["GHMC"]
    assert found.failures["NUTS"].startswith("not run, for its warm-up would not fit the budget: 1,000")
    enough = int(found.failures["GHMC"].split("n_grad=")[1].split()[0])
    again = compare(Gaussian(), [pmm.GHMC()], n_grad=enough, chains=4, random_seed=1)
    assert not again.failures
    assert found.figures() == {}
    with pytest.raises(ValueError, match="reference: the warm-up of NUTS takes more than 5 times n_grad=400"):
        compare(Gaussian.model(), [pmm.GHMC()], n_grad=400, chains=4)

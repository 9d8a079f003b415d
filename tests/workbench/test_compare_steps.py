"""Errors at multiples of the tuned step size: the known bias of Langevin Monte Carlo is on the curve; files and pages.

Statistical tests are z-scores at a fixed seed with a false-alarm rate of 1e-5 each.
"""

import json
import math

import numpy as np
import pymc as pm
import pytest
from scipy.stats import t

import pmm_mcmc as pmm
from pmm_mcmc.langevin.gaussian_law import variance_error
from pmm_mcmc.warmup.standard_errors import degrees_of_freedom
from pmm_mcmc.workbench.comparison import compare
from pmm_mcmc.workbench.targets import Reference, Target

CHAINS, BUDGET, RATE, FRICTION = 4, 40_000, 1e-5, 2.0


def build():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    return model


TARGET = Target(
    "gaussian",
    "Two Gaussians",
    "Nothing is hard.",
    ("x[0]", "x[1]"),
    build,
    lambda: Reference([0, 0], [1, 1], [2, 2], exact=True, source="A formula."),
    draw=lambda n, rng: rng.normal(size=(n, 2)),
)


@pytest.fixture(scope="module")
def report():
    samplers = {"$long$": pmm.ULMC(step_size=1.0, friction=FRICTION, scaling=[1.0, 1.0]), "GHMC": pmm.GHMC()}
    return compare(TARGET, samplers, n_grad=BUDGET, chains=CHAINS, random_seed=1, step_multiples=[0.5, 2])


def of(report, sampler, multiple):
    rows = report.steps
    return rows[(rows["sampler"] == sampler) & (rows["multiple"] == multiple)].iloc[0]


@pytest.mark.pymc
@pytest.mark.statistical
def test_the_curve_is_the_exact_bias(report):
    for multiple in (0.5, 1.0):
        line = of(report, "$long$", multiple)
        assert line["step_size"] == multiple
        exact = math.sqrt(1.0 + variance_error(pmm.ULMC().arguments.kernel, multiple, FRICTION, 1)) - 1.0
        # Either sign of 2 errors, of which the largest is told.
        limit = t.isf(RATE / 4, degrees_of_freedom(CHAINS, 1000))
        assert abs(line["sd_error"] - exact) < limit * line["sd_error_se"]
        assert line["sd_error"] > line["sd_error_noise"]
    for multiple in (0.5, 1.0, 2.0):
        line = of(report, "GHMC", multiple)
        assert line["sd_error"] < 2 * t.isf(RATE / 4, degrees_of_freedom(CHAINS, 1000)) * line["sd_error_se"]


@pytest.mark.pymc
def test_the_runs_are_additional_and_counted(report):
    assert list(report.steps["multiple"]) == 2 * [0.5, 1.0, 2.0]
    for trace in report.traces:
        line = report.table.loc[trace.name]
        own = of(report, trace.name, 1.0)
        assert own["sd_error"] == line["sd_error"] and own["grads"] == trace.spent
        assert own["step_size"] == trace.tuned["step_size"]
    more = report.steps[report.steps["multiple"] != 1.0]
    assert np.all(more["grads"] <= BUDGET) and np.all(more["grads"] > 0.97 * BUDGET)
    (note,) = [note for note in report.notes if note.startswith("Step sizes: 4 more runs, at 0.5, 2 times")]
    assert f"({more['grads'].sum():,.0f} in all)" in note


@pytest.mark.pymc
def test_the_figure_has_the_numbers(report):
    figure = report.plot_bias_vs_step()
    for axis, name in zip(figure.axes, ("mean_error", "sd_error"), strict=True):
        assert axis.get_xscale() == axis.get_yscale() == "log" and axis.get_ylim()[0] > 0
        drawn = {line.get_label(): line for line in axis.get_lines()}
        for sampler, rows in report.steps.groupby("sampler"):
            np.testing.assert_array_equal(drawn[sampler].get_xdata(), rows["step_size"])
            np.testing.assert_array_equal(drawn[sampler].get_ydata(), rows[name])
        rings = {tuple(p.get_offsets()[0].data): p for p in axis.collections if len(p.get_offsets()) == 3}
        for _, rows in report.steps.groupby("sampler"):
            marks = rings[(rows["step_size"].iloc[0], rows[name].iloc[0])]
            hollow = marks.get_facecolor().min(axis=1) == 1.0
            np.testing.assert_array_equal(hollow, rows[name] <= rows[f"{name}_noise"])
    assert "Error against step size" in report.figures()


@pytest.mark.pymc
def test_files_are_whole_and_hold_the_steps(report, tmp_path, monkeypatch):
    page, numbers = tmp_path / "r.html", tmp_path / "r.json"
    page.write_text("before")
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no room")))
        for write, path in ((report.to_html, page), (report.to_json, numbers)):
            with pytest.raises(OSError, match="no room"):
                write(path)
    assert page.read_text() == "before" and list(tmp_path.iterdir()) == [page]
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        report.to_html(tmp_path / "none" / "r.html")
    assert report.to_html(str(page)) == page and report.to_json(numbers) == numbers
    assert "Errors of means at multiples of the step size" in page.read_text(encoding="utf-8")
    steps = json.loads(numbers.read_text(encoding="utf-8"))["steps"]
    assert [step["sd_error"] for step in steps] == list(report.steps["sd_error"]) and steps[0]["error"] is None


@pytest.mark.pymc
def test_without_other_steps_there_is_no_figure(report):
    bare = compare(TARGET, [pmm.GHMC()], n_grad=4000, chains=2, random_seed=2)
    assert bare.steps is None and "Error against step size" not in bare.figures()
    with pytest.raises(ValueError, match=r"give step_multiples=\[1/4, 1/2, 2\] to compare"):
        bare.plot_bias_vs_step()


@pytest.mark.pymc
def test_ranks_are_of_the_worst_parameter_of_each_sampler(report):
    titles = [axis.get_title(loc="left").split("\n") for axis in report.plot_ranks().axes]
    assert [title[0] for title in titles] == ["$long$", "GHMC"]
    for (_, _, told), trace in zip(titles, report.traces, strict=True):
        assert told == f"R-hat {report.table.loc[trace.name, 'r_hat']:.3f}"

"""Starts of no density, and steps that fail while sampling: counted, and said with the variable and the remedy."""

import re

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.langevin.stability import guard_threshold
from pmm_mcmc.langevin.transitions import MOST_REFINEMENTS, SUBSTEPS

pytestmark = [pytest.mark.pymc, pytest.mark.quick]

NAN = float("nan")


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    return model


def test_no_step_size_without_warm_up(model, sample):
    with model:
        step = pmm.PoissonULMC(K=16)
        with pytest.raises(ValueError, match=re.escape("step_size='auto' with tune=0")) as raised:
            sample(step, tune=0)
    assert "(tune=1000)" in str(raised.value) and "step_size=...)" in str(raised.value)


@pytest.fixture(scope="module")
def walled():
    with pm.Model() as model:
        x = pm.Normal("x")
        y = pm.Normal("y", shape=2)
        pm.Potential("wall", pt.switch(x > 1.0, -np.inf, 0.0))
        pm.Potential("root", pt.sqrt(10.0 + y[1]))
    return model


@pytest.mark.parametrize(
    ("start", "offender", "value"),
    [({"x": 2.0}, "wall", "-inf"), ({"y": np.array([0.0, -11.0])}, "root", "nan"), ({"x": NAN}, "x", "nan")],
    ids=["minus infinity", "nan", "nan start"],
)
def test_start_of_no_density_names_the_variable(walled, sample, start, offender, value):
    with walled:
        step = pmm.ULMC(step_size=0.1)
        with pytest.raises(pm.exceptions.SamplingError) as raised:
            sample(step, tune=0, initvals=start)
    message = str(raised.value)
    assert "not finite at the initial point" in message and "initvals" in message
    terms = dict(re.findall(r"(\w+) \((\S+?)\)", message.split("Terms that are not finite:")[1]))
    assert terms.get(offender) == value, message
    assert not {"x", "y", "wall", "root"} & set(terms) - {offender, *(["wall"] if "x" in start else [])}, message


def test_starts_reach_further_where_the_initial_point_has_no_density(sample):
    """Of the boxes of sides 2 and 4 about the initial point the first lies in a hole; two starts need a further one."""
    with pm.Model():
        x = pm.Normal("x", 0, 3, shape=3)
        pm.Potential("hole", pt.switch(pt.max(pt.abs(x)) > 1.5, 0.0, -np.inf))
        step = pmm.ULMC(step_size=0.1, friction=1.0, scaling=np.full(3, 9.0))
        one = sample(step, draws=20, tune=0)
        four = pmm.sample(
            step=step, draws=20, tune=0, random_seed=1, progressbar=False, compute_convergence_checks=False
        )
    for dt in (one, four):
        assert np.isfinite(dt["sample_stats"]["gradient"]).all()
        assert (np.abs(dt["posterior"]["x"].values).max(axis=-1) > 1.5).all()


ROBUST = [
    ("PoissonOLMC", {"K": 16}),
    ("PoissonULMC", {"K": 16}),
    ("PoissonULMC", {"K": 16, "option": 1}),
    ("PoissonULMC", {"K": 16, "grid": "centred"}),
    ("PoissonULMC", {"scheme": "recycled"}),
    ("OLMC", {}),
    ("ULMC", {}),
    ("RLMC", {"dynamics": "overdamped"}),
    ("RLMC", {}),
    ("GHMC", {}),
]


@pytest.fixture(scope="module")
def treacherous():
    """Minus infinity beyond a wall, NaN beyond another, and a quartic whose explicit steps run away."""
    with pm.Model() as model:
        x = pm.Normal("x", shape=2)
        y = pm.Normal("y")
        pm.Potential("wall", pt.switch(x[0] > 1.0, -np.inf, 0.0))
        pm.Potential("root", pt.sqrt(x[1] + 1.0))
        pm.Potential("quartic", -(y**4))
    return model


@pytest.mark.parametrize(("method", "arguments"), ROBUST, ids=lambda v: str(v))
def test_failures_while_sampling_are_counted_and_said(treacherous, sample, method, arguments):
    with treacherous:
        step = getattr(pmm, method)(step_size=0.9, steps_per_draw=2, scaling=np.ones(3), **arguments)
        dt = sample(step, draws=500, tune=50, chains=2, seed=5)
    draws = dt["posterior"].to_dataset()
    assert all(np.isfinite(draws[name].values).all() for name in ("x", "y"))
    assert draws["x"].values[..., 0].max() <= 1.0 and draws["x"].values[..., 1].min() >= -1.0
    assert np.isfinite(dt["sample_stats"]["lp"].values).all()
    failed = dt["sample_stats"]["diverging" if method == "GHMC" else "unstable"].values
    assert failed.sum(axis=1).min() > 0 and failed.max() <= 2
    sentence = pmm.verdict(dt).sentence
    if method == "GHMC":
        assert "unstable" not in sentence and f"{failed.sum()} of 1000 draws followed a divergence" in sentence
    else:
        assert sentence.startswith(f"Not trusted: {failed.sum()} of 2000 transitions were unstable")
        assert sentence.count("a shorter step will not help: look at model.debug()") == 1


BLAME = {
    "wall": ("a shorter step will not help: look at model.debug(), and bound",),
    "quartic": ("Take adjusted draws: pmm.sample(), or pm.sample(step=pmm.GHMC()).",),
}


@pytest.mark.parametrize("method", ["PoissonULMC", "PoissonOLMC"])
@pytest.mark.parametrize("cause", BLAME)
def test_the_verdict_says_whether_model_or_step_failed(sample, method, cause):
    with pm.Model():
        x = pm.Normal("x")
        density = {"wall": pt.switch(x > 0.5, -np.inf, 0.0), "quartic": -(x**4)}[cause]
        pm.Potential("density", density)
        size = {"wall": 0.6, "quartic": 20.0}[cause]
        step = getattr(pmm, method)(step_size=size, steps_per_draw=1, scaling=[1.0])
        dt = sample(step, tune=0, draws=2000)
    message = pmm.verdict(dt).sentence
    failures, blamed = (int(dt["sample_stats"][name].sum()) for name in ("unstable", "model_failures"))
    assert 0 <= blamed <= failures and message.startswith(f"Not trusted: {failures} of 2000 transitions were unstable")
    assert blamed >= 0.95 * failures if cause == "wall" else blamed == 0, (blamed, failures)
    for words in BLAME[cause]:
        assert words in message
    for words in BLAME["quartic" if cause == "wall" else "wall"]:
        assert words not in message


@pytest.mark.parametrize("build", [pmm.OLMC, pmm.PoissonOLMC, lambda **o: pmm.RLMC(dynamics="overdamped", **o)])
def test_runaway_energies_are_never_accepted(sample, build):
    with pm.Model():
        pm.Potential("quartic", -(pm.Normal("y") ** 4))
        step = build(step_size=0.9, steps_per_draw=1, scaling=[1.0])
        stats = sample(step, tune=0, draws=2000)["sample_stats"]
    lp = stats["lp"].values[0]
    assert stats["unstable"].sum() + stats["refined"].sum() > 0
    # Each part of a step may rise as far as one of its length does.
    of_part = guard_threshold(step.arguments.kernel, 0.9 / SUBSTEPS, 1.0, step.chain.tuned.K, 1)
    assert np.diff(lp).min() >= -(SUBSTEPS**MOST_REFINEMENTS) * of_part and lp.min() > -1e4


def unstable_run(model, rows, each=None):
    """Statistics of a run with failures in and after warm-up, made by hand as PyMC's loop makes it."""
    with model:
        step = pmm.ULMC(step_size=1.5, steps_per_draw=2, scaling=np.ones(3))
    step.setup_chain(np.random.default_rng(3), 60, 60)
    point, stats = model.initial_point(0), []
    for i in range(rows):
        if i == 60:
            step.stop_tuning()
        point, [row] = step.step(point)
        stats.append(row)
        if each:
            each(i, step)
    return stats


def test_failures_that_are_shown_never_fall(treacherous):
    (update,) = pmm.ULMC._make_progressbar_update_functions()
    shown = [update(row) for row in unstable_run(treacherous, 120)]
    for part in (shown[:60], shown[60:]):
        counts = [row["unstable"] for row in part]
        assert np.all(np.diff(counts) >= 0) and counts[-1] > 0
    assert not any(row["failing"] for row in shown[:60]) and shown[-1]["failing"]

"""Bad arguments, models and starts: an error that says what, which value and what to do.  Nothing here is random."""

import re

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.step_methods.compound import CompoundStep
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pmm_mcmc as pmm
from pmm_mcmc.langevin.stability import guard_threshold
from pmm_mcmc.langevin.transitions import MOST_REFINEMENTS, SUBSTEPS
from pmm_mcmc.model import pytensor_density

pytestmark = pytest.mark.pymc

METHODS = ("PoissonOLMC", "PoissonULMC", "OLMC", "ULMC", "RLMC", "GHMC")
POISSON = ("PoissonOLMC", "PoissonULMC")
WITH_FRICTION = ("PoissonULMC", "ULMC", "RLMC", "GHMC")
NAN, INF = float("nan"), float("inf")


@pytest.fixture
def no_compilation(monkeypatch):
    """Nothing may be compiled before the error."""
    monkeypatch.setattr(pytensor_density, "compile", lambda *args, **options: pytest.fail("compiled before the check"))


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        pm.Normal("x", shape=2)
        pm.HalfNormal("s")
        pm.Poisson("count", 3.0)
    return model


def refused(model, method, *parts, **arguments):
    """The message of the error, which must have all these parts."""
    with model, pytest.raises(ValueError) as raised:
        getattr(pmm, method)(**arguments)
    for part in parts:
        assert part in str(raised.value), str(raised.value)
    return str(raised.value)


CASES = [
    *((method, "K", value, "'auto'") for method in POISSON for value in (0, 2.5, -1, NAN, True, 2.0, "16", None)),
    ("PoissonULMC", "K", 10**9, "and at most 1048576, or 'auto'"),
    *((m, "step_size", value, "'auto'") for m in METHODS for value in (0, 0.0, -0.1, NAN, INF, True, "large", None)),
    *((m, "friction", value, "'auto'") for m in WITH_FRICTION for value in (0, -1.0, NAN, INF, "none")),
    *((m, "steps_per_draw", value, "'auto'") for m in METHODS for value in (0, 1.5, NAN, True)),
    *(
        (m, "target_bias", value, "between 0.0001 and 0.5, in posterior standard deviations")
        for m in METHODS
        if m != "GHMC"
        for value in (0, -0.1, 0.6, 1e-5, NAN, INF, True, "auto", None)
    ),
    *((method, "option", value, "1 or 2") for method in POISSON for value in (3, 0, "2", True, None)),
    *((method, "grid", value, "'left' or 'centred'") for method in POISSON for value in ("right", None, 0)),
    *((method, "midpoint", value, "'uniform' or 'importance'") for method in POISSON for value in ("late", None, 0.25)),
    *(("PoissonULMC", "scheme", value, "'paper' or 'recycled'") for value in ("fast", None, True)),
    *(("RLMC", "dynamics", value, "'overdamped' or 'underdamped'") for value in ("damped", None, 1)),
]


@pytest.mark.parametrize(("method", "name", "value", "remedy"), CASES, ids=str)
def test_arguments_out_of_range(model, no_compilation, method, name, value, remedy):
    refused(model, method, f"{name}={value!r}", "must be", remedy, **{name: value})


@pytest.mark.parametrize(("name", "value"), [("option", 1), ("grid", "centred"), ("K", 16), ("midpoint", "importance")])
def test_recycling_has_one_midpoint_and_no_grid(model, no_compilation, name, value):
    refused(model, "PoissonULMC", f"{name}={value!r}", "scheme='recycled'", "leave", scheme="recycled", **{name: value})


@pytest.mark.parametrize("method", POISSON)
def test_the_importance_law_marks_one_cell(model, no_compilation, method):
    refused(model, method, "midpoint='importance'", "option=1", "leave midpoint out", option=1, midpoint="importance")


def test_friction_without_velocity(model, no_compilation):
    refused(model, "RLMC", "friction=2.0", "dynamics='overdamped'", "leave it out", dynamics="overdamped", friction=2.0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("value", "part"),
    [
        ([1.0, 2.0], "length 2: must have 3 entries"),
        ([1.0, 0.0, 1.0], "scaling[1]=0.0"),
        ([1.0, 1.0, -2.0], "scaling[2]=-2.0"),
        ([NAN, 1.0, 1.0], "scaling[0]=nan"),
        ([1.0, 1.0, INF], "scaling[2]=inf"),
        (np.ones((3, 1)), "shape (3, 1)"),
        (1.0, "shape ()"),
        (["a", "b", "c"], "scaling=['a', 'b', 'c']"),
        (None, "shape ()"),
    ],
    ids=str,
)
def test_scaling(model, no_compilation, method, value, part):
    message = refused(model, method, part, scaling=value)
    assert "one positive number for each unconstrained coordinate" in message or "x, s_log__" in message


def test_variables_that_cannot_be_sampled(model, no_compilation):
    refused(model, "ULMC", "vars: count is discrete (int64)", "leave it out", vars=[model["count"], model["x"]])
    refused(model, "ULMC", "vars: count is discrete", vars=model["count"])
    with pm.Model():
        foreign = pm.Normal("foreign")
    refused(model, "ULMC", "vars: foreign is not a free variable", "x, s, count", vars=[model["x"], foreign])
    with model:
        derived = model["twice"] if "twice" in model.named_vars else pm.Deterministic("twice", 2.0 * model["x"])
    refused(model, "ULMC", "vars: twice is not a free variable", "x, s, count", vars=derived)


def test_observed_variables_are_not_sampled(no_compilation):
    with pm.Model() as other:
        pm.Normal("x")
        y = pm.Normal("y", observed=1.0)
    refused(other, "GHMC", "vars: y is not a free variable", "has: x", vars=[y])


@pytest.mark.parametrize("method", METHODS)
def test_not_blocked(model, no_compilation, method):
    refused(model, method, "blocked=False", "leave blocked out", "vars=", blocked=False)
    refused(model, method, "blocked=False", blocked=False, vars=model["x"])


def test_no_continuous_variable(no_compilation):
    with pm.Model() as discrete:
        pm.Poisson("count", 3.0)
        pm.Bernoulli("coin", 0.5)
    refused(discrete, "PoissonULMC", "no continuous variable", "leave step= out")


def test_no_model_at_all(no_compilation):
    with pm.Model() as model:
        pm.Normal("x")
    with pytest.raises(ValueError, match="created outside a model"):
        CompoundStep([pmm.PoissonULMC(K=16)])
    with pytest.raises(ValueError, match=r"vars=.*needs a model"):
        pmm.PoissonULMC([model["x"]])
    with pytest.raises(ValueError, match=r"^vars=0\.1: needs a model"):
        pmm.GHMC(0.1)


class Opaque(Op):
    """Twice its input, without a gradient."""

    def make_node(self, x):
        x = pt.as_tensor(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = 2.0 * inputs[0]


def test_log_density_without_gradient(no_compilation):
    with pm.Model() as opaque:
        pm.Normal("y", Opaque()(pm.Normal("slope", shape=2)), observed=np.zeros(2))
    for method in METHODS:
        refused(opaque, method, "no gradient", "slope", "Opaque", "pm.Slice")


def test_minibatch(no_compilation):
    with pm.Model() as batched:
        mu = pm.Normal("mu")
        rows = pm.Minibatch(np.arange(100.0), batch_size=10)
        pm.Normal("y", mu, observed=rows, total_size=100)
    for method in METHODS:
        refused(batched, method, "random", "Minibatch", "whole data (pm.Data)")


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


def test_option_1_does_not_run_on_jax():
    with pytest.raises(ValueError, match=r"option=1 does not run on JAX.*leave option out"):
        pmm.sample(step=pmm.PoissonULMC(option=1), model=pm.Model(), backend="jax")


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

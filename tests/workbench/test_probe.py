"""The step-halving probe: against exact laws on Gaussians, quadrature on a double well, and where it must warn.

z-scores are Student's t with 31 degrees of freedom (32 replicas) at |z| < 5.3, a false alarm in 1e5 for each; what they
are held against is the exact value of the same combination of levels, so that there is nothing to allow for.  How far
that is from the bias itself is checked without randomness.
"""

import doctest
import functools
import math
import re
import sys
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from test_orders import DOUBLE_WELL, GAUSSIAN, KINETIC, POISSON, WELL, double_well, kernel, second_moment

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.verdict import bias_table
from pmm_mcmc.langevin.gaussian_law import variance_error
from pmm_mcmc.langevin.methods import OVERDAMPED, UNDERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.stability import steepest_curvature
from pmm_mcmc.workbench import probe
from pmm_mcmc.workbench.coupled import Sums
from pmm_mcmc.workbench.probe import _setting, _starts, bias_probe, order_of_bias

pytestmark = pytest.mark.pymc
Z = 5.3
SCALE = np.array([1.0, 1.0, 0.7, 0.7])


@pytest.fixture
def probed(sample):
    """Sample and probe; return the probe, the run and the step."""

    def run(build, method, transitions=160, seed=1, draws=100, **options):
        with pm.Model():
            build()
            step = method(**options)
            dt = sample(step, draws=draws, chains=4)
        return bias_probe(dt, step, transitions=transitions, random_seed=seed), dt, step

    return run


def gaussian():
    pm.Normal("x", shape=4)


def extrapolated(levels, order):
    """Return the combination of exact values at the three levels that the probe estimates."""
    return levels[0] - levels[1] + (levels[1] - levels[2]) * (1.0 + 1.0 / (2.0**order - 1.0))


METHODS = [
    (pmm.ULMC, {}, (0.2, 0.8)),
    (pmm.OLMC, {}, (0.1, 0.5)),
    (pmm.PoissonULMC, {"K": 4}, (0.3, 0.9)),
    (pmm.PoissonULMC, {"K": 3, "option": 1}, (0.3, 0.7)),
    (pmm.PoissonULMC, {"K": 5, "grid": "centred"}, (0.8, 1.5)),
    (pmm.PoissonOLMC, {"K": 3}, (0.2, 0.5)),
    (pmm.PoissonOLMC, {"K": 8, "option": 1, "grid": "centred"}, (0.2, 0.5)),
    (pmm.RLMC, {}, (0.5, 1.0)),
    (pmm.RLMC, {"dynamics": "overdamped"}, (0.3, 0.6)),
    (pmm.PoissonULMC, {"scheme": "recycled"}, (0.5, 1.2)),
]


@pytest.mark.statistical
@pytest.mark.parametrize("step_size", [0, 1], ids=["short", "long"])
@pytest.mark.parametrize(("method", "options", "steps"), METHODS)
def test_every_level_has_its_exact_law_on_the_gaussian(probed, method, options, steps, step_size):
    alpha = steps[step_size]
    found, dt, step = probed(gaussian, method, step_size=alpha, scaling=SCALE, steps_per_draw=2, **options)
    kernel, K = step._arguments.kernel, int(dt["sample_stats"]["K"][0, -1])
    sd = np.array(
        [[math.sqrt(1.0 + variance_error(kernel, alpha / 2**i, 1.0, K, c)) for c in SCALE**2] for i in range(3)]
    )
    order = order_of_bias(kernel)
    truth = {
        "difference": sd[0] - sd[1],
        "difference_half": sd[1] - sd[2],
        "bias": extrapolated(sd, order),
    }
    for name, value in truth.items():
        for suffix, expected in (("_of_sd", value), ("", np.zeros(4))):
            estimate, error = found.table[name + suffix], found.table[f"{name}{suffix}_se"]
            # On the whitened Gaussian the recycled scheme is exact, and so is the probe.
            z = (estimate - expected) / np.maximum(error, 1e-9)
            assert np.all(np.abs(z) < Z), (name + suffix, z.to_numpy())
    assert np.all(np.abs(truth["bias"] - (sd[0] - 1.0)) <= 0.06 * np.abs(sd[0] - 1.0) + 1e-4)
    assert found.order_holds and "lower bound" not in found.sentence
    # The standard errors are those of coupled copies: much below what separate runs of this length give.
    assert np.all(found.table["distance"] < 0.75)
    assert np.all(found.table["bias_of_sd_se"] < 0.03)


def mixture():
    pm.NormalMixture("x", w=[0.5, 0.5], mu=[-WELL, WELL], sigma=1.0, shape=4)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("method", "options", "alpha", "law"),
    [
        (pmm.ULMC, {}, 0.4, lambda a: second_moment(KINETIC, double_well, a, 1)),
        (pmm.PoissonULMC, {"K": 4}, 0.8, lambda a: second_moment(KINETIC, double_well, a, 4)),
        (pmm.RLMC, {}, 0.8, lambda a: second_moment(kernel(Scheme.CONTINUOUS, UNDERDAMPED), double_well, a, 1)),
        (pmm.PoissonOLMC, {"K": 4}, 0.3, lambda a: second_moment(POISSON, double_well, a, 4)),
    ],
    ids=["ULMC", "PoissonULMC", "RLMC", "PoissonOLMC"],
)
def test_bias_on_the_double_well(probed, method, options, alpha, law):
    found, _, _ = probed(mixture, method, 300, step_size=alpha, scaling=np.ones(4), steps_per_draw=4, **options)
    truth = math.sqrt(1.0 + WELL**2)
    bias = math.sqrt(law(alpha)) / truth - 1.0
    table = found.table
    assert np.all(np.abs(table["bias_of_sd"] - bias) < Z * table["bias_of_sd_se"])
    assert np.all(np.abs(table["bias"]) < Z * table["bias_se"])
    # Not for want of power: where there is a bias to see, it is seen.
    assert abs(bias) < 0.01 or abs(table["bias_of_sd"].mean()) > 2.0 * table["bias_of_sd_se"].mean()
    assert found.order_holds


def test_orders_are_those_of_the_quadrature():
    """Check the table against that of the orders, methods of finite K only: the probe keeps K as it halves."""
    for method, K, _, order in GAUSSIAN:
        if {K(alpha) for alpha in (0.1, 0.05)} in ({1}, {4}):
            # Gaussians are kinder to the overdamped ones, by an order.
            assert order_of_bias(method) == order - (method.dynamics == OVERDAMPED and order == 3)
    double = {name: order for name, *_, order in DOUBLE_WELL}
    assert order_of_bias(Kernel(Scheme.CELLS, OVERDAMPED, 2, 0.5)) == double["Option 2, centred, K = 4"]
    assert order_of_bias(Kernel(Scheme.CELLS, UNDERDAMPED, 2, 0.0)) == double["underdamped, Option 2, K = 4"]
    assert order_of_bias(Kernel(Scheme.CONTINUOUS, OVERDAMPED, 2, 0.0)) == double["RLMC"]
    assert order_of_bias(Kernel(Scheme.CONTINUOUS, UNDERDAMPED, 2, 0.0)) == double["underdamped RLMC"]


# -- where it must warn --------------------------------------------------------------------------------------------


def lower_bound(found):
    table = found.table
    np.testing.assert_allclose(table["bias_of_sd"], table["difference_of_sd"] + table["difference_half_of_sd"])
    assert not table["order_holds_of_sd"].any() and not found.order_holds
    assert "does not fall as fast as order" in found.sentence and "lower bound" in found.sentence


def test_order_is_refuted_where_the_step_is_far_too_long(probed):
    lower_bound(probed(gaussian, pmm.OLMC, step_size=5.0, scaling=np.ones(4), steps_per_draw=2)[0])
    lower_bound(probed(gaussian, pmm.RLMC, step_size=8.0, scaling=np.ones(4), steps_per_draw=2)[0])


def test_order_is_refuted_where_too_high_a_one_is_claimed(probed, monkeypatch):
    monkeypatch.setattr(probe, "order_of_bias", lambda kernel: 5)
    found, _, _ = probed(gaussian, pmm.PoissonULMC, step_size=0.5, K=2, scaling=np.ones(4), steps_per_draw=2)
    lower_bound(found)
    assert "order 5" in found.sentence


def levels(first, second, replicas=32, p=5, seed=0):
    rng = np.random.default_rng(seed)
    finest = rng.normal(size=(replicas, p))
    middle = finest + second + 0.01 * rng.normal(size=(replicas, p))
    return np.array([middle + first + 0.02 * rng.normal(size=(replicas, p)), middle, finest])


def test_false_alarms_of_the_order_check():
    """Count runs that refute an order which just holds: 600 of them at 1 %, at most 20 (1e-6 by chance)."""
    alarms = [
        not probe._extrapolated(levels(0.1, sign * 0.1 / 2**order, seed=seed), order, "")["order_holds"].all()
        for seed in range(100)
        for sign in (1.0, -1.0)
        for order in (1, 2, 3)
    ]
    assert sum(alarms) <= 20
    for sign in (1.0, -1.0):
        for order in (1, 2, 3):
            found = probe._extrapolated(levels(0.1, sign * 0.2 / 2**order, seed=1), order, "")
            assert not found["order_holds"].any()


def test_standard_errors_are_those_between_replicas():
    """Compare them with the spread over 200 seeds and 5 parameters, known to 3 % or better."""
    found = [probe._extrapolated(levels(0.1, 0.02, seed=seed), 1, "") for seed in range(200)]
    for name in ("difference", "difference_half", "bias"):
        spread = np.std([f[name] for f in found])
        promised = np.sqrt(np.mean([f[name + "_se"] ** 2 for f in found]))
        assert 0.85 < promised / spread < 1.15


def test_standard_errors_of_standard_deviations():
    """The same from records of independent normals, known to 3 %."""
    found = []
    for seed in range(200):
        x = np.random.default_rng(seed).normal(3.0, 2.0, size=(3, 32, 20, 4))
        sums = Sums(x.mean(axis=2), (x**2).mean(axis=2), np.ones((32, 4)), np.zeros(3, int), 0)
        found.append(probe._report(SimpleNamespace(labels=list("abcd")), sums, np.full(4, 2.0), 1))
    spread = np.std([table["difference_of_sd"] for table in found])
    promised = np.sqrt(np.mean([table["difference_of_sd_se"] ** 2 for table in found]))
    assert 0.85 < promised / spread < 1.15


def test_says_where_copies_do_not_stay_together(probed):
    def build():
        pm.NormalMixture("apart", w=[0.5, 0.5], mu=[-2.5, 2.5], sigma=1.0)
        pm.Normal("z")

    found, _, _ = probed(build, pmm.PoissonULMC, 200, step_size=1.0, K=64, scaling=[2.0, 1.0], steps_per_draw=4)
    assert found.table["distance"]["apart"] > 1.0 > 0.4 > found.table["distance"]["z"]
    # Said unless a bias is seen all the same.
    table = found.table.copy()
    for bias, said in ((0.01, True), (0.5, False)):
        table.loc["apart", ["bias", "bias_se", "bias_of_sd", "bias_of_sd_se"]] = [bias, 0.02, 0.0, 0.02]
        sentence = probe._sentence(table, 1, [], 0, 0, 100)
        assert ("drift apart as far as the posterior is wide in apart" in sentence) == said
        assert ("the mean of apart is off by 50.0 %" in sentence) != said


def test_says_where_it_was_too_short(probed):
    found, _, _ = probed(gaussian, pmm.ULMC, 30, step_size=0.02, scaling=np.ones(4), steps_per_draw=5)
    assert "too short for x[0]" in found.sentence


def test_says_where_transitions_were_unstable(probed):
    found, _, _ = probed(lambda: pm.HalfNormal("s"), pmm.PoissonULMC, step_size=2.0, K=64, scaling=[1.0])
    assert "transitions at the run's step were unstable" in found.sentence


def test_says_where_the_run_would_take_steps_in_parts(probed):
    """Check on Gaussians that a step bears nowhere, and everywhere; and that what failed is not counted twice."""
    options = {"K": 64, "scaling": np.ones(4), "steps_per_draw": 4}
    found, _, _ = probed(gaussian, pmm.PoissonULMC, 60, step_size=1.4, **options)
    assert "steep" not in found.sentence
    found, _, _ = probed(gaussian, pmm.PoissonULMC, 60, step_size=4.0, **options)
    unstable, steep = (
        int(re.search(rf"(\d+) of 1920 transitions {words}", found.sentence)[1])
        for words in ("at the run's step were unstable", "met places so steep that the run would refine them")
    )
    # Steps that begin with their midpoint tell no curvature: one in K.
    assert 60 < unstable and 0.97 * (1920 - unstable) < steep <= 1920 - unstable
    assert steepest_curvature(Kernel(Scheme.CELLS, UNDERDAMPED, 2, 0.0), 4.0, 1.0, 64) < 1.0
    # A gradient is needed between the ends of a step.
    assert "steep" not in probed(gaussian, pmm.ULMC, 30, step_size=2.0, scaling=np.ones(4))[0].sentence


# -- what it reports, and of what ----------------------------------------------------------------------------------


def test_parameters_of_every_kind(probed):
    def build():
        x, s = pm.Normal("x", 3.0, 2.0, shape=2), pm.HalfNormal("s")
        pm.Deterministic("line", 1.0 - 5.0 * x)
        pm.Deterministic("root", pm.math.sqrt(s))
        pm.Deterministic("constant", 4.0 + 0.0 * x[0])

    found, dt, step = probed(build, pmm.PoissonULMC, step_size=0.8, K=64, scaling=[2.0, 2.0, 1.0], steps_per_draw=4)
    table = found.table
    assert list(table.index) == list(bias_table(dt).index)
    for name in ("difference", "difference_half", "bias"):
        np.testing.assert_allclose(table[name]["line[0]"], -table[name]["x[0]"], rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(table[name + "_of_sd"]["line[1]"], table[name + "_of_sd"]["x[1]"], rtol=1e-6)
    # The page of the bias has this run: the mean of s is too small by 16 % of its sd, the sd too large by 9 %.
    assert abs(table["bias"]["s"] + 0.16) < 0.05
    assert table["bias"]["root"] < 0.0 < table["bias_of_sd"]["root"]
    assert table.loc["constant"].drop(["order_holds", "order_holds_of_sd"]).isna().all()
    assert table["order_holds"]["constant"]
    assert "mean of" in found.sentence or "sd of" in found.sentence
    # The same from a seed, also through a pickle, and not from another.
    again = bias_probe(dt, cloudpickle.loads(cloudpickle.dumps(step)), transitions=160, random_seed=1)
    assert again.table.equals(table) and again.sentence == found.sentence
    assert not bias_probe(dt, step, transitions=30, random_seed=2).table.equals(table)


def test_agrees_with_the_bias_from_gradients(probed):
    found, dt, _ = probed(gaussian, pmm.OLMC, step_size=0.5, scaling=np.ones(4), draws=2000)
    table = bias_table(dt)
    assert np.all(np.abs(found.table["bias_of_sd"] - table["bias_of_sd"] / table["sd_corrected"]) < 0.04)


def test_settings_are_those_of_each_chain(probed):
    _, dt, step = probed(gaussian, pmm.ULMC, 30, scaling=np.ones(4))
    dt = dt.copy()
    dt["sample_stats"]["step_size"][:, -1] = [0.1, 0.2, 0.3, 0.4]
    dt["sample_stats"]["friction"][:, -1] = [1.0, 2.0, 3.0, 4.0]
    setting = _setting(dt, step._arguments, np.array([3, 0, 0]))
    assert setting.alpha.ravel().tolist() == [0.4, 0.1, 0.1] and setting.friction.ravel().tolist() == [4.0, 1.0, 1.0]


@pytest.mark.parametrize("shape", [(4, 500), (1, 20), (3, 7), (64, 5), (7, 100)])
def test_starts_are_spread_over_the_run(shape):
    chain, draw = _starts(*shape)
    assert len(chain) == min(32, shape[0] * shape[1])
    assert chain.min() == 0 and chain.max() == min(shape[0], len(chain)) - 1
    assert draw.max() == shape[1] - 1 and draw.min() >= 0
    assert len(set(zip(chain.tolist(), draw.tolist(), strict=True))) == len(chain)


def test_coordinates_are_learnt_where_no_scaling_is_given(probed):
    """Check by a covariance that no diagonal whitens: in dense coordinates every direction has the same bias."""
    covariance = np.array([[1.0, 0.98], [0.98, 1.0]])

    def build():
        x = pm.MvNormal("x", np.zeros(2), covariance)
        pm.Deterministic("narrow", x[0] - x[1])

    found, _, step = probed(build, pmm.OLMC, 400, step_size=0.4, draws=400)
    expected = extrapolated([math.sqrt(1.0 + variance_error(step._arguments.kernel, 0.4 / 2**i, 1.0, 1)) for i in range(3)], 1)  # noqa: E501  # fmt: skip
    assert np.all(np.abs(found.table["bias_of_sd"] - expected) < 0.05)


# -- errors --------------------------------------------------------------------------------------------------------


def test_refuses_what_cannot_work(probed, sample):
    _, dt, step = probed(gaussian, pmm.PoissonULMC, 30, step_size=0.5, K=4)
    with pytest.raises(TypeError, match="step='ULMC'"):
        bias_probe(dt, "ULMC")
    for transitions in (10, 100.0, True, "many"):
        with pytest.raises(ValueError, match=r"transitions=.*integer of at least 30"):
            bias_probe(dt, step, transitions=transitions)
    with pytest.raises(ValueError, match="dt: must be"):
        bias_probe({}, step)
    with pm.Model():
        gaussian()
        nuts, mala, longer, more = pm.NUTS(), pmm.MALA(), pmm.PoissonULMC(step_size=0.6), pmm.PoissonULMC(K=8)
    with pytest.raises(TypeError, match="must be the step method of pmm_mcmc"):
        bias_probe(dt, nuts)
    with pytest.raises(ValueError, match="MALA"):
        bias_probe(dt, mala)
    with pytest.raises(ValueError, match="step=PoissonULMC: was made outside a model"):
        bias_probe(dt, pmm.PoissonULMC(step_size=0.5, K=4))
    with pytest.raises(ValueError, match=r"step_size=0.5, the step has step_size=0.6"):
        bias_probe(dt, longer)
    with pytest.raises(ValueError, match="K=4, the step has K=8"):
        bias_probe(dt, more)
    with pm.Model():
        gaussian()
        bare = sample(pmm.PoissonULMC(keep_gradients=False))
    with pytest.raises(ValueError, match="keep_gradients"):
        bias_probe(bare, step)
    overdamped = dt.copy()
    overdamped["sample_stats"] = dt["sample_stats"].dataset.drop_vars("friction")
    with pytest.raises(ValueError, match="no sample_stats 'friction'"):
        bias_probe(overdamped, step)


def other_names():
    pm.Normal("y", shape=4)


def other_length():
    pm.Normal("x", shape=5)


def other_density():
    pm.Normal("x", 0.1, shape=4)


def other_transform():
    pm.LogNormal("x", shape=4)


@pytest.mark.parametrize("other", [other_names, other_length, other_density, other_transform])
def test_refuses_the_result_of_another_model(probed, other):
    _, dt, _ = probed(gaussian, pmm.PoissonULMC, 30)
    with pm.Model():
        other()
        step = pmm.PoissonULMC()
    with pytest.raises(ValueError, match="with which it was sampled"):
        bias_probe(dt, step)


def test_refuses_data_that_have_changed_since(sample):
    with pm.Model():
        data = pm.Data("data", np.zeros(3))
        pm.Normal("y", pm.Normal("x"), observed=data)
        step = pmm.ULMC(step_size=0.2)
        dt = sample(step)
        bias_probe(dt, step, transitions=30)
        pm.set_data({"data": np.ones(3)})
        with pytest.raises(ValueError, match="and the same data"):
            bias_probe(dt, step, transitions=30)


def test_doctest(monkeypatch):
    monkeypatch.setattr(pm, "sample", functools.partial(pm.sample, progressbar=False, cores=1, quiet=True))
    result = doctest.testmod(sys.modules["pmm_mcmc.workbench.probe"])
    assert result.attempted > 3 and result.failed == 0

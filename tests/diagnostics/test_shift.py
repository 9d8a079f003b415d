"""What a step shifts is predicted at the end of a run, and counts for means whose bias no gradient shows."""

import json

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from results import tree

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.measured import Measured
from pmm_mcmc.diagnostics.shift import ATTRIBUTE, shift_at, shift_reasons
from pmm_mcmc.diagnostics.statement import UNDECIDED
from pmm_mcmc.langevin.gaussian_law import density_shift
from pmm_mcmc.langevin.methods import HARMONIC, Kernel, Scheme


def scaled(s, d):
    """A standard normal ``theta`` that scales ``d`` others, ``y ~ N(0, exp(-s theta))``."""
    with pm.Model() as model:
        theta, y = pm.Flat("theta"), pm.Flat("y", shape=d)
        square = (y**2).sum()
        pm.Potential("p", -0.5 * theta**2 - 0.5 * pt.exp(s * theta) * square + 0.5 * d * s * theta)
    return model


def predicted(dt, name):
    """Return the bias of a mean in sds by the attribute."""
    found = json.loads(dt["posterior"].attrs[ATTRIBUTE])
    first = dt["sample_stats"]["unconstrained"].values[..., 0].ravel()
    x = dt["posterior"][name].values.ravel()[[int(np.flatnonzero(first == value)[0]) for value in found["first"]]]
    return -np.cov(x, found["shift"])[0, 1] / x.std()


@pytest.mark.parametrize(("s", "d", "target"), [(0.35, 30, 0.1), (0.2, 60, 0.1)])
def test_the_bias_of_a_mean_is_predicted(s, d, target):
    """Biases of .081 and .094, with errors of .006 by 96,000 draws, were predicted as .070 and .089."""
    step = pmm.PoissonULMC(scheme="paper", K=16, target_bias=target)
    dt = pmm.sample(step, model=scaled(s, d), chains=32, draws=3000, random_seed=3, progressbar=False)
    bias = float(dt["posterior"]["theta"].mean())
    assert bias < -0.05
    assert predicted(dt, "theta") == pytest.approx(bias, abs=0.025)


def test_on_a_gaussian_nothing_is_shifted_and_hardly_a_gradient_spent():
    with pm.Model() as model:
        pm.Normal("x", 3.0, 2.0, shape=5)
    dt = pmm.sample(model=model, random_seed=1, progressbar=False)
    found = json.loads(dt["posterior"].attrs[ATTRIBUTE])
    assert found["gradients"] <= 3 * 48
    assert np.std(found["shift"]) < 1e-3


def test_an_exact_run_and_one_without_draws_have_no_shift():
    for how in ({"exact": True}, {"keep": "moments"}):
        with pm.Model():
            pm.Normal("x", shape=2)
            dt = pmm.sample(draws=100, random_seed=1, progressbar=False, **how)
        assert all(ATTRIBUTE not in group.attrs for group in dt.children.values())


# -- the reason ------------------------------------------------------------------------------------------------------


def measured(labels, known=(), error=0.03):
    p = len(labels)
    bias = np.array([0.0 if label in known else np.nan for label in labels])
    return Measured(labels, bias, bias, np.zeros(p), bias, bias, np.ones(p, bool), np.full(p, error), np.full(p, error))


def noted(slope, noise=0.0, seed=2):
    """Draws ``(4, 100, 2)`` and an attribute with a shift of ``slope`` for each sd of the first coordinate."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(4, 100, 2))
    at = x[:, ::2].reshape(-1, 2)
    shift = slope * (at[:, 0] - at[:, 0].mean()) / at[:, 0].std() + noise * rng.normal(size=len(at))
    return x, {ATTRIBUTE: json.dumps({"gradients": 0, "first": at[:, 0].tolist(), "shift": shift.tolist()})}


def reasons(slope, noise=0.0, known=(), error=0.03):
    x, attrs = noted(slope, noise)
    return shift_reasons(attrs, x, lambda numbers: x[..., numbers], measured(["a", "b"], known, error), 0.4)


def test_a_mean_that_may_be_moved_is_not_known():
    (reason,) = reasons(0.08)
    assert (reason.code, reason.parameter, reason.state) == ("shift", "a", UNDECIDED)
    assert reason.value == pytest.approx(0.06 + 0.08, abs=0.01)
    assert str(reason) == (
        "the mean of a is known to 14 % of a posterior sd only (two standard errors, and 8 % by which the step is "
        "predicted to move it), limit 10 %"
    )
    assert reason.remedy == "halve step_size to 0.2, or sample with exact=True"


@pytest.mark.parametrize(
    "what",
    [
        {"slope": 0.03},  # less than matters
        {"slope": 0.08, "error": 0.005},  # and the mean is known well
        {"slope": 0.08, "known": ("a",)},  # the bias is measured
        {"slope": 0.08, "noise": 1.0},  # two standard errors are .14
    ],
)
def test_nothing_is_said_of_a_mean_that_is_known(what):
    assert reasons(**what) == []


def test_draws_that_are_not_those_of_the_run_say_nothing():
    x, attrs = noted(0.2)
    other = x + 1.0
    assert shift_reasons(attrs, other, lambda numbers: other[..., numbers], measured(["a", "b"]), 0.4) == []
    few = x[:, :14]  # 28 of the draws
    assert shift_reasons(attrs, few, lambda numbers: few[..., numbers], measured(["a", "b"]), 0.4) == []


def test_the_verdict_hears_it():
    """A Cauchy variable: no bias of it is measurable."""
    rng = np.random.default_rng(7)
    x = rng.standard_cauchy(size=(4, 2000, 1))
    cut = np.abs(x) < 50.0
    x = np.where(cut, x, 1.0)
    dt = tree({"c": x[..., 0]}, x, -2.0 * x / (1.0 + x**2), step_size=np.full((4, 2000), 0.4))
    assert not any(reason.code == "shift" for reason in pmm.verdict(dt).reasons)
    at = x[:, ::20, 0].ravel()
    shift = (0.3 * (at - at.mean()) / at.std()).tolist()
    again = dt.copy()
    again["posterior"].attrs[ATTRIBUTE] = json.dumps({"gradients": 0, "first": at.tolist(), "shift": shift})
    assert any(reason.code == "shift" and reason.parameter == "c" for reason in pmm.verdict(again).reasons)


def test_more_draws_are_looked_at_where_the_shift_varies():
    """A standard normal theta, and nine others of precision c_i exp(s theta)."""
    kernel, s, c = Kernel(Scheme.RECYCLED, HARMONIC, 2, 0.0), 0.6, np.linspace(0.5, 2.0, 9)
    rng = np.random.default_rng(4)
    theta = rng.normal(size=(400, 1))
    draws = np.hstack([theta, rng.normal(size=(400, 9)) / np.sqrt(c * np.exp(s * theta))])

    def gradient(y):
        steep = c * np.exp(s * y[:, :1])
        pull = 4.5 * s - 0.5 * s * (steep * y[:, 1:] ** 2).sum(axis=1, keepdims=True)
        return np.hstack([pull - y[:, :1], -steep * y[:, 1:]])

    def shift(curvature):
        return density_shift(kernel, 0.7, 1.0, 1, curvature)

    few, many = (json.loads(shift_at(draws, theta[:, 0], gradient, shift, most)) for most in (0, 10_000))
    assert (len(few["shift"]), len(many["shift"])) == (45, 400)
    assert few["gradients"] == 5 * 45
    assert many["gradients"] == 5 * (45 + 400)

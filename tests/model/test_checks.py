"""What is said of a model whose log density has no finite value: the term, what is wrong with it, and what helps."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.exceptions import SamplingError
from pytensor.raise_op import Assert

import pmm_mcmc as pmm
from pmm_mcmc.model.checks import check_direction

pytestmark = [
    pytest.mark.pymc,
    pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered"),
]
RUN = {"progressbar": False, "compute_convergence_checks": False, "random_seed": 1}


def bounded(t):
    return pm.Uniform("t", -t, t)


def symmetric(t):
    return pm.Beta("t", t, t)


def triangular(t):
    return pm.Triangular("t", -t, t, c=t / 4)


def half_student(t):
    return pm.HalfStudentT("t", nu=3, sigma=t)


def squares_of_data(t):
    pixels = pt.as_tensor(np.array([1, t]).astype(np.int8 if isinstance(t, int) else float))
    pm.Normal("t", pm.Normal("a") * pixels**2, 1.0, observed=np.zeros(2))


@pytest.mark.parametrize("make", [bounded, symmetric, triangular, half_student, squares_of_data])
def test_whole_numbers_of_eight_bits(make):
    """Their sums, differences and squares overflow, some of them to a log density that is finite."""
    with pm.Model() as model:
        make(100)
    with pytest.raises(ValueError, match=r"t: PyTensor holds its whole numbers in 8 bits, where -?\d+ overflows to"):
        pmm.sample(model=model, **RUN)
    with pm.Model() as model:  # the remedy
        make(100.0)
    assert pmm.sample(20, tune=20, chains=2, model=model, **RUN)["posterior"].sizes["draw"] == 20


@pytest.mark.parametrize("family, count", [(pm.Beta, 2), (pm.Gamma, 1), (pm.Weibull, 1), (pm.InverseGamma, 1)])
def test_data_on_the_edge_of_a_support(family, count):
    with pm.Model() as model:
        family("y", pm.HalfNormal("a"), pm.HalfNormal("b"), observed=[0.0, 0.5, 1.0])
    with pytest.raises(SamplingError, match=rf"y \(.*of {count} of its 3 data \(0.*are all its data possible"):
        pmm.sample(model=model, **RUN)


def regression():
    y = pm.Data("data", np.arange(5.0))
    pm.Normal("y", pm.Normal("a") * pm.Data("X", np.arange(5.0)), 1.0, observed=y)
    return {"X": np.arange(7.0)}, r"y: its data of shape \(5,\) and its parameters of shape \(7,\) do not fit together"


def indexed():
    group = pm.Data("group", np.array([0, 1, 2, 0]))
    y = pm.Data("data", np.ones(4))
    pm.Normal("y", pm.Normal("a", shape=3)[group], pm.HalfNormal("s"), observed=y)
    return {"group": np.array([0, 1, 2, 3])}, r"y: .* do not fit together \(IndexError: index 3 is out of bounds"


def counted():
    y = pm.Data("data", np.array([0, 1, 0, 1, 1]))
    pm.Bernoulli("y", logit_p=pm.Data("X", np.ones((5, 2))) @ pm.Normal("a", shape=2), observed=y)
    return {"data": np.array([0, 1, 1])}, r"y: its data of shape \(3,\) and its parameters of shape \(5,\)"


@pytest.mark.parametrize("build", [regression, indexed, counted])
@pytest.mark.parametrize("sampled", [False, True])
def test_sizes_after_set_data(build, sampled):
    with pm.Model() as model:
        data, words = build()
        if sampled:
            pmm.sample(5, tune=5, chains=1, **RUN)
        pm.set_data(data)
    with pytest.raises(ValueError, match=words):
        pmm.sample(model=model, **RUN)


def test_predictions_are_not_marginalised():
    with pm.Model() as model:
        mu = pm.HalfNormal("mu")
        pm.Poisson("y", mu, observed=[1, 2])
        pm.Poisson("new", mu)
    with pytest.raises(ValueError, match=r"new: discrete variables without data.* are predictions.*posterior_pr"):
        pmm.sample(model=model, **RUN)
    with pm.Model() as model:
        pm.Poisson("y", 1.0 + pm.Bernoulli("z", 0.5) + pm.HalfNormal("mu"), observed=[1, 2])
    with pytest.raises(ValueError, match="z: discrete variables have no gradient; marginalise them out"):
        pmm.sample(model=model, **RUN)


def categories():
    weights = pm.math.exp(pm.Normal("a", shape=3))
    pm.Categorical("y", p=weights / (1.0 + weights.sum()), observed=[1, 2])


def mixture():
    weights = 0.9 * pm.Dirichlet("w", np.ones(3))
    pm.NormalMixture("y", weights, pm.Normal("mu", shape=3), sigma=1.0, observed=[0.0, 1.0])


def multinomial():
    p = pm.math.sigmoid(pm.Normal("a", shape=3))
    pm.Multinomial("y", 5, p, observed=[2, 2, 1])


@pytest.mark.parametrize("build", [categories, mixture, multinomial])
def test_weights_that_do_not_sum_to_one(build):
    with pm.Model() as model:
        build()
    words = r"y, of which a check fails \(.*sum.*; they sum to .* here\); let the last one take the rest"
    with pytest.raises(SamplingError, match=words):
        pmm.sample(model=model, **RUN)


def test_a_check_that_fails_at_the_start_or_in_an_output():
    with pm.Model() as model:
        a = Assert("a must be above nine")(pm.Normal("a"), False)
        pm.Normal("y", a, 1.0, observed=[1.0])
    with pytest.raises(SamplingError, match=r"y, of which a check fails .a must be above nine.; keep its parameters"):
        pmm.sample(model=model, **RUN)
    with pm.Model() as model:
        a = pm.Normal("a")
        pm.Deterministic("d", Assert("a must be above nine")(a, a > 9.0))
    tree = pmm.sample(20, tune=20, chains=2, model=model, **RUN)
    np.testing.assert_array_equal(tree["posterior"]["d"], tree["posterior"]["a"])


@pytest.mark.parametrize("improper", [True, False])
def test_flat_priors_that_leave_a_direction_without_end(improper):
    with pm.Model() as model:
        a = pm.Flat("a")
        b = pm.Normal("b", a)
        pm.Normal("other")
        pm.Normal("y", a - b if improper else a, observed=1.0)
    both = model.compile_fn([model.logp(), model.dlogp()], mode="FAST_COMPILE")

    def density_at(x):
        values = [both({"a": row[0], "b": row[1], "other": row[2]}) for row in x]
        return np.array([lp for lp, _ in values]), np.array([g for _, g in values])

    if not improper:
        check_direction(model, np.zeros(3), density_at)
        return
    with pytest.raises(ValueError, match=r"improper: it does not change when a, b move together.*of a is flat"):
        check_direction(model, np.zeros(3), density_at)

"""What is refused of a model before anything is compiled: the message has the name, the value and the remedy."""

import numpy as np
import pymc as pm
import pytest
from sampling_runs import run

from pmm_mcmc.model import pytensor_density as compiling
from pmm_mcmc.model.checks import check_direction

pytestmark = pytest.mark.pymc


def everything_observed():
    pm.Normal("y", observed=1.0)


def unused_flat():
    pm.Flat("a")
    pm.Normal("y", pm.Normal("x"), observed=[1.0, 2.0])


def unused_half_flat():
    pm.HalfFlat("s")
    pm.Normal("x")


def discrete():
    pm.Normal("x", pm.Poisson("count", 3.0))


def missing_data():
    pm.Normal("y", pm.Normal("x"), observed=pm.Data("data", [1.0, 2.0]))
    pm.set_data({"data": np.array([1.0, np.nan])})


def missing_covariate():
    pm.Normal("y", pm.Normal("x") * np.array([1.0, np.nan, 3.0]), observed=np.zeros(3))


def missing_rate():
    pm.NegativeBinomial("y", pm.math.exp(pm.Normal("x") * np.array([1.0, np.nan])), 1.0, observed=np.zeros(2, int))


def infinite():
    pm.Normal("y", pm.Normal("x"), observed=[1.0, np.inf])


def missing_counts():
    pm.Poisson("y", pm.math.exp(pm.Normal("x")), observed=np.ma.masked_equal([1, -1, 3], -1))


MODELS = {
    missing_counts: r"y: has missing values \(NaN\), of which PyMC makes discrete variables; leave these rows",
    everything_observed: "no free variables.*leave observed= out",
    unused_flat: r'a: the posterior is improper.*proper prior, such as pm.Normal\("a"',
    unused_half_flat: r'such as pm.HalfNormal\("s"',
    discrete: r"count: discrete.*pmx.marginalize\(model, \['count'\]\).*pm.sample\(step=pmm.PoissonULMC",
    missing_data: "data: 1 of 2 data are missing; leave these out",
    missing_covariate: r"y: 1 of 3 log densities are NaN, the first at \[1\], since data are; leave these out",
    missing_rate: "y: data that it depends on are NaN; leave these rows out",
    infinite: "y: 1 of 2 observed values are infinite; leave these out",
}
STARTS = {
    "a wrong name": ({"xx": 1.0}, "initvals: 'xx' is no variable of the model, which has x, s, n"),
    "a wrong shape": ({"x": 0.5}, r"initvals\['x'\]=0.5: must be numbers of shape \(3,\)"),
    "no number": ({"x": ["a", "b", "c"]}, r"initvals\['x'\]=.*must be numbers"),
    "a shape that data decide": ({"n": [1.0, 2.0]}, r"initvals\['n'\]=.*shape \(4,\)"),
    "outside the support": ({"s": -1.0}, r"initvals\['s'\]=-1.0: is not inside the support of s"),
    "at the edge of the support": ({"s": 0.0}, r"initvals\['s'\]=0.0: is not inside the support of s"),
    "unconstrained": ({"s_log__": [1.0]}, r"initvals\['s_log__'\]=.*shape \(\)"),
    "no dict": (5, "initvals=5: must be a dict"),
    "too few": ([{}], "initvals has 1 entries: must be one dict, or a list of one for each of 6 chains"),
}


@pytest.fixture(autouse=True)
def no_compilation(monkeypatch):
    monkeypatch.setattr(compiling, "compile", lambda *args, **options: pytest.fail("compiled before the check"))


@pytest.mark.filterwarnings("ignore:.*missing values:pymc.exceptions.ImputationWarning")
@pytest.mark.parametrize("build", MODELS)
def test_models_that_cannot_be_sampled(build):
    with pm.Model() as model:
        build()
    with pytest.raises(ValueError, match=MODELS[build]):
        run(model, "numba")


def test_what_is_no_model():
    with pytest.raises(ValueError, match=r"model=dict\(...\): must be a PyMC model, or a pmm.LogDensity"):
        run({"x": 1.0}, "numba")


@pytest.mark.parametrize("case", STARTS)
def test_values_to_start_at_that_do_not_fit(case):
    with pm.Model() as model:
        pm.Normal("x", shape=3)
        pm.HalfNormal("s")
        pm.Normal("n", pm.Data("data", np.zeros(4)))
    initvals, message = STARTS[case]
    with pytest.raises(ValueError, match=message):
        run(model, "numba", initvals=initvals)


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

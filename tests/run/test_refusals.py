"""What cannot work is refused before anything is compiled: one table of calls, errors and words of the message.

A message names the argument, its value and the remedy.  Nothing here is random.
"""

import re
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from pymc.step_methods.compound import CompoundStep
from sampling_runs import Opaque, run, temper

import pmm_mcmc as pmm
from pmm_mcmc.model import pytensor_density
from pmm_mcmc.run.request import _ELSEWHERE

pytest_plugins = ["sampling_fixtures"]
pytestmark = [
    pytest.mark.pymc,
    pytest.mark.quick,
    pytest.mark.filterwarnings("ignore:.*missing values:pymc.exceptions.ImputationWarning"),
]
NAN, INF = float("nan"), float("inf")
METHODS = ("PoissonOLMC", "PoissonULMC", "OLMC", "ULMC", "RLMC", "GHMC")
NUMBER = (0, 0.0, -0.1, NAN, INF, True, "large", None)
BIAS = "between 0.0001 and 0.5, in posterior standard deviations"
ENTRIES = "must have 3 entries|one positive number for each unconstrained coordinate|x, s_log__"


def built(build):
    with pm.Model() as model:
        build()
    return model


def mixed():
    pm.Normal("x", shape=2)
    pm.HalfNormal("s")
    pm.Poisson("count", 3.0)


def opaque():
    pm.Normal("y", Opaque()(pm.Normal("slope", shape=2)), observed=np.zeros(2))


def batched():
    pm.Normal("y", pm.Normal("mu"), observed=pm.Minibatch(np.arange(100.0), batch_size=10), total_size=100)


def discrete():
    pm.Poisson("count", 3.0)
    pm.Bernoulli("coin", 0.5)


def everything_observed():
    pm.Normal("y", observed=1.0)


def unused_flat():
    pm.Flat("a")
    pm.Normal("y", pm.Normal("x"), observed=[1.0, 2.0])


def unused_half_flat():
    pm.HalfFlat("s")
    pm.Normal("x")


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


def for_starts():
    pm.Normal("x", shape=3)
    pm.HalfNormal("s")
    pm.Normal("n", pm.Data("data", np.zeros(4)))


@pytest.fixture(scope="module")
def m(well, schools):
    """Models of the calls."""
    models = {build.__name__: built(build) for build in (mixed, opaque, batched, discrete)}
    return SimpleNamespace(well=well, schools=schools, normal=built(lambda: pm.Normal("x", shape=2)), **models)


def step(method, model="mixed", **arguments):
    """Return a call that makes a step within a model."""

    def call(m):
        with getattr(m, model):
            getattr(pmm, method)(**arguments)

    return call


def each(method, name, values, words, model="mixed"):
    """Return rows of values of an argument of a method; an error names them."""
    return [(step(method, model, **{name: value}), f"{name}={re.escape(repr(value))}: .*{words}") for value in values]


def within(model, call):
    def inside(m):
        with getattr(m, model) as entered:
            call(entered)

    return inside


def sampled(**options):
    return lambda m: run(m.well, **options)


def on(build, **options):
    return lambda m: run(built(build), "numba", **options)


def on_ladder(**options):
    return lambda m: temper(m.normal, **{"backend": "numba", "chains": 6, "ladder": 3} | options)


ARGUMENTS = [
    *each("PoissonULMC", "K", (0, 2.5, -1, NAN, True, 2.0, "16", None), "must be.*'auto'"),
    *each("PoissonULMC", "K", [10**9], "and at most 1048576, or 'auto'"),
    *each("PoissonOLMC", "K", [0], "must be.*'auto'"),
    *each("GHMC", "step_size", NUMBER, "must be.*'auto'"),
    *(row for method in METHODS for row in each(method, "step_size", [-0.1], "must be.*'auto'")),
    *each("ULMC", "friction", (0, -1.0, NAN, INF, "none"), "must be.*'auto'"),
    *(row for method in ("PoissonULMC", "RLMC", "GHMC") for row in each(method, "friction", [0], "must be.*'auto'")),
    *each("OLMC", "steps_per_draw", (0, 1.5, NAN, True), "must be.*'auto'"),
    *(row for method in METHODS for row in each(method, "steps_per_draw", [0], "must be.*'auto'")),
    *each("RLMC", "target_bias", (0, -0.1, 0.6, 1e-5, NAN, INF, True, "auto", None), BIAS),
    *(row for method in METHODS[:4] for row in each(method, "target_bias", [0], BIAS)),
    *each("PoissonULMC", "option", (3, 0, "2", True, None), "1 or 2"),
    *each("PoissonOLMC", "option", [3], "1 or 2"),
    *each("PoissonULMC", "grid", ("right", None, 0), "'left' or 'centred'"),
    *each("PoissonOLMC", "midpoint", ("late", None, 0.25), "'uniform' or 'importance'"),
    *each("PoissonULMC", "scheme", ("fast", None, True), "'paper' or 'recycled'"),
    *each("RLMC", "dynamics", ("damped", None, 1), "'overdamped' or 'underdamped'"),
    *(
        (step("PoissonULMC", scheme="recycled", **{name: value}), f"{name}={value!r}.*scheme='recycled'.*leave")
        for name, value in (("option", 1), ("grid", "centred"), ("K", 16), ("midpoint", "importance"))
    ),
    (step("PoissonOLMC", option=1, midpoint="importance"), "midpoint='importance'.*option=1.*leave midpoint out"),
    (step("RLMC", dynamics="overdamped", friction=2.0), "friction=2.0.*dynamics='overdamped'.*leave it out"),
    *(
        (step(method, scaling=value), words)
        for method, value, words in (
            *((method, [1.0, 2.0], "length 2: must have 3 entries") for method in METHODS),
            ("GHMC", [1.0, 0.0, 1.0], rf"scaling\[1\]=0.0.*({ENTRIES})"),
            ("ULMC", [1.0, 1.0, -2.0], rf"scaling\[2\]=-2.0.*({ENTRIES})"),
            ("ULMC", [NAN, 1.0, 1.0], rf"scaling\[0\]=nan.*({ENTRIES})"),
            ("ULMC", [1.0, 1.0, INF], rf"scaling\[2\]=inf.*({ENTRIES})"),
            ("OLMC", np.ones((3, 1)), rf"shape \(3, 1\).*({ENTRIES})"),
            ("OLMC", 1.0, rf"shape \(\).*({ENTRIES})"),
            ("GHMC", ["a", "b", "c"], rf"scaling=\['a', 'b', 'c'\].*({ENTRIES})"),
            ("GHMC", None, rf"shape \(\).*({ENTRIES})"),
        )
    ),
    *((step(method, blocked=False), "blocked=False.*leave blocked out.*vars=") for method in METHODS),
    (within("mixed", lambda model: pmm.GHMC(blocked=False, vars=model["x"])), "blocked=False"),
    (within("mixed", lambda model: pmm.ULMC([model["count"], model["x"]])), "vars: count is discrete .*leave it out"),
    (within("mixed", lambda model: pmm.ULMC(model["count"])), "vars: count is discrete"),
    (lambda m: within("mixed", lambda _: pmm.ULMC([m.normal["x"]]))(m), "vars: x is a variable of another model"),
    (within("mixed", lambda model: pmm.ULMC(2.0 * model["x"])), "vars: .*not a free variable.*x, s, count"),
    (within("schools", lambda model: pmm.GHMC([model["y"]])), "vars: y is not a free variable.*has: mu"),
    (step("PoissonULMC", "discrete"), "no continuous variable.*leave step= out"),
    *((step(method, "opaque"), "(?s)no gradient.*slope.*Opaque.*pm.Slice") for method in METHODS),
    *((step(method, "batched"), r"random.*Minibatch.*whole data \(pm.Data\)") for method in METHODS),
    (lambda m: CompoundStep([pmm.PoissonULMC(K=16)]), "created outside a model"),
    (lambda m: pmm.PoissonULMC([m.mixed["x"]]), "vars=.*needs a model"),
    (lambda m: pmm.GHMC(0.1), r"^vars=0\.1: needs a model"),
    (
        lambda m: pmm.sample(step=pmm.PoissonULMC(option=1), model=pm.Model(), backend="jax"),
        "option=1 does not run on JAX.*leave option out",
    ),
]
CALLS = [
    *((sampled(random_seed=s), "random_seed=.*: must be") for s in (-1, 1.5, True, "one", [-1], [0.5], object())),
    (sampled(step=pmm.PoissonULMC), r"step=PoissonULMC: is a class.*PoissonULMC\(\)"),
    (lambda m: run(m.well, step=[pmm.PoissonULMC(), pmm.GHMC()]), r"step: 2 steps.*pm\.sample\(step="),
    (sampled(step="nuts"), r"step='nuts'.*pm\.sample takes PyMC's own"),
    (sampled(step=True), "step=True"),
    (lambda m: run(m.well, step=xr.DataTree()), r"step=<DataTree>: is a result; pmm.temper\(\) samples by itself"),
    (lambda m: pmm.sample(pmm.ULMC(), model=m.well), r"draws=ULMC\(...\): is a step; .*pmm.sample\(step=pmm.ULMC"),
    (sampled(return_inferencedata=False), "always an ArviZ DataTree"),
    (lambda m: run(m.schools, var_names=["mu", "nu"]), "var_names=.*must be some of mu, tau, z, theta"),
    (lambda m: run(m.schools, var_names=[]), "var_names=.*must be some of mu, tau, z, theta"),
    (sampled(cores=2), "cores=2: is the number of numba's threads"),
    (lambda m: run(m.schools, cores=0), "cores=0: must be an integer of at least 1"),
    (sampled(draws=0), "draws"),
    (sampled(draws="all"), "draws='all': must be an integer of at least 1, or 'auto'"),
    (sampled(chains=2.5), "chains"),
    (sampled(tune=-1), "tune"),
    (sampled(backend="gpu"), "backend"),
    (sampled(backend=pmm.Jax(device="gpu")), "device"),
    (sampled(resume=True), "resume"),
    (sampled(initvals=np.zeros(4)), "initvals"),
    (lambda m: run(m.well, step=pmm.PoissonULMC(scaling=[1.0])), "scaling"),
    (sampled(backend="numba"), "numba"),
    *(
        (lambda m, name=name: run(m.well, **{name: 0.5}), f"^{name}=0.5 is no argument of pmm.sample: ")
        for name in sorted(set(_ELSEWHERE) - {"return_inferencedata"})
    ),
    *(
        (lambda m, name=name: run(m.well, **{name: 3}), rf"^{name}=3 is .*{words}")
        for name, words in (
            ("step_size", r"no argument of pmm.sample, but of the step: .*pmm\.GHMC\(step_size=3\)"),
            ("K", r"but of the step: .*pmm\.PoissonULMC\(K=3\)"),
            ("target_bias", "but of the step"),
            ("reparametrize", "did you mean reparametrise"),
            ("n_samples", "draws= is their number"),
            ("chain", "did you mean chains"),
            ("adjust", "did you mean adjusted"),
            ("progress_bar", "did you mean progressbar"),
            ("qwertz", "which takes draws, step.* adjusted, callback"),
        )
    ),
]
PRECISION = (
    "the Metropolis test of adjusted draws needs the log density in double precision; give adjusted=False for "
    "unadjusted draws, or leave precision out"
)
ADJUSTED = [
    (lambda m, options=options: pmm.sample(model=m.schools, **options), words)
    for options, words in (
        ({"adjusted": "yes"}, r"adjusted='yes': must be True or False"),
        ({"adjusted": 1}, r"adjusted=1: must be True or False"),
        ({"tune": 0}, r"step_size='auto' with tune=0"),
        ({"backend": pmm.Jax(precision="mixed")}, f"precision='mixed': {PRECISION}"),
        ({"backend": pmm.Jax(precision="float32")}, f"precision='float32': {PRECISION}"),
    )
]
FUNCTIONS = [
    *(
        (lambda m, ndim=ndim: pmm.LogDensity.from_jax(lambda x: -jnp.sum(x**2), ndim), "ndim=.*integer of at least 1")
        for ndim in (0, -1, True, 2.0, "2", None)
    ),
    *(
        (
            lambda m, fn=fn: pmm.LogDensity.from_jax(fn, 3),
            r"fn returns .* for a vector of length 3: must return one num",
        )
        for fn in (lambda x: -(x**2), lambda x: (jnp.sum(x), x), lambda x: jnp.sum(x)[None])
    ),
    *(
        (lambda m, fn=fn: pmm.LogDensity.from_jax(fn, 3), r"(?s)fn cannot be traced by JAX for a vec.*jax\.numpy")
        for fn in (lambda x: float(x[0]), lambda x: -jnp.sum(x**2) if x[0] > 0 else 0.0, np.linalg.det)
    ),
]
MODELS = [
    (on(missing_counts), r"y: has missing values \(NaN\), of which PyMC makes discrete variables; leave these rows"),
    (on(everything_observed), "no free variables.*leave observed= out"),
    (on(unused_flat), r'a: the posterior is improper.*proper prior, such as pm.Normal\("a"'),
    (on(unused_half_flat), r'such as pm.HalfNormal\("s"'),
    (
        on(lambda: pm.Normal("x", pm.Poisson("count", 3.0))),
        r"count: discrete.*pmx.marginalize\(model, \['count'\]\).*pm.sample\(step=pmm.PoissonULMC",
    ),
    (on(missing_data), "data: 1 of 2 data are missing; leave these out"),
    (on(missing_covariate), r"y: 1 of 3 log densities are NaN, the first at \[1\], since data are; leave these out"),
    (on(missing_rate), "y: data that it depends on are NaN; leave these rows out"),
    (on(infinite), "y: 1 of 2 observed values are infinite; leave these out"),
    (lambda m: run({"x": 1.0}, "numba"), r"model=dict\(...\): must be a PyMC model, or a pmm.LogDensity"),
    *(
        (on(for_starts, initvals=initvals), words)
        for initvals, words in (
            ({"xx": 1.0}, "initvals: 'xx' is no variable of the model, which has x, s, n"),
            ({"x": 0.5}, r"initvals\['x'\]=0.5: must be numbers of shape \(3,\)"),
            ({"x": ["a", "b", "c"]}, r"initvals\['x'\]=.*must be numbers"),
            ({"n": [1.0, 2.0]}, r"initvals\['n'\]=.*shape \(4,\)"),
            ({"s": -1.0}, r"initvals\['s'\]=-1.0: is not inside the support of s"),
            ({"s": 0.0}, r"initvals\['s'\]=0.0: is not inside the support of s"),
            ({"s_log__": [1.0]}, r"initvals\['s_log__'\]=.*shape \(\)"),
            (5, "initvals=5: must be a dict"),
            ([{}], "initvals has 1 entries: must be one dict, or a list of one for each of 6 chains"),
        )
    ),
    (
        within("schools", lambda model: run(model, step=pmm.ULMC([model["mu"]]))),
        "leave tau_log__, z out",
    ),
    (lambda m: run(m.normal, step=bound(m.schools)), "another model"),
]
LADDERS = [
    *(
        (
            on_ladder(ladder=ladder),
            ": must be 'auto', a number of temperature levels of at least 2, or temperatures that",
        )
        for ladder in ("prior", 1, [0.0, 0.5], [0.1, 1.0], [0.0, 0.6, 0.5, 1.0], [0.0, NAN, 1.0], [[0.0, 1.0]])
    ),
    (on_ladder(chains=4), "chains=4: is too few for two replicas of a ladder of 3 temperature levels; take chains=6"),
    (on_ladder(ladder=8, chains=10), "take chains=16 or more"),
    (on_ladder(reference="posterior"), "reference='posterior': must be"),
    (on_ladder(draws="auto"), "draws='auto' is for chains at one temperature"),
    (on_ladder(tune=0), "found in tuning"),
    (on_ladder(reference="prior", initvals={"x": np.zeros(2)}), "initvals= does not go with a ladder from the prior"),
    (on_ladder(backend=pmm.Jax(precision="mixed")), "double precision"),
    (lambda m: on_ladder(step=pmm.GHMC())(m), "ladder with GHMC"),
    (lambda m: on_ladder(step=pmm.PoissonULMC(step_size=0.1, scheme="recycled"))(m), "step_size=0.1 with a ladder"),
    (lambda m: on_ladder(step=pmm.PoissonULMC(reparametrise={"x": "noncentred"}))(m), "reparametrise="),
]


def bound(model):
    with model:
        return pmm.ULMC()


@pytest.mark.parametrize(("call", "words"), ARGUMENTS + CALLS + ADJUSTED + FUNCTIONS + MODELS + LADDERS)
def test_what_cannot_work_is_refused_before_anything_is_compiled(m, monkeypatch, call, words):
    monkeypatch.setattr(pytensor_density, "compile", lambda *_, **options: pytest.fail("compiled before the check"))
    with pytest.raises((ValueError, TypeError), match=words):
        call(m)

"""What a PyMC model can contain: transforms, data, missing values, other samplers, odd shapes.

Means and variances are z-scores by 200 batch means against exact answers: |z| < 4.5, false-alarm rate 1.2e-5 each,
about 150 of them.  The bias of the sampler is exactly known on Gaussians and allowed for; the settings make it far
smaller than the error (centred grid, short step) or nothing: GHMC.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.langevin.gaussian_law import variance_error

pytestmark = pytest.mark.pymc
statistical = pytest.mark.statistical

STEP = 0.3
SETTINGS = MethodArguments.checked("PoissonULMC", dynamics="underdamped", K=16, grid="centred", step_size=STEP)
BIAS = abs(variance_error(SETTINGS.kernel, STEP, 1.0, 16))  # of a variance, relative: 1e-5


def accurate(**options):
    return pmm.PoissonULMC(K=16, grid="centred", step_size=STEP, **options)


def agree(z_score, values, mean, variance, bias=BIAS):
    """Hold mean and second central moment of each coordinate of ``(chain, draw, ...)`` against exact ones."""
    values = np.asarray(values, dtype=float)
    values = values.reshape(*values.shape[:2], -1)
    mean, variance = np.broadcast_to(mean, values.shape[2:]), np.broadcast_to(variance, values.shape[2:])
    for i, (m, v) in enumerate(zip(mean, variance, strict=True)):
        assert z_score(values[..., i], m, allowance=bias * np.sqrt(v)) < 4.5, (i, "mean")
        assert z_score((values[..., i] - m) ** 2, v, allowance=bias * v) < 4.5, (i, "variance")


COMPOUND = {
    "centred": lambda **o: accurate(**o),
    "GHMC": lambda **o: pmm.GHMC(step_size=0.9, **o),
}


@pytest.fixture(scope="module")
def mixed():
    with pm.Model() as model:
        z = pm.Poisson("z", 3.0)
        pm.Normal("x", z, 0.5)
    return model


@statistical
@pytest.mark.parametrize("name", COMPOUND)
def test_beside_metropolis_for_discrete_variables(mixed, sample, z_score, name):
    # x given z is N(z, 1/4): the joint law is exact only if the chain goes on from the draw handed out.
    with mixed:
        step = [COMPOUND[name](vars=mixed["x"], scaling=[0.5], steps_per_draw=1), pm.Metropolis(mixed["z"])]
        dt = sample(step, draws=6000, tune=300, chains=4)
    x, z = (dt["posterior"][key].values.astype(float) for key in "xz")
    bias = BIAS if name == "centred" else 0.0
    agree(z_score, z, 3.0, 3.0, bias)
    agree(z_score, x, 3.0, 3.25, bias)
    agree(z_score, x - z, 0.0, 0.25, bias)
    assert z_score((x - 3.0) * (z - 3.0), 3.0, allowance=3.0 * bias) < 4.5
    assert dt["sample_stats"]["diverging" if name == "GHMC" else "unstable"].sum() == 0


COUPLED = {
    "paper": lambda **o: pmm.PoissonULMC(scheme="paper", **o),
    "ULMC": pmm.ULMC,
    "GHMC": pmm.GHMC,
}


def coupled():
    """Models of two variables that two steps move, and the step of the second; each has ``x`` near mean 0."""
    with pm.Model() as count:
        k = pm.Poisson("k", 4.0)
        pm.Normal("x", 0.5 * (k - 4.0), 1.0)
    yield "a count by Metropolis", count, lambda: pm.Metropolis([count["k"]])
    with pm.Model() as parent:
        pm.Normal("x", pm.Normal("k"), 1.0)
    yield "a parent by GHMC", parent, lambda: pmm.GHMC([parent["k"]])
    yield "a parent by another of ours", parent, lambda: pmm.PoissonULMC([parent["k"]], K=16)
    yield "a parent by NUTS", parent, lambda: pm.NUTS([parent["k"]])
    with pm.Model() as apart:
        pm.Normal("k", 50.0, 20.0)
        pm.Normal("x")
    yield "uncoupled", apart, lambda: pm.Slice([apart["k"]])


@statistical
@pytest.mark.parametrize(("model", "other"), [pytest.param(*case, id=name) for name, *case in coupled()])
@pytest.mark.parametrize("method", COUPLED)
def test_the_automatic_step_is_right_beside_a_step_that_moves_a_coupled_variable(sample, model, other, method):
    """``x`` given the others is a Gaussian with an sd of 1: the step is about that of a standard normal variable."""
    make = COUPLED[method]
    with pm.Model():
        pm.Normal("x")
        alone = sample(make(), draws=20, tune=300)
    with model:
        dt = sample([make(vars=[model["x"]]), other()], draws=300, tune=500)
    steps = dt["sample_stats"]["step_size"].values[0, -1] * np.ones(2)
    expected = alone["sample_stats"]["step_size"].values[0, -1]
    assert 0.7 < steps[0] / expected < 1.3, (steps, expected)


@statistical
def test_a_scale_that_the_other_step_moves_by_ten(sample, z_score):
    with pm.Model() as model:
        wide = pm.Bernoulli("wide", 0.5)
        pm.Normal("x", 0.0, pm.math.switch(wide, 10.0, 1.0))
        step = [pmm.PoissonULMC([model["x"]]), pm.BinaryGibbsMetropolis([wide])]
        dt = sample(step, draws=6000, tune=1000, chains=4)
    assert z_score(dt["posterior"]["wide"], 0.5) < 4.5
    assert z_score(dt["posterior"]["x"], 0.0) < 4.5 and dt["sample_stats"]["unstable"].sum() == 0


def test_the_recycled_scheme_is_refused_beside_others_where_it_would_cost_more(mixed):
    with mixed, pytest.raises(ValueError, match=r"beside other steps, which move z: .* leave scheme out"):
        pmm.PoissonULMC(scheme="recycled")


@statistical
@pytest.mark.parametrize("kind", ["random", "value"])
def test_beside_nuts_and_a_second_langevin_step(sample, z_score, kind):
    precision = np.array([[1.0, 0.6, 0.3], [0.6, 1.0, 0.2], [0.3, 0.2, 1.0]])
    with pm.Model() as model:
        parts = [pm.Flat(name) for name in "abc"]
        joint = pt.stack(parts)
        pm.Potential("density", -0.5 * joint @ precision @ joint)
        a, b, c = parts if kind == "random" else [model.rvs_to_values[part] for part in parts]
        start = dict.fromkeys("abc", 0.3)
        steps = [accurate(vars=[a], scaling=[1.0]), pmm.GHMC(vars=b, step_size=0.9, scaling=[1.0])]
        if kind == "random":
            steps.append(pm.NUTS([c]))
        else:
            steps.append(pmm.MALA(vars=[c], scaling=[1.0]))
        dt = sample(steps, draws=1500, tune=300, chains=4, initvals=start)
    covariance = np.linalg.inv(precision)
    draws = np.stack([dt["posterior"][name].values for name in "abc"], axis=-1)
    agree(z_score, draws, 0.0, np.diag(covariance))
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert z_score(draws[..., i] * draws[..., j], covariance[i, j], allowance=BIAS) < 4.5
    assert dt["sample_stats"]["n_grad_total"].shape[-1] == (2 if kind == "random" else 3)


@statistical
def test_missing_values(sample, z_score):
    # Continuous ones are sampled with the rest, discrete ones by Metropolis; neither says anything of mu and rate.
    y = np.array([0.7, np.nan, 1.9, np.nan])
    counts = np.ma.masked_array([2, 3, 0, 5], mask=[False, False, True, False])
    with pm.Model(), pytest.warns(pm.exceptions.ImputationWarning):
        mu = pm.Normal("mu", 0.0, 2.0)
        pm.Normal("y", mu, 1.0, observed=y)
        rate = pm.Gamma("rate", 4.0, 1.0)
        pm.Poisson("counts", rate, observed=counts)
        dt = sample(accurate(), draws=6000, tune=800, chains=4)
    draws = dt["posterior"]
    variance = 1 / (1 / 4 + 2)
    agree(z_score, draws["mu"], variance * 2.6, variance)
    agree(z_score, draws["y_unobserved"], variance * 2.6, variance + 1)
    agree(z_score, draws["rate"], 14 / 4, 14 / 16)
    agree(z_score, draws["counts_unobserved"], 14 / 4, 14 / 16 + 14 / 4)


@statistical
def test_data_changed_between_two_runs(sample, z_score):
    with pm.Model():
        rows = pm.Data("rows", np.array([1.0, 2.0]))
        pm.Normal("y", pm.Normal("mu", 0.0, 1.0), 1.0, observed=rows, shape=rows.shape)
        step = accurate()
        for values in ([1.0, 2.0], [-4.0, -4.5, -5.0, -6.5, 3.0], [7.0]):
            pm.set_data({"rows": np.array(values)})
            dt = sample(step, draws=3000, tune=300, chains=4)
            variance = 1 / (1 + len(values))
            agree(z_score, dt["posterior"]["mu"], variance * sum(values), variance)


def test_data_that_change_the_shape_of_a_variable_need_a_new_step(sample):
    with pm.Model(coords={"row": range(2)}) as model:
        pm.Data("rows", np.zeros(2), dims="row")
        pm.Normal("x", model["rows"], dims="row")
        step = pmm.ULMC(step_size=0.1)
        assert sample(step, tune=0, draws=5)["posterior"]["x"].shape == (1, 5, 2)
        pm.set_data({"rows": np.zeros(400)}, coords={"row": range(400)})
        # Compiled code would write beyond its arrays.
        with pytest.raises(ValueError, match=r"x has shape \(400,\), and had \(2,\) when the step method was made"):
            sample(step, tune=0, draws=5)
        assert sample(pmm.ULMC(step_size=0.1), tune=0, draws=5)["posterior"]["x"].shape == (1, 5, 400)


@pytest.mark.parametrize("name", ["centred", "GHMC"])
def test_nothing_to_move(sample, name):
    with pm.Model():
        pm.Normal("nothing", shape=(0, 2))
        dt = sample(COMPOUND[name](), draws=20, tune=30, chains=2)
    assert dt["posterior"]["nothing"].shape == (2, 20, 0, 2)
    assert np.all(dt["sample_stats"]["lp"].values == 0.0)
    assert dt["sample_stats"]["diverging" if name == "GHMC" else "unstable"].sum() == 0


@statistical
def test_model_argument_outside_a_context_one_dimension_and_initval(sample, z_score):
    with pm.Model() as model:
        pm.Normal("x", 5.0, 0.1, initval=4.0)
    step = pmm.PoissonULMC(model=model, vars=model["x"], blocked=True, K=16, grid="centred", step_size=STEP)
    dt = sample(step, draws=5000, tune=300, chains=4, model=model)
    agree(z_score, dt["posterior"]["x"], 5.0, 0.01)
    slow = pmm.ULMC(model=model, step_size=1e-9)
    starts = sample(slow, draws=8, tune=0, chains=8, model=model)["posterior"]["x"].values[:, 0]
    assert np.all(np.abs(starts - 4.0) < 1.01) and np.ptp(starts) > 0.5


FLOAT32 = """
import json
import numpy as np, pymc as pm, pmm_mcmc as pmm

out = {}
with pm.Model() as model:
    pm.Normal("x", [0.0, 30.0], [1.0, 0.1], shape=2)
    pm.HalfNormal("s")
    z = pm.Bernoulli("z", 0.3)
    pm.Normal("w", z, 1.0)
    options = dict(tune=300, draws=2000, chains=4, cores=1, progressbar=False, random_seed=1, quiet=True)
    for name, step in {
        "ulmc": pmm.PoissonULMC(K=16, grid="centred", step_size=0.3),
        "ghmc": pmm.GHMC(),
    }.items():
        dt = pm.sample(step=step, compute_convergence_checks=False, **options)
        draws = dt["posterior"]
        assert all(draws[key].dtype == "float32" for key in "xsw"), draws.dtypes
        assert all(np.isfinite(draws[key].values).all() for key in "xsw")
        out[name] = {key: draws[key].values.astype(float).tolist() for key in "xsw"}
        if name != "ghmc":
            out[name]["unstable"] = int(dt["sample_stats"]["unstable"].sum())
with pm.Model() as alone:
    pm.Normal("x", [0.0, 30.0], [1.0, 0.1], shape=2)
    step, runs = pmm.PoissonULMC(K=16, step_size=0.3), []
    for handed_back in (lambda point: point, lambda point: {"x": point["x"].copy()}):
        step.setup_chain(np.random.default_rng(1), 0, 30)
        point, draws = alone.initial_point(0), []
        for _ in range(30):
            point = handed_back(step.step(point)[0])
            draws.append(point["x"].copy())
        runs.append(np.array(draws))
    assert np.array_equal(*runs), "rounding to float32 is taken for a foreign move"
print(json.dumps(out))
"""


@statistical
@pytest.mark.process
def test_float32(run_script, z_score):
    found, log = run_script(FLOAT32, flags="floatX=float32")
    assert found is not None, log
    for draws in found.values():
        agree(z_score, draws["x"], [0.0, 30.0], [1.0, 0.01])
        agree(z_score, draws["s"], np.sqrt(2 / np.pi), 1 - 2 / np.pi)
        agree(z_score, draws["w"], 0.3, 1.21)
        assert draws.get("unstable", 0) == 0

"""NumPyro models as log densities: the same density and draws as NumPyro's own."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import scan
from numpyro.handlers import mask, reparam, seed, substitute, trace
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import constrain_fn, potential_energy
from numpyro_models import EXAMPLES, REFERENCES
from pymc.exceptions import SamplingError
from scipy.stats import norm

import pmm_mcmc as pmm

Y, SD = (
    np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
    np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
)
RUN = {"draws": 40, "tune": 200, "chains": 2, "random_seed": 1, "progressbar": False}
RUN["compute_convergence_checks"] = False


def schools(y, sd=SD):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.deterministic("twice", 2 * theta)
        numpyro.sample("obs", dist.Normal(theta, sd), obs=y)


def crossed():
    """Dependent supports, plates of two dimensions, events, a factor, and sites that change their shape."""
    low = numpyro.sample("low", dist.Exponential(1.0))
    numpyro.sample("above", dist.Uniform(low, low + 2.0))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    chol = numpyro.sample("chol", dist.LKJCholesky(2))
    with numpyro.plate("row", 3, dim=-2), numpyro.plate("column", 2, dim=-1):
        effect = numpyro.sample("effect", dist.Normal(low, 1.0))
    with numpyro.plate("row", 3):
        numpyro.sample("pair", dist.MultivariateNormal(jnp.zeros(2), scale_tril=chol))
        numpyro.sample("event", dist.Normal(jnp.zeros(2), low).to_event(1))
    numpyro.factor("extra", -0.5 * (effect**2).sum())
    numpyro.sample("count", dist.Multinomial(4, weights), obs=jnp.array([1, 2, 1]))


def walk():
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))

    def move(x, y):
        x = numpyro.sample("x", dist.Normal(x, scale))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)
        return x, None

    scan(move, 0.0, jnp.array([0.3, 1.0, -0.5]))


def hidden():
    level = numpyro.sample("level", dist.LogNormal(0.0, 1.0))
    with numpyro.plate("unit", 4), mask(mask=jnp.array([True, True, False, True])):
        numpyro.sample("y", dist.Poisson(level), obs=jnp.array([1, 0, 3, 2]))


MODELS = {
    "schools": (schools, (Y,), {}),
    "schools by keyword": (schools, (), {"y": Y, "sd": SD}),
    "crossed": (crossed, (), {}),
    "walk": (walk, (), {}),
    "masked": (hidden, (), {}),
    "non-centred by NumPyro": (reparam(schools, config={"theta": LocScaleReparam(0)}), (Y,), {}),
}


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", MODELS)
def test_density_and_values_are_those_of_numpyro(name):
    model, args, kwargs = MODELS[name]
    density = pmm.LogDensity.from_numpyro(model, *args, **kwargs)
    x = jnp.asarray(np.random.default_rng(1).normal(size=density.d))
    traced = trace(substitute(seed(model, 0), substitute_fn=numpyro.infer.init_to_median())).get_trace(*args, **kwargs)
    params, start = {}, 0
    for site, found in traced.items():
        if found["type"] == "sample" and not found["is_observed"]:
            shape = dist.biject_to(found["fn"].support).inv(found["value"]).shape
            size = int(np.prod(shape))
            params[site], start = x[start : start + size].reshape(shape), start + size
    assert start == density.d == len(density.layout.names)
    value, gradient = density.batch(x[None], [], "float64")
    energy = jax.value_and_grad(
        lambda x: -potential_energy(seed(model, 0), args, kwargs, jax.flatten_util.ravel_pytree(params)[1](x))
    )
    # NumPyro's flat vector is in alphabetical order.
    flat, _ = jax.flatten_util.ravel_pytree(params)
    expected = energy(flat)
    np.testing.assert_allclose(value[0], expected[0], rtol=1e-12)
    np.testing.assert_allclose(np.sort(gradient[0]), np.sort(expected[1]), rtol=1e-9, atol=1e-12)
    draws = np.tile(np.asarray(x), (1, 3, 1))
    values = density.layout.values(draws)
    theirs = constrain_fn(seed(model, 0), args, kwargs, params, return_deterministic=True)
    assert set(values) == set(theirs)
    for site, array in values.items():
        np.testing.assert_allclose(array[0, 2], theirs[site], rtol=1e-12)


def test_draws_have_names_and_plates(tmp_path):
    dt = pmm.sample(model=pmm.LogDensity.from_numpyro(schools, Y), store=tmp_path / "a", **RUN)
    assert dt["posterior"]["theta"].dims == dt["posterior"]["twice"].dims == ("chain", "draw", "school")
    assert list(dt["posterior"].data_vars) == ["mu", "tau", "theta", "twice"]
    np.testing.assert_array_equal(dt["posterior"]["twice"], 2 * dt["posterior"]["theta"])
    assert pmm.verdict(dt).state in ("trusted", "undecided", "not trusted")
    assert pmm.workbench.report(dt, tmp_path / "report.html").stat().st_size > 10_000
    draws = {name: values.values for name, values in dt["posterior"].data_vars.items()}
    terms = numpyro.infer.log_likelihood(schools, draws, Y, batch_ndims=2)
    assert terms["obs"].shape == (*draws["mu"].shape, 8)
    np.testing.assert_array_equal(dt["observed_data"]["obs"], Y)
    assert dt["posterior"].attrs["reparametrisation"] == "theta is sampled non-centred"
    # The same model made anew, as in another process, continues the run with the same bytes.
    again = pmm.LogDensity.from_numpyro(schools, Y)
    longer = pmm.sample(model=again, store=tmp_path / "a", resume=True, **RUN | {"draws": 60})
    whole = pmm.sample(model=again, **RUN | {"draws": 60})
    for group, site in (("posterior", "tau"), ("posterior", "theta")):
        np.testing.assert_array_equal(longer[group][site], whole[group][site])
    other = pmm.LogDensity.from_numpyro(schools, Y + 1.0)
    with pytest.raises(pmm.StoreError, match="density: other values"):
        pmm.sample(model=other, store=tmp_path / "a", resume=True, **RUN | {"draws": 60})


def test_plates_of_two_dimensions_and_events():
    density = pmm.LogDensity.from_numpyro(crossed)
    dt = density.layout.tree({"posterior": density.layout.values(np.zeros((1, 2, density.d)))}, {})
    dims = {name: array.dims[2:] for name, array in dt["posterior"].items()}
    assert dims["effect"] == ("row", "column") and dims["pair"] == ("row", "pair_dim_1")
    assert dims["weights"] == ("weights_dim_0",) and dims["chol"] == ("chol_dim_0", "chol_dim_1")
    assert dims["event"] == ("row", "event_dim_1")


def test_what_may_be_noncentred_is_read_from_the_trace():
    def children(model, *args):
        structure = pmm.LogDensity.from_numpyro(model, *args).noncentred({}).structure
        return [child.name for child in structure.children]

    def levels():
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("group", 2, dim=-1):
            upper = numpyro.sample("upper", dist.StudentT(4.0, 0.0, scale))
            with numpyro.plate("unit", 3, dim=-2):
                numpyro.sample("lower", dist.Normal(upper, 1.0))
        numpyro.sample("fixed", dist.Normal(0.0, 1.0))
        numpyro.sample("positive", dist.LogNormal(upper.sum(), scale))

    assert children(levels) == ["upper", "lower"]
    assert children(schools, Y) == ["theta"]
    assert children(walk) == []  # each element depends on the one before
    assert children(reparam(schools, config={"theta": LocScaleReparam(0)}), Y) == []
    with pytest.raises(ValueError, match="'mu' is none of the children of the LogDensity: theta"):
        pmm.LogDensity.from_numpyro(schools, Y).noncentred({"mu": "noncentred"})


def discrete():
    numpyro.sample("k", dist.Poisson(3.0))


def subsampled():
    mu = numpyro.sample("mu", dist.Normal())
    with numpyro.plate("row", 8, subsample_size=2):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=jnp.zeros(2))


def optimised():
    numpyro.sample("y", dist.Normal(numpyro.param("mu", 0.0), 1.0))


@pytest.mark.parametrize(
    ("model", "args", "message"),
    [
        (discrete, (), r"k: a discrete latent site \(Poisson\) has no gradient; sum it out"),
        (subsampled, (), "plate row: takes a random subsample of 2 of 8"),
        (optimised, (), "mu: is a numpyro.param"),
        (lambda: numpyro.sample("x", dist.Delta(1.0)), (), r"x: is a point mass \(Delta\)"),
        (lambda: numpyro.sample("y", dist.Normal(), obs=1.0), (), "has no latent site"),
        (lambda: None, (), "has no latent site"),
        (schools, (), "cannot be run at these arguments: .*missing 1 required"),
        (schools, (Y, SD[:3]), "cannot be run at these arguments"),
        ("schools", (), "model='schools': must be a function of NumPyro's primitives"),
        (None, (), "model=None: must be a function"),
    ],
)
def test_what_cannot_be_sampled_is_refused(model, args, message):
    with pytest.raises(ValueError, match=message):
        pmm.LogDensity.from_numpyro(model, *args)


def test_chains_start_where_sites_are_given():
    density = pmm.LogDensity.from_numpyro(crossed)
    x = density.start({"low": 2.0, "above": 3.0, "weights": [0.2, 0.3, 0.5]})
    values = {name: array[0, 0] for name, array in density.layout.values(x[None, None]).items()}
    for site, value in {"low": 2.0, "above": 3.0, "weights": [0.2, 0.3, 0.5], "effect": np.zeros((3, 2))}.items():
        np.testing.assert_allclose(values[site], value, atol=1e-12)
    assert pmm.LogDensity.from_numpyro(walk).start({"x": [1.0, 2.0, 3.0]}).tolist() == [0.0, 1.0, 2.0, 3.0]
    density = pmm.LogDensity.from_numpyro(schools, Y)
    still = {"tune": 0, "draws": 1, "step": pmm.PoissonULMC(step_size=1e-9, friction=1.0, K=1, steps_per_draw=1)}
    dt = pmm.sample(model=density, initvals=[{"tau": 2.0}, {"tau": 3.0, "theta": np.arange(8.0)}], **RUN | still)
    np.testing.assert_allclose(dt["posterior"]["tau"][:, 0], [2.0, 3.0], atol=1e-6)
    np.testing.assert_allclose(dt["posterior"]["theta"][:, 0], [np.zeros(8), np.arange(8.0)], atol=1e-6)
    for given, message in (
        ({"nu": 1.0}, "initvals: 'nu' is no variable of the NumPyro model, which has mu, tau, theta"),
        ({"mu": "x"}, r"initvals\['mu'\]='x': must be numbers of shape \(\)"),
        ({"tau": -1.0}, r"initvals\['tau'\]=-1.0: is outside the support of the site, Positive"),
        (np.zeros(3), r"initvals has shape \(3,\): must be an array of shape .*, or a dict of values by name"),
    ):
        with pytest.raises(ValueError, match=message):
            pmm.sample(model=density, initvals=given, **RUN)


def test_a_parameter_that_is_invalid_where_the_model_is_first_run_is_no_obstacle():
    def model():
        mu = numpyro.sample("mu", dist.Normal())
        numpyro.sample("y", dist.Normal(jnp.where(mu > 100.0, mu, jnp.nan), 1.0), obs=101.0)

    density = pmm.LogDensity.from_numpyro(model)
    assert np.isfinite(density.batch(jnp.array([[100.5]]), [], "float64")[0]).all()
    with pytest.raises(
        SamplingError,
        match=r"chain 0 starts .*: not finite at site y \(Normal distribution got invalid loc parameter\)",
    ):
        pmm.sample(model=density, **RUN)


def test_another_mode_is_looked_for_where_the_prior_is():
    """The prior alone says that there is something so far from the chains."""

    def two(far):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1000.0))
        numpyro.factor("modes", jnp.logaddexp(-0.5 * mu**2, -0.5 * (mu - far) ** 2))

    dt = pmm.sample(model=pmm.LogDensity.from_numpyro(two, 1500.0), draws=500, random_seed=1, progressbar=False)
    assert not pmm.verdict(dt).trusted and abs(float(dt["posterior"]["mu"].mean())) < 1.0
    improper = pmm.LogDensity.from_numpyro(
        lambda: numpyro.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
    )
    assert improper.prior(np.array([1, 2])).shape == (0, 1)


def test_a_ladder_keeps_names_and_supports():
    dt = pmm.temper(
        model=pmm.LogDensity.from_numpyro(schools, Y), ladder=[0.0, 0.3, 1.0], **RUN | {"chains": 12, "draws": 10}
    )
    assert (
        list(dt["posterior"].data_vars) == ["mu", "tau", "theta", "twice"] and float(dt["posterior"]["tau"].min()) > 0
    )
    assert dt["posterior"]["theta"].dims == ("chain", "draw", "school")


def test_variables_are_in_the_order_of_the_model():
    def model():
        numpyro.deterministic("twice", 2 * numpyro.sample("later", dist.Normal()))
        numpyro.sample("among", dist.Normal())

    assert list(pmm.LogDensity.from_numpyro(model).layout.values(np.zeros((1, 1, 2)))) == ["later", "twice", "among"]


@pytest.mark.statistical
@pytest.mark.parametrize("name", EXAMPLES)
def test_models_of_the_gallery_agree_with_their_nuts(name):
    """Moments of a long run of NUTS, which ``numpyro_models.py`` keeps; 1 % false alarms a model."""
    kept, example = json.loads(REFERENCES.read_text())[name], EXAMPLES[name]
    dt = pmm.sample(model=pmm.LogDensity.from_numpyro(example.model, *example.args()), random_seed=1, progressbar=False)
    assert pmm.verdict(dt).trusted
    table, at = pmm.summary(dt), {label: i for i, label in enumerate(kept["labels"])}
    where = [at[label] for label in table.index]
    mean, sd, error = (np.array(kept[field])[where] for field in ("mean", "sd", "mcse_mean"))
    z = (table["mean_cv"].to_numpy(float) - mean) / np.hypot(error, table["mcse_cv"].to_numpy(float))
    assert np.abs(z).max() < norm.isf(0.005 / len(z)), (table.index[np.abs(z).argmax()], z)
    assert np.abs(table["sd"].to_numpy(float) / sd - 1.0).max() < 0.15


def test_data_are_those_at_the_time():
    y = Y.copy()
    density = pmm.LogDensity.from_numpyro(schools, y, sd=SD)
    before = density.batch(jnp.zeros((1, 10)), [], "float64")[0]
    y[:] = 0.0
    jax.clear_caches()
    np.testing.assert_array_equal(density.batch(jnp.zeros((1, 10)), [], "float64")[0], before)


def test_the_door_does_not_change_jax_precision_for_others():
    with jax.enable_x64(False):
        pmm.LogDensity.from_numpyro(schools, Y)
        assert jnp.ones(1).dtype == jnp.float32


PREDICTION = """
import jax, jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist
from numpyro.infer import Predictive
import pmm_mcmc as pmm

def schools(sd, y=None):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(sd)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("obs", dist.Normal(theta, sd), obs=y)

sd = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
density = pmm.LogDensity.from_numpyro(schools, sd, y=np.zeros(8))
posterior = {"mu": jnp.zeros((2, 9)), "tau": jnp.ones((2, 9)), "theta": jnp.zeros((2, 9, 8))}
print(list(Predictive(schools, posterior, batch_ndims=2)(jax.random.key(1), sd)["obs"].shape))
"""


def test_data_can_be_used_in_single_precision_afterwards(run_script):
    """JAX remembers an array by identity, with the precision that it first met it in."""
    found, errors = run_script(PREDICTION)
    assert found == [2, 9, 8], errors

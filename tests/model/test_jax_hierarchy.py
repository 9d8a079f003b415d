"""Children of a log density in JAX, given as functions: the same map as a PyMC model's, and what is refused."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest
from hierarchy_models import EFFECT, ERROR, densities, some_noncentring

import pmm_mcmc as pmm
from pmm_mcmc.model.jax_density import JaxDensity
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.request import Request
from pmm_mcmc.run.storage.store import differences

OPTIONS = {"draws": 50, "tune": 200, "chains": 4, "random_seed": 1, "progressbar": False}
OPTIONS["compute_convergence_checks"] = False


def levels():
    """Three levels with scales that PyMC has as logarithms, without a sign: the model, and its density by hand."""
    with pm.Model() as model:
        mu, tau, omega = pm.Normal("mu", 0.0, 3.0), pm.LogNormal("tau"), pm.LogNormal("omega", -1.0, 1.0)
        a = pm.Normal("a", mu, tau, shape=3)
        b = pm.StudentT("b", nu=4.0, mu=a[:, None], sigma=omega, shape=(3, 2))
        pm.Normal("y", b, 1.0, observed=np.arange(6.0).reshape(3, 2))

    def fn(x):
        mu, tau, omega, a, b = x[0], jnp.exp(x[1]), jnp.exp(x[2]), x[3:6], x[6:]
        w, v = (a - mu) / tau, (b - jnp.repeat(a, 2)) / omega
        lp = -0.5 * (mu**2 / 9.0 + x[1] ** 2 + (x[2] + 1.0) ** 2 + (w**2).sum() + ((jnp.arange(6.0) - b) ** 2).sum())
        lp += -2.5 * jnp.log1p(v**2 / 4.0).sum() - 3.0 * x[1] - 6.0 * x[2]
        return lp - 6.0 * np.log(2.0 * np.pi) - np.log(3.0) + 6.0 * np.log(3.0 / 8.0)

    children = {
        "b": (slice(6, 12), lambda x: jnp.repeat(x[3:6], 2), lambda x: jnp.exp(x[2])),
        "a": (slice(3, 6), lambda x: x[0], lambda x: jnp.exp(x[1])),
    }
    return model, pmm.LogDensity.from_jax(fn, 12, children=children)


def test_the_map_is_that_of_the_model():
    model, density = levels()
    _, mapped, _ = densities(model)
    ours, rng, d = density.noncentred({}), np.random.default_rng(1), 12
    assert [child.name for child in ours.structure.children] == ["a", "b"], "a parent comes first, as in the model"
    noncentring = some_noncentring(mapped.structure, rng)
    mapped.density_parameters.set_value(noncentring)
    theirs = JaxDensity.from_model(mapped)
    z = rng.normal(size=(3, d))
    # Some constants of the model, such as the log of 3.0, are of single precision: 5e-10 of the log density.
    for precision, tolerance in (("float64", 1e-9), ("float32", 1e-3)):
        with jax.enable_x64(precision != "float32"):
            found = [one.batch(jnp.asarray(z), one.shared(precision, noncentring), precision) for one in (ours, theirs)]
        for ourselves, them in zip(*found, strict=True):
            np.testing.assert_allclose(ourselves, them, rtol=tolerance, atol=tolerance)
    x, gradient = np.array(found[1][1][:, d : 2 * d], float), rng.normal(size=(3, d))
    for ourselves, them in (
        (ours.structure.to_z(x, noncentring), mapped.structure.to_z(x, noncentring)),
        (ours.structure.pull_back(z, gradient, noncentring), mapped.structure.pull_back(z, gradient, noncentring)),
    ):
        for one, other in zip(ourselves, them, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    x, slope = rng.normal(size=(2, 100, d))
    pairs = rng.normal(size=(2, 4, 8, d))
    np.testing.assert_allclose(
        ours.structure.learn(x, slope, pairs, noncentring),
        mapped.structure.learn(x, slope, pairs, noncentring),
        rtol=1e-7,
        atol=1e-9,
    )


def schools():
    def fn(x):
        mu, tau, theta = x[0], jnp.exp(x[1]), x[2:]
        lp = -0.5 * (mu / 5) ** 2 - jnp.log1p((tau / 5) ** 2) + x[1]
        lp += jnp.sum(-0.5 * ((theta - mu) / tau) ** 2 - jnp.log(tau))
        return lp - 0.5 * jnp.sum(((theta - EFFECT) / ERROR) ** 2)

    return fn, {"theta": (slice(2, 10), lambda x: x[0], lambda x: jnp.exp(x[1]))}


def test_eight_schools_as_a_function(tmp_path):
    fn, children = schools()
    density = pmm.LogDensity.from_jax(fn, 10, children=children)
    dt = pmm.sample(model=density, chains=8, random_seed=1, progressbar=False, store=tmp_path / "run")
    assert dt["posterior"].attrs["reparametrisation"] == "theta is sampled non-centred"
    assert pmm.verdict(dt).trusted
    degree = pmm.noncentring(dt)["theta"].values
    assert (0.6 < degree).all() and (degree < 1.0).all() and degree[np.argmax(ERROR)] > degree[np.argmin(ERROR)]
    # Draws, positions and log density are of the function as it is given.
    x = dt["posterior"]["x"].values
    np.testing.assert_array_equal(x, dt["sample_stats"]["unconstrained"].values)
    with jax.enable_x64(True):
        assert dt["sample_stats"]["lp"].values[3, 5] == pytest.approx(float(fn(jnp.asarray(x[3, 5]))), abs=1e-9)
    # sd(mu) by quadrature of the marginal posterior is 3.3; here four standard errors of 8000 draws.
    assert x[..., 0].mean() == pytest.approx(4.4, abs=0.25)


def test_choices_are_those_of_a_model():
    fn, children = schools()
    density = pmm.LogDensity.from_jax(fn, 10, children=children)
    fixed = pmm.sample(step=pmm.PoissonULMC(reparametrise={"theta": "noncentred"}), model=density, **OPTIONS)
    assert (pmm.noncentring(fixed)["theta"] == 1.0).all()
    for step in (
        pmm.PoissonULMC(reparametrise=False),
        pmm.PoissonULMC(reparametrise={"theta": "centred"}),
        pmm.PoissonULMC(scaling=np.ones(10)),
    ):
        plain = pmm.sample(step=step, model=density, **OPTIONS)
        assert "noncentred" not in plain["sample_stats"] and not pmm.noncentring(plain)
    with pytest.raises(ValueError, match="'mu' is none of the children of the LogDensity: theta"):
        pmm.sample(step=pmm.PoissonULMC(reparametrise={"mu": "centred"}), model=density, **OPTIONS)


def test_other_children_are_another_density():
    fn, children = schools()
    at, location, _ = children["theta"]
    variants = (None, children, {"theta": (at, location, lambda x: jnp.exp(x[0]))}, {"t": children["theta"]})

    def identity(given):
        return SamplingPlan.of(Request(model=pmm.LogDensity.from_jax(fn, 10, children=given))).identity

    made = list(map(identity, variants))
    assert all(differences(one, other) for one, other in itertools.combinations(made, 2))
    assert not differences(made[1], identity(children)) and not differences(made[0], identity({}))


def test_a_dependence_that_was_not_seen_is_no_wrong_density():
    """A location that depends on its own child far out: nowhere a density that lacks that part of the Jacobian."""
    fn, children = schools()
    at, _, scale = children["theta"]
    hidden = {"theta": (at, lambda x: jnp.where(x[0] > 8.0, x[3], x[0]), scale)}
    density = pmm.LogDensity.from_jax(fn, 10, children=hidden).noncentred({})
    with jax.enable_x64(True):
        z = jnp.asarray(np.random.default_rng(0).normal(size=(2, 10))).at[1, 0].set(9.0)
        lp, _ = density.batch(z, density.shared("float64", density.structure.initial_noncentring()), "float64")
    assert np.isfinite(lp[0]) and np.isnan(lp[1])


def one(at=slice(2, 10), location=lambda x: x[0], scale=lambda x: jnp.exp(x[1])):
    return {"theta": (at, location, scale)}


@pytest.mark.parametrize(
    ("children", "message"),
    [
        ([slice(2, 10)], r"must be a dict of name: \(slice\(start, stop\), location, scale\)"),
        ({"theta": slice(2, 10)}, r"children\['theta'\]=.*must be a dict"),
        ({0: one()["theta"]}, r"children\[0\]=.*must be a dict"),
        (one(slice(2, 11)), r"slice\(2, 11, None\) must be slice\(start, stop\) of some of the 10 coordinates"),
        (one(slice(2, 10, 2)), "must be slice"),
        (one(slice(-2, None)), "must be slice"),
        (one(slice(4, 4)), "must be slice"),
        (one() | {"b": (slice(9, 10), lambda x: x[0], lambda x: 1.0)}, "coordinate 9 is of 'theta' too"),
        (one(location=0.0), "its location is 0.0: must be a function of the whole vector"),
        (one(scale=lambda x: x[:3]), r"its scale has shape \(3,\): must return one number, or one for each of the 8"),
        (one(scale=lambda x: (x[0], x[1])), "its scale has shape None"),
        (one(location=lambda x: float(x[0])), "its location cannot be traced by JAX"),
        (one(scale=lambda x: 0.0 * x[1]), "its scale is 0, at the origin"),
        (one(scale=lambda x: jnp.sqrt(-1.0 - x[1] ** 2)), "is not finite"),
        (one(location=lambda x: x.mean()), "depends on 'theta' itself; read what they need by index"),
        (
            {"a": (slice(0, 1), lambda x: x[1], lambda x: 1.0), "b": (slice(1, 2), lambda x: x[0], lambda x: 1.0)},
            "children: a, b depend on each other",
        ),
    ],
)
def test_what_cannot_be_children_is_refused(children, message):
    with pytest.raises(ValueError, match=message):
        pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2), 10, children=children)


def test_a_scale_may_be_negative():
    """A standard deviation in all of R: where it is negative the noise is turned, and the density stays right."""

    def fn(x):
        return -0.5 * (x[0] ** 2 + (x[0] - 1.0) ** 2 + ((x[1:] / x[0]) ** 2).sum()) - 2.0 * jnp.log(jnp.abs(x[0]))

    children = {"a": (slice(1, 3), lambda x: 0.0 * x[0], lambda x: x[0])}
    density = pmm.LogDensity.from_jax(fn, 3, children=children).noncentred({})
    x, noncentring = np.array([[-0.7, 0.4, -1.1]]), np.array([0.3, -0.2, 1.5, 0.4, 0.0])
    z, log_det = density.structure.to_z(x, noncentring)
    with jax.enable_x64(True):
        lp, found = density.batch(jnp.asarray(z), density.shared("float64", noncentring), "float64")
        expected = float(fn(jnp.asarray(x[0])))
    np.testing.assert_allclose(found[0, 3:6], x[0], rtol=1e-12)
    assert float(lp[0]) == pytest.approx(expected + log_det[0], rel=1e-12)


def test_the_map_is_traced_in_one_precision_after_the_other():
    def fn(x):
        return -0.5 * (x[0] ** 2 + 9.0 * x[0] + jnp.sum(x[1:] ** 2) * jnp.exp(-x[0]))

    children = {"theta": (slice(1, 10), lambda x: 0.0, lambda x: jnp.exp(x[0] / 2))}
    mapped = pmm.LogDensity.from_jax(fn, 10, children=children).noncentred({"theta": "noncentred"})
    noncentring = mapped.structure.initial_noncentring()

    def evaluated(z, precision):
        shared = mapped.shared(precision, noncentring)
        return jax.jit(lambda z, shared: mapped.batch(z, shared, precision))(z.astype(precision), shared)

    z = np.random.default_rng(0).normal(size=(100, 10))
    mapped.structure.pull_back(z[:1], np.ones((1, 10)), noncentring)
    with jax.enable_x64(False):
        single, _ = evaluated(z, "float32")
    x, _ = mapped.structure.pull_back(z, np.ones((100, 10)), noncentring)
    with jax.enable_x64(True):
        double, evaluation = evaluated(z, "float64")
    np.testing.assert_allclose(single, double, rtol=1e-4)
    np.testing.assert_allclose(x, evaluation[:, 10:20], rtol=1e-12)

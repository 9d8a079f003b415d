"""How far variables are non-centred from the starts on, and which scales keep their sign."""

import numpy as np
import pymc as pm
import pytest
from hierarchy_models import densities, eight_schools

import pmm_mcmc as pmm
from pmm_mcmc.coordinates.structure import Signs, Structure
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.tape.density import TapedDensity
from pmm_mcmc.warmup.noncentring import noncentring_at_starts, one_sided
from pmm_mcmc.warmup.warm_up import Warming

ARGUMENTS = MethodArguments.checked("PoissonULMC", dynamics="underdamped", scheme="recycled")


def counts(prior, groups=20, rows=600):
    """Return a Poisson regression with one factor, whose scale has a prior."""
    rng = np.random.default_rng(4)
    group = rng.integers(groups, size=rows)
    effect = 0.5 * rng.normal(size=groups)
    with pm.Model() as model:
        u = pm.Normal("u", 0.0, prior("s"), shape=groups)
        pm.Poisson(
            "y", pm.math.exp(pm.Normal("level", 0.0, 5.0) + u[group]), observed=rng.poisson(np.exp(effect[group]))
        )
    return model


def engine_and_starts(model):
    """Return the engine of a model on the tape, and starts around its own."""
    _, mapped, start = densities(model)
    engine = NumbaEngine.of(ARGUMENTS, TapedDensity(mapped), 1)
    return engine, start + np.random.default_rng(0).uniform(-1.0, 1.0, size=(4, start.size))


@pytest.mark.parametrize(
    ("prior", "low", "high"),
    [
        (lambda name: pm.HalfNormal(name, 100.0), 0.0, 1e-3),
        (lambda name: pm.Uniform(name, 0.0, 1e5), 0.0, 1e-8),
        (lambda name: pm.HalfNormal(name, 1e-3), 0.99, 1.0),
    ],
    ids=["wide", "wider", "narrow"],
)
def test_the_degree_at_the_starts_is_the_share_of_the_prior_there(prior, low, high):
    engine, starts = engine_and_starts(counts(prior))
    noncentring, n_grad = noncentring_at_starts(engine, starts)
    share = engine.structure.degree(starts, noncentring)["u"]
    assert (share >= low).all() and (share <= high).all()
    assert n_grad == 8  # four starts, and a place near each


def test_gradients_at_the_starts_are_counted():
    engine, starts = engine_and_starts(counts(lambda name: pm.HalfNormal(name, 100.0)))
    warming = Warming.start(engine, ARGUMENTS, starts, 100, np.random.default_rng(1))
    assert (warming.n_grad >= 4).all()  # the start, its gradient, and eight for the degree over four chains


def test_a_variable_that_is_non_centred_by_name_costs_no_gradient():
    _, mapped, start = densities(counts(lambda name: pm.HalfNormal(name, 100.0)), {"u": "noncentred"})
    engine = NumbaEngine.of(ARGUMENTS, TapedDensity(mapped), 1)
    noncentring, n_grad = noncentring_at_starts(engine, np.tile(start, (4, 1)))
    assert n_grad == 4 and not noncentring[: engine.structure.children[0].n_parameters].any()


def test_gradients_of_pairs_are_counted():
    engine, starts = engine_and_starts(counts(lambda name: pm.HalfNormal(name, 1.0)))
    warming = Warming.start(engine, ARGUMENTS, starts, 200, np.random.default_rng(1))
    warming.block(engine)
    warmup = warming.warmup
    assert warmup._noncentring.evaluations == 8
    assert warmup.n_grad == warmup._steepest.evaluations + 8


def gaussian_draws(structure, precision, rng):
    """Return draws of a Gaussian in the coordinates of the chains, with scales on the positive side, and gradients."""
    z = rng.multivariate_normal(np.zeros(structure.d), np.linalg.inv(precision), size=600)
    z[:, structure.signed] = np.abs(z[:, structure.signed])
    return z, -z @ precision


@pytest.mark.parametrize("coupled", [False, True])
def test_a_scale_keeps_its_sign_unless_what_changes_sign_with_it_is_tied_to_what_does_not(coupled):
    _, mapped, start = densities(eight_schools())
    structure = mapped.structure
    precision = np.eye(start.size)
    (child,) = structure.children
    if coupled:  # data hold the sum of mu and each effect
        precision[0, child.at] = precision[child.at, 0] = 100.0
        precision[child.at, child.at] += 100.0 * np.eye(child.size)
        precision[0, 0] += 100.0 * child.size
    z, gradient = gaussian_draws(structure, precision, np.random.default_rng(2))
    assert one_sided(structure, z, gradient, structure.initial_noncentring()).tolist() == [coupled]


def test_a_scale_two_sds_from_0_keeps_its_sign():
    """Where the centre of the other side is says nothing of what a step meets there."""
    _, mapped, start = densities(eight_schools())
    structure = mapped.structure
    z = np.random.default_rng(2).normal(size=(600, start.size))
    gradient = -z
    z[:, structure.signed] = np.abs(z[:, structure.signed] + 2.0)
    assert not one_sided(structure, z, gradient, structure.initial_noncentring()).any()


def test_a_scale_whose_logarithm_is_normal_has_no_sign():
    _, mapped, start = densities(eight_schools())
    structure = mapped.structure
    (scale,) = structure.signed
    noncentring = structure.initial_noncentring()
    logarithm = np.random.default_rng(2).normal(size=600)  # of a scale around 1, that is its c
    z = np.random.default_rng(3).normal(size=(600, start.size))
    gradient = -z
    z[:, scale] = np.arcsinh(np.exp(logarithm))
    gradient[:, scale] = (-logarithm - np.cosh(z[:, scale]) ** -2) / np.tanh(z[:, scale])
    np.testing.assert_allclose(structure.as_logarithms(z, gradient, noncentring, np.arange(1))[1][:, scale], -logarithm)
    assert one_sided(structure, z, gradient, noncentring).all()


@pytest.mark.parametrize("logarithm", [False, True])
def test_a_scale_that_changes_sign_alone_takes_the_form_that_is_normal(logarithm):
    """As one of an integrated block does."""
    signs = Signs(np.array([0]), np.array([[0], [-1]]), ("s",))
    structure = Structure(2, [], lambda p: [], None, signs)
    z = np.random.default_rng(3).normal(size=(600, 2))
    gradient = -z
    if not logarithm:
        z[:, 0] = np.abs(z[:, 0])
        gradient[:, 0] = -z[:, 0]
    else:
        u = z[:, 0].copy()
        z[:, 0] = np.arcsinh(np.exp(u))
        gradient[:, 0] = (-u - np.cosh(z[:, 0]) ** -2) / np.tanh(z[:, 0])
    assert one_sided(structure, z, gradient, np.zeros(structure.n_parameters)).tolist() == [logarithm]


def test_a_scale_without_sign_is_the_logarithm():
    _, mapped, start = densities(eight_schools())
    structure = mapped.structure
    x = np.random.default_rng(3).normal(size=(50, start.size))
    noncentring = structure.without_sign(structure.initial_noncentring(), np.ones(1, bool))
    z, _ = structure.to_z(x, noncentring)
    (scale,) = structure.signed
    np.testing.assert_allclose(np.diff(z[:, scale]), np.diff(x[:, scale]), rtol=1e-6)


@pytest.mark.parametrize(
    "prior",
    [
        lambda name: pm.HalfNormal(name, 100.0),
        lambda name: pm.HalfCauchy(name, 25.0),
        lambda name: pm.Uniform(name, 0.0, 100.0),
    ],
    ids=["HalfNormal", "HalfCauchy", "Uniform"],
)
def test_a_wide_prior_costs_what_a_narrow_one_does(prior):
    """Before, half of these runs were refused, after 20 times the gradients."""
    costs = []
    for this in (prior, lambda name: pm.HalfNormal(name, 1.0)):
        dt = pmm.sample(model=counts(this), random_seed=1, progressbar=False)
        assert pmm.verdict(dt).trusted
        costs.append(float(dt["sample_stats"]["n_grad_total"].max()))
    assert costs[0] < 3.0 * costs[1]


def far(case):
    """Return a model whose prior starts chains far from its posterior."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=200)
    with pm.Model() as model:
        if case == "intercept":
            level = pm.Normal("level", 0.0, 100.0)
            pm.Poisson("y", pm.math.exp(level + 0.3 * x), observed=rng.poisson(np.exp(2.0 + 0.3 * x)))
        elif case == "inverse gamma":
            variance = pm.InverseGamma("variance", 0.001, 0.001)
            pm.Normal("y", pm.Normal("level", 0.0, 100.0), pm.math.sqrt(variance), observed=x)
        elif case == "units":
            pm.Normal("y", pm.Normal("level", 0.0, 1e6), pm.HalfNormal("noise", 1e6), observed=1e5 + 1e3 * x)
        elif case == "Weibull":
            shape = pm.Uniform("shape", 0.0, 1000.0)
            pm.Weibull("y", shape, pm.Uniform("size", 0.0, 1000.0), observed=3.0 * rng.weibull(1.5, size=200))
        else:
            size = pm.Uniform("size", 0.0, 1000.0)
            pm.NegativeBinomial("y", pm.Uniform("mean", 0.0, 1000.0), size, observed=rng.negative_binomial(5, 0.4, 200))
    return model


@pytest.mark.parametrize("case", ["intercept", "inverse gamma", "units", "Weibull", "negative binomial"])
def test_far_starts_without_children_are_no_matter(case):
    dt = pmm.sample(model=far(case), random_seed=1, progressbar=False)
    assert pmm.verdict(dt).trusted

"""Models written with pymc.dims: the non-centring, signs and densities of the same models without names."""

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.model.checks import flat_priors
from pmm_mcmc.model.pymc_density import choose_vars, log_density, periods_of
from pmm_mcmc.tape.density import TapedDensity

pytestmark = pytest.mark.pymc
Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
E = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
TABLE = np.random.default_rng(1).normal(size=(6, 5))
COORDS = {"g": range(8), "a": range(6), "b": range(5), "k": range(2), "l": range(2)}


def schools(dims):
    if dims:
        tau = pmd.HalfCauchy("tau", 5.0)
        theta = pmd.Normal("theta", pmd.Normal("mu", 0.0, 5.0), tau, dims="g")
        pmd.Normal("y", theta, pmd.Data("e", E, dims="g"), observed=pmd.Data("data", Y, dims="g"))
    else:
        tau = pm.HalfCauchy("tau", 5.0)
        theta = pm.Normal("theta", pm.Normal("mu", 0.0, 5.0), tau, shape=8)
        pm.Normal("y", theta, E, observed=Y)


def crossed(dims):
    if dims:
        t = pmd.HalfNormal("t", 1.0, dims="b")
        theta = pmd.Normal("theta", pmd.Normal("mu", dims="b"), t, dims=("b", "a"))
        pmd.Normal("y", theta, 1.0, observed=pmd.as_xtensor(TABLE, dims=("a", "b")))
    else:
        t = pm.HalfNormal("t", 1.0, shape=5)
        theta = pm.Normal("theta", pm.Normal("mu", shape=5)[:, None], t[:, None], shape=(5, 6))
        pm.Normal("y", theta.T, 1.0, observed=TABLE)


def rates(dims):
    if dims:
        rate = pmd.LogNormal("rate", pmd.Normal("m"), pmd.Exponential("s", 1.0), dims="g")
        pmd.Poisson("y", rate, observed=pmd.as_xtensor(np.arange(8), dims="g"))
    else:
        pm.Poisson("y", pm.LogNormal("rate", pm.Normal("m"), pm.Exponential("s", 1.0), shape=8), observed=np.arange(8))


def zero_sum(dims):
    if dims:
        z = pmd.ZeroSumNormal("z", sigma=pmd.HalfNormal("s", 1.0), core_dims="g", dims=("g",))
        pmd.Normal("y", z, 5.0, observed=pmd.as_xtensor(Y, dims="g"))
    else:
        pm.Normal("y", pm.ZeroSumNormal("z", sigma=pm.HalfNormal("s", 1.0), shape=8), 5.0, observed=Y)


def vectors(dims):
    L, _, _ = pm.LKJCholeskyCov("L", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=2))
    if dims:
        chol = pmd.as_xtensor(L, dims=("k", "l"))
        v = pmd.MvNormal("v", pmd.Normal("m", dims="k"), chol=chol, core_dims=("k", "l"), dims=("g", "k"))
        pmd.Normal("y", v, 1.0, observed=pmd.as_xtensor(np.outer(Y, [0.1, 0.2]), dims=("g", "k")))
    else:
        v = pm.MvNormal("v", pm.Normal("m", shape=2), chol=L, shape=(8, 2))
        pm.Normal("y", v, 1.0, observed=np.outer(Y, [0.1, 0.2]))


def model_of(build, dims):
    with pm.Model(coords=COORDS) as model:
        build(dims)
    return model


@pytest.mark.parametrize("build", [schools, crossed, rates, zero_sum, vectors])
def test_the_density_and_its_coordinates_are_those_without_names(build):
    models = [model_of(build, dims) for dims in (True, False)]
    named, plain = (log_density(choose_vars(None, m), m, m.initial_point(0), {}) for m in models)
    names = [(name, shape) for name, shape, *_ in plain.layout]
    assert sorted((name, shape) for name, shape, *_ in named.layout) == sorted(names)
    assert [(c.name, c.kind) for c in named.structure.children] == [(c.name, c.kind) for c in plain.structure.children]
    assert named.structure.children
    ends = np.cumsum([0, *(size for _, _, size, _ in named.layout)])
    place = {name: slice(*ends[i : i + 2]) for i, (name, *_) in enumerate(named.layout)}
    order = np.concatenate([np.arange(plain.d)[place[name]] for name, _ in names])  # PyMC may order variables otherwise
    signs = [{name for name, at in place.items() if np.isin(np.arange(plain.d)[at], s).any()} for s in (
        named.structure.signed, order[plain.structure.signed])]  # fmt: skip
    assert signs[0] == signs[1]
    for z in np.random.default_rng(3).normal(0.0, 0.4, size=(3, plain.d)):
        (value, evaluation), (expected, of_plain) = (
            TapedDensity(density).by_pytensor(at) for density, at in ((named, z), (plain, z[order]))
        )
        np.testing.assert_allclose(value, expected, rtol=1e-9)
        np.testing.assert_allclose(evaluation[: plain.d][order], of_plain[: plain.d], rtol=1e-7, atol=1e-9)


def test_eight_schools_cost_what_they_cost_without_names():
    steps = [pmm.GHMC(reparametrise={"theta": "noncentred"}), pmm.GHMC()]
    models = [model_of(schools, dims=dims) for dims in (True, False)]
    run = {"random_seed": 1, "progressbar": False}
    trees = [pmm.sample(model=model, step=step, **run) for model, step in zip(models, steps, strict=True)]
    gradients = [int(tree["sample_stats"]["n_steps"].sum()) for tree in trees]
    assert max(gradients) < 20_000, gradients
    assert all(pmm.verdict(tree).trusted for tree in trees)


def test_flat_priors_and_angles_are_seen():
    with pm.Model(coords=COORDS) as model:
        flat = pmd.Flat("flat")
        angle = pmd.VonMises("angle", mu=0.0, kappa=1.0)
        pmd.Normal("y", flat + angle, 1.0, observed=pmd.as_xtensor(Y, dims="g"))
    assert [rv.name for rv in flat_priors(model)] == ["flat"]
    assert periods_of(model.value_vars, model) is not None

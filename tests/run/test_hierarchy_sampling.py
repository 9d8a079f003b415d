"""A hierarchy as it is written, by both doors: said once, right, trusted; stored and resumed with its non-centring."""

import json

import numpy as np
import pymc as pm
import pytest
from hierarchy_models import EFFECT, ERROR, eight_schools

import pmm_mcmc as pmm
from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.run.storage import StoreError

pytestmark = pytest.mark.pymc
WORDS = "theta is sampled non-centred about mu, scaled by tau"


@pytest.fixture(scope="module")
def schools():
    return eight_schools()


def truth():
    """Mean and sd of ``tau``, by quadrature over ``log tau`` with ``mu`` integrated out."""
    u = np.linspace(-12, 6, 4001)
    tau = np.exp(u)
    v = tau[:, None] ** 2 + ERROR**2
    precision = (1 / v).sum(axis=1) + 1 / 25
    mean = (EFFECT / v).sum(axis=1) / precision
    lp = -0.5 * np.log(v).sum(axis=1) - 0.5 * (EFFECT**2 / v).sum(axis=1) + 0.5 * mean**2 * precision
    lp += u - 0.5 * np.log(precision) - np.log1p((tau / 5) ** 2)
    w = np.exp(lp - lp.max())
    w /= w.sum()
    return (w * tau).sum(), np.sqrt((w * tau**2).sum() - (w * tau).sum() ** 2)


@pytest.mark.parametrize("backend", ["numba", "jax"])
def test_eight_schools_as_written(schools, backend, caplog, tmp_path):
    options = {"draws": 1000, "chains": 8, "random_seed": 1, "backend": backend, "model": schools}
    with caplog.at_level("INFO", logger="pmm_mcmc"):
        dt = pmm.sample(**options)
    assert [record.message for record in caplog.records].count(WORDS) == 1
    attrs, stats = dt["posterior"].attrs, dt["sample_stats"]
    assert attrs["reparametrisation"] == WORDS
    mean, sd = truth()
    assert abs(float(dt["posterior"]["tau"].mean()) - mean) < 0.06 * sd, "4 standard errors of 8000 draws and more"
    assert pmm.verdict(dt).trusted
    degree = pmm.noncentring(dt)["theta"].values
    # The prior's share of an effect's precision, at the scales that there are: more where the error is larger.
    assert (0.6 < degree).all() and (degree < 1.0).all() and degree[np.argmax(ERROR)] > degree[np.argmin(ERROR)]
    # Positions and log density are the model's own; gradients are of the non-centred coordinates beside them.
    position = stats["unconstrained"].values
    np.testing.assert_allclose(position[..., 2:], dt["posterior"]["theta"].values, rtol=1e-12)
    logp = schools.compile_logp()
    for chain, draw in [(0, 0), (7, 999)]:
        x = position[chain, draw]
        assert stats["lp"].values[chain, draw] == pytest.approx(
            float(logp({"mu": x[0], "tau_log__": x[1], "theta": x[2:]})), abs=1e-8
        )
    q = stats["noncentred"].values
    np.testing.assert_allclose(q[..., :2], position[..., :2], rtol=1e-8, atol=1e-8)
    assert np.abs(np.corrcoef(q.reshape(-1, 10).T)[1, 2:]).max() < 0.5


def test_a_stopped_run_goes_on_to_the_byte(schools, tmp_path):
    options = {"chains": 4, "random_seed": 3, "model": schools, "progressbar": False}
    options["compute_convergence_checks"] = False
    whole = pmm.sample(draws=60, store=tmp_path / "whole", **options)
    pmm.sample(draws=20, store=tmp_path / "parts", **options)
    parts = pmm.sample(draws=60, store=tmp_path / "parts", resume=True, **options)
    for name in ("unconstrained", "noncentred", "gradient", "lp"):
        np.testing.assert_array_equal(parts["sample_stats"][name].values, whole["sample_stats"][name].values)
    noncentring = json.loads(parts["posterior"].attrs["noncentring"])["parameters"]
    assert noncentring == json.loads(whole["posterior"].attrs["noncentring"])["parameters"]


def test_a_store_with_another_non_centring_is_refused_by_name(schools, tmp_path, monkeypatch):
    """As one is that was written before a version of the package that non-centres otherwise."""
    options = {"chains": 2, "random_seed": 3, "model": schools, "progressbar": False, "store": tmp_path / "run"}
    options["compute_convergence_checks"] = False
    pmm.sample(draws=5, **options)
    monkeypatch.setattr(Structure, "words", "theta is sampled otherwise")
    with pytest.raises(StoreError, match=r"noncentring: .*non-centred about mu"):
        pmm.sample(draws=10, resume=True, **options)


def test_non_centred_by_hand(tmp_path):
    """As Bambi writes a group: the scale has a sign, in all that is kept it has none, and the posterior is right."""
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
        offset = pm.Normal("offset", shape=8)
        pm.Normal("y", mu + tau * offset, ERROR, observed=EFFECT)
    options = {"chains": 8, "random_seed": 1, "model": model, "progressbar": False}
    dt = pmm.sample(draws=1000, **options)
    mean, sd = truth()
    assert abs(float(dt["posterior"]["tau"].mean()) - mean) < 0.06 * sd, "4 standard errors of 8000 draws and more"
    assert dt["posterior"].attrs["reparametrisation"] == "tau is sampled with a sign"
    assert not pmm.noncentring(dt).data_vars and pmm.verdict(dt).trusted
    stats = dt["sample_stats"]
    np.testing.assert_allclose(stats["noncentred"].values, stats["unconstrained"].values, rtol=1e-8, atol=1e-8)
    pmm.sample(draws=20, store=tmp_path / "parts", **options)
    parts = pmm.sample(draws=60, store=tmp_path / "parts", resume=True, **options)
    found = parts["sample_stats"]["unconstrained"].values
    np.testing.assert_array_equal(found, stats["unconstrained"].values[:, :60])


def test_what_is_asked_for_is_done(schools):
    options = {"draws": 50, "chains": 4, "random_seed": 1, "model": schools, "progressbar": False}
    options["compute_convergence_checks"] = False
    fixed = pmm.sample(step=pmm.PoissonULMC(reparametrise={"theta": "noncentred"}), **options)
    assert (pmm.noncentring(fixed)["theta"] == 1.0).all()
    for step in (
        pmm.PoissonULMC(reparametrise={"theta": "centred"}),
        pmm.PoissonULMC(reparametrise=False),
        pmm.PoissonULMC(scaling=np.ones(10)),
    ):
        plain = pmm.sample(step=step, **options)
        assert "noncentred" not in plain["sample_stats"] and not pmm.noncentring(plain)
    with pytest.raises(ValueError, match="'teta' is not a free variable"):
        pmm.sample(step=pmm.PoissonULMC(reparametrise={"teta": "centred"}), **options)
    without = pmm.sample(step=pmm.PoissonULMC(step_size=0.1), tune=0, **options)
    assert "noncentred" not in without["sample_stats"]


def test_pm_sample_does_the_same(schools, sample):
    dt = sample(pmm.PoissonULMC(model=schools), draws=1000, tune=1000, chains=4, model=schools)
    mean, sd = truth()
    assert abs(float(dt["posterior"]["tau"].mean()) - mean) < 0.09 * sd
    assert dt["sample_stats"]["noncentred"].shape == (4, 1000, 10)
    assert pmm.verdict(dt).trusted
    with pytest.raises(ValueError, match=r"is no result of pmm_mcmc.sample; .*a step of pm.sample does not keep"):
        pmm.noncentring(dt)


def test_the_degree_has_the_models_dims():
    coords = {"county": ["A", "B", "C"], "effect": ["a", "b"]}
    with pm.Model(coords=coords) as model:
        tau = pm.HalfNormal("tau", dims="effect")
        pm.Normal("x", pm.Normal("mu"), tau, dims=("county", "effect"))
        pm.Normal("plain", 0, tau, shape=2)
        pm.ZeroSumNormal("sums", sigma=tau[0], dims="county")
    options = {"draws": 20, "tune": 40, "chains": 2, "random_seed": 1, "model": model, "progressbar": False}
    options["compute_convergence_checks"] = False
    found = pmm.noncentring(pmm.sample(**options))
    assert found["x"].dims == ("county", "effect") and found["plain"].dims == ("plain_dim_0",)
    assert found["x"].sel(county="B", effect="a").shape == ()
    assert {name: list(found[name].values) for name in coords} == coords
    assert "chain" not in found.coords and "draw" not in found.coords
    # Of three elements that sum to 0 two are free, and belong to no county.
    assert found["sums"].dims == ("sums_dim_0",) and found["sums"].shape == (2,)
    without = pmm.noncentring(pmm.sample(**options, var_names=["tau"]))
    assert without["x"].shape == (3, 2)


def test_beside_other_steps_nothing_is_non_centred(sample):
    with pm.Model() as model:
        mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
        kind = pm.Bernoulli("kind", 0.5)
        pm.Normal("x", mu + kind, tau, shape=3)
        step = pmm.PoissonULMC()
        dt = sample(step, draws=20, tune=40, chains=1, model=model)
    assert step.binding.engine.structure.is_identity and "noncentred" not in dt["sample_stats"]


def test_a_start_is_one_of_the_model_not_of_the_non_centred_coordinates():
    """As ``z`` it would be a walk of steps of 50 that goes astray, and no log density would be finite."""
    with pm.Model() as model:
        size = pm.Exponential("size", 1 / 50)
        level = pm.GaussianRandomWalk("level", sigma=size, init_dist=pm.Normal.dist(-4, 2), steps=39)
        pm.StudentT("returns", nu=5, lam=pm.math.exp(-2 * level), observed=np.full(40, 0.01))
        dt = pmm.sample(model=model, draws=5, tune=50, chains=2, random_seed=1, compute_convergence_checks=False)
    assert np.isfinite(dt["posterior"]["level"]).all()

"""Modes that no chain has visited: by both doors and both backends, in memory and in a store."""

import json
import re

import arviz_base as az
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from sampling_runs import Stop, run

import pmm_mcmc as pmm
from pmm_mcmc.run import findings

pytest_plugins = ["sampling_fixtures"]
ABOUT = re.compile(r"that has about (2[6-9]|3\d) % of the mass")


@pytest.fixture(scope="module")
def two_modes():
    """Seven tenths near ``a = b = 0``; three tenths at ``b = 10``, where the prior of ``b`` reaches easily."""
    with pm.Model() as model:
        a, b = pm.Normal("a"), pm.Normal("b", 0.0, 10.0)
        modes = pt.logaddexp(np.log(0.7) - 0.5 * b**2, np.log(0.3) - 0.5 * (b - 10.0) ** 2)
        pm.Potential("modes", modes + 0.005 * b**2)
        pm.Deterministic("twice", 2.0 * a)
    return model


def modes_of(tree):
    """What the search found."""
    return json.loads(tree["posterior"].attrs["findings"])["modes"]


def assert_found(tree, mass=0.3):
    modes = modes_of(tree)
    assert modes["mass"] == pytest.approx(mass, rel=0.15) and modes["coordinate"] == 1
    np.testing.assert_allclose(modes["position"], [0.0, 10.0], atol=0.4)
    found = pmm.verdict(tree)
    assert found.state == "not trusted" and "modes" in {reason.code for reason in found.reasons}
    return found.sentence


@pytest.mark.parametrize("backend, adjusted", [("numba", True), ("numba", False), ("jax", True)])
def test_a_mode_that_no_chain_has_visited_is_not_trusted(two_modes, backend, adjusted, tmp_path):
    options = {
        "step": pmm.PoissonULMC(),
        "adjusted": adjusted,
        "tune": 500,
        "draws": 200,
        "chains": 4,
        "compute_convergence_checks": True,
    }
    tree = run(two_modes, backend, **options)
    sentence = assert_found(tree)
    assert ABOUT.search(sentence)
    # As it is read again, resumed after a stop in the warm-up or in the draws, and continued.
    run(two_modes, backend, store=tmp_path / "a", callback=Stop(2), **options)
    run(two_modes, backend, store=tmp_path / "a", resume=True, **options)
    stored = pmm.open(tmp_path / "a")
    assert assert_found(stored) == sentence
    assert modes_of(stored) == modes_of(tree)
    np.testing.assert_array_equal(stored["sample_stats"]["n_grad_total"], tree["sample_stats"]["n_grad_total"])
    assert_found(pmm.extend(tree, 20, model=two_modes, progressbar=False))


def test_a_log_density_is_searched_without_a_prior():
    def two(x):
        return jnp.logaddexp(np.log(0.7) - 0.5 * jnp.sum(x**2), np.log(0.3) - 0.5 * jnp.sum((x - 6.0) ** 2))

    tree = run(
        pmm.LogDensity.from_jax(two, 3),
        step=pmm.PoissonULMC(),
        tune=500,
        draws=100,
        chains=4,
        compute_convergence_checks=True,
    )
    assert modes_of(tree)["mass"] == pytest.approx(0.3, rel=0.2)


def test_who_asks_for_no_checks_gets_no_search(two_modes):
    tree = run(two_modes, "numba", tune=100, draws=50, chains=2, compute_convergence_checks=False)
    assert "modes" not in json.loads(tree["posterior"].attrs["findings"])


def test_draws_of_another_sampler_are_searched_with_the_model(two_modes):
    rng = np.random.default_rng(1)
    draws = {"a": rng.normal(size=(4, 500)), "b": rng.normal(size=(4, 500))}
    dt = az.from_dict({"posterior": draws})
    assert pmm.verdict(dt).trusted
    found = pmm.verdict(dt, model=two_modes)
    assert [reason.code for reason in found.reasons] == ["modes"] and ABOUT.search(found.sentence)
    assert "above theirs in b" in found.sentence
    with pytest.raises(ValueError, match="has no 'b', a variable of the model"):
        pmm.verdict(az.from_dict({"posterior": {"a": draws["a"]}}), model=two_modes)


def test_draws_of_constrained_variables_are_searched_where_they_were_made():
    with pm.Model() as model:
        low = pm.Normal("low")
        pm.Uniform("x", low, low + 2.0)
        pm.Dirichlet("w", np.ones(3))
    with model:
        prior = pm.sample_prior_predictive(1000, random_seed=1)["prior"]
    found = pmm.verdict(az.from_dict({"posterior": {n: prior[n].values for n in ("low", "x", "w")}}), model=model)
    assert {reason.code for reason in found.reasons} == {"one_chain"}


def test_a_result_of_a_step_is_searched_with_the_model(two_modes, sample):
    with two_modes:
        tree = sample(pmm.PoissonULMC(), chains=2, draws=300, tune=500)
    assert "modes" in {reason.code for reason in pmm.verdict(tree, model=two_modes).reasons}


# -- a search that fails -----------------------------------------------------------------------------------------------


def test_an_error_in_a_look_after_the_draws_is_said_and_the_draws_are_kept(well, monkeypatch, caplog):
    def fails(*arguments, **options):
        raise NotImplementedError("vectorize with zero size")

    monkeypatch.setattr(findings.edges, "largest_jump", fails)
    dt = run(well, compute_convergence_checks=True)
    assert dt["posterior"].sizes["draw"] == 30 and np.isfinite(dt["posterior"]["x"]).all()
    assert "Other modes, jumps and necks were not looked for, for an error in it; the draws are kept" in caplog.text

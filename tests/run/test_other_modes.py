"""Modes that no chain has visited: by both doors and both backends, in memory, in a store, and as moments."""

import json

import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from sampling_runs import QUIET, Stop, run

import pmm_mcmc as pmm

WORDS = "sd above theirs in b, that has about 30 % of the mass, limit 1 %"


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
    """What the search found: an attribute of ``pmm.sample``, a statistic of every draw of ``pm.sample``."""
    findings = json.loads(tree["posterior"].attrs.get("findings", "{}"))
    return findings.get("modes", tree["sample_stats"])


def assert_found(tree, mass=0.3):
    modes = modes_of(tree)
    np.testing.assert_allclose(modes["other_modes"], mass, rtol=0.05)
    assert np.all(np.asarray(modes["other_mode_coordinate"]) == 1)
    np.testing.assert_allclose(modes["other_mode_position"], 10.0, atol=0.3)
    found = pmm.verdict(tree)
    assert found.state == "not trusted" and "modes" in {reason.code for reason in found.reasons}
    return found.sentence


@pytest.mark.parametrize("backend, adjusted", [("numba", True), ("numba", False), ("jax", True)])
def test_a_mode_that_no_chain_has_visited_is_not_trusted(two_modes, backend, adjusted, tmp_path):
    options = {"step": pmm.PoissonULMC(), "adjusted": adjusted, "tune": 500, "draws": 200, "chains": 4}
    tree = run(two_modes, backend, **options)
    sentence = assert_found(tree)
    assert WORDS in sentence
    # As it is read again, resumed after a stop in the warm-up or in the draws, and continued.
    run(two_modes, backend, store=tmp_path / "a", callback=Stop(2), **options)
    run(two_modes, backend, store=tmp_path / "a", resume=True, **options)
    stored = pmm.open(tmp_path / "a")
    assert assert_found(stored) == sentence
    assert modes_of(stored) == modes_of(tree)
    np.testing.assert_array_equal(stored["sample_stats"]["n_grad_total"], tree["sample_stats"]["n_grad_total"])
    assert_found(pmm.extend(tree, 20, model=two_modes, **QUIET))
    moments = run(two_modes, backend, keep="moments", **options)
    assert "another mode that has about 30 % of the mass" in pmm.verdict(moments).sentence


def test_each_chain_of_pymc_has_a_search_of_its_own(two_modes, sample):
    with two_modes:
        tree = sample(pmm.PoissonULMC(), chains=2, draws=200, tune=500)
    assert_found(tree)


def test_a_log_density_is_searched_without_a_prior():
    def two(x):
        return jnp.logaddexp(np.log(0.7) - 0.5 * jnp.sum(x**2), np.log(0.3) - 0.5 * jnp.sum((x - 6.0) ** 2))

    tree = run(pmm.LogDensity.from_jax(two, 3), step=pmm.PoissonULMC(), tune=500, draws=100, chains=4)
    np.testing.assert_allclose(modes_of(tree)["other_modes"], 0.3, rtol=0.05)


def test_nobody_looks_without_a_warm_up(two_modes):
    tree = run(two_modes, "numba", step=pmm.PoissonULMC(step_size=0.3), tune=0, draws=20, chains=2)
    assert np.isnan(modes_of(tree)["other_modes"])

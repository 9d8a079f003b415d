"""What ``pmm.sample`` takes beside its own arguments is honoured; ``test_refusals.py`` has what is not taken."""

import inspect

import numpy as np
import pymc as pm
import pytest
from sampling_runs import assert_same, run

import pmm_mcmc as pmm
from pmm_mcmc.run.request import _ELSEWHERE, seed_of

pytestmark = pytest.mark.quick

pytest_plugins = ["sampling_fixtures"]
SHORT = {"draws": 10, "tune": 60, "chains": 2}


# -- seeds -------------------------------------------------------------------------------------------------------------


def test_what_numpy_takes_for_a_seed_is_one():
    assert seed_of(7) == seed_of(np.int64(7)) == 7 and seed_of(None) is None
    for one, other in (([1, 2], [1, 3]), (np.random.SeedSequence(1), np.random.SeedSequence(2)), ([7], [8])):
        assert seed_of(one) == seed_of(one) != seed_of(other)
    generator = np.random.default_rng(1)
    first, second = seed_of(generator), seed_of(generator)
    assert first != second and first == seed_of(np.random.default_rng(1))
    assert all(0 <= seed_of(seed) < 2**62 for seed in ([1, 2, 3, 4], generator, np.random.PCG64(3)))


def test_the_seed_that_was_used_is_said(well):
    generator = np.random.default_rng(5)
    by_generator = run(well, random_seed=generator, **SHORT)
    seed = by_generator["posterior"].attrs["random_seed"]
    assert_same(by_generator, run(well, random_seed=seed, **SHORT))
    fresh = run(well, random_seed=None, **SHORT)
    assert_same(fresh, run(well, random_seed=fresh["posterior"].attrs["random_seed"], **SHORT))


# -- pm.sample's habits ------------------------------------------------------------------------------------------------


def test_draws_may_come_first(well):
    options = {"tune": 60, "chains": 2, "random_seed": 1, "progressbar": False, "compute_convergence_checks": False}
    dt = pmm.sample(10, model=well, **options)
    assert_same(dt, pmm.sample(draws=10, model=well, **options))
    assert_same(dt, pmm.sample(step=[pmm.PoissonULMC()], draws=10, model=well, adjusted=True, **options))
    unadjusted = pmm.sample(10, model=well, adjusted=False, **options)
    assert_same(unadjusted, pmm.sample(step=pmm.PoissonULMC(scheme="recycled"), draws=10, model=well, **options))
    assert_same(unadjusted, pmm.sample(10, step=pmm.PoissonULMC(scheme="recycled"), model=well, **options))


def test_every_argument_of_pm_sample_is_taken_or_explained():
    ours = set(inspect.signature(pmm.sample).parameters)
    theirs = set(inspect.signature(pm.sample).parameters)
    assert theirs - {"kwargs"} <= ours | set(_ELSEWHERE)
    assert not ours & set(_ELSEWHERE)


def test_a_harmless_default_of_pm_sample_is_taken(well):
    assert "x" in run(well, return_inferencedata=True, **SHORT)["posterior"]


def test_only_some_variables(schools, tmp_path):
    whole, some = run(schools, "numba", **SHORT), run(schools, "numba", var_names=["theta", "mu"], **SHORT)
    assert list(some["posterior"].data_vars) == ["mu", "theta"]
    for name in ("mu", "theta"):
        np.testing.assert_array_equal(some["posterior"][name], whole["posterior"][name])
    np.testing.assert_array_equal(some["sample_stats"]["gradient"], whole["sample_stats"]["gradient"])
    stored = run(schools, "numba", var_names="mu", store=tmp_path / "a.zarr", **SHORT)
    assert list(stored["posterior"].data_vars) == ["mu"]


def test_cores_are_threads_on_numba(schools):
    assert_same(run(schools, "numba", cores=1, **SHORT), run(schools, "numba", cores=3, **SHORT))


def test_a_model_that_is_finite_nowhere_is_refused():
    with pm.Model() as nowhere:
        pm.Potential("p", pm.math.log(-1.0 - pm.Normal("x") ** 2))
    with pytest.raises(pm.exceptions.SamplingError, match=r"not finite at the initial point.*p \("):
        run(nowhere, "numba")

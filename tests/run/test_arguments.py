"""What ``pmm.sample`` takes beside its own arguments: honoured, understood or explained."""

import inspect

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from sampling_runs import assert_same, run

import pmm_mcmc as pmm
from pmm_mcmc.run.request import _ELSEWHERE, seed_of

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


@pytest.mark.parametrize("seed", [-1, 1.5, True, "one", [-1], [0.5], object()])
def test_what_is_no_seed_is_refused(well, seed):
    with pytest.raises(ValueError, match=r"random_seed=.*: must be"):
        run(well, random_seed=seed)


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
    with pytest.raises(ValueError, match=r"draws=ULMC\(...\): is a step; give it by name: pmm.sample\(step=pmm.ULMC"):
        pmm.sample(pmm.ULMC(), model=well)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda: pmm.PoissonULMC, r"step=PoissonULMC: is a class.*PoissonULMC\(\)"),
        (lambda: [pmm.PoissonULMC(), pmm.GHMC()], r"step: 2 steps.*pm\.sample\(step="),
        (lambda: "nuts", r"step='nuts'.*pm\.sample takes PyMC's own"),
        (lambda: True, "step=True"),
        (xr.DataTree, r"step=<DataTree>: is a result; pmm.temper\(\) samples by itself"),
    ],
)
def test_what_is_no_step_is_explained(well, step, words):
    with pytest.raises(ValueError, match=words):
        run(well, step=step())


@pytest.mark.parametrize("name", sorted(set(_ELSEWHERE) - {"return_inferencedata"}))
def test_arguments_of_pm_sample_are_explained(well, name):
    with pytest.raises(TypeError, match=f"^{name}=0.5 is no argument of pmm.sample: "):
        run(well, **{name: 0.5})


def test_every_argument_of_pm_sample_is_taken_or_explained():
    ours = set(inspect.signature(pmm.sample).parameters)
    theirs = set(inspect.signature(pm.sample).parameters)
    assert theirs - {"kwargs"} <= ours | set(_ELSEWHERE)
    assert not ours & set(_ELSEWHERE)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("step_size", r"no argument of pmm.sample, but of the step: .*pmm\.GHMC\(step_size=3\)"),
        ("K", r"but of the step: .*pmm\.PoissonULMC\(K=3\)"),
        ("target_bias", "but of the step"),
        ("reparametrize", r"but of the step: .*pmm\.GHMC\(reparametrise=3\)"),
        ("n_samples", "draws= is their number"),
        ("chain", "did you mean chains"),
        ("adjust", "did you mean adjusted"),
        ("progress_bar", "did you mean progressbar"),
        ("qwertz", "which takes draws, step.* adjusted, callback"),
    ],
)
def test_other_names_are_guessed(well, name, words):
    with pytest.raises(TypeError, match=rf"^{name}=3 is .*{words}"):
        run(well, **{name: 3})


def test_a_harmless_default_of_pm_sample_is_taken(well):
    assert "x" in run(well, return_inferencedata=True, **SHORT)["posterior"]
    with pytest.raises(TypeError, match="always an ArviZ DataTree"):
        run(well, return_inferencedata=False)


def test_only_some_variables(schools, tmp_path):
    whole, some = run(schools, "numba", **SHORT), run(schools, "numba", var_names=["theta", "mu"], **SHORT)
    assert list(some["posterior"].data_vars) == ["mu", "theta"]
    for name in ("mu", "theta"):
        np.testing.assert_array_equal(some["posterior"][name], whole["posterior"][name])
    np.testing.assert_array_equal(some["sample_stats"]["gradient"], whole["sample_stats"]["gradient"])
    stored = run(schools, "numba", var_names="mu", store=tmp_path / "a.zarr", **SHORT)
    assert list(stored["posterior"].data_vars) == ["mu"]
    for names in (["mu", "nu"], []):
        with pytest.raises(ValueError, match=r"var_names=.*must be some of mu, tau, z, theta"):
            run(schools, "numba", var_names=names)


def test_cores_are_threads_on_numba(schools, well):
    assert_same(run(schools, "numba", cores=1, **SHORT), run(schools, "numba", cores=3, **SHORT))
    with pytest.raises(ValueError, match="cores=2: is the number of numba's threads"):
        run(well, cores=2)
    with pytest.raises(ValueError, match="cores=0: must be an integer of at least 1"):
        run(schools, cores=0)


# -- what is refused before a run begins; the message names the argument -----------------------------------------------


BAD = {
    "draws": {"draws": 0},
    "chains": {"chains": 2.5},
    "tune": {"tune": -1},
    "backend": {"backend": "gpu"},
    "device": {"backend": pmm.Jax(device="gpu")},
    "resume": {"resume": True},
    "initvals": {"initvals": np.zeros(4)},
    "scaling": {"step": pmm.PoissonULMC(scaling=[1.0])},
    "numba": {"backend": "numba"},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused_by_name(well, name):
    with pytest.raises(ValueError, match=name):
        run(well, **BAD[name])


def test_models_that_cannot_work_are_refused(schools):
    with schools:
        part, bound = pmm.ULMC([schools["mu"]]), pmm.ULMC()
    with pytest.raises(ValueError, match=r"leave tau_log__, z out"):
        run(schools, step=part)
    with pm.Model() as other:
        pm.Normal("x")
    with pytest.raises(ValueError, match="another model"):
        run(other, step=bound)
    with pm.Model() as nowhere:
        pm.Potential("p", pm.math.log(-1.0 - pm.Normal("x") ** 2))
    with pytest.raises(pm.exceptions.SamplingError, match=r"not finite at the initial point.*p \("):
        run(nowhere, "numba")


def test_a_run_that_would_not_fit_is_refused_with_the_numbers(schools, monkeypatch):
    monkeypatch.setattr("pmm_mcmc.run.memory.available_bytes", lambda: 10**6)
    with pytest.raises(ValueError, match=r"6 chains of 9999 draws.*available.*store="):
        run(schools, "numba", draws=9999)

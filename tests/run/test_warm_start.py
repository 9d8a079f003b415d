"""``pmm.sample(start=dt)``: a former setting is kept where it fits, and noticed where it does not.

Draws are compared with exact moments: at four standard errors of each of ten numbers, false alarms are below 1e-3.
"""

import re

import numpy as np
import numpyro_models
import pymc as pm
import pytest
import xarray as xr
from sampling_runs import Stop, assert_same
from stan_programs import SCHOOLS, SCHOOLS_DATA
from warm_starts import (
    QUIET,
    another_model,
    hierarchy,
    jax_regression,
    planted,
    regression,
    scaled,
    spent,
    state_of,
    two_modes,
)  # fmt: skip

import pmm_mcmc as pmm
from pmm_mcmc.model import pymc_density
from pmm_mcmc.run import plan, recorders

BUILDERS = {"numba": regression, "jax": jax_regression}


def sample(model, **options):
    return pmm.sample(model=model, **QUIET | {"draws": 100, "random_seed": 7} | options)


def outcome(result):
    return state_of(result)[2].warm_start.outcome


def assert_moments_of(one, two):
    """Two results of 2000 draws have the same means and squares, to four standard errors."""
    for name, values in one["posterior"].data_vars.items():
        for power in (1, 2):
            both = [
                (tree["posterior"][name].values - float(values.mean())).reshape(4, 2000, -1) ** power
                for tree in (one, two)
            ]
            batches = [array.reshape(4 * 20, 100, -1).mean(axis=1) for array in both]
            error = np.sqrt(sum(b.var(axis=0, ddof=1) / len(b) for b in batches))
            first, second = (array.mean(axis=(0, 1)) for array in both)
            assert (np.abs(first - second) < 4 * error).all()


@pytest.fixture(scope="module", params=list(BUILDERS))
def builder(request):
    return BUILDERS[request.param]


@pytest.fixture(scope="module")
def model(builder):
    return builder()


@pytest.fixture(scope="module")
def former(builder):
    return sample(builder(90))


@pytest.fixture(scope="module")
def standing():
    return regression()


@pytest.fixture(scope="module")
def earlier(standing):
    return sample(standing)


def test_with_more_data_it_is_kept_at_fifty_gradients_and_draws_are_those_of_a_cold_start(model, former):
    cold = sample(model, draws=2000, random_seed=3)
    warm = sample(model, draws=2000, random_seed=4, start=former)
    assert outcome(warm) == warm["posterior"].attrs["start"] == "fits"
    assert spent(warm) <= 55 < 150 < spent(cold)
    assert_moments_of(cold, warm)


def test_a_setting_that_fits_has_its_preconditioner_refitted_unless_the_user_gave_it():
    def gaussian(correlation):
        with pm.Model() as model:
            covariance = np.array([[1.0, correlation], [correlation, 1.0]])
            pm.MvNormal("x", np.array([0.3, -0.2]), covariance)
        return model

    for step, error in ((None, 0.01), (pmm.PoissonULMC(scaling=[1.0, 1.2]), None)):
        options = {"step": step, "adjusted": True}
        former = sample(gaussian(0.3), **options)
        warm = sample(gaussian(0.5), start=former, **options)
        assert outcome(warm) == "fits"
        scale, before = (state_of(result)[2].tuned.coordinates.scale for result in (warm, former))
        if error is None:
            np.testing.assert_array_equal(scale, before)
        else:
            np.testing.assert_allclose(scale @ scale.T, [[1.0, 0.5], [0.5, 1.0]], rtol=0.0, atol=error)


WRONG = {
    "ten times as wide": 10.0,
    "a tenth as wide": 0.1,
    "one ten times as wide": [1.0, 10.0, 1.0, 1.0, 1.0],
    "one a tenth as wide": [1.0, 0.1, 1.0, 1.0, 1.0],
}


@pytest.mark.parametrize("name", WRONG)
def test_another_scale_is_not_kept(model, former, name):
    warm = sample(model, start=planted(former, scaled(np.array(WRONG[name]))))
    assert outcome(warm) in ("dropped", "refined")
    assert state_of(warm)[2].warm_start.reason.startswith("a scale has changed by a factor of")


def test_a_mirrored_correlation_is_not_kept(model, former):
    draws = former["sample_stats"]["unconstrained"].values.reshape(-1, 5)
    coordinates = state_of(former)[2].warming.tuned.coordinates
    dense = coordinates._replace(scale=np.linalg.cholesky(np.cov(draws, rowvar=False)))
    assert outcome(sample(model, start=planted(former, lambda _: dense))) == "fits"
    mirrored = scaled([1.0, -1.0, 1.0, 1.0, 1.0])(dense)
    assert outcome(sample(model, start=planted(former, lambda _: mirrored))) != "fits"


@pytest.mark.parametrize("changes", [{"sign": -1.0}, {"sd": 0.1}])
def test_mirrored_data_and_other_noise_are_noticed(earlier, changes):
    assert outcome(sample(regression(**changes), start=earlier)) != "fits"


def test_another_model_of_the_same_shapes_is_noticed(earlier):
    assert outcome(sample(another_model(), start=earlier)) == "dropped"


@pytest.mark.parametrize("weights", [(1.0, 0.0), (1.0, 1.0), (5.0, 1.0)])
def test_a_run_that_starts_in_one_of_two_modes_does_not_pass_for_right(weights):
    """Where the former mode has gone its setting is dropped; where it stays the search after the draws finds both."""
    former = sample(two_modes((0.0, 1.0)))
    model = two_modes(weights)
    for seed in range(5):
        result = sample(model, start=former, random_seed=seed, compute_convergence_checks=True)
        codes = {reason.code for reason in pmm.verdict(result).reasons}
        # The density of equal weights does not change with the sign.
        assert outcome(result) != "fits" or codes & {"modes", "labels"}


@pytest.mark.parametrize("wrong", [1.0, 3.0, 10.0])
def test_a_stopped_run_resumes_to_the_same_bytes(model, former, wrong, tmp_path, monkeypatch):
    monkeypatch.setattr(recorders, "_MOST_ROWS", 20)
    start = planted(former, scaled(wrong))
    options = {"start": start, "draws": 40, "discard_tuned_samples": False}
    uncut = sample(model, store=tmp_path / "uncut", **options)
    assert uncut["posterior"].attrs["start"] == {1.0: "fits", 3.0: "refined", 10.0: "dropped"}[wrong]
    sample(model, store=tmp_path / "parts", callback=Stop(1), **options)
    sample(model, store=tmp_path / "parts", resume=True, callback=Stop(2), **options)
    assert_same(sample(model, store=tmp_path / "parts", resume=True, **options), uncut)
    in_memory = sample(model, **options)
    assert_same(in_memory, uncut)
    assert_same(pmm.extend(sample(model, **options | {"draws": 15}), 25, model=model, **QUIET), in_memory)


@pytest.mark.parametrize("wrong", [1.0, 3.0])
def test_threads_and_batches_do_not_change_the_draws(model, builder, former, wrong, monkeypatch):
    options = {"start": planted(former, scaled(wrong)), "chains": 24, "draws": 20}
    layouts = [{}, {}] if builder is jax_regression else [{"cores": 1}, {"cores": 3}]
    first = sample(model, **options, **layouts[0])
    monkeypatch.setattr(plan, "_BATCH_BYTES", 1)  # a group at a time
    assert_same(first, sample(model, **options, **layouts[1]))


@pytest.mark.parametrize("options", [{"adjusted": False}, {"step": "GHMC"}, {"chains": 1}, {"chains": 70}])
def test_any_step_and_number_of_chains(standing, options):
    if "step" in options:
        options = {"step": pmm.GHMC()}
    former = sample(regression(90), **options)
    warm = sample(standing, start=former, **options)
    assert outcome(warm) == "fits"
    assert spent(warm) < 0.7 * spent(sample(standing, **options))
    assert outcome(sample(standing, start=planted(former, scaled(10.0)), **options)) == "dropped"


def test_the_setting_of_a_run_in_a_store_is_as_good(standing, earlier, tmp_path):
    stored = sample(standing, store=tmp_path / "a.zarr")
    earlier.to_netcdf(tmp_path / "a.nc")
    reference = sample(standing, start=earlier)
    for start in (stored, tmp_path / "a.zarr", str(tmp_path / "a.zarr"), xr.open_datatree(tmp_path / "a.nc")):
        assert_same(sample(standing, start=start), reference)


def test_without_positions_chains_start_from_the_last_ones(standing):
    step = pmm.PoissonULMC(keep_gradients=False)
    former = sample(standing, step=step, adjusted=True)
    assert "unconstrained" not in former["sample_stats"]
    assert outcome(sample(standing, step=step, adjusted=True, start=former)) == "fits"


def test_what_cannot_be_a_start_is_refused_before_anything_is_compiled(standing, earlier, tmp_path, monkeypatch):
    def compiled(*_):
        raise AssertionError("it was compiled")

    bare = earlier.copy()
    del bare["checkpoint"]
    stopped = sample(standing, callback=Stop(1))
    untuned = sample(standing, tune=0, step=pmm.GHMC(step_size=0.01))
    short = pm_model(2)
    monkeypatch.setattr(plan, "log_density", compiled)
    monkeypatch.setattr(pymc_density, "log_density", compiled)
    for options, words in (
        ({"start": bare}, "start=<DataTree>: has not the setting of its run"),
        ({"start": {"a": 1}}, "start={'a': 1}: must be a finished run; values to start at are initvals="),
        ({"start": tmp_path / "none"}, "start must be a result.*nothing is stored there"),
        ({"start": stopped}, "start: its run had no warm-up or ended during it"),
        ({"start": untuned, "step": pmm.GHMC(step_size=0.01)}, "start: its run had no warm-up or ended during it"),
        (
            {"start": earlier, "step": pmm.ULMC()},
            "start: is the result of a step with method='PoissonULMC', .*, and this one has .*method='ULMC'",
        ),
        ({"start": earlier, "initvals": {"a": 0.0}}, "initvals= does not go with start="),
        ({"start": earlier, "tune": 50}, "tune=50 with start="),
        ({"start": earlier, "model": short}, r"start: is the result of other variables, up to a, b\[2\], s_log__"),
    ):
        with pytest.raises(ValueError, match=words):
            sample(**{"model": standing} | options)


@pytest.mark.parametrize("groups", [(None, 3), (3, None)])
def test_where_a_group_is_left_out_or_added_the_setting_is_refined(groups):
    former, new = (hierarchy(group) for group in groups)
    cold = sample(new, draws=2000, random_seed=3)
    warm = sample(new, draws=2000, random_seed=4, start=sample(former))
    trial = state_of(warm)[2].warm_start
    assert trial.outcome == "refined"
    assert float(re.search(r"a scale has changed by a factor of (\d+)", trial.reason)[1]) > 4
    assert_moments_of(cold, warm)


@pytest.mark.parametrize("groups", [(None, 3), (3, None)])
def test_a_refined_start_takes_fewer_gradients_than_a_cold_one(groups):
    former, new = (hierarchy(group) for group in groups)
    ratios = []
    for seed in (3, 13, 23):
        cold = sample(new, draws=20, random_seed=seed)
        warm = sample(new, draws=20, random_seed=seed + 1, start=sample(former, random_seed=seed + 4))
        ratios.append(spent(warm) / spent(cold))
    assert np.median(ratios) < 0.85


def numpyro_regression(count):
    return pmm.LogDensity.from_numpyro(numpyro_models.divorce, *(a[:count] for a in numpyro_models.divorce_data()))


def stan_schools(count):
    """Eight schools whose errors are those of more or fewer pupils."""
    errors = [(50 / count) ** 0.5 * error for error in SCHOOLS_DATA["sigma"]]
    return pmm.LogDensity.from_stan(SCHOOLS, SCHOOLS_DATA | {"sigma": errors})


@pytest.mark.parametrize(
    ("build", "options"),
    [(numpyro_regression, {}), (stan_schools, {}), (lambda n: regression(2 * n), {"backend": "jax"})],
    ids=["numpyro", "stan", "jax"],
)
def test_densities_of_numpyro_and_stan_and_jax_start_from_a_former_run(build, options):
    former = sample(build(45), **options)
    warm = sample(build(50), start=former, **options)
    assert outcome(warm) == "fits"
    assert spent(warm) < 0.6 * spent(sample(build(50), **options))
    assert outcome(sample(build(50), start=planted(former, scaled(10.0)), **options)) == "dropped"


def pm_model(size):
    with pm.Model() as model:
        pm.Normal("a"), pm.Normal("b", shape=size), pm.HalfNormal("s")
    return model


def test_the_line_says_what_became_of_the_setting(standing, earlier, caplog):
    caplog.set_level("INFO", "pmm_mcmc")
    for start, words in (
        (
            earlier,
            r"start: the setting of the former run fits; \d+ gradients",
        ),
        (
            planted(earlier, scaled(10.0)),
            r"start: .* does not fit \(a scale has changed by a factor of 10\): dropped for a cold start",
        ),
    ):
        caplog.clear()
        pmm.sample(50, model=standing, start=start, random_seed=7, compute_convergence_checks=False)
        (line,) = (line for line in caplog.messages if line.startswith("start:"))
        assert re.match(words, line)

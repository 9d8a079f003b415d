"""``pmm.sample`` as a user meets it, on both backends: results, independence of how it is run, stops, errors."""

import logging
import signal
import threading

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr

import pmm_mcmc as pmm
from pmm_mcmc import host, sampling, sinks, targeting, warming
from pmm_mcmc.engines import jax_engine
from pmm_mcmc.noncentring.funnel_map import FunnelMap

BACKENDS = ("numba", "jax")
QUIET = {"progressbar": False, "compute_convergence_checks": False}
Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


@pytest.fixture(scope="module")
def schools():
    with pm.Model(coords={"school": list("abcdefgh")}) as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfNormal("tau", 5.0)
        z = pm.Normal("z", dims="school")
        theta = pm.Deterministic("theta", mu + tau * z, dims="school")
        pm.Normal("y", theta, SIGMA, observed=Y, dims="school")
    return model


@pytest.fixture(scope="module")
def well():
    return pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4), 3)


def run(model, backend="auto", step=None, **options):
    step = pmm.PoissonULMC(K=16) if step is None else step
    options = QUIET | {"draws": 30, "tune": 160, "chains": 6, "random_seed": 3} | options
    return pmm.sample(step, model=model, backend=backend, **options)


def numbers(tree):
    """Every array of a result but those that tell the time."""
    return {
        f"{group}/{name}": values.values for group in tree.children for name, values in tree[group].data_vars.items()
    }


def assert_same(a, b):
    one, two = numbers(a), numbers(b)
    assert one.keys() == two.keys()
    for name, values in one.items():
        assert values.dtype == two[name].dtype and values.tobytes() == two[name].tobytes(), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_result_has_the_layout_of_pm_sample(schools, sample, backend):
    with schools:
        theirs = sample(pmm.PoissonULMC(K=16), draws=30, tune=40, chains=2, discard_tuned_samples=False)
    ours = run(schools, backend, chains=2, discard_tuned_samples=False)
    assert set(ours.children) == set(theirs.children)
    for group in theirs.children:
        assert set(ours[group].data_vars) == set(theirs[group].data_vars)
        for name, values in theirs[group].data_vars.items():
            assert ours[group][name].dims == values.dims and ours[group][name].dtype == values.dtype, name
            assert ours[group][name].shape[2:] == values.shape[2:]
        assert set(theirs[group].attrs) <= set(ours[group].attrs) | {"arviz_version"}, group
    np.testing.assert_array_equal(ours["posterior"]["school"], list("abcdefgh"))
    stats = ours["sample_stats"]
    total = ours["warmup_sample_stats"]["n_grad"].sum("draw") + stats["n_grad"].sum("draw")
    beside = stats["n_grad_total"][:, -1] - total  # starts, and the schedule's own
    assert np.all(beside >= 2) and np.all(beside < 300)


@pytest.mark.parametrize("backend", BACKENDS)
def test_reports_work_on_the_result(schools, backend, caplog):
    with caplog.at_level(logging.INFO):
        tree = run(schools, backend, draws=100, compute_convergence_checks=True, log_likelihood=True)
    said = [r.message for r in caplog.records if "trust this run" in r.message or "Bias below" in r.message]
    assert len(said) == 1, "the verdict is logged, once"
    table = pmm.summary(tree)
    assert {"bias", "bias_se", "mean_corrected", "ess_per_grad"} <= set(table.columns)
    assert table["ess_per_grad"].gt(0.0).all()
    assert tree["log_likelihood"]["y"].dims == ("chain", "draw", "school")
    assert np.isfinite(tree["log_likelihood"]["y"]).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_draws_do_not_depend_on_how_the_run_is_cut(schools, backend, monkeypatch):
    whole = run(schools, backend, discard_tuned_samples=False)
    monkeypatch.setattr(host, "_SECONDS", 0.0)  # a draw at a time
    assert_same(whole, run(schools, backend, discard_tuned_samples=False))
    monkeypatch.setattr(host, "_SECONDS", 1e9)
    monkeypatch.setattr(sampling, "_MOST_ROWS", 7)
    assert_same(whole, run(schools, backend, discard_tuned_samples=False))
    assert_same(whole, run(schools, backend, discard_tuned_samples=False, chain_batch_size=2))


def test_draws_do_not_depend_on_threads(schools, monkeypatch):
    whole = run(schools, "numba")
    monkeypatch.setattr(targeting, "_cores", lambda: 1)
    assert_same(whole, run(schools, "numba"))


def test_draws_do_not_depend_on_batches_of_several_groups(well, monkeypatch):
    monkeypatch.setattr(jax_engine, "_GROUP_CPU", 4)
    fresh = pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4), 3)
    whole = run(fresh, chains=10)
    assert_same(whole, run(fresh, chains=10, chain_batch_size=4))


def test_other_seeds_give_other_draws_and_the_same_seed_the_same(well):
    one, again, other = (run(well, random_seed=seed)["posterior"]["x"].values for seed in (1, 1, 2))
    assert one.tobytes() == again.tobytes()
    assert not np.isclose(one, other).any()
    assert not np.isclose(one[0], one[1]).any(), "chains of their own"


def test_compiled_once_for_warm_up_sampling_and_the_next_run(well):
    run(well, chains=5)
    engine = next(e for key, e in well.engines.items() if key[1] == 5)
    assert engine.traces == 2
    run(well, chains=5, step=pmm.PoissonULMC(K=32, step_size=0.2), draws=70)
    assert engine.traces == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_arguments_of_the_step_count(schools, backend):
    step = pmm.PoissonULMC(K=8, step_size=0.1, friction=0.7, steps_per_draw=3, keep_gradients=False)
    stats = run(schools, backend, step=step, draws=10)["sample_stats"]
    assert np.all(stats["K"] == 8) and np.all(stats["step_size"] == 0.1) and np.all(stats["friction"] == 0.7)
    assert np.all(stats["steps_per_draw"] == 3) and "gradient" not in stats
    assert np.all(stats["n_grad"] <= 6) and np.all(stats["n_grad"] >= 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_warm_up(schools, backend):
    tree = run(schools, backend, step=pmm.ULMC(step_size=0.1), tune=0)
    assert np.all(tree["sample_stats"]["n_grad_total"][:, 0] == 3)
    with pytest.raises(ValueError, match="step_size='auto' with tune=0"):
        run(schools, backend, tune=0)


# -- stores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_stored_and_in_memory_results_are_equal(schools, backend, tmp_path):
    options = {"discard_tuned_samples": False, "log_likelihood": True}
    memory, stored = run(schools, backend, **options), run(schools, backend, store=tmp_path / "a.zarr", **options)
    times = ("created_at", "sampling_time")
    for tree in (memory, stored):
        for group in tree.subtree:
            group.attrs = {name: value for name, value in group.attrs.items() if name not in times}
    xr.testing.assert_identical(stored.load(), memory)
    again = pmm.open(tmp_path / "a.zarr")
    assert set(times) <= set(again["posterior"].attrs)
    assert_same(again, memory)


def files(folder):
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != "notes.json"
    }


class Stop:
    """Stops a run after so many chunks."""

    def __init__(self, chunks):
        self.left = chunks

    def __call__(self, drawn):
        self.left -= 1
        if self.left == 0:
            raise pmm.StopSampling


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_that_is_stopped_anywhere_resumes_to_the_same_bytes(schools, backend, tmp_path, monkeypatch):
    monkeypatch.setattr(sampling, "_MOST_ROWS", 10)
    options = {"discard_tuned_samples": False}
    run(schools, backend, store=tmp_path / "whole", **options)
    run(schools, backend, store=tmp_path / "parts", callback=Stop(1), **options)
    for _ in range(20):
        tree = run(schools, backend, store=tmp_path / "parts", resume=True, callback=Stop(2), **options)
        if tree["posterior"].sizes["draw"] == 30:
            break
    else:
        raise AssertionError("it never ended")
    run(schools, backend, store=tmp_path / "parts", resume=True, **options)
    assert files(tmp_path / "whole") == files(tmp_path / "parts")


def test_a_stored_run_can_be_prolonged(well, tmp_path):
    run(well, draws=20, store=tmp_path / "a", random_seed=None)
    longer = run(well, draws=60, store=tmp_path / "a", resume=True, random_seed=None)
    seed = int(sinks.stored_identity(tmp_path / "a")["seed"])
    assert_same(longer, run(well, draws=60, random_seed=seed))
    with pytest.raises(ValueError, match="has 60 draws of each chain already"):
        run(well, draws=20, store=tmp_path / "a", resume=True, random_seed=None)


CHANGES = {
    "method": {"step": pmm.PoissonULMC(K=17)},
    "keep_gradients": {"step": pmm.PoissonULMC(K=16, keep_gradients=False)},
    "chains": {"chains": 7},
    "seed": {"random_seed": 4},
    "tune": {"tune": 170},
    "backend": {"backend": "jax"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_run_s_store_is_refused_by_name(schools, tmp_path, name):
    run(schools, "numba", store=tmp_path / "a", draws=10)
    before = files(tmp_path / "a")
    with pytest.raises(pmm.StoreError, match=rf"\b{name}\b"):
        run(schools, **{"backend": "numba", "store": tmp_path / "a", "resume": True, "draws": 10} | CHANGES[name])
    with pytest.raises(pmm.StoreError, match="resume=True"):
        run(schools, "numba", store=tmp_path / "a", draws=10)
    assert files(tmp_path / "a") == before


def test_another_model_or_other_data_are_refused(tmp_path):
    def model(sd=1.0, data=1.0):
        with pm.Model() as built:
            pm.Normal("y", pm.Normal("x", 0.0, sd), observed=np.array([data, 2.0]))
        return built

    run(model(), "numba", store=tmp_path / "a", draws=10)
    for other, name in ((model(sd=2.0), "density"), (model(data=1.5), "data")):
        with pytest.raises(pmm.StoreError, match=name):
            run(other, "numba", store=tmp_path / "a", draws=10, resume=True)
    assert run(model(), "numba", store=tmp_path / "a", draws=10, resume=True)["posterior"].sizes["draw"] == 10


def test_a_full_disk_loses_nothing_that_was_committed(well, tmp_path, monkeypatch):
    monkeypatch.setattr(sampling, "_MOST_ROWS", 10)
    whole = run(well)
    from pmm_mcmc.storage.folder import LocalFolder

    write, calls = LocalFolder._write, []

    def full(path, data, durable):
        calls.append(path)
        if len(calls) > 120:
            raise OSError(28, "No space left on device")
        return write(path, data, durable)

    monkeypatch.setattr(LocalFolder, "_write", staticmethod(full))
    with pytest.raises(pmm.StoreError, match="No space left"):
        run(well, store=tmp_path / "a", draws=1000)
    kept = pmm.open(tmp_path / "a")["posterior"]["x"].values
    assert 0 < kept.shape[1] < 1000
    n = min(30, kept.shape[1])
    np.testing.assert_array_equal(kept[:, :n], whole["posterior"]["x"].values[:, :n])


# -- stopping --------------------------------------------------------------------------------------------------------


def test_callback_sees_every_chunk_and_may_stop(schools, caplog, monkeypatch):
    monkeypatch.setattr(sampling, "_MOST_ROWS", 10)
    seen = []

    def watch(drawn):
        seen.append(drawn)
        if not drawn.tuning and drawn.done == 20:
            raise pmm.StopSampling

    tree = run(schools, "numba", callback=watch)
    assert tree["posterior"].sizes["draw"] == 20
    assert "stopped after 20 of 30 draws" in caplog.text
    drawn = [d for d in seen if not d.tuning]
    np.testing.assert_array_equal(
        np.concatenate([d.posterior["theta"] for d in drawn], axis=1), tree["posterior"]["theta"]
    )
    assert drawn[0].sample_stats["lp"].shape == (6, 10)
    assert seen[0].tuning and not seen[0].posterior


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_keep_what_is_finished(schools, number, monkeypatch):
    monkeypatch.setattr(sampling, "_MOST_ROWS", 10)
    before = signal.getsignal(number)

    def interrupt(drawn):
        if not drawn.tuning and drawn.done == 10:
            signal.raise_signal(number)

    tree = run(schools, "numba", callback=interrupt)
    assert tree["posterior"].sizes["draw"] == 10
    assert signal.getsignal(number) is before


def test_a_stop_in_warm_up_returns_no_draws(schools):
    tree = run(schools, "numba", callback=Stop(1), compute_convergence_checks=True)
    assert tree["posterior"].sizes["draw"] == 0 and tree["posterior"]["theta"].shape == (6, 0, 8)


def test_other_threads_may_sample(well):
    found = []
    thread = threading.Thread(target=lambda: found.append(run(well)))
    thread.start()
    thread.join()
    assert_same(found[0], run(well))


def test_other_errors_of_a_callback_are_passed_on_and_the_store_stays_whole(well, tmp_path, monkeypatch):
    monkeypatch.setattr(sampling, "_MOST_ROWS", 10)

    def fail(drawn):
        if drawn.done == 10 and not drawn.tuning:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        run(well, store=tmp_path / "a", callback=fail)
    assert_same(run(well, store=tmp_path / "a", resume=True), run(well))


# -- many chains -----------------------------------------------------------------------------------------------------


def test_superchains_start_together_and_go_apart(schools):
    model, starts = schools, []
    start = warming.Warming.start.__func__

    def watched(cls, engine, settings, at, *others):
        starts.append(at)
        return start(cls, engine, settings, at, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warming.Warming, "start", classmethod(watched))
        tree = run(model, "numba", chains=64, draws=2)
        alone = run(model, "numba", chains=6, draws=2)
    assert len(np.unique(starts[0], axis=0)) == 16 and np.array_equal(starts[0][0], starts[0][3])
    assert len(np.unique(starts[1], axis=0)) == 6
    assert tree["posterior"].attrs["superchains"] == 16 and "superchains" not in alone["posterior"].attrs
    assert len(np.unique(tree["posterior"]["mu"].values[:, -1])) == 64
    assert np.isfinite(np.asarray(pmm.nested_r_hat(tree))).all()


def test_chains_beyond_those_that_tune_follow_them(well, monkeypatch):
    tree = run(well, chains=150, draws=20)
    x = tree["posterior"]["x"].values
    assert np.all(tree["sample_stats"]["step_size"] == tree["sample_stats"]["step_size"][0, 0])
    # Chains past the leaders have left their starts too: their spread is that of the leaders' within 4.5 errors.
    first, rest = x[:64].std(axis=(0, 1)), x[64:].std(axis=(0, 1))
    assert np.all(np.abs(np.log(first / rest)) < 4.5 * np.sqrt(1 / (2 * 64) + 1 / (2 * 86)))


def test_initvals(schools, well):
    at = {"mu": 2.0, "tau": 1.0, "z": np.zeros(8)}
    step = pmm.ULMC(step_size=1e-6, steps_per_draw=1)
    tree = run(schools, "numba", step=step, tune=0, draws=1, initvals=at)
    np.testing.assert_allclose(tree["posterior"]["mu"], 2.0, atol=1e-4)
    tree = run(schools, "numba", step=step, tune=0, draws=1, initvals=[at | {"mu": float(i)} for i in range(6)])
    np.testing.assert_allclose(tree["posterior"]["mu"][:, 0], np.arange(6.0), atol=1e-4)
    tree = run(well, step=step, tune=0, draws=1, initvals=np.ones(3))
    np.testing.assert_allclose(tree["posterior"]["x"], 1.0, atol=1e-4)


# -- errors ----------------------------------------------------------------------------------------------------------

BAD = {
    "draws": {"draws": 0},
    "chains": {"chains": 2.5},
    "tune": {"tune": -1},
    "backend": {"backend": "gpu"},
    "device": {"device": "gpu"},
    "precision": {"precision": "f32"},
    "superchains": {"superchains": 4},
    "chain_batch_size": {"chain_batch_size": 0},
    "random_seed": {"random_seed": -1},
    "resume": {"resume": True},
    "initvals": {"initvals": np.zeros(4)},
    "log_likelihood": {"log_likelihood": True},
    "step": {"step": "nuts"},
    "scaling": {"step": pmm.PoissonULMC(scaling=[1.0])},
    "numba": {"backend": "numba"},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused_by_name(well, name):
    with pytest.raises(ValueError, match=name):
        run(well, **BAD[name])


def test_models_that_cannot_work_are_refused(schools):
    with pm.Model() as discrete:
        pm.Normal("x", pm.Poisson("count", 3.0))
    with pytest.raises(ValueError, match=r"count.*marginalise.*pm\.sample"):
        run(discrete)
    with schools:
        part, bound = pmm.ULMC([schools["mu"]]), pmm.ULMC()
    with pytest.raises(ValueError, match=r"leave tau_log__, z out"):
        run(schools, step=part)
    with pm.Model() as other:
        pm.Normal("x")
    with pytest.raises(ValueError, match="another model"):
        run(other, step=bound)
    with pm.Model() as nowhere:
        pm.Potential("p", pm.Normal("x") * np.nan)
    with pytest.raises(pm.exceptions.SamplingError, match=r"not finite at the initial point.*p \("):
        run(nowhere, "numba")
    with pytest.raises(ValueError, match="entries: must be one dict"):
        run(schools, "numba", initvals=[{}])


def test_a_run_that_would_not_fit_is_refused_with_the_numbers(schools, monkeypatch):
    from pmm_mcmc import memory

    monkeypatch.setattr(memory, "available_bytes", lambda: 10**6)
    with pytest.raises(ValueError, match=r"6 chains of 9999 draws.*available.*store="):
        run(schools, "numba", draws=9999)


# -- moments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_moments_are_those_of_the_draws(schools, backend, monkeypatch, caplog):
    monkeypatch.setattr(sampling, "_MOST_ROWS", 10)
    draws = run(schools, backend)
    with caplog.at_level(logging.INFO):
        moments = run(schools, backend, keep="moments", compute_convergence_checks=True)
    assert sum("trust this run" in r.message or "Bias below" in r.message for r in caplog.records) == 1
    for name, values in draws["posterior"].data_vars.items():
        np.testing.assert_allclose(moments["posterior_mean"][name], values.mean("draw"), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(moments["posterior_sd"][name], values.std("draw"), rtol=1e-8)
    assert set(pmm.summary(moments).index) == set(pmm.summary(draws).index)
    assert "posterior" not in moments.children


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("keep", {"keep": "means"}),
        ("store", {"store": "a.zarr"}),
        ("discard_tuned_samples", {"discard_tuned_samples": False}),
    ],
)
def test_what_moments_do_not_go_with_is_refused(schools, name, options):
    with pytest.raises(ValueError, match=name):
        run(schools, **({"keep": "moments"} | options))


def test_the_verdict_of_superchains_is_by_nested_r_hat(well):
    # About 1 + 1 / (2 draws), and with superchains of four chains 1 + 1 / (8 draws).
    tree = run(well, chains=64, draws=40)
    assert az.rhat(tree)["x"].max() > 1.01, "too few draws for the ordinary one"
    assert not any("r_hat" in reason for reason in pmm.verdict(tree).reasons)
    shifted = tree.copy()
    shifted["posterior"]["x"][:32] += 1.0
    assert any("nested r_hat" in reason for reason in pmm.verdict(shifted).reasons)


@pytest.mark.parametrize("backend", BACKENDS)
def test_lengths_and_data_that_change_between_runs_are_seen(backend):
    with pm.Model() as model:
        model.add_coord("row", length=pytensor.shared(2))
        data = pm.Data("data", np.zeros(2), dims="row")
        mu = pm.Normal("mu", 0.0, 10.0)
        pm.Normal(
            "y", mu + pm.Deterministic("zero", pt.zeros(model.dim_lengths["row"])), 0.1, observed=data, dims="row"
        )
    for values in (np.zeros(2), np.ones(2), np.full(5, 2.0)):
        with model:
            pm.set_data({"data": values})
        tree = run(model, backend, draws=20)
        assert abs(float(tree["posterior"]["mu"].mean()) - values[0]) < 0.1
        assert tree["posterior"]["zero"].shape[2:] == values.shape


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("precision", ["float64", "mixed", "float32"])
def test_models_in_every_precision_whatever_the_user_has_chosen(precision, x64):
    with pm.Model() as model:  # compiled anew
        x = pm.Normal("x", 0.1, 1.5, shape=3)
        pm.Normal("y", x[1], 0.7, observed=0.4)
    before = jax.config.values["jax_enable_x64"]
    jax.config.update("jax_enable_x64", x64)
    try:
        tree = run(model, "jax", precision=precision, draws=100)
        assert jax.config.values["jax_enable_x64"] is x64
    finally:
        jax.config.update("jax_enable_x64", before)
    assert np.all(np.abs(tree["posterior"]["x"].mean(("chain", "draw")) - [0.1, 0.346, 0.1]) < 0.5)


# -- funnels -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def centred():
    """Eight schools as they are written."""
    effect, error = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, error, observed=effect)
    return model


STRAIGHT = {"draws": 300, "tune": 1000, "chains": 16, "random_seed": 1, "progressbar": False}


@pytest.mark.parametrize("backend", ["numba", "jax"])
def test_a_funnel_is_straightened_and_said_so(centred, backend, tmp_path, caplog):
    step = pmm.PoissonULMC(scheme="recycled")
    with caplog.at_level("INFO", logger="pmm_mcmc"):
        tree = pmm.sample(step, model=centred, backend=backend, **STRAIGHT)
    attrs = tree["posterior"].attrs
    assert attrs["reparametrisation"].startswith("theta[0..7] scale with tau_log__")
    assert any(attrs["reparametrisation"] in record.message for record in caplog.records)
    funnels = pmm.learnt_map(tree)
    assert funnels.to_json() == attrs["funnel_map"] and sorted(funnels.sink) == list(range(2, 10))
    # Draws and gradients are the model's own.
    stats = tree["sample_stats"]
    position, gradient, lp = (stats[name].values for name in ("unconstrained", "gradient", "lp"))
    np.testing.assert_array_equal(position[..., 2:], tree["posterior"]["theta"].values)
    logp, dlogp = centred.compile_logp(), centred.compile_dlogp()
    for chain, draw in [(0, 0), (7, 150), (15, 299)]:
        x = position[chain, draw]
        point = {"mu": x[0], "tau_log__": x[1], "theta": x[2:]}
        assert lp[chain, draw] == pytest.approx(float(logp(point)), abs=1e-8)
        np.testing.assert_allclose(gradient[chain, draw], dlogp(point), rtol=1e-8, atol=1e-8)
    summary = pmm.summary(tree)
    assert summary.attrs["reparametrisation"] == attrs["reparametrisation"]
    assert pmm.verdict(tree).trusted and summary["bias"].notna().sum() >= 8
    # Stored, it is the same to the byte, and so is what it says.
    path = tmp_path / "run.zarr"
    stored = pmm.sample(step, model=centred, backend=backend, store=path, **STRAIGHT)
    np.testing.assert_array_equal(stored["sample_stats"]["unconstrained"].values, position)
    for name in ("reparametrisation", "funnel_map"):
        assert pmm.open(path)["posterior"].attrs[name] == attrs[name]


def test_a_map_can_be_passed_on_or_left_out(centred):
    small = {**STRAIGHT, "draws": 20, "tune": 400, "chains": 8, "backend": "numba", "compute_convergence_checks": False}
    funnels = FunnelMap(
        np.arange(2, 10), np.arange(0, 17, 2), np.tile([0, 1], 8), np.tile([0.0, 1.0], 8), np.tile([1.0, 0.0], 8),
        np.zeros(8), np.zeros(8), np.full(8, np.inf), np.zeros(8),
    )  # fmt: skip
    given = pmm.sample(pmm.PoissonULMC(reparametrise=funnels), model=centred, **small)
    assert given["posterior"].attrs["reparametrisation"] == "by the map given"
    assert given["posterior"].attrs["funnel_map"] == funnels.to_json()
    fixed = pmm.PoissonULMC(reparametrise=funnels, step_size=0.3)
    fixed = pmm.sample(fixed, model=centred, **{**small, "tune": 0})
    assert fixed["posterior"].attrs["funnel_map"] == funnels.to_json()
    without = pmm.sample(pmm.PoissonULMC(reparametrise=False), model=centred, **small)
    assert "reparametrisation" not in without["posterior"].attrs
    wrong = funnels._replace(sink=np.arange(3, 11))
    with pytest.raises(ValueError, match=r"map: sink\[7\]=10: the model has 10 coordinates"):
        pmm.sample(pmm.PoissonULMC(reparametrise=wrong), model=centred, **small)
    with centred, pytest.raises(ValueError, match=r"map: sink\[7\]=10: the model has 10 coordinates"):
        pmm.PoissonULMC(reparametrise=wrong)

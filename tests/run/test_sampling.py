"""``pmm.sample`` as a user meets it, on both backends: results, and that they do not depend on how it is run."""

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from sampling_runs import BACKENDS, assert_same, run

import pmm_mcmc as pmm
from pmm_mcmc.engines import jax_engine
from pmm_mcmc.run import phases, plan, recorders
from pmm_mcmc.warmup import warm_up

pytestmark = pytest.mark.longest


pytest_plugins = ["sampling_fixtures"]


STEPS = {"PoissonULMC": lambda: pmm.PoissonULMC(K=16), "GHMC": pmm.GHMC}


@pytest.mark.parametrize("backend, method", [*((backend, "PoissonULMC") for backend in BACKENDS), ("numba", "GHMC")])
def test_result_has_the_layout_of_pm_sample(schools, sample, backend, method):
    with schools:
        theirs = sample(STEPS[method](), draws=30, tune=40, chains=2, discard_tuned_samples=False)
    ours = run(schools, backend, step=STEPS[method](), chains=2, discard_tuned_samples=False)
    constants = {"step_size", "friction", "steps_per_draw"}
    constants |= {"K"} if method == "PoissonULMC" else set()
    assert constants <= set(ours["sample_stats"].attrs)
    for group in ("sample_stats", "warmup_sample_stats"):  # attributes of ours
        stats = theirs[group].to_dataset()
        of_steps = {"refined", "sampler", "n_grad_setting", "warning"} & set(stats)
        theirs[group] = stats.drop_vars([*constants, *of_steps])
        assert len(ours[group].data_vars) <= 9
    assert set(ours.children) == {*theirs.children, "checkpoint"}
    for group in theirs.children:
        assert set(ours[group].data_vars) == set(theirs[group].data_vars)
        for name, values in theirs[group].data_vars.items():
            single = method == "GHMC" and name == "gradient"  # of adjusted draws
            dtype = np.dtype(np.float32) if single else values.dtype
            assert ours[group][name].dims == values.dims and ours[group][name].dtype == dtype, name
            assert ours[group][name].shape[2:] == values.shape[2:]
        assert set(theirs[group].attrs) <= set(ours[group].attrs) | {"arviz_version"}, group
    np.testing.assert_array_equal(ours["posterior"]["school"], list("abcdefgh"))
    stats = ours["sample_stats"]
    each = "n_steps" if method == "GHMC" else "n_grad"
    total = ours["warmup_sample_stats"][each].sum("draw") + stats[each].sum("draw")
    beside = stats["n_grad_total"][:, -1] - total  # starts, and the schedule's own
    assert np.all(beside >= 2) and np.all(beside < 300)


@pytest.mark.parametrize("adjusted", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_draws_do_not_depend_on_how_the_run_is_cut(schools, backend, adjusted, monkeypatch):
    options = {"discard_tuned_samples": False, "adjusted": adjusted}
    whole = run(schools, backend, **options)
    monkeypatch.setattr(phases, "_SECONDS", 0.0)  # a draw at a time
    assert_same(whole, run(schools, backend, **options))
    monkeypatch.setattr(phases, "_SECONDS", 1e9)
    monkeypatch.setattr(recorders, "_MOST_ROWS", 7)
    assert_same(whole, run(schools, backend, **options))
    monkeypatch.setattr(plan, "_BATCH_BYTES", 1)  # a group at a time
    assert_same(whole, run(schools, backend, **options))


def test_draws_do_not_depend_on_batches_of_several_groups(well, monkeypatch):
    monkeypatch.setattr(jax_engine, "_GROUP_CPU", 4)
    fresh = pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4), 3)
    whole = run(fresh, chains=10)
    monkeypatch.setattr(plan, "_BATCH_BYTES", 1)
    assert_same(whole, run(fresh, chains=10))


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
    setting = {"K": 8, "step_size": 0.1, "friction": 0.7, "steps_per_draw": 3}
    assert setting.items() <= stats.attrs.items() and "gradient" not in stats
    assert np.all(stats["n_grad"] <= 6) and np.all(stats["n_grad"] >= 3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_warm_up(schools, backend):
    tree = run(schools, backend, step=pmm.ULMC(step_size=0.1), tune=0)
    assert np.all(tree["sample_stats"]["n_grad_total"][:, 0] == 3)
    with pytest.raises(ValueError, match="step_size='auto' with tune=0"):
        run(schools, backend, tune=0)


# -- many chains -----------------------------------------------------------------------------------------------------


def test_superchains_start_together_and_go_apart(schools):
    model, starts = schools, []
    start = warm_up.Warming.start.__func__

    def watched(cls, engine, arguments, at, *others, **options):
        starts.append(at)
        return start(cls, engine, arguments, at, *others, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm_up.Warming, "start", classmethod(watched))
        tree = run(model, "numba", chains=64, draws=2)
        alone = run(model, "numba", chains=6, draws=2)
    assert len(np.unique(starts[0], axis=0)) == 16 and np.array_equal(starts[0][0], starts[0][3])
    assert len(np.unique(starts[1], axis=0)) == 6
    assert tree["posterior"].attrs["superchains"] == 16 and "superchains" not in alone["posterior"].attrs
    assert len(np.unique(tree["posterior"]["mu"].values[:, -1])) == 64


def test_chains_beyond_those_that_tune_follow_them(well, monkeypatch):
    tree = run(well, chains=150, draws=20)
    x = tree["posterior"]["x"].values
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


# -- models of every kind ----------------------------------------------------------------------------------------------


def test_the_verdict_of_superchains_is_by_nested_r_hat(well):
    # About 1 + 1 / (2 draws), and with superchains of four chains 1 + 1 / (8 draws).
    tree = run(well, chains=64, draws=40)
    assert az.rhat(tree)["x"].max() > 1.01, "too few draws for the ordinary one"
    assert not any(reason.code == "r_hat" for reason in pmm.verdict(tree).reasons)
    shifted = tree.copy()
    shifted["posterior"]["x"][:32] += 1.0
    assert any("nested r_hat" in str(reason) for reason in pmm.verdict(shifted).reasons)


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
        tree = run(model, pmm.Jax(precision=precision), draws=100)
        assert jax.config.values["jax_enable_x64"] is x64
    finally:
        jax.config.update("jax_enable_x64", before)
    assert np.all(np.abs(tree["posterior"]["x"].mean(("chain", "draw")) - [0.1, 0.346, 0.1]) < 0.5)
    kept = {tree["posterior"]["x"].dtype, tree["sample_stats"]["unconstrained"].dtype}
    assert kept == {np.dtype(np.float32 if precision == "float32" else float)}

"""``pmm.sample`` without a step: adjusted draws after warm-up and equilibration, the same however they are computed."""

import json
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest
from sampling_runs import BACKENDS, QUIET, Stop, assert_same
from store_runs import files

import pmm_mcmc as pmm
from pmm_mcmc.run import recorders

pytest_plugins = ["sampling_fixtures"]

STATISTICS = {"acceptance_rate", "diverging", "n_steps", "n_grad_total", "energy", "lp", "gradient", "unconstrained"}
OF_CHAINS = {"step_size", "friction", "steps_per_draw", "acceptance"}


def default(model, backend="auto", **options):
    options = QUIET | {"draws": 30, "tune": 160, "chains": 6, "random_seed": 3} | options
    return pmm.sample(model=model, backend=backend, **options)


@contextmanager
def compilations():
    """Count what JAX compiles."""
    events = []

    def note(name, seconds, **_):
        if name == "/jax/core/compile/backend_compile_duration":
            events.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


# -- what a result holds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_default_run_has_the_statistics_of_adjusted_draws(schools, backend):
    tree = default(schools, backend, compute_convergence_checks=True)
    attrs = tree["posterior"].attrs
    assert (attrs["sampler"], attrs["adjusted"]) == ("GHMC", 1)
    assert json.loads(attrs["findings"])["modes"]["mass"] == 0.0
    stats = tree["sample_stats"]
    assert set(stats.data_vars) - {"noncentred"} == STATISTICS
    assert stats["diverging"].dtype == bool and np.all(stats["acceptance_rate"] <= 1.0)
    setting = tree["equilibration"]
    assert {name for name in setting.data_vars if setting[name].dims == ("chain",)} == OF_CHAINS
    assert {name for name in setting.data_vars if setting[name].dims == ()} == {
        "transitions", "gradients", "lag", "ended",
    }  # fmt: skip
    for name in ("step_size", "friction", "steps_per_draw"):
        assert len(np.unique(setting[name])) == 1, name
    assert 0.0 < setting["step_size"][0] <= 1.5
    assert np.all(stats["n_steps"] >= setting["steps_per_draw"])
    before = stats["n_grad_total"][:, 0] - stats["n_steps"][:, 0]
    assert np.all(before > setting["gradients"])
    np.testing.assert_array_equal(np.diff(stats["n_grad_total"].values), stats["n_steps"].values[:, 1:])


RULES = {
    "no step": ({}, "GHMC", True),
    "a step": ({"step": pmm.PoissonULMC()}, "PoissonULMC", False),
    "not adjusted": ({"adjusted": False}, "PoissonULMC", False),
    "a step, adjusted": ({"step": pmm.OLMC(), "adjusted": True}, "GHMC", True),
    "GHMC itself": ({"step": pmm.GHMC()}, "GHMC", False),
    "GHMC from the start": ({"step": pmm.GHMC(step_size=0.3), "tune": 0}, "GHMC", False),
    "a step from the start": ({"step": pmm.PoissonULMC(step_size=0.3), "adjusted": True, "tune": 0}, "GHMC", False),
    "one chain": ({"chains": 1}, "GHMC", True),
    "two chains": ({"chains": 2}, "GHMC", True),
    "seventy chains": ({"chains": 70, "draws": 3}, "GHMC", True),
    "no draw for warm-up": ({"tune": 1}, "GHMC", True),
}


ON_JAX = ("a step, adjusted", "GHMC from the start", "one chain")


@pytest.mark.parametrize(
    ("backend", "rule"), [*(("numba", rule) for rule in RULES), *(("jax", rule) for rule in ON_JAX)]
)
def test_which_draws_are_adjusted_and_which_have_an_equilibration(schools, backend, rule):
    options, sampler, equilibrates = RULES[rule]
    tree = default(schools, backend, **options)
    attrs = tree["posterior"].attrs
    assert (attrs["sampler"], attrs["adjusted"]) == (sampler, int(sampler == "GHMC"))
    assert ("equilibration" in tree.children) == equilibrates
    names = set(tree["sample_stats"].data_vars)
    assert ("acceptance_rate" in names) == (sampler == "GHMC") and ("unstable" in names) == (sampler != "GHMC")
    assert np.isfinite(tree["posterior"]["theta"]).all() and np.ptp(tree["posterior"]["theta"].values[:, -1]) > 0.0


def test_without_a_warm_up_the_step_is_the_one_given(schools):
    whole = {"tune": 0, "draws": 20}
    own = default(schools, "numba", step=pmm.GHMC(step_size=0.2), **whole)
    step = pmm.ULMC(step_size=0.2, friction=1.0)
    assert_same(own, default(schools, "numba", step=step, adjusted=True, **whole))


# -- how it is computed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_call_compiles_nothing(backend):
    """With other draws and another seed; of a model, and of a log density."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("x", shape=2).sum(), 0.7, observed=0.3)
    density = pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2) - 0.2 * jnp.sum(x**4), 2)
    for target in (model, density) if backend == "jax" else (model,):
        default(target, backend)
        with compilations() as compiled:
            default(target, backend, random_seed=4)
            default(target, backend, random_seed=5, draws=45)
        assert not compiled


def test_more_of_a_run_without_warm_up(schools):
    options = {"tune": 0, "step": pmm.GHMC(step_size=0.2)}
    first = default(schools, "numba", draws=10, **options)
    assert_same(pmm.extend(first, 15, model=schools, **QUIET), default(schools, "numba", draws=25, **options))


# -- stores ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjusted", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_stopped_anywhere_it_resumes_to_the_same_bytes(schools, backend, adjusted, tmp_path, monkeypatch):
    monkeypatch.setattr(recorders, "_MOST_ROWS", 10)
    options = {"discard_tuned_samples": False, "draws": 20, "adjusted": adjusted}
    whole = default(schools, backend, store=tmp_path / "whole", **options)
    ended = set()

    def look(tree):
        setting = tree["equilibration"] if "equilibration" in tree.children else {"ended": 1}
        ended.add((int(setting["ended"]), tree["posterior"].sizes["draw"]))

    look(default(schools, backend, store=tmp_path / "parts", callback=Stop(1), **options))
    for _ in range(60):
        tree = default(schools, backend, store=tmp_path / "parts", resume=True, callback=Stop(1), **options)
        look(tree)
        if tree["posterior"].sizes["draw"] == 20:
            break
    default(schools, backend, store=tmp_path / "parts", resume=True, **options)
    assert files(tmp_path / "whole") == files(tmp_path / "parts")
    assert (1, 0) in ended and ((0, 0) in ended) == adjusted, "stops before and after the end of equilibration"
    read = pmm.open(tmp_path / "whole")
    in_memory = default(schools, backend, **options)
    for tree in (whole, read):
        assert_same(tree, in_memory)
    if adjusted:
        assert read["equilibration"]["ended"] == 1 and read["equilibration"]["acceptance"].dims == ("chain",)


def test_the_store_of_adjusted_draws_is_not_that_of_others(schools, tmp_path):
    default(schools, "numba", store=tmp_path / "a", step=pmm.PoissonULMC(), draws=10)
    with pytest.raises(pmm.StoreError, match=r"\badjusted\b"):
        default(schools, "numba", store=tmp_path / "a", step=pmm.PoissonULMC(), draws=10, adjusted=True, resume=True)


def test_draws_of_warm_up_are_kept_with_those_of_equilibration(schools, tmp_path, monkeypatch):
    monkeypatch.setattr(recorders, "_MOST_ROWS", 7)
    heard = []

    def note(chunk):
        if chunk.tuning:
            heard.append(chunk.posterior["mu"])

    tree = default(schools, "numba", discard_tuned_samples=False, callback=note)
    kept = tree["warmup_posterior"]["mu"].values
    np.testing.assert_array_equal(np.concatenate(heard, axis=1), kept)
    equilibrated = int(tree["equilibration"]["transitions"])
    assert 0 < equilibrated < kept.shape[1] <= 160 + equilibrated
    stats = tree["warmup_sample_stats"]
    assert set(stats.data_vars) == set(tree["sample_stats"].data_vars)
    spent = stats["n_steps"][:, -equilibrated:].sum("draw").mean()
    assert float(spent) == pytest.approx(float(tree["equilibration"]["gradients"]), rel=1e-12)
    stored = default(schools, "numba", discard_tuned_samples=False, store=tmp_path / "a")
    assert_same(stored, tree)


# -- draws="auto", and what is said ------------------------------------------------------------------------------------


def test_an_equilibration_that_did_not_end_is_told_by_the_verdict():
    """Chains that start far off, and have too few transitions to come near."""
    far = pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2), 2)
    step = pmm.PoissonULMC(step_size=1e-4, scaling=np.ones(2))
    tree = default(far, step=step, adjusted=True, tune=20, initvals=np.full(2, 40.0), draws=200)
    assert tree["equilibration"]["ended"] == 0
    assert "equilibration" in {reason.code for reason in pmm.verdict(tree).reasons}


def test_what_is_sampled_is_said_in_plain_words(schools, caplog, capsys):
    lines = {
        "Generalised HMC (GHMC) after a warm-up by PoissonULMC: [mu, tau, z]": {},
        "Generalised HMC (GHMC) after a warm-up by OLMC: [mu, tau, z]": {"step": pmm.OLMC(), "adjusted": True},
        "GHMC: [mu, tau, z]": {"step": pmm.GHMC()},
        "PoissonULMC (recycled scheme): [mu, tau, z]": {"adjusted": False},
    }
    for line, options in lines.items():
        caplog.clear()
        with caplog.at_level("INFO", "pmm_mcmc"):
            default(schools, "numba", progressbar=True, **options)
        assert caplog.messages[0] == line
        word = "unstable" if options == {"adjusted": False} else "diverging"
        assert f" 0 {word}, " in capsys.readouterr().out.splitlines()[-1]

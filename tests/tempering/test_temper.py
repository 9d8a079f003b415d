"""Runs on a ladder of temperatures: weights and evidence that are known, the same draws however they are computed.

Random tests at fixed seeds: |z| < 4.5 for each statistic (7e-6).
"""

import signal

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from sampling_runs import BACKENDS, Stop, assert_same, temper
from scipy.special import betaln, digamma, gammaln
from store_runs import files

import pmm_mcmc as pmm
from pmm_mcmc.run import recorders
from pmm_mcmc.tempering import tuning
from pmm_mcmc.tempering.ladder import Ladder

A, D = 4.0, 2


@pytest.fixture(scope="module")
def two_modes():
    """Normals of weight .3 at 4 and .7 at -4; the log evidence is 0."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, A, shape=D)
        prior = pm.logp(pm.Normal.dist(0.0, A, shape=D), x).sum()
        tops = pt.logaddexp(np.log(0.3) - 0.5 * (x[0] - A) ** 2, np.log(0.7) - 0.5 * (x[0] + A) ** 2)
        pm.Potential("modes", tops - 0.5 * x[1] ** 2 - np.log(2.0 * np.pi) - prior)
    return model


def on_ladder(model, backend="numba", **options):
    backend = pmm.Jax(device="cpu") if backend == "jax" else backend
    return temper(model, backend, **{"chains": 40, "draws": 40} | options)


def z_of(ladder, name, known):
    return (float(ladder[name]) - known) / float(ladder[f"{name}_se"])


@pytest.mark.parametrize("reference", ["prior", "gaussian"])
def test_weights_evidence_and_draws_are_those_that_are_known(two_modes, reference):
    options = {"initvals": {"x": np.zeros(D)}} if reference == "gaussian" else {}
    dt = on_ladder(two_modes, chains=150, draws=250, reference=reference, **options)
    ladder, x = dt["ladder"], dt["posterior"]["x"].values
    assert abs(z_of(ladder, "log_evidence", 0.0)) < 4.5 and float(ladder["log_evidence_se"]) < 0.1
    assert ladder.sizes["mode"] == 2
    assert np.all(np.abs(ladder["mode_weight"].values - [0.7, 0.3]) < 4.5 * ladder["mode_weight_se"].values)
    np.testing.assert_allclose(ladder["mode_centre"].values[:, 0], [-A, A], atol=0.3)
    # Moments within each mode: exact, whatever the step.
    for sign in (-1.0, 1.0):
        own = x[sign * x[..., 0] > 0.0]
        assert abs(own[:, 0].mean() - sign * A) < 0.1 and abs(own.std(axis=0) - 1.0).max() < 0.1
    assert int(ladder["restarts"]) == int(dt["sample_stats"]["restart"].sum()) > 100
    assert np.ptp(ladder["swap_rate"].values) < 0.2
    assert ladder["temperature"].values[[0, -1]].tolist() == [0.0, 1.0]


def test_the_evidence_of_a_binomial_of_two_probabilities_is_the_formula():
    n, y = 100, 50
    with pm.Model() as model:
        pm.Binomial("y", n, pm.Uniform("p") * pm.Uniform("q"), observed=y)
    ladder = on_ladder(model, chains=120, draws=150)["ladder"]
    known = gammaln(n + 1) - gammaln(y + 1) - gammaln(n - y + 1) + betaln(y + 1, n - y + 1)
    known += np.log(digamma(n + 2) - digamma(y + 1))
    assert abs(z_of(ladder, "log_evidence", known)) < 4.5 and float(ladder["log_evidence_se"]) < 0.1
    assert float(ladder["barrier"][-1]) == pytest.approx(1.53, rel=0.05)
    assert np.isfinite(ladder["mode_weight"]).sum() == 1


def test_a_log_density_of_jax_has_a_gaussian_reference():
    import jax.numpy as jnp

    density = pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum((x - 3.0) ** 2) / 0.25, 3)
    dt = on_ladder(density, "jax", chains=24, draws=60)
    ladder, x = dt["ladder"], dt["posterior"]["x"].values
    # A Gaussian is its own reference: nothing but two pairs is needed, and all swaps are accepted.
    assert ladder.sizes["rung"] == 3 and float(ladder["swap_rate"].min()) > 0.7
    assert float(ladder["log_evidence"]) == pytest.approx(1.5 * np.log(2 * np.pi * 0.25), abs=1e-9)
    assert abs(x.mean() - 3.0) < 0.05 and abs(x.std() - 0.5) < 0.05


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_stored_stopped_and_resumed_to_the_same_bytes(two_modes, backend, tmp_path, monkeypatch):
    monkeypatch.setattr(recorders, "_MOST_ROWS", 10)
    options = {"draws": 30, "chains": 24, "tune": 150}
    whole = on_ladder(two_modes, backend, store=tmp_path / "whole", **options)
    on_ladder(two_modes, backend, store=tmp_path / "parts", callback=Stop(1), **options)
    tree = on_ladder(two_modes, backend, store=tmp_path / "parts", resume=True, callback=Stop(1), **options)
    assert tree["posterior"].sizes["draw"] == 20
    on_ladder(two_modes, backend, store=tmp_path / "parts", resume=True, **options)
    assert files(tmp_path / "whole") == files(tmp_path / "parts")
    with pytest.raises(ValueError, match="draws=20: the store has 30 draws of each chain already"):
        on_ladder(two_modes, backend, store=tmp_path / "parts", resume=True, **options | {"draws": 20})
    longer = on_ladder(two_modes, backend, store=tmp_path / "parts", resume=True, **options | {"draws": 40})
    assert longer["posterior"].sizes["draw"] == 40 and np.isfinite(longer["ladder"]["mode_weight"].values[0])
    in_memory = on_ladder(two_modes, backend, **options)
    m = in_memory["ladder"].sizes["mode"]
    found = whole.copy()
    found["ladder"] = whole["ladder"].isel(mode=slice(0, m))
    assert_same(found, in_memory)


def test_draws_do_not_depend_on_threads(two_modes):
    options = {"draws": 10, "chains": 24, "tune": 100}
    assert_same(on_ladder(two_modes, cores=1, **options), on_ladder(two_modes, cores=3, **options))


def test_what_cannot_be_drawn_is_no_reference():
    with pm.Model() as model:
        mu = pm.Flat("mu")
        pm.Normal("y", mu, 1.0, observed=[0.1, 0.3])
    with pytest.raises(ValueError, match="flat prior of mu; give a proper prior, or take reference='gaussian'"):
        on_ladder(model, reference="prior")
    ladder = on_ladder(model, draws=60)["ladder"]
    known = -0.5 * 0.02 - 0.5 * np.log(2 * np.pi) - 0.5 * np.log(2.0)
    assert float(ladder["log_evidence"]) == pytest.approx(known, abs=1e-9)  # the reference is the posterior itself


def test_a_prior_without_a_way_to_draw_is_an_error():
    with pm.Model() as model:
        x = pm.CustomDist("x", logp=lambda value: -0.5 * value**2)
        pm.Normal("y", x, 1.0, observed=0.3)
    with pytest.raises(ValueError, match=r"reference='prior': nothing can be drawn .* take reference='gaussian'"):
        on_ladder(model)


def test_a_likelihood_of_nought_at_draws_of_the_prior_is_an_error():
    with pm.Model() as model:
        width = pm.Exponential("width", 1.0)
        pm.Uniform("y", 0.0, width, observed=[0.5, 0.7])
    with pytest.raises(ValueError, match=r"not finite at .* of 40 draws of the prior; bound the prior"):
        on_ladder(model)


def test_a_barrier_that_the_chains_cannot_climb_says_how_many_can():
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0, shape=100)
        pm.Potential("narrow", -4.5 * (x**2).sum())
    with pytest.raises(ValueError, match=r"chains=12: is too few .* take chains="):
        on_ladder(model, chains=12, reference="prior")


def test_given_temperatures_are_kept(two_modes):
    betas = [0.0, 0.01, 0.05, 0.3, 1.0]
    dt = on_ladder(two_modes, ladder=betas, chains=20, draws=5, tune=100)
    assert dt["ladder"]["temperature"].values.tolist() == betas
    assert dt["posterior"].sizes["chain"] == 4
    assert on_ladder(two_modes, ladder=4, chains=20, draws=5, tune=100)["ladder"].sizes["rung"] == 4


def test_replicas_are_not_judged_by_r_hat_but_by_restarts_and_errors(two_modes):
    dt = on_ladder(two_modes, chains=60, draws=60, reference="prior")
    codes = [reason.code for reason in pmm.verdict(dt).reasons]
    assert float(az.rhat(dt)["x"].max()) > 1.02 and "r_hat" not in codes and "mcse" in codes


def test_a_run_killed_while_its_ladder_is_tuned_is_tuned_again(two_modes, tmp_path, monkeypatch, caplog):
    options = {"draws": 10, "chains": 24, "tune": 100}

    def killed(*given):
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(tuning.Tuner, "_search_modes", killed)
        with pytest.raises(SystemExit):
            on_ladder(two_modes, store=tmp_path / "run", **options)
    with caplog.at_level("INFO", logger="pmm_mcmc"):
        again = on_ladder(two_modes, store=tmp_path / "run", resume=True, **options)
    assert any(m.startswith("Nothing is stored yet in ") and "tuned from the beginning" in m for m in caplog.messages)
    found = again.copy()
    whole = on_ladder(two_modes, **options)
    found["ladder"] = again["ladder"].isel(mode=slice(0, whole["ladder"].sizes["mode"]))
    assert_same(found, whole)


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_stopped_while_its_ladder_is_tuned_has_no_draws(two_modes, stored, tmp_path, monkeypatch, caplog):
    path = tmp_path / "run" if stored else None
    for step in ("advance", "freeze"):  # early, and at the very end
        with monkeypatch.context() as patch:
            whole = getattr(Ladder, step)

            def stopping(*given, whole=whole):
                signal.raise_signal(signal.SIGINT)
                return whole(*given)

            patch.setattr(Ladder, step, stopping)
            dt = on_ladder(two_modes, chains=12, draws=5, tune=60, store=path, resume=stored)
        assert dt["posterior"].sizes["draw"] == 0 and "stopped before the first draw" in caplog.text
    again = on_ladder(two_modes, chains=12, draws=5, tune=60, store=path, resume=stored)
    assert again["posterior"].sizes["draw"] == 5


def test_what_is_not_non_centred_on_a_ladder_is_said(caplog):
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 1.0)
        pm.Normal("y", pm.Normal("theta", 0.0, tau, shape=3), 1.0, observed=[1.0, 0.0, -1.0])
    with caplog.at_level("INFO", logger="pmm_mcmc"):
        on_ladder(model, chains=24, draws=5, tune=60, progressbar=True)
    assert sum(m.startswith("Not non-centred on a ladder: theta.") for m in caplog.messages) == 1


def test_a_density_has_no_prior_to_be_the_reference():
    density = pmm.LogDensity.from_jax(lambda x: -0.5 * (x**2).sum(), 2)
    with pytest.raises(ValueError, match="reference='prior': a LogDensity has no prior that is known"):
        on_ladder(density, "jax", reference="prior")

"""The mixture from which a ladder starts: its Gaussians are the modes; a ladder from it knows modes of unequal width.

Random tests at fixed seeds: |z| < 4.5 for each statistic (7e-6).
"""

import numpy as np
import pymc as pm
import pytest
from models import unequal
from sampling_runs import run, temper
from test_ascents import Hills

import pmm_mcmc as pmm
from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.contract import TunedParameters
from pmm_mcmc.tempering import tuning
from pmm_mcmc.tempering.modes import find_modes, fitted_mixture
from pmm_mcmc.tempering.path import Points


class Known(Hills):
    """A path whose target are hills, whose points have evaluations."""

    d = 3

    def whitened_density(self, coordinates):
        def density(y):
            lp, slope = self(coordinates.place(y))
            return lp, coordinates.pull_back(slope)

        return density

    def points(self, x):
        lp, slope = self(x)
        zero = np.zeros_like(slope)
        return Points(x, np.concatenate([slope, slope, zero, np.zeros((len(x), 1)), lp[:, None]], axis=1))


def test_each_mode_is_a_gaussian_of_its_mass():
    rng, far = np.random.default_rng(1), np.array([8.0, 0.0, -8.0])
    hills, setting = Known(far, 0.2), TunedParameters(0.5, 1, 1.0, Coordinates(np.zeros(3), np.ones(3)), 1)
    wide, narrow = rng.standard_normal((2000, 3)), far + np.sqrt(0.2) * rng.standard_normal((400, 3))
    both = rng.permutation(np.concatenate([wide, narrow]))
    for cold, beyond in ((both, []), (wide, [hills.points(narrow)]), (np.concatenate([wide, narrow[:9]]), [])):
        before = hills.calls
        found, spent = fitted_mixture(hills, setting, hills.points(cold), beyond)
        evaluated = len(cold) + len(beyond) * 400
        assert spent <= hills.calls - before and evaluated + spent >= hills.calls - before
        expected = 1 if len(cold) == 2009 else 2  # too few draws of a mode are no Gaussian
        assert len(found.mean) == expected
        np.testing.assert_allclose(found.mean[0], 0.0, atol=0.1)
        np.testing.assert_allclose(found.root[0] @ found.root[0].T, np.eye(3), atol=0.1)
        if expected == 2:
            np.testing.assert_allclose(found.mean[1], far, atol=0.1)
            np.testing.assert_allclose(found.root[1] @ found.root[1].T, 0.2 * np.eye(3), atol=0.02)
            # Both have mass (2 pi)^(3/2); the sd of each mean of lp is sqrt(3 / 2 / n).
            assert abs(np.diff(found.log_weight)[0]) < 4.5 * np.sqrt(1.5 / 400 + 1.5 / 2000)


def test_modes_of_unequal_width_have_their_weights_in_twenty_dimensions():
    dt = temper(unequal(20), "numba", chains=256, draws=60, tune=1000)
    ladder, judged = dt["ladder"], pmm.verdict(dt)
    assert int(ladder["gaussians"]) == 2 and judged.state == "trusted"
    share = (dt["posterior"]["x"].values[..., 0] > 0.0).mean()
    assert abs(share - 0.5) < 4.5 * float(ladder["mode_weight_se"][0]) < 0.15
    known = 10.0 * np.log(2.0 * np.pi)
    assert abs(float(ladder["log_evidence"]) - known) < 4.5 * float(ladder["log_evidence_se"]) < 0.01


@pytest.fixture(scope="module")
def far_from_its_prior():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 8))
    y = rng.random(200) < 1.0 / (1.0 + np.exp(-x @ rng.standard_normal(8)))
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=x @ pm.Normal("b", 0.0, 1.0, shape=8), observed=y.astype(int))
    return model


def test_one_mode_far_from_its_prior_costs_about_what_a_plain_run_does(far_from_its_prior):
    options = {"chains": 64, "draws": 100, "tune": 1000, "random_seed": 1}
    plain = run(far_from_its_prior, "numba", step=pmm.PoissonULMC(), **options)
    spent = plain["sample_stats"]["n_grad_total"].values[:, -1].sum()
    dt = temper(far_from_its_prior, "numba", **options)
    ladder = dt["ladder"]
    assert ladder.sizes["rung"] == 3 and int(ladder["gaussians"]) == 1 and int(ladder["restarts"]) > 500
    assert float(ladder["gradients"]) < 1.5 * spent
    prior = temper(far_from_its_prior, "numba", reference="prior", **options)["ladder"]
    assert int(prior["gaussians"]) == 0 and prior.sizes["rung"] > 6
    apart = float(ladder["log_evidence"]) - float(prior["log_evidence"])
    assert abs(apart) < 4.5 * np.hypot(float(ladder["log_evidence_se"]), float(prior["log_evidence_se"]))


def test_a_mixture_that_no_annealing_can_start_from_leaves_the_prior(far_from_its_prior, monkeypatch):
    anneal = tuning.Tuner._anneal

    def once(self, *given):
        if self.path.mixture is not None:
            raise tuning.NoLadder("ladder: no way")
        return anneal(self, *given)

    monkeypatch.setattr(tuning.Tuner, "_anneal", once)
    ladder = temper(far_from_its_prior, "numba", chains=64, draws=10, tune=200)["ladder"]
    assert int(ladder["gaussians"]) == 0 and np.isfinite(float(ladder["log_evidence"]))


# -- weights of modes --------------------------------------------------------------------------------------------------


def mixture(centres, weights, sd=1.0):
    """Density of a mixture of normals, as value and gradient, and a function that draws."""
    centres, weights = np.asarray(centres, float), np.asarray(weights)

    def value(y):
        away = y[:, None, :] - centres
        logs = np.log(weights) - 0.5 * (away**2).sum(axis=-1) / sd**2
        lp = np.logaddexp.reduce(logs, axis=1)
        return lp, -(np.exp(logs - lp[:, None])[..., None] * away).sum(axis=1) / sd**2

    def draw(shape, rng):
        mode = rng.choice(len(weights), size=shape, p=weights)
        return centres[mode] + sd * rng.standard_normal((*shape, centres.shape[1])), mode

    return value, draw


@pytest.mark.parametrize("d", [1, 2, 50])
def test_weights_of_two_modes_are_right_within_their_errors(d):
    centre = np.zeros((2, d))
    centre[:, 0] = 3.5, -3.5
    value, draw = mixture(centre, [0.3, 0.7])
    rng = np.random.default_rng(d)
    y, mode = draw((40, 50), rng)
    modes = find_modes(y, rng.random((40, 50)) < 0.3, value)
    assert len(modes.weight) == 2
    assert np.all(np.abs(modes.weight - [0.7, 0.3]) < 4.5 * modes.weight_se)
    # Modes come by weight: number 0 is that of weight .7.
    assert (modes.label == 1 - mode).mean() > 0.998
    assert modes.centre[:, 0] == pytest.approx([-3.5, 3.5], abs=0.2)
    assert modes.weight_se[0] >= np.sqrt(0.21 / modes.restarts.sum()) * 0.9


def test_one_mode_is_one_even_where_its_top_is_flat_or_curved():
    rng = np.random.default_rng(1)
    value, draw = mixture([[0.0, 0.0], [1.0, 0.0]], [0.5, 0.5])  # too near for two tops
    modes = find_modes(draw((10, 40), rng)[0], np.zeros((10, 40), bool), value)
    assert modes.weight.tolist() == [1.0] and modes.weight_se.tolist() == [0.0] and not modes.label.any()


def test_forty_modes_are_no_more_than_can_be_told():
    rng = np.random.default_rng(2)
    value, draw = mixture(rng.uniform(-40, 40, (12, 2)), np.full(12, 1 / 12), 0.5)
    y, mode = draw((20, 100), rng)
    modes = find_modes(y, np.ones((20, 100), bool), value)
    assert len(modes.weight) == 12 and modes.weight.sum() == pytest.approx(1.0)
    pairs = {(a, b) for a, b in zip(modes.label.ravel(), mode.ravel(), strict=True)}
    assert len(pairs) == 12
    assert modes.restarts.sum() == 2000

"""Chains in a mode with next to no mass start again in the heaviest; in any other they stay."""

import numpy as np
import pymc as pm
import pytest
from reference import engine
from test_mode_search import lower, two_modes, warmed

import pmm_mcmc as pmm
from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import TunedParameters, chains_of
from pmm_mcmc.warmup.empty_modes import starts_elsewhere
from pmm_mcmc.warmup.mode_search import ModeSearch

PRIOR = np.eye(3)[[0] * 12] * 10.0


def positions(warming):
    return warming.tuned.coordinates.place(chains_of(warming.ensemble.state).evaluated)


@pytest.mark.parametrize("nats", [40, 1000])
@pytest.mark.parametrize("seed", [1, 2])
def test_chains_leave_a_mode_with_next_to_no_mass(nats, seed):
    warming = warmed(lower, seed, 3, np.array([0, -nats]), PRIOR)
    assert warming.moved == 4
    assert np.all(np.abs(positions(warming) - [10.0, 0.0, 0.0]) < 6.0)
    assert warming.other_modes.mass == 0.0, "the mode that they left has none"
    once = warmed(lower, seed, 3, np.array([0, -nats]), search=False)
    np.testing.assert_array_equal(warming.ensemble.keys, once.ensemble.keys)
    assert warming.ensemble.transition > once.ensemble.transition, "random numbers go on"
    assert np.all(warming.n_grad > once.n_grad)


def test_a_chain_in_the_heaviest_mode_stays_where_it_is():
    kernel = MethodArguments.checked("PoissonULMC", dynamics="underdamped", scheme="recycled").kernel
    tuned = TunedParameters(1.0, 1, 1.0, Coordinates(np.zeros(2), np.ones(2)), 1)
    search = ModeSearch(engine(kernel, 2, lower, np.array([0, -60])), tuned, 500, np.random.default_rng(1))
    chains = np.array([[10.0, 0.5], [0.5, 0.5]])
    maxima = search._ascend(chains, chains[0], 100)
    starts, moved = starts_elsewhere(chains, maxima, [], search._density, search._ascend, np.random.default_rng(1))
    assert moved == 1
    np.testing.assert_array_equal(starts[0], chains[0])
    assert np.abs(starts[1] - [10.0, 0.0]).max() < 5.0
    third = max(maxima, key=lambda maximum: maximum.lp)  # whatever it is
    rest = [third], search._density, search._ascend, np.random.default_rng(1)
    assert starts_elsewhere(chains, maxima, *rest)[1] == 0, "a third mode is a sign of others"


@pytest.mark.parametrize("nats", [5, 18])
def test_chains_stay_in_a_mode_that_may_have_mass(nats):
    warming = warmed(lower, 1, 3, np.array([0, -nats]), PRIOR)
    assert warming.moved is None and warming.other_modes.mass == pytest.approx(1.0, abs=0.02)
    assert np.all(np.abs(positions(warming)) < 6.0)


def test_more_chains_than_are_looked_at_stay():
    warming = warmed(lower, 1, 3, np.array([0, -60]), PRIOR, chains=8)
    assert warming.moved is None and warming.other_modes.mass > 0.99


def test_modes_of_some_mass_move_no_chain():
    assert warmed(two_modes, 1, 3, np.array([0, 10, 99, 10, 2]), PRIOR[:, ::-1]).moved is None


def test_a_run_that_began_again_resumes_to_the_same_bytes(tmp_path):
    """Two modes, of which chains start in that with less than e^-50 of the mass."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 5.0, shape=2)
        pm.Potential("modes", pm.math.logaddexp(-2.0 * ((x + 1.0) ** 2).sum(), 60.0 - 2.0 * ((x - 8.0) ** 2).sum()))

    def stop(chunk):
        stop.left -= 1
        if not stop.left:
            raise pmm.StopSampling

    options = {"model": model, "random_seed": 1, "progressbar": False, "cores": 1, "discard_tuned_samples": False}
    once = pmm.sample(200, **options)
    assert np.all(np.abs(once["posterior"]["x"] - 7.9) < 3.0)
    assert pmm.verdict(once).state == "trusted"
    stop.left = 4
    pmm.sample(200, store=tmp_path / "run", callback=stop, **options)
    resumed = pmm.sample(200, store=tmp_path / "run", resume=True, **options)
    for group in ("posterior", "warmup_posterior"):
        np.testing.assert_array_equal(once[group]["x"], resumed[group]["x"])
    assert np.all(once["warmup_posterior"]["x"][:, 20] < 2.0), "where chains began"

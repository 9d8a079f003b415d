"""The parts of ``benchmarks/diffusion_flow.py`` against closed forms, and what it stored."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import diffusion_flow
from diffusion_distances import NAMES
from diffusion_flow_samplers import FAMILIES, NOISE
from diffusion_network import train
from diffusion_targets import random_mixture

from pmm_mcmc.diffusion import DiffusionSchedule

ROOT = Path(__file__).parents[2]
LINEAR = 0.25


def linear(x, s):
    """Exact flow of Gaussian data of variance 0.25."""
    return x * ((s - (1 - s) * LINEAR) / ((1 - s) ** 2 * LINEAR + s**2))[:, None]


@pytest.mark.parametrize("family", FAMILIES)
def test_samplers_have_the_law_of_gaussian_data(family):
    """With many calls; but full renoising and CPS, whose own laws are narrower (0.70 and 0.96 of the deviation)."""
    x = jax.random.normal(jax.random.key(0), (40_000, 1))
    found = FAMILIES[family](200, min(NOISE.get(family, (0.0,))), 1.0)(jax.random.key(1), linear, x)
    wanted = {"Euler, stochastic_sampling": 0.70, "CPS": 0.96}.get(family, 1.0)
    assert float(jnp.std(found)) / LINEAR**0.5 == pytest.approx(wanted, abs=0.02)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "SDE itself"])
@pytest.mark.parametrize("calls", (20, 40))
def test_samplers_make_the_calls_that_they_are_counted_for(family, calls):
    times = []

    def watched(x, s):
        jax.debug.callback(lambda s: times.append(float(s[0])), s)
        return linear(x, s)

    FAMILIES[family](calls, 0.5, 1.0)(jax.random.key(1), watched, jnp.ones((1, 1))).block_until_ready()
    jax.effects_barrier()
    assert len(times) == calls - (family == "Heun")


def test_exact_flow_of_a_mixture_is_that_of_its_score():
    mixture, x = random_mixture(np.random.default_rng(2), 3, 4), np.random.default_rng(1).standard_normal((5, 4))
    schedule = DiffusionSchedule.from_sigmas(np.arange(1, 1000) / 1000)
    predict = mixture.network(schedule)
    for level in (20, 600, 900):
        s = level / 1000
        noise = predict(jnp.asarray(x / np.hypot(s, 1 - s), jnp.float32), jnp.full(5, level - 1))
        wanted = noise - (x - s * noise) / (1 - s)
        found = mixture.velocity()(jnp.asarray(x, jnp.float32), jnp.full(5, s, jnp.float32))
        assert np.allclose(found, wanted, atol=1e-4)


def test_modes_of_exact_draws_and_of_others():
    mixture = diffusion_flow.twenty_five()
    x = mixture.sample(np.random.default_rng(3), 20_000)
    right = diffusion_flow.modes(x, mixture)
    assert right["beyond 3"] == 0 and right["sd / true sd"] == pytest.approx(1.0, abs=0.02) and right["stray, %"] == 0
    wrong = diffusion_flow.modes(np.concatenate([x, x[:2000] * 0 + 0.5]), mixture)
    assert wrong["stray, %"] > 5 and wrong["largest z"] > 5


def test_a_flow_is_learnt():
    """Of data at one point: noise minus data is then known from the state."""
    data = np.full((64, 3), 0.5)
    found = train(data, data, DiffusionSchedule.flow(100), 400, prediction="flow")
    assert found.held_out_loss < 0.3
    s, x = jnp.array([0.5, 0.8]), jnp.array([[0.6] * 3, [0.9] * 3])
    assert np.allclose(found.network(x, s), (x - 0.5) / s[:, None], atol=0.3)


def test_stored_results_are_of_this_benchmark():
    stored = json.loads((ROOT / "benchmarks" / "results" / "diffusion_flow.json").read_text())
    assert stored["settings"].keys() == set(FAMILIES) - {"SDE itself"}
    for problem in ("exact flow", "trained network"):
        rows = stored[problem]["rows"]
        assert {(row["sampler"], row["calls"]) for row in rows} >= {
            (family, calls) for family in stored["settings"] for calls in diffusion_flow.Size().calls
        }
        assert stored[problem]["distances"] == list(NAMES)

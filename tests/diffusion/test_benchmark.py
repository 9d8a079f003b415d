"""The benchmark of ``benchmarks/diffusion.py``: its parts against closed forms, and all of it once, in its quick form.

Statistical are the comparisons of the quick run, at fixed seeds and with differences of more than 10 standard errors on
the side that is tested: a false-alarm rate below 1e-6.
"""

import json
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from pmm_mcmc.diffusion import DiffusionSchedule

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import diffusion
import diffusion_claims
import diffusion_midpoints
from diffusion_distances import NAMES, Distances, frechet
from diffusion_targets import Mixture, random_mixture

from pmm_mcmc.langevin.gaussian_law import step_maps

ROOT = Path(__file__).parents[2]


def test_frechet_distance_of_gaussians_that_commute():
    a, b = np.array([1.0, 4.0]), np.array([9.0, 0.25])
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((2, 2)))[0]
    found = frechet((np.zeros(2), turn * a @ turn.T), (np.array([1.0, 2.0]), turn * b @ turn.T))
    assert found == pytest.approx(5.0 + np.sum((np.sqrt(a) - np.sqrt(b)) ** 2))


def test_distances_of_what_is_moved_and_of_itself():
    x = np.random.default_rng(1).standard_normal((500, 3))
    judge = Distances(x, nll=lambda x: float(np.mean(x**2)))
    assert np.allclose(np.delete(judge(x), 1), 0.0, atol=1e-6) and np.isnan(judge(x)[1])
    sw2, _, pixels, nll = judge(x + np.array([0.6, 0.0, 0.0]))
    # Of a shift the part along a direction is left; over 100 directions of three dimensions a third of its square.
    assert sw2 == pytest.approx(0.6 / np.sqrt(3), rel=0.15)
    assert pixels == pytest.approx(0.36) and nll == pytest.approx((0.36 + 1.2 * x[:, 0].mean()) / 3)


def test_mixture_says_the_noise_that_its_density_has():
    """The noise prediction is the gradient of the negative log density of the noised mixture, by differences."""
    mixture = random_mixture(np.random.default_rng(2), 3, 4)
    schedule = DiffusionSchedule.named("linear", 1000)
    x = np.random.default_rng(3).standard_normal((5, 4))
    for t in (20, 600):
        s, left = schedule.signal[t + 1], schedule.noise[t + 1]
        noised = Mixture(mixture.weights, np.sqrt(s) * mixture.means, s * mixture.values + left, mixture.vectors)
        found = np.asarray(mixture.network(schedule)(jnp.asarray(x, jnp.float32), jnp.full(5, t)))
        for i, point in enumerate(x):
            steps = 1e-5 * np.eye(4)
            slope = [(noised.nll((point + e)[None]) - noised.nll((point - e)[None])) / 2e-5 for e in steps]
            assert np.allclose(found[i], np.sqrt(left) * np.array(slope), rtol=2e-3, atol=2e-3), (t, i)


@pytest.mark.statistical
def test_draws_of_a_mixture_have_its_moments():
    mixture = random_mixture(np.random.default_rng(4), 3, 2)
    x = mixture.sample(np.random.default_rng(5), 200_000)
    mean, covariance = mixture.moments()
    assert np.allclose(x.mean(axis=0), mean, atol=0.025) and np.allclose(np.cov(x.T), covariance, atol=0.05)


def test_verdicts():
    assert diffusion_claims.verdict(1.0, 0.1, "better") == diffusion_claims.verdict(1.0, 0.1, "no worse") == "no"
    assert diffusion_claims.verdict(-1.0, 0.1, "better") == diffusion_claims.verdict(0.1, 0.1, "no worse") == "yes"
    assert diffusion_claims.verdict(0.3, 0.1, "no worse") == "open"
    assert diffusion_claims.verdict(-0.3, 0.1, "better") == "tie"


def test_an_excess_counts_by_its_distance_from_nothing():
    low = np.tile([1.0, 1.0, 1.0, -5.0], (3, 1)) + 0.01 * np.arange(3)[:, None]
    high = np.tile([1.0, 1.0, 1.0, 4.0], (3, 1)) + 0.01 * np.arange(3)[:, None]
    mean, error = diffusion_claims.difference(low, high)
    assert np.allclose(mean, (0.0, 0.0, 0.0, 0.98)) and np.allclose(error, 0.01 * np.sqrt(2 / 3))


def test_laws_of_midpoints_differ_by_their_noise_alone():
    kernel, _ = diffusion_midpoints.KERNELS["PoissonULMC"]
    found = diffusion_midpoints.errors(kernel, 0.5, 12)
    maps = step_maps(kernel, 0.5, diffusion_midpoints.FRICTION, 12)
    assert diffusion_midpoints.error_of([(1 / 12, m) for m in maps]) == pytest.approx(found["uniform"], rel=1e-9)
    # Every law adds noise to what the mean of the corrections has by itself.
    assert all(found[law] > found["none random"] for law in found if law != "none random")
    assert found["p = 0.75"] < found["p = 0.5"] < found["p = 0.25"] < found["uniform"]


@pytest.fixture(scope="module")
def quick():
    return diffusion.main(["--quick"])


def rows_of(kept, problem, of="data"):
    index = NAMES.index("NLL excess")
    rows = [row for row in kept[problem]["rows"] if row["from"] == of]
    return {(row["sampler"], row["calls"]): np.mean(row["by seed"], axis=0)[[0, 2, index]] for row in rows}


@pytest.mark.statistical
def test_quick_run_finds_what_is_far_beyond_its_noise(quick):
    rows = rows_of(quick, "exact score")
    floor, chain = rows["exact sampling", 0], rows["DDPM", 1000]
    assert abs(floor[2]) < 2.0 and abs(chain[2]) < 6.0
    # The finding: equal blocks leave noise that planned blocks do not, and few steps of DDIM smooth.
    assert rows["paper, variant 2", 40][2] > 1000.0 and rows["paper, variant 2", 40][1] > 5.0 * floor[1]
    assert abs(rows["planned, variant 2", 40][2] - chain[2]) < 3.0
    assert rows["DDIM", 40][2] < chain[2] - 5.0


@pytest.mark.statistical
def test_quick_run_trains_a_network(quick):
    loss = float(quick["trained network"]["words"].split()[-1])
    # Of data of variance 1 in every pixel nothing learnt has the loss 1; of the digits, with their dark margins, more.
    assert loss < 0.7
    rows = rows_of(quick, "trained network", of="chain")
    assert {family for family, _ in rows} == {row.family for row in diffusion.samplers(quick=True)}
    assert np.isnan(rows["DDPM", 1000][2]) and rows["DDPM", 1000][0] < 0.3


def test_stored_results_are_of_this_benchmark(quick):
    stored = json.loads((ROOT / "benchmarks" / "results" / "diffusion.json").read_text())
    assert stored.keys() == quick.keys()
    families = {row["sampler"] for row in stored["exact score"]["rows"]}
    assert families > {row["sampler"] for row in quick["exact score"]["rows"]}
    assert all(len(row["by seed"]) == diffusion.Size().seeds for row in stored["exact score"]["rows"])

"""Long runs of the gallery against other samplers, none of which shares code with them, and the annealing itself.

All are z-scores at fixed seeds with |z| < 5.5, some 70 of them with errors from 30 or more independent runs: by
Student's law a false-alarm rate of 70 * 6e-6 = 4e-4 for all.
"""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pmm_mcmc.workbench import targets
from pmm_mcmc.workbench.targets import make_references, mixtures, regressions
from pmm_mcmc.workbench.targets.stored import DATA

ACCEPTANCE = Path(__file__).parents[1] / "support" / "target_references.json"
LIMIT = 5.5
LONG = [name for name in targets.list() if not targets.get(name).reference.exact]


def errors(name):
    """Standard errors of the stored means and second moments."""
    entry = json.loads((DATA / "references.json").read_text(encoding="utf-8"))[name]
    return np.array(entry["error"]), np.array(entry["second_moment_error"])


def test_stored_references_are_precise_and_have_the_symmetries():
    assert set(LONG) == set(make_references.PLANS)
    for name in LONG:
        known, (mean, second) = targets.get(name).reference, errors(name)
        assert np.all(mean <= 0.01 * known.sd) and np.all(second <= 0.01 * np.sqrt(known.square_variance))
        np.testing.assert_array_equal(known.error, mean)
        np.testing.assert_array_equal(known.second_moment_error, second)
    lattice, galaxies, network = (targets.get(n).reference for n in ("phi4", "galaxies", "neural_network"))
    assert np.all(lattice.mean == 0) and np.ptp(lattice.second_moment) == 0
    assert np.all(galaxies.mean[:2] == 0) and np.ptp(galaxies.mean[2:5]) == np.ptp(galaxies.mean[5:]) == 0
    assert np.all(network.mean[:8] == 0)
    for pair in ((0, 1), (2, 3), (4, 5), (6, 7)):
        assert np.ptp(network.second_moment[list(pair)]) == 0


@pytest.mark.statistical
def test_lattice_agrees_with_the_no_u_turn_sampler():
    other = json.loads(ACCEPTANCE.read_text(encoding="utf-8"))["phi4"]
    known = targets.get("phi4").reference
    error = np.hypot(other["se_second"][0], errors("phi4")[1][0])
    assert abs(known.second_moment[0] - other["second"][0]) < LIMIT * error
    np.testing.assert_allclose(known.square_variance, other["variance_of_square"][0], rtol=0.03)


@pytest.mark.statistical
def test_annealed_populations_find_the_weights_of_modes():
    # Ten standard deviations apart: what does not come of the weights of the populations never comes.
    weight, mean = (0.7, 0.3), (-3.0, 7.0)
    plan = make_references.Plan(np.zeros(3), np.full(3, 5.0), 40, 256, 2, 5, lambda found: found)
    with jax.enable_x64(True):
        move = make_references.mover(lambda q: mixtures.two_gaussians(q, jnp, weight, mean), plan)
        runs = np.stack([make_references.anneal(move, plan, seed) for seed in range(plan.populations)])
    known = mixtures.mixture_reference(weight, mean, 3)
    expected = [known.mean, known.second_moment, known.square_variance + known.second_moment**2]
    error = runs.std(axis=0, ddof=1) / np.sqrt(plan.populations)
    assert np.all(np.abs(runs.mean(axis=0) - expected) < LIMIT * error)
    # Weights that are not used would leave them a matter of luck.
    assert runs[:, 0, 0].std() < 0.7


def test_making_references_refuses_what_it_cannot_make(capsys):
    assert make_references.main(["galaxies", "banana"]) == 2
    assert capsys.readouterr().err.startswith("there is nothing to make for banana; there are: phi4, galaxies")


def gibbs(rng, chains, sweeps):
    """Draws of (log ratios of weights, means, log variances) of the galaxies, by the conjugate updates of the model.

    From the grouping that has nine tenths of the probability: from others it takes chains thousands of sweeps.
    """
    y, k = mixtures.velocities(), mixtures.GALAXIES.clusters
    mean = np.tile([9.7, 21.0, 33.0], (chains, 1))
    variance = np.full((chains, k), 4.0)
    weight = np.full((chains, k), 1 / k)
    draws = np.empty((sweeps, chains, 3 * k))
    for sweep in range(sweeps):
        log_p = (
            np.log(weight / np.sqrt(variance))[:, None] - 0.5 * (y[:, None] - mean[:, None]) ** 2 / variance[:, None]
        )
        p = np.exp(log_p - log_p.max(axis=2, keepdims=True)).cumsum(axis=2)
        of = (rng.random(p.shape[:2])[..., None] * p[..., -1:] > p).sum(axis=2)
        member = of[..., None] == np.arange(k)
        count, total = member.sum(axis=1), (member * y[:, None]).sum(axis=1)
        gamma = rng.gamma(mixtures.GALAXIES.concentration + count)
        weight = gamma / gamma.sum(axis=1, keepdims=True)
        precision = count / variance + mixtures.GALAXIES.sd**-2
        centre = (total / variance + mixtures.GALAXIES.mean / mixtures.GALAXIES.sd**2) / precision
        mean = centre + rng.normal(size=centre.shape) / np.sqrt(precision)
        squares = (member * (y[:, None] - mean[:, None]) ** 2).sum(axis=1)
        shape, scale = mixtures.GALAXIES.shape + count / 2, mixtures.GALAXIES.scale + squares / 2
        variance = scale / rng.gamma(shape)
        log_weight = np.log(weight)
        draws[sweep] = np.concatenate(
            [log_weight - log_weight.mean(axis=1, keepdims=True), mean, np.log(variance)], axis=1
        )
    return draws


@pytest.mark.statistical
def test_galaxies_agree_with_gibbs_sampling():
    draws = gibbs(np.random.default_rng(15), 100, 2500)[500:]
    known, (mean_error, second_error) = targets.get("galaxies").reference, errors("galaxies")
    for k, coordinate in ((0, 0), (1, 2), (2, 5)):
        # Pooled over labels; chains are independent of each other.
        group = draws[..., 3 * k : 3 * k + 3]
        for power, truth, error in (
            (1, known.mean, mean_error),
            (2, known.second_moment, second_error),
        ):
            values = (group**power).mean(axis=(0, 2))
            spread = np.hypot(values.std(ddof=1) / np.sqrt(len(values)), error[coordinate]) + 1e-12
            assert abs(values.mean() - truth[coordinate]) < LIMIT * spread
    # The second grouping of the note.
    far = (draws[..., 3:6] > 28).any(axis=2)
    assert 0.05 < 1 - far.mean() < 0.11


def log_density_by_hand(q):
    """Log posterior of the network for positions ``(..., 9)``, in NumPy."""
    petals, virginica = regressions.irises()
    total = -0.5 * ((q / 2) ** 2).sum(axis=-1)
    logit = q[..., 8:]
    for unit in range(2):
        inward = q[..., unit, None] * petals[:, 0] + q[..., 2 + unit, None] * petals[:, 1]
        logit = logit + q[..., 6 + unit, None] * np.tanh(inward + q[..., 4 + unit, None])
    return total - np.logaddexp(0.0, np.where(virginica, -logit, logit)).sum(axis=-1)


def differential_evolution(rng, log_density, ensembles, companions, generations, d):
    """Moments (generation, ensemble, 2, d) of ensembles that move by differences within them (ter Braak, 2006)."""
    x = 2 * rng.normal(size=(2, ensembles, companions // 2, d))
    lp = log_density(x)
    found = np.empty((generations, ensembles, 2, d))
    for generation in range(generations):
        for half in (0, 1):
            # Either half moves by differences of companions in the other; now and then by whole ones, from mode to
            # mode.
            first, second = (rng.integers(companions // 2, size=x.shape[1:3]) for _ in range(2))
            others = np.arange(ensembles)[:, None]
            factor = 1.0 if generation % 10 == 0 else 2.38 / np.sqrt(2 * d) * rng.uniform(0.3, 1.2, (*first.shape, 1))
            jump = factor * (x[1 - half][others, first] - x[1 - half][others, second])
            proposal = x[half] + jump + 1e-3 * rng.normal(size=jump.shape)
            new = log_density(proposal)
            taken = rng.random(new.shape) < np.exp(np.minimum(new - lp[half], 0.0))
            x[half][taken], lp[half][taken] = proposal[taken], new[taken]
        found[generation] = np.stack([x.mean(axis=(0, 2)), (x**2).mean(axis=(0, 2))], axis=1)
    return found


@pytest.mark.statistical
def test_network_agrees_with_another_sampler():
    found = differential_evolution(np.random.default_rng(16), log_density_by_hand, 30, 40, 2400, 9)[1500:].mean(axis=0)
    known, (mean_error, second_error) = targets.get("neural_network").reference, errors("neural_network")
    checks = [(found[:, 0, 8], known.mean[8], mean_error[8]), (found[:, 1, 8], known.second_moment[8], second_error[8])]
    for unit in (0, 2, 4, 6):
        checks.append((found[:, 1, unit : unit + 2].mean(axis=1), known.second_moment[unit], second_error[unit]))
    for values, truth, error in checks:
        assert abs(values.mean() - truth) < LIMIT * np.hypot(values.std(ddof=1) / np.sqrt(len(values)), error)
        assert values.std(ddof=1) / np.sqrt(len(values)) < 0.03 * max(1.0, truth)

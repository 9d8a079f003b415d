"""Flow matching: the same chain in the terms of the flow, its exact law, and densities of its steps.

Statistical are comparisons of moments at fixed keys, 11 in all; the limit of 5 standard errors gives a false-alarm rate
below 1e-5.
"""

from dataclasses import replace
from itertools import combinations, pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffusion_reference import SHORT

from pmm_mcmc.diffusion import Blocks, DiffusionSchedule, gaussian_variance, plan_blocks, poisson_midpoint_sample
from pmm_mcmc.diffusion.gaussian import gains
from pmm_mcmc.diffusion.interpolation import following, make_rows, make_table
from pmm_mcmc.diffusion.jax import (
    Trajectory,
    ddim_sample,
    ddpm_sample,
    poisson_midpoint_trajectory,
    trajectory_log_prob,
)
from pmm_mcmc.diffusion.planner import _costs
from pmm_mcmc.diffusion.schedule import PREDICTIONS, flow_scale, shifted

KEY = jax.random.key(5)
MOST_REFINEMENTS = (0.0, 0.3, 1.0, np.sqrt(2.0), 2.5)
VARIANCES = np.geomspace(1e-3, 100.0, 26)


def velocity(variance):
    """Exact network for data ``N(0, variance)``, as a flow is told: state and noise level."""

    def network(x, s):
        s = s.reshape(-1, *(1,) * (x.ndim - 1))
        return x * (s - (1 - s) * variance) / ((1 - s) ** 2 * variance + s**2)

    return network


def z_score(x, variance):
    return (np.mean(x**2) - variance) / (np.std(x**2) / np.sqrt(x.size))


@pytest.mark.parametrize("a", MOST_REFINEMENTS)
@pytest.mark.parametrize("kind", ("flow", "v", "x0", 0.2))
def test_updates_in_the_terms_of_the_flow(a, kind):
    """The formula of ``from_sigmas``, from noise on, whatever is predicted."""
    s = shifted(np.arange(1, 31) / 30, 2.0)
    schedule = DiffusionSchedule.from_sigmas(s, a)
    assert np.allclose(schedule.sigmas, [0.0, *s], atol=1e-12) and np.array_equal(schedule.timesteps, s)
    coefficients, scale = schedule.coefficients(kind), flow_scale(schedule.sigmas)
    to_kind = schedule.conversion("flow", kind)
    for n in range(1, 31):
        x, u = 0.7, np.cos(n)
        now, after = schedule.sigmas[n], schedule.sigmas[n - 1]
        data, noise = x - now * u, x + (1 - now) * u
        # Without noise there is nothing to forget, not even from pure noise on.
        rho = (after * (1 - now) / (now * (1 - after))) ** (a**2 / 2)
        wanted = (1 - after) * data + after * rho * noise
        said = to_kind[0][n] * x / scale[n] + to_kind[1][n] * u
        found = coefficients.a[n] * x / scale[n] + coefficients.b[n] * said
        assert found * scale[n - 1] == pytest.approx(wanted, abs=1e-9)
        assert coefficients.sigma[n] * scale[n - 1] == pytest.approx(after * np.sqrt(1 - rho**2), abs=1e-9)


def test_variant_sde_is_ddpm_at_eta_1_and_ddim_at_0():
    signal = np.cumprod(1.0 - SHORT)
    for eta in (0.0, 1.0):
        ours, theirs = (DiffusionSchedule(signal, v, eta=eta).coefficients() for v in ("sde", "2"))
        assert all(np.allclose(p, q, rtol=1e-10, atol=1e-13) for p, q in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("a", MOST_REFINEMENTS)
def test_the_law_of_the_data_is_the_same_at_any_amount_of_noise(a):
    """A finer chain is nearer by as much as it is finer: first order, to the same law."""
    errors = [
        np.abs(gaussian_variance(DiffusionSchedule.flow(N, a, shift=3.0), [0.1, 1.0, 4.0]) / [0.1, 1.0, 4.0] - 1).max()
        for N in (1000, 2000, 4000)
    ]
    assert errors[2] < 0.02 and all(1.8 < p / q < 2.2 for p, q in pairwise(errors))


@pytest.mark.parametrize("a", (0.5, 1.0, np.sqrt(2.0)))
@pytest.mark.parametrize("shift", (1.0, 3.0))
def test_forty_calls_are_within_5_per_cent_of_the_chain_for_all_variances(a, shift):
    schedule = DiffusionSchedule.flow(1000, a, shift=shift)
    found = gaussian_variance(schedule, VARIANCES, plan_blocks(schedule, 20))
    assert np.abs(np.sqrt(found / gaussian_variance(schedule, VARIANCES)) - 1).max() < 0.02


def test_no_block_of_a_flow_spans_the_levels_where_data_are_told_apart():
    """Frozen ``v`` is exact for the variance 1 over any length; seven blocks had one from the level 0.893 to 0.338."""
    assert plan_blocks(DiffusionSchedule.flow(1000), 7).sizes.max() < 350


def test_the_plan_of_a_flow_is_the_best_of_all_cuts():
    """Of two costs, block by block, the larger: every cut of a short chain is tried."""
    schedule, variances = DiffusionSchedule.flow(14), np.geomspace(0.01, 4.0, 19)
    plan = plan_blocks(schedule, 4, (0.01, 4.0))
    costs = np.maximum(*(_costs(schedule, replace(plan, frozen=kind), variances) for kind in ("v", 10.0)))
    cuts = [(14, *reversed(inner), 0) for inner in combinations(range(1, 14), 3)]
    assert plan.edges == min(cuts, key=lambda cut: sum(costs[t, s] for t, s in pairwise(cut)))


@pytest.mark.parametrize("kind", ("v", "x0", "flow", 0.2))
def test_exact_network_where_no_data_are_left(kind):
    """At the level of pure noise as a hair below it; conversions gave 0 there for what a v-network says of the data."""
    at = DiffusionSchedule.flow(20)
    below = DiffusionSchedule.from_sigmas([*np.arange(1, 20) / 20, 1.0 - 1e-9])
    for schedule in (at, below):
        assert np.allclose(gains(schedule, kind, VARIANCES), gains(below, kind, VARIANCES), atol=1e-6)
    for other in ("v", "x0", "flow"):
        assert np.allclose(at.conversion(other, kind), below.conversion(other, kind), atol=1e-6)


@pytest.mark.parametrize("frozen", ("v", "x0", "flow"))
def test_option_1_has_no_division_by_zero_in_the_first_block(frozen):
    """From pure noise the first update keeps nothing of the state, and what follows two midpoints was NaN."""
    schedule = DiffusionSchedule.flow(20)
    table = make_table(schedule, Blocks((20, 10, 0), "bernoulli", frozen=frozen), "flow")
    levels = np.array([20, 17, 13, 10, 4, 2])
    rows = make_rows(table, levels, following(levels))
    a = schedule.coefficients(frozen).a
    assert all(np.all(np.isfinite(column)) for column in rows)
    assert rows.path_factor[1] == pytest.approx(np.prod(a[14:18])) and rows.path_factor[4] == pytest.approx(
        np.prod(a[3:5])
    )


@pytest.mark.statistical
@pytest.mark.parametrize("a", (0.5, np.sqrt(2.0)))
def test_samples_have_the_exact_law(a):
    schedule, n = DiffusionSchedule.flow(200, a, shift=3.0), 100_000
    blocks = Blocks((200, 190, 150, 80, 30, 8, 0))
    for i, variance in enumerate((0.05, 2.0)):
        key, first = jax.random.split(jax.random.fold_in(KEY, i))
        x = jax.random.normal(first, (n, 1))
        x = poisson_midpoint_sample(key, velocity(variance), x, schedule, blocks, prediction="flow")
        assert abs(z_score(np.asarray(x, float), gaussian_variance(schedule, variance, blocks))) < 5


@pytest.mark.statistical
def test_other_samplers_take_flows():
    schedule, n, v = DiffusionSchedule.flow(100, 1.0), 100_000, velocity(0.3)
    x = jax.random.normal(jax.random.key(9), (n, 1))
    few = schedule.respaced(20)
    found = np.asarray(ddpm_sample(KEY, v, x, few, prediction="flow"), float)
    assert abs(z_score(found, gaussian_variance(few, 0.3))) < 5
    factor = np.asarray(ddim_sample(KEY, v, x, schedule, 20, prediction="flow") / x)
    ode = DiffusionSchedule.flow(100, 0.0).respaced(20)
    assert np.allclose(factor, np.sqrt(gaussian_variance(ode, 0.3)), rtol=1e-3)


def test_a_flow_may_start_below_pure_noise():
    """The state is at the scale of the level where the blocks start, not of the last of the schedule."""
    schedule = DiffusionSchedule.flow(100, 1.0)
    below = DiffusionSchedule.from_sigmas(schedule.sigmas[1:61])
    x, blocks = jax.random.normal(KEY, (4, 2)), Blocks((60, 40, 20, 0))
    a, b = (poisson_midpoint_sample(KEY, velocity(0.3), x, s, blocks, prediction="flow") for s in (schedule, below))
    assert np.allclose(a, b, rtol=1e-5)


# Log-probabilities


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_a_trajectory_is_the_sample_and_its_density_is_found_again(prediction):
    signal = np.cumprod(1.0 - SHORT)
    schedule = DiffusionSchedule.flow(24) if prediction == "flow" else DiffusionSchedule(signal, "2")
    blocks = Blocks((24, 18, 9, 4, 0))
    x = jax.random.normal(KEY, (6, 3, 2))

    def network(x, t):
        return jnp.sin(2.0 * x + 0.1 * t.reshape(-1, 1, 1))

    found = poisson_midpoint_trajectory(KEY, network, x, schedule, blocks, prediction=prediction)
    assert found.states.shape == (9, 6, 3, 2) and found.levels.shape == found.log_prob.shape == (8, 6)
    sample = poisson_midpoint_sample(KEY, network, x, schedule, blocks, prediction=prediction)
    assert np.allclose(found.states[-1], sample, atol=1e-5) and np.array_equal(found.states[0], x)
    again = trajectory_log_prob(network, found, schedule, blocks, prediction=prediction)
    # Differences of what is nearly equal, over deviations down to 0.01, in single precision.
    assert np.allclose(found.log_prob, again, atol=0.02)
    assert np.all((np.asarray(found.log_prob)[-1] == 0.0) == (np.asarray(found.levels)[-1] == 1))


def test_density_of_a_trajectory_by_its_definition():
    """Both Gaussians of a block, in double precision: the second one given the path that led to the midpoint."""
    with jax.enable_x64(True):
        schedule, blocks = DiffusionSchedule.flow(30, 0.7, shift=2.0), Blocks((30, 17, 0), frozen="v")
        a, b, sigma = schedule.coefficients("v")
        scale, table = flow_scale(schedule.sigmas), make_table(schedule, blocks, "flow")
        of_x, of_u = schedule.conversion("flow", "v")
        x = np.random.default_rng(0).standard_normal((5, 2, 3))
        levels = np.tile([[30], [24], [17], [9]], 2)
        states = jnp.asarray(x * scale[[30, 24, 17, 9, 0]][:, None, None])
        trajectory = Trajectory(states, jnp.asarray(levels), None)
        found = trajectory_log_prob(lambda x, s: jnp.cos(3 * x), trajectory, schedule, blocks, prediction="flow")

        def said(i, level):
            return of_x[level] * x[i] + of_u[level] * np.cos(3 * x[i] * scale[level])

        for call, (level, to) in enumerate(((30, 24), (24, 17), (17, 9), (9, 0))):
            frozen = said(call - call % 2, levels[call - call % 2, 0])
            mean, variance = x[call], 0.0
            for n in range(level, to, -1):
                mean, variance = a[n] * mean + b[n] * frozen, a[n] ** 2 * variance + sigma[n] ** 2
            if call % 2:
                mean = mean + table.weight[level] * (said(call, level) - frozen)
            deviation = np.sqrt(variance) * scale[to]
            z = (x[call + 1] - mean) * scale[to] / deviation
            wanted = -0.5 * (z**2).sum(axis=1) - 3 * np.log(deviation * np.sqrt(2 * np.pi))
            assert np.allclose(found[call], wanted, rtol=1e-6), call


@pytest.mark.statistical
@pytest.mark.parametrize("prediction", ("flow", "v"))
def test_importance_weights(prediction):
    """Trajectories of one network, weighted, have the law of another's, up to the last block: it may end silently."""
    if prediction == "flow":
        schedule, of = DiffusionSchedule.flow(60, 1.0), velocity
    else:
        schedule = DiffusionSchedule.named("linear", 60, "2")

        def of(variance):
            gain = jnp.asarray(gains(schedule, "v", np.array([variance]))[:, 0], jnp.float32)
            return lambda x, t: gain[t + 1][:, None] * x

    blocks, n = Blocks((60, 40, 20, 5, 0)), 100_000
    keys = jax.random.split(KEY, 4)
    x, other = (jax.random.normal(key, (n, 1)) for key in keys[:2])
    drawn = poisson_midpoint_trajectory(keys[2], of(1.0), x, schedule, blocks, prediction=prediction)
    ratio = trajectory_log_prob(of(0.85), drawn, schedule, blocks, prediction=prediction) - drawn.log_prob
    weight = np.exp(np.asarray(ratio[:-2].sum(axis=0), float))
    assert abs(weight.mean() - 1) < 5 * weight.std() / np.sqrt(n)
    wanted = poisson_midpoint_trajectory(keys[3], of(0.85), other, schedule, blocks, prediction=prediction)
    squares, plain = (np.asarray(t.states[-3, :, 0], float) ** 2 for t in (wanted, drawn))
    error = np.hypot(squares.std(), (weight * plain).std()) / np.sqrt(n)
    assert abs((weight * plain).mean() - squares.mean()) < 5 * error
    assert abs(plain.mean() - squares.mean()) > 5 * error


def nan(x, s):
    return x / 0.0


def sample_flow(schedule=None, blocks=None, network=None, **options):
    schedule, blocks = schedule or DiffusionSchedule.flow(24), blocks or Blocks((24, 12, 0))
    options = {"prediction": "flow", **options}
    return poisson_midpoint_sample(KEY, network or velocity(1.0), jnp.ones((2, 3)), schedule, blocks, **options)


def densities(schedule, blocks=None):
    blocks = blocks or Blocks((24, 12, 0))
    x = jnp.ones((2, 3))
    return poisson_midpoint_trajectory(KEY, velocity(1.0), x, schedule, blocks, prediction="flow")


BAD = {
    "N": (lambda: DiffusionSchedule.flow(0), "N=0"),
    "shift": (lambda: DiffusionSchedule.flow(10, shift=0.0), "shift=0.0 must be a number > 0"),
    "noise": (lambda: DiffusionSchedule.flow(10, -1.0), "noise_level=-1.0 must be a number >= 0: 0 is the ODE"),
    "NaN": (lambda: DiffusionSchedule.flow(10, float("nan")), "noise_level=nan"),
    "falling": (lambda: DiffusionSchedule.from_sigmas([0.5, 0.2]), "sigmas must increase strictly"),
    "with 0": (lambda: DiffusionSchedule.from_sigmas([0.0, 0.2]), "the data at 0 left out; got 2 from 0.0 to 0.2"),
    "above 1": (lambda: DiffusionSchedule.from_sigmas([0.5, 1.2]), r"within \(0, 1\]"),
    "none": (lambda: DiffusionSchedule.from_sigmas([]), "got 0 from None"),
    "eta": (lambda: DiffusionSchedule([0.5, 0.1], "2", eta=1.5), "beyond 1 variant 'sde'"),
    "frozen": (lambda: sample_flow(blocks=Blocks((24, 0), frozen="epsilon")), "where sigma = 1"),
    "schedule": (lambda: sample_flow(DiffusionSchedule.named("linear", 24)), r"not that of a flow.*times up to 23"),
    "kind": (lambda: sample_flow(prediction="velocity"), "prediction='velocity' is not known.*flow"),
    "not a number": (lambda: sample_flow(network=nan), "6 of the 6 numbers of the samples are not finite"),
    "ODE": (lambda: densities(DiffusionSchedule.flow(24, 0.0)), "adds no noise.*noise_level > 0"),
    "Option 1": (lambda: densities(DiffusionSchedule.flow(24), Blocks((24, 0), "bernoulli")), "midpoint='bernoulli'"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()

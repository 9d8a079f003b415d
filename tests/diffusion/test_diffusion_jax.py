"""The JAX samplers: the NumPy form on the same draws, their law, their calls.

Laws are held against the exact recursion by z-scores at fixed keys, 3 to 12 a test; the limit of 5 gives each test a
false-alarm rate below 1e-5.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffusion_reference import draws_of, gaussian, run, short

from pmm_mcmc.diffusion import Blocks, DiffusionSchedule, gaussian_variance, poisson_midpoint_sample
from pmm_mcmc.diffusion.interpolation import advance, draw_levels, following, make_rows, make_table
from pmm_mcmc.diffusion.jax import ddim_sample, ddpm_sample, marked_cells, one_midpoint, scan

LAWS = ("uniform", "bernoulli", "importance")
KEY = jax.random.key(8)


def network(x, t):
    t = t.reshape(-1, *(1,) * (x.ndim - 1)) if np.ndim(t) else t
    return (jnp if isinstance(x, jax.Array) else np).sin(2.0 * x + 0.1 * t) + 0.3 * x


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("double", "tolerance"), [(True, 1e-12), (False, 3e-5)])
def test_same_draws_give_the_same_as_numpy(law, double, tolerance):
    schedule, rng = short("2"), np.random.default_rng(1)
    blocks = Blocks((24, 15, 8, 7, 0), law)
    table = make_table(schedule, blocks, "v")
    levels = draw_levels(table, blocks, rng)
    rows = make_rows(table, levels, following(levels))
    x, Z = rng.standard_normal((6, 2)), rng.standard_normal((25, 6, 2))
    draws = draws_of(schedule, blocks, levels, rows, Z)
    wanted = run(schedule, blocks, network, x, levels, draws, "v")
    with jax.enable_x64(double):
        in_jax = type(rows)(*(jnp.asarray(c, float) for c in rows))
        draws = jnp.asarray(np.array(draws), float)
        by_noise = lambda row, state, output, noise: (advance(row, state, output, noise), None)  # noqa: E731
        result = np.asarray(scan(network, jnp.asarray(x, float), in_jax, levels - 1, by_noise, draws)[0])
    assert result.dtype == (np.float64 if double else np.float32)
    assert np.abs(result - wanted).max() < tolerance * np.abs(wanted).max()


@pytest.mark.statistical
@pytest.mark.parametrize("law", ("uniform", "importance"))
@pytest.mark.parametrize("frozen", ("epsilon", "x0", "v"))
def test_law_withone_midpoint(law, frozen):
    schedule, n = short("2"), 100_000
    blocks = Blocks((24, 16, 9, 4, 3, 0), law, frozen)
    for i, variance in enumerate((0.05, 1.0, 4.0)):
        key, start = jax.random.split(jax.random.fold_in(KEY, i))
        x = jax.random.normal(start, (n, 1))
        x = np.asarray(poisson_midpoint_sample(key, gaussian(schedule, variance), x, schedule, blocks), float)
        z = (np.mean(x**2) - gaussian_variance(schedule, variance, blocks)) / (np.std(x**2) / np.sqrt(n))
        assert abs(z) < 5, (variance, z)


@pytest.mark.statistical
def test_law_of_option_1():
    """All samples of a call share the marked cells, so each comes from a call of its own."""
    schedule, n = short("2"), 20_000
    blocks = Blocks((24, 16, 9, 4, 3, 0), "bernoulli", frozen="v")
    for i, variance in enumerate((0.05, 1.0, 4.0)):

        def one(key, variance=variance):
            key, start = jax.random.split(key)
            x = jax.random.normal(start, (1, 1))
            return poisson_midpoint_sample(key, gaussian(schedule, variance), x, schedule, blocks)[0, 0]

        x = np.asarray(jax.vmap(one)(jax.random.split(jax.random.fold_in(KEY, i), n)), float)
        z = (np.mean(x**2) - gaussian_variance(schedule, variance, blocks)) / (np.std(x**2) / np.sqrt(n))
        assert abs(z) < 5, (variance, z)


@pytest.mark.statistical
@pytest.mark.parametrize("frozen", ("epsilon", "x0"))
@pytest.mark.parametrize("law", LAWS)
def test_midpoints_have_their_probabilities(law, frozen):
    schedule, n = short("3"), 50_000
    blocks = Blocks((24, 12, 11, 0), law, frozen)
    table = make_table(schedule, blocks)
    if law == "bernoulli":
        levels = jax.vmap(lambda key: marked_cells(key, table))(jax.random.split(KEY, n)).T
    else:
        levels = one_midpoint(KEY, table, blocks, n)
    levels = np.asarray(levels)
    for level in range(1, 25):
        p = 1.0 if level in blocks.edges else table.probability[level]
        share = (levels == level).sum() / n
        assert abs(share - p) <= 5 * np.sqrt(p * (1 - p) / n) + 1e-12, level
    calls = levels[:, 0][levels[:, 0] > 0]
    assert np.all(np.diff(calls) < 0) and calls[0] == 24


def test_samples_draw_midpoints_of_their_own_but_not_under_option_1():
    schedule = short()
    times = []

    def watched(x, t):
        jax.debug.callback(lambda t: times.append(np.asarray(t)), t)
        return network(x, t)

    x = jnp.zeros((50, 2))
    for law, shared in (("importance", False), ("bernoulli", True)):
        times.clear()
        blocks = Blocks((24, 12, 0), law)
        jax.jit(lambda x, b=blocks: poisson_midpoint_sample(KEY, watched, x, schedule, b))(x).block_until_ready()
        jax.effects_barrier()
        assert all(t.shape == (50,) and t.dtype.kind == "i" for t in times)
        assert all(len(set(t)) == 1 for t in times) == shared


@pytest.mark.parametrize("law", LAWS)
def test_number_of_calls(law):
    schedule, blocks = short(), Blocks((24, 16, 8, 7, 2, 0), law)
    calls = []

    def watched(x, t):
        jax.debug.callback(lambda t: calls.append(int(t[0])), t)
        return network(x, t)

    sample = jax.jit(lambda key, x: poisson_midpoint_sample(key, watched, x, schedule, blocks))
    counts = []
    for seed in range(20):
        calls.clear()
        key = jax.random.key(seed)
        sample(key, jnp.zeros((1, 2))).block_until_ready()
        jax.effects_barrier()
        assert {t + 1 for t in calls} >= set(blocks.edges[:-1]) and len(set(calls)) == len(calls)
        if law == "bernoulli":
            levels = marked_cells(jax.random.split(key)[0], make_table(schedule, blocks))
            assert len(calls) == int((levels > 0).sum())
        counts.append(len(calls))
    assert (len(set(counts)) > 2) == (law == "bernoulli")
    assert law == "bernoulli" or counts[0] == blocks.calls


def test_every_kind_of_network_gives_the_same_samples():
    """The same estimates, told as noise, score, data or v."""
    schedule = short()
    x = jax.random.normal(KEY, (4, 3))
    results = []
    for kind in ("epsilon", "score", "x0", "v"):
        of_x, of_epsilon = schedule.conversion("epsilon", kind)

        def told(x, t, of_x=of_x, of_epsilon=of_epsilon):
            at = t[:, None] + 1
            return jnp.asarray(of_x)[at] * x + jnp.asarray(of_epsilon)[at] * network(x, t)

        blocks = Blocks.shrinking(24, 5)
        results.append(np.asarray(poisson_midpoint_sample(KEY, told, x, schedule, blocks, prediction=kind)))
    assert all(np.allclose(r, results[0], rtol=2e-3, atol=2e-4) for r in results)
    assert not np.allclose(results[0], x)


def test_images_jit_and_types():
    schedule, blocks = short(), Blocks.shrinking(24, 4)
    x = jax.random.normal(KEY, (3, 2, 4, 4))

    def eager(key, x):
        return poisson_midpoint_sample(key, network, x, schedule, blocks)

    sample = jax.jit(eager)
    result = sample(KEY, x)
    assert result.shape == x.shape and result.dtype == x.dtype
    assert np.allclose(eager(KEY, x), result, rtol=1e-5, atol=1e-5)
    assert not np.allclose(sample(jax.random.key(1), x), result)
    raw = jax.random.key_data(KEY)
    assert np.array_equal(sample(raw, x), result)
    half = sample(KEY, x.astype(jnp.bfloat16))
    assert half.dtype == jnp.bfloat16 and np.all(np.isfinite(half.astype(np.float32)))


@pytest.mark.statistical
def test_ddpm_and_ddim_have_their_exact_laws():
    schedule, n = short("3"), 50_000
    x = jax.random.normal(jax.random.key(9), (n, 1))
    f = gaussian(schedule, 0.05)
    ddpm = np.asarray(ddpm_sample(KEY, f, x, schedule), float)
    fewer = np.asarray(ddpm_sample(KEY, f, x, schedule.respaced(7)), float)
    ddim = np.asarray(ddim_sample(KEY, f, x, schedule, 7, eta=0.8), float)
    chains = (schedule, schedule.respaced(7), DiffusionSchedule(schedule.signal[1:], "2").respaced(7, eta=0.8))
    for samples, chain in zip((ddpm, fewer, ddim), chains, strict=True):
        z = (np.mean(samples**2) - gaussian_variance(chain, 0.05)) / (np.std(samples**2) / np.sqrt(n))
        assert abs(z) < 5
    factor = np.asarray(ddim_sample(KEY, f, x[:5], schedule, 6) / x[:5])  # without noise a linear map
    assert np.allclose(factor, np.sqrt(gaussian_variance(short("2").respaced(6, eta=0.0), 0.05)), rtol=1e-4)


BAD = {
    "no batch": (lambda x: poisson_midpoint_sample(KEY, network, x[0], short(), Blocks.equal(24, 4)), r"shape \(2,\)"),
    "integers": (lambda x: ddpm_sample(KEY, network, x.astype("int32"), short()), "type int32; give floating point"),
    "prediction": (lambda x: ddim_sample(KEY, network, x, short(), 5, prediction="noise"), "prediction='noise'"),
    "blocks": (lambda x: poisson_midpoint_sample(KEY, network, x, short(), Blocks.equal(30, 4)), "start at level 30"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call(jnp.zeros((3, 2)))

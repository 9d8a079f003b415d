"""Starts where the log density is lower by orders of magnitude, and starts that stay where they are."""

import jax.numpy as jnp
import numpy as np
import pytest
from numba import cfunc
from reference import engine

import pmm_mcmc as pmm
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.model.native import SIGNATURE
from pmm_mcmc.warmup.ascent import raised_starts
from pmm_mcmc.warmup.warm_up import Warming


def cubic_regression(seed=3, n=40):
    """Counts that follow a cubic: at a start within 2 of 0 in each coefficient the linear predictor may be 40."""
    rng = np.random.default_rng(seed)
    year = np.linspace(-1.7, 2.5, n)
    terms = np.stack([np.ones(n), year, year**2, year**3], axis=1)
    counts = rng.poisson(np.exp(terms @ [4.0, 1.2, 0.1, -0.3]))

    def log_density(x):
        predictor = terms @ x
        return jnp.sum(counts * predictor - jnp.exp(predictor)) - 0.5 * jnp.sum((x / 10.0) ** 2)

    return log_density


@cfunc(SIGNATURE)
def scaled(x, gradient, table, n):
    # A Gaussian with precision table[0].
    precision = float(table[0])
    lp = 0.0
    for i in range(n):
        lp -= 0.5 * precision * x[i] * x[i]
        gradient[i] = -precision * x[i]
    return lp


def gaussian(precision, d=6):
    """Return arguments and the engine of a Gaussian."""
    arguments = MethodArguments.checked("PoissonULMC", dynamics="underdamped", scheme="recycled")
    return arguments, engine(arguments.kernel, d, scaled, np.array([precision]))


def test_starts_of_the_order_of_the_posterior_stay():
    arguments, run = gaussian(100)
    starts = 4.0 * np.random.default_rng(2).normal(size=(5, 6))
    gradients = run.gradient_at(starts)
    raised, slopes, spent = raised_starts(run, starts, gradients)
    np.testing.assert_array_equal(raised, starts)
    np.testing.assert_array_equal(slopes, gradients)
    assert not spent.any()
    np.testing.assert_array_equal(Warming.start(run, arguments, starts, 100, np.random.default_rng(1)).n_grad, 2)


def test_a_low_start_ascends_to_where_no_step_promises_as_many_nats_as_coordinates():
    _, run = gaussian(10**10)
    starts = np.random.default_rng(2).uniform(-2.0, 2.0, size=(40, 6))
    raised, gradients, n_grad = raised_starts(run, starts, run.gradient_at(starts))
    # Of a Gaussian the next step, to the maximum, promises all that is missing.
    assert (0.5e10 * raised**2).sum(axis=1).max() < 6.0
    np.testing.assert_array_equal(gradients, run.gradient_at(raised))
    assert 0 < n_grad.min() and n_grad.max() < 20


def test_a_start_that_has_less_to_gain_than_it_has_coordinates_stays():
    _, run = gaussian(16_000_000, d=1)
    starts = np.array([[1.3 / 4e3], [2.0]])
    raised, gradients, n_grad = raised_starts(run, starts, run.gradient_at(starts))
    assert n_grad.min() > 2, "both were tried"
    assert raised[0] == starts[0] and abs(raised[1]) < 1e-3
    np.testing.assert_array_equal(gradients, run.gradient_at(raised))


def test_a_warm_up_counts_what_low_starts_have_spent():
    arguments, run = gaussian(10**10)
    starts = np.random.default_rng(2).uniform(-2.0, 2.0, size=(4, 6))
    spent = raised_starts(run, starts, run.gradient_at(starts))[2]
    warming = Warming.start(run, arguments, starts, 100, np.random.default_rng(1))
    np.testing.assert_array_equal(warming.n_grad, 2 + spent)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_regression_whose_predictor_is_absurd_at_its_starts_is_sampled(seed):
    log_density = cubic_regression()
    starts = np.random.default_rng(seed).uniform(-4.0, 4.0, size=(4, 4))
    assert min(float(log_density(x)) for x in starts) < -1e9
    dt = pmm.sample(model=pmm.LogDensity.from_jax(log_density, 4), initvals=starts, random_seed=seed, progressbar=False)
    assert pmm.verdict(dt).state == "trusted"

"""The solvers that are held against the method: their orders, their exact laws on Gaussian data.

Laws are held against the exact recursion by z-scores at fixed keys, three in all; the limit of 5 gives a false-alarm
rate below 1e-5.
"""

from itertools import pairwise

import jax
import numpy as np
import pytest
from diffusion_reference import gaussian, short
from dpm_solver import dpm_solver_sample, dpm_solver_variance, multistep_solver

from pmm_mcmc.diffusion import DiffusionSchedule

pytestmark = pytest.mark.quick

KEY = jax.random.key(12)


def errors(calls, **solver):
    """Relative errors of the variance on a schedule of many levels, evenly spaced for the solvers."""
    ratio = np.linspace(0.5, -4.0, 2**13 + 1)
    schedule = DiffusionSchedule(1.0 / (1.0 + np.exp(-2.0 * ratio)))
    return np.array([dpm_solver_variance(schedule, 0.3, n + 1, **solver) / 0.3 - 1.0 for n in calls])


@pytest.mark.parametrize(
    ("solver", "order"),
    [({}, 2.0), ({"order": 3}, 3.0), ({"stochastic": True}, 2.0)],
    ids=["2M", "3M", "SDE"],
)
def test_orders(solver, order):
    """Of the law, with levels that end where there is noise left: over the whole range errors cancel."""
    found = errors(2 ** np.arange(5, 10), **solver)
    # First and last level, which are not those of noise and of data alone, leave an error that no step size mends.
    changes = np.abs(np.diff(found))
    orders = np.log2(changes[:-1] / changes[1:])
    assert np.abs(orders[-1] - order) < 0.3, orders


def test_third_order_is_exact_where_the_data_are_quadratic_in_time():
    """A step integrates a quadratic in the log ratio exactly, against quadrature, with uneven steps."""
    schedule = short()
    ratio = 0.5 * np.log(schedule.signal[1:] / schedule.noise[1:])
    rows = multistep_solver(schedule, 9, order=3)
    nodes, weights = np.polynomial.legendre.leggauss(30)
    for i in range(2, 7):
        at = ratio[[rows[i - j].level - 1 for j in range(3)]]
        end = ratio[rows[i + 1].level - 1]
        h = end - at[0]
        assert abs((at[0] - at[1]) / h - 1.0) > 0.01
        for power in range(3):
            between = at[0] + 0.5 * h * (1.0 + nodes)
            wanted = 0.5 * h * np.sum(weights * np.exp(between - end) * (between - at[0]) ** power)
            wanted *= np.sqrt(schedule.signal[rows[i + 1].level])
            found = np.dot([rows[i].d, rows[i].d_before, rows[i].d_earlier], (at - at[0]) ** power)
            assert found == pytest.approx(wanted, rel=1e-9, abs=1e-12), (i, power)


def test_stochastic_solver_keeps_what_is_stationary():
    """Where the estimate of the data is 0 the SDE keeps the noise at that of each level."""
    schedule = short()
    rows = multistep_solver(schedule, 10, stochastic=True)
    for row, after in pairwise(rows):
        assert row.x**2 * schedule.noise[row.level] + row.noise**2 == pytest.approx(schedule.noise[after.level])
        assert row.d_earlier == 0.0


@pytest.mark.statistical
def test_stochastic_sampler_has_its_exact_law():
    schedule, n = short("2"), 50_000
    x = jax.random.normal(jax.random.key(13), (n, 1))
    for i, variance in enumerate((0.05, 1.0, 4.0)):
        key = jax.random.fold_in(KEY, i)
        x_0 = np.asarray(dpm_solver_sample(gaussian(schedule, variance), x, schedule, 6, key=key), float)
        exact = dpm_solver_variance(schedule, variance, 6, stochastic=True)
        z = (np.mean(x_0**2) - exact) / (np.std(x_0**2) / np.sqrt(n))
        assert abs(z) < 5, (variance, z)

"""MALA in both engines: its test is that of Metropolis and Hastings with the Euler proposal, and its law the target's.

Random tests at fixed seeds: |z| < 4.5 for each statistic (7e-6), p > 1e-6 for each law.
"""

import numpy as np
import pytest
from jax_chains import keys_of
from reference import engine
from scipy.stats import kstest, norm
from test_adjusted_kernel import bent, bent_jax, chains_at, straightened, z_of

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.contract import Ensemble, TunedParameters
from pmm_mcmc.engines.jax_engine import JaxEngine
from pmm_mcmc.langevin.methods import MALA
from pmm_mcmc.model.jax_density import JaxDensity

CHAINS, COORDINATES = 4000, Coordinates(np.array([0.3, 0.4]), np.array([0.9, 0.6]))
every_backend = pytest.mark.parametrize("backend", ["numba", "jax"])


def engine_of(backend):
    if backend == "numba":
        return engine(MALA, 2, bent)
    return JaxEngine(MALA, JaxDensity.of_function(bent_jax, 2), CHAINS)


def exact_draws():
    e = np.random.default_rng(8).standard_normal((CHAINS, 2))
    return np.column_stack([e[:, 0], 0.5 * e[:, 1] + 0.5 * e[:, 0] ** 2])


def advanced(run, step, rows):
    """Return the states before and after some transitions from exact draws at rest, and the chunk."""
    state, gradient = chains_at(run, COORDINATES.whiten(exact_draws()), np.zeros((CHAINS, 2)), 1.0, COORDINATES)
    before = state.copy()
    setting = TunedParameters(step, 1, 1.0, COORDINATES, 1)
    return before, state, run.advance(setting, Ensemble(state, gradient, keys_of(CHAINS)), rows)


@every_backend
def test_a_step_is_that_of_metropolis_and_hastings(backend):
    step = 0.8
    before, after, out = advanced(engine_of(backend), step, 1)
    x, x_new = before[:, :2], after[:, :2]
    b, b_new, lp, lp_new = before[:, 4:6], after[:, 4:6], before[:, 8], after[:, 8]
    moved = (x != x_new).any(axis=1)
    there, back = (norm.logpdf(end, begin + 0.5 * step**2 * slope, step).sum(axis=1)
                   for begin, slope, end in ((x, b, x_new), (x_new, b_new, x)))  # fmt: skip
    ratio = np.exp(np.minimum(lp_new + back - lp - there, 0.0))
    np.testing.assert_allclose(out.accept[moved, 0], ratio[moved], rtol=1e-9)
    assert abs(z_of(moved - out.accept[:, 0], 0.0)) < 4.5 and 0.3 < moved.mean() < 0.8
    assert (out.n_grad == 1).all() and not out.refined.any() and (after[:, -1] == 1.0).all()


@pytest.mark.statistical
@every_backend
@pytest.mark.parametrize("step", [0.45, 1.1])
def test_chains_that_begin_in_the_target_stay_there(backend, step):
    _, _, out = advanced(engine_of(backend), step, 60)
    e = straightened(out.position)
    for power, expected in ((1, 0.0), (2, 1.0), (4, 3.0)):
        assert np.abs(z_of((e**power).mean(axis=1), expected)).max() < 4.5, power
    assert abs(z_of((e[..., 0] * e[..., 1]).mean(axis=1), 0.0)) < 4.5
    assert abs(z_of((e[..., 0] ** 2 * e[..., 1]).mean(axis=1), 0.0)) < 4.5
    for j in range(2):
        assert kstest(e[:, -1, j], "norm").pvalue > 1e-6

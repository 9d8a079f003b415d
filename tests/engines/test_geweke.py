"""Geweke's joint test of the adjusted method: data and parameters drawn in turn keep the law of both.

A small hierarchy, ``mu ~ N(0, 1)``, ``log tau ~ N(0, 1/4)``, ``x_i ~ N(mu, tau^2)``, ``y_i ~ N(x_i, 0.49)``: each
replicate begins with a draw of the prior and alternates data given parameters, which is exact, with a transition given
the data, of one gradient where it is not refined.  Velocity and persistent number stay with the chain when the data
change.  If a transition leaves the law of all three invariant for any data, they have the moments of the prior, of a
normal and of a uniform law ever after.
Random tests at fixed seeds: |z| < 4.5 for each of fourteen moments (7e-6; 1e-4 for all).

J. Geweke, "Getting it right: joint distribution tests of posterior simulators", JASA 99 (2004) 799-804.
"""

import numpy as np
from numba import cfunc
from one_chain import advanced
from reference import engine

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.contract import Ensemble, TunedParameters, empty_state
from pmm_mcmc.langevin.methods import GHMC
from pmm_mcmc.model.native import SIGNATURE

SPREAD, NOISE, N, UNIT = 0.5, 0.7, 3, 2.0**40
SCALE = Coordinates(np.array([0.2, -0.1, 0.3, 0.0, 0.0]), np.array([0.7, 0.45, 0.6, 0.6, 0.5]))


@cfunc(SIGNATURE)
def joint(z, gradient, table, n):
    # Data are in the table, as whole multiples of 1 / UNIT.
    mu, log_tau = z[0], z[1]
    precision = np.exp(-2.0 * log_tau)
    lp = -0.5 * mu**2 - 0.5 * (log_tau / SPREAD) ** 2
    gradient[0], gradient[1] = -mu, -log_tau / SPREAD**2
    for i in range(2, n):
        away, miss = z[i] - mu, table[i - 2] / UNIT - z[i]
        lp -= 0.5 * away**2 * precision + log_tau + 0.5 * (miss / NOISE) ** 2
        gradient[0] += away * precision
        gradient[1] += away**2 * precision - 1.0
        gradient[i] = miss / NOISE**2 - away * precision
    return lp


def moments(z, v, persistent):
    mu, log_tau, x = z[0], z[1], z[2:]
    of_z = [mu, mu**2, log_tau, log_tau**2, x.mean(), x[0] * mu, x[0] ** 2]
    return [*of_z, v[0], v[0] ** 2, v[1] ** 2, v[0] * mu, persistent, persistent**2, persistent**2 * mu**2]


OF_X = 1.0 + np.exp(2.0 * SPREAD**2)
EXPECTED = np.array([0.0, 1.0, 0.0, SPREAD**2, 0.0, 1.0, OF_X, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0 / 3.0, 1.0 / 3.0])


def largest_z(setting, noise=NOISE, replicates=200, rounds=50):
    """Return the largest distance of a moment from the prior's, and the mean acceptance; ``noise`` is that of data."""
    table = np.zeros(N, np.int64)
    run, rng = engine(GHMC, 2 + N, joint, table), np.random.default_rng(11)
    found, accepted = np.empty((replicates, len(EXPECTED))), 0.0
    for replicate in range(replicates):
        mu, log_tau = rng.standard_normal(), SPREAD * rng.standard_normal()
        z = np.concatenate([[mu, log_tau], mu + np.exp(log_tau) * rng.standard_normal(N)])
        seen, key = np.empty((rounds, len(EXPECTED))), np.array([5, replicate], np.uint64)
        state = empty_state(SCALE.whiten(z), np.zeros(2 + N))
        for i in range(rounds):
            y = z[2:] + noise * rng.standard_normal(N)
            table[:] = np.rint(y * UNIT)
            gradient = run.evaluate(SCALE, state)
            out = advanced(run, setting, Ensemble(state, gradient, key, i), 1)
            z, accepted = out.position[0].copy(), accepted + float(out.accept[0])
            seen[i] = moments(z, state[2 + N : 4 + 2 * N], state[-1])
        found[replicate] = seen.mean(axis=0)
    distance = found.mean(axis=0) - EXPECTED
    return np.abs(distance / (found.std(axis=0, ddof=1) / np.sqrt(replicates))).max(), accepted / replicates / rounds


def test_data_and_parameters_drawn_in_turn_keep_their_joint_law():
    setting = TunedParameters(0.7, 1, 0.3, SCALE, 1)
    z, accept = largest_z(setting)
    assert z < 4.5 and 0.4 < accept < 0.95, (z, accept)
    assert largest_z(setting, noise=2.1)[0] > 6.0, "data of another law are noticed"

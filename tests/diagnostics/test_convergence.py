"""``r_hat``, ``ess_bulk`` and ``mcse`` of many parameters at once are ArviZ's, to rounding."""

import arviz as az
import numpy as np
import pytest

from pmm_mcmc.diagnostics.convergence import convergence

pytestmark = pytest.mark.quick


def series(kind, chains, draws, rng):
    noise = rng.normal(size=(chains, draws))
    if kind == "slow":
        for i in range(1, draws):
            noise[:, i] += 0.97 * noise[:, i - 1]
    elif kind == "alternating":
        for i in range(1, draws):
            noise[:, i] -= 0.8 * noise[:, i - 1]
    elif kind == "apart":
        noise += np.arange(chains)[:, None]
    elif kind == "wider":
        noise *= 1.0 + np.arange(chains)[:, None]
    elif kind == "heavy":
        noise = rng.standard_cauchy(size=(chains, draws))
    elif kind == "discrete":
        noise = np.floor(3.0 * noise)
    elif kind == "flag":
        noise = (noise > 0.3).astype(float)
    return noise


KINDS = ["white", "slow", "alternating", "apart", "wider", "heavy", "discrete", "flag"]


@pytest.mark.parametrize(("chains", "draws"), [(4, 500), (4, 501), (2, 7), (1, 200), (3, 4), (3, 5), (3, 6), (8, 50)])
def test_of_each_parameter_it_is_that_of_arviz(chains, draws):
    rng = np.random.default_rng(1)
    values = np.stack([series(kind, chains, draws, rng) for kind in KINDS for _ in range(3)], axis=-1)
    found = convergence(values)
    with np.errstate(all="ignore"):
        for i in range(values.shape[2]):
            x = values[..., i]
            if np.ptp(x) == 0.0:
                continue
            if chains > 1:
                np.testing.assert_allclose(found.r_hat[i], az.rhat(x), rtol=1e-9)
            np.testing.assert_allclose(found.ess_bulk[i], az.ess(x, method="bulk"), rtol=1e-7, err_msg=KINDS[i // 3])
            np.testing.assert_allclose(found.mcse[i], az.mcse(x, method="mean"), rtol=1e-7)


def test_what_has_none():
    x = np.random.default_rng(1).normal(size=(4, 100, 3))
    x[..., 1], x[2, 5, 2] = 3.0, np.inf
    found = convergence(x)
    assert np.isnan(found.r_hat[1:]).all() and np.isfinite(found.r_hat[0])
    assert found.ess_bulk[1] == 400.0 and np.isnan(found.ess_bulk[2]) and found.mcse[1] == 0.0
    assert np.isnan(convergence(x[:, :3]).r_hat).all() and np.isnan(convergence(x[:1]).r_hat).all()


def test_blocks_do_not_show():
    x = np.random.default_rng(1).normal(size=(4, 1000, 70))  # more than two blocks
    whole, alone = convergence(x), convergence(x[..., 65:66])
    for many, one in zip(whole, alone, strict=True):
        assert many[65] == one[0]

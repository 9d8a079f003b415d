"""``pmm.sample`` of a hierarchical model as it is written: straightened, said so, stored and passed on."""

import numpy as np
import pymc as pm
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.noncentring.funnel_map import FunnelMap


@pytest.fixture(scope="module")
def centred():
    """Eight schools as they are written."""
    effect, error = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, error, observed=effect)
    return model


STRAIGHT = {"draws": 300, "tune": 1000, "chains": 16, "random_seed": 1, "progressbar": False}


@pytest.mark.parametrize("backend", ["numba", "jax"])
def test_a_funnel_is_straightened_and_said_so(centred, backend, tmp_path, caplog):
    step = pmm.PoissonULMC(scheme="recycled")
    with caplog.at_level("INFO", logger="pmm_mcmc"):
        tree = pmm.sample(step, model=centred, backend=backend, **STRAIGHT)
    attrs = tree["posterior"].attrs
    assert attrs["reparametrisation"].startswith("theta[0..7] scale with tau_log__")
    assert any(attrs["reparametrisation"] in record.message for record in caplog.records)
    funnels = pmm.learnt_map(tree)
    assert funnels.to_json() == attrs["funnel_map"] and sorted(funnels.sink) == list(range(2, 10))
    # Draws and gradients are the model's own.
    stats = tree["sample_stats"]
    position, gradient, lp = (stats[name].values for name in ("unconstrained", "gradient", "lp"))
    np.testing.assert_array_equal(position[..., 2:], tree["posterior"]["theta"].values)
    logp, dlogp = centred.compile_logp(), centred.compile_dlogp()
    for chain, draw in [(0, 0), (7, 150), (15, 299)]:
        x = position[chain, draw]
        point = {"mu": x[0], "tau_log__": x[1], "theta": x[2:]}
        assert lp[chain, draw] == pytest.approx(float(logp(point)), abs=1e-8)
        np.testing.assert_allclose(gradient[chain, draw], dlogp(point), rtol=1e-8, atol=1e-8)
    left = stats["funnel_left"].values
    assert (left == left[0, 0]).all() and 0.0 < left[0, 0] < 1.5
    summary = pmm.summary(tree)
    assert summary.attrs["reparametrisation"] == attrs["reparametrisation"]
    assert pmm.verdict(tree).trusted and summary["bias"].notna().sum() >= 8
    # Stored, it is the same to the byte, and so is what it says.
    path = tmp_path / "run.zarr"
    stored = pmm.sample(step, model=centred, backend=backend, store=path, **STRAIGHT)
    np.testing.assert_array_equal(stored["sample_stats"]["unconstrained"].values, position)
    for name in ("reparametrisation", "funnel_map"):
        assert pmm.open(path)["posterior"].attrs[name] == attrs[name]


def test_a_map_can_be_passed_on_or_left_out(centred):
    small = {**STRAIGHT, "draws": 20, "tune": 400, "chains": 8, "backend": "numba", "compute_convergence_checks": False}
    funnels = FunnelMap(
        np.arange(2, 10), np.arange(0, 17, 2), np.tile([0, 1], 8), np.tile([0.0, 1.0], 8), np.tile([1.0, 0.0], 8),
        np.zeros(16), np.zeros(8), np.zeros(8), np.full(8, np.inf), np.zeros(8),
    )  # fmt: skip
    given = pmm.sample(pmm.PoissonULMC(reparametrise=funnels), model=centred, **small)
    assert given["posterior"].attrs["reparametrisation"] == "by the map given"
    assert given["posterior"].attrs["funnel_map"] == funnels.to_json()
    fixed = pmm.PoissonULMC(reparametrise=funnels, step_size=0.3)
    fixed = pmm.sample(fixed, model=centred, **{**small, "tune": 0})
    assert fixed["posterior"].attrs["funnel_map"] == funnels.to_json()
    without = pmm.sample(pmm.PoissonULMC(reparametrise=False), model=centred, **small)
    assert "reparametrisation" not in without["posterior"].attrs
    assert (given["sample_stats"]["funnel_left"].values < 3.0).all()
    assert all(np.isnan(run["sample_stats"]["funnel_left"].values).all() for run in (fixed, without))
    wrong = funnels._replace(sink=np.arange(3, 11))
    with pytest.raises(ValueError, match=r"map: sink\[7\]=10: the model has 10 coordinates"):
        pmm.sample(pmm.PoissonULMC(reparametrise=wrong), model=centred, **small)
    with centred, pytest.raises(ValueError, match=r"map: sink\[7\]=10: the model has 10 coordinates"):
        pmm.PoissonULMC(reparametrise=wrong)

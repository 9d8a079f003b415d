"""Ascents from hotter levels: a mode that is narrow beside another is found where no draw at the posterior is in it."""

import numpy as np
import pytest
from models import unequal
from sampling_runs import temper

import pmm_mcmc as pmm
from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.mode_search import SearchSpace
from pmm_mcmc.tempering.modes import unmet_maxima


class Hills:
    """A density that is a mixture of normals with variances 1 and ``narrow``, at 0 and ``far``."""

    def __init__(self, far, narrow):
        self.far, self.narrow, self.calls = np.asarray(far, float), narrow, 0

    def __call__(self, x):
        self.calls += len(x)
        d = x.shape[1]
        wide = -0.5 * (x**2).sum(axis=1)
        other = -0.5 * ((x - self.far) ** 2).sum(axis=1) / self.narrow - 0.5 * d * np.log(self.narrow)
        lp = np.logaddexp(wide, other)
        share = np.exp(other - lp)[:, None]
        return lp, -(1.0 - share) * x - share * (x - self.far) / self.narrow


def unmet(hills, cold, hot, limit, rng, scale=1.0):
    """The maxima that no ascent from a cold draw reaches, and the gradients."""
    d = cold.shape[1]
    space = SearchSpace(hills, cold, coordinates=Coordinates(np.ones(d), np.full(d, scale)))
    return unmet_maxima(space, hot, limit, rng), space.spent


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_maximum_is_unmet_if_no_ascent_from_a_cold_draw_ends_there(scale):
    d, rng = 6, np.random.default_rng(1)
    far = np.full(d, 4.0)
    hills = Hills(far, 0.2)
    cold, hot = rng.standard_normal((64, d)), np.concatenate([2.0 * rng.standard_normal((300, d)), far + np.eye(d)])
    found, spent = unmet(hills, cold, hot, 10**5, rng, scale)
    assert found.shape == (1, d) and spent == hills.calls
    np.testing.assert_allclose(found[0], far, atol=0.1)
    met, _ = unmet(hills, np.concatenate([cold, far + 0.1 * np.eye(d)]), hot, 10**5, rng, scale)
    assert len(met) == 0


def test_a_narrow_mode_on_a_coordinate_through_a_maximum_is_found_whatever_the_draws():
    d, rng = 20, np.random.default_rng(3)
    far = np.zeros(d)
    far[7] = -10.0
    hills = Hills(far, 0.2)
    cold, hot = rng.standard_normal((64, d)), 3.0 * rng.standard_normal((500, d))
    for seed in range(5):
        found, _ = unmet(hills, cold, hot, 6000, np.random.default_rng(seed), 1.5)
        np.testing.assert_allclose(found, far[None], atol=0.1)


def test_ascents_end_with_the_gradients_that_they_may_spend():
    rng = np.random.default_rng(2)
    hills = Hills(np.full(4, 5.0), 0.3)
    draws = 2.0 * rng.standard_normal((5000, 4))
    _, few = unmet(hills, draws[:64], draws, 2000, rng)
    _, many = unmet(hills, draws[:64], draws, 8000, rng)
    assert 2000 <= few < 2000 + 60 * 256 and few < many
    nothing, _ = unmet(hills, draws[:64], draws, 0, rng)
    assert nothing.shape == (0, 4)


def test_a_narrow_mode_that_no_draw_is_in_is_not_trusted():
    dt = temper(unequal(12), "numba", chains=256, draws=40, tune=160, random_seed=2, reference="prior")
    assert (dt["posterior"]["x"].values[..., 0] > 0.0).all()
    judged = pmm.verdict(dt)
    assert judged.state == "not trusted" and "modes" in [reason.code for reason in judged.reasons]
    assert "sd below theirs in x[0], that has about" in judged.sentence and 0.3 < judged.reasons[0].value < 0.7

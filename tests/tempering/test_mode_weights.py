"""Weights of modes of draws whose modes are known.  Seeds are fixed; |z| < 4.5 (7e-6 each)."""

import numpy as np
import pytest

from pmm_mcmc.tempering.modes import find_modes


def mixture(centres, weights, sd=1.0):
    """Density of a mixture of normals, as value and gradient, and a function that draws."""
    centres, weights = np.asarray(centres, float), np.asarray(weights)

    def value(y):
        away = y[:, None, :] - centres
        logs = np.log(weights) - 0.5 * (away**2).sum(axis=-1) / sd**2
        lp = np.logaddexp.reduce(logs, axis=1)
        return lp, -(np.exp(logs - lp[:, None])[..., None] * away).sum(axis=1) / sd**2

    def draw(shape, rng):
        mode = rng.choice(len(weights), size=shape, p=weights)
        return centres[mode] + sd * rng.standard_normal((*shape, centres.shape[1])), mode

    return value, draw


@pytest.mark.parametrize("d", [1, 2, 50])
def test_weights_of_two_modes_are_right_within_their_errors(d):
    centre = np.zeros((2, d))
    centre[:, 0] = 3.5, -3.5
    value, draw = mixture(centre, [0.3, 0.7])
    rng = np.random.default_rng(d)
    y, mode = draw((40, 50), rng)
    modes = find_modes(y, rng.random((40, 50)) < 0.3, value)
    assert len(modes.weight) == 2
    assert np.all(np.abs(modes.weight - [0.7, 0.3]) < 4.5 * modes.weight_se)
    # Modes come by weight: number 0 is that of weight .7.
    assert (modes.label == 1 - mode).mean() > 0.998
    assert modes.centre[:, 0] == pytest.approx([-3.5, 3.5], abs=0.2)
    assert modes.weight_se[0] >= np.sqrt(0.21 / modes.restarts.sum()) * 0.9


def test_one_mode_is_one_even_where_its_top_is_flat_or_curved():
    rng = np.random.default_rng(1)
    value, draw = mixture([[0.0, 0.0], [1.0, 0.0]], [0.5, 0.5])  # too near for two tops
    modes = find_modes(draw((10, 40), rng)[0], np.zeros((10, 40), bool), value)
    assert modes.weight.tolist() == [1.0] and modes.weight_se.tolist() == [0.0] and not modes.label.any()


def test_forty_modes_are_no_more_than_can_be_told():
    rng = np.random.default_rng(2)
    value, draw = mixture(rng.uniform(-40, 40, (12, 2)), np.full(12, 1 / 12), 0.5)
    y, mode = draw((20, 100), rng)
    modes = find_modes(y, np.ones((20, 100), bool), value)
    assert len(modes.weight) == 12 and modes.weight.sum() == pytest.approx(1.0)
    pairs = {(a, b) for a, b in zip(modes.label.ravel(), mode.ravel(), strict=True)}
    assert len(pairs) == 12
    assert modes.restarts.sum() == 2000

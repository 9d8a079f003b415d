"""Starts from former draws: in the ratio of two densities where it is stable.  Seeds are fixed, limits four errors."""

import numpy as np

from pmm_mcmc.warmup.warm_start import resampled


def test_draws_are_resampled_to_the_other_density():
    rng = np.random.default_rng(1)
    x = rng.normal(size=4000)
    chosen, k = resampled(0.5 * x**2 - 0.5 * (x - 0.7) ** 2, 4000, rng)
    assert k < 0.7
    assert abs(x[chosen].mean() - 0.7) < 4 * np.sqrt(np.exp(0.49) / 4000)


def test_where_ratios_are_unstable_draws_are_taken_as_they_are():
    rng = np.random.default_rng(2)
    x = rng.normal(size=400)
    ratios = 3.0 * x**2
    ratios[:5] = np.nan
    chosen, k = resampled(ratios, 200, rng)
    assert k > 0.7 and len(set(chosen)) == 200 and chosen.min() >= 5


def test_equal_ratios_and_few_draws_need_no_fit():
    rng = np.random.default_rng(3)
    for ratios in (np.zeros(40), np.arange(8.0), np.repeat([0.0, 5.0], 20)):
        chosen, _ = resampled(ratios, 4, rng)
        assert chosen.shape == (4,)

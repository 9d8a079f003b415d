"""Bisection that ends by a root: the bits of a plain one, by fewer evaluations.  Nothing here is random."""

import numpy as np
import pytest

from pmm_mcmc.langevin.bisection import bisected

MEANS = {"arithmetic": lambda a, b: 0.5 * (a + b), "geometric": lambda a, b: float(np.sqrt(a * b))}


def plain(excess, low, high, count, mean):
    for _ in range(count):
        middle = mean(low, high)
        if excess(middle) <= 0.0:
            low = middle
        else:
            high = middle
    return low


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("root", [1.2345e-3, 0.1, 0.5, 0.7312, 2.0, 5.0])
@pytest.mark.parametrize("count", [24, 40])
def test_the_lower_end_is_that_of_a_plain_bisection_to_the_last_bit(mean, root, count):
    places = []

    def excess(x):
        places.append(x)
        return min((x / root) ** 3 - 1.0, 1.0)

    ends = 1e-6, 3.0, count, MEANS[mean]
    expected = plain(excess, *ends)
    evaluations = len(places)
    assert bisected(excess, *ends) == expected
    assert evaluations == count
    if root < 3.0:
        assert len(places) - evaluations < 0.9 * count

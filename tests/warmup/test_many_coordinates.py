"""Many coordinates and many chains: no array grows with the square of either, and parts give what the whole does."""

import tracemalloc

import numpy as np
import pytest

from pmm_mcmc.warmup import stein_identity
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.block_checks import largest_spread
from pmm_mcmc.warmup.stein_identity import worth_independent
from pmm_mcmc.warmup.warm_up import training_chains


def peak_of(function, *arguments):
    """Return what a function returns, and the bytes that it had at most."""
    tracemalloc.start()
    try:
        return function(*arguments), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_largest_spread_needs_no_matrix_of_all_coordinates():
    """With a row for each, 100,000 coordinates asked for 75 GiB."""
    x = np.random.default_rng(1).normal(size=(40, 4000)) * np.r_[3.0, np.ones(3999)]
    widest, bytes = peak_of(largest_spread, x)
    assert widest == pytest.approx(x[:, 0].std())
    assert bytes < 8 * x.nbytes < 8 * 4000**2


def test_many_chains_in_few_coordinates_have_no_matrix_of_all_chains():
    pieces = np.random.default_rng(2).normal(size=(3000, 3))
    worth, bytes = peak_of(worth_independent, pieces)
    assert 2.9 < worth <= 3.0
    assert bytes < 100 * pieces.nbytes < 8 * 3000**2


def test_in_many_coordinates_a_setting_is_learnt_from_fewer_chains():
    assert [training_chains(d) for d in (0, 25, 1024, 2500, 100_000)] == [64, 64, 64, 26, 4]


def test_the_identity_of_parts_is_that_of_the_whole(monkeypatch):
    x = np.random.default_rng(3).normal(size=(6, 50, 7))
    whole = stein_identity.stein_identity(x, -x)
    monkeypatch.setattr(stein_identity, "_BYTES", 3 * 8 * 6 * 50)  # three coordinates
    for a, b in zip(whole, stein_identity.stein_identity(x, -x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.parametrize("kept", [None, 3, 5, 9])
def test_the_newest_draws_of_blocks(kept):
    blocks = [Block(*(np.full((2, n), value) for _ in Block._fields)) for n, value in ((2, 1.0), (3, 2.0), (4, 3.0))]
    whole = np.concatenate([block.lp for block in blocks], axis=1)
    np.testing.assert_array_equal(Block.newest(blocks, kept).lp, whole if kept is None else whole[:, -kept:])


@pytest.mark.parametrize("d", [3, 40])
def test_the_largest_spread_is_seen_in_any_direction(d):
    rng = np.random.default_rng(1)
    direction = np.linalg.qr(rng.normal(size=(d, d)))[0][0]
    rows = rng.normal(size=(4000, d))
    assert largest_spread(rows) == pytest.approx(1.0, abs=0.05)
    wide = rows + np.outer(rows @ direction, 3.0 * direction)
    assert largest_spread(wide) == pytest.approx(4.0, rel=0.1)
    assert largest_spread(7.0 + wide) == pytest.approx(largest_spread(wide), rel=1e-9)
    # Of few draws in many coordinates chance alone must not look like a slow direction.
    assert largest_spread(rng.normal(size=(2 * d, d))) < 1.3

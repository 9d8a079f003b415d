"""Diagonal, low-rank and dense scales: the map and its transposes, the engine on each, and what is found from pairs.

Identities hold to rounding.  What is found from random pairs of Gaussians is exact in theory, or separated from the
bound by the margin that the test states; seeds are fixed, so nothing here is a matter of chance.
"""

import pickle

import numpy as np
import pytest
from one_chain import advanced
from reference import engine, gaussian

from pmm_mcmc.coordinates.affine import Coordinates, affine_scale, best_coordinates, refitted
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Ensemble, TunedParameters, empty_state
from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED

pytestmark = pytest.mark.quick

D, RANK = 40, 6
FORMS = ("diagonal", "low rank", "dense")


def low_rank(d=D, rank=RANK, seed=1):
    """Return low-rank coordinates and the matrix ``W`` written out."""
    rng = np.random.default_rng(seed)
    s, stretch = np.exp(rng.normal(size=d)), np.exp(rng.normal(size=rank))
    directions = np.linalg.qr(rng.normal(size=(d, rank)))[0]
    matrix = s[:, None] * (np.eye(d) + directions @ np.diag(stretch - 1.0) @ directions.T)
    return Coordinates.low_rank(rng.normal(size=d), s, stretch, directions), matrix


def form(name):
    found, matrix = low_rank()
    if name == "diagonal":
        return Coordinates(found.centre, found.scale[0]), np.diag(found.scale[0])
    return (found, matrix) if name == "low rank" else (Coordinates(found.centre, matrix), matrix)


def matrix_of(coordinates):
    d = len(coordinates.centre)
    return coordinates._replace(centre=np.zeros(d)).place(np.eye(d)).T


def condition(coordinates, covariance):
    """Condition number of a Gaussian in whitened coordinates."""
    root = matrix_of(coordinates)
    return np.linalg.cond(root.T @ np.linalg.solve(covariance, root))


def pairs(covariance, n, seed):
    rng = np.random.default_rng(seed)
    mean = 3.0 * rng.normal(size=len(covariance))
    position = mean + rng.normal(size=(n, len(covariance))) @ np.linalg.cholesky(covariance).T
    return position, np.linalg.solve(covariance, (mean - position).T).T, mean


def rotated(d, largest):
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(d, d)))[0]
    return (rotation * np.geomspace(1.0, largest, d)) @ rotation.T


def few_strong(d, variances, spread=1.0):
    """Unit variance but for a few directions, then each coordinate in units of its own."""
    rng = np.random.default_rng(3)
    directions = np.linalg.qr(rng.normal(size=(d, len(variances))))[0]
    units = np.exp(spread * rng.normal(size=d))
    return units[:, None] * (np.eye(d) + (directions * (np.asarray(variances) - 1.0)) @ directions.T) * units


# -- the map -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(D,), (7, D), (3, 5, D), (0, D)])
@pytest.mark.parametrize("name", FORMS)
def test_map_and_inverse_and_transpose_are_those_of_the_matrix(name, shape):
    coordinates, matrix = form(name)
    rng = np.random.default_rng(4)
    y, g = rng.normal(size=shape), rng.normal(size=shape)
    x, pulled = coordinates.place(y), coordinates.pull_back(g)
    np.testing.assert_allclose(x, coordinates.centre + y @ matrix.T, rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(coordinates.whiten(x), y, rtol=0.0, atol=1e-11)
    np.testing.assert_allclose(pulled, g @ matrix, rtol=0.0, atol=1e-12)
    along = (x - coordinates.centre) * g
    np.testing.assert_allclose(along.sum(axis=-1), (y * pulled).sum(axis=-1), rtol=0.0, atol=1e-11)


def test_low_rank_form_is_told_from_the_dense_one_up_to_its_largest_rank():
    for d, rank in ((4, 1), (D, D - 3)):
        coordinates, matrix = low_rank(d, rank)
        assert coordinates.scale.shape == (rank + 2, d)
        np.testing.assert_allclose(matrix_of(coordinates), matrix, rtol=0.0, atol=1e-12)
        with pytest.raises(ValueError, match=f"directions has {rank + 1} columns: with d={d} at most {rank}"):
            low_rank(d, rank + 1)
    plain = Coordinates.low_rank(np.zeros(4), np.full(4, 2.0), np.ones(0), np.ones((4, 0)))
    assert plain.scale.shape == (4,)


def test_pickling_keeps_the_form():
    coordinates, _ = low_rank()
    again = pickle.loads(pickle.dumps(coordinates))
    assert type(again) is Coordinates and all(np.array_equal(a, b) for a, b in zip(again, coordinates, strict=True))


# -- the engine --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["PoissonULMC", "recycled", "GHMC", "OLMC"])
def test_engine_runs_the_same_chain_in_the_low_rank_and_the_dense_form(name):
    method, options = ("PoissonULMC", {"scheme": "recycled"}) if name == "recycled" else (name, {})
    dynamics = "overdamped" if method == "OLMC" else "underdamped"
    kernel = MethodArguments.checked(method, dynamics=dynamics, **options).kernel
    key = np.array([11, 12], dtype=np.uint64)
    rng = np.random.default_rng(5)
    start, velocity = rng.normal(size=D), np.zeros(D) if kernel.dynamics == OVERDAMPED else rng.normal(size=D)
    found = {}
    for which in ("low rank", "dense"):
        coordinates, matrix = form(which)
        state = empty_state(coordinates.whiten(start), velocity)
        run = engine(kernel, D, gaussian)
        gradient = run.evaluate(coordinates, state)
        np.testing.assert_allclose(gradient, -start, rtol=0.0, atol=1e-12)
        np.testing.assert_allclose(
            state[2 * D : 3 * D] - (state[:D] if kernel.dynamics == HARMONIC else 0.0),
            -start @ matrix,
            rtol=0.0,
            atol=1e-11,
        )
        found[which] = advanced(
            run, TunedParameters(0.02, 8, 1.0, coordinates, 1), Ensemble(state, gradient, key), 30, thin=2
        )
    for a, b in zip(found["low rank"], found["dense"], strict=True):
        np.testing.assert_allclose(a, b, rtol=0.0, atol=1e-9)
    assert np.ptp(found["dense"].position, axis=0).min() > 1e-3, "a chain that stands still compares nothing"


# -- what is found -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("n", [150, 300])
def test_a_rotated_gaussian_is_whitened_by_the_matrix(n, seed):
    covariance = rotated(100, 1000.0)
    position, gradient, mean = pairs(covariance, n, seed)
    found = best_coordinates(position, gradient)
    assert found.scale.shape == (100, 100)
    assert condition(found, covariance) < 1.01  # exact but for the damping of 1e-3 pairs
    np.testing.assert_allclose(found.centre, mean, rtol=0.0, atol=1e-3)


@pytest.mark.parametrize("seed", [0, 1])
def test_few_strong_directions_among_many_coordinates_are_found_exactly(seed):
    # The diagonal alone leaves 2e4.  What is left here is the directions that are off by less than the cutoff.
    covariance = few_strong(1000, np.geomspace(100.0, 1e4, 5))
    position, gradient, mean = pairs(covariance, 200, seed)
    found = best_coordinates(position, gradient)
    assert 5 <= len(found.scale) - 2 <= 20
    assert condition(found, covariance) < 1.2
    assert np.max(np.abs(found.centre - mean) / np.sqrt(np.diag(covariance))) < 0.01


def test_a_transient_whitens_as_well_as_the_posterior():
    """Gradients of a Gaussian say the same wherever the positions lie."""
    covariance = few_strong(200, [400.0, 100.0, 0.01])
    position, _, mean = pairs(covariance, 120, 6)
    deviations = np.sqrt(np.diag(covariance))
    position = mean + 3.0 * (position - mean) + 8.0 * deviations
    found = best_coordinates(position, np.linalg.solve(covariance, (mean - position).T).T)
    assert condition(found, covariance) < 1.2
    assert np.max(np.abs(found.centre - mean) / deviations) < 0.05


@pytest.mark.parametrize("dense", [False, True])
def test_few_pairs_refit_a_scale_that_is_nearly_right(dense):
    covariance = rotated(6, 3.0)
    scale = np.linalg.cholesky(covariance) * np.linspace(0.8, 1.3, 6)
    present = Coordinates(np.full(6, 9.0), scale if dense else np.sqrt(np.diag(covariance)))
    position, gradient, mean = pairs(covariance, 32, 0)
    refit = refitted(present, position, gradient)
    assert condition(refit, covariance) < 1.01
    np.testing.assert_allclose(refit.centre, mean, rtol=0.0, atol=1e-2)


@pytest.mark.parametrize("kind", ["right", "low rank"])
def test_a_scale_that_is_right_stays_and_so_does_one_of_low_rank(kind):
    covariance = rotated(6, 3.0)
    position, gradient, mean = pairs(covariance, 32, 0)
    if kind == "right":
        present = Coordinates(mean, np.linalg.cholesky(covariance))
    else:
        present = Coordinates.low_rank(mean, np.ones(6), np.array([2.0]), np.eye(6)[:, :1])
    assert refitted(present, position, gradient) is present


def test_one_direction_among_many_counts():
    # Its misfit of 28 is less than 2 % of 2 d, but all of what can be mended.
    covariance = few_strong(1000, [30.0], spread=0.0)
    position, gradient, _ = pairs(covariance, 60, 0)
    found = best_coordinates(position, gradient)
    assert 1 <= len(found.scale) - 2 <= 20
    assert condition(found, covariance) < 1.1


@pytest.mark.parametrize("d", [1, 2, 50, 1000])
def test_what_needs_no_more_than_a_diagonal_gets_one(d):
    scales = np.exp(np.random.default_rng(7).normal(size=d))
    position, gradient, _ = pairs(np.diag(scales**2), 100, 8)
    found = best_coordinates(position, gradient)
    np.testing.assert_allclose(found.scale, scales, rtol=1e-9)
    # Heavy tails (Student's t of 5 degrees of freedom, independent) are no correlations.
    position = np.random.default_rng(9).standard_t(5, size=(100, d))
    assert best_coordinates(position, -6.0 * position / (5.0 + position**2)).scale.shape == (d,)


@pytest.mark.parametrize(("n", "d"), [*((n, d) for n in (1, 2, 3) for d in (1, 3, 400)), (5, 2), (10, 30), (30, 30)])
def test_few_pairs_leave_something_usable(n, d):
    covariance = few_strong(d, [100.0], spread=0.1)
    position, gradient, _ = pairs(covariance, n, 10)
    for x, g in (
        (position, gradient),
        (np.repeat(position[:1], n, axis=0), gradient),
        (position, np.zeros_like(position)),
    ):
        found = best_coordinates(x, g)
        assert np.all(np.isfinite(found.centre)) and np.all(np.isfinite(matrix_of(found)))
        np.testing.assert_allclose(found.whiten(found.place(x)), x, rtol=0.0, atol=1e-6 * np.max(np.abs(x)))


def test_the_newest_draws_judge():
    """A correlation of the older draws that has the other sign in the newest is not believed."""
    covariance = np.eye(60)
    covariance[0, 1] = covariance[1, 0] = 0.9
    position, gradient, mean = pairs(covariance, 100, 12)
    position -= mean
    assert best_coordinates(position, gradient).scale.ndim == 2
    position[60:, 0] *= -1.0
    gradient[60:, 0] *= -1.0
    assert best_coordinates(position, gradient).scale.ndim == 1
    assert best_coordinates(position[::-1], gradient[::-1]).scale.ndim == 1


def test_one_draw_far_out_does_not_decide():
    covariance = np.eye(60)
    covariance[0, 1] = covariance[1, 0] = 0.9
    position, gradient, _ = pairs(covariance, 100, 15)
    position[80, :2] += 1e3, -1e3  # where the correlated form is worse by far
    assert best_coordinates(position, gradient).scale.ndim == 2


def test_dense_scale_of_a_gaussian_is_its_root():
    covariance = rotated(20, 1e3)
    position, gradient, _ = pairs(covariance, 60, 14)
    _, root = affine_scale(position, gradient, dense=True, damping=1e-9)
    np.testing.assert_allclose(root @ root.T, covariance, rtol=0.0, atol=1e-5)

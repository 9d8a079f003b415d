"""Moments of draws made by hand, as chunks of a run would give them, and coordinates of every form."""

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.stein_moments import SteinMoments
from pmm_mcmc.model.result_tree import ResultTree
from pmm_mcmc.run.moments import Moments


def statistics(position, gradient, **more):
    """Statistics of draws ``(chain, n, d)`` as the host gives them."""
    shape = position.shape[:2]
    numbers = np.arange(np.prod(shape)).reshape(shape)
    return {
        "lp": -0.5 * (position**2).sum(axis=-1),
        "n_grad": 2 + numbers % 3,
        "n_grad_total": 100 + numbers,
        "unstable": np.zeros(shape, np.int64),
        "model_failures": np.zeros(shape, np.int64),
        "steps_per_draw": np.full(shape, 2),
        "step_size": np.full(shape, 0.5),
        "halving_cost": np.full(shape, 1.5),
        "gradient": gradient,
        "unconstrained": position,
    } | more


def collected(posterior, stats, coordinates, cuts=(), d=None):
    """Moments of arrays ``(chain, n, ...)``, taken in chunks."""
    chains, n, width = stats["unconstrained"].shape
    moments = Moments.start(posterior, width if d is None else d, chains, coordinates)
    for begin, end in zip((0, *cuts), (*cuts, n), strict=True):
        parts = ({name: a[:, begin:end] for name, a in group.items()} for group in (posterior, stats))
        moments.add(dict(zip(("posterior", "sample_stats"), parts, strict=True)))
    return moments


def of_vector(x, g, coordinates, cuts=(), **more):
    """Moments of draws of a vector, as a result."""
    moments = collected({"x": x}, statistics(x, g, **more), coordinates, cuts)
    return moments.tree(ResultTree.of_vector(x.shape[-1]), {})


def corrections(tree):
    return SteinMoments.of(tree["stein"].dataset)


def whitened(d, rng):
    """Coordinates with a dense scale, and their covariance."""
    root = np.eye(d) * np.geomspace(1.0, 30.0, d)[:, None] + 0.5 * rng.normal(size=(d, d))
    return Coordinates(10 * rng.normal(size=d), root), root @ root.T


def low_rank(d, rng):
    q, _ = np.linalg.qr(rng.normal(size=(d, 2)))
    return Coordinates.low_rank(rng.normal(size=d), np.geomspace(0.1, 10.0, d), np.array([3.0, 0.2]), q)

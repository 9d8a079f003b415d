"""Results of runs made by hand, for tests of the diagnostics: draws whose law is known; and z-scores."""

import arviz as az
import numpy as np
from scipy import stats

from pmm_mcmc.diagnostics.control_variates import Folds, corrected


def grid(d, chains=4, draws=600, seed=1):
    """Standard normal draws: each half of each chain has mean 0 and variance 1 exactly, in random order."""
    quantiles = stats.norm.ppf((np.arange(draws // 2) + 0.5) / (draws // 2))
    rng = np.random.default_rng(seed)
    halves = rng.permuted(np.broadcast_to(quantiles / quantiles.std(), (chains, 2, d, draws // 2)), axis=-1)
    return np.moveaxis(halves, 2, 3).reshape(chains, draws, d)


def tree(posterior, position, gradient, *, coords=None, dims=None, **statistics):
    groups = {
        "posterior": posterior,
        "sample_stats": {"gradient": gradient, "unconstrained": position, **statistics},
    }
    return az.from_dict(groups, coords=coords, dims=dims)


def gaussian(position, **statistics):
    """Draws of a standard normal posterior, right or wrong: ``a``, ``b[0]``, ``b[1]``, ..."""
    posterior = {"a": position[..., 0], "b": position[..., 1:]}
    return tree(posterior, position, -position, **statistics)


def estimated(values, position, gradient, coordinate=None):
    """Return corrected expectations of functions ``(chain, draw, p)``."""
    return moments(values, position, gradient, coordinate)[0]


def moments(values, position, gradient, coordinate=None):
    """Return corrected means and variances of functions ``(chain, draw, p)``."""
    coordinate = np.full(values.shape[2], -1) if coordinate is None else coordinate
    return corrected(values, Folds(position, gradient), coordinate)


def z_of_mean(replications):
    """|z| of the mean of independent replications ``(n, ...)`` against zero."""
    replications = np.asarray(replications)
    return np.abs(replications.mean(axis=0)) / (replications.std(axis=0, ddof=1) / np.sqrt(len(replications)))

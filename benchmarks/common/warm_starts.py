"""Posteriors that a run may start from another's result, and results with a setting that is wrong."""

import jax.numpy as jnp
import numpy as np
import pymc as pm
import xarray as xr

import pmm_mcmc as pmm
from pmm_mcmc.run.beginning import CHECKPOINT, TYPES
from pmm_mcmc.run.storage.checkpoint import decode, encode

QUIET = {"progressbar": False, "compute_convergence_checks": False}
DESIGN = np.random.default_rng(1).normal(size=(100, 3))
DESIGN[:, 1] = 0.9 * DESIGN[:, 0] + 0.44 * DESIGN[:, 1]
SLOPES = np.array([1.0, -2.0, 0.5])
NOISE = np.random.default_rng(2).normal(size=100)


def regression(rows=100, sign=1.0, sd=1.0):
    """A linear regression on the first rows of the data."""
    y = sign * (DESIGN @ SLOPES + 2.0) + sd * NOISE
    with pm.Model() as model:
        a, b = pm.Normal("a", 0.0, 10.0), pm.Normal("b", 0.0, 10.0, shape=3)
        pm.Normal("y", a + DESIGN[:rows] @ b, pm.HalfNormal("s", 5.0), observed=y[:rows])
    return model


def jax_regression(rows=100, sign=1.0, sd=1.0):
    """The same as a JAX function of ``a``, ``b`` and ``log s``."""
    X, y = DESIGN[:rows], (sign * (DESIGN @ SLOPES + 2.0) + sd * NOISE)[:rows]

    def log_density(x):
        s = jnp.exp(x[4])
        rest = (y - x[0] - X @ x[1:4]) / s
        prior = -0.5 * jnp.sum((x[:4] / 10.0) ** 2) - 0.5 * (s / 5.0) ** 2 + x[4]
        return prior - 0.5 * jnp.sum(rest**2) - rows * x[4]

    return pmm.LogDensity.from_jax(log_density, 5)


def hierarchy(left_out=None):
    """Ten groups with twenty observations each, the data of one of them ``left_out``."""
    of_group = np.arange(200) % 10
    rng = np.random.default_rng(3)
    y = 3.0 * rng.normal(size=10)[of_group] + 0.7 * rng.normal(size=200)
    rows = of_group != left_out
    with pm.Model() as model:
        a = pm.Normal("a", pm.Normal("mu", 0.0, 5.0), pm.HalfNormal("tau", 5.0), shape=10)
        pm.Normal("y", a[of_group[rows]], pm.HalfNormal("s", 2.0), observed=y[rows])
    return model


def two_modes(weights):
    """Gaussians of sd 0.7 at -3 and 3 in both coordinates, with these weights."""
    with pm.Model() as model:
        z = pm.Normal("z", 0.0, 3.0, shape=2)
        centres = zip(weights, (-3.0, 3.0), strict=True)
        terms = [np.log(w) - pm.math.sum(((z - c) / 0.7) ** 2) / 2 for w, c in centres if w]
        pm.Potential("modes", pm.math.logsumexp(pm.math.stack(terms)))
    return model


def another_model():
    """A model with the variables of the regression, of the same shapes."""
    with pm.Model() as model:
        a, b = pm.StudentT("a", nu=3, mu=50, sigma=1), pm.Normal("b", 0.0, 0.01, shape=3)
        pm.Normal("y", a * b.sum(), pm.HalfNormal("s", 5.0), observed=[3.0, 4.0])
    return model


def state_of(result):
    """The identity, the arguments and the state of a run in its result."""
    return decode(np.asarray(result[CHECKPOINT]["state"].values, np.uint8).tobytes(), TYPES)


def planted(result, change):
    """The result with another preconditioner, ``change`` of its own."""
    identity, arguments, run = state_of(result)
    coordinates = change(run.warming.tuned.coordinates)
    run.warming.tuned = run.warming.tuned._replace(coordinates=coordinates)
    if run.equilibration is not None:
        run.equilibration.tuned = run.equilibration.tuned._replace(coordinates=coordinates)
    state = np.frombuffer(encode((identity, arguments, run)), np.uint8)
    changed = result.copy()
    changed[CHECKPOINT] = xr.DataTree(xr.Dataset({"state": ("byte", state)}))
    return changed


def scaled(factors):
    """A change of a preconditioner: coordinates are wider by these factors, and mirrored where they are negative."""

    def change(coordinates):
        scale = coordinates.scale
        by = np.broadcast_to(factors, coordinates.centre.shape)
        wider = by * scale if scale.ndim == 1 else by[:, None] * scale
        return coordinates._replace(scale=np.abs(wider) if scale.ndim == 1 else wider)

    return change


def spent(result):
    """Gradients of a chain with its first draw."""
    return float(result["sample_stats"]["n_grad_total"][:, 0].mean())

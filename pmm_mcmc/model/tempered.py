r"""A PyMC model on the path from a reference ``q`` to its posterior, with both gradients kept apart.

The density at temperature :math:`\beta` is :math:`q\,e^{\beta l}`, ``l`` the log likelihood with potentials where
``q`` is the prior, and otherwise the log density of the model over that of a mixture of Gaussians.  Its evaluation is
an array of ``3 d + 2`` numbers: the gradient of the density at that temperature, those of ``log q`` and of ``l``, and
``l`` and ``log q`` themselves.  A state changes its temperature by these, without another gradient.

The parameters of this density are ``numbers``: beta, whether the reference is the mixture, and those of the mixture.
Its density is :math:`\sum_k e^{f_k - |R_k^{-1} (x - o) - b_k|^2 / 2}` with any origin ``o``: of a component with weight
:math:`w_k`, mean :math:`m_k` and covariance :math:`R_k R_k^T`, :math:`b_k = R_k^{-1} (m_k - o)` and
:math:`f_k = \log w_k - \log|\det R_k| - \tfrac d2 \log 2\pi`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_expression
from pymc.pytensorf import (
    collect_default_updates,
    compile,
    make_shared_replacements,
    replace_rng_nodes,
    reseed_rngs,
)

from pmm_mcmc.coordinates.affine import MOST_DENSE
from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.model.functions import model_cache, state_of
from pmm_mcmc.model.native import numba_mode
from pmm_mcmc.model.pymc_density import differentiated, flat_layout
from pmm_mcmc.model.pytensor_density import PyTensorDensity, concatenate

_LOG_2PI = float(np.log(2.0 * np.pi))


class GaussianMixture(NamedTuple):
    """Gaussians and their weights.

    Attributes
    ----------
    log_weight : (k,)
        Logarithms of the weights, up to a constant.
    mean : (k, d)
    root : (k, d, d) or (k, d)
        Roots of the covariances: matrices up to ``MOST_DENSE`` coordinates, otherwise their diagonals.
    """

    log_weight: np.ndarray
    mean: np.ndarray
    root: np.ndarray

    @classmethod
    def of(cls, mean: np.ndarray, root: np.ndarray) -> GaussianMixture:
        """Return one Gaussian; the root of its covariance is a matrix or its diagonal."""
        d = len(mean)
        if root.ndim == 1 and d <= MOST_DENSE:
            root = np.diag(root)
        return cls(np.zeros(1), mean[None], root[None])

    @property
    def log_volume(self) -> np.ndarray:
        """Logarithms ``(k,)`` of the determinants of the roots."""
        if self.root.ndim == 2:
            return np.log(np.abs(self.root)).sum(axis=1)
        return np.linalg.slogdet(self.root)[1]

    def numbers(self) -> np.ndarray:
        """Return what :func:`mixture_density` takes: ``o``, and a row of ``f``, ``b`` and the inverse root for each."""
        k, d = self.mean.shape
        weight = self.log_weight - np.logaddexp.reduce(self.log_weight)
        origin = np.exp(weight) @ self.mean
        centred = self.mean - origin
        if self.root.ndim == 2:
            inverse = 1.0 / self.root
            offset = inverse * centred
        else:
            inverse = np.linalg.inv(self.root)
            offset = (inverse @ centred[:, :, None])[:, :, 0]
        factor = weight - self.log_volume - 0.5 * d * _LOG_2PI
        return np.concatenate([origin, np.concatenate([factor[:, None], offset, inverse.reshape(k, -1)], 1).ravel()])

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return ``n`` independent draws ``(n, d)``."""
        k, d = self.mean.shape
        noise = rng.standard_normal((n, d))
        share = np.cumsum(np.exp(self.log_weight - np.logaddexp.reduce(self.log_weight)))
        component = np.searchsorted(share, rng.random(n)).clip(0, k - 1)
        out = np.empty((n, d))
        for i in range(k):
            members = component == i
            root = self.root[i]
            out[members] = self.mean[i] + (noise[members] * root if root.ndim == 1 else noise[members] @ root.T)
        return out


def path_numbers(beta: float, mixture: GaussianMixture | None, d: int) -> np.ndarray:
    """Return the numbers of a path at a temperature: from a mixture, or from the prior."""
    some = GaussianMixture.of(np.zeros(d), np.ones(d)) if mixture is None else mixture
    return np.concatenate([[beta, float(mixture is not None)], some.numbers()])


def mixture_density(xp: Any, x: Any, numbers: Any, d: int) -> tuple[Any, Any]:
    """Return the log density of a mixture of any number of Gaussians and its gradient, for PyTensor or JAX."""
    dense = d <= MOST_DENSE
    table = numbers[d:].reshape((-1, 1 + d + (d * d if dense else d)))
    factor = table[:, 0]
    offset = table[:, 1 : 1 + d]
    inverse = table[:, 1 + d :]
    u = x - numbers[:d]
    if dense:
        inverse = inverse.reshape((-1, d))
        y = xp.dot(inverse, u).reshape((-1, d)) - offset
    else:
        y = inverse * u - offset
    logs = factor - 0.5 * xp.sum(y**2, axis=1)
    top = xp.max(logs)
    parts = xp.exp(logs - top)
    total = xp.sum(parts)
    pulled = (parts / total)[:, None] * y
    slope = xp.dot(inverse.T, pulled.reshape((-1,))) if dense else xp.sum(inverse * pulled, axis=0)
    return top + xp.log(total), -slope


def width_of(d: int) -> int:
    """Return the length of an evaluation."""
    return 3 * d + 2


def path_density(vars: Sequence[Any], model: pm.Model, point: dict[str, np.ndarray], reference: str) -> PyTensorDensity:
    """Return the log densities of a path to a model's posterior from ``"prior"`` or ``"gaussian"``: see the module."""
    layout = flat_layout(vars, point)
    replacements = make_shared_replacements(point, list(vars), model)
    graphs = [model.varlogp, pt.as_tensor(model.datalogp)] if reference == "prior" else [model.logp()]
    densities = [differentiated(vars, layout, graph.astype(pytensor.config.floatX), replacements) for graph in graphs]
    flat = densities[0].flat()
    d = flat.type.shape[0]
    numbers = pytensor.shared(path_numbers(0.0, None, d).astype(flat.dtype), name="numbers of the path")
    (lp, g), *likelihood = (density.at_flat(flat) for density in densities)
    logq, g0 = mixture_density(pt, flat, numbers[2:], d)
    log_ratio = lp - logq
    gl = g - g0
    for lp_likelihood, g_likelihood in likelihood:  # from the prior, unless the numbers have a mixture
        has_mixture = numbers[1] > 0.0
        log_ratio = pt.switch(has_mixture, log_ratio + lp_likelihood, lp_likelihood)
        gl = pt.switch(has_mixture, gl + g_likelihood, g_likelihood)
        logq = pt.switch(has_mixture, logq, lp)
        g0 = pt.switch(has_mixture, g0, g)
    beta = numbers[0]
    gradient = (g0 + beta * gl).astype(flat.dtype)
    scalars = [pt.atleast_1d(scalar).astype(flat.dtype) for scalar in (log_ratio, logq)]
    evaluation = pt.concatenate([gradient, g0, gl, *scalars]).astype(flat.dtype)
    logp = (logq + beta * log_ratio).astype(flat.dtype)
    return PyTensorDensity(layout, flat, logp, gradient, evaluation, width_of(d), Structure.identity(d), numbers)


def tempered_model(
    vars: Sequence[Any], model: pm.Model, point: dict[str, np.ndarray], reference: str
) -> tuple[PyTensorDensity, Callable[[Sequence[int], int], np.ndarray] | None]:
    """Return the path of a model in its current state and, if the reference is its prior, the sampler of that."""
    key = state_of(model, vars), flat_layout(vars, point)
    paths = model_cache(model, "path from " + reference)
    if key not in paths:
        sampler = None
        if reference == "prior":
            try:
                sampler = prior_sampler(model, vars)
                sampler((0, 0), 1)
            except Exception as error:
                raise ValueError(
                    f"reference='prior': nothing can be drawn from the prior ({error}); give its distributions a way "
                    "to draw (random=), or take reference='gaussian'"
                ) from error
        paths[key] = path_density(vars, model, point, reference), sampler
    return paths[key]


def prior_sampler(model: pm.Model, vars: Sequence[Any]) -> Callable[[Sequence[int], int], np.ndarray]:
    """Return a function of a key and a number ``n`` that draws ``(n, d)`` from the prior, unconstrained."""
    values = make_initial_point_expression(
        free_rvs=model.free_RVs,
        rvs_to_transforms=model.rvs_to_transforms,
        initval_strategies=dict.fromkeys(model.free_RVs, "prior"),
        return_transformed=True,
    )
    values = replace_rng_nodes(values)  # the model's own generators stay as they are
    of = dict(zip((model.rvs_to_values[rv] for rv in model.free_RVs), values, strict=True))
    flat = concatenate([pt.as_tensor(of[var]).ravel().astype(pytensor.config.floatX) for var in vars])
    streams = list(collect_default_updates(inputs=[], outputs=[flat]))
    function = compile([], flat, random_seed=False, mode=numba_mode())

    def draw(key: Sequence[int], n: int) -> np.ndarray:
        reseed_rngs(streams, [int(word) for word in key])
        return np.stack([np.array(function(), dtype=float) for _ in range(n)])

    return draw

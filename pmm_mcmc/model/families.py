"""PyMC distributions that are a location plus a scale times noise, on the unconstrained scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.xtensor.rewriting.vectorization import lower_rv
from pytensor.xtensor.shape import Transpose
from pytensor.xtensor.vectorization import XRV

__all__ = ["SIGNED", "Law", "family_of", "law_of"]

# Groups of at most so many elements are non-centred; a single vector may have any length.
_MOST_GROUPED = 5


class Law(NamedTuple):
    """The prior of a value variable given its parents: ``location + scale * noise``, in terms of random variables.

    Attributes
    ----------
    location, scale
        Graphs that broadcast to the value variable's shape; of groups and vectors the scale is lower triangular.
    symmetric
        Whether the noise has a symmetric law, so that the sign of the scale has no meaning.
    kind
        Of a child: see :mod:`pmm_mcmc.coordinates.child`.
    rho
        Of a walk: its coefficients.
    """

    location: Any
    scale: Any
    symmetric: bool
    kind: str = "elementwise"
    rho: Any = None

    @property
    def terms(self) -> list[Any]:
        """Location, scale and, of a walk, the coefficients."""
        return [self.location, self.scale] if self.rho is None else [self.location, self.scale, self.rho]

    def with_terms(self, location: Any, scale: Any, rho: Any = None) -> Law:
        """Return the law with other graphs in place of :attr:`terms`."""
        return self._replace(location=location, scale=scale, rho=rho)


# Operations of distributions whose last two parameters are location and scale of the value variable, by transform.
_LOCATION_SCALE = {
    "NoneType": ("NormalRV", "StudentTRV", "LaplaceRV", "CauchyRV", "LogisticRV", "GumbelRV"),
    "LogTransform": ("LogNormalRV",),
}
# Of positive variables: the last parameters of the operation to location and scale of the logarithm, which need not be
# exact: about the logarithm of the scale parameter, and the sd of the logarithm.
_OF_LOGARITHM: dict[str, tuple[int, Callable[..., tuple[Any, Any]]]] = {
    "HalfNormalRV": (1, lambda sigma: (pt.log(sigma), 1.11)),
    "HalfStudentTRV": (1, lambda sigma: (pt.log(sigma), 1.11)),
    "HalfCauchyRV": (1, lambda beta: (pt.log(beta), np.pi / 2)),
    "ExponentialRV": (1, lambda scale: (pt.log(scale), np.pi / np.sqrt(6))),
    "GammaRV": (2, lambda alpha, scale: (pt.log(alpha * scale), alpha**-0.5)),
    "InvGammaRV": (2, lambda alpha, beta: (pt.log(beta / alpha), alpha**-0.5)),
    "WeibullBetaRV": (2, lambda alpha, beta: (pt.log(beta), 1.0 / alpha)),
}
# Positive variables whose density at 0 is neither 0 nor infinite, so that as scales of others they may be sampled with
# a sign.  That of Exponential has a kink there.
SIGNED = ("HalfNormalRV", "HalfCauchyRV", "HalfStudentTRV", "ExponentialRV")


def family_of(rv: Any) -> str:
    """Return the name of the operation that makes a random variable, with or without named dimensions."""
    op = rv.owner.op
    while isinstance(op, Transpose):
        rv = rv.owner.inputs[0]
        op = rv.owner.op
    return type(op.core_op if isinstance(op, XRV) else op).__name__


def law_of(rv: Any, transform: Any, shape: tuple[int, ...]) -> Law | None:
    """Return the law of the value variable of a free random variable, if it is of a location and a scale.

    ``transform`` is PyMC's, or None; ``shape`` that of the value variable.
    """
    node = rv.owner
    if isinstance(node.op, Transpose):
        return _transposed(law_of(node.inputs[0], transform, _before(node, shape)), node)
    if isinstance(node.op, XRV):
        # What PyTensor makes of it: parameters whose axes are in the order of its own.
        rv = lower_rv.fn(None, node)[1].owner.inputs[0]
        node = rv.owner
    op = type(node.op).__name__
    kind = type(transform).__name__
    if op in _LOCATION_SCALE.get(kind, ()):
        location, scale = node.inputs[-2:]
        return Law(location, scale, op != "GumbelRV")
    if kind == "LogTransform" and op in _OF_LOGARITHM:
        count, law = _OF_LOGARITHM[op]
        location, sd = law(*node.inputs[-count:])
        return Law(location, pt.as_tensor_variable(sd), False)
    groups = len(shape) > 0 and int(np.prod(shape[:-1], dtype=int)) > 1 and shape[-1] <= _MOST_GROUPED
    single = len(shape) > 0 and int(np.prod(shape[:-1], dtype=int)) == 1
    if op == "MvNormalRV" and transform is None and all(node.inputs[-1].type.broadcastable[:-2]) and (groups or single):
        kind = "grouped" if shape[-1] <= _MOST_GROUPED else "dense"
        return Law(node.inputs[-2], _root(node.inputs[-1]), True, kind)
    if op == "ZeroSumNormalRV" and kind == "ZeroSumTransform":
        return Law(pt.zeros(()), node.inputs[-2], True)
    if op == "ICARRV" and transform is None:
        W = node.inputs[-3]
        sigma = node.inputs[-2]
        return Law(pt.zeros(()), sigma / pt.sqrt(W.sum(axis=-1)), True)
    if op == "CARRV" and transform is None and not _is_sparse(node.inputs[-4]):
        mu, W, _, tau, _ = node.inputs[-5:]
        return Law(mu, 1.0 / pt.sqrt(tau * W.sum(axis=-1)), True)
    if op in ("RandomWalkRV", "AutoRegressiveRV") and transform is None and rv.type.ndim == 1:
        return _walk(node, op, *shape)
    return None


def _axes(node: Any) -> list[int]:
    """Return which axis of its input each axis of a transposed variable is."""
    return [node.inputs[0].type.dims.index(dim) for dim in node.outputs[0].type.dims]


def _before(node: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[i] for i in np.argsort(_axes(node)))


def _transposed(law: Law | None, node: Any) -> Law | None:
    """Return the law of a transposed variable, if its elements are independent."""
    if law is None or law.kind != "elementwise":
        return None
    n = len(_axes(node))
    terms = [pt.shape_padleft(term, n - term.type.ndim).dimshuffle(_axes(node)) for term in law.terms]
    return law.with_terms(*terms)


def _root(covariance: Any) -> Any:
    """Return a lower triangular root of a covariance: the one that it was made from, where PyMC was given ``chol=``."""
    product = covariance
    while product.owner is not None and len(product.owner.inputs) == 1:
        product = product.owner.inputs[0]
    if product.owner is not None and len(product.owner.inputs) == 2:
        root = product.owner.inputs[0]
        if getattr(root.tag, "lower_triangular", False) and root.type.ndim == 2:
            return root
    # Without the batch axes of length one that PyMC adds to match those of the mean.
    return pt.linalg.cholesky(covariance[(0,) * (covariance.type.ndim - 2)])


def _is_sparse(variable: Any) -> bool:
    return "sparse" in type(variable.type).__module__


def _walk(node: Any, op: str, steps: int) -> Law | None:
    """Return the law of a Gaussian random walk or autoregression: prior means, innovation sds, coefficients."""
    if op == "RandomWalkRV":
        initial, later, _ = node.inputs
        rho = pt.ones((1,))
    else:
        rho, sigma, initial = node.inputs[:3]
        if rho.type.ndim != 1:
            return None
        rho = rho[1:] if node.op.constant_term else rho
        later = None
    if type(initial.owner.op).__name__ != "NormalRV":
        return None
    mean, sd = (pt.atleast_1d(parameter) for parameter in initial.owner.inputs[-2:])
    if op == "AutoRegressiveRV":
        order = node.op.ar_order
        # Later values have the location of the last initial one, which is that of a stationary series; for others the
        # map is as exact, since it is a change of variables for any location.
        location = pt.concatenate([pt.broadcast_to(mean, (order,)), pt.broadcast_to(mean[-1], (steps - order,))])
        scale = pt.concatenate([pt.broadcast_to(sd, (order,)), pt.broadcast_to(sigma, (steps - order,))])
        return Law(location, scale, True, "walk", rho)
    if type(later.owner.op).__name__ != "NormalRV":
        return None
    drift, sigma = later.owner.inputs[-2:]
    location = pt.concatenate([mean, mean + pt.cumsum(pt.broadcast_to(pt.cast(drift, "floatX"), (steps - 1,)))])
    scale = pt.concatenate([sd, pt.broadcast_to(sigma, (steps - 1,))])
    return Law(location, scale, True, "walk", rho)

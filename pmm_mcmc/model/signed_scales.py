"""Which scales of a model are sampled with a sign, and which coordinates change sign with them.

A scale may have a sign where the log density of ``z`` is then a smooth function across 0.  Values at a few positions
decide, whatever graph computes them.  Of a scale of children:

- Its prior is of a family in :data:`pmm_mcmc.model.hierarchy.SIGNED`.
- Every child whose scale vanishes with it has symmetric noise, and a scale that is proportional to it near 0.
- If it is one of several standard deviations, the correlations with it change sign too, and their prior is symmetric.

A model that is non-centred by hand has offsets in place of children: in ``theta = mu + s * offset`` they change sign
with ``s``.  Where both are integrated out the marginal density is even in ``s``, and nothing else changes sign.

Two kinds of scales keep their logarithms, by the measurements of ``benchmarks/hierarchies.py``:

- Factors of a product of such scales, as a horseshoe has: with signs two of three runs were refused, without none of
  six.
- The scale of a single vector: a mean that is not its location is correlated with it, the other way round where the
  scale is negative, and no linear scale suits both.  For a Gaussian process none of five runs was trusted with a sign,
  three were without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.traversal import ancestors

from pmm_mcmc.coordinates.structure import Signs
from pmm_mcmc.model.checks import CHECKS
from pmm_mcmc.model.functions import python_function
from pmm_mcmc.model.gaussian_block import MARGINAL
from pmm_mcmc.model.hierarchy import SIGNED, Hierarchy, family_of

# The logarithm of a signed scale that stands for 0: a scale of children must vanish with it there.
_NECK = -30.0
# The logarithm of a scale that is small enough for the log density to be linear in it.
_SMALL = -8.0
# How far below their starts logarithms are looked at.
_DEPTHS = np.arange(2.0, 14.0)
# Most scales that are tested for offsets; more are those of a horseshoe, which share offsets with another.
_MOST_SCALES = 200
# Most scales of what is integrated out, of which each takes a dozen gradients: more are those of a horseshoe.
_MOST_OF_MARGINAL = 20


def signed_scales(model: pm.Model, hierarchy: Hierarchy, log_density: Callable[[], Any]) -> Signs:
    """Return the scales that are sampled with a sign, and what changes sign with them.

    ``log_density`` compiles the model's with its gradient, a function of ``x``; it is called only where a correlation
    may have a sign, or offsets.
    """
    parents = {var for child in hierarchy.children for var in child.parents}
    candidates = _candidates(model, hierarchy)
    signed, flips = _of_children(hierarchy, [group for _, _, group in candidates], log_density)
    owner = _of_offsets(hierarchy, [group for _, value, group in candidates if value not in parents], log_density)
    flips[owner >= 0, 0] = owner[owner >= 0]
    scales = np.union1d(owner[owner >= 0], _of_marginal(model, hierarchy, candidates))
    flips[scales, 0] = scales
    signed = np.union1d(signed, scales)
    by_hand = [name for name, value, group in candidates if value not in parents and np.isin(group, signed).any()]
    return Signs(signed, flips, by_hand)


def _candidates(model: pm.Model, hierarchy: Hierarchy) -> list[tuple[str, Any, np.ndarray]]:
    """Return variables that are scales whose density at 0 is symmetric or flat, with coordinates of the logarithms."""
    groups = []
    children = {child.value for child in hierarchy.children}
    for rv in model.free_RVs:
        value = model.rvs_to_values[rv]
        if value in hierarchy.factors:
            if type(rv.owner.inputs[-1].owner.op).__name__ in SIGNED:
                groups.append((rv.name, value, hierarchy.factors[value].scales))
        elif value not in children and family_of(rv) in SIGNED:
            if type(model.rvs_to_transforms[rv]).__name__ == "LogTransform":
                groups.append((rv.name, value, hierarchy.indices(value)))
    return groups


# -- scales of children ------------------------------------------------------------------------------------------------


def _of_children(
    hierarchy: Hierarchy, candidates: list[np.ndarray], log_density: Callable[[], Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the signed scales of children ``(k,)``, and the two whose signs each coordinate has ``(d, 2)``, or -1."""
    groups = [(signed, owners) for signed in candidates if (owners := _owners(signed, hierarchy))]
    scaled = [np.concatenate(owners) >= 0 for _, owners in groups]
    count = np.sum(scaled, axis=0)
    # Where an element has two scales, it has a product.
    groups = [
        group for group, by_it in zip(groups, scaled, strict=True) if by_it.any() and not (count[by_it] > 1).any()
    ]
    while groups:
        owners = [np.max(of_child, axis=0) for of_child in zip(*(owners for _, owners in groups), strict=True)]
        signed = np.concatenate([signed for signed, _ in groups])
        flips, refused = _with_correlations(hierarchy, owners, signed, log_density)
        if not refused:
            for child, owner in zip(hierarchy.children, owners, strict=True):
                indices = hierarchy.indices(child.value)
                flips[indices, 0] = np.resize(owner, len(indices))
            return np.sort(signed), flips
        groups = [group for group in groups if not refused & set(group[0].tolist())]
    return np.zeros(0, dtype=int), np.full((len(hierarchy.start), 2), -1)


def _root(L: Any) -> np.ndarray:
    """Return standard deviations ``(n, m)``, or roots of covariances ``(n, K, K)``, from a child's scale."""
    return np.sqrt(L[0]) if isinstance(L, tuple) else L


def _owners(signed: np.ndarray, hierarchy: Hierarchy) -> list[np.ndarray]:
    """Return for each child and each of its scales the coordinate of the logarithm that it is proportional to, or -1.

    The scales of groups and vectors are rows of the root of the covariance.  Proportional is near 0; nothing is
    returned where a scale vanishes in another way, or the sign would matter.
    """
    shift = np.random.default_rng(0).uniform(0.2, 1.0, size=(2, len(signed)))
    p = np.repeat(hierarchy.start[None, :], 3, axis=0)
    p[:, signed] = _NECK
    p[1:, signed] += shift
    owners = []
    with np.errstate(all="ignore"):
        for child, (mu, L) in zip(hierarchy.children, hierarchy.scales(p), strict=True):
            if not np.allclose(mu[1:], mu[0], rtol=1e-6, atol=1e-6):
                return []  # of a location that goes to infinity the sign would be seen
            root = _root(L)
            size = np.sqrt((root**2).sum(axis=2)) if root.ndim == 3 else root
            change = np.log(size[1:] / size[0])
            if root.ndim == 3:
                if not np.allclose(root[1:], np.exp(change)[:, :, None] * root[0], rtol=1e-6, atol=0.0):
                    return []
            constant = (np.abs(change) < 1e-6).all(axis=0)
            proportional = (np.abs(change[:, :, None] - shift[:, None, :]) < 1e-4).all(axis=0)
            if not child.law.symmetric or child.law.kind == "dense":
                proportional[:] = False
            if not (constant | proportional.any(axis=1)).all():
                return []
            owners.append(np.where(constant, -1, signed[proportional.argmax(axis=1)]))
    return owners


def _with_correlations(
    hierarchy: Hierarchy, owners: list[np.ndarray], signed: np.ndarray, log_density: Callable[[], Any]
) -> tuple[np.ndarray, set[int]]:
    """Return the two scales whose signs each coordinate has ``(d, 2)``, or -1, children aside; and those refused.

    A correlation is a coordinate that changes the sign of one element of a root, and nothing else, with its own.  A
    scale is refused whose sign is not undone by the signs of its rows: those of its correlations matter.
    """
    mixed = [
        child.parents for child, owner in zip(hierarchy.children, owners, strict=True) if len(set(owner.tolist())) > 1
    ]
    indices = {i for var in set().union(*mixed) for i in hierarchy.indices(var).tolist()}
    coordinates = np.array(sorted(indices - set(signed.tolist())), dtype=int)
    start = hierarchy.start.copy()  # with no correlation that is 0
    start[coordinates] += np.random.default_rng(2).uniform(0.2, 1.0, len(coordinates))
    d = len(start)
    flips = np.full((d, 2), -1)
    flips[signed, 0] = signed
    one_turned = np.where(coordinates[:, None] == np.arange(d), -start, start)
    for (_, L), owner in zip(hierarchy.scales(np.concatenate([start[None], one_turned])), owners, strict=True):
        root = _root(L)
        if root.ndim < 3:
            continue
        opposite, same = (np.isclose(root[1:], sign * root[0], rtol=1e-8, atol=0.0) for sign in (-1.0, 1.0))
        for k in np.flatnonzero((opposite | same).all(axis=(1, 2)) & ((~same).sum(axis=(1, 2)) == 1)):
            i, j = np.argwhere(~same[k])[0]
            if owner[i] != owner[j]:
                flips[coordinates[k]] = owner[i], owner[j]
    # A row for each signed scale, in which its correlations have the other sign.
    turned = np.isin(np.arange(d), coordinates) & ((flips == signed[:, None, None]).sum(axis=2) == 1)
    p = np.concatenate([start[None], np.where(turned, -start, start)])
    good = np.ones(len(signed), dtype=bool)
    for (mu, L), owner in zip(hierarchy.scales(p), owners, strict=True):
        root = _root(L)
        expected = root[0]
        if root.ndim == 3:
            sign = np.where(owner == signed[:, None], -1.0, 1.0)
            expected = sign[:, :, None] * root[0] * sign[:, None, :]
        for new, old, atol in ((root[1:], expected, 0.0), (mu[1:], mu[0], 1e-12)):
            good &= np.isclose(new, old, rtol=1e-8, atol=atol).reshape(len(signed), -1).all(axis=1)
    if turned.any() and good.all():
        # With the children at their locations their noise has no part in it.
        for i, child in enumerate(hierarchy.children):
            p[:, hierarchy.slices[child.value]] = hierarchy.scales(p)[i][0].reshape(len(p), -1)
        f = log_density()
        values = np.array([f(hierarchy.x_of(row))[0] for row in p])
        good &= np.isclose(values[1:], values[0], rtol=1e-7)
    return flips, set(signed[~good].tolist())


# -- scales of offsets -------------------------------------------------------------------------------------------------


def _of_offsets(hierarchy: Hierarchy, groups: list[np.ndarray], log_density: Callable[[], Any]) -> np.ndarray:
    """Return for each coordinate ``(d,)`` the scale of which it is an offset, or -1; both change sign together."""
    d = len(hierarchy.start)
    rng = np.random.default_rng(3)
    related = {var for child in hierarchy.children for var in (child.value, *child.parents)}
    scales = [i for group in groups for i in group.tolist()]
    free = ~np.isin(np.arange(d), np.concatenate([scales, *map(hierarchy.indices, related)]))
    owner = np.full(d, -1)
    if not scales or len(scales) > _MOST_SCALES or not free.any():
        return owner
    f = log_density()

    def gradients(*positions: np.ndarray) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [np.asarray(f(hierarchy.x_of(p))[1]) for p in positions]

    start = hierarchy.start + np.where(free, rng.uniform(0.2, 1.0, d), 0.0)
    offsets_of = {i: _offsets_of(i, start, free, gradients, rng) for i in scales}
    count = sum((offsets.astype(int) for offsets in offsets_of.values()), np.zeros(d, dtype=int))
    # Offsets of two scales are of a product.
    unshared = {i for i, offsets in offsets_of.items() if offsets.any() and not (count[offsets] > 1).any()}
    for group in groups:
        if unshared.issuperset(group.tolist()):
            for i in group:
                owner[offsets_of[i]] = i
    return owner


def _offsets_of(
    i: int, start: np.ndarray, free: np.ndarray, gradients: Callable[..., list[np.ndarray]], rng: np.random.Generator
) -> np.ndarray:
    """Return which of the ``free`` coordinates ``(d,)`` are offsets of the scale whose logarithm is coordinate ``i``.

    Where the scale vanishes the log density depends on an offset by its prior alone, which is even: the gradient is odd
    in it.  With a small scale the model is a smooth function of the products of scale and offsets: the slope by the
    logarithm is 1, of its Jacobian, and odd in the offsets.
    """
    here = np.arange(len(start)) == i
    narrow = np.where(here, _NECK, start)
    turned = np.where(free, -narrow, narrow + ~here * rng.uniform(0.2, 1.0, len(start)))
    at_narrow, at_turned, at_wide = gradients(narrow, turned, np.where(here, start, turned))
    odd_where_narrow = np.isclose(at_narrow, -at_turned, rtol=1e-6, atol=1e-6)
    odd_where_wide = np.isclose(at_narrow, -at_wide, rtol=1e-6, atol=1e-6)
    offsets = free & odd_where_narrow & ~odd_where_wide
    small = np.where(here, _SMALL, start)
    opposite, without = (np.where(offsets, value, small) for value in (-small, 0.0))
    plus, minus, zero = (gradient[i] for gradient in gradients(small, opposite, without))
    odd = abs(plus - minus)
    even = abs(plus + minus - 2.0 * zero)
    return offsets & (abs(zero - 1.0) < 0.1) & (even < 0.1 * odd)


# -- scales of what is integrated out ----------------------------------------------------------------------------------


def _of_marginal(model: pm.Model, hierarchy: Hierarchy, candidates: list[tuple[str, Any, np.ndarray]]) -> np.ndarray:
    """Return the scales that enter the marginal density of a Gaussian block alone, which is even in them.

    Near 0 its slope by the logarithm is then proportional to the square.  One that makes another's slope vanish with it
    is a factor of a product.
    """
    marginal = [potential for potential in model.potentials if potential.name == MARGINAL]
    inputs = [graph for rv in model.basic_RVs for graph in rv.owner.inputs]
    entered = set(ancestors([*inputs, *(potential for potential in model.potentials if potential not in marginal)]))
    groups = [
        group
        for _, value, group in candidates
        if value not in hierarchy.factors and model.values_to_rvs[value] not in entered
    ]
    scales = np.concatenate([np.zeros(0, int), *groups])
    if not marginal or not 0 < len(scales) <= _MOST_OF_MARGINAL:
        return np.zeros(0, int)
    vars = list(hierarchy.shapes)
    compiled = python_function(vars, pt.grad(marginal[0], vars, disconnected_inputs="ignore"))

    def slopes(p: np.ndarray) -> np.ndarray:
        x = hierarchy.x_of(p)
        try:
            with np.errstate(all="ignore"):
                of_vars = compiled(*(x[hierarchy.slices[var]].reshape(hierarchy.shapes[var]) for var in vars))
        except (np.linalg.LinAlgError, *CHECKS):  # out of range
            return np.full(len(scales), np.nan)
        return np.concatenate([np.ravel(values) for values in of_vars])[scales]

    start = slopes(hierarchy.start)
    even = np.zeros(len(scales), bool)
    gone = np.zeros((len(scales), len(scales)), bool)
    for k, i in enumerate(scales):
        here = np.arange(len(hierarchy.start)) == i
        profile = np.array([slopes(hierarchy.start - depth * here) for depth in _DEPTHS])
        size = np.abs(profile[:, k])
        near = (size[:-2] < 0.003) & (size[2:] > 1e-7)  # closer there is rounding
        with np.errstate(all="ignore"):
            falls = np.isclose(profile[:-1, k] / profile[1:, k], np.exp(2.0), rtol=0.2)
        even[k] = (near & falls[:-1] & falls[1:]).any()
        gone[k] = (np.abs(profile[-1]) < 1e-3 * np.abs(start)) & (scales != i)
    gone &= even & even[:, None]
    return scales[even & ~gone.any(axis=0) & ~gone.any(axis=1)]

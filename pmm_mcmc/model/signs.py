"""The scales of a model that may be sampled with a sign, and the coordinates that change sign with them.

A scale may have a sign where the log density of ``z`` is then a smooth function across 0.  Values at a few positions
decide, whatever graph computes them:

- Its prior is of a family in :data:`pmm_mcmc.model.families.SIGNED`.
- Every child whose scale vanishes with it has symmetric noise, and a scale that is proportional to it near 0.
- If it is one of several standard deviations, the correlations with it change sign too, and their prior is symmetric.

A model that is non-centred by hand has offsets in place of children: in ``theta = mu + s * offset`` they change sign
with ``s``.

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

from pmm_mcmc.coordinates.signs import Signs
from pmm_mcmc.model.families import MOST_GROUPED, SIGNED
from pmm_mcmc.model.hierarchy import Hierarchy

__all__ = ["signed_scales"]

# The logarithm of a signed scale that stands for 0: a scale of children must vanish with it there.
_NECK = -30.0
# The logarithm of a scale that is small enough for the log density to be linear in it.
_SMALL = -8.0
# Most scales that are tested for offsets; more are those of a horseshoe, which share offsets with another.
_MOST_SCALES = 200


def signed_scales(hierarchy: Hierarchy, log_density: Callable[[], Any]) -> Signs:
    """Return the scales that are sampled with a sign, and what changes sign with them.

    ``log_density`` compiles the model's with its gradient, a function of ``x``; it is called only where a correlation
    may have a sign, or offsets.
    """
    signed, flips = _of_children(hierarchy, log_density)
    owner = _of_offsets(hierarchy, log_density)
    if (owner >= 0).any():
        scales = np.unique(owner[owner >= 0])
        flips[owner >= 0, 0] = owner[owner >= 0]
        flips[scales, 0] = scales
        signed = np.union1d(signed, scales)
    parents = {var for child in hierarchy.children for var in child.parents}
    by_hand = [
        rv.name
        for rv in hierarchy.model.free_RVs
        if (value := hierarchy.model.rvs_to_values[rv]) not in parents
        and np.isin(hierarchy.indices(value), signed).any()
    ]
    return Signs(signed, flips, by_hand)


def _candidates(hierarchy: Hierarchy) -> list[np.ndarray]:
    """Return the coordinates, a variable each, of logarithms of scales whose density at 0 is symmetric or flat."""
    groups = []
    children = {child.value for child in hierarchy.children}
    for rv in hierarchy.model.free_RVs:
        value = hierarchy.model.rvs_to_values[rv]
        if value in hierarchy.factors:
            if type(rv.owner.inputs[-1].owner.op).__name__ in SIGNED:
                groups.append(hierarchy.factors[value].scales)
        elif value not in children and type(rv.owner.op).__name__ in SIGNED:
            if type(hierarchy.model.rvs_to_transforms[rv]).__name__ == "LogTransform":
                groups.append(hierarchy.indices(value))
    return groups


# -- scales of children ------------------------------------------------------------------------------------------------


def _of_children(hierarchy: Hierarchy, log_density: Callable[[], Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the signed scales of children ``(k,)``, and the two whose signs each coordinate has ``(d, 2)``, or -1."""
    groups = [(group, owners) for group in _candidates(hierarchy) if (owners := _owners(group, hierarchy))]
    # Where an element has two scales, it has a product.
    count = np.sum([np.concatenate(owners) >= 0 for _, owners in groups], axis=0)
    groups = [
        (group, owners)
        for group, owners in groups
        if (np.concatenate(owners) >= 0).any() and not (count[np.concatenate(owners) >= 0] > 1).any()
    ]
    flips = np.full((len(hierarchy.start), 2), -1)
    while groups:
        owners = [np.max(each, axis=0) for each in zip(*(owners for _, owners in groups), strict=True)]
        signed = np.concatenate([group for group, _ in groups])
        flips[:] = -1
        flips[signed, 0] = signed
        bad = _flip_correlations(hierarchy, owners, signed, flips, log_density)
        if not bad:
            for child, owner in zip(hierarchy.children, owners, strict=True):
                indices = hierarchy.indices(child.value)
                flips[indices, 0] = np.resize(owner, len(indices))
            return np.sort(signed), flips
        groups = [(group, owners) for group, owners in groups if not bad & set(group.tolist())]
    return np.zeros(0, dtype=int), np.full((len(hierarchy.start), 2), -1)


def _root(L: Any) -> np.ndarray:
    """Return standard deviations ``(n, m)``, or roots of covariances ``(n, K, K)``, from a child's scale."""
    return np.sqrt(L[0]) if isinstance(L, tuple) else L


def _owners(group: np.ndarray, hierarchy: Hierarchy) -> list[np.ndarray]:
    """Return for each child the coordinate in a group that each of its scales is proportional to, near 0, or -1.

    Of groups and vectors there is a scale for each row of the root of the covariance.  Nothing is returned where a
    scale vanishes otherwise, or the sign would matter.
    """
    shift = np.random.default_rng(0).uniform(0.2, 1.0, size=(2, len(group)))
    p = np.repeat(hierarchy.start[None, :], 3, axis=0)
    p[:, group] = _NECK
    p[1:, group] += shift
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
            still = (np.abs(change) < 1e-6).all(axis=0)
            follows = (np.abs(change[:, :, None] - shift[:, None, :]) < 1e-4).all(axis=0)
            if not child.law.symmetric or (len(still) > MOST_GROUPED and child.law.kind == "vector"):
                follows[:] = False
            if not (still | follows.any(axis=1)).all():
                return []
            owners.append(np.where(still, -1, group[follows.argmax(axis=1)]))
    return owners


def _flip_correlations(
    hierarchy: Hierarchy,
    owners: list[np.ndarray],
    signed: np.ndarray,
    flips: np.ndarray,
    log_density: Callable[[], Any],
) -> set[int]:
    """Fill in the coordinates that change the sign of a correlation of two scales with different signs.

    Returns the signed scales for which changing the sign of these is not all that their own sign does.
    """
    d = len(hierarchy.start)
    mixed = [child.parents for child, owner in zip(hierarchy.children, owners, strict=True)
             if child.law.kind == "vector" and len(set(owner.tolist())) > 1]  # fmt: skip
    indices = {i for var in set().union(*mixed) for i in hierarchy.indices(var).tolist()}
    turnable = np.array(sorted(indices - set(signed.tolist())), dtype=int)
    start = hierarchy.start.copy()
    start[turnable] += np.random.default_rng(2).uniform(0.2, 1.0, len(turnable))
    one_turned = np.where(turnable[:, None] == np.arange(d), -start, start)
    for (_, L), owner in zip(hierarchy.scales(np.concatenate([start[None], one_turned])), owners, strict=True):
        root = _root(L)
        if root.ndim < 3:
            continue
        minus, same = (np.isclose(root[1:], sign * root[0], rtol=1e-8, atol=0.0) for sign in (-1.0, 1.0))
        for k in np.flatnonzero((minus | same).all(axis=(1, 2)) & ((~same).sum(axis=(1, 2)) == 1)):
            i, j = np.argwhere(~same[k])[0]
            if owner[i] != owner[j]:
                flips[turnable[k]] = owner[i], owner[j]
    # A row for each signed scale: its correlations have the other sign, and nothing else may change.
    turned = np.isin(np.arange(d), turnable) & ((flips == signed[:, None, None]).sum(axis=2) == 1)
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
    return set(signed[~good].tolist())


# -- scales of offsets -------------------------------------------------------------------------------------------------


def _of_offsets(hierarchy: Hierarchy, log_density: Callable[[], Any]) -> np.ndarray:
    """Return for each coordinate ``(d,)`` the scale of which it is an offset, or -1; both change sign together.

    Where the scale vanishes the log density depends on an offset by its prior alone, which is even; and of a small
    scale it has a slope that is odd in the offsets: the model is a smooth function of their product.
    """
    d = len(hierarchy.start)
    rng = np.random.default_rng(3)
    parents = {var for child in hierarchy.children for var in child.parents}
    children = {child.value for child in hierarchy.children}
    of_parents, of_children = (
        {i for var in variables for i in hierarchy.indices(var).tolist()} for variables in (parents, children)
    )
    groups = [group for group in _candidates(hierarchy) if not of_parents & set(group.tolist())]
    scales = [i for group in groups for i in group.tolist()]
    free = ~np.isin(np.arange(d), [*of_children, *of_parents, *scales])
    owner = np.full(d, -1)
    if not scales or len(scales) > _MOST_SCALES or not free.any():
        return owner
    f = log_density()

    def slopes(*positions: np.ndarray) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [np.asarray(f(hierarchy.x_of(p))[1]) for p in positions]

    start = hierarchy.start + np.where(free, rng.uniform(0.2, 1.0, d), 0.0)
    offsets_of = {}
    for i in scales:
        here = np.arange(d) == i
        narrow = np.where(here, _NECK, start)
        turned = np.where(free, -narrow, narrow + ~here * rng.uniform(0.2, 1.0, d))
        of_narrow, of_turned, of_wide = slopes(narrow, turned, np.where(here, start, turned))
        odd_where_narrow = np.isclose(of_narrow, -of_turned, rtol=1e-6, atol=1e-6)
        odd_where_wide = np.isclose(of_narrow, -of_wide, rtol=1e-6, atol=1e-6)
        offsets = free & odd_where_narrow & ~odd_where_wide
        small = np.where(here, _SMALL, start)
        opposite, none = (np.where(offsets, value, small) for value in (-small, 0.0))
        plus, minus, zero = (slope[i] for slope in slopes(small, opposite, none))
        odd = abs(plus - minus)
        even = abs(plus + minus - 2.0 * zero)
        if offsets.any() and abs(zero - 1.0) < 0.1 and even < 0.1 * odd:
            offsets_of[i] = offsets
    count = sum((offsets.astype(int) for offsets in offsets_of.values()), np.zeros(d, dtype=int))
    # Offsets of two scales are of a product.
    unshared = {i for i, offsets in offsets_of.items() if not (count[offsets] > 1).any()}
    for group in groups:
        if unshared.issuperset(group.tolist()):
            for i in group:
                owner[offsets_of[i]] = i
    return owner

"""Which scales may be sampled with a sign, and which coordinates change sign with them.

A scale may where the log density of ``z`` is then a smooth function across 0:

- its prior is of a family in :data:`pmm_mcmc.model.families.SIGNED`;
- every child whose scale vanishes with it has symmetric noise, and is proportional to it in the end.  Factors of a
  product of such scales, as a horseshoe has, keep their logarithms: with signs two of three runs of each horseshoe of
  ``benchmarks/hierarchies.py`` were refused, without none of six.  A single vector keeps them too: a mean that is not
  its location is correlated with it, the other way round where the scale is negative, and no linear scale suits both
  (Gaussian process of ``benchmarks/hierarchies.py``: none of five runs trusted with a sign, three without);
- of a standard deviation among several, the correlations with it change sign too, and their prior does not mind.

Nor need there be children: a model that is non-centred by hand has offsets, ``theta = mu + s * offset``, and with the
sign of ``s`` that of its offsets changes (:func:`_of_offsets`).

All of it is seen in values at a few positions, whatever the graph that they are computed by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pmm_mcmc.model.families import MOST_GROUPED
from pmm_mcmc.model.reading import Reading

__all__ = ["signed_scales"]

# Where a scale must vanish with the one that it is sampled with the sign of: its logarithm here.
_NECK = -30.0
# The logarithm of a scale that is small enough for the log density to be linear in it.
_SMALL = -8.0
# Of scales with offsets; of more, each the size of a horseshoe's, none has offsets of its own alone.
_MOST_SCALES = 200


def signed_scales(reading: Reading, log_density: Callable[[], Any]) -> tuple[np.ndarray, np.ndarray]:
    """Find the coordinates of signed scales ``(k,)`` and those whose signs each coordinate has ``(d, 2)``, or -1.

    ``log_density`` compiles the model's with its gradient, a function of ``x``; it is called only where a correlation
    may have a sign, or offsets.
    """
    signed, flips = _of_children(reading, log_density)
    owner = _of_offsets(reading, signed, log_density)
    if (owner >= 0).any():
        scales = np.unique(owner[owner >= 0])
        flips[owner >= 0, 0] = owner[owner >= 0]
        flips[scales, 0] = scales
        signed = np.union1d(signed, scales)
    return signed, flips


def _of_children(reading: Reading, log_density: Callable[[], Any]) -> tuple[np.ndarray, np.ndarray]:
    """Find signed scales of children."""
    groups = [(group, owners) for group in reading.scales_with_sign() if (owners := _owners(group, reading))]
    several = [sum(owners[i] >= 0 for _, owners in groups) > 1 for i in range(len(reading.children) if groups else 0)]
    groups = [
        (group, owners)
        for group, owners in groups
        if any((owner >= 0).any() for owner in owners)
        and not any((twice & (owner >= 0)).any() for twice, owner in zip(several, owners, strict=True))
    ]
    flips = np.full((len(reading.start), 2), -1)
    while groups:
        owners = [np.max(each, axis=0) for each in zip(*(owners for _, owners in groups), strict=True)]
        signed = np.concatenate([group for group, _ in groups])
        flips[:] = -1
        flips[signed, 0] = signed
        bad = _correlated(reading, owners, signed, flips, log_density)
        if not bad:
            for child, owner in zip(reading.children, owners, strict=True):
                coordinates = reading.at[child.value]
                flips[coordinates, 0] = np.resize(owner, coordinates.stop - coordinates.start)
            return np.sort(signed), flips
        groups = [(group, owners) for group, owners in groups if not bad & set(group.tolist())]
    return np.zeros(0, dtype=int), np.full((len(reading.start), 2), -1)


def _owners(group: np.ndarray, reading: Reading) -> list[np.ndarray]:
    """Return for each child the coordinate in a group that each of its scales is proportional to, near 0, or -1.

    Of groups and vectors there is a scale for each row of the root of the covariance.  Nothing is returned where a
    scale vanishes otherwise, or the sign would matter.
    """
    rng = np.random.default_rng(0)
    p = np.repeat(reading.start[None, :], 3, axis=0)
    p[:, group] = _NECK
    shift = rng.uniform(0.2, 1.0, size=(2, len(group)))
    p[1:, group] += shift
    out = []
    with np.errstate(all="ignore"):
        for child, (mu, L) in zip(reading.children, reading.scales(p), strict=True):
            if not np.allclose(mu[1:], mu[0], rtol=1e-6, atol=1e-6):
                return []  # of a location that goes to infinity the sign would be seen
            if isinstance(L, tuple):
                size = np.sqrt(L[0])
            elif L.ndim == 3:
                size = np.sqrt((L**2).sum(axis=2))
            else:
                size = L
            change = np.log(size[1:] / size[0])
            if L is not size and not isinstance(L, tuple):
                if not np.allclose(L[1:], np.exp(change)[:, :, None] * L[0], rtol=1e-6, atol=0.0):
                    return []
            still = (np.abs(change) < 1e-6).all(axis=0)
            follows = (np.abs(change[:, :, None] - shift[:, None, :]) < 1e-4).all(axis=0)
            if not child.law.symmetric or (len(still) > MOST_GROUPED and child.law.kind == "vector"):
                follows[:] = False
            if not (still | follows.any(axis=1)).all():
                return []
            out.append(np.where(still, -1, group[follows.argmax(axis=1)]))
    return out


def _correlated(
    reading: Reading, owners: list[np.ndarray], signed: np.ndarray, flips: np.ndarray, log_density: Callable[[], Any]
) -> set[int]:
    """Fill in the coordinates that change the sign of a correlation of two scales with different signs.

    Returns the signed scales for which changing the sign of these is not all that their own sign does.
    """
    d = len(reading.start)
    mixed = [child.parents for child, owner in zip(reading.children, owners, strict=True)
             if child.law.kind == "vector" and len(set(owner.tolist())) > 1]  # fmt: skip
    others = {i for var in set().union(*mixed) for i in range(*reading.at[var].indices(d))}
    turnable = np.array(sorted(others - set(signed.tolist())), dtype=int)
    start = reading.start.copy()
    start[turnable] += np.random.default_rng(2).uniform(0.2, 1.0, len(turnable))
    one_turned = np.where(turnable[:, None] == np.arange(d), -start, start)
    for (_, L), owner in zip(reading.scales(np.concatenate([start[None], one_turned])), owners, strict=True):
        if isinstance(L, tuple) or L.ndim < 3:
            continue
        minus, same = (np.isclose(L[1:], by * L[0], rtol=1e-8, atol=0.0) for by in (-1.0, 1.0))
        for k in np.flatnonzero((minus | same).all(axis=(1, 2)) & ((~same).sum(axis=(1, 2)) == 1)):
            i, j = np.argwhere(~same[k])[0]
            if owner[i] != owner[j]:
                flips[turnable[k]] = owner[i], owner[j]
    turned = np.isin(np.arange(d), turnable) & ((flips == signed[:, None, None]).sum(axis=2) == 1)
    p = np.concatenate([start[None], np.where(turned, -start, start)])
    good = np.ones(len(signed), dtype=bool)
    for (mu, L), owner in zip(reading.scales(p), owners, strict=True):
        roots = np.sqrt(L[0]) if isinstance(L, tuple) else L
        expected = roots[0]
        if roots.ndim == 3:
            S = np.where(owner == signed[:, None], -1.0, 1.0)
            expected = S[:, :, None] * roots[0] * S[:, None, :]
        for new, old, atol in ((roots[1:], expected, 0.0), (mu[1:], mu[0], 1e-12)):
            good &= np.isclose(new, old, rtol=1e-8, atol=atol).reshape(len(signed), -1).all(axis=1)
    if turned.any() and good.all():
        # At their locations the children have no part in it.
        for i, child in enumerate(reading.children):
            p[:, reading.at[child.value]] = reading.scales(p)[i][0].reshape(len(p), -1)
        f = log_density()
        values = np.array([f(reading.x_of(row))[0] for row in p])
        good &= np.isclose(values[1:], values[0], rtol=1e-7)
    return set(signed[~good].tolist())


def _of_offsets(reading: Reading, signed: np.ndarray, log_density: Callable[[], Any]) -> np.ndarray:
    """Return of each coordinate ``(d,)`` the scale that it is an offset of, whose sign changes with its own, or -1.

    Where the scale vanishes the log density depends on an offset by its prior alone, which is even; and of a small
    scale it has a slope that is odd in the offsets: the model is a smooth function of their product.
    """
    d = len(reading.start)
    rng = np.random.default_rng(3)
    owner = np.full(d, -1)
    of_children = {i for child in reading.children for i in _range(reading, child.value)}
    parents = {i for child in reading.children for var in child.parents for i in _range(reading, var)}
    groups = [group for group in reading.scales_with_sign() if not parents & set(group.tolist())]
    scales = [i for group in groups for i in group.tolist()]
    free = np.array([i not in of_children and i not in parents and i not in scales for i in range(d)])
    if not scales or len(scales) > _MOST_SCALES or not free.any():
        return owner
    f = log_density()

    def slopes(*positions: np.ndarray) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [np.asarray(f(reading.x_of(p))[1]) for p in positions]

    start = reading.start + np.where(free, rng.uniform(0.2, 1.0, d), 0.0)
    refused = set()
    of = {}
    for i in scales:
        narrow = np.where(np.arange(d) == i, _NECK, start)
        turned = np.where(free, -narrow, narrow + (np.arange(d) != i) * rng.uniform(0.2, 1.0, d))
        wide = np.where(np.arange(d) == i, start, turned)
        one, other, of_wide = slopes(narrow, turned, wide)
        odd_where_narrow = np.isclose(one, -other, rtol=1e-6, atol=1e-6)
        odd_where_wide = np.isclose(one, -of_wide, rtol=1e-6, atol=1e-6)
        offsets = free & odd_where_narrow & ~odd_where_wide
        small = np.where(np.arange(d) == i, _SMALL, start)
        without = np.where(offsets, 0.0, small)
        plus, minus, none = (g[i] for g in slopes(small, np.where(offsets, -small, small), without))
        odd = abs(plus - minus)
        even = abs(plus + minus - 2.0 * none)
        if offsets.any() and abs(none - 1.0) < 0.1 and even < 0.1 * odd:
            of[i] = offsets
        else:
            refused.add(i)
    owners = sum((offsets.astype(int) for offsets in of.values()), np.zeros(d, dtype=int))
    refused |= {i for i, offsets in of.items() if (owners[offsets] > 1).any()}  # factors of a product
    for group in groups:
        if not refused & set(group.tolist()):
            for i in group:
                owner[of[i]] = i
    return owner


def _range(reading: Reading, var: Any) -> range:
    return range(*reading.at[var].indices(len(reading.start)))

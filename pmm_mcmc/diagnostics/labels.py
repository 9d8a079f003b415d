"""Labels that may be exchanged, and signs that are free: found exactly, by values of the density, and undone.

Blocks along an axis are exchangeable if the log density at two points does not change when neighbours are swapped in
all variables that belong together (Nishihara, Minka and Tarlow 2013); a sign is free if it does not change when these
are reflected.  Draws are relabelled to what is nearest to a pivot (Stephens 2000).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import xarray as xr

from pmm_mcmc.diagnostics.parameters import Result, checked

# Attribute of a result: the findings of searches after the draws, as JSON: modes, labels, jump and necks.
FINDINGS = "findings"
# Attribute of a result whose draws are relabelled.
_RELABELLED = "relabelled"
# Variables that are tried together, and blocks along an axis, at most.
_MOST_VARIABLES = 6
_MOST_BLOCKS = 20
# Relative difference of log densities that is rounding.
_ROUNDING = 1e-9

Values = Mapping[str, np.ndarray]


class Exchange(NamedTuple):
    """Variables of which blocks along ``axes`` may be exchanged, or may change their sign.

    Attributes
    ----------
    axes
        The axes of each variable, without that of draws; none if the sign of a whole variable is free.
    blocks
        Their number.
    signs
        Whether it is signs that are free.
    """

    axes: dict[str, tuple[int, ...]]
    blocks: int
    signs: bool = False

    @property
    def words(self) -> str:
        """What may be exchanged, by name."""
        *names, last = self.axes
        joined = f"{', '.join(names)} and {last}" if names else last
        return f"the sign of {joined} is free" if self.signs else f"the labels of {joined} are exchangeable"

    def moved(self, values: Values, block: int) -> dict[str, np.ndarray]:
        """Return values ``(n, *shape)`` by name with a block and the next one swapped, or a block reflected."""
        if self.signs:
            order = 1.0 - 2.0 * (np.arange(self.blocks) == block)
        else:
            order = np.arange(self.blocks)
            order[[block, block + 1]] = block + 1, block
        return {**values, **self.in_order(values, order[None])}

    def in_order(self, values: Values, order: np.ndarray) -> dict[str, np.ndarray]:
        """Return its variables with their blocks in an ``order`` ``(n, blocks)``, or times such signs."""
        return {name: _in_order(values[name], order, axes, self.signs) for name, axes in self.axes.items()}


def exchanges_of(values: Values, log_density: Callable[[Values], np.ndarray]) -> list[Exchange]:
    """Return the smallest sets of variables that are exchangeable together, by ``values`` ``(n, *shape)`` at points.

    ``log_density`` returns values ``(n,)`` at values by name, NaN where there is none.
    """
    lp = log_density(values)
    tolerance = _ROUNDING * (1.0 + np.abs(lp).max())
    exchanges: list[Exchange] = []

    def is_invariant(exchange: Exchange, block: int) -> bool:
        with np.errstate(invalid="ignore"):
            return bool((np.abs(log_density(exchange.moved(values, block)) - lp) <= tolerance).all())

    reflections = {name: log_density({**values, name: -values[name]}) for name in values}
    for exchange in _candidates(values, [name for name in values if np.isfinite(reflections[name]).all()]):
        smaller = [one for one in exchanges if one.signs == exchange.signs and set(one.axes) <= set(exchange.axes)]
        if any(one.blocks == exchange.blocks or exchange.blocks == 1 for one in smaller):
            continue
        last = exchange.blocks if exchange.signs else exchange.blocks - 1
        if all(is_invariant(exchange, block) for block in range(last)):
            exchanges.append(exchange)
    return exchanges


def _candidates(values: Values, signed: Sequence[str]) -> list[Exchange]:
    """Return all that may be exchangeable, fewer variables first; ``signed`` variables may be reflected."""
    sizes = sorted({size for array in values.values() for size in array.shape[1:] if 2 <= size <= _MOST_BLOCKS})
    candidates = []
    for size in sizes:
        axes = {
            name: tuple(int(axis) for axis in np.flatnonzero(np.array(array.shape[1:]) == size))
            for name, array in values.items()
            if size in array.shape[1:]
        }
        for signs in (False, True):
            names = [name for name in axes if not signs or name in signed][:_MOST_VARIABLES]
            candidates += [
                Exchange({name: axes[name] for name in subset}, size, signs)
                for n in range(1, len(names) + 1)
                for subset in itertools.combinations(names, n)
            ]
    candidates += [
        Exchange(dict.fromkeys(subset, ()), 1, True)
        for n in range(1, min(len(signed), _MOST_VARIABLES) + 1)
        for subset in itertools.combinations(signed[:_MOST_VARIABLES], n)
    ]
    return sorted(candidates, key=lambda exchange: len(exchange.axes))


# -- relabelling -------------------------------------------------------------------------------------------------------


def nearest_to(
    pivot: Values, values: Values, exchanges: Sequence[Exchange]
) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Return values ``(n, *shape)`` in the labelling nearest to a pivot, by name, and the order of each exchange.

    That is the new order of labels ``(n, count)``, or the signs.
    """
    nearest = dict(values)
    orders = []
    free = {name for exchange in exchanges if exchange.signs for name in exchange.axes}
    for exchange in sorted(exchanges, key=lambda exchange: exchange.signs):
        order = _signs(pivot, nearest, exchange) if exchange.signs else _order(pivot, nearest, exchange, free)
        nearest |= exchange.in_order(nearest, order)
        orders.append(order)
    return nearest, orders


def _in_order(array: np.ndarray, order: np.ndarray, axes: Sequence[int], signs: bool) -> np.ndarray:
    """Return an array ``(n, *shape)`` with blocks along axes in another order, or with other signs."""
    if not axes:
        return array * order.reshape(-1, *[1] * (array.ndim - 1))
    for axis in axes:
        by_axis = np.moveaxis(order.reshape(*order.shape, *[1] * (array.ndim - 2)), 1, axis + 1)
        array = array * by_axis if signs else np.take_along_axis(array, by_axis, axis + 1)
    return array


def _blocks(array: np.ndarray, axis: int) -> np.ndarray:
    """Return the blocks ``(n, count, m)`` of an array along an axis."""
    moved = np.moveaxis(array, axis + 1, 1)
    return moved.reshape(*moved.shape[:2], -1)


def _signs(pivot: Values, values: Values, exchange: Exchange) -> np.ndarray:
    products = np.zeros((len(next(iter(values.values()))), exchange.blocks))
    for name, axes in exchange.axes.items():
        product = values[name] * pivot[name]
        products += _blocks(product, axes[0]).sum(axis=2) if axes else product.reshape(len(product), -1).sum(1)[:, None]
    return np.where(products < 0.0, -1.0, 1.0)


def _order(pivot: Values, values: Values, exchange: Exchange, free: set[str]) -> np.ndarray:
    """Return the order of labels that is nearest; the sign of ``free`` variables does not count."""
    from scipy.optimize import linear_sum_assignment

    as_they_are = np.zeros((len(next(iter(values.values()))), exchange.blocks, exchange.blocks))
    reflected = as_they_are.copy()
    for name, axes in exchange.axes.items():
        if len(axes) > 1:  # both of its axes move
            continue
        blocks = _blocks(values[name], axes[0])
        anchors = _blocks(np.asarray(pivot[name])[None], axes[0])[0]
        scale = max(float(blocks.var(axis=(0, 1)).sum()), 1e-300)
        as_they_are += ((anchors[None, :, None, :] - blocks[:, None, :, :]) ** 2).sum(axis=3) / scale
        sign = -1.0 if name in free else 1.0
        reflected += ((sign * anchors[None, :, None, :] - blocks[:, None, :, :]) ** 2).sum(axis=3) / scale
    return np.array([linear_sum_assignment(each)[1] for each in np.minimum(as_they_are, reflected)])


def labels_of(posterior: xr.Dataset) -> list[Exchange]:
    """Return what is exchangeable by the findings of a result, unless its draws are relabelled."""
    if posterior.attrs.get(_RELABELLED):
        return []
    return [Exchange(*record) for record in json.loads(posterior.attrs.get(FINDINGS, "{}")).get("labels", [])]


def relabelled(posterior: xr.Dataset, exchanges: Sequence[Exchange], pivot: tuple[int, int]) -> xr.Dataset:
    """Return draws in the labelling nearest to one of them, then to the mean of all; what shares a dim goes along."""
    names = list(dict.fromkeys(name for exchange in exchanges for name in exchange.axes))
    names = [name for name in names if name in posterior]
    exchanges = [one for one in exchanges if set(one.axes) <= set(names)]
    if not exchanges:
        return posterior
    sizes = posterior.sizes["chain"], posterior.sizes["draw"]
    arrays = {name: posterior[name].transpose("chain", "draw", ...) for name in names}
    values = {name: array.values.reshape(-1, *array.shape[2:]) for name, array in arrays.items()}
    number = pivot[0] * sizes[1] + pivot[1]
    about_draw, _ = nearest_to({name: array[number] for name, array in values.items()}, values, exchanges)
    centre = {name: array.mean(axis=0) for name, array in about_draw.items()}
    nearest, orders = nearest_to(centre, values, exchanges)
    new = {name: arrays[name].copy(data=nearest[name].reshape(arrays[name].shape)) for name in names}
    for exchange, order in zip(sorted(exchanges, key=lambda one: one.signs), orders, strict=True):
        dims = {arrays[name].dims[2 + axis] for name, axes in exchange.axes.items() for axis in axes}
        for name, variable in posterior.data_vars.items():
            axes = [axis - 2 for axis, dim in enumerate(variable.transpose("chain", "draw", ...).dims) if dim in dims]
            if name in names or exchange.signs or not axes:
                continue
            array = new.get(str(name), variable.transpose("chain", "draw", ...))
            flat = array.values.reshape(-1, *array.shape[2:])
            new[str(name)] = array.copy(data=_in_order(flat, order, axes, False).reshape(array.shape))
    return posterior.assign(new)


def relabel(dt: Result) -> xr.DataTree:
    """Return a result whose draws are in one labelling of exchangeable components, with their signs.

    Of mixtures, hidden Markov models and factor models single components mean nothing: the density does not change
    when labels, or signs, are exchanged.  Each draw is brought to the labelling that is nearest to the draws' mean,
    beginning with the highest draw; all variables with the dims of the components go along.

    Parameters
    ----------
    dt
        A result of :func:`pmm_mcmc.sample`, whose verdict names the labels.

    Returns
    -------
    xarray.DataTree
        The result with a new ``posterior``; its other groups are those of ``dt``, without gradients of the draws.

    Raises
    ------
    ValueError
        If no exchangeable labels or free signs are known of the result.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     mu = pm.Normal("mu", 0, 5, shape=2)
    ...     y = pm.NormalMixture("y", [0.5, 0.5], mu, 1.0, observed=np.repeat([-3.0, 3.0], 20))
    ...     dt = pmm.sample(200, progressbar=False, random_seed=1)
    >>> mean = pmm.relabel(dt)["posterior"]["mu"].mean(("chain", "draw"))
    >>> sorted(np.sign(mean.values).tolist())
    [-1.0, 1.0]
    """
    exchanges = labels_of(checked(dt)["posterior"])
    if not exchanges:
        raise ValueError(
            "dt: no exchangeable labels or free signs are known of it; its verdict names them where there are any. A "
            "result of another sampler has none: take that of pmm.sample"
        )
    draws = relabelled(dt["posterior"].to_dataset(), exchanges, highest(dt))
    result = dt.copy()
    result["posterior"] = xr.DataTree(draws.assign_attrs({_RELABELLED: 1}))
    if "sample_stats" in result:
        stats = result["sample_stats"].to_dataset()
        gradients = [name for name in ("gradient", "unconstrained", "noncentred") if name in stats]
        result["sample_stats"] = xr.DataTree(stats.drop_vars(gradients))
    return result


def highest(dt: xr.DataTree) -> tuple[int, int]:
    """Return chain and draw of the highest draw; the last one where log densities are not known."""
    if "sample_stats" not in dt.children or "lp" not in dt["sample_stats"]:
        return dt["posterior"].sizes["chain"] - 1, dt["posterior"].sizes["draw"] - 1
    lp = np.nan_to_num(dt["sample_stats"]["lp"].transpose("chain", "draw").values, nan=-np.inf)
    chain, draw = np.unravel_index(int(lp.argmax()), lp.shape)
    return int(chain), int(draw)

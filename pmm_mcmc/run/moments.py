"""Moments of draws that are not kept, in memory of the order of chains times parameters for any number of draws.

They are the mean and variance of every named value in each chain, and the means and co-moments of
:mod:`pmm_mcmc.diagnostics.comoments` for every unconstrained coordinate, in the final coordinates of warm-up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from pmm_mcmc.coordinates.affine import Coordinates, marginal_scale
from pmm_mcmc.diagnostics.comoments import ALONE, FEATURES, PAIRS, combined, count_pieces, features, pieces_of
from pmm_mcmc.model.result_tree import ResultTree

__all__ = ["Moments"]

# Statistics of which the sum is kept, with the name of the sum, and of which the mean; of others, the last value.
_SUMMED = {
    **{name: name for name in ("n_grad", "n_steps", "unstable", "diverging", "refined", "model_failures")},
    "steps_per_draw": "transitions",
}
_AVERAGED = ("lp", "acceptance_rate")
_VECTORS = ("gradient", "unconstrained", "noncentred")


@dataclass
class Moments:
    """Moments of the draws so far; build it with :meth:`start`.

    Attributes
    ----------
    shapes
        Shapes of the named values, in order; ``p`` numbers in all.
    draws
        Number of draws of each chain.
    origin : (p,)
        Offset of the named values: the first draw of the first chain, so that constants have variance exactly 0.
    mean, scatter : (chain, p)
        Means of the named values minus their origin, and sums of squared deviations from the means.
    own : (p,)
        Index of the unconstrained coordinate to which a value was equal in all draws, or -1.
    totals, averages, last
        Sums, means and last values of statistics, ``(chain,)`` each, by name.
    coordinates
        Centre and scale of the features; None if there are no gradients.
    scale : (d,)
        Fitted standard deviation of each coordinate.
    feature_mean : (feature, piece, d)
    feature_scatter : (pair, piece, d)
        Means and co-moments of the features, for pieces of consecutive chains.
    """

    shapes: dict[str, tuple[int, ...]]
    draws: int
    origin: np.ndarray
    mean: np.ndarray
    scatter: np.ndarray
    own: np.ndarray
    totals: dict[str, np.ndarray]
    averages: dict[str, np.ndarray]
    last: dict[str, np.ndarray]
    coordinates: Coordinates | None
    scale: np.ndarray
    feature_mean: np.ndarray
    feature_scatter: np.ndarray

    @classmethod
    def start(
        cls, posterior: Mapping[str, np.ndarray], d: int, chains: int, coordinates: Coordinates | None
    ) -> Moments:
        """Return moments of no draws.

        Parameters
        ----------
        posterior
            Arrays ``(chain, n, *event)`` by name, for any ``n``: only the event shapes are used.
        d, chains
            Number of unconstrained coordinates, and of chains.
        coordinates
            The final coordinates of warm-up; None if the draws will have no gradients.
        """
        shapes = {name: tuple(int(n) for n in values.shape[2:]) for name, values in posterior.items()}
        p = sum(int(np.prod(shape, dtype=int)) for shape in shapes.values())
        width = 0 if coordinates is None else d
        pieces = count_pieces(chains)
        return cls(
            shapes, 0, np.zeros(p), np.zeros((chains, p)), np.zeros((chains, p)), np.full(p, -1), {}, {}, {},
            coordinates, np.zeros(0) if coordinates is None else marginal_scale(coordinates),
            np.zeros((len(FEATURES), pieces, width)), np.zeros((len(PAIRS[0]), pieces, width)),
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, without the few statistics."""
        arrays = (self.origin, self.mean, self.scatter, self.own, self.scale, self.feature_mean, self.feature_scatter)
        return sum(array.nbytes for array in arrays)

    def add(self, groups: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Add the draws of a chunk of all chains.

        Parameters
        ----------
        groups
            ``posterior`` and ``sample_stats``: arrays ``(chain, n, ...)`` by name; other groups are ignored.
        """
        posterior, stats = groups["posterior"], groups["sample_stats"]
        n = stats["lp"].shape[1]
        if n == 0:
            return
        with np.errstate(invalid="ignore", over="ignore"):  # moments of non-finite values are NaN
            self._add_values(posterior, n)
            if self.coordinates is not None:
                position, gradient = stats.get("noncentred", stats["unconstrained"]), stats["gradient"]
                self._add_features(position, gradient, n)
                self._tell_own(posterior, position)
        self._add_statistics(stats, n)
        self.draws += n

    def _values(self, posterior: Mapping[str, np.ndarray]) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the named values as ``(chain, n, size)``, each with its slice of the ``p`` numbers."""
        start = 0
        for name, shape in self.shapes.items():
            size = int(np.prod(shape, dtype=int))
            values = np.asarray(posterior[name], dtype=float)
            yield slice(start, start + size), values.reshape(*values.shape[:2], size)
            start += size

    def _add_values(self, posterior: Mapping[str, np.ndarray], n: int) -> None:
        for where, values in self._values(posterior):
            if self.draws == 0:
                first = values[0, 0]
                self.origin[where] = np.where(np.isfinite(first), first, 0.0)
            values = values - self.origin[where]
            mean = values.mean(axis=1)
            scatter = ((values - mean[:, None]) ** 2).sum(axis=1)
            self.mean[:, where], self.scatter[:, where] = self._with(
                (self.mean[None, :, where], self.scatter[None, :, where]), (mean[None], scatter[None]), n, ALONE
            )

    def _add_features(self, position: np.ndarray, gradient: np.ndarray, n: int) -> None:
        assert self.coordinates is not None
        for piece, chains in enumerate(pieces_of(len(position))):
            x, g = (np.asarray(part[chains], dtype=float) for part in (position, gradient))
            f = features(x.reshape(-1, x.shape[-1]), g.reshape(-1, x.shape[-1]), self.coordinates, self.scale)
            mean = f.mean(axis=1)
            f -= mean[:, None]
            scatter = np.stack([np.einsum("nd,nd->d", f[a], f[b]) for a, b in zip(*PAIRS, strict=True)])
            before = self.feature_mean[:, piece], self.feature_scatter[:, piece]
            # A piece counts the draws of all its chains.
            found = self._with(before, (mean, scatter), n, PAIRS, chains.stop - chains.start)
            self.feature_mean[:, piece], self.feature_scatter[:, piece] = found

    def _with(
        self, before: tuple[np.ndarray, ...], chunk: tuple[np.ndarray, ...], n: int, pairs: Any, chains: int = 1
    ) -> tuple[np.ndarray, ...]:
        """Return means and co-moments of the draws so far combined with those of a chunk of ``n`` draws per chain."""
        if self.draws == 0:
            return chunk
        mean, scatter = (np.stack(both, axis=1) for both in zip(before, chunk, strict=True))
        return combined(np.array([self.draws * chains, n * chains]), mean, scatter, pairs)

    def _tell_own(self, posterior: Mapping[str, np.ndarray], position: np.ndarray) -> None:
        """Find the values that are untransformed coordinates, by comparing draws."""
        position = np.asarray(position, dtype=float)
        if self.draws == 0:
            columns = {_key(column): j for j, column in reversed(list(enumerate(position[:, -1].T)))}
            for where, values in self._values(posterior):
                self.own[where] = [columns.get(_key(column), -1) for column in values[:, -1].T]
        for where, values in self._values(posterior):
            own = self.own[where]
            which = np.flatnonzero(own >= 0)
            equal = (values[..., which] == position[..., own[which]]).all(axis=(0, 1))
            own[which[~equal]] = -1

    def _add_statistics(self, stats: Mapping[str, np.ndarray], n: int) -> None:
        for name, values in stats.items():
            if name in _VECTORS:
                continue
            if name in _SUMMED:
                total = values.sum(axis=1, dtype=np.int64)
                self.totals[_SUMMED[name]] = self.totals.get(_SUMMED[name], 0) + total
            elif name in _AVERAGED:
                mean, before = values.mean(axis=1, dtype=float), self.averages.get(name)
                self.averages[name] = mean if before is None else before + (mean - before) * (n / (self.draws + n))
            else:
                self.last[name] = np.array(values[:, -1])

    def tree(self, layout: ResultTree, attrs: Mapping[str, Any]) -> xr.DataTree:
        """Return the result of a run that keeps moments only.

        Parameters
        ----------
        layout
            The layout of the run's result.
        attrs
            Attributes of the run.

        Returns
        -------
        xarray.DataTree
            ``posterior_mean`` and ``posterior_sd``, ``(chain, *event)`` with the posterior's names and coordinates: the
            same as ``posterior.mean("draw")`` and ``.std("draw")`` of kept draws.  ``sample_stats_total``,
            ``(chain,)``: sums of counts over the draws, ``draws``, ``transitions``, means of ``lp`` and
            ``acceptance_rate``, and the last values of other statistics.  ``stein``, if there are gradients: the
            moments from which :func:`pmm_mcmc.summary` computes corrections and biases.  The model's data groups.
        """
        chains = len(self.mean)
        there = self.draws > 0
        mean = self.mean + self.origin if there else np.full_like(self.mean, np.nan)
        sd = np.sqrt(self.scatter / self.draws) if there else mean
        base = layout.tree({"posterior": self._named(mean[:, None])}, attrs)
        means = base["posterior"].to_dataset().isel(draw=0, drop=True)
        named = self._named(sd)
        groups = {
            "posterior_mean": means,
            "posterior_sd": means.copy(data={name: named[str(name)] for name in means.data_vars}),
        }
        totals = self.totals | self.averages | self.last | {"draws": np.full(chains, self.draws)}
        groups["sample_stats_total"] = xr.Dataset(
            {name: ("chain", totals[name]) for name in sorted(totals)}, {"chain": means["chain"]}, means.attrs
        )
        if self.coordinates is not None and there:
            own = self._named(self.own[None])
            groups["stein"] = self._stein([own[str(name)].ravel() for name in means.data_vars], layout, means.attrs)
        data = {str(name): node.to_dataset() for name, node in base.children.items() if name != "posterior"}
        return xr.DataTree.from_dict(groups | data)

    def _named(self, flat: np.ndarray) -> dict[str, np.ndarray]:
        """Split ``(..., p)`` into arrays ``(..., *event)`` by name."""
        out, start = {}, 0
        for name, shape in self.shapes.items():
            size = int(np.prod(shape, dtype=int))
            out[name] = flat[..., start : start + size].reshape(*flat.shape[:-1], *shape)
            start += size
        return out

    def _stein(self, own: list[np.ndarray], layout: ResultTree, attrs: Mapping[str, Any]) -> xr.Dataset:
        assert self.coordinates is not None
        counts = [self.draws * (part.stop - part.start) for part in pieces_of(len(self.mean))]
        return xr.Dataset(
            {
                "draws": ("piece", np.array(counts)),
                "mean": (("feature", "piece", "coordinate"), self.feature_mean.copy()),
                "scatter": (("pair", "piece", "coordinate"), self.feature_scatter.copy()),
                "centre": ("coordinate", np.asarray(self.coordinates.centre, dtype=float)),
                "scale": ("coordinate", self.scale),
                "coordinate_of": ("parameter", np.concatenate(own)),
            },
            {"coordinate": layout.names, "feature": list(FEATURES)},
            attrs,
        )


def _key(column: np.ndarray) -> bytes:
    """Return bytes that are equal for equal numbers: 0 and -0 have one representation."""
    return (column + 0.0).tobytes()

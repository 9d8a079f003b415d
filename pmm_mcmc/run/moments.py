"""Means and variances of draws that are not kept, in memory of chains times parameters for any number of draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pmm_mcmc.model.result_tree import ResultTree

__all__ = ["Moments"]

# Statistics of which the sum is kept, and of which the mean; of others, the last value.
_SUMMED = ("n_grad", "n_steps", "unstable", "diverging", "model_failures")
_AVERAGED = ("lp", "acceptance_rate")
_VECTORS = ("gradient", "unconstrained", "noncentred")


class Moments:
    """Moments of the draws so far, of a posterior with arrays ``(chain, n, *event)`` for any ``n``, by name.

    Attributes
    ----------
    draws
        Number of draws of each chain.
    mean, scatter
        By name, means ``(chain, *event)`` minus the first draw of the first chain, so that constants have variance
        exactly 0, and sums of squared deviations from the means.
    statistics : dict of (chain,)
        Sums, means and last values of statistics.
    """

    def __init__(self, posterior: Mapping[str, np.ndarray]):
        shapes = {name: values.shape[:1] + values.shape[2:] for name, values in posterior.items()}
        self.draws = 0
        self.chains = next(iter(shapes.values()))[0]
        self.origin = {name: np.zeros(shape[1:]) for name, shape in shapes.items()}
        self.mean = {name: np.zeros(shape) for name, shape in shapes.items()}
        self.scatter = {name: np.zeros(shape) for name, shape in shapes.items()}
        self.statistics: dict[str, np.ndarray] = {}

    def add(self, groups: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Add the draws of a chunk of all chains: ``posterior`` and ``sample_stats``, ``(chain, n, ...)`` by name."""
        stats = groups["sample_stats"]
        n = stats["lp"].shape[1]
        if n == 0:
            return
        share = n / (self.draws + n)
        with np.errstate(invalid="ignore", over="ignore"):  # moments of non-finite values are NaN
            for name, mean in self.mean.items():
                values = np.asarray(groups["posterior"][name], dtype=float)
                if self.draws == 0:
                    start = values[0, 0]
                    self.origin[name] = np.where(np.isfinite(start), start, 0.0)
                values = values - self.origin[name]
                deviation = values.mean(axis=1)
                values -= deviation[:, None]
                np.square(values, out=values)
                deviation -= mean
                self.scatter[name] += values.sum(axis=1) + deviation**2 * (self.draws * share)
                mean += deviation * share
        for name, values in stats.items():
            self._add_statistic(name, values, share)
        self.draws += n

    def _add_statistic(self, name: str, values: np.ndarray, share: float) -> None:
        if name in _SUMMED:
            total = values.sum(axis=1, dtype=np.int64)
            self.statistics[name] = self.statistics.get(name, 0) + total
        elif name in _AVERAGED:
            mean = values.mean(axis=1, dtype=float)
            previous = self.statistics.get(name, mean)
            self.statistics[name] = previous + (mean - previous) * share
        elif name not in _VECTORS:
            self.statistics[name] = np.array(values[:, -1])

    def tree(self, layout: ResultTree, attrs: Mapping[str, Any]) -> xr.DataTree:
        """Return the result of a run that keeps moments only.

        It has ``posterior_mean`` and ``posterior_sd``, ``(chain, *event)`` with the posterior's names and coordinates:
        the same as ``posterior.mean("draw")`` and ``.std("draw")`` of kept draws; ``sample_stats_total``, ``(chain,)``:
        sums of counts over the draws, ``draws``, means of ``lp`` and ``acceptance_rate``, and the last value of
        ``n_grad_total``; and the model's data groups.
        """
        unit = 1.0 if self.draws else np.nan
        mean = {name: (values + self.origin[name]) * unit for name, values in self.mean.items()}
        sd = {name: np.sqrt(values / max(self.draws, 1)) * unit for name, values in self.scatter.items()}
        base = layout.tree({"posterior": {name: values[:, None] for name, values in mean.items()}}, attrs)
        means = base["posterior"].to_dataset().isel(draw=0, drop=True)
        totals = self.statistics | {"draws": np.full(self.chains, self.draws)}
        groups = {
            "posterior_mean": means,
            "posterior_sd": means.copy(data={name: sd[str(name)] for name in means.data_vars}),
            "sample_stats_total": xr.Dataset(
                {name: ("chain", totals[name]) for name in sorted(totals)}, {"chain": means["chain"]}, means.attrs
            ),
        }
        data = {str(name): node.to_dataset() for name, node in base.children.items() if name != "posterior"}
        return xr.DataTree.from_dict(groups | data)

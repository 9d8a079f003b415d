"""A result of ``keep="moments"`` as the checks of a verdict read it: figures that need no draws."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pmm_mcmc.diagnostics.parameters import ROUNDING, labels_of
from pmm_mcmc.diagnostics.reading import Run
from pmm_mcmc.diagnostics.table import BIASES

__all__ = ["MomentsRun"]


class MomentsRun(Run):
    r"""A result of which only moments were kept.

    Of C chains of n draws with means :math:`\bar x_c` and unbiased variances :math:`s_c^2`,

    .. math:: \widehat R = \sqrt{\frac{n - 1}{n} + \frac{\operatorname{var}_c \bar x_c}{\frac1C \sum_c s_c^2}},

    neither split nor ranked: it does not see a drift that all chains share (Gelman and Rubin 1992).  Standard errors
    are from the spread between the means of chains; one chain has none.
    """

    means = "all means"

    def __init__(self, dt: Any):
        equilibration = dt["equilibration"] if "equilibration" in dt.children else None
        super().__init__(dt["posterior_mean"].dataset, dt["sample_stats_total"], equilibration=equilibration)
        self._sds = dt["posterior_sd"].dataset

    @property
    def draws(self) -> int:
        """Number of draws of each chain."""
        return int(self.stats["draws"][0])

    @cached_property
    def moments(self) -> pd.DataFrame:
        """``mean``, ``sd``, ``mcse_mean`` and ``r_hat`` of each parameter."""
        mean, sd = (
            np.concatenate([values.values.reshape(self.chains, -1) for values in group.data_vars.values()], axis=1)
            for group in (self.posterior, self._sds)
        )
        draws = np.float64(self.draws)
        count = self.chains * draws
        with np.errstate(all="ignore"):  # values that are not finite, constants, a single chain
            about = mean - mean[:1]
            total = np.sqrt((about.var(axis=0) + (sd**2).mean(axis=0)) * (count / (count - 1)))  # as ArviZ counts
            total[total <= ROUNDING * np.abs(mean[0])] = 0.0
            between = about.var(axis=0, ddof=1) if self.chains > 1 else np.full(mean.shape[1], np.nan)
            within = (sd**2).mean(axis=0) * draws / (draws - 1)
            r_hat = np.sqrt((draws - 1) / draws + between / within)
        columns = {
            "mean": mean[0] + about.mean(axis=0),
            "sd": total,
            "mcse_mean": np.sqrt(between / self.chains),
            "r_hat": np.where(total > 0.0, r_hat, np.nan),
        }
        return pd.DataFrame(columns, index=labels_of(self.posterior))

    @cached_property
    def table(self) -> pd.DataFrame:
        """The columns that checks ask for: no bias is measured."""
        errors = self.moments["mcse_mean"] / self.moments["sd"].where(self.moments["sd"] > 0.0)
        columns = {"sd_cv": self.moments["sd"], "within": errors, "between": errors}
        return self.moments.reindex(columns=[*BIASES, "r_hat"]).assign(**columns)

    @property
    def r_hat(self) -> pd.Series:
        """r_hat of each parameter."""
        return self.moments["r_hat"]

    def keep_apart(self, label: str) -> bool:
        """Return False: without draws it is not known."""
        return False

"""Summary of a run, and what a verdict asks of it, of which only moments were kept (:mod:`pmm_mcmc.run.moments`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pmm_mcmc.diagnostics.biases import Biases
from pmm_mcmc.diagnostics.breaks import noted
from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.estimate import Corrected
from pmm_mcmc.diagnostics.identity import holds
from pmm_mcmc.diagnostics.parameters import labels_of
from pmm_mcmc.diagnostics.reading import Run, walled
from pmm_mcmc.diagnostics.stein_moments import SteinMoments
from pmm_mcmc.diagnostics.table import sd_of
from pmm_mcmc.warmup.standard_errors import between_pieces
from pmm_mcmc.warmup.stein_identity import Identity

__all__ = ["MomentsRun", "moments_summary", "read_moments"]


class _Read(NamedTuple):
    """Moments of ``p`` parameters in each chain, and corrected ones of ``d`` unconstrained coordinates."""

    labels: list[str]
    draws: int
    mean: np.ndarray
    sd: np.ndarray
    own: np.ndarray
    coordinates: SteinMoments | None


def moments_summary(dt: Any) -> pd.DataFrame:
    r"""Summarise a result of which only moments were kept.

    Parameters
    ----------
    dt
        A result of :func:`pmm_mcmc.sample` with ``keep="moments"``.

    Returns
    -------
    pandas.DataFrame
        A row a parameter: ``mean`` and ``sd`` over all chains; ``mcse_mean``, from the chains' means; ``r_hat`` (see
        Notes).  For parameters that are unconstrained coordinates themselves also ``mean_corrected``,
        ``mcse_corrected``, ``bias`` and ``bias_se`` (NaN where not measurable), as in :func:`pmm_mcmc.summary`; NaN
        for the others.

    Raises
    ------
    ValueError
        If there are fewer than 20 draws, or fewer than 2 of each chain.

    Notes
    -----
    Of C chains of n draws with means :math:`\bar x_c` and unbiased variances :math:`s_c^2`,

    .. math:: \widehat R = \sqrt{\frac{n - 1}{n} + \frac{\operatorname{var}_c \bar x_c}{\frac1C \sum_c s_c^2}},

    neither split nor ranked: it does not see a drift that all chains share [1]_.  Standard errors are from the spread
    between chains, or between at most 64 groups of chains; one chain has none.

    References
    ----------
    .. [1] A. Gelman, D. B. Rubin, "Inference from iterative simulation using multiple sequences", Statistical Science
       7, 1992.
    """
    read = _read(dt)
    return _table(read)


def _read(dt: Any) -> _Read:
    chains, draws = dt["posterior_mean"].sizes["chain"], int(dt["sample_stats_total"]["draws"][0])
    if draws < 2 or chains * draws < CALIBRATION.fewest:
        raise ValueError(
            f"{chains} x {draws} draws are too few to be summarised: "
            f"draw at least {CALIBRATION.fewest}, 2 of each chain"
        )
    groups = [dt[name].dataset for name in ("posterior_mean", "posterior_sd")]
    labels = labels_of(groups[0])
    means, sds = (
        np.concatenate([values.values.reshape(chains, -1) for values in group.data_vars.values()], axis=1)
        for group in groups
    )
    if "stein" not in dt.children:
        return _Read(labels, draws, means, sds, np.full(len(labels), -1), None)
    stein = dt["stein"].dataset
    found = SteinMoments.of(stein)
    broken = noted(dt["posterior_mean"].attrs) is not None
    usable = found.pieces == 1 or holds(found.identity, found.pieces - 1, found.sd > 0.0)
    if not usable or broken or walled(dt["sample_stats_total"], chains * draws):
        found = found._replace(first=_plain(found.first), second=_plain(found.second))
    return _Read(labels, draws, means, sds, stein["coordinate_of"].values, found)


def _plain(estimate: Corrected) -> Corrected:
    """Undo a correction, for a density to which the Stein identity does not apply."""
    none = np.full_like(estimate.raw, np.nan)
    plain = estimate._replace(value=estimate.raw, se=estimate.raw_se, bias=none, bias_se=none)
    return plain._replace(used=np.zeros(len(none), bool), left=np.ones(len(none)))


def _table(read: _Read) -> pd.DataFrame:
    chains, n = len(read.mean), read.draws
    with np.errstate(all="ignore"):  # values that are not finite, constants, a single chain
        about = read.mean - read.mean[:1]
        of_all = about.var(axis=0) + (read.sd**2).mean(axis=0)
        sd = np.sqrt(of_all * (chains * n / (chains * n - 1)))  # as ArviZ counts
        within = (read.sd**2).mean(axis=0) * n / (n - 1)
        unknown = np.full(len(read.labels), np.nan)
        error = between_pieces(about, chains) if chains > 1 else unknown
        r_hat = np.sqrt((n - 1) / n + about.var(axis=0, ddof=1) / within) if chains > 1 else unknown
    columns = {
        "mean": read.mean[0] + about.mean(axis=0),
        "sd": sd,
        "mcse_mean": error,
        "r_hat": np.where(sd > 0.0, r_hat, np.nan),
    }
    measured = dict.fromkeys(("mean_corrected", "mcse_corrected", "bias", "bias_se"), unknown)
    if read.coordinates is not None:
        at = read.coordinates
        first, known, own = at.first, read.own >= 0, read.own
        found = {
            "mean_corrected": at.centre + at.scale * first.value,
            "mcse_corrected": at.scale * first.se,
            "bias": at.scale * first.bias,
            "bias_se": at.scale * first.bias_se,
        }
        measured = {name: np.where(known, values[own], np.nan) for name, values in found.items()}
    return pd.DataFrame(columns | measured, index=read.labels)


@dataclass
class MomentsRun(Run):
    """A result of which only moments were kept, for the checks that need no draws."""

    tree: Any = None

    @cached_property
    def chains(self) -> int:
        """Number of chains."""
        return int(self.posterior.sizes["chain"])

    @cached_property
    def draws(self) -> int:
        """Number of draws of each chain."""
        return int(self.stats["draws"][0])

    @cached_property
    def moments(self) -> _Read:
        """The moments."""
        return _read(self.tree)

    @property
    def _gradients(self) -> SteinMoments | None:
        """Corrected moments, where there is more than one piece to know their errors from."""
        at = self.moments.coordinates
        return at if at is not None and at.pieces > 1 else None

    @property
    def ours(self) -> bool:
        """Runs that keep moments are of this package."""
        return True

    @property
    def has_gradients(self) -> bool:
        """Whether there are gradients."""
        return self.moments.coordinates is not None

    @property
    def adjusted(self) -> bool:
        """Whether the posterior is the stationary law of the kernel."""
        return bool(self.attrs.get("adjusted", "acceptance_rate" in self.stats))

    @property
    def kind(self) -> str:
        """Noun for what biases are of."""
        return "unconstrained coordinates"

    @cached_property
    def table(self) -> pd.DataFrame:
        """Estimates of the parameters."""
        table = _table(self.moments)
        table["mcse_corrected"] = table["mcse_corrected"].fillna(table["mcse_mean"])
        return table.assign(sd_corrected=table["sd"])

    @cached_property
    def r_hat(self) -> pd.Series:
        """r_hat of each parameter."""
        return self.table["r_hat"].rename("r_hat")

    @cached_property
    def errors(self) -> pd.Series:
        """Standard errors of means in standard deviations."""
        return self.table["mcse_mean"] / self.table["sd"].where(self.table["sd"] > 0.0)

    @cached_property
    def biases(self) -> Biases:
        """Biases of the unconstrained coordinates."""
        return _biases(self.moments.coordinates)

    @cached_property
    def errors_of_sd(self) -> pd.Series:
        """Standard errors of standard deviations of coordinates."""
        at = self._gradients
        unknown = pd.Series(np.nan, index=self.table.index)
        if at is None:
            return unknown
        sd, error = sd_of(at.second)
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.where(at.second.used | (at.sd == 0.0), np.nan, error / np.where(sd > 0.0, sd, np.nan))
        own = self.moments.own
        return unknown.mask(own >= 0, pd.Series(error[own], index=self.table.index))

    @cached_property
    def identity(self) -> Identity | None:
        """The Stein identity of each unconstrained coordinate."""
        return None if self._gradients is None else self._gradients.identity

    @property
    def identity_degrees(self) -> int:
        """Degrees of freedom of standard errors."""
        return self.degrees

    @property
    def degrees(self) -> int:
        """Degrees of freedom of standard errors."""
        return 1 if self._gradients is None else self._gradients.pieces - 1

    @cached_property
    def moving(self) -> np.ndarray:
        """Which coordinates vary between draws."""
        return np.array(True) if self._gradients is None else self._gradients.sd > 0.0

    def coordinate(self, number: int) -> str:
        """Return the name of a coordinate."""
        return "" if self._gradients is None else self._gradients.labels[number]

    def break_place(self) -> tuple[str, float] | None:
        """Return the coordinate that the break is along; of the coordinates only centred ones have values here."""
        at = self.moments.coordinates
        return None if self.broken is None or at is None else (at.labels[self.broken.coordinate], np.nan)


def read_moments(dt: Any) -> MomentsRun:
    """Return what the checks of a verdict ask of a result of ``keep="moments"``."""
    equilibration = dt["equilibration"] if "equilibration" in dt.children else None
    return MomentsRun(dt["posterior_mean"].dataset, dt["sample_stats_total"], equilibration=equilibration, tree=dt)


def _biases(at: SteinMoments | None) -> Biases:
    """Return biases in posterior standard deviations; NaN for one chain, and without gradients."""
    if at is None or at.pieces == 1:
        labels = [] if at is None else at.labels
        unknown = np.full(max(len(labels), 1), np.nan)
        return Biases(labels, *(unknown,) * 5, np.isnan(unknown), unknown)
    # All are in units of the coordinates' scale.
    corrected_sd, _ = sd_of(at.second)
    sd = np.where(at.second.used, corrected_sd, at.sd)
    sd = np.where(sd > 0.0, sd, np.nan)
    of_sd = np.where(at.second.used, at.sd - corrected_sd, np.nan)
    of_sd_se = at.second.bias_se / np.maximum(2.0 * corrected_sd, 1e-300)
    left = np.where(at.first.used, at.first.left, 0.0)
    mean = np.abs(at.first.bias) / sd
    return Biases(
        at.labels, mean, at.first.bias_se / sd, left, np.abs(of_sd) / sd, of_sd_se / sd, at.sd > 0.0, at.first.se / sd
    )

"""The figures of a result that the checks of a verdict use, each computed once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import gammaincinv

from pmm_mcmc.diagnostics.biases import Biases, biases_of
from pmm_mcmc.diagnostics.breaks import Break
from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.folds import Folds
from pmm_mcmc.diagnostics.identity import holds, identity_of, whitened_identity
from pmm_mcmc.diagnostics.nested import nested_r_hat
from pmm_mcmc.diagnostics.noncentred import sampled_positions
from pmm_mcmc.diagnostics.parameters import Parameters, coordinate_of
from pmm_mcmc.diagnostics.table import selected, table_of
from pmm_mcmc.warmup.calibration import CALIBRATION as WARMUP
from pmm_mcmc.warmup.standard_errors import degrees_of_freedom, poisson_limit
from pmm_mcmc.warmup.stein_identity import Identity

__all__ = ["FINDINGS", "Run", "read", "scalars", "walled"]

# Attribute of a result: the findings of searches after the draws, as JSON: modes, breaks, necks.
FINDINGS = "findings"

_SAMPLE = ("chain", "draw")
_NONE = (
    "the result holds no gradients (sample_stats 'gradient' and 'unconstrained'): sample with a step method of "
    "pmm_mcmc that moves all continuous variables of the model, with keep_gradients=True"
)


def walled(stats: Any, draws: int) -> bool:
    """Return whether so many transitions met values that are not finite that the density may end at a wall."""
    limit = poisson_limit(CALIBRATION.unstable_rate * draws)
    return "model_failures" in stats and int(stats["model_failures"].sum()) > limit


@dataclass
class Run:
    """A result with ``p`` parameters and, if they were kept, positions and gradients ``(chain, draw, d)``.

    Attributes
    ----------
    posterior
        The parameters' draws, ``(chain, draw, ...)``.
    stats
        The group ``sample_stats``, empty if there is none.
    ladder, equilibration
        These groups, ``None`` if there are none.
    position
        Unconstrained positions, ``None`` if there are none.
    sampled_position, gradient
        Gradients, and the positions at which they are taken: non-centred ones if the run has them.
    """

    posterior: xr.Dataset
    stats: Any
    ladder: Any = None
    equilibration: Any = None
    position: Any = None
    gradient: Any = None
    sampled_position: Any = None

    # -- what the result is ------------------------------------------------------------------------------------------

    @cached_property
    def chains(self) -> int:
        """Number of chains."""
        return int(self.posterior.sizes["chain"])

    @cached_property
    def draws(self) -> int:
        """Number of draws of each chain."""
        return int(self.posterior.sizes["draw"])

    @property
    def attrs(self) -> dict[str, Any]:
        """Attributes of the posterior."""
        return dict(self.posterior.attrs)

    @property
    def of_package(self) -> bool:
        """Whether a method of this package made the draws."""
        return "n_grad_total" in self.stats or "gradient" in self.stats or self.ladder is not None

    def setting(self, name: str) -> np.ndarray | None:
        """Return a number of the setting: an attribute, or in results of PyMC's loop a statistic of each draw."""
        if name in self.attrs:
            return np.asarray(self.attrs[name])
        return self.stats[name].values if name in self.stats else None

    @property
    def has_gradients(self) -> bool:
        """Whether there are gradients."""
        return self.sampled_position is not None

    @property
    def adjusted(self) -> bool:
        """Whether the posterior is the stationary law of the kernel that made the draws, a method of this package."""
        if "adjusted" in self.attrs:
            return bool(self.attrs["adjusted"])
        return self.ladder is not None or (self.of_package and "acceptance_rate" in self.stats)

    @property
    def unadjusted(self) -> bool:
        """Whether the draws may have the bias of a step."""
        return self.of_package and not self.adjusted

    @cached_property
    def findings(self) -> dict[str, Any]:
        """The findings of searches after the draws, by name."""
        return json.loads(self.attrs.get(FINDINGS, "{}"))

    @property
    def broken(self) -> Break | None:
        """The jump or wall between draws, if there is one."""
        return Break.of(self.findings.get("breaks", {}))

    # -- parameters --------------------------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> Parameters:
        """The parameters with their draws."""
        return Parameters(self.posterior)

    @property
    def labels(self) -> list[str]:
        """Labels of the parameters."""
        return self.parameters.labels

    @cached_property
    def table(self) -> pd.DataFrame:
        """Estimates of the parameters that a verdict judges."""
        return table_of(self, selected(self))

    @property
    def means(self) -> str:
        """Phrase for the means of the table."""
        rows = len(self.table)
        count = len(self.parameters)
        return "all means" if rows == count else f"the {rows} of {count} means that were judged"

    @property
    def kind(self) -> str:
        """Noun for the rows of the table."""
        return "parameters" if len(self.table) == len(self.parameters) else "parameters judged"

    @cached_property
    def r_hat(self) -> pd.Series:
        """r_hat of each row of the table, nested for superchains, by its name; 1 of constants."""
        values = self.table["r_hat"].rename("r_hat")
        if self.chains > 1 and "superchains" in self.attrs:
            tree = xr.DataTree.from_dict({"posterior": self.posterior})
            values = nested_r_hat(tree).reindex(self.table.index).rename("nested r_hat")
        # Replicas of a ladder start together, and forget by restarts, which are counted.
        compared = (self.table["sd"] > 0.0) & (self.ladder is None)
        return values.where(compared, 1.0)

    @cached_property
    def errors(self) -> pd.Series:
        """Standard errors of plain means in standard deviations: ArviZ's, or that between chains if it is larger.

        Between a few chains it is noisy: it counts only where it is larger than chance makes it for any parameter, or
        where chains are too short for ArviZ's.
        """
        within = self.table["within"]
        between = self.table["between"]
        if self.chains == 1 or not len(self.table):
            return within
        degrees = self.chains - 1
        chi_square = 2.0 * gammaincinv(0.5 * degrees, 1.0 - WARMUP.chance / len(self.table))
        chance = np.sqrt(chi_square / degrees)
        return within.where(~(between > chance * within) & within.notna(), between)

    @property
    def effective(self) -> float:
        """Effective draws of the parameter that has fewest."""
        of_each = [1.0 / error**2 for error in self.errors if error > 0.0]
        return min(of_each, default=float(self.chains * self.draws))

    @cached_property
    def biases(self) -> Biases:
        """Biases of the rows of the table."""
        return biases_of(self.table)

    @cached_property
    def errors_of_sd(self) -> pd.Series:
        """Standard errors of standard deviations, in these; NaN of parameters whose tails may be too heavy for one.

        These are the transformed ones, deterministics, and children of hierarchies: those of a funnel are known by
        their scale.  Of the others a large error counts where gradients do not explain the standard deviation.
        """
        error = self.table["mcse_sd_cv"] / self.table["sd_cv"].where(self.table["sd_cv"] > 0.0)
        error = error.where(self.table["bias_of_sd"].isna() & (self.table["sd"] != 0.0))
        if self.position is None:
            return error * np.nan
        moved = np.append((self.sampled_position != self.position).any(axis=(0, 1)), True)
        number = {label: i for i, label in enumerate(self.labels)}
        for label in error.index[error > CALIBRATION.mcse]:
            values = self.parameters.read(np.array([number[label]]))
            if moved[coordinate_of(values, self.position)[0]]:
                error[label] = np.nan
        return error

    # -- gradients ---------------------------------------------------------------------------------------------------

    @cached_property
    def identity(self) -> Identity | None:
        """The Stein identity of each coordinate, if there are gradients."""
        return None if self.sampled_position is None else identity_of(self.sampled_position, self.gradient)

    @cached_property
    def whitened_identity(self) -> Identity | None:
        """The Stein identity of whitened coordinates, where these can be had."""
        return None if self.sampled_position is None else whitened_identity(self.sampled_position, self.gradient)

    @property
    def identity_degrees(self) -> int:
        """Degrees of freedom of the standard errors of the identity."""
        return degrees_of_freedom(self.chains, self.draws, CALIBRATION.identity_pieces)

    @property
    def degrees(self) -> int:
        """Degrees of freedom of standard errors of corrected estimates."""
        return degrees_of_freedom(self.chains, self.draws)

    @cached_property
    def moving(self) -> np.ndarray:
        """Which coordinates vary between draws."""
        with np.errstate(invalid="ignore"):  # what is infinite does not move
            return np.ptp(self.sampled_position, axis=(0, 1)) > 0.0

    @cached_property
    def folds(self) -> Folds:
        """The draws in folds, for corrected estimates."""
        return Folds(self.sampled_position, self.gradient)

    @cached_property
    def correctable(self) -> bool:
        """Whether there are gradients, and the Stein identity can correct the draws."""
        # Where the density jumps, or may end at a wall, the identity lacks a boundary term.
        if self.identity is None or self.broken is not None or walled(self.stats, self.chains * self.draws):
            return False
        if not np.isfinite(self.sampled_position).all():  # a scale so small that non-centred coordinates overflow
            return False
        return holds(self.identity, self.identity_degrees, self.moving)

    def coordinate_of(self, values: np.ndarray) -> np.ndarray:
        """Return the number of the coordinate that each parameter ``(chain, draw, n)`` equals in all draws, or -1."""
        return coordinate_of(values, self.sampled_position)

    # -- names -------------------------------------------------------------------------------------------------------

    def coordinate(self, number: int) -> str:
        """Return the parameter that a coordinate of the gradients is, or else that correlates with it most."""
        return self._closest(self.sampled_position, number)

    def unconstrained(self, number: int) -> str:
        """Return the parameter that an unconstrained coordinate is, or else that correlates with it most."""
        return self._closest(self.position, number)

    def _closest(self, positions: np.ndarray, number: int) -> str:
        x = positions[..., number]
        best = ""
        closest = -1.0
        judged_labels = set(self.table.index)
        numbers = np.array([i for i, label in enumerate(self.labels) if label in judged_labels])
        for indices, values in self.parameters.slabs(numbers):
            equal = coordinate_of(values, positions) == number
            if equal.any():
                return self.labels[indices[int(equal.argmax())]]
            flat = values.reshape(x.size, -1)
            with np.errstate(all="ignore"):
                correlation = np.nan_to_num(np.abs([np.corrcoef(x.ravel(), f)[0, 1] for f in flat.T]))
            if correlation.max() > closest:
                best = self.labels[indices[int(correlation.argmax())]]
                closest = float(correlation.max())
        return best

    def draws_of(self, label: str) -> np.ndarray:
        """Return all draws ``(n,)`` of a parameter."""
        return self.parameters.read(np.array([self.labels.index(label)])).ravel()

    def keep_apart(self, label: str) -> bool:
        """Return whether chains are in groups between which the draws of a parameter do not overlap."""
        if "draw" not in self.posterior.sizes:  # draws were not kept
            return False
        values = self.draws_of(label).reshape(self.chains, -1)
        ordered = values[np.argsort(values.mean(axis=1))]
        below = np.maximum.accumulate(ordered.max(axis=1))[:-1]
        above = np.minimum.accumulate(ordered.min(axis=1)[::-1])[::-1][1:]
        return bool((below < above).any())

    def place(self, flags: np.ndarray) -> str:
        """Return words for where draws ``(chain, draw)`` of a flag are, if their mean is 1 sd off that of all."""
        if self.position is None or not flags.any():
            return ""
        sd = np.maximum(self.position.std(axis=(0, 1)), 1e-300)
        offset = (self.position[flags].mean(axis=0) - self.position.mean(axis=(0, 1))) / sd
        worst = int(np.argmax(np.abs(offset)))
        if abs(offset[worst]) < 1.0:
            return ""
        side = "above" if offset[worst] > 0 else "below"
        return f", most of all where {self.unconstrained(worst)} is {abs(offset[worst]):.1f} sd {side} its mean"


def scalars(dt: Any, var_names: Any = None) -> xr.Dataset:
    """Return the posterior of a result, or some of its variables."""
    posterior = dt["posterior"].dataset
    if var_names is not None:
        posterior = posterior[[var_names] if isinstance(var_names, str) else list(var_names)]
    return posterior


def read(dt: Any, var_names: Any = None, *, strict: bool = False) -> Run:
    """Read a result.

    Parameters
    ----------
    dt
        A result of any sampler.
    var_names
        Parameters; all by default.
    strict
        Raise an error if there are no gradients, or fewer than 20 draws; by default they are ``None`` then.

    Raises
    ------
    ValueError
        If ``strict`` and there can be no corrected estimates.
    """
    posterior = scalars(dt, var_names)
    groups = {name: dt[name] if name in dt.children else None for name in ("ladder", "equilibration")}
    stats = dt["sample_stats"] if "sample_stats" in dt.children else {}
    run = Run(posterior, stats, **groups)
    with_gradients = "gradient" in stats and "unconstrained" in stats
    enough = run.draws >= CALIBRATION.fewest_of_chain and run.chains * run.draws >= CALIBRATION.fewest
    if strict and not with_gradients:
        raise ValueError(_NONE)
    if strict and not enough:
        raise ValueError(
            f"{run.chains} x {run.draws} draws are too few for a corrected estimate: draw at least {CALIBRATION.fewest}"
        )
    if with_gradients and enough:
        run.position = np.asarray(stats["unconstrained"].values, dtype=float)
        run.gradient = np.asarray(stats["gradient"].values, dtype=float)
        run.sampled_position = sampled_positions(stats)
    return run

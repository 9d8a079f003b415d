"""A result as the checks of a verdict read it: its draws, gradients and groups, and figures that are computed once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import gammaincinv

from pmm_mcmc.diagnostics.folds import Folds
from pmm_mcmc.diagnostics.identity import fails_as_at_an_edge, identity_of, whitened_identity
from pmm_mcmc.diagnostics.nested import nested_r_hat
from pmm_mcmc.diagnostics.parameters import Parameters, checked, coordinate_of
from pmm_mcmc.diagnostics.table import selected, table_of
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.diagnostics.unadjusted import biases_of
from pmm_mcmc.warmup.other_modes import OTHER_MODES, OtherModes
from pmm_mcmc.warmup.standard_errors import degrees_of_freedom, poisson_limit
from pmm_mcmc.warmup.stein_identity import Identity
from pmm_mcmc.warmup.thresholds import THRESHOLDS as WARMUP

__all__ = ["FINDINGS", "Run", "read"]

# Attribute of a result: the findings of searches after the draws, as JSON: modes, jump and necks.
FINDINGS = "findings"


@dataclass
class Run:
    """A result of sampling, with positions and gradients ``(chain, draw, d)`` if they were kept.

    Attributes
    ----------
    posterior
        The parameters' draws, ``(chain, draw, ...)``.
    stats
        The group ``sample_stats``, empty if there is none.
    ladder, equilibration
        These groups, ``None`` if there are none.
    position
        Unconstrained positions of the model; ``None`` without gradients.
    sampled_position, gradient
        Gradients, and the positions with respect to which they are taken: non-centred ones if the run has them.
    """

    posterior: xr.Dataset
    stats: Any
    ladder: Any = None
    equilibration: Any = None
    position: Any = None
    gradient: Any = None
    sampled_position: Any = None

    # -- what the result is ------------------------------------------------------------------------------------------

    @property
    def chains(self) -> int:
        """Number of chains."""
        return int(self.posterior.sizes["chain"])

    @property
    def draws(self) -> int:
        """Number of draws of each chain."""
        return int(self.posterior.sizes["draw"])

    @property
    def enough(self) -> bool:
        """Whether there are draws enough for a corrected estimate."""
        return self.draws >= THRESHOLDS.fewest_of_chain and self.chains * self.draws >= THRESHOLDS.fewest

    @property
    def of_package(self) -> bool:
        """Whether a method of this package made the draws."""
        return "n_grad_total" in self.stats or "gradient" in self.stats or self.ladder is not None

    @property
    def transitions(self) -> int:
        """Number of transitions of all chains, 0 where it is not known."""
        if "steps_per_draw" in self.posterior.attrs:
            return int(self.posterior.attrs["steps_per_draw"] * self.chains * self.draws)
        return int(self.stats["steps_per_draw"].sum()) if "steps_per_draw" in self.stats else 0

    @property
    def has_gradients(self) -> bool:
        """Whether the result holds gradients."""
        return self.sampled_position is not None

    @property
    def adjusted(self) -> bool:
        """Whether the posterior is the stationary law of the kernel that made the draws, a method of this package."""
        if "adjusted" in self.posterior.attrs:
            return bool(self.posterior.attrs["adjusted"])
        return self.ladder is not None or (self.of_package and "acceptance_rate" in self.stats)

    @property
    def unadjusted(self) -> bool:
        """Whether the draws may have the bias of a step."""
        return self.of_package and not self.adjusted

    @cached_property
    def findings(self) -> dict[str, Any]:
        """The findings of searches after the draws, by name."""
        return json.loads(self.posterior.attrs.get(FINDINGS, "{}"))

    @property
    def jumps(self) -> bool:
        """Whether the log density jumps between draws."""
        return bool(self.findings.get("jump", 0.0))

    @property
    def other_modes(self) -> OtherModes | None:
        """What the search for modes has met elsewhere; of a search by each chain, as in PyMC's loop, the heaviest."""
        searches = []
        if "modes" in self.findings:
            searches = [OtherModes(*(self.findings["modes"][name] for name in OTHER_MODES))]
        elif "other_modes" in self.stats:
            last = [np.reshape(self.stats[name].values, (self.chains, -1))[:, -1].tolist() for name in OTHER_MODES]
            searches = [OtherModes(*search) for search in zip(*last, strict=True)]
        return max((each for each in searches if each.mass > 0.0), key=lambda each: each.mass, default=None)

    # -- parameters --------------------------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> Parameters:
        """The parameters with their draws."""
        return Parameters(self.posterior)

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

    @cached_property
    def r_hat(self) -> pd.Series:
        """r_hat of each row of the table, nested for superchains, by its name; 1 of constants."""
        values = self.table["r_hat"].rename("r_hat")
        if self.chains > 1 and "superchains" in self.posterior.attrs:
            tree = xr.DataTree.from_dict({"posterior": self.posterior})
            values = nested_r_hat(tree).reindex(self.table.index).rename("nested r_hat")
        # Replicas of a ladder start together, and forget by restarts, which are counted.
        compared = (self.table["sd"] > 0.0) & (self.ladder is None)
        return values.where(compared, 1.0)

    @cached_property
    def errors(self) -> pd.Series:
        """Standard errors of plain means in standard deviations: ArviZ's or, if it is larger, that between chains.

        That between a few chains is noisy: it counts only where it is larger than chance makes it for any parameter, or
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

    @cached_property
    def errors_of_sd(self) -> pd.Series:
        """Relative standard errors of standard deviations that gradients do not explain; else NaN.

        They are also NaN of parameters whose tails may be too heavy for one: transformed ones, deterministics, and
        children of hierarchies (those of a funnel are known by their scale).
        """
        error = self.table["mcse_sd_cv"] / self.table["sd_cv"].where(self.table["sd_cv"] > 0.0)
        error = error.where(self.table["bias_of_sd"].isna() & (self.table["sd"] != 0.0))
        if self.position is None:
            return error * np.nan
        moved = np.append((self.sampled_position != self.position).any(axis=(0, 1)), True)
        for label in error.index[error > THRESHOLDS.mcse]:
            if moved[coordinate_of(self.draws_of(label)[..., None], self.position)[0]]:
                error[label] = np.nan
        return error

    @property
    def harmless(self) -> int:
        """Number of transitions that may be refused, or diverge, without harm.

        Such a transition keeps a chain out of a region in which it would have stayed for about an autocorrelation time,
        that is for one effective draw.  So the share of the posterior that is missing is about the number of these
        transitions over that of effective draws, of the parameter that has fewest.  The limit allows for chance: one
        event in a short run is no reason.
        """
        of_each = [1.0 / error**2 for error in self.errors if error > 0.0]
        effective = min(of_each, default=float(self.chains * self.draws))
        return _beyond_chance(effective)

    @cached_property
    def biases(self) -> pd.DataFrame:
        """Biases of the rows of the table."""
        return biases_of(self.table)

    # -- gradients ---------------------------------------------------------------------------------------------------

    @cached_property
    def identity(self) -> Identity | None:
        """Stein's identity of each coordinate, if there are gradients."""
        return None if self.sampled_position is None else identity_of(self.sampled_position, self.gradient)

    @cached_property
    def whitened_identity(self) -> Identity | None:
        """Stein's identity of whitened coordinates, where these can be had."""
        return None if self.sampled_position is None else whitened_identity(self.sampled_position, self.gradient)

    @property
    def identity_degrees(self) -> int:
        """Degrees of freedom of the standard errors of the identity."""
        return degrees_of_freedom(self.chains, self.draws, THRESHOLDS.identity_pieces)

    @property
    def has_edge(self) -> bool:
        """Whether the identity fails as at an edge or a jump of the density."""
        if self.identity is None:
            return False
        with np.errstate(invalid="ignore"):  # what is infinite does not move
            moving = np.ptp(self.sampled_position, axis=(0, 1)) > 0.0
        return fails_as_at_an_edge(self.identity, self.identity_degrees, moving)

    @cached_property
    def folds(self) -> Folds:
        """The draws in folds, for corrected estimates."""
        return Folds(self.sampled_position, self.gradient)

    @cached_property
    def correctable(self) -> bool:
        """Whether Stein's identity can correct the draws."""
        # Where the density jumps, or may end, the identity lacks a boundary term.
        failures = int(self.stats["model_failures"].sum()) if "model_failures" in self.stats else 0
        if not self.has_gradients or self.jumps or failures > _beyond_chance(self.chains * self.draws):
            return False
        # A scale so small that non-centred coordinates overflow.
        return bool(np.isfinite(self.sampled_position).all()) and not self.has_edge

    # -- names -------------------------------------------------------------------------------------------------------

    def coordinate(self, number: int) -> str:
        """Return the label of the parameter that a coordinate of the gradients is, or that correlates with it most."""
        return self._closest(self.sampled_position, number)

    def model_coordinate(self, number: int) -> str:
        """Return the label of the parameter that a coordinate of the model is, or that correlates with it most."""
        return self._closest(self.position, number)

    def _closest(self, positions: np.ndarray, number: int) -> str:
        x = positions[..., number]
        labels = self.parameters.labels
        best = ""
        closest = -1.0
        numbers = np.flatnonzero(np.isin(labels, self.table.index))
        for indices, values in self.parameters.slabs(numbers):
            equal = coordinate_of(values, positions) == number
            if equal.any():
                return labels[indices[int(equal.argmax())]]
            flat = values.reshape(x.size, -1)
            with np.errstate(all="ignore"):
                correlation = np.nan_to_num(np.abs([np.corrcoef(x.ravel(), f)[0, 1] for f in flat.T]))
            if correlation.max() > closest:
                best = labels[indices[int(correlation.argmax())]]
                closest = float(correlation.max())
        return best

    def draws_of(self, label: str) -> np.ndarray:
        """Return the draws ``(chain, draw)`` of a parameter."""
        return self.parameters.read(self.parameters.labels.index(label))

    def keep_apart(self, label: str) -> bool:
        """Return whether the chains are in groups between which the draws of a parameter do not overlap."""
        values = self.draws_of(label)
        ordered = values[np.argsort(values.mean(axis=1))]
        below = np.maximum.accumulate(ordered.max(axis=1))[:-1]
        above = np.minimum.accumulate(ordered.min(axis=1)[::-1])[::-1][1:]
        return bool((below < above).any())

    def place(self, flags: np.ndarray) -> str:
        """Return words for where the flagged draws ``(chain, draw)`` are, if their mean is 1 sd off that of all."""
        if self.position is None or not flags.any():
            return ""
        sd = np.maximum(self.position.std(axis=(0, 1)), 1e-300)
        offset = (self.position[flags].mean(axis=0) - self.position.mean(axis=(0, 1))) / sd
        worst = int(np.argmax(np.abs(offset)))
        if abs(offset[worst]) < 1.0:
            return ""
        side = "above" if offset[worst] > 0 else "below"
        return f", most of all where {self.model_coordinate(worst)} is {abs(offset[worst]):.1f} sd {side} its mean"


def _beyond_chance(draws: float) -> int:
    """Return the number of transitions that may fail for so many draws, with chance."""
    return poisson_limit(THRESHOLDS.unstable_rate * draws)


def read(dt: Any) -> Run:
    """Read a result of any sampler that kept its draws."""
    checked(dt)
    groups = {name: dt[name] if name in dt.children else None for name in ("ladder", "equilibration")}
    run = Run(dt["posterior"].dataset, dt["sample_stats"] if "sample_stats" in dt.children else {}, **groups)
    if "gradient" in run.stats and "unconstrained" in run.stats and run.enough:
        sampled = "noncentred" if "noncentred" in run.stats else "unconstrained"
        run.position = np.asarray(run.stats["unconstrained"].values, dtype=float)
        run.sampled_position = np.asarray(run.stats[sampled].values, dtype=float)
        run.gradient = np.asarray(run.stats["gradient"].values, dtype=float)
    return run

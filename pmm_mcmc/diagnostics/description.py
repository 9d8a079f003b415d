"""The sentence of a verdict without reasons: how well the means are known, and further remarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.diagnostics.unadjusted import ADJUST
from pmm_mcmc.warmup.other_modes import OtherModes

if TYPE_CHECKING:
    from pmm_mcmc.diagnostics.reading import Run

__all__ = ["COLUMNS", "description", "unvisited_mode"]

# The columns of a summary that ArviZ does not have, in a line.
COLUMNS = "mean_cv is the mean, with less noise by control variates, and mcse_cv its standard error"


def description(run: Run) -> str:
    """Return the sentence of a run without reasons."""
    text = _corrected_means(run) if run.unadjusted else _means(run)
    error = run.errors_of_sd
    if (error > THRESHOLDS.mcse).any():
        label = error.idxmax()
        text += f" The sd of {label} is known to {100.0 * error[label]:.0f} % at best: if it matters, draw more."
    mode = unvisited_mode(run) if run.of_package else ""
    if mode:
        text += f" {mode[0].upper()}{mode[1:]}: pmm.temper() would weigh it."
    return text


def _means(run: Run) -> str:
    """Return how well means are known."""
    table = run.table
    moving = table["sd"] != 0.0
    if not moving.any():
        return "nothing varies."
    error = (table["mcse_cv"] / table["sd_cv"]).fillna(run.errors)[moving]  # moments have plain errors alone
    if not error.notna().any():
        return "no mean is finite: look at how parameters are computed."
    within = f"within {max(1.0, np.ceil(200.0 * error.max())):.0f} % of a posterior sd, with 95 % confidence each"
    if len(error) > 1:
        within += f"; {error.idxmax()} is known least"
    unknown = error.index[error.isna()]
    if len(unknown):
        text = f"{unknown[0]} is not finite everywhere: look at how it is computed"
        return f"means are {within}{_constants(run)}; {text}."
    return f"{run.means} are {within}{_constants(run)}."


def _corrected_means(run: Run) -> str:
    """Return how well the corrected means of unadjusted draws are known, and whose bias is not measurable."""
    biases = run.biases
    bounds = biases["two_errors"]
    if not bounds.notna().any():
        return "nothing varies."
    within = f"within {max(1.0, np.ceil(100.0 * bounds.max())):.0f} % of a posterior sd, with 95 % confidence each"
    text = f"{run.means.replace('means', 'corrected means')} are {within}{_constants(run)}."
    error = (run.table["mcse_cv"] / run.table["sd_cv"])[biases.index]
    unknown = error[bounds.isna()].fillna(np.inf).sort_values(ascending=False, kind="stable")
    if len(unknown):
        names = _abbreviated(list(unknown.index))
        text = f"corrected means are {within}{_constants(run)}; the bias of {names} is not measurable: {ADJUST}."
    return text


def _constants(run: Run) -> str:
    """Return words on the parameters that do not vary."""
    labels = list(run.table.index[run.table["sd"] == 0.0])
    return f"; {_abbreviated(labels)} {'is' if len(labels) == 1 else 'are'} constant" if labels else ""


def _abbreviated(labels: list[str]) -> str:
    """Return the names of up to three parameters, or two and the number of the others."""
    if len(labels) > 3:
        labels = [*labels[:2], f"{len(labels) - 2} more"]
    *others, last = labels
    return f"{', '.join(others)} and {last}" if others else last


def unvisited_mode(run: Run) -> str:
    """Return words for the mode that no chain visits, empty if there is none or the draws are in it."""
    modes = run.other_modes
    if modes is None:
        return ""
    share = "nearly all of the mass" if modes.mass > 0.99 else f"about {100.0 * modes.mass:.2g} % of the mass"
    if modes.hidden:
        return f"{share} is where the warm-up had no draw, around the chains or narrow within them"
    place = ""
    if run.position is not None:
        offset = _offset(modes, run.position[..., modes.coordinate].ravel())
        if not offset:
            return ""
        side = "above" if offset > 0.0 else "below"
        place = f", {abs(offset):.0f} sd {side} theirs in {run.model_coordinate(modes.coordinate)},"
    return f"chains do not move to another mode{place} that has {share}"


def _offset(modes: OtherModes, x: np.ndarray) -> float:
    """Return by how many sd another mode is off the densest part of draws ``(n,)`` of a coordinate; 0 if they visit it.

    That draws are in it and elsewhere shows that chains move; how often, their agreement shows.
    """
    # The shortest interval with a quarter of the draws; of a Gaussian it is .637 sd wide.
    ordered = np.sort(x)
    quarter = len(x) // 4
    widths = ordered[quarter:] - ordered[: len(x) - quarter]
    start = int(widths.argmin())
    centre = float(ordered[start] + ordered[start + quarter]) / 2.0
    sd = max(float(widths[start]) / 0.637, 1e-300)
    distances = np.abs(x - modes.position) / sd
    in_chains = (distances > THRESHOLDS.apart).mean()
    in_mode = (distances < 0.5 * THRESHOLDS.apart).mean()
    if in_mode > THRESHOLDS.visited * modes.mass and in_chains > THRESHOLDS.visited * (1.0 - modes.mass):
        return 0.0
    offset = (modes.position - centre) / sd
    return offset if abs(offset) >= 1.0 else 0.0

"""Modes that scouts met and no chain has visited (:mod:`pmm_mcmc.warmup.scouts`): reasons and words of the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.statement import Reason
from pmm_mcmc.warmup.other_modes import OTHER_MODES

if TYPE_CHECKING:
    from pmm_mcmc.diagnostics.reading import Run

__all__ = ["mode_description", "mode_reasons", "unequal_modes"]


class _Mode(NamedTuple):
    """Another mode: its mass, an unconstrained coordinate along which it is apart, its value, if chains visit it.

    The coordinate is -1 for mass that is no mode of its own (:mod:`pmm_mcmc.warmup.hidden_mass`).
    """

    mass: float
    coordinate: int
    value: float
    visited: bool

    @property
    def hidden(self) -> bool:
        """Whether it is mass that is no mode of its own."""
        return self.coordinate < 0


def _other_mode(run: Run) -> _Mode | None:
    """Return the mode with most mass that no chain visits, or else that with most mass."""
    if "modes" in run.findings:
        mode = _Mode(*(run.findings["modes"][name] for name in OTHER_MODES))
        return mode._replace(visited=bool(mode.visited)) if mode.mass > 0.0 else None
    if "other_modes" not in run.stats:  # where results of PyMC's loop have them
        return None
    of_chain, coordinate, value, visited = (
        np.reshape(run.stats[name].values, (run.chains, -1))[:, -1] for name in OTHER_MODES
    )
    of_chain = np.nan_to_num(of_chain)
    if not of_chain.any():
        return None
    unvisited = np.where(visited, 0.0, of_chain)
    worst = int(np.argmax(unvisited if unvisited.any() else of_chain))
    return _Mode(float(of_chain[worst]), int(coordinate[worst]), float(value[worst]), bool(visited[worst]))


def _unvisited(run: Run) -> tuple[float, str]:
    """Return the mass of a mode that no chain visits, and words on it; 0 where there is none."""
    mode = _other_mode(run)
    if mode is None or mode.visited:
        return 0.0, ""
    share = "nearly all of the mass" if mode.mass > 0.99 else f"about {100.0 * mode.mass:.2g} % of the mass"
    if mode.hidden:
        return mode.mass, f"{share} is where the warm-up had no draw, around the chains or narrow within them"
    place = ""
    if run.position is not None:
        x = run.position[..., mode.coordinate].ravel()
        centre, sd = _densest(x)
        offset = (mode.value - centre) / sd
        distances = np.abs(x - mode.value) / sd
        in_chains = (distances > CALIBRATION.apart).mean()
        in_mode = (distances < 0.5 * CALIBRATION.apart).mean()
        if in_mode > CALIBRATION.visited * mode.mass and in_chains > CALIBRATION.visited * (1.0 - mode.mass):
            return 0.0, ""  # chains have been in both, and their agreement judges how often
        if abs(offset) < 1.0:
            return 0.0, ""  # where most draws of the run are is where the warm-up had none
        side = "above" if offset > 0.0 else "below"
        place = f", {abs(offset):.0f} sd {side} theirs in {run.unconstrained(mode.coordinate)},"
    return mode.mass, f"chains do not move to another mode{place} that has {share}"


def mode_reasons(run: Run) -> list[Reason]:
    """Return a reason if a mode that no chain visits has a hundredth of the mass of theirs."""
    mass, text = _unvisited(run)
    ratio = mass / max(1.0 - mass, 1e-300)
    if ratio <= CALIBRATION.mass:
        return []
    remedy = "reparametrise so that there is one mode, or use pmm.temper(), which moves between modes"
    mode = _other_mode(run)
    if mode is not None and mode.hidden:
        remedy = "reparametrise, or try pmm.temper(), whose verdict looks there too"
    elif ratio > 0.9 and abs(ratio / round(ratio) - 1.0) < 0.1:
        remedy = (
            "modes of equal mass are often relabellings of exchangeable components: order these; otherwise use "
            "pmm.temper(), which moves between modes"
        )
    if "restart" in run.stats:
        remedy = "take more chains, or a reference from which that mode is met"
    return [Reason("modes", f"{text}, limit 1 %", remedy, None, mass, CALIBRATION.mass)]


def mode_description(run: Run) -> str:
    """Return words on a mode that no chain visits and that has too little mass for a reason."""
    _, text = _unvisited(run)
    return f" {text[0].upper()}{text[1:]}." if text else ""


def unequal_modes(run: Run, remedy: str) -> list[Reason]:
    """Return a reason if chains move between modes of unequal width."""
    mode = _other_mode(run)
    if mode is None or not mode.visited:
        return []
    parameter = run.unconstrained(mode.coordinate) if run.position is not None else None
    where = f", apart in {parameter}" if parameter else ""
    text = f"chains move between modes of unequal width{where}: a step shifts their weights, and no gradient shows it"
    return [Reason("unmeasured", text, remedy, parameter, mode.mass)]


def _densest(x: np.ndarray) -> tuple[float, float]:
    """Return centre and sd of the Gaussian that has a quarter of the draws in the shortest interval that has one."""
    ordered = np.sort(x)
    quarter = len(x) // 4
    widths = ordered[quarter:] - ordered[: len(x) - quarter]
    start = int(widths.argmin())
    return float(ordered[start] + ordered[start + quarter]) / 2.0, max(float(widths[start]) / 0.637, 1e-300)

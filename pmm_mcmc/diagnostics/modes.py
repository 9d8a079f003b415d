"""Modes that scouts found and no chain has visited (:mod:`pmm_mcmc.warmup.scouts`): reason and words of the verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.statement import Reason
from pmm_mcmc.engines.arguments import OTHER_MODES

__all__ = ["ATTRIBUTE", "mode_reasons"]

# The attribute of a result that reports other modes; results of PyMC's loop have them among the statistics.
ATTRIBUTE = "other_modes"


def mode_reasons(
    stats: Any, position: np.ndarray | None = None, name: Callable[[int], str] = str, exact: bool = False
) -> tuple[list[Reason], str]:
    """Return a reason if other modes have mass, and words on them if it is too little for one.

    Parameters
    ----------
    stats
        Statistics of the draws, ``(chain, draw)`` or ``(chain,)``.
    position : (chain, draw, d), optional
        Unconstrained draws, if they were kept.
    name
        Function that returns the parameter of a coordinate.
    exact
        Whether no step shifts the weights of modes.
    """
    if "other_modes" not in stats:
        return [], ""
    of_chain, where, at, shared = (
        np.reshape(stats[which].values, (stats[which].sizes["chain"], -1))[:, -1] for which in OTHER_MODES
    )
    of_chain = np.nan_to_num(of_chain)
    if not of_chain.any():
        return [], ""
    unvisited = np.where(shared, 0.0, of_chain)
    worst = int(np.argmax(unvisited if unvisited.any() else of_chain))
    mass, coordinate = float(of_chain[worst]), int(where[worst])
    if shared[worst]:
        return ([] if exact else [_weights(name(coordinate) if position is not None else "", mass)]), ""
    place = ""
    if position is not None:
        x = position[..., coordinate].ravel()
        centre, sd = _densest(x)
        away, distances = (at[worst] - centre) / sd, np.abs(x - at[worst]) / sd
        here, there = (distances > CALIBRATION.apart).mean(), (distances < 0.5 * CALIBRATION.apart).mean()
        if there > CALIBRATION.visited * mass and here > CALIBRATION.visited * (1.0 - mass):
            return [], ""  # chains have been in both, and their agreement judges how often
        side = "above" if away > 0.0 else "below"
        place = f", {abs(away):.0f} sd {side} theirs in {name(coordinate)},"
    percent = f"{100.0 * mass:.2g} %"
    words = f"chains do not move to another mode{place} that has about {percent} of the mass"
    ratio = mass / max(1.0 - mass, 1e-300)
    if ratio <= CALIBRATION.mass:
        return [], f" {words[0].upper()}{words[1:]}."
    remedy = "reparametrise so that there is one mode, or use pmm.sample(ladder='auto'), which moves between modes"
    if ratio > 0.9 and abs(ratio / round(ratio) - 1.0) < 0.1:
        remedy = (
            "modes of equal mass are often relabellings of exchangeable components: order these; otherwise use "
            "pmm.sample(ladder='auto'), which moves between modes"
        )
    if "restart" in stats:
        remedy = "take more chains, or a reference from which that mode is met"
    return [Reason("modes", f"{words}, limit 1 %", remedy, None, mass, CALIBRATION.mass)], ""


def _weights(parameter: str, mass: float) -> Reason:
    """Return the reason for modes of unequal width that chains move between."""
    where = f", apart in {parameter}" if parameter else ""
    words = f"chains move between modes of unequal width{where}: a step shifts their weights, and no gradient shows it"
    remedy = "use pmm.sample(exact=True), whose steps have no bias"
    return Reason("weights", words, remedy, parameter or None, mass)


def _densest(x: np.ndarray) -> tuple[float, float]:
    """Return centre and sd of the Gaussian that has a quarter of the draws in the shortest interval that has one."""
    ordered, quarter = np.sort(x), len(x) // 4
    widths = ordered[quarter:] - ordered[: len(x) - quarter]
    first = int(widths.argmin())
    return float(ordered[first] + ordered[first + quarter]) / 2.0, max(float(widths[first]) / 0.637, 1e-300)

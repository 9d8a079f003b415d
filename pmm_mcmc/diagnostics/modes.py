"""Modes that scouts found and no chain has visited (:mod:`pmm_mcmc.warmup.scouts`): reason and words of the verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.statement import Reason

__all__ = ["mode_reasons"]


def mode_reasons(
    stats: Any, position: np.ndarray | None = None, name: Callable[[int], str] = str
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
    """
    if "other_modes" not in stats:
        return [], ""
    of_chain, where, at = (
        np.reshape(stats[which].values, (stats[which].sizes["chain"], -1))[:, -1]
        for which in ("other_modes", "other_mode_coordinate", "other_mode_position")
    )
    if not np.nan_to_num(of_chain).any():
        return [], ""
    worst = int(np.nanargmax(of_chain))
    mass, coordinate = float(of_chain[worst]), int(where[worst])
    place = ""
    if position is not None:
        x = position[..., coordinate]
        sd, away = float(np.median(x.std(axis=1))), at[worst] - x.mean(axis=1)
        furthest = float(away[np.abs(away).argmax()]) / max(sd, 1e-300)
        near = float((np.abs(x - at[worst]) < 3.0 * sd).mean())
        if abs(furthest) > CALIBRATION.apart and near > CALIBRATION.visited * mass:
            return [], ""  # chains have been there, and their agreement judges how often
        side = "above" if furthest > 0.0 else "below"
        place = f", {abs(furthest):.0f} sd {side} the mean of {name(coordinate)},"
    percent = f"{100.0 * mass:.2g} %"
    words = f"another mode{place} has about {percent} of the mass and no chain has visited it"
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

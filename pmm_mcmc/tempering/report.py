"""The group ``ladder`` of a result: log evidence, barrier, rates of swaps, restarts, weights of modes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from pmm_mcmc.langevin.tempering import barriers
from pmm_mcmc.tempering.mode_weights import MOST_MODES

if TYPE_CHECKING:
    from pmm_mcmc.tempering.ladder import Ladder

__all__ = ["LADDER", "report_of"]

LADDER = "ladder"
_EVIDENCE = {
    "log_evidence": "bennett",
    "log_evidence_forward": "forward",
    "log_evidence_backward": "backward",
    "forward_minus_backward": "gap",
}


def report_of(ladder: Ladder) -> xr.Dataset:
    """Return the report of a ladder, without names of coordinates; there are ``MOST_MODES`` modes, the others NaN."""
    rung = ("rung",)
    pair = ("pair",)
    mode = ("mode",)
    d = ladder.position.shape[1]
    rejected = np.full(ladder.pairs, np.nan) if ladder.done == 0 else 1.0 - ladder.swapped / ladder.done
    evidence = None if ladder.sums is None or ladder.done == 0 else ladder.sums.evidence()
    data: dict[str, tuple[tuple[str, ...], np.ndarray]] = {}
    for name, of in _EVIDENCE.items():
        data[name] = (), np.asarray(np.nan if evidence is None else getattr(evidence, of))
        data[f"{name}_se"] = (), np.asarray(np.nan if evidence is None else getattr(evidence, f"{of}_se"))
    settings = ladder.settings[1:]
    data |= {
        "temperature": (rung, ladder.betas),
        "barrier": (rung, np.concatenate([[0.0], np.cumsum(barriers(rejected))])),
        "swap_rate": (pair, 1.0 - rejected),
        "gaussians": ((), np.asarray(0 if ladder.mixture is None else len(ladder.mixture.mean))),
        "restarts": ((), np.asarray(ladder.trips.restarts.sum())),
        "round_trips": ((), np.asarray(ladder.trips.round_trips.sum())),
        "step_size": (pair, np.array([setting.step_size for setting in settings])),
        "K": (pair, np.array([setting.K for setting in settings])),
        "trajectories": (pair, np.array([setting.steps_per_draw for setting in settings])),
        "gradients": ((), np.asarray(float(ladder.n_grad.sum()))),
        "tuning_gradients": ((), np.asarray(float(ladder.tuning_gradients))),
        "mode_weight": (mode, np.full(MOST_MODES, np.nan)),
        "mode_weight_se": (mode, np.full(MOST_MODES, np.nan)),
        "mode_restarts": (mode, np.zeros(MOST_MODES, np.int64)),
        "mode_centre": (("mode", "coordinate"), np.full((MOST_MODES, d), np.nan)),
    }
    if ladder.modes is not None:
        for name in ("weight", "weight_se", "restarts", "centre"):
            data[f"mode_{name}"][1][: len(ladder.modes.weight)] = getattr(ladder.modes, name)
    return xr.Dataset(data, {"mode": np.arange(MOST_MODES), "rung": np.arange(ladder.pairs + 1)})

"""The group ``ladder`` of a result: log evidence, barrier, rates of swaps, restarts, weights of modes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from pmm_mcmc.diagnostics.mode_weights import MOST_MODES, Modes
from pmm_mcmc.langevin.tempering import barriers
from pmm_mcmc.model.mixture import GaussianMixture
from pmm_mcmc.run.ladder_state import Ladder

__all__ = ["LADDER", "with_modes", "without_draws"]

LADDER = "ladder"
_EVIDENCE = {
    "log_evidence": "bennett",
    "log_evidence_forward": "forward",
    "log_evidence_backward": "backward",
    "forward_minus_backward": "gap",
}


def without_draws(ladder: Ladder, names: Sequence[str]) -> xr.Dataset:
    """Return the report of a ladder without its draws; the modes are NaN."""
    rung = ("rung",)
    pair = ("pair",)
    mode = ("mode",)
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
        "gaussians": ((), np.asarray(len(GaussianMixture.of_flat(ladder.numbers, len(names)).mean))),
        "restarts": ((), np.asarray(ladder.restarts.sum())),
        "round_trips": ((), np.asarray(ladder.round_trips.sum())),
        "step_size": (pair, np.array([setting.step_size for setting in settings])),
        "K": (pair, np.array([setting.K for setting in settings])),
        "trajectories": (pair, np.array([setting.steps_per_draw for setting in settings])),
        "gradients": ((), np.asarray(float(ladder.n_grad.sum()))),
        "tuning_gradients": ((), np.asarray(float(ladder.tuning_gradients))),
        "mode_weight": (mode, np.full(MOST_MODES, np.nan)),
        "mode_weight_se": (mode, np.full(MOST_MODES, np.nan)),
        "mode_restarts": (mode, np.zeros(MOST_MODES, np.int64)),
        "mode_centre": (("mode", "coordinate"), np.full((MOST_MODES, len(names)), np.nan)),
    }
    return xr.Dataset(
        data,
        {"coordinate": list(names), "mode": np.arange(MOST_MODES), "rung": np.arange(ladder.pairs + 1)},
    )


def with_modes(report: xr.Dataset, modes: Modes, centre: np.ndarray) -> xr.Dataset:
    """Return the report with weights of modes; ``centre`` ``(m, d)`` are their means in the model's coordinates."""
    out = report.copy(deep=True)
    m = len(modes.weight)
    out["mode_weight"].values[:m] = modes.weight
    out["mode_weight_se"].values[:m] = modes.weight_se
    out["mode_restarts"].values[:m] = modes.restarts
    out["mode_centre"].values[:m] = centre
    return out

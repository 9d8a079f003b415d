"""When the blocks of a warm-up end, in transitions of each chain.

Blocks grow while the setting is adapted; friction is tried at half time at the latest, and the setting frozen at 70 %;
what is left is checks of equal length.
"""

from __future__ import annotations

from pmm_mcmc.warmup.calibration import CALIBRATION

__all__ = [
    "end_of_check",
    "end_of_growing",
    "end_of_trial",
    "extension",
    "latest_freeze",
    "latest_trial",
    "stiffness",
]


def stiffness(curvature: float) -> float:
    """How far from one the largest curvature is, 1 to 4: rare places take longer to be seen."""
    return min(max(curvature / CALIBRATION.stiff, 1.0), CALIBRATION.stiffest)


def latest_freeze(length: int) -> int:
    """Return the transition at which the setting is frozen, settled or not."""
    return int(CALIBRATION.freeze_at * length)


def latest_trial(length: int) -> int:
    """Return the transition by which friction is tried."""
    return int(CALIBRATION.trial_at * length)


def end_of_growing(done: int, length: int, tried: bool) -> int:
    """Return the end of a block of adaptation; a last one that would be too short is joined to it."""
    boundary = done + max(CALIBRATION.first_block, int(CALIBRATION.growth * done))
    trial, latest = latest_trial(length), latest_freeze(length)
    if not tried and done < trial:
        boundary = min(boundary, trial)
    return boundary if latest - boundary >= CALIBRATION.first_block else max(latest, done + 1)


def end_of_trial(done: int, length: int) -> int:
    """Return the end of a block of one of the frictions."""
    return min(done + CALIBRATION.trial_block, latest_freeze(length))


def end_of_check(done: int, length: int, chains: int, stiff: float) -> int:
    """Return the end of a check, which is longer where the posterior is stiff."""
    size = max(CALIBRATION.least_check, min(int(stiff * CALIBRATION.checked_draws) // chains, length // 5))
    return length if length - done < 2 * size else done + size


def extension(rows: int, chains: int) -> int:
    """Return the transitions of one more check, after one of so many that failed at the end."""
    return max(CALIBRATION.least_check, min(rows, CALIBRATION.checked_draws // chains))

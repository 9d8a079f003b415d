"""When the blocks of a warm-up end, in transitions of each chain.

Blocks grow while the setting is adapted; friction is tried at half time at the latest, and the setting frozen at 70 %;
what is left is checks of equal length.
"""

from __future__ import annotations

__all__ = [
    "FIRST_BLOCK",
    "LEAST_CHECK",
    "TRIAL",
    "end_of_check",
    "end_of_growing",
    "end_of_trial",
    "extension",
    "latest_freeze",
    "latest_trial",
    "stiffness",
]

FIRST_BLOCK, _GROWTH = 25, 0.3
LEAST_CHECK, _CHECKED_DRAWS = 50, 800  # of each chain, and of all
TRIAL = 50  # for each friction
_FREEZE_AT, _TRIAL_AT = 0.7, 0.5
# Above this largest curvature more transitions are wanted in proportion, up to so many times.
_STIFF, _STIFFEST = 2.0, 4.0


def stiffness(curvature: float) -> float:
    """How far from one the largest curvature is, 1 to 4: rare places take longer to be seen."""
    return min(max(curvature / _STIFF, 1.0), _STIFFEST)


def latest_freeze(length: int) -> int:
    """Return the transition at which the setting is frozen, settled or not."""
    return int(_FREEZE_AT * length)


def latest_trial(length: int) -> int:
    """Return the transition by which friction is tried."""
    return int(_TRIAL_AT * length)


def end_of_growing(done: int, length: int, tried: bool) -> int:
    """Return the end of a block of adaptation; a last one that would be too short is joined to it."""
    boundary = done + max(FIRST_BLOCK, int(_GROWTH * done))
    trial, latest = latest_trial(length), latest_freeze(length)
    if not tried and done < trial:
        boundary = min(boundary, trial)
    return boundary if latest - boundary >= FIRST_BLOCK else max(latest, done + 1)


def end_of_trial(done: int, length: int) -> int:
    """Return the end of a block of one of the frictions."""
    return min(done + TRIAL, latest_freeze(length))


def end_of_check(done: int, length: int, chains: int, stiff: float) -> int:
    """Return the end of a check, which is longer where the posterior is stiff."""
    size = max(LEAST_CHECK, min(int(stiff * _CHECKED_DRAWS) // chains, length // 5))
    return length if length - done < 2 * size else done + size


def extension(rows: int, chains: int) -> int:
    """Return the transitions of one more check, after one of so many that failed at the end."""
    return max(LEAST_CHECK, min(rows, _CHECKED_DRAWS // chains))

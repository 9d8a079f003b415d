"""When the blocks of a warm-up end, in transitions of each chain.

Blocks grow while the setting is adapted, which is frozen at 70 % of the warm-up at the latest; the rest is checks of
equal length.
"""

from __future__ import annotations

from pmm_mcmc.warmup.thresholds import THRESHOLDS

__all__ = [
    "end_of_block", "end_of_check", "end_of_growing", "extension", "latest_freeze", "learnt_from", "shortest_block",
    "stiffness",
]  # fmt: skip


def stiffness(curvature: float) -> float:
    """Return the factor, 1 to 4, by which a large curvature lengthens the warm-up: steep places are rare in draws."""
    return min(max(curvature / THRESHOLDS.stiff, 1.0), THRESHOLDS.stiffest)


def latest_freeze(length: int) -> int:
    """Return the transition at which the setting is frozen, whether it has settled or not."""
    return int(THRESHOLDS.freeze_at * length)


def shortest_block(chains: int) -> int:
    """Return the length of the first block: the more chains, the fewer transitions make as many draws.

    At least two, whose differences show the curvature.
    """
    training = THRESHOLDS.training_chains
    return max(2, -(-training * THRESHOLDS.first_block // max(chains, training)))


def learnt_from(chains: int, rows: int, training: int) -> int:
    """Return the number of chains that a block is learnt from: in short blocks more than ``training``."""
    return min(chains, max(training, -(-training * THRESHOLDS.first_block // rows)))


def end_of_block(done: int, shortest: int = THRESHOLDS.first_block) -> int:
    """Return the end of the block that begins at a transition: blocks grow."""
    return done + max(shortest, int(THRESHOLDS.growth * done))


def end_of_growing(done: int, length: int, shortest: int = THRESHOLDS.first_block) -> int:
    """Return the end of a block of adaptation; it includes a remainder too short for another block."""
    boundary = end_of_block(done, shortest)
    latest = latest_freeze(length)
    return boundary if latest - boundary >= shortest else max(latest, done + 1)


def end_of_check(done: int, length: int, chains: int, stiff: float) -> int:
    """Return the end of a check, which is longer if the posterior is stiff."""
    size = max(THRESHOLDS.least_check, min(int(stiff * THRESHOLDS.checked_draws) // chains, length // 5))
    return length if length - done < 2 * size else done + size


def extension(rows: int, chains: int) -> int:
    """Return the length of one more check, after one of ``rows`` transitions that failed at the end."""
    return max(THRESHOLDS.least_check, min(rows, THRESHOLDS.checked_draws // chains))

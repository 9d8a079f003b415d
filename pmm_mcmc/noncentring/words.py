"""Says in words what a map straightens."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pmm_mcmc.noncentring.funnel_map import FunnelMap

__all__ = ["describe"]

_MOST_GROUPS = 3
_INDEXED = re.compile(r"^(.*[\[ ])(\d+)\]$")


def describe(found: FunnelMap, names: Sequence[str]) -> tuple[str, ...]:
    """Return a phrase for each of the largest groups of sinks with the same sources of their scales.

    Parameters
    ----------
    found
        The map.
    names
        Of the coordinates: ``"theta[0]"``, ``"log tau"``.

    Returns
    -------
    tuple of str
        As "theta[0..7] scale with log tau and shift with mu"; the last one may count all others.
    """
    groups: dict[tuple[int, ...], tuple[list[int], set[int]]] = {}
    for k, sink in enumerate(found.sink.tolist()):
        inside = slice(found.start[k], found.start[k + 1])
        source, slope = found.source[inside], found.slope[inside]
        shifting = (found.load[inside] != 0.0) | (found.anchor_load[inside] != 0.0)
        sinks, shifts = groups.setdefault(tuple(source[slope != 0.0].tolist()), ([], set()))
        sinks.append(sink)
        shifts.update(source[shifting & (slope == 0.0)].tolist())
    phrases = []
    ordered = sorted(groups.items(), key=lambda group: -len(group[1][0]))
    for scales, (sinks, shifts) in ordered[:_MOST_GROUPS]:
        verb = "scale" if len(sinks) > 1 else "scales"
        phrase = f"{_listed(sinks, names)} {verb} with {_listed(scales, names)}"
        if shifts:
            phrase += f" and {verb.replace('scale', 'shift')} with {_listed(sorted(shifts), names)}"
        phrases.append(phrase)
    others = sum(len(sinks) for _, (sinks, _) in ordered[_MOST_GROUPS:])
    return (*phrases, f"{others} more in other ways") if others else tuple(phrases)


def _listed(which: Sequence[int], names: Sequence[str]) -> str:
    """Return names of coordinates, runs of indices of one variable together: ``theta[0..7], mu``."""
    runs: list[list[str | int]] = []
    for name in (names[i] for i in sorted(which)):
        match = _INDEXED.match(name)
        if match is None:
            runs.append([name])
        elif runs and len(runs[-1]) == 3 and runs[-1][0] == match[1] and runs[-1][2] == int(match[2]) - 1:
            runs[-1][2] = int(match[2])
        else:
            runs.append([match[1], int(match[2]), int(match[2])])
    words = [
        str(run[0]) if len(run) == 1 else f"{run[0]}{run[1]}]" if run[1] == run[2] else f"{run[0]}{run[1]}..{run[2]}]"
        for run in runs
    ]
    return ", ".join(words) if len(words) < 5 else f"{', '.join(words[:3])} and {len(words) - 3} more"

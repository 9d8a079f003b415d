"""The models of the gate: all of the scoreboard and the raw densities, in two halves."""

from __future__ import annotations

from gate.densities import DENSITIES
from scoreboard.entries import ENTRIES as SCOREBOARD
from scoreboard.entries import HELD as ODD_HELD
from scoreboard.entries import Entry


def _density(name: str) -> Entry:
    return Entry(lambda: DENSITIES[name].exact()[0], lambda: DENSITIES[name].exact()[1])


ENTRIES = {**SCOREBOARD, **{f"density/{name}": _density(name) for name in DENSITIES}}
FAMILIES = tuple(dict.fromkeys(key.partition("/")[0] for key in ENTRIES))
# Arms and necks, tails and edges: right or refused, whatever they cost.
NARROW = (
    *(key for key in ENTRIES if key.startswith("density/") and key != "density/rosenbrock36"),
    "published/brownian_motion",
)
QUICK = ("posteriordb/kidiq-kidscore_momhs", "density/ring")


def _held() -> frozenset[str]:
    """Return every second key of a family in alphabetical order; of the odd models, those that are held out already."""
    keys = {family: sorted(key for key in ENTRIES if key.startswith(f"{family}/")) for family in FAMILIES}
    return ODD_HELD.union(*(of[1::2] for family, of in keys.items() if family != "odd"))


# Settings are chosen by the other half; this one is only reported.
HELD = _held()

"""What a search for other modes (:mod:`pmm_mcmc.diagnostics.mode_search`) has found, and what a verdict says of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pmm_mcmc.diagnostics.search_thresholds import SEARCH
from pmm_mcmc.diagnostics.statement import Reason
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS

if TYPE_CHECKING:
    from pmm_mcmc.diagnostics.reading import Run

__all__ = ["OtherModes", "labels", "modes", "unfinished_search", "unvisited_mode"]

_LADDER = "use pmm.temper(), which moves between modes"


class OtherModes(NamedTuple):
    """The modes beside those that the chains visit.

    Attributes
    ----------
    mass
        Share of the posterior in other modes, as estimated; 0 if there are none, NaN if there was no search.
    position : (d,), optional
        The heaviest one, in the model's coordinates; None if there is none, or if the mass has no maximum of its own.
    coordinate, offset
        The coordinate in which it is furthest away, and by how many standard deviations of the draws.
    name
        The name of that coordinate.
    undecided
        Why the search has no answer; empty if it has one.
    ascents, sides, n_grad
        Ascents and sides of coordinates that were looked at, and gradients spent.
    """

    mass: float = math.nan
    position: tuple[float, ...] | None = None
    coordinate: int = -1
    offset: float = math.nan
    name: str = ""
    undecided: str = ""
    ascents: int = 0
    sides: int = 0
    n_grad: int = 0

    @classmethod
    def of(cls, attribute: Any) -> OtherModes:
        """Read them from the attribute of a result, which is empty if there was no search."""
        return cls(**{name: attribute[name] for name in cls._fields if name in attribute})

    @property
    def ratio(self) -> float:
        """Mass of other modes over that of the chains."""
        return self.mass / max(1.0 - self.mass, 1e-300)


def modes(run: Run) -> Reason | None:
    """Return a reason if modes that no chain visits have a hundredth of the mass of theirs."""
    others = OtherModes.of(run.findings.get("modes", {}))
    if not others.ratio > THRESHOLDS.mass or not unvisited_mode(run):
        return None
    remedy = f"reparametrise so that there is one mode, or {_LADDER}"
    if others.position is None:
        remedy = "reparametrise, or try pmm.temper(), whose verdict looks there too"
    if "restart" in run.stats:
        remedy = "take more chains, or a reference from which that mode is met"
    return Reason("modes", f"{unvisited_mode(run)}, limit 1 %", remedy, None, others.mass, THRESHOLDS.mass)


def unfinished_search(run: Run) -> Reason | None:
    """Return a reason if the search for other modes has no answer."""
    others = OtherModes.of(run.findings.get("modes", {}))
    if not others.undecided or others.mass > 0.0:
        return None
    return Reason("search", f"other modes were looked for without an answer: {others.undecided}", _LADDER)


def labels(run: Run) -> Reason | None:
    """Return a reason if labels may be exchanged, or signs are free, in draws that are not relabelled."""
    if not run.labels:
        return None
    exchanges = "; ".join(exchange.words for exchange in run.labels)
    text = f"{exchanges}: single components mean nothing as they are drawn"
    labelled = any(not exchange.signs for exchange in run.labels)
    remedy = "order them (transform=ordered), or" if labelled else "fix it in the model, or"
    return Reason("labels", text, f"{remedy} summarise pmm.relabel(dt)", next(iter(run.labels[0].axes)))


def _is_visited(run: Run, others: OtherModes) -> bool:
    """Return whether draws are in a mode that a ladder's search met before them.

    They are if they are less than half as far away as the others, in the coordinate in which it is furthest away.
    """
    if others.position is None or run.position is None:
        return False
    distance = np.abs(run.position[..., others.coordinate] - others.position[others.coordinate])
    share = (distance < 0.5 * np.quantile(distance, 0.9)).mean()
    return bool(share > SEARCH.visited * others.mass)


def unvisited_mode(run: Run) -> str:
    """Return words for the modes that no chain visits, empty if there are none."""
    others = OtherModes.of(run.findings.get("modes", {}))
    if not others.mass > 0.0 or (run.ladder is not None and _is_visited(run, others)):
        return ""
    share = "nearly all of the mass" if others.mass > 0.99 else f"about {100.0 * others.mass:.2g} % of the mass"
    if others.position is None:
        return f"{share} is where there is no draw, around the chains"
    where = ""
    label = others.name if run.position is None else run.closest_parameter(run.position, others.coordinate)
    if label:
        side = "above" if others.offset > 0.0 else "below"
        where = f", {abs(others.offset):.2g} sd {side} theirs in {label},"
    return f"chains do not move to another mode{where} that has {share}"

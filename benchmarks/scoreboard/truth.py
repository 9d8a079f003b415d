"""What is known of a posterior, however it is kept: one record, and a reader for each kind of reference.

Moments are of variables by name, as a result has them, or (``names`` empty) of the flat unconstrained coordinates.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
from exact_moments import Reference
from make_references import flat_draws
from posteriors import FIELDS
from tables import RESULTS

from pmm_mcmc.model.result_tree import flat_names

FILES = {"held_out": "held_out_hierarchies"}
FAMILIES = ("posteriordb", "odd", "published", "held_out", "gallery", "hierarchies")
PATHS = {family: RESULTS / f"{FILES.get(family, family)}.json" for family in FAMILIES}
OF_SQUARES = ("second", "variance_of_square")


@dataclass(frozen=True)
class Truth:
    """Moments of ``p`` parameters, arrays ``(p,)``; errors are 0 where the moments are exact.

    ``second`` and ``variance_of_square`` are the mean and the variance of the square, None where nobody kept them.
    """

    names: tuple[str, ...]
    labels: list[str]
    mean: np.ndarray
    sd: np.ndarray
    mcse_mean: np.ndarray
    mcse_sd: np.ndarray
    second: np.ndarray | None = None
    variance_of_square: np.ndarray | None = None

    def draws(self, model: pm.Model, tree: Any) -> np.ndarray:
        """Return the draws of what is judged, ``(chain, draw, p)``, in the order of the labels."""
        if not self.names:
            return flat_draws(model, tree)[..., : len(self.labels)]
        posterior = tree["posterior"].dataset
        parts = [posterior[name].values for name in self.names]
        return np.concatenate([part.reshape(*part.shape[:2], -1) for part in parts], axis=-1)


def kept(truth: Truth) -> dict[str, Any]:
    """Return a record as JSON has it."""
    arrays = {field: getattr(truth, field) for field in (*FIELDS, *OF_SQUARES) if getattr(truth, field) is not None}
    figures = {field: [float(f"{value:.8g}") for value in values] for field, values in arrays.items()}
    return {"names": list(truth.names), "labels": truth.labels, **figures}


@cache
def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def stored(family: str, name: str) -> Truth:
    """Return the moments of a model that a file of ``results`` keeps."""
    entry = read(PATHS[family]).get(name)
    if entry is None:
        raise ValueError(
            f"{family}/{name}: no moments are kept: python -m benchmarks scoreboard.references {family}/{name}"
        )
    fields = {field: np.array(entry[field]) for field in (*FIELDS, *OF_SQUARES) if field in entry}
    return Truth(names=tuple(entry["names"]), labels=entry["labels"], **fields)


def flat_labels(model: pm.Model) -> list[str]:
    """Return the names of the unconstrained coordinates."""
    point = model.initial_point(0)
    return flat_names([(var.name, np.shape(point[var.name])) for var in model.continuous_value_vars])


def from_reference(build: Callable[[], pm.Model], found: Reference, shown: int | None = None) -> Truth:
    """Return the moments of flat coordinates, of all or of so many of the first."""
    labels = flat_labels(build())
    part = slice(shown or len(labels))
    sd = np.sqrt(found.variance_of_x)
    # Of the delta method, with the mean known better than the second moment.
    mcse_sd = np.hypot(found.se_second, 2 * found.mean * found.se_mean) / (2 * sd)
    fields = (found.mean, sd, found.se_mean, mcse_sd, found.second, found.variance_of_square)
    return Truth((), labels[part], *(values[part] for values in fields))

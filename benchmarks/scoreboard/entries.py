"""Every model of the scoreboard by its key, ``family/name``: how it is built, and what is known of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pymc as pm
import targets
from gallery_models import CHAPTERS
from held_out_models import MODELS
from hierarchy_forms import HIERARCHIES, reference
from posteriors import fingerprint
from scoreboard.odd_exact import EXACT
from scoreboard.odd_models import SAMPLED
from scoreboard.posteriordb import POSTERIORS
from scoreboard.published import PUBLISHED, banana_moments
from scoreboard.truth import PATHS, Truth, from_reference, read, stored

# Whoever tunes or fits a threshold looks at every other one of these, from the first; the rest is held out, and is only
# reported.  Those on which a fault of the verdict was known when the list was made are of the first half.
ODD = (
    *("crossed_empty", "cauchy_five", "modes_10", "three_groups", "separation", "student_2", "jump", "zero_inflated"),
    *("hurdle", "weibull_censored", "change_point", "dirichlet_multinomial", "thin_banana", "lkj", "walls", "bym"),
    *("local_level", "uniform_bound", "modes_3.5", "modes_10_widths", "latent_gp", "marginal_gp", "student_5"),
    *("modes_3.5_widths", "ordered_mixture", "two_pl", "pharmacokinetics", "boundary_variance"),
)
HELD = frozenset(f"odd/{name}" for name in ODD[1::2])
# Ten that between them need less than two minutes of two cores.
QUICK = (
    *("posteriordb/arK-arK", "posteriordb/earnings-logearn_interaction_z", "posteriordb/garch-garch11"),
    *("posteriordb/eight_schools-eight_schools_centered", "acceptance/poisson_glm", "acceptance/banana"),
    *("hierarchies/funnel10", "odd/student_5", "odd/modes_3.5", "odd/uniform_bound"),
)


@dataclass(frozen=True)
class Entry:
    """A model with what is known of its posterior; ``build`` and ``truth`` compute when they are called."""

    build: Callable[[], pm.Model]
    truth: Callable[[], Truth]


def _checked(family: str, name: str, build: Callable[[], pm.Model]) -> Entry:
    """Return a model with the moments of a reference run, after a check that it is still what that was run on."""

    def truth() -> Truth:
        found, made = stored(family, name), read(PATHS[family])[name]["fingerprint"]
        if not np.isclose(fingerprint(build()), made, rtol=1e-8):
            raise ValueError(
                f"{family}/{name}: has changed since its reference was made: scoreboard.references makes another"
            )
        return found

    return Entry(build, truth)


def _of_hierarchy(name: str) -> Truth:
    build = partial(HIERARCHIES[name].build, True)
    return from_reference(build, reference(name, build()), HIERARCHIES[name].shown)


def _of_target(name: str) -> Truth:
    # Neal's funnel has no variance to speak of beyond its first coordinate.
    return from_reference(targets.TARGETS[name].build, targets.reference(name), 1 if name == "funnel10" else None)


def _odd(name: str) -> Entry:
    if name in EXACT:
        return Entry(lambda: EXACT[name]()[0], lambda: EXACT[name]()[1])
    return _checked("odd", name, SAMPLED[name].build)


def _published(name: str) -> Entry:
    build = PUBLISHED[name]
    if name == "banana2":
        return Entry(build, lambda: from_reference(build, banana_moments()))
    return _checked("published", name, build)


@cache
def _entries() -> dict[str, Entry]:
    found: dict[str, dict[str, Any]] = {
        "posteriordb": {n: Entry(held.build, partial(stored, "posteriordb", n)) for n, held in POSTERIORS.items()},
        # Two have no reference yet: long NUTS on them does not end in an hour.
        "published": {n: _published(n) for n in PUBLISHED if n == "banana2" or n in read(PATHS["published"])},
        "odd": {name: _odd(name) for name in ODD},
        "acceptance": {n: Entry(target.build, partial(_of_target, n)) for n, target in targets.TARGETS.items()},
        "hierarchies": {n: Entry(partial(h.build, True), partial(_of_hierarchy, n)) for n, h in HIERARCHIES.items()},
        "held_out": {n: _checked("held_out", n, MODELS[n].build) for n in read(PATHS["held_out"])},
        "gallery": {n: _checked("gallery", n, CHAPTERS[n].build) for n in read(PATHS["gallery"])},
    }
    return {f"{family}/{name}": entry for family, of in found.items() for name, entry in of.items()}


ENTRIES = _entries()

"""Moments by long NUTS of models that have no exact ones: ``python -m benchmarks scoreboard.references [key ...]``.

Of the odd and the published models, of textbooks' hierarchies and those of ``hierarchies`` (in the unconstrained
coordinates), and of PyMC's gallery.  Four chains of 4000 draws with ``target_accept=0.95``, on the form non-centred by
hand where there is one; kept in ``results``, a file a family, with the diagnostics of the run.  Those of stochastic
volatility and item response, which take NUTS on the graph hours, are of densities by hand
(``python -m benchmarks scoreboard.references`` of commit 785ecf2) and stay as they are.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import pymc as pm
from gallery_models import CHAPTERS
from held_out_models import MODELS
from hierarchy_forms import FIELDS, HIERARCHIES
from make_references import SAMPLER, flat_draws, mean_and_error, one_sd_up
from posteriors import alone, diagnosed, fingerprint, free_names, moments, moments_of, overheard
from scoreboard.odd_models import SAMPLED
from scoreboard.published import PUBLISHED
from scoreboard.truth import PATHS, Truth, flat_labels, kept
from tables import entries
from targets import Reference

LONG = {"chains": 4, "tune": 2000, "draws": 4000, "target_accept": 0.95, "random_seed": 1}
FAMILIES: dict[str, Any] = {
    "odd": SAMPLED,
    "published": {name: PUBLISHED[name] for name in ("brownian_motion", "german25", "german_sparse")},
    "held_out": MODELS,
    "gallery": CHAPTERS,
    "hierarchies": {name: form for name, form in HIERARCHIES.items() if form.exact is None},
}


def reference(family: str, name: str) -> dict[str, Any]:
    """Return moments by long NUTS with the diagnostics of the run."""
    began, form = time.process_time(), FAMILIES[family][name]
    twin = family == "hierarchies" or getattr(form, "twin", False)
    build = getattr(form, "build", form)
    model = build(True) if twin else build()
    with overheard(), build(False) if twin else model:
        tree = pm.sample(**LONG, progressbar=False, cores=1, nuts_sampler=SAMPLER, compute_convergence_checks=False)
    if family in ("held_out", "hierarchies"):
        names, labels, draws = [], flat_labels(model), flat_draws(model, tree)
        found = moments_of(draws)
    else:
        names = list(form.names) if family == "odd" else free_names(model)
        found, labels, draws = moments(tree, names)
    entry = {
        "sampler": f"NUTS of {SAMPLER}" + twin * ", non-centred by hand",
        **LONG,
        "cpu_seconds": round(time.process_time() - began),
        "divergences": int(tree["sample_stats"]["diverging"].sum()),
        **diagnosed(draws),
    }
    if family == "hierarchies":
        (mean, se_mean), (second, se_second), (fourth, _) = (mean_and_error(draws**k) for k in (1, 2, 4))
        flat = Reference(mean, second, second - mean**2, fourth - second**2, se_mean, se_second)
        arrays = {field: [float(f"{v:.8g}") for v in getattr(flat, field)] for field in FIELDS}
        return {**entry, "log_density_one_sd_up": one_sd_up(model, arrays), **arrays}
    square = draws**2
    truth = Truth(tuple(names), labels, **found, second=square.mean((0, 1)), variance_of_square=square.var((0, 1)))
    return {**entry, "fingerprint": fingerprint(model), **kept(truth)}


def main() -> None:
    keys = [f"{family}/{name}" for family, of in FAMILIES.items() for name in of]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", metavar="key", help=f"of {', '.join(keys)} (default: all)")
    asked = parser.parse_args()
    if unknown := [key for key in asked.keys if key not in keys]:
        parser.error(f"unknown model {', '.join(unknown)}: take some of {', '.join(keys)}")
    for key in asked.keys or keys:
        family, _, name = key.partition("/")
        entry = alone(reference, family, name)
        entries(PATHS[family], {**json.loads(PATHS[family].read_text()), name: entry})
        print(
            f"{key}: { ({what: entry[what] for what in ('cpu_seconds', 'divergences', 'r_hat', 'ess')}) }", flush=True
        )


if __name__ == "__main__":
    main()

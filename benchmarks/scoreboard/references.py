"""Moments by long NUTS of models that have no exact ones: ``python -m benchmarks scoreboard.references [name ...]``.

Of the odd and the published models, of textbooks' hierarchies (of these in the unconstrained coordinates), and of
PyMC's gallery (``gallery/NAME``).  Four chains of 4000 draws with ``target_accept=0.95``, on the form non-centred by
hand where there is one; kept in ``results``, a file a family, with the diagnostics of the run.
Stochastic volatility and item response are of ``by_hand.py`` (needs nutpie; 3 and 11 minutes).
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from typing import Any

import numpy as np
import pymc as pm
from gallery_models import CHAPTERS
from held_out_models import MODELS
from make_references import SAMPLER, flat_draws
from posteriors import alone, diagnosed, fingerprint, free_names, moments, moments_of, overheard
from scoreboard.by_hand import BY_HAND, KEPT, sampled
from scoreboard.by_hand import LONG as LONG_BY_HAND
from scoreboard.odd_models import SAMPLED
from scoreboard.published import PUBLISHED
from scoreboard.truth import PATHS, Truth, flat_labels, kept

from pmm_mcmc.model.result_tree import flat_names

# But for discrete variables, which are for pm.sample(step=).
GALLERY = {f"gallery/{name}": chapter for name, chapter in CHAPTERS.items() if name != "disasters"}
NAMES = {
    **dict.fromkeys(SAMPLED, "odd"),
    **{name: "published" for name in PUBLISHED if name != "banana2"},
    **dict.fromkeys(MODELS, "held_out"),
    **dict.fromkeys(GALLERY, "gallery"),
}
LONG = {"chains": 4, "tune": 2000, "draws": 4000, "target_accept": 0.95, "random_seed": 1}


def reference(name: str) -> dict[str, Any]:
    """Return moments by long NUTS with the diagnostics of the run."""
    began, written = time.process_time(), SAMPLED.get(name) or MODELS.get(name) or GALLERY.get(name)
    build = PUBLISHED[name] if written is None else written.build
    model, twin, by_hand = build(), bool(written and written.twin), name in BY_HAND
    if by_hand:
        draws, divergences = sampled(model, BY_HAND[name]())
    else:
        with overheard(), build(False) if twin else model:
            tree = pm.sample(**LONG, progressbar=False, cores=1, nuts_sampler=SAMPLER, compute_convergence_checks=False)
        divergences = int(tree["sample_stats"]["diverging"].sum())
    if by_hand:
        names, labels = free_names(model), flat_names([(v.name, tuple(v.shape.eval())) for v in model.free_RVs])
        found = moments_of(draws)
    elif name in MODELS:
        names, labels, draws = [], flat_labels(model), flat_draws(model, tree)
        found = moments_of(draws)
    else:
        names = list(SAMPLED[name].names) if name in SAMPLED else free_names(model)
        found, labels, draws = moments(tree, names)
    square = draws**2
    truth = Truth(tuple(names), labels, **found, second=square.mean((0, 1)), variance_of_square=square.var((0, 1)))
    return {
        "sampler": f"NUTS of {'nutpie, density by hand' if by_hand else SAMPLER}" + twin * ", non-centred by hand",
        **({**LONG_BY_HAND, "kept": f"each {KEPT}th draw"} if by_hand else LONG),
        "cpu_seconds": round(time.process_time() - began),
        "divergences": divergences,
        **diagnosed(draws),
        "fingerprint": fingerprint(model),
        **kept(truth),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(NAMES)} (default: all)")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in NAMES]:
        parser.error(f"unknown model {', '.join(unknown)}: take some of {', '.join(NAMES)}")
    warnings.filterwarnings("ignore")
    for name in given.names or NAMES:
        entry, path = alone(reference, name), PATHS[NAMES[name]]
        every = {**(json.loads(path.read_text()) if path.exists() else {}), name.rpartition("/")[2]: entry}
        lines = (f" {json.dumps(key)}: {json.dumps(value)}" for key, value in every.items())
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        shown = {key: entry[key] for key in ("cpu_seconds", "divergences", "r_hat", "ess")}
        sizes = np.abs(np.array(entry["mcse_mean"]) / np.array(entry["sd"])).max()
        print(f"{name}: {len(entry['labels'])} parameters, {shown}, largest error {sizes:.3f} sd", flush=True)


if __name__ == "__main__":
    main()

"""Moments of the odd and the published models by long NUTS: ``python -m benchmarks scoreboard.references [name ...]``.

Four chains of 4000 draws with ``target_accept=0.95``, on the form non-centred by hand where there is one; kept in
``results/odd.json`` and ``results/published.json`` with the diagnostics of the run.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from typing import Any

import numpy as np
import pymc as pm
from gallery import alone, diagnosed
from held_out_hierarchies import LONG, NUTS, QUIET
from make_references import SAMPLER
from posteriors import fingerprint, free_names, moments, overheard
from scoreboard.odd_models import SAMPLED
from scoreboard.published import PUBLISHED
from scoreboard.truth import PATHS, Truth, kept

NAMES = {**dict.fromkeys(SAMPLED, "odd"), **{name: "published" for name in PUBLISHED if name != "banana2"}}


def reference(name: str) -> dict[str, Any]:
    """Return moments by long NUTS with the diagnostics of the run."""
    odd, began = SAMPLED.get(name), time.process_time()
    build = PUBLISHED[name] if odd is None else odd.build
    model, twin = build(), bool(odd and odd.twin)
    names = free_names(model) if odd is None else list(odd.names)
    with overheard(), odd.build(False) if twin else model:
        tree = pm.sample(**LONG, **QUIET, cores=1, nuts_sampler=SAMPLER, compute_convergence_checks=False)
    found, labels, draws = moments(tree, names)
    square = draws**2
    truth = Truth(tuple(names), labels, **found, second=square.mean((0, 1)), variance_of_square=square.var((0, 1)))
    return {
        "sampler": NUTS + (", non-centred by hand" if twin else ""),
        **LONG,
        "cpu_seconds": round(time.process_time() - began),
        "divergences": int(tree["sample_stats"]["diverging"].sum()),
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
        every = {**(json.loads(path.read_text()) if path.exists() else {}), name: entry}
        lines = (f" {json.dumps(key)}: {json.dumps(every[key])}" for key in NAMES if key in every)
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        shown = {key: entry[key] for key in ("cpu_seconds", "divergences", "r_hat", "ess")}
        sizes = np.abs(np.array(entry["mcse_mean"]) / np.array(entry["sd"])).max()
        print(f"{name}: {len(entry['labels'])} parameters, {shown}, largest error {sizes:.3f} sd", flush=True)


if __name__ == "__main__":
    main()

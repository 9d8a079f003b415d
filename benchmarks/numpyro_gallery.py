"""NumPyro's example gallery against its NUTS: ``python -m benchmarks numpyro_gallery [name ...]``.

Every model of ``tests/support/numpyro_models.py`` is sampled with defaults through ``LogDensity.from_numpyro``, 4
chains of 1000 draws, and compared, parameter by parameter and deterministics included, with a longer run of NumPyro's
NUTS: of the model as it stands, or of a twin that is non-centred by hand.  What has been run is in
``results/numpyro_gallery``, a file a model: ``--refresh`` runs ours anew, ``--references`` NUTS too.

"mean" and "sd" are the worst errors in posterior standard deviations, with z in brackets and the parameter; a star
marks one beyond 0.1 and beyond chance.  NUTS is there with its largest r_hat, fewest effective draws and divergences.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr
from gallery import alone, diagnosed, errors, judged, keep
from numpyro.infer import MCMC, NUTS
from numpyro_models import GALLERY
from posteriors import FIELDS, moments, overheard

import pmm_mcmc as pmm

__all__ = ["main", "table"]

KEPT = Path(__file__).parent / "results" / "numpyro_gallery"
LONG = {"num_warmup": 1000, "num_samples": 2000, "num_chains": 4}


def reference(name: str) -> dict[str, Any]:
    """Return moments of every site by NUTS, with its diagnostics."""
    example, began = GALLERY[name], time.process_time()
    with jax.enable_x64(True):
        kernel = NUTS(example.twin or example.model, target_accept_prob=0.95)
        run = MCMC(kernel, **LONG, chain_method="sequential", progress_bar=False)
        run.run(jax.random.key(1), *example.args(), extra_fields=("diverging",))
        drawn = {site: np.asarray(values) for site, values in run.get_samples(group_by_chain=True).items()}
    dims = {site: ("chain", "draw", *(f"{site}_{i}" for i in range(a.ndim - 2))) for site, a in drawn.items()}
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset({n: (dims[n], a) for n, a in drawn.items()})})
    names = sorted(drawn)
    found, labels, draws = moments(tree, names)
    return {
        **LONG,
        "cpu_seconds": round(time.process_time() - began),
        "divergences": int(np.sum(run.get_extra_fields()["diverging"])),
        **diagnosed(draws),
        "labels": labels,
        **{field: [float(f"{value:.8g}") for value in found[field]] for field in FIELDS},
    }


def row(name: str, known: dict[str, Any]) -> dict[str, Any]:
    """Sample as a user would; return errors against the reference, the verdict, and what it cost."""
    example, began = GALLERY[name], time.process_time()
    with overheard():
        density = pmm.LogDensity.from_numpyro(example.model, *example.args())
        tree = pmm.sample(model=density, random_seed=1, progressbar=False)
    spent = time.process_time() - began
    found, labels, draws = moments(tree, sorted(tree["posterior"].data_vars))
    at = [known["labels"].index(label) for label in labels]
    truth = known | {field: np.array(known[field])[at] for field in FIELDS}
    gradients = int(tree["sample_stats"]["n_grad_total"].values[:, -1].max())
    costs = {"d": density.d, "cpu_seconds": round(spent, 1), "gradients": gradients}
    return costs | diagnosed(draws) | judged(tree) | errors(found, truth, labels)


def table(every: dict[str, dict[str, Any]]) -> str:
    """Return what there is, a line a model."""
    lines = [
        f"{'model':22}{'d':>4} {'mean':24}{'sd':24}{'verdict':14}{'gradients':>9}{'CPU s':>7}"
        f"   NUTS: {'r_hat':>6}{'ESS':>7}{'div.':>5}{'CPU s':>7}"
    ]
    for name, kept in ((name, kept) for name, kept in every.items() if "row" in kept):
        nuts, one = kept["reference"], kept["row"]
        off = [
            f"{one[w]['off']:+.2f} ({one[w]['z']:+.1f}){'*' * one[w]['wrong']} {one[w]['of']}"[:23]
            for w in ("mean", "sd")
        ]
        lines.append(
            f"{name:22}{one['d']:4} {off[0]:24}{off[1]:24}{one['state']:14}{one['gradients']:9,}"
            f"{one['cpu_seconds']:7.1f}{'':9}{nuts['r_hat']:6.3f}{nuts['ess']:7,}{nuts['divergences']:5}"
            f"{nuts['cpu_seconds']:7,}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and print the table of what there is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(GALLERY)} (default: all)")
    parser.add_argument("--refresh", action="store_true", help="run our sampler again, and not NUTS")
    parser.add_argument("--references", action="store_true", help="run NUTS again too")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in GALLERY]:
        parser.error(f"unknown model {', '.join(unknown)}: take some of {', '.join(GALLERY)}")
    warnings.filterwarnings("ignore")
    for name in given.names or GALLERY:
        path = KEPT / f"{name}.json"
        kept = json.loads(path.read_text()) if path.exists() else {}
        if given.references or "reference" not in kept:
            kept = {"reference": alone(reference, name)}
            keep(path, kept)
        if given.refresh or "row" not in kept:
            kept["row"] = alone(row, name, kept["reference"])
            keep(path, kept)
        print(table({name: kept}).splitlines()[1], flush=True)
    print(table({n: json.loads(p.read_text()) for n in GALLERY if (p := KEPT / f"{n}.json").exists()}))


if __name__ == "__main__":
    sys.exit(main())

"""PyMC's example gallery by both doors, against long NUTS: ``python -m benchmarks gallery [name ...]``.

Every model of ``benchmarks/gallery_models.py`` is sampled with defaults, 4 chains of 1000 draws, in a fresh process:

pm.sample    pm.sample(step=pmm.PoissonULMC())
pmm.sample   pmm.sample()
NUTS         pm.sample(nuts_sampler="pymc")

and compared, parameter by parameter, with a long run of NUTS.  What has been run is in ``results/gallery``, a file a
model, and is not run again: ``--refresh`` runs the first two anew, ``--references`` NUTS too.  The tables of what there
is are printed at the end; ``--write`` puts them into ``docs/gallery.md``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from gallery_models import CHAPTERS
from posteriors import BIASED, CHANCE, FIELDS, fingerprint, free_names, moments, overheard
from scipy.stats import norm

import pmm_mcmc as pmm

__all__ = ["main", "tables"]

KEPT = Path(__file__).parent / "results" / "gallery"
PAGE = Path(__file__).parents[1] / "docs" / "gallery.md"
BEGIN, END = "<!-- printed by python -m benchmarks gallery -->", "<!-- end -->"
OURS, NUTS = ("pm.sample", "pmm.sample"), "NUTS"
LONG = {"chains": 4, "tune": 2000, "draws": 5000, "target_accept": 0.95}
CHAINS, SEED = 4, 1
QUIET: dict[str, Any] = {"progressbar": False, "random_seed": SEED}
# PyMC's own limits for a run of NUTS.
R_HAT, EFFECTIVE = 1.01, 400


def run(door: str, model: pm.Model, **short: int) -> Any:
    """Return a result as a user would get it."""
    with model:
        if door == "pmm.sample":
            return pmm.sample(chains=CHAINS, **QUIET, **short)
        # NUTS says what its warm-up took in the statistics of the warm-up alone.
        nuts = {"nuts_sampler": "pymc", "discard_tuned_samples": False}
        how = {"step": pmm.PoissonULMC()} if door == "pm.sample" else nuts
        return pm.sample(chains=CHAINS, cores=1, **QUIET, **how, **short)


def reference(name: str) -> dict[str, Any]:
    """Return moments by long NUTS, with its diagnostics."""
    chapter, began = CHAPTERS[name], time.process_time()
    model = chapter.build()
    with overheard(), (chapter.twin or chapter.build)():
        tree = pm.sample(**LONG, **QUIET, cores=1, nuts_sampler="pymc", compute_convergence_checks=False)
    found, _, draws = moments(tree, free_names(model))
    return {
        "sampler": f"NUTS of pymc {pm.__version__}" + (", non-centred twin" if chapter.twin else ""),
        **LONG,
        "cpu_seconds": round(time.process_time() - began),
        "divergences": int(tree["sample_stats"]["diverging"].sum()),
        **diagnosed(draws),
        "d": int(sum(np.size(value) for value in model.initial_point(0).values())),
        "fingerprint": fingerprint(model),
        **{field: [float(f"{value:.8g}") for value in found[field]] for field in FIELDS},
    }


def diagnosed(draws: np.ndarray) -> dict[str, Any]:
    """Return the largest r_hat and the fewest effective draws of any parameter that moves."""
    moving = draws.std(axis=(0, 1)) > 1e-12
    if not moving.any():
        raise ValueError("no parameter moved")
    x = xr.DataArray(draws[..., moving], dims=("chain", "draw", "i"))
    ess = np.minimum(np.asarray(az.ess(x, method="bulk")), np.asarray(az.ess(x, method="mean")))
    return {"r_hat": round(float(np.asarray(az.rhat(x)).max()), 4), "ess": round(float(ess.min()))}


def row(name: str, door: str, known: dict[str, Any]) -> dict[str, Any]:
    """Sample by one door; return errors against the reference, the verdict, and what it cost."""
    model = CHAPTERS[name].build()
    if not np.isclose(fingerprint(model), known["fingerprint"], rtol=1e-8):
        raise ValueError(f"{name}: has changed since its reference was made: --references {name}")
    try:
        with overheard():
            # A run of a few draws compiles; what is timed is a call in a session that knows the model.
            run(door, model, draws=10, tune=20)
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    began = time.process_time()
    with overheard():
        tree = run(door, model)
    found: dict[str, Any] = {"cpu_seconds": round(time.process_time() - began, 1)}
    stats, names = tree["sample_stats"], free_names(model)
    moved, labels, draws = moments(tree, names)
    found |= diagnosed(draws)
    if door == NUTS:
        spent = sum(tree[group]["n_steps"].sum("draw") for group in ("warmup_sample_stats", "sample_stats"))
        found["gradients"] = int(spent.max())
        found["divergences"] = int(stats["diverging"].sum())
        good = not found["divergences"] and found["r_hat"] <= R_HAT and found["ess"] >= EFFECTIVE
        found["state"] = "no warning" if good else "warns"
    else:
        found["gradients"] = int(stats["n_grad_total"].values[:, -1].max())
        found |= judged(tree)
    return found | errors(moved, known, labels)


def judged(tree: Any) -> dict[str, Any]:
    """Return what the run says of itself."""
    try:
        verdict = pmm.verdict(tree)
    except ValueError as error:
        return {"state": "not judged", "sentence": str(error).splitlines()[0]}
    state = getattr(verdict, "state", "trusted" if verdict.trusted else "not trusted")
    return {"state": str(state), "sentence": verdict.sentence}


def errors(moved: dict[str, np.ndarray], known: dict[str, Any], labels: list[str]) -> dict[str, Any]:
    """Return the worst errors of a mean and of a standard deviation, in posterior sds, with z and parameter."""
    truth = {field: np.array(known[field]) for field in FIELDS}
    sd, found = np.where(truth["sd"] > 1e-12, truth["sd"], np.inf), {}
    limit = norm.isf(CHANCE / 4 / sd.size)
    for what, error in (("mean", "mcse_mean"), ("sd", "mcse_sd")):
        off, se = (moved[what] - truth[what]) / sd, np.hypot(moved[error], truth[error]) / sd
        z = np.divide(off, se, out=np.zeros_like(off), where=se > 0)
        wrong = (np.abs(off) > BIASED) & (np.abs(z) > limit)
        j = int(np.argmax(np.abs(off) + 1e6 * wrong))
        found[what] = {"off": round(float(off[j]), 4), "z": round(float(z[j]), 2), "of": labels[j]}
        found[what]["wrong"] = bool(wrong[j])
    return found


def alone(function: Any, *arguments: Any) -> Any:
    """Call a function in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def bring_up(name: str, refresh: bool, references: bool) -> None:
    """Run what is missing of a model, or is to be run again, and keep each result at once."""
    path = KEPT / f"{name}.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    if references:
        kept = {"rows": {door: value for door, value in kept.get("rows", {}).items() if door != NUTS}}
    if "reference" not in kept:
        kept = {"reference": alone(reference, name), "rows": kept.get("rows", {})}
        keep(path, kept)
        print(f"{name}: reference {kept['reference']['cpu_seconds']} s", flush=True)
    for door in (*OURS, NUTS):
        if door not in kept["rows"] or (refresh and door in OURS):
            kept["rows"][door] = alone(row, name, door, kept["reference"])
            keep(path, kept)
            print(f"{name}: {door} {kept['rows'][door]}", flush=True)


def keep(path: Path, kept: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    whole = path.with_suffix(".partial")
    whole.write_text(json.dumps(kept, indent=1) + "\n")
    whole.replace(path)


def tables(every: dict[str, dict[str, Any]]) -> str:
    """Return the tables of the page, in Markdown."""
    right = ["| chapter | d | `pm.sample`: mean, sd | | `pmm.sample`: mean, sd | | NUTS: mean, sd | |"]
    cost = ["| chapter | gradients: `pm.sample` | `pmm.sample` | NUTS | CPU s: `pm.sample` | `pmm.sample` | NUTS |"]
    for table in (right, cost):
        table.append("|---|" + "---|" * (table[0].count("|") - 2))
    for name, kept in every.items():
        rows = [kept["rows"].get(door, {}) for door in (*OURS, NUTS)]
        cells = [cell for one in rows for cell in (off(one), one.get("state", "\N{EM DASH}"))]
        right.append(f"| {name} | {kept['reference']['d']} | {' | '.join(cells)} |")
        spent = [f"{one['gradients']:,}" if "gradients" in one else "\N{EM DASH}" for one in rows]
        took = [f"{one['cpu_seconds']:.1f}" if "cpu_seconds" in one else "\N{EM DASH}" for one in rows]
        cost.append(f"| {name} | {' | '.join(spent + took)} |")
    refused = [
        f"- `{name}` by `{door}`: {one['refused']}"
        for name, kept in every.items()
        for door, one in kept["rows"].items()
        if "refused" in one
    ]
    return "\n".join([*right, "", *cost, *([""] if refused else []), *refused])


def off(one: dict[str, Any]) -> str:
    """Return the errors of a run as a cell: mean (z), sd (z), with a star where one is wrong."""
    if "mean" not in one:
        return "\N{EM DASH}"
    parts = (one["mean"], one["sd"])
    return ", ".join(f"{part['off']:+.2f} ({part['z']:+.1f}){'*' if part['wrong'] else ''}" for part in parts)


def written(text: str, page: str) -> str:
    """Return the page with its tables replaced."""
    before, rest = page.split(BEGIN, 1)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END, 1)[1]}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(CHAPTERS)} (default: all)")
    parser.add_argument("--refresh", action="store_true", help="run our samplers again, and not NUTS")
    parser.add_argument("--references", action="store_true", help="run NUTS again, for the reference and its own row")
    parser.add_argument("--tables", action="store_true", help="run nothing: print the tables of what there is")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/gallery.md")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in CHAPTERS]:
        parser.error(f"unknown model {', '.join(unknown)}: take some of {', '.join(CHAPTERS)}")
    warnings.filterwarnings("ignore")
    for name in [] if given.tables else given.names or CHAPTERS:
        bring_up(name, given.refresh, given.references)
    every = {name: json.loads(path.read_text()) for name in CHAPTERS if (path := KEPT / f"{name}.json").exists()}
    text = tables(every)
    print(text)
    if given.write:
        PAGE.write_text(written(text, PAGE.read_text()))


if __name__ == "__main__":
    sys.exit(main())

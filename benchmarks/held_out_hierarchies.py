"""Textbook hierarchies that nothing was tuned on, against long NUTS: ``python -m benchmarks held_out_hierarchies``.

Every model of ``benchmarks/held_out_models.py`` is sampled in fresh processes by ``pmm.sample()`` with defaults, from a
few seeds, and once by ``pm.sample()`` with defaults.  The reference is NUTS, 4 chains of 4000 draws with
``target_accept=0.95``, on the form non-centred by hand where there is one; it is kept in
``results/held_out_hierarchies.json``, and ``--references`` makes it anew.  Before anything is sampled the transformed
density must be the model's, with the Jacobian by central differences, at random points and sites.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytensor
from gallery import alone, judged
from held_out_models import MODELS
from make_references import SAMPLER, flat_draws
from posteriors import BIASED, CHANCE, FIELDS, fingerprint, overheard
from scipy.stats import norm

# Importing targets, as held_out_models does, has put the tests into the path.
from hierarchy_models import densities, some_sites  # isort: skip

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.noncentred import WORDS
from pmm_mcmc.model.result_tree import flat_names

PATH = Path(__file__).parent / "results" / "held_out_hierarchies.json"
LONG = {"chains": 4, "tune": 2000, "draws": 4000, "target_accept": 0.95, "random_seed": 1}
NUTS = f"NUTS of {SAMPLER}"
QUIET: dict[str, Any] = {"progressbar": False}
# PyMC's own limits for a run of NUTS.
R_HAT, EFFECTIVE = 1.01, 400
HEADER = """\
pmm.sample() and pm.sample() ({nuts}) with defaults: 4 chains of 1000 draws.  Worst errors of a mean and of a standard
deviation in posterior sds of the unconstrained coordinates, with z: * off by more than {biased} and beyond chance,
! beyond chance alone (one in a hundred runs, Bonferroni).  Gradients are those of the costliest chain, warm-up
included; CPU seconds of a call in a session that knows the model, after a run of a few draws that compiles.

   sampler    seed  mean                 sd                   gradients    CPU  state"""


def agrees(model: pm.Model) -> str:
    """Return what is non-centred, after a check of the transformed density at random points.

    Raises
    ------
    AssertionError
        If it is not the model's density with the Jacobian.
    """
    plain, mapped, start = densities(model)
    if mapped.structure is None:
        return "nothing is non-centred"
    d, rng = start.size, np.random.default_rng(1)
    of_x, of_z = (
        pytensor.function([density.graph[0]], density.graph[1], mode="FAST_COMPILE", on_unused_input="ignore")
        for density in (plain, mapped)
    )
    for trial in range(2):
        x, sites = start + 0.5 * rng.normal(size=d), some_sites(mapped.structure, rng, none=trial == 0)
        mapped.sites.set_value(sites)
        z, _ = mapped.structure.to_z(x, sites)
        lp, said = of_z(z)
        steps = 1e-6 * (1 + np.abs(z)) * np.eye(d)
        columns = [(of_z(z + s)[1][d : 2 * d] - of_z(z - s)[1][d : 2 * d]) / (2 * s.sum()) for s in steps]
        np.testing.assert_allclose(said[d : 2 * d], x, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(lp - of_x(x)[0], np.linalg.slogdet(np.array(columns))[1], rtol=1e-4, atol=1e-3)
    return mapped.structure.words


def moments(model: pm.Model, tree: Any) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return moments of the unconstrained coordinates with their errors, and r_hat and effective draws."""
    x = flat_draws(model, tree)
    columns = np.moveaxis(x, 2, 0)
    errors = [np.array([float(az.mcse(c, method=kind)) for c in columns]) for kind in ("mean", "sd")]
    found = dict(zip(FIELDS, [x.mean(axis=(0, 1)), x.std(axis=(0, 1)), *errors], strict=True))
    ess = min(float(az.ess(c, method=kind)) for c in columns for kind in ("bulk", "mean"))
    return found, {"r_hat": round(max(float(az.rhat(c)) for c in columns), 4), "ess": round(ess)}


def reference(name: str) -> dict[str, Any]:
    """Return moments by long NUTS, with its diagnostics."""
    held, began = MODELS[name], time.process_time()
    with overheard(), held.build(*([False] if held.twin else [])):
        tree = pm.sample(**LONG, **QUIET, cores=1, nuts_sampler=SAMPLER, compute_convergence_checks=False)
    model = held.build()
    found, diagnosed = moments(model, tree)
    return {
        "sampler": NUTS + (", non-centred by hand" if held.twin else ""),
        **LONG,
        "cpu_seconds": round(time.process_time() - began),
        "divergences": int(tree["sample_stats"]["diverging"].sum()),
        **diagnosed,
        "fingerprint": fingerprint(model),
        **{field: [float(f"{value:.6g}") for value in found[field]] for field in FIELDS},
    }


def row(name: str, seed: int | None, known: dict[str, Any]) -> tuple[str, str]:
    """Sample by ``pmm.sample``, or by NUTS where there is no seed; return the line and what the result says."""
    model = MODELS[name].build()
    assert np.isclose(fingerprint(model), known["fingerprint"], rtol=1e-8), f"{name} has changed: --references {name}"

    def run(**short: int) -> Any:
        with overheard(), model:
            if seed is not None:
                return pmm.sample(random_seed=seed, **QUIET, **short)
            return pm.sample(
                random_seed=1, chains=4, cores=1, nuts_sampler=SAMPLER, discard_tuned_samples=False, **QUIET, **short
            )

    run(draws=10, tune=20)
    began = time.process_time()
    tree = run()
    cpu = time.process_time() - began
    stats = tree["sample_stats"]
    found, diagnosed = moments(model, tree)
    if seed is None:
        spent = sum(tree[group]["n_steps"].sum("draw") for group in ("warmup_sample_stats", "sample_stats"))
        gradients, divergences = int(spent.max()), int(stats["diverging"].sum())
        good = not divergences and diagnosed["r_hat"] <= R_HAT and diagnosed["ess"] >= EFFECTIVE
        state = "no warning" if good else f"warns: {divergences} divergences, {diagnosed}"
    else:
        gradients, said = int(stats["n_grad_total"].values[:, -1].max()), judged(tree)
        state = said["state"] + ("" if said["state"] == "trusted" else f": {said['sentence']}")
    labels = flat_names([(var.name, np.shape(model.initial_point(0)[var.name])) for var in model.value_vars])
    cells = [worst(found, known, labels, kind) for kind in ("mean", "sd")]
    line = f"   {'NUTS' if seed is None else 'pmm.sample':10s} {seed or 1:4d}  {cells[0][0]:20s} {cells[1][0]:20s} "
    line += f"{gradients:9d} {cpu:6.1f}  {state}  [{cells[0][1]}; {cells[1][1]}]"
    return line, tree["posterior"].attrs.get(WORDS, "")


def worst(found: dict[str, np.ndarray], known: dict[str, Any], labels: list[str], kind: str) -> tuple[str, str]:
    """Return the worst error of a moment as text, and its coordinate."""
    sd, errors = np.array(known["sd"]), (found[f"mcse_{kind}"], np.array(known[f"mcse_{kind}"]))
    off, se = (found[kind] - np.array(known[kind])) / sd, np.hypot(*errors) / sd
    beyond = np.abs(off) > norm.isf(CHANCE / 4 / sd.size) * se
    wrong = beyond & (np.abs(off) > BIASED)
    j = int(np.argmax(np.abs(off) + 1e6 * wrong))
    mark = "*" if wrong.any() else "!" if beyond.any() else ""
    return f"{off[j]:+.3f} ({off[j] / se[j]:+.1f}){mark}", labels[j]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(MODELS)} (default: all)")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--references", action="store_true", help="run the long NUTS again")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in MODELS]:
        parser.error(f"unknown model {', '.join(unknown)}: take some of {', '.join(MODELS)}")
    warnings.filterwarnings("ignore")
    print(HEADER.format(nuts=NUTS, biased=BIASED), flush=True)
    for name in given.names or MODELS:
        kept = json.loads(PATH.read_text()) if PATH.exists() else {}
        model = MODELS[name].build()
        words = agrees(model)
        if given.references or name not in kept:
            kept[name] = alone(reference, name)
            lines = (f" {json.dumps(key)}: {json.dumps(kept[key])}" for key in MODELS if key in kept)
            PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        known = kept[name]
        print(f"{name} (d={len(known['mean'])}): {MODELS[name].note}")
        print(f"   {words}; reference: {known['divergences']} divergences, r_hat {known['r_hat']}, ess {known['ess']}")
        for seed in [*given.seeds, None]:
            line, _ = alone(row, name, seed, known)
            print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())

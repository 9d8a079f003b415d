"""Posteriors of the kinds that people fit against long NUTS: ``python -m benchmarks paper.posteriors [name ...]``.

Every model of ``posterior_models.py`` is sampled as a user would, 4 chains, ``draws=1000, tune=1000``:

PoissonULMC  pm.sample(step=pmm.PoissonULMC(scheme="paper"))
recycled     pmm.sample(pmm.PoissonULMC(scheme="recycled"))

and compared with ``results/posteriors_reference.json``, which ``--reference`` makes anew, parameter by parameter.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from paper.posterior_models import POSTERIORS
from posteriors import BIASED, CHANCE, FIELDS, fingerprint, free_names, moments, overheard
from scipy.stats import norm

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.verdict import bias_table
from pmm_mcmc.model.result_tree import flat_names

__all__ = ["reference_of"]

PATH = Path(__file__).parent / "results" / "posteriors_reference.json"
COMMAND = "python -m benchmarks paper.posteriors --reference"
CHAINS, TUNE, TARGET_ACCEPT, SEED = 4, 1500, 0.95, 1
QUIET = {"progressbar": False, "random_seed": SEED}
WORDS = 160  # characters of what is quoted
HEADER = """\
{chains} chains, 1000 draws and a warm-up of 1000 each.

mean, sd     worst error of a posterior mean, and of a standard deviation, in posterior sds, +- its standard error
             (of both runs); * off by more than {biased}, by more than chance shows once in a hundred runs
corrected    worst error of the Stein-corrected means
gradients    of the costliest chain, warm-up included;  CPU  seconds, those of compilation included in a first run
pooled       mean of the errors of the trusted runs of all seeds

   sampler     seed  mean                sd               corrected  gradients   CPU  verdict"""
SAMPLERS = {"PoissonULMC": "pm.sample", "recycled": "pmm.sample"}


@dataclass(frozen=True)
class Errors:
    """Errors of means, then of standard deviations, and their standard errors, in posterior sds: ``(2, p)`` each."""

    off: np.ndarray
    se: np.ndarray

    @property
    def biased(self) -> np.ndarray:
        """Which are beyond the limit, and not by chance."""
        return (np.abs(self.off) > BIASED) & (np.abs(self.off) > norm.isf(CHANCE / 2 / self.off.size) * self.se)

    def worst(self, kind: int, labels: list[str]) -> tuple[str, str]:
        """Return the worst error of means (0) or standard deviations (1), and the parameter's name."""
        where = self.biased[kind]
        j = int(np.argmax(np.abs(self.off[kind]) + 1e6 * where))
        return f"{self.off[kind, j]:+.3f} +- {self.se[kind, j]:.3f}{'*' if where[j] else ' '}", labels[j]


def make_reference(name: str) -> dict[str, Any]:
    """Return moments by NUTS, with the settings and the diagnostics of the run behind them."""
    posterior, began = POSTERIORS[name], time.process_time()
    model = posterior.build()
    settings = {"chains": CHAINS, "tune": TUNE, "draws": posterior.draws, "target_accept": TARGET_ACCEPT}
    with (posterior.twin or posterior.build)():
        tree = pm.sample(**settings, **QUIET, cores=1, quiet=True, compute_convergence_checks=False)
    found, _, draws = moments(tree, free_names(model))
    x = xr.DataArray(draws, dims=("chain", "draw", "i"))
    moving = found["sd"] > 1e-12
    ess = np.minimum(np.asarray(az.ess(x, method="bulk")), np.asarray(az.ess(x, method="mean")))
    entry = {
        "command": f"{COMMAND} {name}",
        "sampler": f"NUTS of pymc {pm.__version__}" + (", non-centred twin" if posterior.twin else ""),
        **settings,
        "seed": SEED,
        "cpu_seconds": round(time.process_time() - began),
        "gradients_a_chain": int(tree["sample_stats"]["n_steps"].sum("draw").max()),
        "divergences": int(tree["sample_stats"]["diverging"].sum()),
        "largest_r_hat": round(float(np.asarray(az.rhat(x))[moving].max()), 4),
        "smallest_ess": round(float(ess[moving].min())),
        "largest_mcse_in_sd": round(float((found["mcse_mean"] / found["sd"])[moving].max()), 4),
        "fingerprint": fingerprint(model),
    }
    print(f"{name}: {entry}", flush=True)
    return entry | {field: [float(f"{v:.8g}") for v in found[field]] for field in FIELDS}


def reference_of(name: str, model: pm.Model) -> dict[str, Any]:
    """Return the reference of a model.

    Raises
    ------
    ValueError
        If there is none, or the model has been changed since it was made.
    """
    stored = json.loads(PATH.read_text()).get(name) if PATH.exists() else None
    if stored is None or not np.isclose(fingerprint(model), stored["fingerprint"], rtol=1e-8):
        raise ValueError(f"name={name!r}: no reference of this model as it is: run {COMMAND} {name}")
    return stored


def sampled(sampler: str, model: pm.Model, seed: int) -> Any:
    """Return a run as a user would make it."""
    with model:
        if sampler == "PoissonULMC":
            step = pmm.PoissonULMC(scheme="paper")
            return pm.sample(step=step, chains=CHAINS, cores=1, random_seed=seed, progressbar=False)
        step = pmm.PoissonULMC(scheme="recycled")
        return pmm.sample(step, chains=CHAINS, random_seed=seed, progressbar=False)


def one_run(sampler: str, model: pm.Model, reference: dict[str, Any], seed: int) -> Errors | None:
    """Sample, print the row, and return the errors of a trusted run."""
    began, names = time.process_time(), free_names(model)
    with overheard() as said:
        tree = sampled(sampler, model, seed)
    seconds = time.process_time() - began
    verdict, table = pmm.verdict(tree), bias_table(tree, names)
    found, labels, _ = moments(tree, names)
    known = {field: np.array(reference[field]) for field in FIELDS}
    sd = np.where(known["sd"] > 1e-12, known["sd"], np.inf)
    off = np.stack([found[field] - known[field] for field in ("mean", "sd")]) / sd
    error = np.stack([np.hypot(found[field], known[field]) for field in ("mcse_mean", "mcse_sd")]) / sd
    errors = Errors(off, error)
    corrected = float(np.abs((table["mean_corrected"].to_numpy() - known["mean"]) / sd).max())
    (mean, of_mean), (spread, of_spread) = (errors.worst(kind, labels) for kind in (0, 1))
    wrong = bool(errors.biased.any())
    short = all(reason.remedy.endswith("draw more") for reason in verdict.reasons)
    word = ("WRONG trust" if wrong else "trust") if verdict.trusted else "no" + (", rightly" if wrong else "")
    word += ", asks for more draws" if not verdict.trusted and short else ""
    spent = int(tree["sample_stats"]["n_grad_total"].values[:, -1].max())
    print(
        f"   {sampler:11s} {seed:4d}  {mean:18s} {spread:18s} {corrected:8.3f} {spent:10d} {seconds:6.1f}  {word}"
        f"  [{of_mean}; {of_spread}]"
    )
    for reason in verdict.reasons:
        print(f"        - {reason}")
    words = [line for line in said if "is sampled non-centred" in line]
    if words:
        print(f"        {words[0][:WORDS]}")
    for line in dict.fromkeys(line for line in said if "unstable" in line or "finite" in line):
        print(f"        said: {line[:WORDS]}")
    print(end="", flush=True)
    return errors if verdict.trusted else None


def compare(name: str, samplers: list[str], seeds: list[int]) -> None:
    """Print the table of a model."""
    model = POSTERIORS[name].build()
    reference = reference_of(name, model)
    labels = flat_names([(v, np.shape(model[v].eval())) for v in free_names(model)])
    print(
        f"{name} (d={sum(np.size(v) for v in model.initial_point(0).values())}): {POSTERIORS[name].note}; NUTS: "
        f"{reference['cpu_seconds']} s, r_hat {reference['largest_r_hat']}, {reference['divergences']} divergences",
        flush=True,
    )
    for sampler in samplers:
        runs = [one_run(sampler, model, reference, seed) for seed in seeds]
        trusted = [run for run in runs if run is not None]
        if len(trusted) > 1:
            errors = pooled(trusted, reference)
            (mean, of_mean), (spread, of_spread) = (errors.worst(kind, labels) for kind in (0, 1))
            word = "WRONG trust" if errors.biased.any() else "trust"
            print(
                f"   {sampler:11s}  all  {mean:18s} {spread:18s} {'':26s}  {word}  [{of_mean}; {of_spread}]", flush=True
            )


def pooled(runs: list[Errors], reference: dict[str, Any]) -> Errors:
    """Return the mean of runs' errors; they share the reference's own."""
    sd = np.maximum(np.array(reference["sd"]), 1e-12)
    shared = np.stack([np.array(reference[field]) for field in ("mcse_mean", "mcse_sd")]) / sd
    own = np.mean([np.maximum(run.se**2 - shared**2, 0.0) for run in runs], axis=0) / len(runs)
    return Errors(np.mean([run.off for run in runs], axis=0), np.sqrt(own + shared**2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = f"of {', '.join(POSTERIORS)} (default: all that have a reference)"
    parser.add_argument("names", nargs="*", help=names)
    parser.add_argument("--reference", action="store_true", help="run NUTS and store its moments")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--samplers", nargs="*", default=list(SAMPLERS), choices=list(SAMPLERS))
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in POSTERIORS]:
        parser.error(f"unknown model {', '.join(unknown)}: take some of {', '.join(POSTERIORS)}")
    if not arguments.reference:
        print(HEADER.format(chains=CHAINS, biased=BIASED), flush=True)
    with_reference = json.loads(PATH.read_text()) if PATH.exists() else {}
    for name in arguments.names or (POSTERIORS if arguments.reference else with_reference):
        if not arguments.reference:
            compare(name, arguments.samplers, arguments.seeds)
            continue
        entry = make_reference(name)
        stored = json.loads(PATH.read_text()) if PATH.exists() else {}
        stored[name] = entry
        lines = (f" {json.dumps(key)}: {json.dumps(stored[key])}" for key in POSTERIORS if key in stored)
        PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()

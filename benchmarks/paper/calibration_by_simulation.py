"""Simulation-based calibration: ``python -m benchmarks paper.calibration_by_simulation [model ...]``.

A truth is drawn from the prior, data are simulated from it, and the posterior given these data is sampled with the
defaults, 4 chains of 1000 draws.  If the draws are of the posterior, the rank of the truth among them is uniform [1]_.
Many such replicates of each model of ``simulated_models.py`` are run, for

paper       pmm.sample(pmm.PoissonULMC(scheme="paper"))
recycled    pmm.sample(pmm.PoissonULMC(scheme="recycled"))

and ranks of all parameters and of the log likelihood are taken among 100 draws, every 40th, as they are (raw), and
shifted and scaled to the means and standard deviations that ``pmm.summary(kind="bias")`` corrects by the gradients
(corrected). ``--write`` keeps ranks, tables and the picture; models and seeds that are not named keep theirs.

.. [1] S. Talts, M. Betancourt, D. Simpson, A. Vehtari, A. Gelman, "Validating Bayesian inference algorithms with
   simulation-based calibration", arXiv:1804.06788.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import logging
import time
from pathlib import Path
from typing import Any, NamedTuple

import arviz_plots
import numpy as np
import pymc as pm
import xarray as xr
from arviz_base.labels import NoVarLabeller
from paper.simulated_models import SIMULATED
from scipy.stats import chisquare, norm
from scipy.stats import f as f_distribution

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.reading import read
from pmm_mcmc.diagnostics.table import table_of
from pmm_mcmc.diagnostics.verdict import judge

__all__ = ["Uniformity", "main", "replicates", "uniformity"]

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
SAMPLERS = {"paper": {"scheme": "paper"}, "recycled": {"scheme": "recycled"}}
REPLICATES, CHAINS, EVERY, BINS = 50, 4, 40, 10
# How often exact draws would be called not uniform: half of it for the bins, half for the means of all quantities.
CHANCE = 0.01
# Tails of a posterior, by rank: two of its ten bins, and the outermost fiftieth.
TAILS = (0.1, 0.02)
HEADER = """\
Quantities: parameters, and the log likelihood.  Ranks of the truth among 100 draws.

bins, joint   p-values: chi-square over {bins} bins, the least of all quantities times their number; Hotelling's T^2 of
              the means of the normal scores.  * one of the two below {each:.3f}: exact draws do so once in {once:.0f}
bias, sd      largest over quantities, by its standard error, of what the ranks say: bias of the mean in posterior
              sds, standard deviation over the posterior's
CPU           seconds of a replicate with verdict and correction, median;  gradients  of the costliest chain, median
tails         share of truths in the outer {outer:.0%} of the draws, and in the outer {far:.0%}
measured      mean over replicates of raw minus corrected mean, in posterior sds, the largest of all quantities"""


class Uniformity(NamedTuple):
    """Whether ranks ``(replicate, quantity)`` are uniform.

    Attributes
    ----------
    bins, joint
        p-values, of the bins of all quantities and of the means of all scores.
    bias, spread : (quantity,)
        What the ranks say of the draws: bias of their mean, in posterior standard deviations, and their standard
        deviation, over the posterior's.
    bias_se, spread_se : float
        Standard errors, where ranks are uniform.
    """

    bins: float
    joint: float
    bias: np.ndarray
    bias_se: float
    spread: np.ndarray
    spread_se: float

    @property
    def rejected(self) -> bool:
        """Whether exact draws would look like this less often than ``CHANCE``."""
        return min(self.bins, self.joint) < CHANCE / 2


def fractions(ranks: np.ndarray, draws: int) -> np.ndarray:
    """Return numbers in (0, 1) that are exactly uniform if ranks among so many draws are: ties of ranks are broken."""
    return (ranks + np.random.default_rng(1).random(ranks.shape)) / (draws + 1)


def bin_counts(u: np.ndarray) -> np.ndarray:
    """Counts of numbers in (0, 1) ``(replicate, quantity)`` in bins: ``(bin, quantity)``."""
    return np.stack([np.histogram(column, BINS, (0.0, 1.0))[0] for column in u.T], axis=1)


def uniformity(ranks: np.ndarray, draws: int) -> Uniformity | None:
    r"""Test whether ranks ``(replicate, quantity)`` among so many draws are uniform; None of too few.

    Each chi-square counts once for all (Bonferroni), whatever their dependence.  Normal scores :math:`z` of uniform
    ranks are standard normal; of a normal posterior, draws that are off by :math:`b` standard deviations have
    :math:`E z = -b`, and :math:`\mathrm{sd}(z) = 1 / s` if they are :math:`s` times as wide.
    """
    n, p = ranks.shape
    if n < max(5 * BINS, 3 * p):
        return None
    u = fractions(ranks, draws)
    z = norm.ppf(u)
    mean, covariance = z.mean(axis=0), np.atleast_2d(np.cov(z, rowvar=False))
    statistic = n * mean @ np.linalg.solve(covariance, mean) * (n - p) / (p * (n - 1))
    spread = 1.0 / np.sqrt((z**2).mean(axis=0) - mean**2)
    return Uniformity(
        bins=min(1.0, p * float(chisquare(bin_counts(u), axis=0).pvalue.min())),
        joint=float(f_distribution.sf(statistic, p, n - p)),
        bias=-mean,
        bias_se=1.0 / np.sqrt(n),
        spread=spread,
        spread_se=1.0 / np.sqrt(2.0 * n),
    )


def thinned_ranks(values: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Ranks of truths ``(p,)`` among every 40th draw of ``(chain, draw, p)``."""
    return (values[:, EVERY - 1 :: EVERY] < truth).sum(axis=(0, 1))


def simulated(model: pm.Model, how_many: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return truths by name, the log likelihood among them, and data simulated from each."""
    free = model.free_RVs
    *drawn, data = pm.draw([*free, model["y"]], draws=how_many, random_seed=seed, mode="FAST_COMPILE")
    log_likelihood = pm.compile(list(free), model["log_likelihood"], mode="FAST_COMPILE", on_unused_input="ignore")
    found = np.empty(how_many)
    for i in range(how_many):
        model.set_data("data", data[i])
        found[i] = log_likelihood(*(values[i] for values in drawn))
    truths = {variable.name: values for variable, values in zip(free, drawn, strict=True)}
    return truths | {"log_likelihood": found}, data


def replicates(model: pm.Model, sampler: str, how_many: int, seed: int) -> dict[str, Any]:
    """Run replicates of a model, and return ranks, verdicts and costs: what is stored of them.

    Truths and data depend on the model and the seed only.
    """
    truths, data = simulated(model, how_many, seed)
    raw, corrected, shifts, reasons, seconds, gradients = [], [], [], [], [], []
    for i in range(how_many):
        began = time.process_time()
        model.set_data("data", data[i])
        step = pmm.PoissonULMC(**SAMPLERS[sampler])
        options = {"progressbar": False, "compute_convergence_checks": False}
        tree = pmm.sample(step, model=model, chains=CHAINS, random_seed=1000 * seed + i, **options)
        run = read(tree, truths)
        table = table_of(run)  # that of pmm.bias, and what pmm.verdict says of it
        reasons.append([str(reason) for reason in judge(tree, run, table).reasons])
        seconds.append(time.process_time() - began)
        truth = np.concatenate([np.ravel(values[i]) for values in truths.values()])
        mean, sd, better, better_sd = table[["mean", "sd", "mean_corrected", "sd_corrected"]].to_numpy().T
        raw.append(thinned_ranks(run.values, truth))
        corrected.append(thinned_ranks(corrected_draws(run.values, mean, sd, better, better_sd), truth))
        shifts.append((mean - better) / better_sd)
        gradients.append(int(tree["sample_stats"]["n_grad_total"].values[:, -1].max()))
    return {
        "seed": seed,
        "quantities": run.labels,
        "draws": CHAINS * (run.values.shape[1] // EVERY),
        "raw": np.array(raw).tolist(),
        "corrected": np.array(corrected).tolist(),
        "measured": np.mean(shifts, axis=0).round(5).tolist(),
        "measured_se": (np.std(shifts, axis=0) / np.sqrt(how_many)).round(5).tolist(),
        "reasons": reasons,
        "seconds": round(float(np.median(seconds)), 2),
        "gradients": int(np.median(gradients)),
    }


def corrected_draws(
    values: np.ndarray, mean: np.ndarray, sd: np.ndarray, better: np.ndarray, better_sd: np.ndarray
) -> np.ndarray:
    """Shift and scale draws ``(chain, draw, p)`` from their mean and standard deviation to better ones."""
    return better + (values - mean) * (better_sd / sd)


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the replicates of several seeds together."""
    first = parts[0]
    error = np.sqrt(np.sum(np.square([part["measured_se"] for part in parts]), axis=0)) / len(parts)
    return {
        **{name: first[name] for name in ("quantities", "draws")},
        **{name: np.concatenate([part[name] for part in parts]) for name in ("raw", "corrected")},
        **{name: np.median([part[name] for part in parts]) for name in ("seconds", "gradients")},
        "measured": np.mean([part["measured"] for part in parts], axis=0),
        "measured_se": error,
        "reasons": [reasons for part in parts for reasons in part["reasons"]],
        "seeds": [part["seed"] for part in parts],
    }


def kind(reason: str) -> str:
    """Return a reason without its numbers, names and remedy."""
    kinds = {
        "r_hat": "chains disagree", "is known to": "too few draws", "unstable": "unstable transitions",
        "E[x dF/dx]": "Stein identity", "the mean of": "bias of a mean", "the sd of": "bias of a sd",
        "steps of this size": "step too long",
        # Of runs that are kept from when funnels were searched in draws.
        "straightened in part": "funnel straightened in part",
    }  # fmt: skip
    return next((words for start, words in kinds.items() if start in reason), reason)


def line(what: str, ranks: np.ndarray, record: dict[str, Any]) -> str:
    """Return a line of the table of a model: tests of some ranks, and the tails."""
    start = f"   {what:20s} {len(ranks):4d}"
    if not len(ranks):
        return start
    u = fractions(ranks, record["draws"])
    outside = np.abs(u - 0.5)
    tails = "  ".join(f"{(outside > 0.5 - share / 2).mean():6.3f}" for share in TAILS)
    found = uniformity(ranks, record["draws"])
    if found is None:
        return f"{start}  {'too few to test':55s} {tails}"
    worst, wide = int(np.argmax(np.abs(found.bias))), int(np.argmax(np.abs(np.log(found.spread))))
    mark = "*" if found.rejected else " "
    return (
        f"{start}  {found.bins:6.3f} {found.joint:6.3f}{mark} {found.bias[worst]:+6.3f} +- {found.bias_se:.3f} "
        f" {found.spread[wide]:6.3f} +- {found.spread_se:.3f}        {tails}"
        f"  [{record['quantities'][worst]}; {record['quantities'][wide]}]"
    )


def section(name: str, samplers: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the lines of a model."""
    lines = ["", f"{name}: {SIMULATED[name].note}"]
    for sampler, parts in samplers.items():
        record = joined(parts)
        refused = np.array([bool(reasons) for reasons in record["reasons"]])
        j = int(np.argmax(np.abs(record["measured"])))
        lines.append(
            f"  {sampler}: {(~refused).sum()} of {len(refused)} trusted; CPU {record['seconds']:.2f} s, "
            f"{record['gradients']:.0f} gradients; measured {record['measured'][j]:+.4f} +- "
            f"{record['measured_se'][j]:.4f} [{record['quantities'][j]}]; seeds {record['seeds']}"
        )
        groups = {"": slice(None)} | ({", trusted": ~refused, ", refused": refused} if refused.any() else {})
        lines += [
            line(ranks + words, record[ranks][which], record)
            for words, which in groups.items()
            for ranks in ("raw", "corrected")
        ]
        said = collections.Counter(kind(reason) for reasons in record["reasons"] for reason in reasons)
        if said:
            lines.append("   refused for: " + ", ".join(f"{words} {count}" for words, count in said.most_common()))
        lines += quantities(record)
    return lines


def quantities(record: dict[str, Any]) -> list[str]:
    """Return a line with what the raw ranks say of the bias of each quantity."""
    if (found := uniformity(record["raw"], record["draws"])) is None:
        return []
    each = (f"{label} {off:+.2f}" for label, off in zip(record["quantities"], found.bias, strict=True))
    return [f"   bias by raw ranks, each +- {found.bias_se:.2f}: " + ", ".join(each)]


def report(stored: dict[str, Any]) -> list[str]:
    """Return the tables of what is stored."""
    words = {"bins": BINS, "each": CHANCE / 2, "once": 1 / CHANCE, "outer": TAILS[0], "far": TAILS[1]}
    columns = f"   {'':20s}    n    bins  joint   bias              sd                tails"
    sections = (
        text for name in SIMULATED if name in stored["models"] for text in section(name, stored["models"][name])
    )
    return [stored["made"], "", HEADER.format(**words), "", columns, *sections]


def picture(stored: dict[str, Any], path: Path) -> None:
    """Draw by how much the distribution of raw ranks is off the uniform one, for each model's worst quantity."""
    panels = {}
    for name, samplers in stored["models"].items():
        for sampler, parts in samplers.items():
            record = joined(parts)
            u = fractions(record["raw"], record["draws"])
            worst = int(np.argmin(chisquare(bin_counts(u), axis=0).pvalue))
            panels[f"{name}, {sampler}: {record['quantities'][worst]}"] = u[:, worst]
    fewest = min(map(len, panels.values()))
    array = np.stack([u[:fewest] for u in panels.values()], axis=1)
    ranks = xr.Dataset({"rank": xr.DataArray(array, dims=("sample", "of"), coords={"of": list(panels)})})
    looks = {"visuals": {"title": {"size": 10}, "xlabel": False}, "labeller": NoVarLabeller()}
    looks["figure_kwargs"] = {"figsize": (12, 6), "layout": "constrained"}
    tree = xr.DataTree.from_dict({"prior_sbc": ranks})
    arviz_plots.plot_ecdf_pit(tree, sample_dims=["sample"], envelope_prob=1.0 - CHANCE, **looks).savefig(path)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run replicates, print the tables and return what they are made from."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SIMULATED)} (default: all)")
    parser.add_argument("--samplers", nargs="*", default=list(SAMPLERS), choices=list(SAMPLERS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2], help="of 50 replicates each")
    parser.add_argument("--quick", action="store_true", help="five replicates of two models")
    parser.add_argument("--write", action="store_true", help="keep ranks, tables and picture")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in SIMULATED]:
        parser.error(f"unknown model {', '.join(unknown)}: take some of {', '.join(SIMULATED)}")
    names, how_many, seeds = options.names or list(SIMULATED), REPLICATES, options.seeds
    if options.quick:
        names, how_many, seeds = options.names or ["linear", "logistic"], 5, [1]
    logging.getLogger("pmm_mcmc").setLevel(logging.ERROR)
    kept = RESULTS / "calibration_by_simulation.json"
    stored = json.loads(kept.read_text()) if options.write and kept.exists() else {"models": {}}
    stored["made"] = (
        f"{datetime.date.today()}, pmm_mcmc {pmm.__version__}, pymc {pm.__version__}, numpy {np.__version__}"
    )
    models = {name: SIMULATED[name].build() for name in names}
    for seed in seeds:
        for name, model in models.items():
            for sampler in options.samplers:
                part = replicates(model, sampler, how_many, seed)
                parts = stored["models"].setdefault(name, {}).setdefault(sampler, [])
                parts[:] = sorted([*(p for p in parts if p["seed"] != seed), part], key=lambda p: p["seed"])
                if options.write:
                    kept.write_text(json.dumps(stored) + "\n")
            print(*section(name, stored["models"][name]), sep="\n", flush=True)
    if options.write:
        (RESULTS / "calibration_by_simulation.txt").write_text("\n".join(report(stored)) + "\n")
        picture(stored, ROOT / "docs" / "images" / "calibration_by_simulation.png")
    return stored


if __name__ == "__main__":
    main()

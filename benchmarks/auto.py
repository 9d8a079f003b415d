"""What ``draws="auto"`` costs, and if its intervals hold: ``python -m benchmarks auto costs | coverage | refused``.

The first two make runs of 1000 draws by four chains, with defaults, and judge them where ``draws="auto"`` would: its
draws are the first of these.  ``costs``: gradients a chain to its end and to 1000 draws, and both verdicts, two seeds.
``coverage``: how often 1.96 standard errors about means and standard deviations hold the truth, over all parameters of
``--runs`` runs: at the end that the rule chooses, at 200 draws, and at 1000.  The truth is known, or the mean of all
runs of 1000 draws.  ``refused``: odd runs that the scoreboard keeps as right and refused, from the same seeds by
``pmm.sample("auto")``, and on by ``pmm.sample("auto", more=dt)`` as long as the verdict asks for draws alone.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from typing import Any

import numpy as np
import pymc as pm
from posteriors import gradients_of
from scoreboard.__main__ import PATH
from scoreboard.entries import ENTRIES
from scoreboard.measure import errors_and_costs
from scoreboard.page import errors_in_words
from scoreboard.posteriordb import POSTERIORS
from targets import TARGETS
from versus.kept import read

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.statement import MORE
from pmm_mcmc.diagnostics.summary import bias_table
from pmm_mcmc.diagnostics.verdict import asks_for_more
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.run.until import UntilKnown, look_every

CHAINS, LONGEST = 4, 16  # calls of "auto"
COSTS = (
    "eight_schools", "funnel10", "gaussian100", "banana", "breast_cancer", "gp_pois_regr-gp_pois_regr", "mixture20",
    "poisson_glm",
)  # fmt: skip
ENDS = UntilKnown(look_every(CHAINS), 0, dict, Processes(slice(0, 1))).ends
MEANS, SDS = (("mean_cv", "mcse_cv"), ("mean", "mcse")), (("sd_cv", "mcse_sd_cv"),)


def correlated() -> pm.Model:
    with pm.Model() as model:
        pm.MvNormal("x", np.zeros(5), 0.8 * np.ones((5, 5)) + 0.2 * np.eye(5))
    return model


def run(model: pm.Model, seed: int) -> tuple[Any, int, str]:
    """Return a run of 1000 draws, where the rule would have ended it, and the last reason against an earlier end."""
    options: dict[str, Any] = {"progressbar": False, "compute_convergence_checks": False}
    dt, words = pmm.sample(model=model, chains=CHAINS, random_seed=seed, **options), ""
    for n in ENDS:
        reason = asks_for_more(dt.isel(draw=slice(0, n)))
        if reason is None:
            return dt, n, words
        words = str(reason)
    return dt, ENDS[-1], words


def costs(names: list[str]) -> None:
    for name in names or COSTS:
        model = POSTERIORS[name].build() if name in POSTERIORS else TARGETS[name].build()
        for seed in (1, 2):
            dt, n, words = run(model, seed)
            total = dt["sample_stats"]["n_grad_total"].mean("chain").values
            states = [pmm.verdict(dt.isel(draw=slice(0, k))).state for k in (ENDS[-1], n)]
            print(
                f"{name}, seed {seed}: {total[-1]:.0f} gradients a chain, {states[0]}; auto: {n} draws, "
                f"{total[n - 1]:.0f} gradients, {states[1]}; last: {words}",
                flush=True,
            )


def coverage(names: list[str], runs: int) -> None:
    for name in names or ("correlated", "eight_schools_centred"):
        model = correlated() if name == "correlated" else TARGETS[name].build()
        tables: dict[str, list[Any]] = {"auto": [], "200 draws": [], "1000 draws": []}
        ends: list[int] = []
        for seed in range(1000, 1000 + runs):
            dt, n, _ = run(model, seed)
            ends.append(n)
            for kind, k in zip(tables, (n, 200, 1000), strict=True):
                tables[kind].append(bias_table(dt.isel(draw=slice(0, k))))
        counts = ", ".join(f"{n}: {ends.count(n)}" for n in sorted(set(ends)))
        print(f"{name}, {runs} runs, {len(tables['auto'][0])} parameters; ends {counts}")
        for kind, found in tables.items():
            shares = []
            for value, error in MEANS + SDS:
                longest = np.mean([table[value] for table in tables["1000 draws"]], axis=0)
                truth = longest if name != "correlated" else np.full(5, float((value, error) in SDS))
                z = np.array([(table[value] - truth) / table[error] for table in found])
                shares.append(100.0 * np.mean(np.abs(z[np.isfinite(z)]) < 1.96))
            means, plain, sds = (f"{share:.1f} %" for share in shares)
            print(f"  {kind:10}  corrected means {means}, plain means {plain}, standard deviations {sds}", flush=True)


def refused() -> None:
    for row in read(PATH):
        if row["sampler"] != "default" or not row["target"].startswith("odd/") or "error" in row:
            continue
        if row["right"] and row["state"] != "trusted":
            settle(row["target"], row["seed"], row["gradients"])


def settle(key: str, seed: int, before: float) -> None:
    """Go on with a run until it is trusted or more draws would not help, and say how right it is then."""
    model, truth, dt, calls = ENTRIES[key].build(), ENTRIES[key].truth(), None, 0
    while calls < LONGEST:
        which = {"random_seed": seed, "chains": CHAINS} if dt is None else {"more": dt}
        dt = pmm.sample("auto", model=model, progressbar=False, **which)
        calls, found = calls + 1, pmm.verdict(dt)
        if found.trusted or not any(reason.remedy == MORE for reason in found.reasons):
            break
    sentence = found.sentence
    stats = dt["sample_stats"].dataset
    each, total = gradients_of(stats), stats["n_grad_total"].values[:, -1]
    right = errors_and_costs(truth, truth.draws(model, dt), each, total - each.sum(axis=1))
    words = (
        f"{calls} calls, {stats.sizes['draw']} draws, {total.max():.0f} gradients a chain (1000 draws: {before:.0f})"
    )
    print(f"{key} seed {seed}: {words}; {errors_in_words(right)}; {sentence}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("costs", "coverage", "refused"))
    parser.add_argument("names", nargs="*", help="models; by default those of the documentation")
    parser.add_argument("--runs", type=int, default=200)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("pmm_mcmc").setLevel(logging.ERROR)
    if arguments.what == "refused":
        refused()
    elif arguments.what == "costs":
        costs(arguments.names)
    else:
        coverage(arguments.names, arguments.runs)


if __name__ == "__main__":
    main()

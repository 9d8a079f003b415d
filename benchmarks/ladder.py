r"""Ladders of temperatures on targets whose evidence and weights are known: ``python -m benchmarks ladder``.

Each target runs at ``--seeds`` seeds.  Of log evidence and of the weight of the first mode: mean error, its standard
deviation over seeds, mean of the errors that runs report, and the share of runs within 1.96 and within 3 of these; the
mean barrier with the known one from the prior (quadrature, ``r`` of the coarse ladder corrected), rungs, gradients of
all chains, restarts, and the share of trusted runs.  ``--coverage`` prints the table of docs/modes.md.

``gaussian``
    Normal of precision 1 as prior, 10 as posterior: log evidence ``-(d / 2) log 10``.
``binomial``
    ``y ~ Binomial(n, p q)`` with uniform ``p``, ``q``, half of ``n`` successes: log evidence in closed form.
``mixture``
    Normals of weight .3 and .7 at ``a`` and ``-a`` with the prior N(0, a^2 I): log evidence 0.
``widths``
    The same at distance 10 with standard deviations 1 and .5 from the prior N(0, 25 I): hard for any tempering
    (Woodard, Schmidler and Huber 2009).
``galaxies``
    Mixtures of three components for 82 velocities, whose six labellings have weight 1/6 each: the share of the first
    component's mean being the lowest, against 1/3.
``transfection``, ``phi4``, ``spike``, ``regression``, ``schools``, ``funnel``
    See :mod:`benchmarks.ladder_targets`.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from models import unequal
from scipy.special import betaln, digamma, gammaln

import pmm_mcmc as pmm
from benchmarks import ladder_targets as more

QUIET = {"progressbar": False, "compute_convergence_checks": False, "backend": "numba"}
GALAXIES = Path(__file__).parent.parent / "docs" / "data" / "galaxies.csv"


def gaussian(d):
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0, shape=d)
        pm.Potential("narrower", -4.5 * (x**2).sum())
    return model, -0.5 * d * np.log(10.0), {1: 0.73, 10: 2.83, 100: 9.17}[d], None, {}


def binomial(n):
    y = n // 2
    with pm.Model() as model:
        pm.Binomial("y", n, pm.Uniform("p") * pm.Uniform("q"), observed=y)
    known = gammaln(n + 1) - gammaln(y + 1) - gammaln(n - y + 1) + betaln(y + 1, n - y + 1)
    known += np.log(digamma(n + 2) - digamma(y + 1))
    return model, float(known), {100: 1.53, 100_000: 3.73}[n], None, {}


def mixture(a, d):
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, a, shape=d)
        prior = pm.logp(pm.Normal.dist(0.0, a, shape=d), x).sum()
        tops = pt.logaddexp(np.log(0.3) - 0.5 * (x[0] - a) ** 2, np.log(0.7) - 0.5 * (x[0] + a) ** 2)
        pm.Potential("modes", tops - 0.5 * (x[1:] ** 2).sum() - 0.5 * d * np.log(2.0 * np.pi) - prior)
    known = {3.5: (1.2, 3.0, 4.4, 10.0), 10: (2.2, 5.6, 8.1, 18.4), 20: (2.9, 7.4, 10.6, 24.0)}[a]
    barrier = known[(2, 10, 20, 100).index(d)]
    return model, 0.0, barrier, (0.3, lambda dt: dt["posterior"]["x"].values[..., 0] > 0.0), {}


def widths(d):
    return (
        unequal(d),
        0.5 * d * np.log(2.0 * np.pi),
        np.nan,
        (0.5, lambda dt: dt["posterior"]["x"].values[..., 0] > 0.0),
        {},
    )


def galaxies(components):
    y = np.loadtxt(GALAXIES, comments=("#", "v")) / 1000.0
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(components))
        mu = pm.Normal("mu", 20.0, 10.0, shape=components)
        sigma = pm.LogNormal("sigma", np.log(2.0), 0.5, shape=components)
        pm.NormalMixture("y", w, mu, sigma, observed=y)
    first = None
    if components > 1:
        first = 1.0 / components, lambda dt: dt["posterior"]["mu"].values.argmin(axis=-1) == 0
    return model, np.nan, np.nan, first, {}


TARGETS = {
    "gaussian": (gaussian, [(1,), (10,), (100,)]),
    "binomial": (binomial, [(100,), (100_000,)]),
    "mixture": (mixture, [(a, d) for a in (3.5, 10, 20) for d in (2, 10, 20, 100)]),
    "widths": (widths, [(10,), (20,)]),
    "galaxies": (galaxies, [(2,), (3,), (4,)]),
    "transfection": (more.transfection, [()]),
    "phi4": (more.phi4, [(8,), (32,)]),
    "spike": (more.spike, [(6,), (10,)]),
    "regression": (more.regression, [(5,), (20,)]),
    "schools": (more.schools, [()]),
    "funnel": (more.funnel, [(5,)]),
}


# Target, arguments, reference, chains and draws of the rows of --coverage.
COVERAGE = [
    ("binomial", (100,), "prior", 64, 100), ("gaussian", (10,), "prior", 64, 100),
    ("mixture", (3.5, 2), "prior", 64, 100), ("mixture", (3.5, 10), "prior", 128, 150),
    ("binomial", (100,), "auto", 64, 100), ("schools", (), "auto", 64, 100), ("phi4", (8,), "auto", 128, 60),
    ("spike", (6,), "auto", 128, 60), ("widths", (20,), "auto", 256, 60),
]  # fmt: skip


def measured(name, arguments, reference, seeds, chains, draws):
    """Print the row of a target."""
    build, _ = TARGETS[name]
    model, log_evidence, barrier, mode, options = build(*arguments)
    options = {"reference": reference} | options
    evidence, weights, others, began = [], [], [], time.time()
    for seed in range(seeds):
        dt = pmm.temper(model=model, chains=chains, draws=draws, random_seed=seed, **options, **QUIET)
        ladder = dt["ladder"].to_dataset()
        evidence.append((float(ladder["log_evidence"]), float(ladder["log_evidence_se"])))
        barrier_found, gradients, restarts = (
            float(ladder[n].values.flat[-1]) for n in ("barrier", "gradients", "restarts")
        )
        trusted = pmm.verdict(dt).state == "trusted"
        others.append((barrier_found, ladder.sizes["rung"], gradients / 1000, restarts, trusted))
        if mode is not None:
            share = mode[1](dt).mean(axis=1)
            between = share.std(ddof=1) / np.sqrt(len(share))
            w = share.mean()
            weights.append((w, max(between, np.sqrt(w * (1.0 - w) / max(restarts, 1)))))
    label = f"{name} {' '.join(map(str, arguments))}".strip() + f" {reference}"
    rest = np.mean(others, axis=0)
    print(
        f"{label:30}{_row(evidence, log_evidence)}{_row(weights, mode[0]) if mode else ' ' * 36}{rest[0]:7.2f}"
        f"{barrier:7.2f}{rest[1]:6.1f}{rest[2]:11.0f}{rest[3]:8.0f}{rest[4]:6.2f}{(time.time() - began) / seeds:7.1f}",
        flush=True,
    )  # fmt: skip


def _row(found, known):
    value, error = np.array(found).T
    off = 0.0 if np.isnan(known) else known  # where it is not known, the first column is the estimate itself
    z = np.abs(value - known) / error
    spread = value.std(ddof=1) if len(value) > 1 else np.nan
    return f"{value.mean() - off:9.3f}{spread:7.3f}{error.mean():7.3f}{(z < 1.96).mean():6.2f}{(z < 3.0).mean():6.2f} "


def beside_plain(seeds):
    """Print what a ladder costs beside a run without one, on models with one mode: gradients of all chains."""
    print(f"{'one mode, 64 chains, 100 draws':32}{'plain':>9}{'ladder':>9}{'ratio':>7}{'rungs':>7}{'se':>8}")
    for name, build in (("normal", more.normal), ("schools", more.schools), ("logistic", more.logistic)):
        for seed in range(seeds):
            options = {"model": build()[0], "chains": 64, "draws": 100, "random_seed": seed, **QUIET}
            plain = pmm.sample(**options)["sample_stats"]["n_grad_total"].values[:, -1].sum()
            ladder = pmm.temper(**options)["ladder"]
            spent, error = float(ladder["gradients"]), float(ladder["log_evidence_se"])
            print(
                f"{name:32}{plain:9.0f}{spent:9.0f}{spent / plain:7.2f}{ladder.sizes['rung']:7}{error:8.4f}",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help=f"some of {', '.join(TARGETS)}; by default all")
    parser.add_argument("--only", help="words of a row, such as '3.5 10 prior'")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--chains", type=int, default=512)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--reference", choices=["auto", "prior"], default="auto")
    parser.add_argument("--coverage", action="store_true", help="whether errors hold: nine rows, whose sizes are fixed")
    parser.add_argument("--beside-plain", action="store_true", help="gradients beside those of runs without a ladder")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.beside_plain:
        beside_plain(given.seeds)
        return
    print(
        f"{'':30}{'log evidence':>35} {'weight':>35} {'barrier':>14}\n{'target':30}"
        + f"{'error':>9}{'sd':>7}{'se':>7}{'<1.96':>6}{'<3':>6} " * 2
        + f"{'found':>7}{'known':>7}{'rungs':>6}{'1000 grads':>11}{'starts':>8}{'trust':>6}{'s':>7}"
    )
    rows = [
        (name, arguments, given.reference, given.chains, given.draws)
        for name in given.targets or TARGETS
        for arguments in TARGETS[name][1]
        if given.only is None or given.only == " ".join(map(str, arguments))
    ]
    for name, arguments, reference, chains, draws in COVERAGE if given.coverage else rows:
        measured(name, arguments, reference, given.seeds, chains, draws)


if __name__ == "__main__":
    main()

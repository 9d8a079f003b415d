r"""The exact leg: what bias it leaves, and what it costs: ``python -m benchmarks exact``.

Targets are those of ``tests/support/targets.py`` with known moments.  Errors are in posterior standard deviations, of
the unconstrained coordinates and their squares.

``bias``
    Runs of 512 chains by ``OLMC`` at a step that is too long: the largest error of a mean of x or x^2
    without the leg and of the last draws with it, in sds of x or x^2; the largest z with it, and its limit, which
    chance exceeds in one of a hundred targets; trajectories and gradients of the leg.
``cost``
    Gradients of a chain of a default run, with and without ``exact=True``, and for an effective draw of the worst mean.
``short``
    Runs of 64 chains that start a standard deviation off in every coordinate and do not move in warm-up, with legs of
    at most so many trajectories: how often the verdict says that the leg was too short, how often that a mean moves on,
    and the largest z of the last draws of all runs of which it says nothing.
"""

from __future__ import annotations

import argparse
import logging

import arviz as az
import numpy as np
from scipy.stats import t
from targets import TARGETS, reference

import pmm_mcmc as pmm

NAMES = (
    "gaussian100", "rotated100", "breast_cancer", "poisson_glm", "negative_binomial_glm", "eight_schools", "banana",
    "rosenbrock36", "phi4", "mixture20",
)  # fmt: skip
# Steps of OLMC that leave 0.1 to 0.3 sd of bias.
STEPS = {"rotated100": 0.6, "poisson_glm": 0.8, "phi4": 0.55}
STEP = 0.4
QUIET = {"progressbar": False, "compute_convergence_checks": False}


def moments_of(dt, name):
    """Return ``(chain, 2 d)``: means over draws of each chain of x and x^2, minus the reference, over its sds."""
    known, x = reference(name), dt["sample_stats"]["unconstrained"].values
    sd = np.sqrt(known.variance_of_x)
    first, second = (x - known.mean) / sd, (x**2 - known.second) / np.sqrt(known.variance_of_square)
    return np.concatenate([first.mean(axis=1), second.mean(axis=1)], axis=1)


def bias(names, replicates, chains=512):
    print(f"{'target':24}{'step':>7}{'before':>9}{'after':>9}{'worst z':>9}{'limit':>7}{'legs':>7}{'grads':>7}")
    for name in names:
        model, step_size = TARGETS[name].build(), STEPS.get(name, STEP)
        step = pmm.OLMC(step_size=step_size)
        found, legs, grads = {False: [], True: []}, [], []
        for seed in range(replicates):
            for exact in (False, True):
                dt = pmm.sample(
                    step, model=model, chains=chains, draws=1 if exact else 8, exact=exact, random_seed=seed, **QUIET
                )
                found[exact].append(moments_of(dt, name))
                if exact:
                    legs.append(int(dt["exact_leg"]["transitions"]))
                    grads.append(float(dt["exact_leg"]["gradients"]))
        before, after = (np.concatenate(found[exact]) for exact in (False, True))
        sampled = after.std(axis=0, ddof=1) / np.sqrt(len(after))
        z = np.abs(after.mean(axis=0)) / np.hypot(sampled, _errors(name))
        worst = [np.abs(part.mean(axis=0)).max() for part in (before, after)]
        limit = t.ppf(1.0 - 0.005 / len(z), len(after) - 1)
        print(
            f"{name:24}{step_size:7.2f}{worst[0]:9.3f}{worst[1]:9.3f}{z.max():9.1f}{limit:7.1f}"
            f"{np.mean(legs):7.0f}{np.mean(grads):7.0f}", flush=True,
        )  # fmt: skip


def _errors(name):
    """Return the standard errors of the reference in the units of :func:`moments_of`."""
    known = reference(name)
    sd = np.sqrt(known.variance_of_x)
    return np.concatenate([known.se_mean / sd, known.se_second / np.sqrt(known.variance_of_square)])


def cost(names, seeds):
    print(f"{'target':24}{'without':>9}{'with':>9}{'ratio':>7}{'per ess':>9}{'with':>9}")
    for name in names:
        model, spent, worst = TARGETS[name].build(), {False: [], True: []}, {False: [], True: []}
        for seed in range(seeds):
            for exact in (False, True):
                dt = pmm.sample(model=model, exact=exact, random_seed=seed, **QUIET)
                grads = float(dt["sample_stats"]["n_grad_total"].values[:, -1].mean())
                drawn = float(dt["sample_stats"]["n_grad"].values.sum())
                x = dt["sample_stats"]["unconstrained"].values
                spent[exact].append(grads)
                worst[exact].append(drawn / min(float(az.ess(x[..., j])) for j in range(x.shape[-1])))
        a, b = (np.mean(spent[e]) for e in (False, True))
        c, d = (np.mean(worst[e]) for e in (False, True))
        print(f"{name:24}{a:9.0f}{b:9.0f}{b / a:7.2f}{c:9.1f}{d:9.1f}", flush=True)


def short(names, seeds):
    print(f"{'target':24}{'at most':>9}{'said':>7}{'moves on':>10}{'worst z':>9}{'limit':>7}")
    for name in names:
        model, known = TARGETS[name].build(), reference(name)
        starts = _named(model, known.mean + np.sqrt(known.variance_of_x))
        for most in (20, 40, 80):
            said, moved, silent = [], [], []
            for seed in range(seeds):
                step = pmm.PoissonULMC(step_size=1e-3)
                options = {"tune": most, "exact": True, "chains": 64, "draws": 1, "random_seed": seed}
                dt = pmm.sample(step, model=model, initvals=starts, **options, **QUIET)
                reasons = [reason for reason in pmm.verdict(dt).reasons if reason.code == "exact_leg"]
                said.append(len(reasons))
                moved.append(sum("still changed" in str(reason) for reason in reasons))
                if not reasons:
                    silent.append(moments_of(dt, name))
            z, limit = np.nan, np.nan
            if silent:
                values = np.concatenate(silent)
                z = np.abs(values.mean(axis=0) / (values.std(axis=0, ddof=1) / np.sqrt(len(values)))).max()
                limit = t.ppf(1.0 - 0.005 / values.shape[1], len(values) - 1)
            print(f"{name:24}{most:9}{np.mean(said):7.2f}{np.mean(moved):10.2f}{z:9.1f}{limit:7.1f}", flush=True)


def _named(model, x):
    """Return the named initial values at an unconstrained position."""
    from pmm_mcmc.model.log_density import flat_layout

    point, at, found = model.initial_point(0), 0, {}
    for name, shape, size, _ in flat_layout(model.value_vars, point):
        found[name] = x[at : at + size].reshape(shape)
        at += size
    return {rv.name: found[model.rvs_to_values[rv].name] for rv in model.free_RVs} if _plain(model) else found


def _plain(model):
    return all(model.rvs_to_values[rv].name == rv.name for rv in model.free_RVs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["bias", "cost", "short"], help="all by default")
    parser.add_argument("--targets", nargs="+", default=list(NAMES))
    parser.add_argument("--seeds", type=int, default=2, help="runs of each; 2 are 1,024 replicates of the bias")
    given = parser.parse_args()
    logging.getLogger("pmm_mcmc").setLevel(logging.ERROR)
    parts = {
        "bias": lambda: bias(given.targets, given.seeds),
        "cost": lambda: cost(given.targets, given.seeds),
        "short": lambda: short(given.targets, given.seeds),
    }
    for part in [given.part] if given.part else parts:
        print(f"\n{part}")
        parts[part]()


if __name__ == "__main__":
    main()

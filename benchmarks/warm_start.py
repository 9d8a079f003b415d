"""Gradients of a start from a former run, and wrong settings that it keeps: ``python -m benchmarks warm_start``.

Twelve models, each with all of its data and with a tenth of them left out.  A run with all of them starts from the
result with fewer ("grown"), and one with fewer from that with all ("fold").  A row has gradients of each chain before
the draws (four chains, default arguments), how many settings were kept, and errors of the means and standard
deviations of 500 draws in posterior sds (root mean square over parameters and seeds, against 20,000 draws): of starts
from a former run and of cold ones.  Thresholds were set on *schools* and a regression.

``--group`` leaves out all rows of one group instead, whose effect has its prior then, in three of the models.

``--wrong N`` instead plants N settings that are wrong, of sixteen kinds in turn, and counts those that are kept.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import warm_starts

import pmm_mcmc as pmm

ROWS = 100
LEFT_OUT = np.random.default_rng(0).permutation(ROWS)[: ROWS // 10]
OUTCOMES = ("fits", "refined", "dropped")
QUIET = {"progressbar": False, "compute_convergence_checks": False}


def data(seed: int, columns: int = 4) -> tuple[np.ndarray, np.random.Generator]:
    """Return covariates of all rows, and random numbers for the outcome."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(ROWS, columns)), rng


def linear(rows: np.ndarray) -> None:
    X, rng = data(1)
    y = X @ [1.0, -2.0, 0.5, 3.0] + rng.normal(size=ROWS)
    b = pm.Normal("b", 0, 10, shape=4)
    pm.Normal("y", X[rows] @ b, pm.HalfNormal("s", 5), observed=y[rows])


def robust(rows: np.ndarray) -> None:
    X, rng = data(2)
    y = X @ [1.0, -2.0, 0.5, 3.0] + rng.standard_t(3, size=ROWS)
    b, nu = pm.Normal("b", 0, 10, shape=4), pm.Gamma("nu", 2, 0.1)
    pm.StudentT("y", nu=nu, mu=X[rows] @ b, sigma=pm.HalfNormal("s", 5), observed=y[rows])


def logistic(rows: np.ndarray) -> None:
    X, rng = data(3, 8)
    y = rng.uniform(size=ROWS) < 1 / (1 + np.exp(-X.sum(axis=1)))
    pm.Bernoulli("y", logit_p=X[rows] @ pm.Normal("b", 0, 2, shape=8), observed=y[rows])


def poisson(rows: np.ndarray) -> None:
    X, rng = data(4)
    y = rng.poisson(np.exp(0.5 + 0.5 * X.sum(axis=1)))
    a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 1, shape=4)
    pm.Poisson("y", pm.math.exp(a + X[rows] @ b), observed=y[rows])


def groups(rows: np.ndarray) -> None:
    _, rng = data(5)
    of_group = np.arange(ROWS) % 10
    y = rng.normal(size=10)[of_group] + rng.normal(size=ROWS)
    a = pm.Normal("a", pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 2), shape=10)
    pm.Normal("y", a[of_group[rows]], pm.HalfNormal("s", 2), observed=y[rows])


def ordinal(rows: np.ndarray) -> None:
    X, rng = data(6)
    y = np.digitize(X.sum(axis=1) + rng.logistic(size=ROWS), [-2.0, 0.0, 2.0])
    cuts = pm.Normal("c", 0, 3, shape=3, transform=pm.distributions.transforms.ordered, initval=[-1.0, 0.0, 1.0])
    pm.OrderedLogistic("y", eta=X[rows] @ pm.Normal("b", 0, 2, shape=4), cutpoints=cuts, observed=y[rows])


def negative_binomial(rows: np.ndarray) -> None:
    X, rng = data(7)
    mean = np.exp(1.0 + 0.4 * X.sum(axis=1))
    y = rng.negative_binomial(2.0, 2.0 / (2.0 + mean))
    a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 1, shape=4)
    pm.NegativeBinomial("y", mu=pm.math.exp(a + X[rows] @ b), alpha=pm.Exponential("alpha", 0.5), observed=y[rows])


def schools(rows: np.ndarray) -> None:
    effect, error = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    kept = np.arange(8) if len(rows) == ROWS else np.delete(np.arange(8), 3)
    theta = pm.Normal("theta", pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5), shape=8)
    pm.Normal("y", theta[kept], error[kept], observed=effect[kept])


def survival(rows: np.ndarray) -> None:
    X, rng = data(9)
    y = np.exp(1.0 + 0.5 * X.sum(axis=1)) * rng.weibull(1.5, size=ROWS)
    a, b = pm.Normal("a", 0, 2), pm.Normal("b", 0, 1, shape=4)
    pm.Weibull("y", alpha=pm.HalfNormal("alpha", 2), beta=pm.math.exp(a + X[rows] @ b), observed=y[rows])


def item_response(rows: np.ndarray) -> None:
    _, rng = data(10)
    person, item = np.divmod(np.arange(ROWS), 10)
    y = rng.uniform(size=ROWS) < 1 / (1 + np.exp(rng.normal(size=10)[item] - rng.normal(size=10)[person]))
    ability, ease = pm.Normal("ability", shape=10), pm.Normal("ease", 0, pm.HalfNormal("tau", 2), shape=10)
    pm.Bernoulli("y", logit_p=ability[person[rows]] - ease[item[rows]], observed=y[rows])


def slopes(rows: np.ndarray) -> None:
    X, rng = data(11, 1)
    of_group = np.arange(ROWS) % 8
    y = rng.normal(size=8)[of_group] + X[:, 0] * (1 + 0.5 * rng.normal(size=8))[of_group] + rng.normal(size=ROWS)
    a = pm.Normal("a", pm.Normal("mu_a", 0, 5), pm.HalfNormal("tau_a", 2), shape=8)
    b = pm.Normal("b", pm.Normal("mu_b", 0, 5), pm.HalfNormal("tau_b", 2), shape=8)
    pm.Normal("y", a[of_group[rows]] + b[of_group[rows]] * X[rows, 0], pm.HalfNormal("s", 2), observed=y[rows])


def curve(rows: np.ndarray) -> None:
    X, rng = data(12, 1)
    y = 2.0 * np.exp(-np.exp(0.5) * np.abs(X[:, 0])) + 0.2 * rng.normal(size=ROWS)
    height, rate = pm.HalfNormal("height", 5), pm.LogNormal("rate", 0, 1)
    pm.Normal("y", height * pm.math.exp(-rate * np.abs(X[rows, 0])), pm.HalfNormal("s", 1), observed=y[rows])


MODELS = (
    linear, robust, logistic, poisson, groups, ordinal,
    negative_binomial, schools, survival, item_response, slopes, curve,
)  # fmt: skip


# The rows of a group.
GROUPS = {
    groups: np.flatnonzero(np.arange(ROWS) % 10 == 3), slopes: np.flatnonzero(np.arange(ROWS) % 8 == 3),
    item_response: np.arange(30, 40),
}  # fmt: skip


def built(build: Callable[[np.ndarray], None], left_out: bool, by_group: bool = False) -> pm.Model:
    """Return a model with all rows of its data, or with a tenth of them or a group left out."""
    rows = np.arange(ROWS)
    if left_out:
        rows = np.delete(rows, GROUPS[build] if by_group else LEFT_OUT)
    with pm.Model() as model:
        build(rows)
    return model


def moments(result: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations of the unconstrained coordinates."""
    x = result["sample_stats"]["unconstrained"].values
    x = x.reshape(-1, x.shape[-1])
    return x.mean(axis=0), x.std(axis=0)


def error(result: Any, reference: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the mean squared error of means and standard deviations, in standard deviations."""
    pairs = zip(moments(result), reference, strict=True)
    return float(np.mean([((a - b) / reference[1]) ** 2 for a, b in pairs]))


def before(result: Any) -> float:
    """Return gradients of each chain before its draws."""
    statistics = result["sample_stats"]
    return float(statistics["n_grad_total"][:, 0].mean() - statistics["n_steps"][:, 0].mean())


def row(build: Callable[[np.ndarray], None], seeds: int, by_group: bool) -> list[dict[str, float]]:
    """Measure both starts of a model."""
    models = {left_out: built(build, left_out, by_group) for left_out in (True, False)}
    cold, warm = {}, {}
    for left_out, model in models.items():
        options = {"model": model, "draws": 500, **QUIET}
        cold[left_out] = [pmm.sample(random_seed=seed, **options) for seed in range(1, seeds + 1)]
    out = []
    for left_out, model in models.items():
        options = {"model": model, "draws": 500, **QUIET}
        warm = [pmm.sample(random_seed=100 + i, start=start, **options) for i, start in enumerate(cold[not left_out])]
        reference = moments(pmm.sample(5000, model=model, random_seed=99, **QUIET))
        errors = [np.sqrt(np.mean([error(result, reference) for result in runs])) for runs in (warm, cold[left_out])]
        out.append({
            "warm": np.median([before(result) for result in warm]),
            "cold": np.median([before(result) for result in cold[left_out]]),
            **{name: sum(result["posterior"].attrs["start"] == name for result in warm) for name in OUTCOMES},
            "error": errors[0], "cold error": errors[1],
        })  # fmt: skip
    return out


def table(seeds: int, models: tuple[Callable[[np.ndarray], None], ...], by_group: bool) -> None:
    """Print the table of gradients and errors."""
    outcomes = " ".join(f"{name:>7s}" for name in OUTCOMES)
    print(f"{'':18s} {'start':>6s} {'warm':>6s} {'cold':>6s} {outcomes} {'error':>7s} {'cold':>7s}")
    rows: list[dict[str, float]] = []
    for build in models:
        for name, values in zip(("fold", "grown"), row(build, seeds, by_group), strict=True):
            rows.append(values)
            outcomes = " ".join(f"{values[name]:7d}" for name in OUTCOMES)
            gradients = f"{values['warm']:6.0f} {values['cold']:6.0f}"
            errors = f"{values['error']:7.3f} {values['cold error']:7.3f}"
            print(f"{build.__name__:18s} {name:>6s} {gradients} {outcomes} {errors}", flush=True)
    warm, cold = (np.median([values[name] for values in rows]) for name in ("warm", "cold"))
    ratio = np.sqrt(np.mean([values["error"] ** 2 for values in rows]))
    ratio /= np.sqrt(np.mean([values["cold error"] ** 2 for values in rows]))
    print(f"median {warm:.0f} gradients, cold {cold:.0f}; error over that of a cold start {ratio:.2f}")


def wrong(number: int) -> None:
    """Print how many of the wrong settings are kept."""
    model, shape = warm_starts.regression(), np.ones(5)
    one, mirrored = np.array([1, 10.0, 1, 1, 1]), np.array([1, -1.0, 1, 1, 1])
    schools_model = built(schools, False)
    mode = warm_starts.two_modes((0.0, 1.0))
    kinds: list[tuple[str, pm.Model, pm.Model, np.ndarray | None]] = [
        (f"scales times {factor:.2g}", model, model, factor * shape) for factor in (10.0, 0.1, 3.0, 1 / 3)
    ]
    kinds += [("one scale times 10", model, model, one), ("one scale a tenth", model, model, 1 / one)]
    kinds += [("mirrored correlation", model, model, mirrored)]
    kinds += [("mirrored data", model, warm_starts.regression(sign=-1.0), None)]
    kinds += [("noise a tenth", model, warm_starts.regression(sd=0.1), None)]
    kinds += [("another model", model, warm_starts.another_model(), None)]
    kinds += [
        (f"another mode, {weights}", mode, warm_starts.two_modes(weights), None)
        for weights in ((1.0, 0.0), (1.0, 1.0), (9.0, 1.0))
    ]
    kinds += [
        (f"schools, scales times {factor}", schools_model, schools_model, np.full(10, factor)) for factor in (10.0, 0.1)
    ]
    kinds += [("schools, tau a tenth", schools_model, schools_model, np.where(np.arange(10) == 1, 0.1, 1.0))]
    results = {id(m): pmm.sample(200, model=m, random_seed=1, **QUIET) for _, m, _, _ in kinds}
    outcomes = {kind[0]: Counter() for kind in kinds}
    for i in range(number):
        name, former, new, factors = kinds[i % len(kinds)]
        start = results[id(former)]
        if factors is not None:
            start = warm_starts.planted(start, warm_starts.scaled(factors))
        outcomes[name][pmm.sample(50, model=new, random_seed=i, start=start, **QUIET)["posterior"].attrs["start"]] += 1
    for name, counts in outcomes.items():
        print(f"{name:30s} {dict(counts)}")
    print(f"{number} wrong settings, {sum(counts['fits'] for counts in outcomes.values())} kept")


def main() -> None:
    """Print the table of gradients, or of wrong settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", nargs="*", default=[build.__name__ for build in MODELS])
    parser.add_argument("--group", action="store_true")
    parser.add_argument("--wrong", type=int, default=0, metavar="N")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    if asked.wrong:
        wrong(asked.wrong)
    else:
        models = tuple(build for build in (GROUPS if asked.group else MODELS) if build.__name__ in asked.models)
        table(asked.seeds, models, asked.group)


if __name__ == "__main__":
    main()

"""What is Gaussian given the rest, integrated out or as written: ``python -m benchmarks gaussian_blocks``.

``pmm.sample()``, four chains of 1,000 draws, of the block as written (``as written``), integrated out by request
(``integrated``) and by default (``default``).  Gradients are those of one chain, warm-up included, and seconds those of
all chains on one core, in a second call, in which nothing is compiled, for 400 effective draws of the worst mean and of
the worst square of a free variable.  ``off`` is the largest distance of a mean from that of the model as written, in
its standard errors.  The rule of the choice was fitted on the models of ``FITTED``; the others report it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import wide_priors
from posteriors import diagnosed, free_names, gradients_of, judged, moments, overheard
from scoreboard.entries import ENTRIES
from scoreboard.posteriordb import data, motorcycle
from tables import RESULTS, Row, Rows, grouped
from tasks import Task, main

import pmm_mcmc as pmm
from pmm_mcmc.model.block_choice import block_that_pays
from pmm_mcmc.model.gaussian_block import gaussian_names
from pmm_mcmc.model.initial_points import initial_point
from pmm_mcmc.run import plan

DRAWS, WANTED = 1000, 400
SAMPLERS = ("as written", "integrated", "default")


def coincident() -> list[str]:
    """Two crossed factors that nearly coincide, and an intercept."""
    rng = np.random.default_rng(20)
    first = rng.integers(8, size=200)
    second = np.where(rng.random(200) < 0.15, rng.integers(8, size=200), first)
    level = pm.Normal("level", 0, 5)
    effects = [pm.Normal(name, 0, pm.HalfNormal(f"sd_{name}"), shape=8) for name in ("first", "second")]
    truth = rng.normal(size=8)[first] + 0.5 * rng.normal(size=8)[second]
    y = truth + rng.normal(size=200)
    pm.Normal("y", level + effects[0][first] + effects[1][second], pm.HalfNormal("noise"), observed=y)
    return ["level", "first", "second"]


def hsgp() -> list[str]:
    """A regression on the 60 basis functions of a Hilbert-space approximation of a Gaussian process."""
    rng = np.random.default_rng(21)
    x = np.sort(rng.uniform(-1, 1, size=300))
    y = np.sin(6 * x) + 0.5 * np.cos(17 * x) + 0.4 * rng.normal(size=300)
    process = pm.gp.HSGP(
        m=[60],
        L=[1.5],
        cov_func=pm.HalfNormal("size", 2) ** 2 * pm.gp.cov.Matern52(1, ls=pm.InverseGamma("length", 3, 1)),
    )
    basis, root = process.prior_linearized(x[:, None])
    beta = pm.Normal("beta", shape=60)
    pm.Normal("y", basis @ (beta * root), pm.HalfNormal("noise"), observed=y)
    return ["beta"]


def basis_of(x: np.ndarray, knots: int) -> np.ndarray:
    """Return cubic B-splines ``(n, knots)``, of which differences are penalised."""
    from scipy.interpolate import BSpline

    inner = np.linspace(x.min(), x.max(), knots - 2)
    step = inner[1] - inner[0]
    grid = np.concatenate([inner[0] - step * np.arange(3, 0, -1), inner, inner[-1] + step * np.arange(1, 4)])
    return BSpline.design_matrix(np.clip(x, inner[0], inner[-1] - 1e-9), grid, 3).toarray()


def spline(knots: int = 40, of_sd: int = 8) -> list[str]:
    """A penalised spline, with another of the logarithm of the noise."""
    rng = np.random.default_rng(22)
    x = np.sort(rng.uniform(0, 1, size=250))
    y = np.sin(9 * x**2) + np.exp(-2 + 2 * x) * rng.normal(size=250)
    steps = pm.Normal("steps", 0, pm.HalfNormal("rough"), shape=knots)
    log_sd = pm.Normal("log_sd", 0, 1) + basis_of(x, of_sd) @ pm.Normal(
        "bends", 0, pm.HalfNormal("sd_bends"), shape=of_sd
    )
    level = pm.Normal("level", 0, 2)
    pm.Normal("y", level + basis_of(x, knots) @ pt.cumsum(steps), pt.exp(log_sd), observed=y)
    return ["level", "steps"]


def process(n: int = 100) -> list[str]:
    """A Gaussian process written out, with noise."""
    rng = np.random.default_rng(23)
    x = np.sort(rng.uniform(0, 1, size=n))
    distance = (x[:, None] - x) ** 2
    covariance = pm.HalfNormal("size", 1) ** 2 * pt.exp(-0.5 * distance / pm.InverseGamma("length", 5, 1) ** 2)
    root = pt.linalg.cholesky(covariance + 1e-6 * np.eye(n))
    z = pm.Normal("z", shape=n)
    y = np.sin(7 * x) + 0.3 * rng.normal(size=n)
    pm.Normal("y", root @ z, pm.HalfNormal("noise"), observed=y)
    return ["z"]


def nested_slopes() -> list[str]:
    """Intercepts and slopes of pupils' classes within 12 schools."""
    rng = np.random.default_rng(24)
    school_of = np.repeat(np.arange(12), 3)
    group = rng.integers(36, size=400)
    x = rng.normal(size=400)
    level = pm.Normal("level", 0, 3, shape=2)
    school = pm.Normal("school", level, pm.HalfNormal("sd_school", shape=2), shape=(12, 2))
    each = pm.Normal("class", school[school_of], pm.HalfNormal("sd_class", shape=2), shape=(36, 2))
    truth = np.array([1.0, 0.5]) + 0.6 * rng.normal(size=(12, 2))[school_of] + 0.3 * rng.normal(size=(36, 2))
    y = truth[group, 0] + truth[group, 1] * x + rng.normal(size=400)
    pm.Normal("y", each[group, 0] + each[group, 1] * x, pm.HalfNormal("noise"), observed=y)
    return ["level", "school", "class"]


def linear(rows: int = 2000, columns: int = 30) -> list[str]:
    """A linear regression, of columns that are correlated."""
    rng = np.random.default_rng(25)
    x = rng.normal(size=(rows, columns)) + 2 * rng.normal(size=(rows, 1))
    slope = pm.Normal("slope", 0, 2, shape=columns)
    level = pm.Normal("level", 0, 5)
    y = 1 + x @ rng.normal(size=columns) + rng.normal(size=rows)
    pm.Normal("y", level + x @ slope, pm.HalfNormal("noise"), observed=y)
    return ["level", "slope"]


def motorcycle_splines() -> list[str]:
    """Heteroscedastic splines of 38 and 38 knots on the motorcycle data, by random effects (posteriordb's form)."""
    known = data("mcycle_gp")
    x = np.linspace(0, 1, known.N)
    y = np.asarray(known.Y, float)

    def effects(name: str, sd: float) -> Any:
        distance = np.abs(x[:, None] - np.linspace(0, 1, 38)) ** 3
        left, values, _ = np.linalg.svd(distance - distance.mean(axis=0), full_matrices=False)
        basis = left * np.sqrt(values)
        return basis @ (pm.HalfStudentT(f"sds{name}", 3, sigma=sd) * pm.Normal(f"z{name}", shape=38))

    slope = pm.Normal("slope", 0, 100)
    level = pm.Normal("Intercept", -13, 36)
    log_sd = pm.StudentT("Intercept_sigma", 3, 0, sigma=10.0) + pm.Normal("slope_sigma", 0, 10) * (x - 0.5)
    mean = level + slope * (x - 0.5) + effects("_1", 36.0)
    pm.Normal("Y", mean, pt.exp(log_sd + effects("_sigma_1", 10.0)), observed=y)
    return ["slope", "Intercept", "z_1"]


def schools() -> list[str]:
    """Eight schools: means with known errors."""
    effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    theta = pm.Normal("theta", pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5), shape=8)
    pm.Normal("y", theta, errors, observed=effects)
    return ["mu", "theta"]


def counties(groups: int = 85, rows: int = 919) -> list[str]:
    """Intercepts of many groups about a regression of them, as of radon in counties."""
    rng = np.random.default_rng(26)
    group = rng.choice(groups, size=rows, p=rng.dirichlet(np.ones(groups)))
    floor = rng.random(rows) < 0.2
    uranium = rng.normal(size=groups)
    gamma = pm.Normal("gamma", 0, 2, shape=2)
    a = pm.Normal("a", gamma[0] + gamma[1] * uranium, pm.HalfNormal("sd_a"), shape=groups)
    b = pm.Normal("b", 0, 2)
    truth = 1.4 + 0.7 * uranium + 0.2 * rng.normal(size=groups)
    y = truth[group] - 0.6 * floor + 0.7 * rng.normal(size=rows)
    pm.Normal("y", a[group] + b * floor, pm.HalfNormal("noise"), observed=y)
    return ["gamma", "a", "b"]


def local_level(steps: int = 120) -> list[str]:
    """A local linear trend, written as sums of innovations."""
    rng = np.random.default_rng(27)
    trend = pt.cumsum(pm.Normal("bends", 0, pm.HalfNormal("sd_bends", 0.1), shape=steps))
    level = pt.cumsum(trend + pm.Normal("jumps", 0, pm.HalfNormal("sd_jumps", 1), shape=steps))
    y = np.cumsum(np.cumsum(0.05 * rng.normal(size=steps)) + 0.3 * rng.normal(size=steps)) + rng.normal(size=steps)
    pm.Normal("y", level, pm.HalfNormal("noise"), observed=y)
    return ["bends", "jumps"]


def anova() -> list[str]:
    """Three factors with their interactions in a balanced design."""
    rng = np.random.default_rng(28)
    a, b, c = (np.ravel(each) for each in np.meshgrid(range(5), range(4), range(3), indexing="ij"))
    a, b, c = (np.repeat(each, 4) for each in (a, b, c))
    mean = pm.Normal("level", 0, 5)
    names = ["level"]
    for name, index, size in (("a", a, 5), ("b", b, 4), ("c", c, 3), ("ab", 4 * a + b, 20), ("bc", 3 * b + c, 12)):
        mean = mean + pm.Normal(name, 0, pm.HalfNormal(f"sd_{name}"), shape=size)[index]
        names.append(name)
    y = rng.normal(size=5)[a] + 0.5 * rng.normal(size=4)[b] + rng.normal(size=len(a))
    pm.Normal("y", mean, pm.HalfNormal("noise"), observed=y)
    return names


def horseshoe(columns: int = 40) -> list[str]:
    """A sparse regression."""
    rng = np.random.default_rng(29)
    x = rng.normal(size=(100, columns))
    sd = pm.HalfCauchy("global", 0.1) * pm.HalfStudentT("local", 5, shape=columns)
    slope = pm.Normal("slope", 0, sd, shape=columns)
    pm.Normal("y", x @ slope, pm.HalfNormal("noise"), observed=x[:, :3] @ [2.0, -1.5, 1.0] + rng.normal(size=100))
    return ["slope"]


def measurement() -> list[str]:
    """A regression whose covariate was measured with an error of known size: the covariate is the block."""
    rng = np.random.default_rng(30)
    true = rng.normal(1.0, 1.0, size=60)
    x = pm.Normal("x", pm.Normal("mean", 0, 3), pm.HalfNormal("spread", 2), shape=60)
    pm.Normal("seen", x, 0.5, observed=true + 0.5 * rng.normal(size=60))
    slope = pm.Normal("slope", 0, 2)
    pm.Normal("y", 0.5 + slope * x, pm.HalfNormal("noise"), observed=0.5 + 1.2 * true + 0.5 * rng.normal(size=60))
    return ["mean", "x"]


def small() -> list[str]:
    """A line through 40 points."""
    rng = np.random.default_rng(31)
    x = rng.normal(size=40)
    mean = pm.Normal("level", 0, 5) + pm.Normal("slope", 0, 5) * x
    pm.Normal("y", mean, pm.HalfNormal("noise"), observed=1 + 2 * x + rng.normal(size=40))
    return ["level", "slope"]


def many(groups: int = 300, rows: int = 3000) -> list[str]:
    """Intercepts of 300 groups."""
    rng = np.random.default_rng(32)
    group = rng.integers(groups, size=rows)
    effect = pm.Normal("effect", pm.Normal("level", 0, 3), pm.HalfNormal("sd"), shape=groups)
    y = rng.normal(size=groups)[group] + rng.normal(size=rows)
    pm.Normal("y", effect[group], pm.HalfNormal("noise"), observed=y)
    return ["level", "effect"]


def two_outcomes() -> list[str]:
    """Effects of groups that two outcomes share."""
    rng = np.random.default_rng(33)
    group = rng.integers(15, size=150)
    effect = pm.Normal("effect", 0, pm.HalfNormal("sd"), shape=15)
    truth = rng.normal(size=15)[group]
    level = pm.Normal("level", 0, 3, shape=2)
    pm.Normal("first", level[0] + effect[group], pm.HalfNormal("noise1"), observed=truth + rng.normal(size=150))
    pm.Normal(
        "second", level[1] + 0.5 * effect[group], pm.HalfNormal("noise2"), observed=0.5 * truth + rng.normal(size=150)
    )
    return ["level", "effect"]


def hierarchy(number: int) -> pm.Model:
    """One of many: effects of one to three factors, nested or crossed, some with slopes, of 4 to 40 groups each.

    The likelihood is normal, Poisson or Bernoulli in turn, of two normal ones one is balanced.
    """
    rng = np.random.default_rng(1000 + number)
    rows = int(rng.integers(60, 600))
    family = ("normal", "poisson", "normal", "bernoulli")[number % 4]
    x = rng.normal(size=rows)
    with pm.Model() as model:
        mean = pm.Normal("level", 0, 3) + pm.Normal("slope", 0, 2) * x
        truth = rng.normal() + 0.5 * x
        above = None
        for i in range(1 + number % 3):
            groups = int(rng.integers(4, 40))
            group = np.arange(rows) % groups if number % 4 == 2 else rng.integers(groups, size=rows)
            sd = pm.HalfNormal(f"sd{i}", rng.choice([1.0, 10.0]))
            centre: Any = 0.0
            if above is not None and rng.random() < 0.4:  # nested in the factor before
                parent = rng.integers(above[1], size=groups)
                centre = above[0][parent]
                mean = mean - above[0][above[2]]
            effect = pm.Normal(f"effect{i}", centre, sd, shape=groups)
            mean = mean + effect[group]
            truth = truth + rng.choice([0.05, 0.4, 1.0]) * rng.normal(size=groups)[group]
            if rng.random() < 0.4:
                mean = mean + pm.Normal(f"slope{i}", 0, pm.HalfNormal(f"sd_slope{i}"), shape=groups)[group] * x
                truth = truth + 0.3 * rng.normal(size=groups)[group] * x
            above = effect, groups, group
        if family == "normal":
            pm.Normal(
                "y", mean, pm.HalfNormal("noise"), observed=truth + rng.choice([0.3, 1.0]) * rng.normal(size=rows)
            )
        elif family == "poisson":
            pm.Poisson("y", pt.exp(mean), observed=rng.poisson(np.exp(np.clip(truth, -3, 3))))
        else:
            pm.Bernoulli("y", logit_p=mean, observed=rng.random(rows) < 1 / (1 + np.exp(-truth)))
    return model


MODELS: dict[str, Callable[..., list[str]]] = {
    "coincident": coincident, "hsgp": hsgp, "spline": spline, "process": process, "nested slopes": nested_slopes,
    "linear": linear, "motorcycle splines": motorcycle_splines, "schools": schools, "counties": counties,
    "local level": local_level, "anova": anova, "horseshoe": horseshoe, "measurement": measurement, "small": small,
    "many": many, "two outcomes": two_outcomes, "process 40": partial(process, 40), "spline 15": partial(spline, 15, 5),
    "linear 8": partial(linear, 150, 8), "counties 20": partial(counties, 20, 200),
}  # fmt: skip
WIDE = ("crossed/normal-2", "crossed/normal-3", "intercepts/normal-2")
FITTED = (
    "coincident", "spline", "linear", "schools", "local level", "horseshoe", "small", "many", "process 40",
    "counties 20",
)  # fmt: skip


# Models of other benchmarks that the rule chooses, of the 41 with a block: neither made nor fitted for it.
OTHERS: dict[str, Callable[[], pm.Model]] = {
    "motorcycle": motorcycle,
    "sleep_study": ENTRIES["held_out/sleep_study"].build,
    "correlated_effects": ENTRIES["gallery/correlated_effects"].build,
    **{f"wide_priors {key}": partial(wide_priors.MODELS[key], "HalfNormal(1)") for key in WIDE},
}
# Hierarchies on which nothing was fitted.
HIERARCHIES = {f"hierarchy {number}": partial(hierarchy, number) for number in range(30)}


def built(target: str) -> tuple[pm.Model, list[str]]:
    """Return a model, and the variables of its block."""
    if target in OTHERS | HIERARCHIES:
        model = (OTHERS | HIERARCHIES)[target]()
        return model, gaussian_names(model, model.initial_point(0))
    with pm.Model() as model:
        return model, MODELS[target]()


def measured(target: str, sampler: str, seed: int, draws: int) -> Row:
    """Return the row of a run."""
    model, block = built(target)
    if sampler == "default" and block_that_pays(model, initial_point(model), []) is None:
        return {"error": "none: as written"}
    choices = dict.fromkeys(block, "integrated") if sampler == "integrated" else "auto"
    options: dict[str, Any] = {"model": model, "random_seed": seed, "progressbar": False, "cores": 1, "draws": draws}
    with overheard(), ExitStack() as stack:
        if sampler == "as written":  # with non-centring as ever
            stack.enter_context(mock.patch.object(plan, "block_that_pays", lambda *_: None))
        pmm.sample(**options, reparametrise=choices, backend="numba")
        began = time.process_time()
        tree = pmm.sample(**options, reparametrise=choices, backend="numba", compute_convergence_checks=False)
        seconds = time.process_time() - began
        state = judged(tree)
    estimates, _, array = moments(tree, free_names(model))
    row = diagnosed(array)
    each, before = gradients_of(tree["sample_stats"].dataset)
    row["before"] = round(float(np.median(before)))
    for name, ess in (("mean", row["ess"]), ("square", diagnosed(array**2)["ess"])):
        row[f"gradients_{name}"] = round(row["before"] + WANTED / max(1, ess) * float(each.sum(axis=1).mean()))
        row[f"seconds_{name}"] = seconds * WANTED / max(1, ess)
    row |= {name: [float(f"{value:.4g}") for value in estimates[name]] for name in ("mean", "sd")}
    return row | state


def line(row: Row, written: Row) -> str:
    """Return the line of a run."""
    if "error" in row:
        return f"  {row['sampler']:12s} {row['error'][:80]}"
    numbers = [row[f"{kind}_{name}"] for name in ("mean", "square") for kind in ("gradients", "seconds")]
    ratios = [row[f"seconds_{name}"] / written[f"seconds_{name}"] for name in ("mean", "square")]
    distance = np.abs(np.array(row["mean"]) - written["mean"]) / np.array(written["sd"])
    off = float(np.max(distance) * np.sqrt(min(row["ess"], written["ess"]) / 2))
    return (
        f"  {row['sampler']:12s} {numbers[0]:9.0f} {numbers[1]:8.3f} {numbers[2]:9.0f} {numbers[3]:8.3f} "
        f"{ratios[0]:7.3f} {ratios[1]:7.3f} {off:5.1f}  {row['state']}"
    )


def page(rows: Rows, facts: str) -> str:
    """Return the page."""
    lines = [
        "Gradients of a chain and CPU seconds of all for 400 effective draws of the worst mean; of the worst square;",
        "these seconds over those as written; off: see --help; verdict.",
        facts,
    ]
    for target, of_target in grouped(rows).items():
        written = next((row for row in of_target if row["sampler"] == "as written" and "error" not in row), None)
        lines.append(f"{target}{' (fitted)' * (target in FITTED)}")
        lines += [line(row, written or row) for row in of_target]
    return "\n".join(lines) + "\n"


TASK = Task(
    words=__doc__,
    path=RESULTS / "gaussian_blocks.json",
    measure=measured,
    page=page,
    models=[*MODELS, *OTHERS, *HIERARCHIES],
    samplers=SAMPLERS,
    quick=["schools"],
    quick_samplers=SAMPLERS[:2],
    seeds=(1,),
    seconds=600.0,
    setting=lambda asked: {"draws": 100 if asked.quick else DRAWS},
)

if __name__ == "__main__":
    sys.exit(main(TASK))

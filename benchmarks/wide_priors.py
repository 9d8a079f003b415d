"""Multilevel models with wide priors on their scales, beside narrow ones: ``python -m benchmarks wide_priors``.

``pmm.sample()`` as it is, four chains of 1,000 draws, on models as textbooks and forums write them: factors with
``Normal(0, s)`` effects, crossed, nested, with slopes, with correlated slopes, and random walks.  ``s`` has each of
four priors.  The remedy (:mod:`pmm_mcmc.warmup.noncentring`) was made on other data of other sizes.  Gradients are
those of one chain, warm-up included, for 400 effective draws of the parameter that has fewest.  ``off`` is the largest
distance of a posterior mean from that of the other seeds' runs, in posterior sds.

``--models intercepts --samplers "HalfNormal(1)" "few centred" ...`` compares an intercept beside crossed effects, as
it is written, with centring by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
from posteriors import diagnosed, free_names, gradients_of, judged, moments, overheard
from tables import RESULTS, Row, Rows, grouped
from tasks import Task, main

import pmm_mcmc as pmm

PRIORS: dict[str, Callable[..., Any]] = {
    "HalfNormal(1)": partial(pm.HalfNormal.dist, 1.0),
    "HalfNormal(100)": partial(pm.HalfNormal.dist, 100.0),
    "HalfCauchy(25)": partial(pm.HalfCauchy.dist, 25.0),
    "Uniform(0, 100)": partial(pm.Uniform.dist, 0.0, 100.0),
}
NARROW = next(iter(PRIORS))
FAMILIES = ("logit", "Poisson", "normal", "negative binomial")
SIZES = (25, 9, 5)
ROWS, DRAWS, WANTED = 800, 1000, 400
# Effects beside an intercept: families and numbers of groups of the smallest factor, and the true sds.
FEW = [("logit", 2), ("logit", 4), ("Poisson", 3), ("Poisson", 6), ("normal", 2), ("normal", 5)]
GROUPS = [("logit", 5), ("Poisson", 3), ("normal", 7)]
SDS = (0.5, 0.4, 0.5, 0.2)
# What is written by hand in place of the default, for those models.
BY_HAND = {
    "few centred": {"few": "centred"},
    "few and age centred": {"few": "centred", "age": "centred"},
    "all centred": dict.fromkeys(("state", "age", "few", "cell"), "centred"),
    "all non-centred": dict.fromkeys(("state", "age", "few", "cell"), "noncentred"),
}


def scale(name: str, prior: str, **options: Any) -> Any:
    """Return a scale of the enclosing model with a prior."""
    kinds = {"HalfNormal": pm.HalfNormal, "HalfCauchy": pm.HalfCauchy, "Uniform": pm.Uniform}
    kind, _, numbers = prior.rstrip(")").partition("(")
    return kinds[kind](name, *(float(number) for number in numbers.split(",")), **options)


def observed(family: str, predictor: Any, truth: np.ndarray, prior: str, rng: np.random.Generator) -> None:
    """Add data of a family, made with the true predictor, to the enclosing model."""
    if family == "logit":
        pm.Bernoulli("y", logit_p=predictor, observed=rng.random(truth.size) < 1 / (1 + np.exp(-truth)))
    elif family == "Poisson":
        pm.Poisson("y", pm.math.exp(predictor), observed=rng.poisson(np.exp(truth)))
    elif family == "normal":
        pm.Normal("y", predictor, scale("noise", prior), observed=truth + rng.normal(size=truth.size))
    else:
        data = rng.negative_binomial(4, 4 / (4 + np.exp(truth)))
        pm.NegativeBinomial("y", pm.math.exp(predictor), pm.Gamma("size", 2.0, 0.1), observed=data)


def crossed(family: str, factors: int, prior: str) -> pm.Model:
    """One to three crossed factors, an intercept and a covariate."""
    rng = np.random.default_rng([11, factors, FAMILIES.index(family)])
    at = [rng.integers(size, size=ROWS) for size in SIZES[:factors]]
    covariate = rng.normal(size=ROWS)
    truth = 0.2 - 0.4 * covariate + sum(0.6 * rng.normal(size=size)[i] for size, i in zip(SIZES, at, strict=False))
    with pm.Model() as model:
        predictor = pm.Normal("level", 0.0, 5.0) + pm.Normal("slope", 0.0, 2.0) * covariate
        for k, i in enumerate(at):
            predictor += pm.Normal(f"effect{k}", 0.0, scale(f"sd{k}", prior), shape=SIZES[k])[i]
        observed(family, predictor, truth, prior, rng)
    return model


def nested(family: str, prior: str) -> pm.Model:
    """Classes in schools: effects about those of their school."""
    rng = np.random.default_rng([12, FAMILIES.index(family)])
    school = np.repeat(np.arange(14), 4)
    classes = rng.integers(school.size, size=ROWS)
    of_school = 0.5 * rng.normal(size=14)
    truth = (of_school[school] + 0.4 * rng.normal(size=school.size))[classes]
    with pm.Model() as model:
        schools = pm.Normal("school", pm.Normal("level", 0.0, 5.0), scale("sd_school", prior), shape=14)
        effect = pm.Normal("class", schools[school], scale("sd_class", prior), shape=school.size)
        observed(family, effect[classes], truth, prior, rng)
    return model


def slopes(family: str, prior: str, correlated: bool = False) -> pm.Model:
    """An intercept and a slope for each of 18 groups."""
    rng = np.random.default_rng([13, correlated, FAMILIES.index(family)])
    group = rng.integers(18, size=ROWS)
    covariate = rng.normal(size=ROWS)
    each = np.array([0.3, 0.5]) + rng.normal(size=(18, 2)) * np.array([0.6, 0.3])
    truth = each[group, 0] + each[group, 1] * covariate
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 5.0, shape=2)
        if correlated:
            chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=PRIORS[prior](shape=2))
            effect = pm.MvNormal("effect", level, chol=chol, shape=(18, 2))
        else:
            effect = pm.Normal("effect", level, scale("sd", prior, shape=2), shape=(18, 2))
        observed(family, effect[group, 0] + effect[group, 1] * covariate, truth, prior, rng)
    return model


def walk(family: str, prior: str) -> pm.Model:
    """A level that walks at random over 60 months, with a few data each."""
    rng = np.random.default_rng([14, FAMILIES.index(family)])
    month = np.repeat(np.arange(60), 4)
    truth = (0.5 + np.cumsum(0.2 * rng.normal(size=60)))[month]
    with pm.Model() as model:
        start = pm.Normal.dist(0.0, 3.0)
        level = pm.GaussianRandomWalk("level", sigma=scale("sd", prior), init_dist=start, steps=59)
        observed(family, level[month], truth, prior, rng)
    return model


def intercepts(family: str, few: int, prior: str) -> pm.Model:
    """An intercept beside crossed effects, of which one has few groups, and their cells, as in poststratification."""
    rng = np.random.default_rng([15, few, FAMILIES.index(family)])
    sizes = {"state": 40, "age": 6, "few": few}
    at = {name: rng.integers(size, size=1200) for name, size in sizes.items()}
    sizes["cell"] = 6 * few
    at["cell"] = at["age"] * few + at["few"]
    truth = sum((sd * rng.normal(size=size))[at[name]] for sd, (name, size) in zip(SDS, sizes.items(), strict=True))
    with pm.Model() as model:
        predictor = pm.Normal("level", 0.0, 2.5)
        for name, size in sizes.items():
            predictor += pm.Normal(name, 0.0, scale(f"sd_{name}", prior), shape=size)[at[name]]
        observed(family, predictor, truth - 0.3, prior, rng)
    return model


def few_groups(family: str, groups: int, prior: str) -> pm.Model:
    """An intercept and a slope beside correlated effects of few groups on both: brms's ``1 + x + (1 + x | g)``."""
    rng = np.random.default_rng([16, groups, FAMILIES.index(family)])
    group = rng.integers(groups, size=ROWS)
    covariate = rng.normal(size=ROWS)
    effects = rng.normal(size=(groups, 2)) * np.array([0.6, 0.3])
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 5.0)
        slope = pm.Normal("slope", 0.0, 5.0)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=PRIORS[prior](shape=2))
        effect = pm.MvNormal("effect", np.zeros(2), chol=chol, shape=(groups, 2))
        predictor = level + effect[group, 0] + (slope + effect[group, 1]) * covariate
        truth = 0.3 + effects[group, 0] + (0.5 + effects[group, 1]) * covariate
        observed(family, predictor, truth, prior, rng)
    return model


MODELS: dict[str, Callable[[str], pm.Model]] = {
    **{f"crossed/{family}-{k}": partial(crossed, family, k) for family in FAMILIES for k in (1, 2, 3)},
    **{f"nested/{family}": partial(nested, family) for family in ("logit", "normal")},
    **{f"slopes/{family}": partial(slopes, family) for family in ("logit", "Poisson", "normal")},
    **{f"correlated/{family}": partial(slopes, family, correlated=True) for family in ("Poisson", "normal")},
    **{f"few groups/{family}-{k}": partial(few_groups, family, k) for family, k in GROUPS},
    **{f"intercepts/{family}-{few}": partial(intercepts, family, few) for family, few in FEW},
    **{f"walk/{family}": partial(walk, family) for family in ("Poisson", "normal")},
}


def measured(target: str, sampler: str, seed: int, draws: int) -> Row:
    """Return the row of a run with the prior that stands for a sampler."""
    options: dict[str, Any] = {"random_seed": seed, "progressbar": False}
    if sampler in BY_HAND:
        options |= {"step": pmm.PoissonULMC(reparametrise=BY_HAND[sampler]), "adjusted": True}
    with overheard():
        model = MODELS[target](NARROW if sampler in BY_HAND else sampler)
        tree = pmm.sample(draws, model=model, **options)
    estimates, _, array = moments(tree, free_names(model))
    row = diagnosed(array)
    each, before = gradients_of(tree["sample_stats"].dataset)
    row["before"] = round(float(np.median(before)))
    row["for_400"] = round(row["before"] + WANTED / max(1, row["ess"]) * float(each.sum(axis=1).mean()))
    row["gradients"] = round(float((before + each.sum(axis=1)).max()))
    row |= {name: [float(f"{value:.4g}") for value in estimates[name]] for name in ("mean", "sd")}
    return row | judged(tree)


def off(row: Row, others: Rows) -> float:
    """Return the largest distance of a mean from that of other runs, in posterior sds."""
    if not others:
        return float("nan")
    mean = np.mean([other["mean"] for other in others], axis=0)
    sd = np.mean([other["sd"] for other in others], axis=0)
    return float(np.max(np.abs(np.array(row["mean"]) - mean) / sd))


def line(prior: str, rows: Rows, narrow: float) -> str:
    """Return the line of a prior's runs."""
    states = " ".join(str(row.get("state", row.get("error", "?"))).replace(" ", "_") for row in rows)
    whole = [row for row in rows if "error" not in row]
    if not whole:
        return f"  {prior:20s} {states}"
    before, cost = (float(np.median([row[name] for row in whole])) for name in ("before", "for_400"))
    worst = max(off(row, [other for other in whole if other is not row]) for row in whole)
    most = max(row["for_400"] for row in whole)
    return f"  {prior:20s} {before:7.0f} {cost:7.0f} {most:7.0f} {cost / narrow:6.2f} {worst:6.2f}  {states}"


def page(rows: Rows, facts: str) -> str:
    """Return the page."""
    lines = [
        "Gradients of a chain before the first draw (median of seeds); for 400 effective draws (median, largest);",
        f"their median over that with {NARROW}; off: see --help; verdicts of the seeds.",
        facts,
    ]
    ratios, states, befores = [], [], []
    for target, of_target in grouped(rows).items():
        lines.append(target)
        by_prior = {prior: [row for row in of_target if row["sampler"] == prior] for prior in (*PRIORS, *BY_HAND)}
        costs = [row["for_400"] for row in by_prior[NARROW] if "for_400" in row]
        narrow = float(np.median(costs)) if costs else float("nan")
        for prior, of_prior in by_prior.items():
            if not of_prior:
                continue
            lines.append(line(prior, of_prior, narrow))
            if prior in PRIORS and prior != NARROW:
                states += [str(row.get("state", "error")) for row in of_prior]
                befores += [row["before"] for row in of_prior if "before" in row]
                ratios.append(float(np.median([row.get("for_400", np.inf) for row in of_prior])) / narrow)
    if ratios:
        counts = ", ".join(f"{state} {states.count(state)}" for state in dict.fromkeys(states))
        lines.append(
            f"Wide priors: {counts} of {len(states)} runs; over {NARROW} {np.nanmedian(ratios):.2f} in the median, "
            f"{np.nanmax(ratios):.2f} at most; before the first draw {np.median(befores):.0f}, {max(befores)} at most."
        )
    return "\n".join(lines) + "\n"


TASK = Task(
    words=__doc__,
    path=RESULTS / "wide_priors.json",
    measure=measured,
    page=page,
    models=list(MODELS),
    samplers=list(PRIORS),
    others=list(BY_HAND),
    quick=["crossed/Poisson-2"],
    seconds=300.0,
    setting=lambda asked: {"draws": 200 if asked.quick else DRAWS},
)

if __name__ == "__main__":
    sys.exit(main(TASK))

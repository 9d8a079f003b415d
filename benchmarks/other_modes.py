"""Modes that chains miss: models of each cause on which a run would be wrong, and how many are trusted.

*tails*: a tenth of the mass 4.5 to 5.5 sd away.  *many*: modes less than 1 sd apart in each of many coordinates.
*low*: a wide low mode.  *cusp*: a mode that is a product of Laplace densities.  *spike*: a narrow mode in more than
thirty coordinates.  *mirror*: a factor model, whose signs are free.  *flipflop*: absorption and elimination rates of a
one-compartment model that change places.  *heavy*: tails in which draws cannot tell the standard deviation.  *one*:
models with one mode, for false alarms.  A run is wrong if a mean is
more than .2 posterior sd off; of *flipflop*, if one of both modes has no draw; of *heavy*, if a standard deviation is
off by a fifth and the verdict does not say so.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pymc as pm
from jax.scipy.special import logsumexp

import pmm_mcmc as pmm

_OPTIONS = {"progressbar": False}


def gaussians(weights: list[float], centres: np.ndarray, widths: list[float]) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return a mixture of Gaussians as a log density, its means and its standard deviations."""
    d = centres.shape[1]
    w, s = jnp.asarray(weights), jnp.asarray(widths)

    def log_density(x: Any) -> Any:
        square = jnp.sum((x - centres) ** 2, axis=1)
        return logsumexp(jnp.log(w) - 0.5 * square / s**2 - d * jnp.log(s))

    mean = weights @ centres
    variance = np.array(weights) @ ((centres - mean) ** 2 + np.array(widths)[:, None] ** 2)
    return pmm.LogDensity.from_jax(log_density, d), mean, np.sqrt(variance)


def tails(rng: np.random.Generator) -> Any:
    """Return a mode with a tenth of the mass, at 4.5 to 5.5 sd in a random direction."""
    d = int(rng.integers(2, 12))
    direction = rng.standard_normal(d)
    far = rng.uniform(4.5, 5.5) * direction / np.linalg.norm(direction)
    return gaussians([0.9, 0.1], np.stack([np.zeros(d), far]), [1.0, 1.0])


def many(rng: np.random.Generator) -> Any:
    """Return two modes whose distance is small in each of many coordinates."""
    d = int(rng.integers(40, 90))
    return gaussians([0.6, 0.4], np.stack([np.zeros(d), rng.uniform(0.7, 0.95) * rng.choice([-1, 1], d)]), [1.0, 1.0])


def low(rng: np.random.Generator) -> Any:
    """Return a mode that is three to eight times as wide, and as heavy."""
    d = int(rng.integers(2, 9))
    width = float(rng.uniform(3.0, 8.0))
    far = np.zeros(d)
    far[rng.integers(d)] = 5.0 * width
    return gaussians([0.5, 0.5], np.stack([np.zeros(d), far]), [1.0, width])


def cusp(rng: np.random.Generator) -> Any:
    """Return a Gaussian, and a product of Laplace densities with half of the mass."""
    d = int(rng.integers(2, 7))
    far = np.zeros(d)
    far[rng.integers(d)] = rng.uniform(12.0, 18.0)

    def log_density(x: Any) -> Any:
        other = -jnp.sum(jnp.abs(x - far)) - d * np.log(2.0)
        return jnp.logaddexp(-0.5 * jnp.sum(x**2) - 0.5 * d * np.log(2.0 * np.pi), other)

    return pmm.LogDensity.from_jax(log_density, d), 0.5 * far, np.sqrt(1.5 + 0.25 * far**2)


def spike(rng: np.random.Generator) -> Any:
    """Return a mode a fifth to a twentieth as wide, on an axis of more than thirty coordinates."""
    d = int(rng.integers(31, 60))
    far = np.zeros(d)
    far[rng.integers(d)] = rng.uniform(5.0, 8.0)
    return gaussians([0.5, 0.5], np.stack([np.zeros(d), far]), [1.0, float(rng.uniform(0.15, 0.3))])


def mirror(rng: np.random.Generator) -> Any:
    """Return a factor model; the mean of each loading is 0."""
    p = int(rng.integers(4, 8))
    loadings = rng.normal(1.0, 0.5, p)
    y = rng.normal(size=(30, 1)) * loadings + 0.5 * rng.normal(size=(30, p))
    with pm.Model() as model:
        loading = pm.Normal("loading", 0.0, 1.0, shape=p)
        factor = pm.Normal("factor", 0.0, 1.0, shape=30)
        pm.Normal("y", factor[:, None] * loading, pm.HalfNormal("sigma", 1.0), observed=y)
    return model, None, None


def flipflop(rng: np.random.Generator) -> Any:
    """Return the concentrations after one dose, with an absorption near the elimination; both orders fit."""
    absorption, elimination, volume = rng.uniform(0.7, 1.6), rng.uniform(0.15, 0.4), rng.uniform(8.0, 20.0)
    time = np.array([0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0])
    curve = np.exp(-elimination * time) - np.exp(-absorption * time)
    y = 100.0 * absorption / (volume * (absorption - elimination)) * curve * np.exp(0.15 * rng.normal(size=8))
    with pm.Model() as model:
        ka, ke = pm.LogNormal("ka", 0.0, 1.5), pm.LogNormal("ke", 0.0, 1.5)
        v = pm.LogNormal("v", np.log(10.0), 1.5)
        decay = pm.math.exp(-ke * time) - pm.math.exp(-ka * time)
        concentration = 100.0 * ka / (v * (ka - ke)) * decay
        pm.LogNormal("y", pm.math.log(concentration), pm.HalfNormal("sigma", 0.5), observed=y)
    return model, None, None


def heavy(rng: np.random.Generator) -> Any:
    """Return a lognormal, Student's t, a payoff or a ratio of normals, which has no mean."""
    kind, scale = int(rng.integers(4)), float(rng.uniform(1.5, 2.5))
    sd = np.sqrt(np.expm1(scale**2)) * np.exp(0.5 * scale**2)
    with pm.Model() as model:
        if kind == 0:
            pm.LogNormal("x", 0.0, scale)
        elif kind == 1:
            nu = float(rng.uniform(2.05, 2.6))
            pm.StudentT("x", nu=nu, mu=0.0, sigma=1.0)
            sd = np.sqrt(nu / (nu - 2.0))
        elif kind == 2:
            z = pm.Normal("z")
            pm.Deterministic("x", pm.math.exp(scale * z))
        else:
            pm.Deterministic("x", pm.Normal("a") / pm.Normal("b"))
            sd = np.inf
    return model, None, sd


def one(rng: np.random.Generator) -> Any:
    """Return a regression, whose posterior has one mode."""
    d = int(rng.integers(2, 30))
    x = rng.normal(size=(60, d)) @ rng.normal(size=(d, d)) / np.sqrt(d)
    y = rng.poisson(np.exp(0.3 * x @ rng.normal(size=d)))
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.0)
        slopes = pm.Normal("slopes", 0.0, scale, shape=d)
        pm.Poisson("y", pm.math.exp(pm.Normal("intercept") + x @ slopes), observed=y)
    return model, None, None


CLASSES: dict[str, Callable[[np.random.Generator], Any]] = {
    function.__name__: function for function in (tails, many, low, cusp, spike, mirror, flipflop, heavy, one)
}


def is_wrong(name: str, dt: Any, mean: Any, sd: Any, verdict: pmm.Verdict) -> bool:
    """Return whether a run is wrong."""
    posterior = dt["posterior"]
    if name == "heavy":
        said = "The sd of x is hardly known" in verdict.sentence or "x may have no mean" in verdict.sentence
        return not said and not abs(float(posterior["x"].std()) / sd - 1.0) < 0.2
    if name == "flipflop":
        share = float((posterior["ka"] > posterior["ke"]).mean())
        return not 0.02 < share < 0.98
    if name == "mirror":
        at = posterior["loading"].mean(("chain", "draw")) / posterior["loading"].std(("chain", "draw"))
        return bool((np.abs(at) > 0.5).any())
    if mean is None:
        return False
    (values,) = posterior.data_vars.values()
    return bool((np.abs(values.mean(("chain", "draw")).values - mean) > 0.2 * sd).any())


def runs(names: list[str], models: int, seeds: int, key: int) -> Iterator[tuple[str, int, bool, Any]]:
    """Yield class, model, whether a run is wrong, and its verdict."""
    for name in names:
        for number in range(models):
            model, mean, sd = CLASSES[name](np.random.default_rng([key, number, len(name)]))
            for seed in range(seeds):
                dt = pmm.sample(model=model, random_seed=seed, **_OPTIONS)
                verdict = pmm.verdict(dt)
                yield name, number, is_wrong(name, dt, mean, sd, verdict), verdict


def main() -> None:
    """Print counts of each class, and the sentences of runs that are wrong and trusted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(CLASSES), choices=list(CLASSES), metavar="class")
    parser.add_argument("--models", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", type=int, default=1, help="another set of models")
    arguments = parser.parse_args()
    logging.getLogger("pmm_mcmc").setLevel(logging.ERROR)
    for name in arguments.names:
        counts = dict.fromkeys(("runs", "wrong", "wrong and trusted", "right", "right, called modes"), 0)
        codes: dict[str, int] = {}
        for _, number, wrong, verdict in runs([name], arguments.models, arguments.seeds, arguments.set):
            counts["runs"] += 1
            counts["wrong"] += wrong
            counts["right"] += not wrong
            counts["wrong and trusted"] += wrong and verdict.trusted
            called = {reason.code for reason in verdict.reasons} & {"modes", "search"}
            counts["right, called modes"] += not wrong and bool(called)
            for code in {reason.code for reason in verdict.reasons}:
                codes[code] = codes.get(code, 0) + 1
            if wrong and verdict.trusted:
                print(f"  {name} {number}: {verdict.sentence}", flush=True)
        print(name, ", ".join(f"{what} {count}" for what, count in counts.items()), codes, flush=True)


if __name__ == "__main__":
    main()

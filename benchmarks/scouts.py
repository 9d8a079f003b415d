"""Which modes scouts find, and where they find none: ``python -m benchmarks scouts [modes | one [model ...]]``.

Warm-ups of four chains with the default method, eight seeds each; draws are not needed.

``modes``: a unit Gaussian and another one, of a weight, a width and a distance in the first one's standard deviations,
along the diagonal or along a coordinate, in 1, 3 and 10 dimensions, with an improper prior.  Visited are runs with
chains in both at the end of the warm-up, or known to scouts to be in both.  In the others that are not found no scout
came there, or short chains do not stay there.

``one``: models whose posterior has one mode, by those of the gallery, the held-out ones and some odd ones.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from typing import Any

import gallery_models
import held_out_models
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.exceptions import SamplingError
from scoreboard.published import banana

from pmm_mcmc.run.driver import Run
from pmm_mcmc.run.plan import Asked, SamplingPlan
from pmm_mcmc.run.starts import draws_of_prior, starts
from pmm_mcmc.warmup import pooled
from pmm_mcmc.warmup.other_modes import OtherModes
from pmm_mcmc.warmup.scouts import look_around

CHAINS, SEEDS, LENGTH = 4, 8, 1000
DIMENSIONS, WIDTHS, DISTANCES, WEIGHTS = (1, 3, 10), (2.0, 1.0, 0.5, 0.2), (5.0, 10.0, 20.0), (0.3, 0.05, 0.005)


def student_2() -> pm.Model:
    with pm.Model() as model:
        pm.StudentT("x", nu=2, mu=0, sigma=1, shape=3)
    return model


def cauchy_of_five() -> pm.Model:
    with pm.Model() as model:
        mu, s = pm.Normal("mu", 0, 10), pm.HalfCauchy("s", 5)
        pm.Cauchy("y", mu, s, observed=[-1.2, 0.3, 0.9, 4.5, 9.0])
    return model


def separated() -> pm.Model:
    x = np.array([-2.0, -1.5, -1.0, -0.3, 0.2, 1.0, 1.4, 2.0])
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 5), pm.Cauchy("b", 0, 2.5)
        pm.Bernoulli("y", logit_p=a + b * x, observed=x > 0)
    return model


def funnel() -> pm.Model:
    with pm.Model() as model:
        v = pm.Normal("v", 0, 3)
        pm.Normal("x", 0, pt.exp(v / 2), shape=9)
    return model


def at_bounds() -> pm.Model:
    with pm.Model() as model:
        pm.Beta("p", 0.3, 0.3)
        pm.Uniform("u", 0, 1)
        pm.Gamma("g", 0.2, 1)
    return model


ODD = (student_2, cauchy_of_five, separated, funnel, banana, at_bounds)
ONE: dict[str, Callable[[], pm.Model]] = {
    **{build.__name__: build for build in ODD},
    **{name: chapter.build for name, chapter in gallery_models.CHAPTERS.items()},
    **{f"held out: {name}": held.build for name, held in held_out_models.MODELS.items()},
}


def two_modes(d: int) -> pm.Model:
    with pm.Model() as model:
        law, at = pm.Data("law", np.array([10.0, 0.3, 1.0])), pm.Data("at", np.zeros(d))
        x = pm.Flat("x", shape=d)
        own = pt.log(1 - law[1]) - 0.5 * pt.sum(x**2)
        other = pt.log(law[1]) - 0.5 * pt.sum((x - law[0] * at) ** 2) / law[2] ** 2 - d * pt.log(law[2])
        pm.Potential("modes", pt.logaddexp(own, other))
    return model


class Scouted:
    """What the scouts of a warm-up found, what they cost over the rest of it, and the chains at its end."""

    def __init__(self, plan: SamplingPlan, seed: int):
        rng = np.random.default_rng(seed)
        run = Run.start(plan.engine, plan.arguments, starts(plan, None, CHAINS, None, rng), LENGTH, rng)
        warming = run.warming
        warming.prior, self.share = draws_of_prior(plan, rng), 0.0
        pooled.look_around = self._look
        while not warming.finished:
            warming.block(plan.engine)
        self.found: OtherModes = warming.other_modes
        d = plan.engine.d
        self.chains = warming.tuned.coordinates.place(warming.ensemble.state[:, 3 * d : 4 * d])

    def _look(self, engine: Any, tuned: Any, seen: Any, prior: Any, n_grad: int, rng: Any) -> tuple[Any, ...]:
        looked = look_around(engine, tuned, seen, prior, n_grad, rng)
        self.share = looked[-1] / n_grad
        return looked


def plan_of(model: pm.Model) -> SamplingPlan:
    return SamplingPlan.of(Asked(None, model, CHAINS, "numba", adjusted=False))


def report_modes() -> None:
    print("Of 8 runs: other mode found and weighed within a factor of 1.35 / visited / neither.")
    print("  d  along       width  distance" + "".join(f"   weight {weight:<5}" for weight in WEIGHTS))
    for d in DIMENSIONS:
        model = two_modes(d)
        plan, shares = plan_of(model), []
        for along in ("diagonal", "coordinate")[:d]:
            at = np.ones(d) / np.sqrt(d) if along == "diagonal" else np.eye(d)[0]
            for width in WIDTHS:
                for distance in DISTANCES:
                    counts = [counted(model, plan, at, distance, weight, width, shares) for weight in WEIGHTS]
                    row = f"{d:3}  {along:10}  {width:5}  {distance:8.0f}" + "".join(f"   {c:12}" for c in counts)
                    print(row, flush=True)
        print(
            f"Gradients over those of the rest: median {np.median(shares):.2f}, largest {max(shares):.2f}", flush=True
        )


def counted(
    model: pm.Model,
    plan: SamplingPlan,
    at: np.ndarray,
    distance: float,
    weight: float,
    width: float,
    shares: list[float],
) -> str:
    model.set_data("law", np.array([distance, weight, width]))
    model.set_data("at", at)
    seen = visited = neither = 0
    for seed in range(SEEDS):
        run = Scouted(plan, seed)
        shares.append(run.share)
        there = run.chains @ at > distance / (1.0 + width)
        true = weight if not there.any() else 1.0 - weight
        if run.found.mass > 0.0 and not run.found.visited:
            odds = run.found.mass / (1.0 - run.found.mass) / (true / (1.0 - true))
            seen += abs(np.log(odds)) < 0.3
        elif run.found.visited or 0 < there.sum() < CHAINS:
            visited += 1
        else:
            neither += 1
    return f"{seen}/{visited}/{neither}"


def report_one(names: list[str]) -> None:
    print("Of 8 runs: with another mode above a hundredth, a thousandth of the mass; gradients of scouts over the rest")
    for name in names:
        try:
            plan = plan_of(ONE[name]())
            runs = [Scouted(plan, seed) for seed in range(SEEDS)]
        except (SamplingError, ValueError) as error:  # discrete variables, or no finite start
            print(f"{name:40} not run: {str(error).partition(chr(10))[0][:60]}", flush=True)
            continue
        mass = np.nan_to_num([run.found.mass for run in runs])  # of modes of unequal width that chains visit, too
        shares = [run.share for run in runs]
        print(
            f"{name:40} {(mass > 0.0099).sum()} {(mass > 0.0).sum()}  {np.median(shares):.2f} {max(shares):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["modes", "one"], help="default: both")
    parser.add_argument("models", nargs="*", help="models with one mode; by default all")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.models if name not in ONE]
    if unknown:
        parser.error(f"{unknown[0]!r}: must be one of {', '.join(ONE)}")
    if arguments.part != "one":
        report_modes()
    if arguments.part != "modes":
        report_one(arguments.models or list(ONE))

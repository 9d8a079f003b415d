"""What each threshold does: ``python -m benchmarks thresholds {1,2} [field ...]`` halves and doubles them one by one.

The thresholds are the fields of ``pmm_mcmc.warmup.calibration`` and ``pmm_mcmc.diagnostics.calibration``.  A number
between 0.55 and 1.9 is varied in its distance from 1, any other itself.  Two halves of an acceptance set, so that what
is seen on one can be confirmed on the other.  Each model is compiled once and sampled by 8 chains, 200 draws each.
The verdict is asked of those draws, of the first 25 of them, and of draws at twice the step size.

Fields of the scouts and of what is said of modes and necks (``EDGES``) are varied in whole runs of ``pmm.sample``,
with defaults, on models with two modes and with a neck: two in each half.
"""

from __future__ import annotations

import argparse
import logging
import time
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
from calibration import as_result
from hierarchies import HIERARCHIES
from hierarchies import reference as reference_of_hierarchy
from targets import TARGETS, reference
from versus.ours import engine_for, starts

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics import calibration as of_diagnostics
from pmm_mcmc.diagnostics.reading import read
from pmm_mcmc.diagnostics.verdict import judge
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.run.sample import warm_up
from pmm_mcmc.warmup import calibration as of_warmup
from pmm_mcmc.warmup.step_size import expected_bias
from pmm_mcmc.workbench import targets as gallery

CHAINS, DRAWS, SHORT, LENGTH = 8, 200, 25, 1000
UNDERDAMPED = {"dynamics": "underdamped"}
DEFAULT = ("PoissonULMC", {**UNDERDAMPED, "scheme": "recycled"})
PAPER, PLAIN, ADJUSTED = (("PoissonULMC", UNDERDAMPED), ("ULMC", UNDERDAMPED), ("GHMC", UNDERDAMPED))
EDGES = (
    *("looks", "look_share", "scouts", "scouts_together", "scout_share", "most_of_scouts", "climbing_share"),
    *("least_climb", "nearest", "furthest", "spacing", "homes", "points_between", "dip", "volumes"),
    *(
        "mass",
        "most_modes",
        "short_chains",
        "longest_stay",
        "lowest",
        "lowest_each",
        "apart",
        "visited",
        "narrowing",
        "agree",
    ),
)
# Fields that verdicts read too, though they are those of warm-up.
SHARED = ("chance", "identity_z", "pieces")
HEADER = """\
half {half}: {names}; seeds {seeds}

runs     of so many, that differ in any draw or verdict
cost     gradients of warm-up and of 400 effective draws of the slowest parameter: factor, geometric mean +- its error
trusted  runs at the tuned step; of 25 draws each; at twice the step
error    largest error of a corrected mean, in posterior standard deviations: root mean square over runs

field                            value       runs   cost            trusted      error"""


def centred(name: str) -> pm.Model:
    """Student t variables of four degrees of freedom, or neighbours correlated by 0.95 with scales from 0.01 to 100."""
    at, scale = np.arange(20), np.geomspace(0.01, 100.0, 20)
    with pm.Model() as model:
        if name == "heavy":
            pm.StudentT("x", nu=4.0, mu=0.0, sigma=1.0, shape=10)
        else:
            pm.MvNormal("x", np.zeros(20), cov=0.95 ** np.abs(at - at[:, None]) * np.outer(scale, scale))
    return model


HALVES = {
    1: (
        ("eight_schools", DEFAULT), ("breast_cancer", DEFAULT), ("banana", DEFAULT), ("regularised_horseshoe", DEFAULT),
        ("eight_schools", PAPER), ("eight_schools", ADJUSTED),
    ),
    2: (
        ("correlated Gaussian", DEFAULT), ("heavy", DEFAULT), ("rippled", DEFAULT), ("nested", DEFAULT),
        ("rippled", PAPER), ("heavy", PLAIN),
    ),
}  # fmt: skip


def problem(name: str) -> tuple[pm.Model, np.ndarray]:
    """Return a model with the posterior means of its coordinates."""
    if name in ("heavy", "correlated Gaussian"):
        return centred(name), np.zeros(1)
    if name in TARGETS:
        return TARGETS[name].build(), reference(name).mean
    if name in HIERARCHIES:
        model = HIERARCHIES[name].build(True)
        return model, reference_of_hierarchy(name, model).mean
    target = gallery.get(name)
    return target.build(), target.reference.mean


class Outcome(NamedTuple):
    """What a run came to: its warm-up and draws as bytes, cost, largest error, and the verdicts of its three trees."""

    same: bytes
    cost: float
    error: float
    verdicts: tuple[str, ...]
    trees: tuple[Any, ...]


class Case:
    """A model with a method, compiled once."""

    def __init__(self, name: str, sampler: tuple[str, dict[str, Any]]):
        self.model, self.known = problem(name)
        self.arguments = MethodArguments.checked(sampler[0], **sampler[1])
        self.engine = engine_for(self.model, self.arguments)

    def sample(self, seed: int, before: Outcome | None = None) -> Any:
        """Warm up and sample; return the run as bytes, its gradients, and trees; None where it is the one before."""
        rng = np.random.default_rng(seed)
        first = starts(self.model, self.engine, CHAINS, rng)
        warmed = warm_up(self.engine, self.arguments, first, length=LENGTH, rng=rng)
        tuned, ensemble = warmed.tuned, warmed.ensemble
        curvature = warmed.warmup.warmup._lipschitz if warmed.warmup else 1.0
        twice = tuned._replace(step_size=2.0 * tuned.step_size)
        bias = expected_bias(self.arguments, twice.step_size, tuned.friction, tuned.K, curvature, self.engine.d)
        parts = (*tuned[:3], *tuned[4:], *tuned.coordinates, bias, ensemble.state, warmed.n_grad)
        same = b"".join(np.asarray(part).tobytes() for part in parts if part is not None)
        if before is not None and same == before.same:
            return None
        for setting in (tuned, twice._replace(expected_bias=bias)):
            chunk = ensemble.advance(self.engine, setting, DRAWS, thin=tuned.steps_per_draw)
            seen = (chunk.position, chunk.gradient, chunk.unstable)
            if setting is tuned:
                spent = float(np.mean(warmed.n_grad)), float(chunk.n_grad.sum())
                trees = [as_result(*cut, tuned, self.engine.structure) for cut in (seen, [x[:, :SHORT] for x in seen])]
            else:
                trees.append(as_result(*seen, setting, self.engine.structure))
        return same, spent, tuple(trees)

    def outcome(self, seed: int, before: Outcome | None = None, again: bool = False) -> Outcome:
        """Sample, unless warm-up is what it was before, and judge; or judge ``again`` what was sampled before."""
        found = None if again else self.sample(seed, before=before)
        if found is None and before is not None and not again:
            return before
        same, spent, trees = found or (before.same, None, before.trees)
        verdicts, error, cost = [], 0.0, 0.0
        for i, tree in enumerate(trees):
            run = read(tree)
            verdicts.append(str(judge(run)))
            if i == 0:
                table = run.table
                error = float(np.max(np.abs(table["mean_cv"] - self.known) / table["sd"]))
                cost = before.cost if spent is None else spent[0] + 400.0 * spent[1] / table["ess_bulk"].min()
        return Outcome(same, cost, error, tuple(verdicts), trees)


def modes(weight: float, apart: float, width: float, d: int, prior: bool) -> tuple[pm.Model, dict[str, float]]:
    """Return two Gaussians, the second of another weight and width, and the means; with draws of a prior or without."""
    with pm.Model() as model:
        parts = [pm.MvNormal.dist(np.full(d, at), sd**2 * np.eye(d)) for at, sd in ((0.0, 1.0), (apart, width))]
        mixture = pm.Mixture.dist([1.0 - weight, weight], parts)
        if prior:
            model.register_rv(mixture, "x")
        else:
            pm.Potential("mixture", pm.logp(mixture, pm.Flat("x", shape=d)))
    return model, {f"x[{i}]": weight * apart for i in range(d)}


def walk(seed: int) -> tuple[pm.Model, dict[str, float]]:
    """Return a random walk of which ten steps are not seen, with noise, and the means of both scales by quadrature."""
    rng, seen = np.random.default_rng(seed), np.r_[0:10, 20:30]
    y = (np.cumsum(rng.normal(0.0, 0.1, 30)) + rng.normal(0.0, 0.15, 30))[seen]
    with pm.Model() as model:
        step, noise = pm.LogNormal("step", 0.0, 2.0), pm.LogNormal("noise", 0.0, 2.0)
        x = pm.GaussianRandomWalk("walk", sigma=step, init_dist=pm.Normal.dist(0.0, step), steps=29)
        pm.Normal("y", x[seen], noise, observed=y)
    variances, vectors = np.linalg.eigh(np.minimum(seen[:, None], seen) + 1.0)
    a, b = np.meshgrid(np.linspace(-8.0, 3.0, 600), np.linspace(-12.0, 3.0, 800))
    of_y = np.exp(2.0 * a)[..., None] * variances + np.exp(2.0 * b)[..., None]
    lp = -0.5 * (np.log(of_y) + (vectors.T @ y) ** 2 / of_y).sum(axis=-1) - (a**2 + b**2) / 8.0
    p = np.exp(lp - lp.max())
    return model, {name: float((p * np.exp(at)).sum() / p.sum()) for name, at in (("step", a), ("noise", b))}


EDGE_MODELS = {
    1: {"a mode of 3 %, flat prior": lambda: modes(0.03, 10.0, 1.0, 2, False), "walk 8": lambda: walk(8)},
    2: {"modes of unequal widths": lambda: modes(0.7, 5.0, 0.5, 2, True), "walk 4": lambda: walk(4)},
}


class Whole:
    """Whole runs of a model, with scouts and the look for necks."""

    def __init__(self, build: Any):
        self.model, self.known = build()

    def outcome(self, seed: int, before: Outcome | None = None, again: bool = False) -> Outcome:
        """Sample and judge; or judge ``again`` what was sampled before."""
        if again:
            tree = before.trees[0]
        else:
            with self.model:
                tree = pmm.sample(random_seed=seed, progressbar=False)
        run, stats = read(tree), tree["sample_stats"].dataset
        table = run.table
        off = [abs(table["mean_cv"][name] - mean) / table["sd"][name] for name, mean in self.known.items()]
        spent = stats["n_grad_total"].values
        same, cost = run.position.tobytes() + spent.tobytes(), float(spent[:, -1].mean())
        found = judge(run)
        return Outcome(same, cost, max(off), (f"{found} {found.reasons}",), (tree,))


def varied(value: float) -> tuple[float, float]:
    """Half and double of a threshold, or of its distance from 1."""
    if isinstance(value, int):
        return max(1, value // 2), 2 * value
    if 0.55 < value < 1.9 and value != 1.0:
        return 1.0 + 0.5 * (value - 1.0), max(1.0 + 2.0 * (value - 1.0), 0.0)
    return 0.5 * value, 2.0 * value


@contextmanager
def changed(record: Any, field: str, value: float) -> Any:
    """Run with another value of a threshold, which all modules read from the one record."""
    old = getattr(record, field)
    object.__setattr__(record, field, value)
    try:
        yield
    finally:
        object.__setattr__(record, field, old)


def row(name: str, value: Any, base: list[Outcome], found: list[Outcome]) -> str:
    """Compare the runs at a value with those at the defaults."""
    differ = sum(a is not b and (a.same, a.verdicts) != (b.same, b.verdicts) for a, b in zip(base, found, strict=True))
    ratio = np.log([b.cost / a.cost for a, b in zip(base, found, strict=True)])
    error = np.sqrt(np.mean([each.error**2 for each in found]))
    kinds = range(len(found[0].verdicts))
    trusted = "/".join(str(sum(each.verdicts[i].startswith("Trusted") for each in found)) for i in kinds)
    cost = f"{np.exp(ratio.mean()):.2f} +- {ratio.std(ddof=1) / np.sqrt(len(ratio)):.2f}" if differ else "as before"
    return f"{name:32s} {value:<11.6g} {differ:2d}/{len(base):<2d}  {cost:14s}  {trusted:10s}  {error:6.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("half", type=int, choices=HALVES)
    parser.add_argument("fields", nargs="*", help="thresholds to vary (default: all but EDGES)")
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2])
    given = parser.parse_args()
    edges = bool(given.fields) and set(given.fields) <= set(EDGES)
    if edges:
        logging.disable(logging.WARNING)  # verdicts
        cases, names = [Whole(build) for build in EDGE_MODELS[given.half].values()], ", ".join(EDGE_MODELS[given.half])
    else:
        cases = [Case(name, sampler) for name, sampler in HALVES[given.half]]
        names = ", ".join(" ".join([name, sampler[0], *sampler[1].values()]) for name, sampler in HALVES[given.half])
    runs = [(case, seed) for case in cases for seed in given.seeds]
    print(HEADER.format(half=given.half, names=names, seeds=given.seeds))
    base = [case.outcome(seed) for case, seed in runs]
    print(row("(all as they are)", np.nan, base, base), flush=True)
    for room, record in (("warmup", of_warmup.CALIBRATION), ("diagnostics", of_diagnostics.CALIBRATION)):
        for field in fields(record):
            again, values = room == "diagnostics" and field.name != "narrowing", varied(getattr(record, field.name))
            asked = field.name in given.fields if given.fields else field.name not in EDGES
            for value in values if asked else ():
                with changed(record, field.name, value):
                    found = [case.outcome(seed, o, again) for (case, seed), o in zip(runs, base, strict=True)]
                    if field.name in SHARED:
                        found = [case.outcome(seed, o, True) for (case, seed), o in zip(runs, found, strict=True)]
                print(row(f"{room}.{field.name}", value, base, found), flush=True)
    print(f"\n{time.process_time():.0f} s of CPU")


if __name__ == "__main__":
    main()

"""What the learnt non-centring brings: ``python benchmarks/noncentring.py [target ...]`` prints the table.

Eight chains start within one unit of the model's initial point.  Rounds: the warm-up's first transitions in the
coordinates so far, then :func:`pmm_mcmc.noncentring.learn.learn_map` on the draws of all rounds; more rounds where the
first has found pairs, until new draws are near to Gaussian.  Then ``warm_up`` and draws, in straightened coordinates.
Gradients count for each chain.
The centred models are what a user would write; references are exact, or of NUTS on the same model written non-centred.
The sinks of Neal's funnel, whose variance is next to infinite, are left out of the errors.  Targets that need nothing
come last.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import exact_moments as exact
import numba
import numpy as np
import pymc as pm
from gradients import SAMPLERS, engine_for, starts
from numba import carray, cfunc
from peers import Run, gradients_to
from targets import FUNNEL_SD, TARGETS, Reference, eight_schools, reference

from pmm_mcmc.engines.ensemble import Ensemble
from pmm_mcmc.engines.native import _as_pointer
from pmm_mcmc.engines.numba_engine import SIGNATURE, NumbaEngine
from pmm_mcmc.methods import Settings
from pmm_mcmc.noncentring import loops
from pmm_mcmc.noncentring.learn import Learnt, learn_map
from pmm_mcmc.sampling import Warmed, warm_up
from pmm_mcmc.tuning.schedule import Warmup
from pmm_mcmc.tuning.setting import Block

CHAINS, LENGTH, WARMUP, LIMIT = 8, 250, 1900, 0.01
# Rounds, at least and at most; no more than the least where the divergence is below so much.
ROUNDS, MOST_ROUNDS, STRAIGHT = 2, 4, 0.1
HEADER = """\
D          divergence per coordinate of new draws from a Gaussian: affine scale alone -> on top of the map, last round
tuning     gradients of the rounds + of the warm-up in straightened coordinates
b2_max     gradients until the median over chains is below {limit} (b2_avg: the mean over coordinates)
bias       worst error of a mean over all chains in posterior sds, its coordinate, and its standard error
failing    rejected transitions of {draws} draws a chain
secs       CPU of learn_map, the longest of the rounds
""".format


def funnel(sinks: int) -> pm.Model:
    """Neal's funnel with so many sinks."""
    with pm.Model() as model:
        y = pm.Normal("y", 0.0, FUNNEL_SD)
        pm.Normal("x", 0.0, pm.math.exp(y / 2), shape=sinks)
    return model


def _effects(name: str, mean: Any, sd: Any, shape: Any, centred: bool) -> Any:
    """Return effects with this mean and scale as they are, or by their standardised deviations."""
    if centred:
        return pm.Normal(name, mean, sd, shape=shape)
    return pm.Deterministic(name, mean + sd * pm.Normal(f"z_{name}", shape=shape))


def nested(centred: bool = True) -> pm.Model:
    """Three levels: 6 groups of 5 of 3 observations."""
    rng = np.random.default_rng(3)
    top = rng.normal(0, 1.0, 6)
    y = (top[:, None] + rng.normal(0, 0.3, (6, 5)))[:, :, None] + rng.normal(0, 1.0, (6, 5, 3))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 3.0)
        tau, omega, sigma = (pm.HalfNormal(name, 2.0) for name in ("tau", "omega", "sigma"))
        a = _effects("a", mu, tau, 6, centred)
        b = _effects("b", a[:, None], omega, (6, 5), centred)
        pm.Normal("y", b[:, :, None], sigma, observed=y)
    return model


def intercepts_and_slopes(centred: bool = True) -> pm.Model:
    """Varying intercepts and slopes over 85 groups of 1 to 12 observations."""
    rng = np.random.default_rng(85)
    group = np.repeat(np.arange(85), rng.integers(1, 13, 85))
    floor = rng.binomial(1, 0.3, group.size).astype(float)
    a, b = rng.normal(1.4, 0.3, 85), rng.normal(-0.7, 0.25, 85)
    y = a[group] + b[group] * floor + rng.normal(0, 0.75, group.size)
    with pm.Model() as model:
        mu_a, mu_b = pm.Normal("mu_a", 0.0, 5.0), pm.Normal("mu_b", 0.0, 5.0)
        sd_a, sd_b, sigma = (pm.HalfNormal(name, 1.0) for name in ("sd_a", "sd_b", "sigma"))
        a, b = _effects("a", mu_a, sd_a, 85, centred), _effects("b", mu_b, sd_b, 85, centred)
        pm.Normal("y", a[group] + b[group] * floor, sigma, observed=y)
    return model


def horseshoe(centred: bool = True) -> pm.Model:
    """Logistic regression of 25 covariates under a horseshoe prior."""
    rng = np.random.default_rng(25)
    x = rng.normal(size=(200, 25))
    y = rng.binomial(1, 1 / (1 + np.exp(-x[:, :5] @ [1.5, -1.0, 0.8, 0.5, -0.5])))
    with pm.Model() as model:
        tau = pm.HalfCauchy("tau", 0.3)
        local = pm.HalfCauchy("local", 1.0, shape=25)
        beta = _effects("beta", 0.0, tau * local, 25, centred)
        pm.Bernoulli("y", logit_p=pm.math.dot(x, beta), observed=y)
    return model


HIERARCHIES: dict[str, Callable[..., pm.Model]] = {
    "funnel10": partial(funnel, 9),
    "funnel51": partial(funnel, 50),
    "eight_schools_centred": partial(eight_schools, True),
    "nested": nested,
    "intercepts_and_slopes": intercepts_and_slopes,
    "horseshoe": horseshoe,
}
EXACT = {
    "funnel10": partial(exact.funnel, FUNNEL_SD, 9),
    "funnel51": partial(exact.funnel, FUNNEL_SD, 50),
    "eight_schools_centred": partial(reference, "eight_schools_centred"),
}
NEED_NOTHING = (
    *("eight_schools", "rosenbrock36", "banana", "phi4", "mixture20", "latent_ar", "galaxies"),
    *("breast_cancer", "poisson_glm", "negative_binomial_glm", "gaussian100", "rotated100"),
)


def coordinate_names(model: pm.Model) -> list[str]:
    """Names of the flat vector's coordinates."""
    names, point = [], model.initial_point(0)
    for var in model.continuous_value_vars:
        base = var.name.removesuffix("_log__")
        shape = point[var.name].shape
        one = base if base == var.name else f"log {base}"
        names += [one] if not shape else [f"{one}[{i}]" for i in range(int(np.prod(shape)))]
    return names


def sampled_reference(name: str, draws: int) -> Reference:
    """Moments from a long run of NUTS on the non-centred model, in the centred one's coordinates."""
    with HIERARCHIES[name](centred=False):
        quiet = {"progressbar": False, "quiet": True, "compute_convergence_checks": False}
        posterior = pm.sample(draws, tune=1000, chains=4, cores=1, random_seed=1, target_accept=0.95, **quiet).posterior
    parts = []
    for var in HIERARCHIES[name]().continuous_value_vars:
        value = posterior[var.name.removesuffix("_log__")].values
        value = value.reshape(*value.shape[:2], -1)
        parts.append(np.log(value) if var.name.endswith("_log__") else value)
    x = np.concatenate(parts, axis=2)
    batches = x.reshape(40, -1, x.shape[2])
    se = [(batches**p).mean(axis=1).std(axis=0, ddof=1) / np.sqrt(40) for p in (1, 2)]
    mean, second, fourth = ((x**p).mean(axis=(0, 1)) for p in (1, 2, 4))
    return Reference(mean, second, second - mean**2, fourth - second**2, *se)


_place, _pull_back = loops.place, loops.pull_back
_ENTRIES = 12


def straightened(inner: Any) -> Any:
    """C function of the log density over ``z``, from that over ``x``; its table begins with the map's addresses."""

    @cfunc(SIGNATURE)
    def joint(z_pointer, gradient_pointer, table_pointer, d):
        z, gradient, table = carray(z_pointer, (d,)), carray(gradient_pointer, (d,)), carray(table_pointer, (_ENTRIES,))
        m, p = table[0], table[1]
        sink = carray(_as_pointer(table[2]), (m,), np.int64)
        start = carray(_as_pointer(table[3]), (m + 1,), np.int64)
        source = carray(_as_pointer(table[4]), (p,), np.int64)
        slope = carray(_as_pointer(table[5]), (p,), np.float64)
        load = carray(_as_pointer(table[6]), (p,), np.float64)
        log_scale = carray(_as_pointer(table[7]), (m,), np.float64)
        location = carray(_as_pointer(table[8]), (m,), np.float64)
        ceiling = carray(_as_pointer(table[9]), (m,), np.float64)
        anchor = carray(_as_pointer(table[10]), (m,), np.float64)
        x, work = z.copy(), np.empty((4, m))
        total = _place(sink, start, source, slope, load, log_scale, location, ceiling, anchor, x, work)
        data = carray(_as_pointer(table[11]), (1,), np.int64)
        lp = inner(x.ctypes, gradient.ctypes, data.ctypes, d)
        _pull_back(sink, start, source, slope, load, gradient, work)
        return lp + total

    return joint


class Straightened:
    """A model in the coordinates of a map, which may be none."""

    def __init__(self, model: pm.Model, settings: Settings):
        self.settings, self.plain = settings, engine_for(model, settings)
        self.d, self.map = self.plain.d, None
        self._joint: Any = None

    @property
    def engine(self) -> NumbaEngine:
        """Of the coordinates as they are."""
        if self.map is None:
            return self.plain
        self._joint = self._joint or straightened(self.plain._joint)
        arrays, data = self.map.checked(self.d), self.plain._joint_table()
        addresses = [part.ctypes.data for part in (*arrays, data)]
        self._held = arrays, data
        table = np.array([len(arrays.sink), len(arrays.source), *addresses], np.int64)
        return NumbaEngine(self.settings.kernel, self.d, self._joint, self._joint, lambda: table, lambda: table)

    def to_x(self, z: np.ndarray) -> np.ndarray:
        """Map positions to the model's."""
        return z if self.map is None else self.map.to_x(z)

    def to_z(self, x: np.ndarray) -> np.ndarray:
        """Map the model's positions to those of the engine."""
        return x if self.map is None else self.map.to_z(x)

    def gradient(self, z: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Map the engine's gradients to the model's."""
        return g if self.map is None else self.map.push_forward(z, g)

    def look(self, begin: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
        """Run the first transitions of a warm-up; return positions and gradients of the model, and the cost."""
        engine, z = self.engine, self.to_z(begin)
        warmup = Warmup.start(self.settings, WARMUP, z, np.stack([engine.gradient_at(one) for one in z]))
        tuned, parts = warmup.tuned, []
        ensemble = Ensemble.start(engine, tuned.coordinates, z, rng)
        while warmup.done < LENGTH:
            rows = min(warmup.boundary - warmup.done, LENGTH - warmup.done)
            parts.append(ensemble.advance(engine, tuned, rows, tolerance=warmup.tolerance))
            warmup.observe(Block.of(parts[-1]))
            if warmup.done < LENGTH:
                new = warmup.update(engine.gradient_at)
                ensemble.copy_from(warmup.source)
                ensemble.change(engine, tuned.coordinates, new.coordinates)
                tuned = new
        position, gradient = (np.concatenate([getattr(p, n) for p in parts], axis=1) for n in ("position", "gradient"))
        cost = 2 + sum(p.n_grad.sum() for p in parts) / CHAINS + warmup.n_grad / CHAINS
        return self.to_x(position), self.gradient(position, gradient), float(cost)


def in_time(parts: list[np.ndarray]) -> np.ndarray:
    """Rows in order of time, chains side by side, without the first quarter of each round."""
    kept = [part[:, part.shape[1] // 4 :] for part in parts]
    return np.concatenate([part.swapaxes(0, 1).reshape(-1, part.shape[2]) for part in kept])


def learn(
    target: Straightened, model: pm.Model, begin: np.ndarray, rng: np.random.Generator
) -> tuple[list[Learnt], np.ndarray, float, float]:
    """Learn the target's map in rounds; return what each has found, where the chains are, gradients and seconds."""
    found: list[Learnt] = []
    positions, gradients, cost, seconds, at = [], [], 0.0, 0.0, begin
    for turn in range(MOST_ROUNDS):
        x, g, spent = target.look(at, rng)
        positions, gradients, cost, at = [*positions, x], [*gradients, g], cost + spent, x[:, -1]
        x, g = in_time(positions), in_time(gradients)
        chain = np.tile(np.arange(CHAINS), len(x) // CHAINS)
        before = time.process_time()
        found.append(learn_map(x, g, chain, target.map, coordinate_names(model)))
        seconds = max(seconds, time.process_time() - before)
        if not found[-1].found:
            break
        target.map = found[-1].map or target.map
        if turn + 1 >= ROUNDS and target.map is not None and found[-1].after < STRAIGHT:
            break
    return found, at, cost, seconds


def errors(warmed: Warmed, run: Run, known: Reference, failing: int) -> str:
    """Return the columns of a run's errors."""
    worst, mean = (gradients_to(run.draws, run.gradients_per_draw, known, b, LIMIT) for b in ("b2_max", "b2_avg"))
    sd, means = np.sqrt(known.variance_of_x), run.draws.mean(axis=1)
    bias = (means.mean(axis=0) - known.mean) / sd
    j = int(np.argmax(np.abs(bias)))
    se = np.hypot(means.std(axis=0, ddof=1) / np.sqrt(CHAINS), known.se_mean)[j] / sd[j]
    return (
        f"{worst!s:>7s} {mean!s:>7s}  bias {bias[j]:+.3f} ({j}; se {se:.3f}) step {warmed.tuned.step_size:.2f} "
        f"failing {failing}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=[*HIERARCHIES, *NEED_NOTHING])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--reference", type=int, default=2000, help="draws of NUTS, in each of 4 chains")
    parser.add_argument("--plain", action="store_true", help="run without a map, too")
    arguments = parser.parse_args()
    print(HEADER(limit=LIMIT, draws=arguments.draws), flush=True)
    method, options = SAMPLERS["recycled"]
    settings = Settings.checked(method, **options)
    for name in arguments.targets:
        model = HIERARCHIES[name]() if name in HIERARCHIES else TARGETS[name].build()
        if name in HIERARCHIES and name not in EXACT:
            known = sampled_reference(name, arguments.reference)
        else:
            known = EXACT.get(name, partial(reference, name))()
        print(f"{name} (d={len(known.second)})", flush=True)
        shown = np.arange(1) if name.startswith("funnel") else np.arange(len(known.second))
        part = Reference(*(getattr(known, field)[shown] for field in Reference.__dataclass_fields__))
        for seed in arguments.seeds:
            for with_map in (False, True) if arguments.plain else (True,):
                rng, target = np.random.default_rng(seed), Straightened(model, settings)
                at, cost, line = starts(model, target.plain, CHAINS, rng), 0.0, "  without a map: "
                if with_map:
                    found, at, cost, seconds = learn(target, model, at, rng)
                    last = found[-1]
                    verdict = "accepted" if target.map is not None else "refused"
                    line = f"  {seed} {verdict} D {last.before:.3g} -> {last.after:.2g}, {seconds:.1f} secs; "
                    print(f"      {'; '.join(last.found) or 'nothing found'}", flush=True)
                    if target.map is None and not arguments.plain:
                        print(line, flush=True)
                        continue
                engine = target.engine
                warmed = warm_up(engine, settings, target.to_z(at), length=WARMUP, rng=rng)
                chunk = warmed.ensemble.advance(engine, warmed.tuned, arguments.draws)
                run = Run("", target.to_x(chunk.position)[:, :, shown], chunk.n_grad, warmed.n_grad)
                line += f"tuning {cost:.0f} + {warmed.n_grad.mean():.0f}; "
                print(line + errors(warmed, run, part, int(chunk.unstable.sum())), flush=True)


if __name__ == "__main__":
    sys.exit(main())

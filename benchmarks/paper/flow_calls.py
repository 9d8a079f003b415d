"""Flow samplers on a held-out network, sharply: ``python -m benchmarks paper.flow_calls``.

The network of ``paper.flow`` that had no part in the choice of any setting; ten batches of 1500 samples, all samplers
from the same starts, so that differences have paired errors.  Settings of the others are those that ``paper.flow``
chose with another network; ours has the scheduler's default noise, 1.  Distances are to the held-out digits, with the
error of the network in them, and to samples of the SDE itself (ours with 160 calls), where what is left is the error of
the sampler and that of finite batches: the row "SDE, other seed".

``--calls 20`` for some calls only, ``--noise`` for ours at other amounts of noise.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import jax
import numpy as np
from diffusion.distances import NAMES, Distances, mean_and_error
from diffusion.problems import digit_features
from paper.flow import Problem, Size, trained_flow
from paper.flow_samplers import DATA_VARIANCES, FAMILIES, Sample

from pmm_mcmc.diffusion import DiffusionSchedule, plan_blocks, planner, poisson_midpoint_sample

BATCHES, SAMPLES = 10, 1500
# By paper.flow on the other network, the same at 20, 30 and 40 calls.
OTHERS = {
    "Euler-SDE": (0.3, 1.0),
    "CPS": (0.3, 1.0),
    "Heun": (0.0, 1.0),
    "DPM-Solver++ 2M": (0.0, 3.0),
    "SDE-DPM-Solver++": (0.0, 0.0),
}
WIDE = (1e-3, 100.0)


def ours(calls: int, a: float, variances: tuple[float, float], also: float | None = None) -> Sample:
    """Ours with planned blocks; ``also`` in place of the planner's second frozen prediction, 1 for none."""
    chain, kept = DiffusionSchedule.flow(1000, a), planner._ALSO_FROZEN
    planner._ALSO_FROZEN = kept if also is None else also
    try:
        blocks = plan_blocks(chain, calls // 2, variances)
    finally:
        planner._ALSO_FROZEN = kept
    return lambda key, network, x: poisson_midpoint_sample(key, network, x, chain, blocks, prediction="flow")


def drawn(problem: Problem, sample: Sample, seed: int) -> np.ndarray:
    """Samples by batches; equal seeds have equal starts."""
    key, start = jax.random.split(jax.random.key(seed))
    x = jax.random.normal(start, (BATCHES * SAMPLES, 64))
    return np.asarray(jax.jit(lambda k, x: sample(k, problem.network, x))(key, x)).reshape(BATCHES, SAMPLES, 64)


def cells(means: np.ndarray, errors: np.ndarray, form: str) -> str:
    """Means with errors."""
    return "".join(form.format(m, e) for m, e in zip(means, errors, strict=True))


def further(first: np.ndarray, second: np.ndarray) -> str:
    """How much further off the first is, with z; of the excess the absolute value of the mean counts."""
    signs = [np.where(np.array(NAMES) == "NLL excess", np.sign(v.mean(axis=0)), 1.0) for v in (first, second)]
    mean, error = mean_and_error(signs[0] * first - signs[1] * second)
    return cells(mean, mean / error, "{:>11.4f} ({:>5.1f})")


def samplers(calls: int, noise: bool) -> dict[str, Sample]:
    """Ours first."""
    if noise:
        return {f"ours, noise {a:.3g}": ours(calls, a, DATA_VARIANCES) for a in (1.0, 0.0, 0.5, 2**0.5)}
    found = {
        "ours, blocks for .001 to 3": ours(calls, 1.0, DATA_VARIANCES),
        "ours, for .001 to 100": ours(calls, 1.0, WIDE),
        "as before, .001 to 3": ours(calls, 1.0, DATA_VARIANCES, 1.0),
        "as before, .001 to 100": ours(calls, 1.0, WIDE, 1.0),
    }
    return found | {name: FAMILIES[name](calls, *setting) for name, setting in OTHERS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, nargs="+", default=[20, 30, 40])
    parser.add_argument("--noise", action="store_true", help="ours at other amounts of noise, against noise 1")
    options = parser.parse_args()
    problem = trained_flow(Size(), 1)
    print(problem.words)
    truth = drawn(problem, ours(160, 1.0, DATA_VARIANCES), 7)
    law = Distances(truth.reshape(-1, 64), digit_features(), nll=problem.distances._nll)
    judges: dict[str, Callable] = {"held-out digits": problem.distances, "the SDE itself": law}
    print(f"{'':42}" + "".join(f"{name:>20}" for name in NAMES))
    again = drawn(problem, ours(160, 1.0, DATA_VARIANCES), 1)
    for words, judge in judges.items():
        floor = np.array([judge(batch) for batch in again])
        print(f"SDE, other seed, to {words:22}" + cells(*mean_and_error(floor), "{:>11.4f} +-{:<6.4f}"), flush=True)
    for calls in options.calls:
        found = {}
        for name, sample in samplers(calls, options.noise).items():
            x = drawn(problem, sample, 1)
            for words, judge in judges.items():
                found[name, words] = np.array([judge(batch) for batch in x])
        for words in judges:
            print(f"\n{calls} calls, to {words}")
            rows = {name: values for (name, to), values in found.items() if to == words}
            for name, values in rows.items():
                print(f"{name:42}" + cells(*mean_and_error(values), "{:>11.4f} +-{:<6.4f}"))
            firsts = list(rows)[:1] if options.noise else list(rows)[:2]
            for first in firsts:
                print(f"  how much further off is {first} (z, paired):")
                for name in rows:
                    if name != first:
                        print(f"    than {name:33}" + further(rows[first], rows[name]))
        print(end="", flush=True)


if __name__ == "__main__":
    main()

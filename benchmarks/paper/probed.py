"""Whether the verdict is better for a probe by step halving: ``python -m benchmarks paper.probed [target ...]``.

Each target is sampled at multiples of the step that warm-up finds, given as a user would give them, by one run of 32
chains, whose means against the reference moments say what its true bias is.  Cut into groups of four chains of 500
draws it gives what a user would have seen: ``pmm.verdict(dt)``, and the same with ``probe=pmm.workbench.bias_probe(dt,
step)``.

A setting is good where the true bias is below 0.05 posterior standard deviations in all means and standard deviations,
bad where it is above 0.1 in one of them, by more than chance (3 of its standard errors).
"""

from __future__ import annotations

import argparse
import logging
import warnings

import numpy as np
from calibration import true_bias
from targets import TARGETS, reference

import pmm_mcmc as pmm

CHAINS, EACH, DRAWS, LONG = 32, 4, 500, 2000
MULTIPLES, SCHEMES, SEED = (1.0, 1.5, 2.0, 3.0), ("paper", "recycled"), 1
DEFAULT = ("poisson_glm", "eight_schools", "breast_cancer", "mixture20")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", default=DEFAULT, help=f"names of targets (default: {', '.join(DEFAULT)})")
    parser.add_argument("--schemes", nargs="*", default=SCHEMES, choices=SCHEMES)
    parser.add_argument("--multiples", nargs="*", type=float, default=MULTIPLES)
    parser.add_argument("--replicates", type=int, default=CHAINS // EACH, help="at most, for each setting")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("pmm_mcmc").setLevel(logging.ERROR)
    print(f"{'':38s}true bias, largest: mean           sd        trusted: alone  with probe  probe alone above .075")
    counts = {(kind, how): [0, 0] for kind in ("good", "BAD") for how in ("alone", "with probe")}
    for name in arguments.targets:
        known = reference(name)
        with TARGETS[name].build():
            for scheme in arguments.schemes:
                tuned = None
                for multiple in arguments.multiples:
                    given = {} if tuned is None else {"step_size": multiple * tuned}
                    step = pmm.PoissonULMC(scheme=scheme, reparametrise=False, **given)
                    run = pmm.sample(step=step, draws=LONG, chains=CHAINS, random_seed=SEED, progressbar=False)
                    size = float(run["sample_stats"]["step_size"].values.flat[0])
                    tuned = size if tuned is None else tuned
                    position = run["sample_stats"]["unconstrained"].values
                    bias, error, bias_sd, error_sd = true_bias(position, known)
                    off, chance = np.abs([bias, bias_sd]), np.array([error, error_sd])
                    bad = bool(((off > 0.1) & (off > 3.0 * chance)).any())
                    kind = "BAD" if bad else "good" if off.max() < 0.05 else ""
                    alone, probed, seen, n = 0, 0, 0, 0
                    for first in range(0, CHAINS, EACH)[: arguments.replicates]:
                        dt = run.isel(chain=slice(first, first + EACH), draw=slice(0, DRAWS))
                        probe = pmm.workbench.bias_probe(dt, step, random_seed=first)
                        before, after = pmm.verdict(dt), pmm.verdict(dt, probe=probe)
                        n, alone, probed = n + 1, alone + before.trusted, probed + after.trusted
                        seen += any("by step halving" in str(reason) for reason in after.reasons)
                    if kind:
                        for how, trusted in (("alone", alone), ("with probe", probed)):
                            counts[kind, how][0] += trusted
                            counts[kind, how][1] += n
                    worst, of_sd = int(np.argmax(np.abs(bias))), bias_sd[np.argmax(np.abs(bias_sd))]
                    print(
                        f"{name:22s} {scheme:9s} {multiple:4.1f} {size:6.3f}  {bias[worst]:+.3f} +- {error[worst]:.3f}"
                        f"  {of_sd:+.3f} {kind:4s}   {alone:2d}/{n:<2d}   {probed:2d}/{n:<2d}   {seen:2d}/{n}",
                        flush=True,
                    )
    for (kind, how), (trusted, n) in counts.items():
        print(f"{kind:4s} runs trusted, {how}: {trusted} of {n}")


if __name__ == "__main__":
    main()

"""How far the bias estimates and the verdict are right: ``python benchmarks/calibration.py [target ...]``.

Each target is sampled at multiples of the step that warm-up finds, from a quarter of it to unstable.  One long run of
32 chains at a setting says what its true bias is (against the reference moments of ``benchmarks/targets.py``); cut into
replicates of 4 chains it gives what a user would have seen: the verdict of ``pmm_mcmc.verdict``, and whether the
interval ``mean_corrected`` +- 1.96 ``mcse_corrected`` holds the true mean.

A setting is good where the true bias is below ``target_bias`` = 0.05 posterior standard deviations in all means and
standard deviations, bad where it is above twice that in one of them.
"""

from __future__ import annotations

import argparse
import collections
from typing import Any

import numpy as np
import xarray as xr
from gradients import SAMPLERS, Ours
from targets import TARGETS, Reference, reference

from pmm_mcmc.diagnostics.bias import _judge, _read, _table
from pmm_mcmc.tuning.step_size import midpoint_count

MULTIPLES = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
CHAINS, EACH, DRAWS, REPLICATES_A_CHAIN = 32, 4, 500, 4
SEED = 1
TARGET = 0.05
SCHEMES = ("paper", "recycled", "ULMC")
HEADER = f"""\
{CHAINS} chains of {DRAWS * REPLICATES_A_CHAIN} draws at each setting, cut into replicates of {EACH} chains of {DRAWS}.

bias mean, sd   true bias, largest over coordinates, in posterior sds (of a mean: +- its standard error)
trusted         replicates that the verdict trusts
cover           share of intervals of corrected means that hold the truth: in trusted replicates; in all
left            measured bias over true bias in the coordinate with the largest, where measurable
reasons         of refusals: how often each

            step x   step   bias mean          bias sd  unstable trusted  cover   (all)   left  reasons"""


def as_result(position: np.ndarray, gradient: np.ndarray, unstable: np.ndarray, thin: int) -> Any:
    """Return draws of one replicate as ``pm.sample`` would, with the coordinates as parameters."""
    dims = ("chain", "draw", "x_dim")
    stats = {
        "gradient": (dims, gradient),
        "unconstrained": (dims, position),
        "unstable": (dims[:2], unstable),
        "steps_per_draw": (dims[:2], np.full(unstable.shape, thin)),
    }
    return xr.DataTree.from_dict({"posterior": xr.Dataset({"x": (dims, position)}), "sample_stats": xr.Dataset(stats)})


KINDS = ("unstable", "r_hat", "known to", "E[x dF/dx]", "bias of")


def measure(ours: Ours, multiple: float, known: Reference, free_step: float) -> tuple[str, dict[str, int]]:
    """Run at a multiple of the tuned step; return the row, and counts for the last lines."""
    tuned = ours.warmed.tuned
    step = multiple * free_step
    K = midpoint_count(ours.settings, step, tuned.friction, 1.0)
    setting = tuned._replace(step_size=step, K=max(K, tuned.K) if ours.settings.fixed_K is None else tuned.K)
    thin = max(1, min(round(tuned.steps_per_draw / multiple), 64))
    ensemble = ours.warmed.ensemble
    ensemble.advance(ours.engine, setting, 10, thin=thin)  # from one stationary law to the other
    chunk = ensemble.advance(ours.engine, setting, DRAWS * REPLICATES_A_CHAIN, thin=thin)
    x = chunk.position
    sd = np.sqrt(known.variance_of_x)
    by_chain = (x.mean(axis=1) - known.mean) / sd
    bias, error = by_chain.mean(axis=0), by_chain.std(axis=0, ddof=1) / np.sqrt(len(x))
    error = np.hypot(error, known.se_mean / sd)
    worst = int(np.argmax(np.abs(bias) - 2.0 * error))
    bias_sd = np.sqrt(((x - known.mean) ** 2).mean(axis=(0, 1))) / sd - 1.0
    excess = np.maximum(np.abs(bias) - 2.0 * error, 0.0).max()
    bad = excess > 2.0 * TARGET
    good = max(np.abs(bias).max(), np.abs(bias_sd).max()) < TARGET
    reasons: collections.Counter[str] = collections.Counter()
    trusted, inside, inside_all, left = 0, [], [], []
    for first in range(0, CHAINS, EACH):
        for part in range(REPLICATES_A_CHAIN):
            cut = (slice(first, first + EACH), slice(part * DRAWS, (part + 1) * DRAWS))
            dt = as_result(x[cut], chunk.gradient[cut], chunk.unstable[cut], thin)
            run = _read(dt)
            table = _table(run)
            verdict = _judge(dt, run, table)
            off = np.abs(table["mean_corrected"] - known.mean)
            holds = off <= 1.96 * np.hypot(table["mcse_corrected"], known.se_mean)
            inside_all.append(holds.mean())
            if verdict.trusted:
                trusted += 1
                inside.append(holds.mean())
            reasons.update(kind for kind in KINDS if any(kind in reason for reason in verdict.reasons))
            left.append(table["bias_sd_units"].iloc[worst])
    n = len(inside_all)
    measured = np.array(left)[np.isfinite(left)]
    ratio = (
        f"{measured.mean() / bias[worst]:.2f}" if len(measured) > n / 2 and abs(bias[worst]) > 3 * error[worst] else ""
    )
    counts = {
        "good": n * good,
        "good refused": (n - trusted) * good,
        "bad": n * bad,
        "bad trusted": trusted * bad,
        "noisy": reasons["r_hat"] + reasons["known to"],
    }
    covered = f"{np.mean(inside):.3f}" if inside else "-"
    mark = "good" if good else "BAD" if bad else ""
    found = ", ".join(f"{kind} {count}" for kind, count in reasons.items())
    row = (
        f"  {ours.name:9s} {multiple:5.2f} {step:6.3f} {bias[worst]:+7.3f} +- {error[worst]:.3f} "
        f"{np.abs(bias_sd).max():8.3f} {mark:4s} {chunk.unstable.mean() / thin:8.0e} {trusted:3d}/{n:<3d} "
        f"{covered:>6s}  {np.mean(inside_all):.3f}  {ratio:>5s}  {found}"
    )
    return row, counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="names of targets (default: all but d = 1000)")
    parser.add_argument("--schemes", nargs="*", default=SCHEMES, choices=list(SAMPLERS))
    parser.add_argument("--multiples", nargs="*", type=float, default=MULTIPLES)
    arguments = parser.parse_args()
    print(HEADER)
    total: collections.Counter[str] = collections.Counter()
    for name in arguments.targets or [name for name in TARGETS if name != "gaussian1000"]:
        model, known = TARGETS[name].build(), reference(name)
        print(f"{name} (d={len(known.mean)})", flush=True)
        for scheme in arguments.schemes:
            ours = Ours(scheme, model, CHAINS, SEED)
            for multiple in arguments.multiples:
                row, counts = measure(ours, multiple, known, ours.warmed.tuned.step_size)
                total.update(counts)
                print(row, flush=True)
    print(
        f"\n{total['good refused']} of {total['good']} replicates of good settings refused; "
        f"{total['bad trusted']} of {total['bad']} of bad ones trusted."
    )


if __name__ == "__main__":
    main()

"""How far the bias estimates and the verdict are right: ``python -m benchmarks calibration [target ...]``.

Each target is sampled at the step that warm-up finds, and at multiples of it, which are given as a user would give
them: everything else is tuned anew.  One long run of 32 chains at a setting says what its true bias is (against the
moments of ``tests/support/targets.py``); cut into replicates of 4 chains it gives what a user would have seen: the
verdict of ``pmm_mcmc.verdict``, and whether the interval ``mean_cv`` +- 1.96 ``mcse_cv`` holds the
true mean.

A setting is good where the true bias is below ``target_bias`` = 0.05 posterior standard deviations in all means and
standard deviations, bad where it is above twice that in one of them, by more than chance (3 of its standard errors).
"""

from __future__ import annotations

import argparse
import collections
from typing import Any

import numpy as np
import xarray as xr
from targets import TARGETS, Reference, reference
from versus.ours import SAMPLERS, Ours

from pmm_mcmc.diagnostics.reading import read
from pmm_mcmc.diagnostics.verdict import judge
from pmm_mcmc.engines.arguments import TunedParameters
from pmm_mcmc.engines.contract import model_side

MULTIPLES = (0.3, 1.0, 1.5, 2.0, 3.0)
CHAINS, EACH, DRAWS, REPLICATES_A_CHAIN = 32, 4, 500, 4
SEED = 1
TARGET = 0.05
# Coordinates that count, where not all do: the squares of the others have next to infinite variance.
SHOWN = {"funnel10": 1}
SCHEMES = ("paper", "importance", "recycled", "ULMC")
HEADER = f"""\
{CHAINS} chains at each setting, cut into replicates of {EACH} chains of {DRAWS} draws.

bias mean, sd   true bias, largest over coordinates, in posterior sds (of a mean: +- its standard error)
unstable        share of the transitions
expected        statistic expected_bias: what the curvature that warm-up found makes likely, at worst
trusted         replicates that the verdict trusts
cover           share of intervals of corrected means that hold the truth: in trusted replicates; in all
left            measured bias over true bias in the coordinate with the largest, where measurable
reasons         of refusals: how often each

            step x   step   bias mean          bias sd      unstable expected trusted  cover   (all)   left  reasons"""
# What the codes of the verdict's reasons are called; the first two ask for more draws.
KINDS = {
    "r_hat": "r_hat",
    "mcse": "short",
    "unmeasured": "short",
    "unstable": "unstable",
    "identity": "identity",
    "bias": "bias",
    "step_long": "step",
}
FOR_WANT_OF_DRAWS = {"r_hat", "short"}


def as_result(z: np.ndarray, said: np.ndarray, unstable: np.ndarray, tuned: TunedParameters, structure: Any) -> Any:
    """Return draws of one replicate as ``pm.sample`` would, with the coordinates as parameters."""
    dims, d = ("chain", "draw", "x_dim"), z.shape[-1]
    position, judged, gradient = model_side(z, said)[0], z, said
    if structure is not None:
        judged, gradient = structure.judged(z, said[..., :d], tuned.coordinates.sites)
    stats = {"gradient": (dims, gradient), "unconstrained": (dims, position), "unstable": (dims[:2], unstable)}
    stats["noncentred"] = (dims, judged)
    for name in ("steps_per_draw", "expected_bias"):
        stats[name] = (dims[:2], np.full(unstable.shape, getattr(tuned, name)))
    posterior = xr.Dataset({"x": (dims, position)})
    return xr.DataTree.from_dict({"posterior": posterior, "sample_stats": xr.Dataset(stats)})


def true_bias(x: np.ndarray, known: Reference) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return bias of means, its standard error, bias of sds and its standard error, in posterior sds."""
    variance = known.variance_of_x
    sd, root = np.sqrt(variance), np.sqrt(len(x))
    means, squares = x.mean(axis=1), ((x - known.mean) ** 2).mean(axis=1) / variance
    error = np.hypot(means.std(axis=0, ddof=1) / root, known.se_mean) / sd
    spread = np.sqrt(squares.mean(axis=0))
    error_of_sd = np.hypot(squares.std(axis=0, ddof=1) / root, known.se_second / variance) / (2.0 * spread)
    return (means.mean(axis=0) - known.mean) / sd, error, spread - 1.0, error_of_sd


def warmed_up(scheme: str, model: Any, **given: Any) -> Ours:
    ours = Ours(scheme, model, CHAINS, **given)
    ours.begin(SEED)
    return ours


def measure(ours: Ours, multiple: float, known: Reference, shown: slice, replicates: int) -> tuple[str, dict[str, int]]:
    """Run at a multiple of the tuned step; return the row, and counts for the last lines."""
    tuned, ensemble = ours.warmed.tuned, ours.warmed.ensemble
    thin = tuned.steps_per_draw
    ensemble.advance(ours.engine, tuned, 10, thin=thin)
    chunk = ensemble.advance(ours.engine, tuned, DRAWS * replicates, thin=thin)
    bias, error, bias_sd, error_sd = (part[shown] for part in true_bias(chunk.model_position, known))
    worst = int(np.argmax(np.abs(bias) - 2.0 * error))
    off, chance = np.abs([bias, bias_sd]), np.array([error, error_sd])
    bad = bool(((off > 2.0 * TARGET) & (off > 3.0 * chance)).any())
    good = bool(off.max() < TARGET)
    reasons: collections.Counter[str] = collections.Counter()
    trusted, short, inside, inside_all, left = 0, 0, [], [], []
    for first in range(0, CHAINS, EACH):
        for part in range(replicates):
            cut = (slice(first, first + EACH), slice(part * DRAWS, (part + 1) * DRAWS))
            draws = (chunk.position[cut], chunk.gradient[cut], chunk.unstable[cut])
            dt = as_result(*draws, tuned, ours.engine.structure)
            run = read(dt)
            table = run.table
            verdict = judge(run)
            away = np.abs(table["mean_cv"] - known.mean)
            inside_all.append((away <= 1.96 * np.hypot(table["mcse_cv"], known.se_mean))[shown].mean())
            found = {KINDS[reason.code] for reason in verdict.reasons}
            reasons.update(found)
            if verdict.trusted:
                trusted += 1
                inside.append(inside_all[-1])
            elif found <= FOR_WANT_OF_DRAWS:
                short += 1
            left.append(table["bias_sd_units"].iloc[worst])
    n = len(inside_all)
    measured = np.array(left)[np.isfinite(left)]
    ratio = (
        f"{measured.mean() / bias[worst]:.2f}" if len(measured) > n / 2 and abs(bias[worst]) > 3 * error[worst] else ""
    )
    counts = {
        "good": n * good,
        "good short": short * good,
        "good refused": (n - trusted - short) * good,
        "bad": n * bad,
        "bad trusted": trusted * bad,
        "trusted": trusted,
        "covered": round(1e6 * sum(inside)),
    }
    covered = f"{np.mean(inside):.3f}" if inside else "-"
    mark = "good" if good else "BAD" if bad else ""
    listed = ", ".join(f"{kind} {reasons[kind]}" for kind in dict.fromkeys(KINDS.values()) if reasons[kind])
    row = (
        f"  {ours.name:10s} {multiple:4.2f} {tuned.step_size:6.3f} {bias[worst]:+7.3f} +- {error[worst]:.3f} "
        f"{np.abs(bias_sd).max():8.3f} {mark:4s} {chunk.unstable.mean() / thin:8.0e} {tuned.expected_bias:8.3f} "
        f"{trusted:3d}/{n:<3d} {covered:>6s}  {np.mean(inside_all):.3f}  {ratio:>5s}  {listed}"
    )
    return row, counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="names of targets (default: all but d = 1000)")
    parser.add_argument("--schemes", nargs="*", default=SCHEMES, choices=list(SAMPLERS))
    parser.add_argument("--multiples", nargs="*", type=float, default=MULTIPLES)
    parser.add_argument("--replicates", type=int, default=REPLICATES_A_CHAIN, help="for each group of four chains")
    parser.add_argument("--as-written", action="store_true", help="without non-centring")
    arguments = parser.parse_args()
    print(HEADER)
    total: collections.Counter[str] = collections.Counter()
    for name in arguments.targets or [name for name in TARGETS if name != "gaussian1000"]:
        model, known = TARGETS[name].build(), reference(name)
        shown = slice(SHOWN.get(name))
        given = {"reparametrise": False} if arguments.as_written else {}
        print(f"{name} (d={len(known.mean)}){', as written' * arguments.as_written}", flush=True)
        for scheme in arguments.schemes:
            free = warmed_up(scheme, model, **given)
            for multiple in arguments.multiples:
                step = multiple * free.warmed.tuned.step_size
                ours = free if multiple == 1.0 else warmed_up(scheme, model, step_size=step, **given)
                row, counts = measure(ours, multiple, known, shown, arguments.replicates)
                total.update(counts)
                print(row, flush=True)
    print(
        f"\nof {total['good']} replicates of good settings {total['good short']} refused for want of draws alone and "
        f"{total['good refused']} otherwise;\n{total['bad trusted']} of {total['bad']} of bad ones trusted; "
        f"coverage in the {total['trusted']} trusted {1e-6 * total['covered'] / max(total['trusted'], 1):.3f}"
    )


if __name__ == "__main__":
    main()

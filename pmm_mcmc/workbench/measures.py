"""What a run is worth, beside a reference: costs, errors, weights of modes, distances, coverage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
from scipy.stats import t

from pmm_mcmc.api import convergence, python_mode
from pmm_mcmc.workbench.entrants import Run
from pmm_mcmc.workbench.reference import Truth

Arrays = dict[str, np.ndarray]
# Of each run; tables have their means over the seeds.
MEASURES = {
    "r_hat": "Largest r_hat of a parameter.",
    "warm_up": "Gradients of the warm-up of all chains.",
    "gradients": "Gradients of all chains, warm-up included.",
    "per_mean": "Gradients after warm-up for an effective draw of the worst parameter.",
    "per_square": "The same for the squares of the parameters about their means.",
    "mean_error": "Largest error of a posterior mean, in posterior standard deviations.",
    "sd_error": "Largest relative error of a posterior standard deviation, about the exact mean.",
    "tail_error": "Largest error of a 5 % or 95 % quantile, in posterior standard deviations.",
    "mode_error": "Largest error of the weight of a mode.",
    "elsewhere": "Weight of modes that chains are not in, by the search of pmm.verdict; 0 if it is below 1 %.",
    "sliced_w2": "Sliced Wasserstein-2 distance to draws of the reference, in posterior standard deviations.",
    "stein": "Kernelized Stein discrepancy of 256 draws, in posterior standard deviations.",
    "coverage": "Share of parameters whose mean is within 1.96 of its standard errors (az.mcse) of the exact one.",
}
TAILS = 0.05, 0.95
# Points of the curves over gradients, and the first of them as a share of the draws.
_POINTS = 12
_FIRST = 0.02
# Draws that are kept for marginals, and those of the discrepancy, whose cost grows with their square.
_KEPT = 2000
_STEIN = 256
_DIRECTIONS = 64


def measured(
    run: Run,
    truth: Truth | None,
    mode: Callable[[np.ndarray], np.ndarray] | None,
    weights: np.ndarray | None,
    score: Callable[[np.ndarray], np.ndarray],
) -> Arrays:
    """Return the measures of a run, NaN where they cannot be known, and arrays that figures and pooled tests need."""
    x = run.position
    _, draws, d = x.shape
    flat = x.reshape(-1, d)
    centre = flat.mean(axis=0) if truth is None else truth.mean
    scale = np.maximum(flat.std(axis=0) if truth is None else truth.sd, 1e-300)
    spread = (x - centre) ** 2
    rates = convergence(np.concatenate([x, spread], axis=2))
    cost = run.gradients[-1] - np.nan_to_num(run.warm_up)
    thinned = flat[np.linspace(0, len(flat) - 1, min(_KEPT, len(flat))).astype(int)]
    points = thinned[np.linspace(0, len(thinned) - 1, min(_STEIN, len(thinned))).astype(int)]
    values: dict[str, Any] = dict.fromkeys(MEASURES, np.nan)
    values |= {
        "r_hat": np.max(rates.r_hat[:d]),
        "warm_up": run.warm_up,
        "gradients": run.gradients[-1],
        "elsewhere": run.elsewhere,
        "per_mean": cost / np.min(rates.ess_bulk[:d]),
        "per_square": cost / np.min(rates.ess_bulk[d:]),
        "stein": kernel_stein_discrepancy((points - centre) / scale, score(points) * scale),
        "state": run.verdict.state,
        "says": run.verdict.sentence,
        "draws": thinned,
        "chain_mean": x.mean(axis=1),
        "chain_square": spread.mean(axis=1),
    }
    ends = np.unique(np.geomspace(max(4.0, _FIRST * draws), draws, _POINTS).astype(int))
    ends = np.concatenate([ends, np.full(_POINTS - len(ends), draws)])  # as many of every run
    values["curve_gradients"] = run.gradients[ends - 1]
    values["curve_r_hat"] = np.array([np.max(convergence(x[:, :end]).r_hat) for end in ends])
    if mode is not None:
        labels = np.asarray(mode(x)).astype(int)
        count = len(weights) if weights is not None else 1 + labels.max()
        values["mode_weights"] = np.array([(labels == k).mean() for k in range(count)])
        if weights is not None:
            values["mode_error"] = np.abs(values["mode_weights"] - weights).max()
    if truth is not None:
        error = flat.mean(axis=0) - truth.mean
        values |= {
            "mean_error": np.max(np.abs(error) / scale),
            "sd_error": np.max(np.abs(np.sqrt(spread.mean(axis=(0, 1))) / scale - 1.0)),
            "coverage": np.mean(np.abs(error) <= 1.96 * np.hypot(rates.mcse[:d], truth.error)),
            "curve_error": np.array([np.max(np.abs(x[:, :end].mean(axis=(0, 1)) - centre) / scale) for end in ends]),
        }
        if truth.draws is not None:
            off = np.quantile(flat, TAILS, axis=0) - np.quantile(truth.draws, TAILS, axis=0)
            values["tail_error"] = np.max(np.abs(off) / scale)
            values["sliced_w2"] = sliced_w2((flat - centre) / scale, (truth.draws - centre) / scale)
    return {name: np.asarray(value) for name, value in values.items()}


def score_of(model: pm.Model) -> Callable[[np.ndarray], np.ndarray]:
    """Return the gradient of a model's log density at unconstrained points ``(n, d)``."""
    gradient = model.compile_dlogp(mode=python_mode())
    point = model.initial_point(0)
    names = [value.name for value in model.continuous_value_vars]
    ends = np.cumsum([np.size(point[name]) for name in names])[:-1]

    def score(x: np.ndarray) -> np.ndarray:
        parts = [np.split(row, ends) for row in x]
        shapes = [np.shape(point[name]) for name in names]
        return np.array(
            [gradient({n: v.reshape(s) for n, v, s in zip(names, row, shapes, strict=True)}) for row in parts]
        )

    return score


def kernel_stein_discrepancy(x: np.ndarray, score: np.ndarray) -> float:
    """Return the discrepancy of points ``(n, d)`` by the inverse multiquadric kernel (Gorham and Mackey, 2017)."""
    d = x.shape[1]
    apart = x[:, None] - x[None]
    square = (apart**2).sum(axis=2)
    base = 1.0 + square
    inner = score @ score.T
    drift = np.einsum("ijk,ik->ij", apart, score) - np.einsum("ijk,jk->ij", apart, score)
    kernel = inner * base**-0.5 + drift * base**-1.5 + d * base**-1.5 - 3.0 * square * base**-2.5
    return float(np.sqrt(max(kernel.mean(), 0.0)))


def sliced_w2(x: np.ndarray, y: np.ndarray) -> float:
    """Return the root mean square over directions of the Wasserstein-2 distance of projections of two samples."""
    directions = np.random.default_rng(0).normal(size=(x.shape[1], _DIRECTIONS))
    directions /= np.linalg.norm(directions, axis=0)
    levels = (np.arange(400) + 0.5) / 400
    apart = np.quantile(x @ directions, levels, axis=0) - np.quantile(y @ directions, levels, axis=0)
    return float(np.sqrt((apart**2).mean()))


def beyond_noise(runs: list[Arrays], truth: Truth) -> dict[str, tuple[bool, int, float]]:
    """Return, of means and of sd, whether all chains together are off by more than noise, where, and by how much.

    The means of chains are taken as independent; in 5 of 100 comparisons noise alone puts a parameter beyond.
    """
    outcome = {}
    for name, key, exact, error in (
        ("mean", "chain_mean", truth.mean, truth.error),
        ("sd", "chain_square", truth.sd**2, 2.0 * truth.sd * truth.error_of_sd),
    ):
        chains = np.concatenate([arrays[key] for arrays in runs])
        off = chains.mean(axis=0) - exact
        noise = np.hypot(chains.std(axis=0, ddof=1) / np.sqrt(len(chains)), error)
        z = np.abs(off) / np.maximum(noise, 1e-300)
        worst = int(np.argmax(z))
        limit = t.ppf(1.0 - 0.5 * 0.05 / z.size, len(chains) - 1)
        sizes = off / truth.sd if name == "mean" else np.sqrt(chains.mean(axis=0)) / truth.sd - 1.0
        outcome[name] = bool(z[worst] > limit), worst, float(sizes[worst])
    return outcome

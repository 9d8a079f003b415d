"""The findings of a comparison as sentences."""

from __future__ import annotations

import math
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pandas as pd

from pmm_mcmc.workbench.comparison.measures import MATTERS

__all__ = ["notes_of", "verdict_in_words"]

# Costs within this factor of the best count as equal: another seed may reverse their order.
_ALIKE = 1.25
_PACKAGES = ("pmm-mcmc", "pymc", "pytensor", "numpy", "numba", "arviz", "nutpie")


def verdict_in_words(table: pd.DataFrame, truth: Any, failures: dict[str, str]) -> list[str]:
    """Return which sampler is best, which are wrong, whether their own diagnostics notice it, and what failed.

    Parameters
    ----------
    table
        With the columns of :data:`pmm_mcmc.workbench.comparison.measures.COLUMNS`.
    truth
        The reference.
    failures
        Samplers that failed, and why.

    Returns
    -------
    list of str
        Sentences, the most important first.
    """
    table = table.rename(index=_quoted)
    failures = {_quoted(name): why for name, why in failures.items()}
    ran = table[[name not in failures for name in table.index]]
    itself = {name: str(line["error"]) for name, line in ran.iterrows() if isinstance(line.get("error"), str)}
    ran = ran[[name not in itself for name in ran.index]]
    wrong = {name: errors for name, line in ran.iterrows() if (errors := _wrong(line)) is not None}
    sentences = [_best(ran, [name for name in ran.index if name not in wrong])] if len(ran) else []
    for name, errors in wrong.items():
        known = "says so itself" if not ran.loc[name, "trusted"] else "does not notice"
        sentences.append(f"{name} is off: {errors}; the run {known}.")
    doubted = [name for name in ran.index if name not in wrong and not ran.loc[name, "trusted"]]
    if doubted:
        sentences.append(
            f"{_listed(doubted)} {'does' if len(doubted) == 1 else 'do'} not differ from the reference beyond noise "
            f"but {'asks' if len(doubted) == 1 else 'ask'} for a longer or better run."
        )
    if "grads_warmup" in ran:
        share = ran["grads_warmup"] / (ran["grads_warmup"] + ran["grads_sampling"])
        sentences += [
            f"{name} spent {100 * part:.0f} % of its gradients on warm-up: a larger n_grad shows what it does after it"
            for name, part in share[share > 0.5].items()  # more than half the budget
        ]
    sentences += [f"{name}: {why}" for name, why in itself.items()]
    sentences += [f"{name} failed: {why}" for name, why in failures.items()]
    if truth.warning is not None:
        sentences.append(f"The reference is a run of NUTS that is in doubt itself: {truth.warning}")
    return [sentence if sentence.endswith(".") else f"{sentence}." for sentence in sentences]


def _best(ran: pd.DataFrame, right: list[Any]) -> str:
    if not right:
        return "Every sampler differs from the reference within this budget, by more than noise."
    good = ran.loc[right]
    reached = good["grads_to_b2"].astype(float)
    what = "Among the samplers that do not differ from the reference beyond noise, " if len(right) < len(ran) else ""
    if not math.isfinite(reached.min()):
        first = good["b2_max"].astype(float).idxmin()
        return (
            f"{what}none has an error b2 below 0.01 within the budget; {first} is nearest "
            f"({float(good.loc[first, 'b2_max']):.2g})"
        )
    order = reached.sort_values()
    first, later = order[order <= _ALIKE * order.iloc[0]], order[order > _ALIKE * order.iloc[0]]
    sentence = (
        f"{what}{_listed(first.index)} {'has' if len(first) == 1 else 'have'} an error b2 below 0.01 first, after "
        f"{_listed([f'{n:,.0f}' for n in first])} gradients a chain"
    )
    if len(later):
        then = f"after {later.iloc[0]:,.0f}" if math.isfinite(later.iloc[0]) else "not within the budget"
        sentence += f" (next: {later.index[0]}, {then})"
    ess = good["ess_bulk_per_1000"].astype(float).sort_values(ascending=False)
    most = ess[ess >= ess.iloc[0] / _ALIKE]
    told = ", ".join(f"{name} {n:.3g}" for name, n in most.items())
    return f"{sentence}. Most effective draws for 1,000 gradients: {told}"


def _wrong(line: pd.Series) -> str | None:
    """Return the errors that are beyond noise and large enough to matter, or None."""
    parts = []
    if "occupancy_error" in line and line["occupancy_error"] > max(MATTERS, 3.0 * line["occupancy_se"]):
        parts.append(
            f"the weight of {line['occupancy_at']} by {line['occupancy_error']:.2f} ± {line['occupancy_se']:.2f}"
        )
    for name, what in (("mean_error", "the mean"), ("sd_error", "the sd")):
        if line[name] > max(MATTERS, line[f"{name}_noise"]):
            parts.append(f"{what} of {line[f'{name}_at']} by {line[name]:.2f} ± {line[f'{name}_se']:.2f} posterior sd")
    return ", ".join(parts) or None


def _quoted(name: Any) -> str:
    """Quote a name that contains a comma, such as "ULMC, long steps", so that it stands out in a sentence."""
    text = str(name)
    return f"\N{LEFT DOUBLE QUOTATION MARK}{text}\N{RIGHT DOUBLE QUOTATION MARK}" if "," in text.split("(")[0] else text


def _listed(names: Any) -> str:
    names = list(names)
    return str(names[0]) if len(names) == 1 else f"{', '.join(map(str, names[:-1]))} and {names[-1]}"


def notes_of(
    target: Any, truth: Any, n_grad: int, chains: int, seed: int, named: dict[str, Any], is_nuts: bool
) -> list[str]:
    """Return notes on budget, reference, the counting of gradients, seed and versions."""
    notes = [] if target is None else [target.note]
    notes.append(f"Budget: {n_grad:,} gradients for each sampler, over {chains} chains and with the warm-up.")
    notes.append(f"Reference: {truth.source}")
    if truth.warning is not None:
        notes.append(f"The reference itself is in doubt: {truth.warning}")
    if any(isinstance(sampler, str) for sampler in named.values()):
        notes.append(
            "Gradients of NUTS are its leapfrog steps; those of the other samplers are all "
            "evaluations, tuning included."
        )
    if is_nuts and "nuts" in [sampler for sampler in named.values() if isinstance(sampler, str)]:
        notes.append(
            "NUTS is the first part of the reference run, and no run of its own: being a part of it, its errors come "
            "out up to a fifth too small."
        )
    notes.append("Parameters are on the unconstrained scale on which the samplers work.")
    versions = []
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    notes.append(
        "All of this is one seed: with others the first passages of an error may well differ by a factor of two."
    )
    notes.append(f"random_seed={seed}; {', '.join(versions)}.")
    return notes

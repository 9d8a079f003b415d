"""Sections of a report on a run: its size, its tuned parameters, and its unstable transitions."""

from __future__ import annotations

from typing import Any

import numpy as np

from pmm_mcmc.diagnostics.noncentred import WORDS
from pmm_mcmc.warmup.equilibration import EQUILIBRATION
from pmm_mcmc.workbench.report.columns import SETTING
from pmm_mcmc.workbench.report.page import Cell, Column, Section, Table, Text, number

__all__ = ["facts", "setting_section", "statistics", "unstable_section"]


def statistics(dt: Any) -> Any:
    """Return the statistics of a run by draw or, if only moments were kept, by chain; ``None`` if there are none."""
    for name in ("sample_stats", "sample_stats_total"):
        if name in dt.children:
            return dt[name].dataset
    return None


def _of_chains(stats: Any, name: str) -> np.ndarray | None:
    """Return a statistic of each chain: last value, sum or mean; ``None`` if there is none."""
    if name not in stats:
        return None
    values = stats[name]
    if "draw" in values.dims:
        if name in ("n_grad", "n_steps"):
            values = values.sum("draw")
        elif name == "acceptance_rate":
            values = values.mean("draw")
        elif values.sizes["draw"]:
            values = values.isel(draw=-1)
        else:
            return None
    values = np.asarray(values.values, dtype=float)
    if name in ("n_grad", "n_steps", "n_grad_total") and values.ndim > 1:  # several samplers
        values = values.reshape(len(values), -1).sum(axis=1)
    return values if np.isfinite(values).any() else None


def facts(dt: Any) -> dict[str, str]:
    """Return short facts about a run, by name."""
    stats = statistics(dt)
    kept = "posterior" in dt.children
    group = dt["posterior" if kept else "posterior_mean"]
    draws = group.sizes["draw"] if kept else int(np.max(stats["draws"].values))
    attrs = dict(group.attrs)
    out = {}
    if "sampler" in attrs:
        out["Sampler"] = str(attrs["sampler"])
    out["Chains"], out["Draws of each chain"] = f"{group.sizes['chain']:,}", f"{draws:,}"
    if not kept:
        out["Kept"] = "moments, no draws"
    if "superchains" in attrs:
        out["Groups that started together"] = f"{int(attrs['superchains']):,}"
    if "tuning_steps" in attrs:
        out["Warm-up"] = f"at most {int(attrs['tuning_steps']):,} transitions"
    spent = None if stats is None else _of_chains(stats, "n_grad_total")
    if spent is not None:
        later = _of_chains(stats, "n_steps" if "n_steps" in stats else "n_grad")
        share = "" if later is None else f", {1 - later.sum() / spent.sum():.0%} of them in warm-up"
        out["Gradients"] = f"{int(spent.sum()):,}{share}".replace("%", " %")
    if "sampling_time" in attrs:
        out["Time"] = f"{float(attrs['sampling_time']):.3g} s"
    for name, words in (("backend", "Engine"), ("precision", "Precision")):
        if name in attrs:
            out[words] = str(attrs[name])
    if "created_at" in attrs:
        out["Sampled"] = str(attrs["created_at"])[:16].replace("T", " ")
    return out


def setting_section(dt: Any) -> Section:
    """Return the section with the tuned parameters over the chains."""
    stats, rows = statistics(dt), []
    fixed = dt[EQUILIBRATION].dataset if EQUILIBRATION in dt.children else {}
    for name, (words, meaning) in SETTING.items():
        values = None if stats is None else _of_chains(stats, name)
        if name in fixed:
            values = np.asarray(fixed[name].values, dtype=float)
        if values is not None:
            low, middle, high = np.nanmin(values), np.nanmedian(values), np.nanmax(values)
            rows.append([Cell(words), *(Cell(number(value)) for value in (low, middle, high)), Cell(meaning)])
    if not rows:
        return Section("Setting", [])
    columns = [
        Column("quantity", numeric=False), Column("least", "The smallest of all chains."),
        Column("middle", "The median of all chains."), Column("largest", "The largest of all chains."),
        Column("meaning", numeric=False),
    ]  # fmt: skip
    table = Table("The setting the chains sampled with, and what it cost", columns, rows)
    learnt = dt["posterior"].attrs.get(WORDS) if "posterior" in dt.children else None
    return Section("Setting", [table, *([Text(str(learnt))] if learnt else [])])


def unstable_section(dt: Any) -> Section:
    """Return the section with the unstable transitions of each chain."""
    stats, title = statistics(dt), "Unstable steps"
    if stats is None or not {"unstable", "diverging"} & set(stats):
        return Section(title, [])
    if "unstable" not in stats:
        count = int(np.asarray(stats["diverging"].values).sum())
        return Section(title, [Text(f"{count:,} divergent transitions after warm-up.")])
    other = [dim for dim in stats["unstable"].dims if dim != "chain"]
    by_chain = stats["unstable"].sum(other).values.astype(int)
    transitions = stats["transitions"] if "transitions" in stats else stats["steps_per_draw"]
    total, of = int(by_chain.sum()), int(transitions.sum())
    parts = int(stats["refined"].sum()) if "refined" in stats else 0
    in_parts = f" {parts:,} were refined, where the whole step would have been too long." if parts else ""
    if not total:
        return Section(title, [Text(f"None of {of:,} transitions after warm-up was unstable.{in_parts}")])
    failures = np.zeros_like(by_chain)
    if "model_failures" in stats:
        failures = stats["model_failures"].sum(other).values.astype(int)
    blocks: list[Any] = [
        Text(
            f"{total:,} of {of:,} transitions after warm-up ended where the log density or its gradient was not "
            "finite, or would have been unstable, and were refused; the model is to blame for "
            f"{int(failures.sum()):,} of them.{in_parts}"
        )
    ]
    worst = [i for i in np.argsort(-by_chain, kind="stable") if by_chain[i]][:12]  # a table that is read at a glance
    names = stats["chain"].values if "chain" in stats.coords else np.arange(len(by_chain))
    rows = [[Cell(str(names[i])), Cell(f"{by_chain[i]:,}"), Cell(f"{failures[i]:,}")] for i in worst]
    columns = [
        Column("chain", numeric=False), Column("unstable", "Transitions that were refused."),
        Column("of the model", "Those where a value was not finite at a point that a good step may reach."),
    ]  # fmt: skip
    affected = int((by_chain > 0).sum())
    note = f"The {len(rows)} chains with most of them, of {affected} with any." if affected > len(rows) else ""
    blocks.append(Table("Chains with unstable transitions", columns, rows, note))
    return Section(title, blocks)

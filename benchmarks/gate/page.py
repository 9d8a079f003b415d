"""The page of the gate, from its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from gate.entries import ENTRIES, FAMILIES, HELD, NARROW, SLOW
from gate.measure import ADJUSTED, UNADJUSTED
from posteriors import BIASED
from scoreboard.page import TRUSTED, errors_in_words, good

__all__ = ["page"]

Rows = list[dict[str, Any]]
HEADER = f"""\
python -m benchmarks gate: pmm.sample() with adjusted draws (A) and without (U), 4 chains of 1000 draws, by default.

mean, square  gradients of all chains for an effective draw of the worst x, and of the worst (x - E[x])^2, warm-up left
              out: A over U, geometric means over the seeds that both have; quartiles over models, and the worst
w&T           runs off by more than {BIASED} posterior sd and beyond chance (one in a hundred runs) that are trusted
wrong         those and the others that are off
refused       runs within {BIASED} of every mean and sd that are not trusted, of how many, and so many of a hundred
first         gradients of a chain before its first draw, median of models' medians
CPU           seconds of a second call in one process: A over U, median of models' geometric means
"""
COLUMNS = (
    f"{'':30s}{'models':>6s} {'mean: quartiles, worst':>26s} {'square: quartiles, worst':>26s} {'w&T A U':>8s} "
    f"{'wrong A U':>9s} {'refused A':>15s} {'refused U':>15s} {'first A U':>11s} {'CPU':>5s} {'failed A U':>10s}"
)
KINDS = (ADJUSTED, UNADJUSTED)
COSTS = ("of_mean", "of_square", "cpu")
WORST, WORST_OF_SLOW, REFUSED, BEFORE = 1.5, 1.3, 0.03, 250


def page(rows: Rows, facts: str) -> str:
    """Return the page."""
    order = {key: i for i, key in enumerate(ENTRIES)}
    rows = sorted((row for row in rows if row["target"] in order), key=lambda row: (order[row["target"]], row["seed"]))
    plain = [row for row in rows if row["sampler"] in KINDS]
    lines = [HEADER, facts, "", *bars(rows), "", *totals(plain), "", *above(plain)]
    lines += [
        "",
        f"Slow for the leg of November 2026: at most {WORST_OF_SLOW} each",
        *table(plain, SLOW, WORST_OF_SLOW),
    ]
    lines += ["", "Narrow arms and necks: right, or refused", *table(plain, NARROW, np.inf)]
    return "\n".join([*lines, "", *lists(plain)]) + "\n"


def ratios(rows: Rows, cost: str, backend: str = "") -> dict[str, float]:
    """Return, by model, the geometric mean over seeds of a cost of adjusted draws over that of unadjusted ones."""
    costs = {(row["target"], row["sampler"], row["seed"]): row[cost] for row in good(rows)}
    logs: dict[str, list[float]] = {}
    for (target, sampler, seed), value in costs.items():
        other = costs.get((target, f"{UNADJUSTED}{backend}", seed))
        if sampler == f"{ADJUSTED}{backend}" and other:
            logs.setdefault(target, []).append(np.log(value / other))
    return {target: float(np.exp(np.mean(of))) for target, of in logs.items()}


def bars(rows: Rows) -> list[str]:
    """Return the bars of issue 35, each with what was measured; the raw densities count for trust alone."""
    plain = [row for row in rows if row["sampler"] in KINDS]
    scored = _of(rows, "scoreboard")
    adjusted = [row for row in good(plain) if row["sampler"] == ADJUSTED]
    of = {cost: ratios(scored, cost) for cost in COSTS[:2]}
    slow = {cost: ratios([row for row in plain if row["target"] in SLOW], cost) for cost in COSTS[:2]}
    lies = sum(_lies(row) for row in adjusted)
    share = _share(scored, ADJUSTED)
    worse = [f for f in FAMILIES[:-1] if _share(_of(scored, f), ADJUSTED) > _share(_of(scored, f), UNADJUSTED)]
    before = _middle(_of(scored, "posteriordb"), ADJUSTED, "warm_up")
    lines = []
    for cost, words in (("of_mean", "mean"), ("of_square", "square")):
        worst = [max(values.values(), default=np.nan) for values in (of[cost], slow[cost])]
        lines += [
            _bar(f"{words}: median of the scoreboard's models <= 1", _median(of[cost].values()), 1.0),
            _bar(f"{words}: worst <= {WORST}, but for rows with a reason", worst[0], WORST),
            _bar(f"{words}: worst of the slow <= {WORST_OF_SLOW}", worst[1], WORST_OF_SLOW),
        ]
    names = f" ({', '.join(worse)})" if worse else ""
    lines += [
        _bar("runs wrong and trusted, raw densities among them: 0", float(lies), 0.0),
        _bar(f"share of right runs that are refused <= {REFUSED}", share, REFUSED),
        _bar(f"families whose share is above that of unadjusted runs{names}: 0", float(len(worse)), 0.0),
        _bar(f"gradients of a chain before its first draw, posteriordb, median <= {BEFORE}", before, BEFORE),
    ]
    backends = dict.fromkeys(row["sampler"].partition(" ")[2] for row in rows)
    for backend in backends:
        value = _median(ratios(scored, "cpu", f" {backend}" * bool(backend)).values())
        lines.append(_bar(f"CPU seconds, backend {backend or 'auto'}, median <= 1", value, 1.0))
    return lines


def _bar(words: str, value: float, most: float) -> str:
    state = "not measured" if np.isnan(value) else "holds" if value <= most else "FAILS"
    return f"{state:12s} {value:8.3g}  {words}"


def totals(rows: Rows) -> list[str]:
    """Return a line a family, and for all of the scoreboard: both halves together, and each by itself."""
    lines = [COLUMNS]
    sets: dict[str, Callable[[str], bool]] = {
        "": lambda key: True,
        ", tuned on": lambda key: key not in HELD,
        ", held out": lambda key: key in HELD,
    }
    for words, holds in sets.items():
        half = [row for row in rows if holds(row["target"])]
        for family in (*FAMILIES[:-1], "scoreboard", FAMILIES[-1]):
            these = _of(half, family)
            if these:
                lines.append(total(f"{family}{words}", these))
    return lines


def total(name: str, rows: Rows) -> str:
    """Return the line of a set of models."""
    of = {cost: np.array(list(ratios(rows, cost).values())) for cost in COSTS}
    quartiles = [
        "{:5.2f} {:5.2f} {:5.2f} {:7.2f}".format(*np.quantile(of[cost], [0.25, 0.5, 0.75, 1])) if of[cost].size else "-"
        for cost in COSTS[:2]
    ]
    runs = [[row for row in good(rows) if row["sampler"] == kind] for kind in KINDS]
    failed = [sum(row["sampler"] == kind and "error" in row for row in rows) for kind in KINDS]
    lies = [sum(map(_lies, these)) for these in runs]
    wrong = [sum(row["wrong"] for row in these) for these in runs]
    refused = [
        f"{sum(map(_refused, these))} of {sum(row['right'] for row in these)} {100 * _share(these, kind):5.1f}"
        for these, kind in zip(runs, KINDS, strict=True)
    ]
    first = [_middle(of, kind, "warm_up") for of, kind in zip(runs, KINDS, strict=True)]
    models = len({row["target"] for row in rows})
    return (
        f"{name:30s}{models:6d} {quartiles[0]:>26s} {quartiles[1]:>26s} {_pair(lies):>8s} {_pair(wrong):>9s} "
        f"{refused[0]:>15s} {refused[1]:>15s} {_pair(first):>11s} {_median(of['cpu']):5.2f} {_pair(failed):>10s}"
    )


def above(rows: Rows) -> list[str]:
    """Return the models that cost more than the bar, the worst first."""
    of = [ratios(rows, cost) for cost in COSTS[:2]]
    most = {key: max(one[key] for one in of) for key in of[0] if key not in SLOW + NARROW}
    keys = sorted((key for key, value in most.items() if value > WORST), key=lambda key: -most[key])
    sure = {row["target"] for row in good(rows) if row["sampler"] == UNADJUSTED and row["state"] in TRUSTED}
    title = f"Above {WORST}, but for those of the next two tables: {len(keys)}"
    title += f"; of {len(set(keys) - sure)} no unadjusted run is trusted"
    return [title, *table(rows, tuple(keys), WORST)]


def table(rows: Rows, keys: tuple[str, ...], most: float) -> list[str]:
    """Return a line a model of some: ratios, and what its runs are and say of themselves."""
    width = 50
    lines = [
        f"{'':{width}s}{'mean':>6s} {'square':>6s}  A, U: runs trusted/undecided/not, wrong, acceptance (least), codes"
    ]
    of = [ratios(rows, cost) for cost in COSTS[:2]]
    for key in keys:
        mine = [row for row in rows if row["target"] == key]
        if not mine:
            continue
        values = [one.get(key, np.nan) for one in of]
        said = [f"{kind[0].upper()} {_said([row for row in mine if row['sampler'] == kind])}" for kind in KINDS]
        name = f"  {key[: width - 4]}{'*' * (key in HELD)}"
        flag = " ABOVE" if max(values) > most else ""
        lines.append(f"{name:{width}s}{values[0]:6.2f} {values[1]:6.2f}  {'; '.join(said)}{flag}")
    return lines


def _said(rows: Rows) -> str:
    done = good(rows)
    trusted, open_ = (sum(row["state"] in these for row in done) for these in (TRUSTED, ("undecided",)))
    words = f"{trusted}/{open_}/{len(done) - trusted - open_}"
    words += f" {len(rows) - len(done)} failed" * (len(done) < len(rows))
    words += f" {sum(row['wrong'] for row in done)} wrong" * any(row["wrong"] for row in done)
    words += " TRUSTED" * any(map(_lies, done))
    rates = np.array([row["acceptance"] for row in done if "acceptance" in row])
    words += f" {rates[:, 0].mean():.2f} ({rates[:, 1].min():.2f})" if rates.size else ""
    return " ".join([words, *dict.fromkeys(code for row in done for code in row.get("codes", []))])


def lists(rows: Rows) -> list[str]:
    """Return adjusted runs that the verdict got wrong, and all that failed, one a line."""
    adjusted = [row for row in good(rows) if row["sampler"] == ADJUSTED]
    lines = []
    for title, holds in (("Wrong and trusted", _lies), ("Right and refused", _refused)):
        these = [row for row in adjusted if holds(row)]
        lines.append(f"{title}, adjusted: {len(these)}")
        lines += [f"  {row['target']} seed {row['seed']}: {errors_in_words(row)}; {row['sentence']}" for row in these]
    failed = [row for row in rows if "error" in row]
    lines.append(f"Failed: {len(failed)}")
    return lines + [f"  {row['target']} {row['sampler']} seed {row['seed']}: {row['error']}" for row in failed]


def _lies(row: dict[str, Any]) -> bool:
    return row["wrong"] and row["state"] in TRUSTED


def _refused(row: dict[str, Any]) -> bool:
    return row["right"] and row["state"] not in TRUSTED


def _share(rows: Rows, kind: str) -> float:
    """Return the share of right runs that are refused."""
    right = [row for row in good(rows) if row["sampler"] == kind and row["right"]]
    return float(np.mean([_refused(row) for row in right])) if right else np.nan


def _of(rows: Rows, family: str) -> Rows:
    """Return the rows of a family, or of all but the raw densities, which are the last."""
    names = FAMILIES[:-1] if family == "scoreboard" else (family,)
    return [row for row in rows if row["target"].partition("/")[0] in names]


def _middle(rows: Rows, kind: str, cost: str) -> float:
    """Return the median over models of their medians."""
    each: dict[str, list[float]] = {}
    for row in good(rows):
        if row["sampler"] == kind:
            each.setdefault(row["target"], []).append(row[cost])
    return _median([_median(of) for of in each.values()])


def _median(values: Iterable[float]) -> float:
    values = list(values)
    return float(np.median(values)) if values else np.nan


def _pair(values: Iterable[float]) -> str:
    return " ".join(f"{value:.0f}" for value in values)

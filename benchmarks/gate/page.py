"""The page of the gate, from its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from gate.entries import ENTRIES, FAMILIES, HELD, NARROW
from gate.measure import ADJUSTED, KINDS, UNADJUSTED
from posteriors import BIASED
from tables import TRUSTED, Rows, good, grouped, key, lies, lists, median, medians, refused, states

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
COSTS = ("of_mean", "of_square", "cpu")
WORST, WIDTH = 1.5, 50


def page(rows: Rows, facts: str) -> str:
    """Return the page."""
    order = {name: i for i, name in enumerate(ENTRIES)}
    rows = sorted((row for row in rows if row["target"] in order), key=lambda row: (order[row["target"]], row["seed"]))
    plain = [row for row in rows if row["sampler"] in KINDS]
    lines = [HEADER, facts, "", *totals(plain)]
    for backend in dict.fromkeys(row["sampler"].partition(" ")[2] for row in rows if row["sampler"] not in KINDS):
        lines.append(f"CPU on {backend}: {median(by_seed(rows, 'cpu', f' {backend}').values()):.2f}")
    lines += ["", *above(plain), "", "Narrow arms and necks: right, or refused", *table(plain, NARROW)]
    return "\n".join([*lines, "", *lists(plain, [row for row in plain if row["sampler"] == ADJUSTED])]) + "\n"


def by_seed(rows: Rows, cost: str, backend: str = "") -> dict[str, float]:
    """Return, by model, the geometric mean over seeds of a cost of adjusted draws over that of unadjusted ones."""
    costs = {key(row): row[cost] for row in good(rows)}
    logs: dict[str, list[float]] = {}
    for (target, sampler, seed), value in costs.items():
        other = costs.get((target, f"{UNADJUSTED}{backend}", seed))
        if sampler == f"{ADJUSTED}{backend}" and other:
            logs.setdefault(target, []).append(np.log(value / other))
    return {target: float(np.exp(np.mean(of))) for target, of in logs.items()}


def totals(rows: Rows) -> list[str]:
    """Return a line a family, and for all of the scoreboard: both halves together, and each by itself."""
    lines = [COLUMNS]
    sets: dict[str, Callable[[str], bool]] = {
        "": lambda name: True,
        ", tuned on": lambda name: name not in HELD,
        ", held out": lambda name: name in HELD,
    }
    for words, holds in sets.items():
        for family in (*FAMILIES[:-1], "scoreboard", FAMILIES[-1]):
            # The raw densities, which are the last family, are no part of the scoreboard.
            families = FAMILIES[:-1] if family == "scoreboard" else (family,)
            these = [row for row in rows if holds(row["target"]) and row["target"].partition("/")[0] in families]
            if these:
                lines.append(total(f"{family}{words}", these))
    return lines


def total(name: str, rows: Rows) -> str:
    """Return the line of a set of models."""
    ratio = [np.array(list(by_seed(rows, cost).values())) for cost in COSTS]
    quartiles = [
        "{:5.2f} {:5.2f} {:5.2f} {:7.2f}".format(*np.quantile(of, [0.25, 0.5, 0.75, 1])) if of.size else "-"
        for of in ratio[:2]
    ]
    runs = [[row for row in rows if row["sampler"] == kind] for kind in KINDS]
    ended = [good(of) for of in runs]
    said = []
    for of in ended:
        right, not_trusted = sum(row["right"] for row in of), sum(map(refused, of))
        said.append(f"{not_trusted} of {right} {100 * not_trusted / right if right else np.nan:5.1f}")
    counts = [sum(map(lies, of)) for of in ended], [sum(row["wrong"] for row in of) for of in ended]
    first = [median(medians(rows, kind, "warm_up").values()) for kind in KINDS]
    failed = [len(of) - len(done) for of, done in zip(runs, ended, strict=True)]
    return (
        f"{name:30s}{len(grouped(rows)):6d} {quartiles[0]:>26s} {quartiles[1]:>26s} {_pair(counts[0]):>8s} "
        f"{_pair(counts[1]):>9s} {said[0]:>15s} {said[1]:>15s} {_pair(first):>11s} {median(ratio[2]):5.2f} "
        f"{_pair(failed):>10s}"
    )


def above(rows: Rows) -> list[str]:
    """Return the models that cost more than half again, the worst first."""
    of = [by_seed(rows, cost) for cost in COSTS[:2]]
    most = {name: max(one[name] for one in of) for name in of[0] if name not in NARROW}
    keys = sorted((name for name, value in most.items() if value > WORST), key=lambda name: -most[name])
    sure = {row["target"] for row in good(rows) if row["sampler"] == UNADJUSTED and row["state"] in TRUSTED}
    title = f"Above {WORST}, but for those of the next table: {len(keys)}"
    return [f"{title}; of {len(set(keys) - sure)} no unadjusted run is trusted", *table(rows, tuple(keys))]


def table(rows: Rows, keys: tuple[str, ...]) -> list[str]:
    """Return a line a model of some: ratios, and what its runs are and say of themselves."""
    said = "A, U: runs trusted/undecided/not, wrong, acceptance (least), codes"
    lines = [f"{'':{WIDTH}s}{'mean':>6s} {'square':>6s}  {said}"]
    of, by_target = [by_seed(rows, cost) for cost in COSTS[:2]], grouped(rows)
    for name in (name for name in keys if name in by_target):
        mean, square = (one.get(name, np.nan) for one in of)
        kinds = [f"{kind[0].upper()} {_said(grouped(by_target[name], 'sampler').get(kind, []))}" for kind in KINDS]
        shown = f"  {name[: WIDTH - 4]}{'*' * (name in HELD)}"
        lines.append(f"{shown:{WIDTH}s}{mean:6.2f} {square:6.2f}  {'; '.join(kinds)}")
    return lines


def _said(rows: Rows) -> str:
    done = good(rows)
    words = "/".join(map(str, states(done)))
    words += f" {len(rows) - len(done)} failed" * (len(done) < len(rows))
    words += f" {sum(row['wrong'] for row in done)} wrong" * any(row["wrong"] for row in done)
    words += " TRUSTED" * any(map(lies, done))
    rates = np.array([row["acceptance"] for row in done if "acceptance" in row])
    words += f" {rates[:, 0].mean():.2f} ({rates[:, 1].min():.2f})" if rates.size else ""
    return " ".join([words, *dict.fromkeys(code for row in done for code in row.get("codes", []))])


def _pair(values: Iterable[float]) -> str:
    return " ".join(f"{value:.0f}" for value in values)

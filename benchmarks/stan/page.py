"""The page of the Stan programs, from its rows."""

from __future__ import annotations

import numpy as np
from posteriors import BIASED
from stan.measure import AS_WRITTEN, DEFAULT, NUTS, UNADJUSTED
from tables import TRUSTED, Rows, errors_in_words, good, lies, ratios, refused, states

HEADER = f"""\
python -m benchmarks stan PATH: Stan programs of a checkout of posteriordb, 4 chains of 1000 draws, by default.

g400      gradients of a chain until the worst mean has 400 effective draws, warm-up included; medians over seeds
ratio     the same over that of Stan's NUTS (stanli, its defaults)
runs      so many trusted, undecided, not trusted (NUTS: without a warning, -, with one)
WRONG     runs off by more than {BIASED} posterior sd and beyond chance (one in a hundred runs); T: those trusted.  The
          reference is that of posteriordb, or NUTS ten times as long that has converged; -: neither, not judged
refused   runs within {BIASED} of every mean and sd that are not trusted
"""


def page(rows: Rows, facts: str) -> str:
    """Return the page."""
    lines = [HEADER, facts, ""]
    for sampler in (DEFAULT, UNADJUSTED):
        if any(row["sampler"] == sampler for row in rows):
            lines += totals(rows, sampler)
    lines += by_hand(rows)
    lines += ["", f"{'':50s}{'d':>5s} {'g400':>9s} {'ratio':>7s} {'runs':>7s} {'WRONG':>6s} {'CPU':>6s}  what it says"]
    for target in sorted({row["target"] for row in rows}):
        for sampler in (DEFAULT, AS_WRITTEN, UNADJUSTED, NUTS):
            mine = [row for row in rows if (row["target"], row["sampler"]) == (target, sampler)]
            if mine:
                lines.append(line(target, sampler, mine, ratios(rows, sampler, NUTS, "for_400")))
    return "\n".join(lines) + "\n"


def totals(rows: Rows, sampler: str) -> list[str]:
    """Return what is measured of a sampler on all programs."""
    mine = [row for row in good(rows) if row["sampler"] == sampler]
    known = [row for row in mine if row.get("right") is not None]
    wrong = [row for row in known if lies(row)]
    right = [row for row in known if row["right"]]
    not_trusted = [row for row in right if refused(row)]
    of = ratios(rows, sampler, NUTS, "for_400")
    values = np.sort(list(of.values())) if of else np.array([np.nan])
    solved = {row["target"] for row in good(rows) if row["sampler"] == NUTS and row["state"] in TRUSTED}
    lost = [target for target, value in of.items() if value > 1.0]
    failed = [row for row in rows if row["sampler"] == sampler and "error" in row]
    return [
        f"{sampler}: {len(of)} programs beside NUTS: median ratio {np.median(values):.3f}, worst {values[-1]:.2f}; "
        f"lost on {len(lost)}, of which NUTS solves {len(solved.intersection(lost))}: {', '.join(lost) or 'none'}",
        f"    runs {len(mine)}, judged {len(known)}; wrong and trusted {len(wrong)}"
        f"{': ' + ', '.join(sorted({row['target'] for row in wrong})) if wrong else ''}; "
        f"right and refused {len(not_trusted)} of {len(right)}; failed {len(failed)}",
        *(f"    refused: {row['target']} {row['seed']}: {row['sentence'][:150]}" for row in not_trusted),
        *(f"    failed: {row['target']} {row['seed']}: {row['error'][:150]}" for row in failed),
    ]


def by_hand(rows: Rows) -> list[str]:
    """Return what reading the effects of a program gains, by program that also ran as it is written."""
    costs = ("for_400", "for_400_square", "cpu")
    over = [ratios([row for row in rows if cost in row], DEFAULT, AS_WRITTEN, cost) for cost in costs]
    if not over[0]:
        return []
    words = ("gradients of means", "of squares", "CPU seconds")
    parts = [
        f"{word} {np.median([*of.values()]):.2f} ({min(of.values()):.2f} to {max(of.values()):.2f})"
        for word, of in zip(words, over, strict=True)
    ]
    lines = [f"default over as written, {len(over[0])} programs that are non-centred by hand: {', '.join(parts)}"]
    return [*lines, *(f"    {name}: {', '.join(f'{of[name]:.2f}' for of in over)}" for name in over[0])]


def line(target: str, sampler: str, mine: Rows, of: dict[str, float]) -> str:
    """Return the line of a program and sampler."""
    ran = good(mine)
    if not ran:
        return f"{target[:38]:38s} {sampler:11s}{'':5s} failed: {mine[0]['error'][:90]}"
    known = [row for row in ran if row.get("right") is not None]
    wrong = [row for row in known if row["wrong"]]
    trusted = sum(map(lies, wrong))
    said = f"{len(wrong)}{f' T{trusted}' if trusted else ''}" if known else "-"
    ratio = f"{of[target]:.3f}" if sampler != NUTS and target in of else ""
    refusals = [row["sentence"] for row in ran if row["state"] not in TRUSTED and "sentence" in row]
    words = errors_in_words(wrong[0]) if wrong else next(iter(refusals), "")
    cost, seconds = (np.median([row[name] for row in ran]) for name in ("for_400", "cpu"))
    return (
        f"{target[:38]:38s} {sampler:11s}{ran[0].get('d', ''):>5} {cost:9.0f} {ratio:>7s} "
        f"{'/'.join(map(str, states(ran))):>7s} {said:>6s} {seconds:6.1f}  {words[:110]}"
    )

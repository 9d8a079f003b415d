"""The one page of the scoreboard, from its rows."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from posteriors import BIASED
from scoreboard.entries import ENTRIES, HELD
from scoreboard.goals import EVERY_STEP, goals_table
from scoreboard.measure import SCHEMES

__all__ = ["TRUSTED", "errors_in_words", "good", "page", "verdict_of"]

HEADER = """\
python -m benchmarks scoreboard: 4 chains of 1000 draws; one line a model and sampler, over seeds.

runs      number: how many are trusted, undecided, not trusted (a peer: no warning, -, warns); f: failed
WRONG     runs off by more than {biased} posterior sd and beyond chance (one in a hundred runs), in a mean or an
          sd; T: those of them that are trusted
mean, sd  worst error of a mean and of a standard deviation in posterior sds, with z, over parameters and seeds
within    what a trusted run says: two standard errors of its worst corrected mean, % of an sd; largest of seeds
cover     corrected means within two standard errors of the truth, %
broken    biases of raw means beyond their stated bound by three standard errors, and how many bounds there are
total     gradients of the costliest chain, warm-up included; medians over seeds, as all that follows
b2max     gradients until the error of second moments is below .01, of the worst coordinate and, b2avg, of their mean;
          warm-up included, to the next draw; > not reached
ESS       least effective draws of a mean in 1000 gradients after warm-up; g400: gradients of a chain until it is 400
for draws those of the refused whose sentence asks for nothing but more draws
CPU       seconds of a call in a session that knows the model
"""
COLUMNS = (
    f"{'':46s}{'runs':>9s} {'WRONG':>5s} {'mean':>14s} {'sd':>14s} {'within':>6s} {'cover':>5s} {'broken':>8s} "
    f"{'total':>8s} {'warm-up':>7s} {'b2max':>8s} {'b2avg':>8s} {'ESS':>6s} {'g400':>7s} {'CPU':>6s}"
)
TRUSTED = ("trusted", "no warning")


def page(rows: list[dict[str, Any]], facts: str) -> str:
    """Return the page."""
    order = {key: i for i, key in enumerate(ENTRIES)}
    known = [row for row in rows if row["target"] in order]
    goals = goals_table(known)
    known = [row for row in known if row["sampler"] != EVERY_STEP]
    rows = sorted(known, key=lambda row: (order[row["target"]], row["sampler"], row["seed"]))
    lines = [HEADER.format(biased=BIASED), facts, ""]
    families = list(dict.fromkeys(key.partition("/")[0] for key in ENTRIES))
    lines += [*totals(rows, families), "", *against(rows, families), *goals, *lists(rows)]
    for family in families:
        mine = [row for row in rows if row["target"].partition("/")[0] == family]
        if mine:
            lines += ["", f"{family}{', * held out: nothing is tuned on it' * (family == 'odd')}", COLUMNS]
        for target in dict.fromkeys(row["target"] for row in mine):
            of_model = [row for row in mine if row["target"] == target]
            for sampler in dict.fromkeys(row["sampler"] for row in of_model):
                lines.append(line(target, sampler, [row for row in of_model if row["sampler"] == sampler]))
    return "\n".join(lines) + "\n"


def verdict_of(rows: list[dict[str, Any]]) -> int:
    """Return the exit status of the quick form, and say why it is not 0."""
    bad = [row for row in rows if "error" in row or (row.get("wrong") and row["state"] in TRUSTED)]
    for row in bad:
        what = f"failed: {row['error']}" if "error" in row else f"is wrong and trusted: {errors_in_words(row)}"
        print(f"{row['target']} {row['sampler']} seed {row['seed']} {what}", file=sys.stderr)
    return int(bool(bad))


def errors_in_words(row: dict[str, Any]) -> str:
    """Return the worst errors of a run with their z."""
    words = "{} of {} {:+.3f} ({:+.1f})"
    return ", ".join(words.format(what, *(row[what][key] for key in ("of", "off", "z"))) for what in ("mean", "sd"))


def good(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "error" not in row]


def line(target: str, sampler: str, rows: list[dict[str, Any]]) -> str:
    """Return the line of a sampler on a model."""
    done = good(rows)
    name = f"{target.partition('/')[2]}{'*' * (target in HELD)}"
    begin = f"  {name[:44]:44s}" if sampler == next(iter(SCHEMES)) else f"  {name[:28]:28s} {sampler[:15]:15s}"
    kinds = (TRUSTED, ("undecided",), ("not trusted", "not judged", "warns"))
    states = [sum(row["state"] in these for row in done) for these in kinds]
    counts = f"{len(rows)}:{'/'.join(map(str, states))}" + f"f{len(rows) - len(done)}" * (len(done) < len(rows))
    if not done:
        return f"{begin}{counts:>9s} {rows[0]['error']}"
    wrong, trusted = sum(row["wrong"] for row in done), sum(row["wrong"] and row["state"] in TRUSTED for row in done)
    worst = [max((row[what] for row in done), key=lambda one: abs(one["off"])) for what in ("mean", "sd")]
    errors = " ".join(f"{one['off']:+7.3f} {f'({one["z"]:+.1f})':>6s}" for one in worst)
    claims = [row for row in done if "means" in row]
    within = [100 * row["within"] for row in claims if row["within"] is not None and row["state"] in TRUSTED]
    cover = 100 * sum(row["covered"] for row in claims) / max(1, sum(row["means"] for row in claims))
    bounds = f"{sum(row['broken'] for row in claims)}/{sum(row['bounds'] for row in claims)}"
    said = f"{max(within):6.1f}" if within else f"{'-':>6s}"
    said += f" {cover:5.0f} {bounds:>8s}" if claims else f" {'-':>5s} {'-':>8s}"
    keys = ("gradients", "warm_up", "ess_per_1000", "for_400", "cpu")
    typical = {key: float(np.median([row[key] for row in done])) for key in keys}
    return (
        f"{begin}{counts:>9s} {f'{wrong}T{trusted}' if wrong else '':>5s} {errors} {said} {typical['gradients']:8.0f} "
        f"{typical['warm_up']:7.0f} {_first(done, 'b2_max'):>8s} {_first(done, 'b2_avg'):>8s} "
        f"{typical['ess_per_1000']:6.1f} {typical['for_400']:7.0f} {typical['cpu']:6.1f}"
    )


def _first(rows: list[dict[str, Any]], name: str) -> str:
    rows = [row for row in rows if name in row]  # of two states of a reference, one may have no squares
    if not rows:
        return "-"
    values = sorted(np.inf if row[name] is None else row[name] for row in rows)
    middle = values[(len(values) - 1) // 2]
    return f"{middle:.0f}" if np.isfinite(middle) else f">{max(row['gradients'] for row in rows):.0f}"


def totals(rows: list[dict[str, Any]], families: list[str]) -> list[str]:
    """Return what the verdict got right and wrong, by sampler and family."""
    lines = [
        f"{'':33s}{'runs':>6s} {'wrong':>6s} {'trusted':>8s} {'right':>6s} {'refused':>13s} {'for draws':>9s} "
        f"{'broken bounds':>16s} {'cover where trusted':>20s}"
    ]
    for sampler in dict.fromkeys(row["sampler"] for row in rows):
        for family in (*families, "odd, held out", "all"):
            these = [row for row in rows if row["sampler"] == sampler and _belongs(row["target"], family)]
            if not these:
                continue
            done = good(these)
            wrong, right = [row for row in done if row["wrong"]], [row for row in done if row["right"]]
            refused = [row for row in right if row["state"] not in TRUSTED]
            claims = [row for row in done if "means" in row]
            trusted = [row for row in claims if row["state"] in TRUSTED]
            short = sum(row.get("sentence", "").partition(". ")[2].startswith("Draw more") for row in refused)
            bounds, means = sum(row["bounds"] for row in claims), sum(row["means"] for row in trusted)
            covered = f"{100 * sum(row['covered'] for row in trusted) / means:.1f} % of {means}" if means else "-"
            share = f"{len(refused)} ({100 * len(refused) / len(right):.1f} %)" if right else "-"
            lines.append(
                f"  {sampler:16s}{family:15s}{len(these):6d} {len(wrong):6d} "
                f"{sum(row['state'] in TRUSTED for row in wrong):8d} {len(right):6d} {share:>13s} {short:9d} "
                f"{f'{sum(row["broken"] for row in claims)} of {bounds}':>16s} {covered:>20s}"
            )
    return lines


def against(rows: list[dict[str, Any]], families: list[str]) -> list[str]:
    """Return how many gradients our defaults need for 400 effective draws of each mean, over what each peer needs."""
    ours = next(iter(SCHEMES))
    each: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in good(rows):
        each.setdefault(row["sampler"], {}).setdefault(row["target"], []).append(row)
    lines = []
    for peer, theirs in each.items():
        both = [target for target in theirs if peer not in SCHEMES and target in each.get(ours, {})]
        if not both:
            continue
        need = {t: [float(np.median([row["for_400"] for row in each[s][t]])) for s in (ours, peer)] for t in both}
        ratio = {target: mine / other for target, (mine, other) in need.items()}
        medians = [
            f"{family} {np.median(of):.2f} of {len(of)}"
            for family in (*families, "all")
            if (of := [value for target, value in ratio.items() if _belongs(target, family)])
        ]
        lines += [f"g400 of {ours} over that of {peer}, medians: {', '.join(medians)}.  Above 1:"]
        for target in sorted((target for target in both if ratio[target] > 1), key=lambda target: -ratio[target]):
            mine, other = need[target]
            states = [", ".join(row["state"] for row in each[sampler][target]) for sampler in (ours, peer)]
            lines.append(f"  {target}: {ratio[target]:.1f} ({mine:.0f}, {states[0]}; {other:.0f}, {states[1]})")
    return [*lines, ""] if lines else []


def _belongs(target: str, family: str) -> bool:
    return family == "all" or (target in HELD if family == "odd, held out" else target.partition("/")[0] == family)


def lists(rows: list[dict[str, Any]]) -> list[str]:
    """Return the runs that the verdict got wrong, one a line."""
    kinds = {
        "Wrong and trusted": lambda row: row["wrong"] and row["state"] in TRUSTED,
        "Right and refused": lambda row: row["right"] and row["state"] not in TRUSTED and "sentence" in row,
    }
    lines = []
    for title, holds in kinds.items():
        these = [row for row in good(rows) if holds(row)]
        lines += [f"{title}: {len(these)}"]
        for row in these:
            said = row.get("sentence", row["state"])
            lines.append(f"  {row['target']} {row['sampler']} seed {row['seed']}: {errors_in_words(row)}; {said}")
    failed = [row for row in rows if "error" in row]
    lines += [f"Failed: {len(failed)}"]
    return lines + [f"  {row['target']} {row['sampler']} seed {row['seed']}: {row['error']}" for row in failed]

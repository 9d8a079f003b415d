"""The one page of the scoreboard, from its rows."""

from __future__ import annotations

import numpy as np
from posteriors import BIASED
from scoreboard.entries import ENTRIES, HELD
from scoreboard.measure import SCHEMES
from tables import TRUSTED, Rows, good, grouped, lies, lists, median, medians, ratios, refused, states

HEADER = """\
python -m benchmarks scoreboard: 4 chains of 1000 draws; one line a model and sampler, over seeds.

runs      number: how many are trusted, undecided, not trusted (a peer: no warning, -, warns); f: failed
WRONG     runs off by more than {biased} posterior sd and beyond chance (one in a hundred runs), in a mean or an
          sd; T: those of them that are trusted
mean, sd  worst error of a mean and of a standard deviation in posterior sds, with z, over parameters and seeds
within    what a trusted run says: two standard errors of its worst corrected mean, % of an sd; largest of seeds
cover     corrected means within two standard errors of the truth, %
total     gradients of the costliest chain, warm-up included; medians over seeds, as all that follows
b2max     gradients until the error of second moments is below .01, of the worst coordinate and, b2avg, of their mean;
          warm-up included, to the next draw; > not reached
ESS       least effective draws of a mean in 1000 gradients after warm-up; g400: gradients of a chain until it is 400
for draws those of the refused whose sentence asks for nothing but more draws
CPU       seconds of a call in a session that knows the model
"""
COLUMNS = (
    f"{'':46s}{'runs':>9s} {'WRONG':>5s} {'mean':>14s} {'sd':>14s} {'within':>6s} {'cover':>5s} "
    f"{'total':>8s} {'warm-up':>7s} {'b2max':>8s} {'b2avg':>8s} {'ESS':>6s} {'g400':>7s} {'CPU':>6s}"
)


def page(rows: Rows, facts: str) -> str:
    """Return the page."""
    order = {key: i for i, key in enumerate(ENTRIES)}
    known = [row for row in rows if row["target"] in order]
    rows = sorted(known, key=lambda row: (order[row["target"]], row["sampler"], row["seed"]))
    lines = [HEADER.format(biased=BIASED), facts, ""]
    families = list(dict.fromkeys(key.partition("/")[0] for key in ENTRIES))
    lines += [*totals(rows, families), "", *against(rows, families), *lists(rows, rows)]
    for family in families:
        mine = [row for row in rows if row["target"].partition("/")[0] == family]
        if mine:
            lines += ["", f"{family}{', * held out: nothing is tuned on it' * (family == 'odd')}", COLUMNS]
        for target, of_model in grouped(mine).items():
            lines += [line(target, sampler, of) for sampler, of in grouped(of_model, "sampler").items()]
    return "\n".join(lines) + "\n"


def line(target: str, sampler: str, rows: Rows) -> str:
    """Return the line of a sampler on a model."""
    done = good(rows)
    name = f"{target.partition('/')[2]}{'*' * (target in HELD)}"
    begin = f"  {name[:44]:44s}" if sampler == next(iter(SCHEMES)) else f"  {name[:28]:28s} {sampler[:15]:15s}"
    counts = f"{len(rows)}:{'/'.join(map(str, states(done)))}" + f"f{len(rows) - len(done)}" * (len(done) < len(rows))
    if not done:
        return f"{begin}{counts:>9s} {rows[0]['error']}"
    wrong, trusted = sum(row["wrong"] for row in done), sum(map(lies, done))
    worst = [max((row[what] for row in done), key=lambda one: abs(one["off"])) for what in ("mean", "sd")]
    errors = " ".join(f"{one['off']:+7.3f} {f'({one["z"]:+.1f})':>6s}" for one in worst)
    claims = [row for row in done if "means" in row]
    within = [100 * row["within"] for row in claims if row["within"] is not None and row["state"] in TRUSTED]
    cover = 100 * sum(row["covered"] for row in claims) / max(1, sum(row["means"] for row in claims))
    said = f"{max(within):6.1f}" if within else f"{'-':>6s}"
    said += f" {cover:5.0f}" if claims else f" {'-':>5s}"
    keys = ("gradients", "warm_up", "ess_per_1000", "for_400", "cpu")
    typical = {key: median(row[key] for row in done) for key in keys}
    return (
        f"{begin}{counts:>9s} {f'{wrong}T{trusted}' if wrong else '':>5s} {errors} {said} {typical['gradients']:8.0f} "
        f"{typical['warm_up']:7.0f} {_first(done, 'b2_max'):>8s} {_first(done, 'b2_avg'):>8s} "
        f"{typical['ess_per_1000']:6.1f} {typical['for_400']:7.0f} {typical['cpu']:6.1f}"
    )


def _first(rows: Rows, name: str) -> str:
    rows = [row for row in rows if name in row]  # of two states of a reference, one may have no squares
    if not rows:
        return "-"
    values = sorted(np.inf if row[name] is None else row[name] for row in rows)
    middle = values[(len(values) - 1) // 2]
    return f"{middle:.0f}" if np.isfinite(middle) else f">{max(row['gradients'] for row in rows):.0f}"


def totals(rows: Rows, families: list[str]) -> list[str]:
    """Return what the verdict got right and wrong, by sampler and family."""
    lines = [
        f"{'':33s}{'runs':>6s} {'wrong':>6s} {'trusted':>8s} {'right':>6s} {'refused':>13s} {'for draws':>9s} "
        f"{'cover where trusted':>20s}"
    ]
    for sampler in dict.fromkeys(row["sampler"] for row in rows):
        for family in (*families, "odd, held out", "all"):
            these = [row for row in rows if row["sampler"] == sampler and _belongs(row["target"], family)]
            if not these:
                continue
            done = good(these)
            right, not_trusted = sum(row["right"] for row in done), [row for row in done if refused(row)]
            claims = [row for row in done if "means" in row]
            trusted = [row for row in claims if row["state"] in TRUSTED]
            short = sum(row.get("sentence", "").partition(". ")[2].startswith("Draw more") for row in not_trusted)
            means = sum(row["means"] for row in trusted)
            covered = f"{100 * sum(row['covered'] for row in trusted) / means:.1f} % of {means}" if means else "-"
            share = f"{len(not_trusted)} ({100 * len(not_trusted) / right:.1f} %)" if right else "-"
            lines.append(
                f"  {sampler:16s}{family:15s}{len(these):6d} {sum(row['wrong'] for row in done):6d} "
                f"{sum(map(lies, done)):8d} {right:6d} {share:>13s} {short:9d} "
                f"{covered:>20s}"
            )
    return lines


def against(rows: Rows, families: list[str]) -> list[str]:
    """Return how many gradients our defaults need for 400 effective draws of each mean, over what each peer needs."""
    ours, by_target = next(iter(SCHEMES)), grouped(good(rows))
    lines = []
    for peer in dict.fromkeys(row["sampler"] for row in good(rows) if row["sampler"] not in SCHEMES):
        ratio, need = ratios(rows, ours, peer, "for_400"), [medians(rows, name, "for_400") for name in (ours, peer)]
        shown = [
            f"{family} {median(of):.2f} of {len(of)}"
            for family in (*families, "all")
            if (of := [value for target, value in ratio.items() if _belongs(target, family)])
        ]
        if not shown:
            continue
        lines += [f"g400 of {ours} over that of {peer}, medians: {', '.join(shown)}.  Above 1:"]
        for target in sorted((target for target in ratio if ratio[target] > 1), key=lambda target: -ratio[target]):
            states = [
                ", ".join(row["state"] for row in by_target[target] if row["sampler"] == name) for name in (ours, peer)
            ]
            costs = [f"{of[target]:.0f}, {state}" for of, state in zip(need, states, strict=True)]
            lines.append(f"  {target}: {ratio[target]:.1f} ({'; '.join(costs)})")
    return [*lines, ""] if lines else []


def _belongs(target: str, family: str) -> bool:
    return family == "all" or (target in HELD if family == "odd, held out" else target.partition("/")[0] == family)

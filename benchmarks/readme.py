"""The figures of README, as it has them, from the results that are kept: ``python -m benchmarks readme``."""

from __future__ import annotations

import numpy as np
from tables import RESULTS, good, lies, ratios, read, refused

# Results, the other sampler in its rows, and how the models begin.
PEERS = ("scoreboard.json", "nutpie low rank", "posteriordb/"), ("stan.json", "NUTS", "")
COSTS = {"for_400": "the worst mean has 400 effective draws", "for_400_square": "the worst square has"}
OURS = "default"


def figures() -> list[str]:
    """Return README's sentence on costs, its table, a line a row, and its sentence on wrong runs."""
    columns, judged = [], []
    for file, peer, family in PEERS:
        rows = [row for row in good(read(RESULTS / file)[0]) if row["target"].startswith(family)]
        over = {cost: ratios([row for row in rows if cost in row], OURS, peer, cost).values() for cost in COSTS}
        columns.append({cost: np.array(list(values)) for cost, values in over.items()})
        judged += [row for row in rows if row["sampler"] == OURS and row.get("right") is not None]
    wrong, right, not_trusted = (sum(map(of, judged)) for of in (lies, lambda row: row["right"], refused))
    (mean, square), (mean_of_nuts, square_of_nuts) = ([f"{np.median(of):.2g}" for of in c.values()] for c in columns)
    lines = [
        f"Until the worst mean has 400 effective draws it takes {mean} of the gradients of nutpie and {mean_of_nuts} "
        f"of those of Stan's NUTS; until the worst square has, {square} and {square_of_nuts} (medians).",
        "| gradients over those of | nutpie, models of posteriordb | Stan's NUTS, Stan programs |",
    ]
    for cost, words in COSTS.items():
        over = [column[cost] for column in columns]
        cells = [f"**{np.median(of):.2g}**; {of.max():.2g}; {(of < 1).sum()} of {of.size}" for of in over]
        lines.append(f"| until {words}: median; worst; fewer on | {' | '.join(cells)} |")
    said = f"Of {len(judged)} runs {wrong} were wrong and trusted; of {right} right ones {not_trusted} were refused."
    return [*lines, said]


if __name__ == "__main__":
    print("\n".join(figures()))

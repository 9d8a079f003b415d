"""The figures of README, as it has them, from the results that are kept: ``python -m benchmarks claims``."""

from __future__ import annotations

import numpy as np
from tables import RESULTS, good, lies, ratios, read, refused

__all__ = ["claims"]

# Results, the other sampler in its rows, how the models begin, and the head of its column.
PEERS = (
    ("scoreboard.json", "nutpie low rank", "posteriordb/", "nutpie, {} posteriors of posteriordb"),
    ("stan.json", "NUTS", "", "Stan's NUTS, {} Stan programs"),
)
COSTS = {"for_400": "the worst mean has 400 effective draws", "for_400_square": "the worst square has"}
OURS = "default"


def claims() -> list[str]:
    """Return README's first sentence on costs, its table, a line a row, and its sentence on wrong runs."""
    medians = []
    head, lines = "| gradients over those of", [f"| until {words}: median; worst" for words in COSTS.values()]
    fewer, judged = "| fewer on so many: mean; square", []
    for file, peer, family, words in PEERS:
        rows = [row for row in good(read(RESULTS / file)[0]) if row["target"].startswith(family)]
        counted = [row for row in rows if all(name in row for name in COSTS)]
        over = [np.array(list(ratios(counted, OURS, peer, name).values())) for name in COSTS]
        medians.append([f"{np.median(of):.2g}" for of in over])
        head += f" | {words.format(over[0].size)}"
        lines = [f"{line} | **{np.median(of):.2g}**; {of.max():.2g}" for line, of in zip(lines, over, strict=True)]
        fewer += f" | {(over[0] < 1).sum()}; {(over[1] < 1).sum()}"
        judged += [row for row in rows if row["sampler"] == OURS and row.get("right") is not None]
    wrong, right, not_trusted = (sum(map(of, judged)) for of in (lies, lambda row: row["right"], refused))
    said = f"Of {len(judged)} runs {wrong} was wrong and trusted; of {right} right ones {not_trusted} were refused."
    (mean, square), (mean_of_nuts, square_of_nuts) = medians
    costs = (
        f"Until the worst mean has 400 effective draws it takes {mean} of the gradients of nutpie and {mean_of_nuts} "
        f"of those of Stan's NUTS; until the worst square has, {square} and {square_of_nuts} (medians)."
    )
    return [costs, *(f"{line} |" for line in (head, *lines, fewer)), said]


if __name__ == "__main__":
    print("\n".join(claims()))

"""Our samplers against others, in gradients and seconds: ``python -m benchmarks versus [target ...]``.

Eight chains of every sampler start within one unit of the model's initial point, and are lengthened until both errors
are settled in the first half of the run, or the next length would take longer than ``--seconds`` of CPU.  Seeds are
1, 2 and 3; a row is one sampler on one target from one seed, and a failure is a row.

Ours are warmed up together by the package's own schedule, as ``pmm.sample`` does, and every transition is a draw.
``peers.py`` and ``jax_peers.py`` say how others are tuned and how gradients are counted.  ``--write`` keeps
``results/versus.json`` and ``versus.txt`` up to date after every row; a run begins where the rows in there end.  Needs
``.[bench]``; a sampler that is not installed is a failure.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from targets import TARGETS, reference
from versus.kept import about, append, missing, read, told
from versus.ours import SAMPLERS
from versus.rows import PEERS, build, failure, measure
from versus.table import HEADER, table

PATH = Path(__file__).parents[1] / "results" / "versus.json"
ORDER = (
    *("gaussian100", "breast_cancer", "poisson_glm", "eight_schools", "mixture20", "phi4"),
    *("banana", "rotated100", "gaussian1000", "stochastic_volatility"),
)
NAMES = (*SAMPLERS, *PEERS)
CHAINS = 8


def render(rows: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    """Everything that is printed."""
    targets = list(dict.fromkeys(row["target"] for row in rows))
    rows = sorted(rows, key=lambda row: (targets.index(row["target"]), NAMES.index(row["sampler"])))
    return f"{HEADER}\n{told(rows, facts)}\n{table(rows)}\n"


def rows_of(sampler: str, target: str, model: Any, seeds: list[int], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the rows of a sampler on a target, one for each seed."""
    known, made = reference(target), None
    for seed in seeds:
        row = {"target": target, "d": len(known.second), "sampler": sampler, "seed": seed, "chains": CHAINS}
        try:
            made = build(sampler, model, known, CHAINS) if made is None else made
            row |= measure(made, known, seed, seconds)
        except Exception as error:  # whatever happens in another package is its row
            row |= failure(error)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help=f"names of targets (default: {' '.join(ORDER)})")
    parser.add_argument("--samplers", nargs="*", default=NAMES, choices=NAMES, metavar="SAMPLER", help=", ".join(NAMES))
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of CPU time for one row")
    parser.add_argument("--quick", action="store_true", help="one seed, and the first, short run of each")
    parser.add_argument("--write", action="store_true", help=f"keep the rows in {PATH.parent.name}/{PATH.name}")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.targets) - set(TARGETS))
    if unknown:
        parser.error(f"unknown target {', '.join(unknown)}: take some of {', '.join(TARGETS)}")
    if arguments.quick and arguments.write:
        parser.error("--quick makes short runs, which --write must not keep: leave one of them out")
    # Out of the range of parameters densities overflow, and PyMC and JAX warn of what they do.
    warnings.simplefilter("ignore")
    seeds, seconds = (arguments.seeds[:1], 0.0) if arguments.quick else (arguments.seeds, arguments.seconds)
    facts, rows = about(), read(PATH) if arguments.write else []
    for target in arguments.targets or ORDER:
        model = TARGETS[target].build()
        for sampler in arguments.samplers:
            for row in rows_of(sampler, target, model, missing(rows, target, sampler, seeds), seconds):
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
                if arguments.write:
                    append(PATH, row, facts, render)
    print(render(rows, facts))


if __name__ == "__main__":
    main()

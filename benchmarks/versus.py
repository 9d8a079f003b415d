"""Our samplers against others, in gradients and seconds: ``python benchmarks/versus.py [target ...]`` prints the table.

Eight chains of every sampler start within one unit of the model's initial point, and are lengthened until both errors
are settled in the first half of the run, or the next length would take longer than ``--seconds`` of CPU.  Seeds are
1, 2 and 3; a row is one sampler on one target from one seed, and a failure is a row.

Ours are warmed up together by the package's own schedule, as ``pmm.sample`` does, and every transition is a draw.
``benchmarks/peers.py``, ``jax_peers.py`` and ``more_peers.py`` say how others are tuned and how gradients are counted;
``--count`` counts the gradients that short runs of one chain really evaluate, and prints them beside what is reported.

``--write`` keeps ``results/versus.json`` and ``versus.txt`` up to date after every row; a run begins where the rows in
there end.  Needs ``.[bench]``; a sampler that is not installed is a failure.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from versus_table import HEADER, table

__all__ = ["append", "missing", "read", "render"]

PATH = Path(__file__).parent / "results" / "versus.json"
ORDER = (
    *("gaussian100", "breast_cancer", "poisson_glm", "eight_schools", "mixture20", "phi4"),
    *("banana", "rotated100", "gaussian1000", "stochastic_volatility"),
)
SEEDS, CHAINS, SECONDS, DEFAULT = (1, 2, 3), 8, 60.0, "PoissonULMC"
PACKAGES = ("pmm-mcmc", "pymc", "nutpie", "numpyro", "blackjax", "diffrax", "jax", "numba", "numpy")


def about() -> dict[str, Any]:
    """Versions, machine and date."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return {
        "versions": found,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": time.strftime("%Y-%m-%d"),
    }


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a file, none where there is no file."""
    return json.loads(path.read_text())["rows"] if path.exists() else []


def render(rows: list[dict[str, Any]], facts: dict[str, Any]) -> str:
    """Everything that is printed, from rows and the facts of `about`."""
    from versus_rows import OURS, PEERS, REMEDIES

    names, targets = [*OURS, *REMEDIES, *PEERS], list(dict.fromkeys(row["target"] for row in rows))
    rows = sorted(rows, key=lambda row: (targets.index(row["target"]), names.index(row["sampler"])))
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    loads = sorted(row["load"] for row in rows if "load" in row)
    load = f" Load of the machine when rows began: {loads[0]:.1f} to {loads[-1]:.1f}." if loads else ""
    machine = f"{versions}; Python {facts['python']}, {facts['machine']}, {facts['date']}.{load}"
    return f"{HEADER}\n{machine}\n{table(rows, OURS, DEFAULT, apart=REMEDIES)}\n"


def append(path: Path, row: dict[str, Any], facts: dict[str, Any], words: Callable[..., str] = render) -> None:
    """Add a row to a file of rows, in place of an older one of the same run, and print all rows beside it."""
    rows = [old for old in read(path) if key(old) != key(row)] + [row]
    content = {path: json.dumps({**facts, "rows": rows}, indent=1, allow_nan=False) + "\n"}
    content[path.with_suffix(".txt")] = words(rows, facts)
    for where, text in content.items():
        # Whoever stops the run at any time finds a whole file.
        new = where.with_suffix(where.suffix + ".new")
        new.write_text(text)
        new.replace(where)


def key(row: dict[str, Any]) -> tuple[str, str, int]:
    """What tells a row from others."""
    return row["target"], row["sampler"], row["seed"]


def missing(rows: list[dict[str, Any]], target: str, sampler: str, seeds: list[int]) -> list[int]:
    """Seeds that a sampler has no row of; those that failed are not tried again."""
    return [seed for seed in seeds if (target, sampler, seed) not in {key(row) for row in rows}]


def rows_of(sampler: str, target: str, model: Any, seeds: list[int], seconds: float) -> Any:
    """Yield the rows of a sampler on a target, one for each seed."""
    from targets import reference
    from versus_rows import build, failure, measure

    known = reference(target)
    made: Any = None
    for seed in seeds:
        row = {"target": target, "d": len(known.second), "sampler": sampler, "seed": seed, "chains": CHAINS}
        try:
            made = build(sampler, model, known, CHAINS) if made is None else made
            row |= measure(made, known, seed, seconds)
        except Exception as error:  # whatever happens in another package is its row
            row |= failure(error)
        yield row


def main() -> None:
    from targets import TARGETS
    from versus_rows import OURS, PEERS, REMEDIES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help=f"names of targets (default: {' '.join(ORDER)})")
    parser.add_argument(
        "--samplers", nargs="*", default=[*OURS, *PEERS], choices=[*OURS, *PEERS, *REMEDIES], metavar="SAMPLER"
    )
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit of CPU time for one row")
    parser.add_argument("--quick", action="store_true", help="one seed, and the first, short run of each")
    parser.add_argument("--write", action="store_true", help=f"keep the rows in {PATH.parent.name}/{PATH.name}")
    parser.add_argument("--count", action="store_true", help="only compare counts of gradients with evaluations")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.targets) - set(TARGETS))
    if unknown:
        parser.error(f"unknown target {', '.join(unknown)}: take some of {', '.join(TARGETS)}")
    if arguments.quick and arguments.write:
        parser.error("--quick makes short runs, which --write must not keep: leave one of them out")
    # Out of the range of parameters densities overflow, and PyMC and JAX warn of what they do.
    warnings.simplefilter("ignore")
    targets = arguments.targets or ORDER
    if arguments.count:
        from versus_count import counts

        print(counts(targets[0]))
        return
    seeds, seconds = (arguments.seeds[:1], 0.0) if arguments.quick else (arguments.seeds, arguments.seconds)
    facts, rows = about(), read(PATH) if arguments.write else []
    for target in targets:
        model = TARGETS[target].build()
        for sampler in arguments.samplers:
            for row in rows_of(sampler, target, model, missing(rows, target, sampler, seeds), seconds):
                rows.append(row)
                print(json.dumps(row), file=sys.stderr, flush=True)
                if arguments.write:
                    append(PATH, row, facts)
    text = render(rows, facts)
    print(text)
    if arguments.write:
        PATH.with_suffix(".txt").write_text(text)


if __name__ == "__main__":
    main()

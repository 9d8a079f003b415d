"""List the benchmarks, or run one: ``python -m benchmarks``, ``python -m benchmarks NAME [arguments]``.

From the root of the repository.  ``python benchmarks/NAME.py [arguments]`` is the same.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

__all__ = ["ENTRIES", "listing", "main", "scripts", "title"]

HERE = Path(__file__).parent
RESULTS = HERE / "results"


class Entry(NamedTuple):
    """What a script costs, on one core, and what it prints or writes."""

    cost: str
    prints: str


ENTRIES = {
    "calibration": Entry(
        "an hour; minutes a target",
        "true biases at the tuned step and at multiples, how often the verdict trusts, and how many intervals hold",
    ),
    "calibration_by_simulation": Entry(
        "minutes a model and seed; --quick: half a minute",
        "whether ranks of simulated truths are uniform, raw and corrected, and what the verdict said",
    ),
    "diffusion": Entry("minutes; --quick: half a minute", "distances of samples from the data by network calls"),
    "gallery": Entry(
        "a minute a model, and minutes for its reference; what has been run is kept",
        "errors, verdicts, gradients and seconds of models of PyMC's example gallery by both doors, beside NUTS",
    ),
    "diffusion_flow": Entry(
        "a quarter of an hour; --quick: two minutes",
        "flow samplers: the exact law on Gaussians, weights of 25 modes, distances of digits by network calls",
    ),
    "diffusion_flow_cost": Entry("a minute", "time of a step of the flow scheduler for diffusers, against its network"),
    "gradients": Entry(
        "at most a minute for each sampler and target",
        "gradients until second moments are right, raw and corrected, for our samplers, NUTS and MCLMC",
    ),
    "hierarchies": Entry("a minute a model", "writes the references of noncentring by NUTS"),
    "make_references": Entry("a quarter of an hour", "writes references.json by NUTS; --check compares"),
    "many_chains": Entry("minutes a table", "time of many chains at once, and effective samples for each second"),
    "noncentring": Entry("minutes a target", "errors and gradients of hierarchies, as written and by hand"),
    "overhead": Entry("minutes a table", "what a transition, a draw and the first draw cost beyond gradients"),
    "paper_claims": Entry(
        "three minutes; --quick: half a minute",
        "the paper's claims without Monte Carlo: steps to a distance, order in K, Table 1's exponents, Theorem 1",
    ),
    "peers": Entry("at most five minutes for each sampler and target; --quick", "gradients that NUTS and MCLMC need"),
    "posteriors": Entry(
        "a minute a model; --reference: as much again",
        "errors of means and standard deviations of models that people fit, against long NUTS, with the verdict",
    ),
    "probed": Entry(
        "minutes a target", "how often the verdict trusts good and bad settings, alone and with a probe by step halving"
    ),
    "thresholds": Entry(
        "a quarter of an hour for each half of the set; seconds for one field",
        "what halving and doubling each threshold of warm-up and verdict changes: cost, verdicts, errors",
    ),
    "tuning": Entry("minutes a target", "gradients of warm-up, and how far the step varies with the seed"),
    "verdict_cost": Entry("two minutes", "CPU time and memory of verdict and summary with 10,000 deterministics"),
    "versus": Entry(
        "at most a minute for each sampler, target and seed; --quick",
        "gradients, effective samples and seconds of our samplers and of nine peers, with ratios",
    ),
    "wall_clock": Entry(
        "a minute or two a model",
        "seconds and effective samples of pm.sample and pmm.sample against NUTS of PyMC, nutpie and NumPyro",
    ),
}


def scripts() -> dict[str, Path]:
    """Return the files that are run, by name: those with a ``__main__`` guard."""
    guard = "if __name__ == "
    found = (path for path in sorted(HERE.glob("*.py")) if path.name != "__main__.py")
    return {path.stem: path for path in found if any(line.startswith(guard) for line in path.read_text().splitlines())}


def title(path: Path) -> str:
    """Return what the first line of a script's docstring says before it says how the script is run."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.partition("\n")[0].partition(": ``python")[0].replace("``", "").rstrip(".")


def listing() -> str:
    """Return what there is, what it costs and what it prints."""
    lines = ["python -m benchmarks NAME [arguments]; NAME --help says which, and what is measured how.", ""]
    for name, path in scripts().items():
        entry = ENTRIES[name]
        kept = RESULTS / f"{name}.txt"
        lines += [f"{name}: {title(path)}", f"    costs   {entry.cost}", f"    prints  {entry.prints}"]
        lines += [f"    kept in {kept.relative_to(HERE.parent)}"] if kept.exists() else []
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """List the benchmarks or run the one named, and return its exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(listing())
        return 0
    name, *rest = arguments
    known = scripts()
    if name not in known:
        print(f"no benchmark is called {name!r}: take one of {', '.join(known)}", file=sys.stderr)
        return 2
    warnings = [f"-W{option}" for option in sys.warnoptions]
    return subprocess.run([sys.executable, *warnings, str(known[name]), *rest]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

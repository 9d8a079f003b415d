"""List the benchmarks, or run one: ``python -m benchmarks``, ``python -m benchmarks NAME [arguments]``.

From the root of the repository.  A benchmark is a file with a ``__main__`` guard here or in a folder: ``gate`` is
``gate/__main__.py``, ``scoreboard.references`` is ``scoreboard/references.py``.  What several of them
need, and tests too, is in ``common``, which is put into the path.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
COMMON = HERE / "common"
# On one core.
COSTS = {
    "accelerator": "nine minutes a call, which goes on where the last one stopped; --small on a CPU",
    "backends": "a minute a model",
    "claim": "two minutes; --quick: half a minute",
    "cold_start": "minutes, --gradients half an hour; --quick: half a minute",
    "diffusion": "minutes; --quick: half a minute",
    "first_call": "half a minute a model; --beside: two minutes",
    "gate": "half a minute a model, an hour and a half in all; --quick: half a minute",
    "gaussian_blocks": "a minute a model",
    "gpu_program": "a minute a model",
    "hierarchies": "minutes a model",
    "ladder": "seconds a run, half a minute for each target: an hour in all; --seeds",
    "many_chains": "minutes a table",
    "other_modes": "a quarter of an hour",
    "readme": "nothing: it reads results",
    "sbc": "minutes a model, half a minute for each run of a fault",
    "scoreboard": "minutes a model and seed; --quick: two minutes of two cores",
    "scoreboard.check": "five minutes",
    "scoreboard.references": "seconds a model, minutes for two",
    "stan": "ten seconds a program and seed, hours in all with long references; --quick: half a minute",
    "two_widths": "five minutes",
    "warm_start": "a minute a model; --wrong 200: five minutes",
    "wide_priors": "ten seconds a run, 252 runs",
    "wall_clock": "a minute or two a model",
}


def scripts() -> dict[str, Path]:
    """Return the files that are run, by name."""
    guard, found = "if __name__ == ", {}
    for path in sorted({*HERE.glob("**/*.py")} - {Path(__file__), *COMMON.iterdir()}):
        if any(line.startswith(guard) for line in path.read_text().splitlines()):
            found[".".join(path.relative_to(HERE).with_suffix("").parts).removesuffix(".__main__")] = path
    return found


def listing() -> str:
    """Return what there is and what it costs."""
    lines = ["python -m benchmarks NAME [arguments]; NAME --help says what is measured how."]
    for name, path in scripts().items():
        title = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0].partition(": ``python")[0]
        lines += ["", name, f"    {title.rstrip('.')}", *([f"    costs {COSTS[name]}"] if name in COSTS else [])]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """List the benchmarks or run the one named, and return its exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(listing())
        return 0
    name, *rest = arguments
    if name not in scripts():
        print(f"no benchmark is called {name!r}: take one of {', '.join(scripts())}", file=sys.stderr)
        return 2
    path = [str(HERE), str(COMMON), *filter(None, [os.environ.get("PYTHONPATH")])]
    warnings = [f"-W{option}" for option in sys.warnoptions]
    # What compiles is measured: nothing is found that an earlier process compiled, unless that is asked for.
    environment = {"JAX_ENABLE_COMPILATION_CACHE": "0", **os.environ, "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.run([sys.executable, *warnings, "-m", name, *rest], env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

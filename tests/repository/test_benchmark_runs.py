"""The smallest run of the benchmarks that need no other sampler and take seconds, each in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Arguments, and what a line of the output begins with.
SMALLEST = {
    "gate": ((), "  density/ring"),
    "hierarchies": ((), "      1 auto "),
    "versus": (("--models", "poisson_glm", "--samplers", "recycled"), "  recycled    "),
    "wall_clock": (("--samplers", "pmm recycled"), "  pmm recycled "),
}
pytestmark = [pytest.mark.process, pytest.mark.pymc]


@pytest.mark.parametrize("name", SMALLEST)
def test_a_small_run_prints_its_table(name):
    arguments, begin = SMALLEST[name]
    command = [sys.executable, "-m", "benchmarks", name, "--quick", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith(begin)]
    assert rows and not any("failed" in row for row in rows), done.stdout

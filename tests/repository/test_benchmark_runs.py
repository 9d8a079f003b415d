"""Benchmarks run, know the truth of their densities, and turn red where a run is wrong and trusted."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
# Arguments, and what a line of the output begins with: runs that need no other sampler and take seconds.
SMALLEST = {
    "claim": ((), "K = 256"),
    "gate": ((), "  density/ring"),
    "hierarchies": ((), "      1 auto "),
    "wall_clock": (("--samplers", "pmm recycled"), "  pmm recycled "),
}
RIGHT, WRONG = "posteriordb/kidiq-kidscore_momhs", "posteriordb/sblri-blr"
pytestmark = [pytest.mark.process, pytest.mark.pymc, pytest.mark.longest]


def run(*arguments, folder=ROOT):
    path = [ROOT, BENCHMARKS, BENCHMARKS / "common", os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=540)


def test_every_file_finds_what_it_imports():
    files = [path for path in sorted(BENCHMARKS.glob("**/*.py")) if path != BENCHMARKS / "__main__.py"]
    names = [".".join(path.relative_to(BENCHMARKS).with_suffix("").parts) for path in files]
    if importlib.util.find_spec("blackjax") is None:
        names.remove("many_chains")
    done = run("-c", "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)", *names)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", SMALLEST)
def test_a_small_run_prints_its_table(name):
    arguments, begin = SMALLEST[name]
    done = run("-m", "benchmarks", name, "--quick", *arguments)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith(begin)]
    assert rows and not any("failed" in row for row in rows), done.stdout


def test_a_wrong_reference_turns_the_quick_form_red_and_a_right_one_does_not(tmp_path):
    shutil.copytree(BENCHMARKS, tmp_path / "benchmarks")
    path = tmp_path / "benchmarks" / "results" / "posteriordb.json"
    references = json.loads(path.read_text())
    moved = references[WRONG.partition("/")[2]]
    # Half a posterior sd: a run that is right and trusted is then wrong and trusted.
    moved["mean"][1] += 0.5 * moved["sd"][1]
    path.write_text(json.dumps(references))
    scoreboard = ("-m", "benchmarks", "scoreboard", "--quick", "--models", RIGHT)
    done = run(*scoreboard, WRONG, folder=tmp_path)
    assert done.returncode == 1, done.stderr
    said = [line for line in done.stderr.splitlines() if "is wrong and trusted" in line]
    assert len(said) == 1 and said[0].startswith(f"{WRONG} default seed 1 is wrong and trusted: mean of beta[1] -0.")
    assert run(*scoreboard).returncode == 0


def test_raw_densities_have_the_moments_and_the_parameters_that_are_stated():
    code = """
import numpy as np
from gate.densities import DENSITIES
from posteriors import FIELDS, errors, moments_of
from pmm_mcmc.model.result_tree import flat_names

rng = np.random.default_rng(1)
for name, (exactly, drawn) in DENSITIES.items():
    model, truth = exactly()
    names = truth.names or [v.name for v in model.free_RVs]
    assert flat_names([(v, tuple(int(n) for n in model[v].shape.eval())) for v in names]) == truth.labels, name
    assert np.isfinite(model.compile_logp()(model.initial_point(0))) and np.all(truth.sd > 0), name
    if drawn is not None:
        x = drawn(rng, 40_000)
        for values, moment in ((x, truth.mean), (x**2, truth.second)):
            z = (values.mean(axis=0) - moment) / (values.std(axis=0) / len(x) ** 0.5)
            assert np.abs(z).max() < 4.5, (name, z)
        fields = {field: getattr(truth, field) for field in FIELDS}
        runs = [errors(moments_of(run), fields, truth.labels) for run in x.reshape(25, 4, 400, -1)]
        assert sum(run[of]["wrong"] for run in runs for of in ("mean", "sd")) <= 2, name
print(len(DENSITIES))
"""
    done = run("-c", code)
    assert done.returncode == 0 and done.stdout.strip() == "14", done.stderr

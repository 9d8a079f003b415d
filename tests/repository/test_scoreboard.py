"""The scoreboard's quick form is red where a wrong run is trusted, and its models have the parameters of references."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RIGHT, WRONG = "posteriordb/kidiq-kidscore_momhs", "posteriordb/sblri-blr"
pytestmark = [pytest.mark.process, pytest.mark.pymc]


def scoreboard(*arguments, folder=ROOT):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", "scoreboard", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=540,
    )


def run(code):
    path = [ROOT / "benchmarks", ROOT / "tests" / "support", ROOT, os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr
    return done


def test_a_wrong_reference_turns_the_quick_form_red_and_a_right_one_does_not(tmp_path):
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    path = tmp_path / "benchmarks" / "results" / "posteriordb.json"
    references = json.loads(path.read_text())
    moved = references[WRONG.partition("/")[2]]
    # Half a posterior sd: a run that is right and trusted is then wrong and trusted.
    moved["mean"][1] += 0.5 * moved["sd"][1]
    path.write_text(json.dumps(references))
    done = scoreboard("--quick", "--models", RIGHT, WRONG, folder=tmp_path)
    assert done.returncode == 1, done.stderr
    said = [line for line in done.stderr.splitlines() if "is wrong and trusted" in line]
    assert len(said) == 1 and said[0].startswith(f"{WRONG} default seed 1 is wrong and trusted: mean of beta[1] -0.")
    assert scoreboard("--quick", "--models", RIGHT).returncode == 0
    rows = [line for line in done.stdout.splitlines() if line.startswith(f"  {RIGHT.partition('/')[2]}")]
    assert len(rows) == 1 and "1:1/0/0" in rows[0], done.stdout


def test_a_pattern_that_chooses_nothing_is_an_error_that_names_the_families():
    done = scoreboard("--models", "posteriordbs")
    assert done.returncode == 2 and "'posteriordbs'" in done.stderr and "posteriordb, published, odd" in done.stderr


def test_every_posterior_has_the_parameters_of_its_reference():
    code = """
import numpy as np
from scoreboard.entries import ENTRIES, HELD, QUICK
from scoreboard.odd_exact import EXACT
from pmm_mcmc.model.result_tree import flat_names

named = [key for key in ENTRIES if key.startswith("posteriordb/") or key.removeprefix("odd/") in EXACT]
for key in named:
    model, truth = ENTRIES[key].build(), ENTRIES[key].truth()
    shapes = [(name, tuple(int(n) for n in model[name].shape.eval())) for name in truth.names]
    assert flat_names(shapes) == truth.labels, key
    assert len(truth.mean) == len(truth.labels) and np.all(truth.sd > 0) and np.all(np.isfinite(truth.second)), key
assert set(QUICK) <= set(ENTRIES) and len(QUICK) == 10 and HELD <= set(ENTRIES)
print(sum(key.startswith("posteriordb/") for key in named), len(named))
"""
    done = run(code)
    assert done.stdout.split() == ["47", "60"]


def test_the_page_compares_gradients_with_a_peer_and_names_what_is_lost():
    code = """
from scoreboard.page import against

def row(target, sampler, seed, need):
    return {"target": target, "sampler": sampler, "seed": seed, "for_400": need, "state": "trusted"}

rows = [row("odd/hurdle", "default", s, 100.0 * s) for s in (1, 2, 3)] + [row("odd/hurdle", "NUTS", 1, 1000.0)]
rows += [row("odd/walls", "default", 1, 900.0), row("odd/walls", "NUTS", 1, 300.0), row("odd/jump", "NUTS", 1, 1.0)]
rows += [{"target": "odd/lkj", "sampler": "NUTS", "seed": 1, "error": "took longer"}]
print("\\n".join(against(rows, ["posteriordb", "odd"])))
assert against([one for one in rows if one["sampler"] == "default"], ["odd"]) == []
"""
    done = run(code)
    assert done.stdout.splitlines()[:2] == [
        "g400 of default over that of NUTS, medians: odd 1.60 of 2, all 1.60 of 2.  Above 1:",
        "  odd/walls: 3.0 (900, trusted; 300, trusted)",
    ]

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


def test_the_page_holds_gradients_to_second_moments_against_goals_and_peers():
    code = """
from scoreboard.goals import EVERY_STEP, goals_table

def row(target, seed, alone, together):
    found = {"b2_max": alone, "together": together, "independent": 300.0, "warm_up": 400.0}
    return {"target": target, "sampler": EVERY_STEP, "seed": seed, **found}

rows = [row("published/german25", s, 900.0 + 100.0 * s, 500.0 * s) for s in (1, 2)]
rows += [row("published/german_sparse", 1, None, 4000.0), row("acceptance/rosenbrock36", 1, 800.0, 600.0)]
peer = {"target": "acceptance/rosenbrock36", "seed": 1}
rows += [{**peer, "sampler": "MCLMC", "b2_max": 700.0}, {**peer, "sampler": "WALNUTS", "b2_max": None}]
print("\\n".join(goals_table(rows)[1:]))
assert goals_table(rows[-2:]) == []
"""
    lines = [line.split() for line in run(code).stdout.splitlines() if line]
    assert lines == [
        "german25 1000 [1000, 1100] 1000 + 400 750 300 none is known".split(),
        "german_sparse inf [inf, inf] 20000 400 4000 300 none is known".split(),
        "rosenbrock36 800 [800, 800] 700* 400 600 300 700 MCLMC".split(),
    ]


def test_the_average_over_chains_and_independent_draws_need_less_than_one_chain():
    code = """
import numpy as np
from types import SimpleNamespace
from scoreboard.goals import needed
from versus.first_times import gradients_to

rng = np.random.default_rng(1)
draws = np.empty((4, 6000, 3))
draws[:, 0] = rng.normal(size=(4, 3))
for i in range(1, 6000):
    draws[:, i] = 0.9 * draws[:, i - 1] + np.sqrt(1 - 0.9**2) * rng.normal(size=(4, 3))
known = SimpleNamespace(second=np.ones(3), variance_of_square=np.full(3, 2.0))
print(*needed(draws, np.ones(draws.shape[:2]), known, seed=1).values())
"""
    alone, together, independent = map(float, run(code).stdout.split())
    # Squares have an autocorrelation of .81: of (1 + .81) / (1 - .81) = 9.5 draws one is independent.
    assert 4 < alone / independent < 25 and together < 0.7 * alone

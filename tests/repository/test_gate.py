"""The page of the gate counts and divides as it says, halves share no model, and densities have the moments stated."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.process, pytest.mark.pymc]


def run(code):
    path = [ROOT / "benchmarks", ROOT / "tests" / "support", ROOT, os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_divides_by_seed_and_counts_what_is_wrong_and_trusted():
    code = """
from gate.page import page

def row(target, sampler, seed, mean, state="trusted", wrong=False, **rest):
    off = {"of": "x", "off": 0.5 * wrong, "z": 9.0, "wrong": wrong}
    costs = {"of_mean": mean, "of_square": 2.0, "cpu": 1.0, "warm_up": 400.0}
    said = {"state": state, "sentence": "S", "codes": [] if state == "trusted" else ["r_hat"]}
    errors = {"mean": off, "sd": off, "wrong": wrong, "right": not wrong}
    return {"target": target, "sampler": sampler, "seed": seed, **costs, **said, **errors, **rest}

rows = [row("odd/hurdle", "adjusted", 1, 8.0), row("odd/hurdle", "unadjusted", 1, 2.0)]
rows += [row("odd/hurdle", "adjusted", 2, 2.0), row("odd/hurdle", "unadjusted", 2, 2.0)]
rows += [row("odd/hurdle", "adjusted", 3, 2.0, "undecided")]  # has no other to be divided by
rows += [row("odd/walls", "adjusted", 1, 1.0), row("odd/walls", "unadjusted", 1, 2.0)]
rows += [row("density/ring", "adjusted", 1, 1.0, wrong=True), row("density/ring", "unadjusted", 1, 2.0)]
rows += [{"target": "density/spike", "sampler": "adjusted", "seed": 1, "error": "took longer"}]
print(page(rows, "facts"))
"""
    lines = [line.split() for line in run(code).splitlines()]
    assert ["odd", "2", "0.88", "1.25", "1.62", "2.00"] in [line[:6] for line in lines]
    totals = {line[0]: line for line in lines if line[:2] in (["odd", "2"], ["density", "2"], ["scoreboard", "2"])}
    assert totals["scoreboard"][10:14] == ["0", "0", "0", "0"] and totals["density"][10:14] == ["1", "0", "1", "0"]
    assert totals["scoreboard"][14:18] == ["1", "of", "4", "25.0"]
    assert "odd/hurdle 2.00 1.00 A 2/1/0 r_hat; U 2/0/0".split() in lines
    assert "density/ring* 0.50 1.00 A 1/0/0 1 wrong TRUSTED; U 1/0/0".split() in lines
    assert "density/spike adjusted seed 1: took longer".split() in lines


def test_halves_are_of_every_family_and_keep_the_odd_models_that_are_held_out():
    code = """
from gate.entries import ENTRIES, FAMILIES, HELD, NARROW
from scoreboard.entries import HELD as ODD_HELD
assert HELD < set(ENTRIES) and set(NARROW) <= set(ENTRIES)
assert {key for key in HELD if key.startswith("odd/")} == ODD_HELD
for family in FAMILIES:
    of = [key in HELD for key in ENTRIES if key.startswith(family)]
    assert 0 <= len(of) - 2 * sum(of) <= 1, family
"""
    run(code)


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
    assert run(code).strip() == "14"

"""The comparison with other samplers: its tables, its file of rows, counts of gradients, on fakes of the samplers.

No peer is needed.  One test is statistical: independent normal draws have as many effective samples as there are, up to
what chance changes with a false-alarm rate below 1e-6.
"""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import versus
import versus_rows
import wall_clock
from counted import Counter
from first_times import Run, gradients_to
from jax_peers import CHUNK, JaxPeer
from versus_table import figure, ratios, table

FACTS = {"versions": {"pymc": "6"}, "python": "3", "machine": "m", "date": "d"}
STANDARD = SimpleNamespace(second=np.ones(3), variance_of_square=np.full(3, 2.0), variance_of_x=np.ones(3))


def row(target="t", sampler="PoissonULMC", seed=1, first=100.0, **more):
    crossing = {"first": first, "settled": first, "low": 1.0, "high": None, "final": 0.1}
    return {
        **{"target": target, "sampler": sampler, "seed": seed, "d": 3, "warm_up": 50.0, "corrected": None},
        **{"b2_max": crossing, "b2_avg": {**crossing, "first": 20.0}, "spent": 1000.0},
        **{"ess_per_1000": 10.0, "ess_square_per_1000": 5.0, "ess_per_second": 2.0, "ess_square_per_second": 1.0},
        **{"failing": 2, "note": "step 1", "load": 1.0, **more},
    }


class Fake:
    """Independent normal draws that cost three gradients each."""

    name, first = "fake", 200

    def __init__(self, broken=False):
        self.broken = broken
        self.lengths = []

    def begin(self, seed):
        self.rng, self.draws = np.random.default_rng(seed), np.empty((8, 0, 3))
        self.warm_up_seconds, self.seconds, self.failing = 1.0, 2.0, 0

    def lengthen(self, draws):
        self.lengths.append(draws)
        self.draws = np.concatenate([self.draws, self.rng.normal(size=(8, draws, 3))], axis=1)
        if self.broken:
            self.draws[0, 0] = np.nan

    def run(self):
        shape = self.draws.shape[:2]
        return Run("fake", self.draws, np.full(shape, 3), np.full(8, 70), note="none")


class Walk(JaxPeer):
    """A random walk that says it took two gradients."""

    name = "walk"

    def warm(self, key, x):
        return x, 7

    def step(self, state, key):
        state = state + self.jax.random.normal(key, state.shape)
        return state, (state, 2, 0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0], "3"),
        ([30.0, 10.0, 20.0], "20 [10, 30]"),
        ([30.0, None, 20.0], "30 [20, >1000]"),
        ([None, None, 20.0], ">1000 [20, >1000]"),
        ([10.0, None], "10 [10, >1000]"),
    ],
)
def test_a_figure_is_a_median_with_its_range(values, expected):
    assert figure(values, [1000.0] * len(values)) == expected


def test_the_table_has_every_row_failures_too():
    rows = [row(seed=seed, first=100.0 * seed) for seed in (2, 1, 3)]
    rows += [row(sampler="NUTS", first=None), {**row(sampler="NUTS", seed=2), "error": "ValueError: no"}]
    text = table(rows, ["PoissonULMC"], "PoissonULMC")
    line = next(line for line in text.splitlines() if line.startswith("  PoissonULMC"))
    assert "t (d=3), seeds 1, 2, 3" in text
    # Warm-up, b2_max, its total with the warm-up, and the failing transitions of all seeds.
    assert line.split()[1:5] == ["50", "200", "[100,", "300]"]
    assert "250 [150, 350]" in line and "     6  step 1" in line
    apart = table([*rows, row(sampler="tried", first=1.0)], ["PoissonULMC"], "PoissonULMC", apart=["tried"])
    assert "  tried " in apart and "(tried)" not in apart and apart.count("against") == text.count("against") > 0
    assert ">1000" in text and "NUTS                  seed 2 failed: ValueError: no" in text


def test_ratios_are_in_our_favour_above_one_and_a_failure_counts_as_the_worst():
    ours, peer = [row(first=100.0)], [row(sampler="P", first=250.0, ess_square_per_1000=20.0)]
    told = [row(sampler="ALIGN", first=0.0, ess_square_per_1000=1.0)]
    lines = ratios({"PoissonULMC": ours, "P": peer, "ALIGN": told}, ["PoissonULMC"], "PoissonULMC")
    found = [(line[2:28].strip(), line.count("tunes itself"), float(line.split("; default ")[1])) for line in lines]
    assert found[:4] == [
        *(("gradients in all", 0, 0.33), ("gradients in all", 1, 2.0)),
        *(("gradients after warm-up", 0, 0.0), ("gradients after warm-up", 1, 2.5)),
    ]
    assert [value for *_, value in found[4:]] == [0.25, 0.25, 1.0, 1.0]
    failed = [{"error": "x", "seed": 1}]
    (line, *_) = ratios({"PoissonULMC": ours, "P": failed}, ["PoissonULMC"], "PoissonULMC")
    assert line.endswith("against best peer (P): inf; default inf")
    (line, *_) = ratios({"PoissonULMC": [row(first=None)], "P": failed}, ["PoissonULMC"], "PoissonULMC")
    assert line.endswith("default neither got there")


def test_chains_are_compared_up_to_where_the_first_of_them_ends():
    draws = np.full((2, 4, 3), 2.0)
    draws[:, 3] = 0.0  # the mean of the squares, 4, falls to 3 with the last draw
    known = SimpleNamespace(second=np.full(3, 3.0), variance_of_square=np.ones(3))
    crossing = gradients_to(draws, np.array([[1] * 4, [10] * 4]), known, "b2_max")
    assert (crossing.first, crossing.spent, crossing.low, crossing.high) == (math.inf, 4.0, 4.0, 40.0)
    assert gradients_to(draws, np.full((2, 4), 5), known, "b2_max").first == 20.0


def test_rows_are_kept_and_not_made_twice(tmp_path):
    path = tmp_path / "rows.json"
    assert versus.read(path) == []
    assert versus.missing([], "t", "PoissonULMC", [1, 2]) == [1, 2]
    for seed in (1, 2, 1):
        versus.append(path, row(seed=seed, first=10.0 * seed), FACTS)
    rows = versus.read(path)
    assert [r["seed"] for r in rows] == [2, 1]
    assert versus.missing(rows, "t", "PoissonULMC", [1, 2, 3]) == [3]
    assert versus.missing(rows, "t", "MALA", [1, 2]) == [1, 2] == versus.missing(rows, "u", "PoissonULMC", [1, 2])
    assert json.loads(path.read_text())["versions"] == {"pymc": "6"}
    assert (
        "15 [10, 20]" in path.with_suffix(".txt").read_text() or "10 [10, 20]" in path.with_suffix(".txt").read_text()
    )
    assert not list(tmp_path.glob("*.new"))


def test_a_row_that_cannot_be_stored_leaves_the_file_whole(tmp_path):
    path = tmp_path / "rows.json"
    versus.append(path, row(), FACTS)
    before = path.read_text()
    with pytest.raises(ValueError, match="JSON"):
        versus.append(path, row(seed=2, ess_per_1000=math.nan), FACTS)
    assert path.read_text() == before


def test_a_row_of_a_sampler_that_is_known():
    fake = Fake()
    found = versus_rows.measure(fake, STANDARD, 1, seconds=60.0)
    assert fake.lengths == [200, 600] and found["draws"] == 800 and found["spent"] == 2400.0
    crossing = gradients_to(fake.draws, np.full((8, 800), 3), STANDARD, "b2_max")
    assert found["b2_max"]["first"] == crossing.first and found["warm_up"] == 70.0
    # 6400 independent draws of three gradients each: 333 in a thousand, with a standard error of a few per cent.
    assert 270 < found["ess_per_1000"] < 400 and 200 < found["ess_square_per_1000"] < 450
    assert found["ess_per_second"] == pytest.approx(found["ess_per_1000"] * 19.2 / 2.0)
    json.dumps(found, allow_nan=False)


def test_without_seconds_a_run_is_not_lengthened():
    fake = Fake()
    assert versus_rows.measure(fake, STANDARD, 1, seconds=0.0)["draws"] == 200
    assert fake.lengths == [200]


def test_failures_are_rows_and_the_next_seed_is_tried(monkeypatch):
    monkeypatch.setattr("targets.reference", lambda name: STANDARD)
    monkeypatch.setattr(versus_rows, "build", lambda *_: Fake(broken=True))
    rows = list(versus.rows_of("NUTS", "t", None, [1, 2], 60.0))
    assert [r["seed"] for r in rows] == [1, 2]
    assert all(r["error"].startswith("ValueError: draws: some are not finite") for r in rows)


def test_effective_samples_of_long_runs_and_many_coordinates_are_thinned(monkeypatch):
    seen = []
    monkeypatch.setattr(versus_rows.az, "ess", lambda x, **_: seen.append(x.shape) or np.array([2.0]))
    assert versus_rows.effective(np.zeros((2, 16_001, 120))) == (2.0, 2.0)
    assert seen == [(2, 5334, 50)] * 2


@pytest.mark.parametrize("batch", [False, True])
def test_evaluations_are_counted_where_they_are_made(batch):
    import jax

    jax.config.update("jax_enable_x64", True)
    counter = Counter(lambda x: -0.5 * (x**2).sum())
    both = jax.value_and_grad(counter)

    def walk(x):
        def one(x, _):
            value, gradient = both(x)
            return x + 0.1 * gradient, value

        return jax.lax.scan(one, x, None, length=6)

    x, values = jax.jit(jax.vmap(walk))(np.ones((3, 2))) if batch else jax.jit(walk)(np.ones(2))
    np.testing.assert_allclose(x, 0.9**6)
    assert values.shape == ((3, 6) if batch else (6,))
    assert (counter.gradients, counter.values) == (18 if batch else 6, 0)
    float(counter(np.ones(2)))
    assert (counter.gradients, counter.values) == (18 if batch else 6, 1)


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_sampler_of_jax_goes_on_where_it_was_and_starts_anew_from_a_seed(lockstep, monkeypatch):
    monkeypatch.setattr(Walk, "lockstep", lockstep)
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    walk = Walk(model, chains=3, scale=np.array([1.0, 10.0]))
    walk.begin(1)
    walk.lengthen(CHUNK)
    walk.lengthen(1)
    first = walk.run()
    assert first.draws.shape == (3, 2 * CHUNK, 2) and walk.failing == 0
    assert (first.gradients_per_draw == 2).all() and (first.warmup_gradients == 7).all()
    steps = np.diff(first.draws, axis=1)
    # The scale is that of the second coordinate, and no step is made twice: neither by chains nor by chunks.
    assert 8.0 < steps[..., 1].std() / steps[..., 0].std() < 12.0
    assert len(np.unique(steps[..., 0].round(9))) == steps[..., 0].size
    walk.begin(1)
    walk.lengthen(CHUNK)
    np.testing.assert_array_equal(walk.run().draws, first.draws[:, :CHUNK])
    walk.begin(2)
    walk.lengthen(CHUNK)
    # Other starts, and other steps from there.
    assert not np.any(np.isclose(np.diff(walk.run().draws, axis=1), steps[:, : CHUNK - 1]))


def test_seconds_are_compared_with_nuts_of_pymc():
    nuts = {"target": "m", "sampler": "PyMC NUTS", "seed": 1, "everything": 10.0, "sampling": 5.0}
    nuts |= {"ess": 1000.0, "ess_square": 500.0, "load": 1.0, "verdict": ""}
    other = {**nuts, "sampler": "PoissonULMC", "everything": 4.0, "sampling": 1.0, "ess": 400.0, "verdict": "trusted"}
    text = wall_clock.table([nuts, other, {**nuts, "sampler": "nutpie", "error": "ImportError: none"}], FACTS)
    line = next(line for line in text.splitlines() if line.startswith("  PoissonULMC"))
    assert line.split() == ["PoissonULMC", "4.0", "1.0", "400", "500", "400.0", "100.0", "4.00", "2.00", "trusted"]
    assert "nutpie        failed: ImportError: none" in text

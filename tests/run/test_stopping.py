"""Runs with ``draws="auto"``: the draws of a run by number, an end where the verdict asks for no more, and a bound."""

import logging
import re

import numpy as np
import pytest
from sampling_runs import QUIET, Stop, assert_same, numbers, run
from store_runs import files

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.verdict import asks_for_more
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.run import phases, recorders, stopping
from pmm_mcmc.run.stopping import VerdictRule, first_look, limit_after

pytest_plugins = ["sampling_fixtures"]


def drawn(tree):
    return tree["posterior"].sizes["draw"]


@pytest.mark.parametrize("chains, every", [(1, 500), (2, 200), (3, 200), (4, 100), (8, 50), (20, 20), (5000, 20)])
def test_the_first_look_has_draws_enough_for_the_limit(chains, every):
    assert first_look(chains) == every


@pytest.mark.parametrize(
    "every, done, ends",
    [
        (100, 0, [100, 200, 300, 400, 600, 900, 1000]),
        (100, 999, [100, 200, 300, 400, 600, 900, 1000]),
        (100, 1000, [100, 200, 300, 400, 600, 900, 1000, 1500, 2000]),
        (500, 0, [500, 1000]),
        (30, 1020, [30, 60, 90, 120, 180, 270, 390, 570, 840, 1020, 1530, 2040]),
    ],
)
def test_ends_depend_on_the_first_one_alone(every, done, ends):
    found = VerdictRule(every, done, dict, Processes(slice(0, 1)))
    assert found.ends == ends and found.limit == ends[-1] == limit_after(done, every)
    assert [found.next_end(n) for n in (0, *ends[:-1])] == ends


KINDS = {
    "draws": {},
    "adjusted": {"adjusted": True, "step": pmm.PoissonULMC()},
    "recycled": {"step": pmm.PoissonULMC(), "chains": 8},
    "no gradients": {"step": pmm.PoissonULMC(K=16, keep_gradients=False), "var_names": ["mu"]},
}


@pytest.mark.parametrize("backend, kind", [*(("numba", kind) for kind in KINDS), ("jax", "recycled")])
def test_it_is_the_run_of_as_many_draws(schools, backend, kind):
    options = {"draws": "auto", "compute_convergence_checks": True, **KINDS[kind]}
    auto = run(schools, backend, **options)
    n = drawn(auto)
    assert n < 1000, "the rule had nothing to do"
    same = run(schools, backend, **options | {"draws": n})
    assert_same(auto, same)
    one, two = (tree["posterior"].attrs for tree in (auto, same))
    assert one["findings"] == two["findings"]
    assert ("jump" in one["findings"]) == (kind != "no gradients")
    assert pmm.verdict(auto) == pmm.verdict(same)


@pytest.mark.parametrize("chains", [2, 4, 32])
def test_it_ends_where_the_verdict_first_asks_for_no_more(well, chains):
    auto = run(well, draws="auto", chains=chains, step=pmm.PoissonULMC())
    n, ends = drawn(auto), VerdictRule(first_look(chains), 0, dict, Processes(slice(0, 1))).ends
    asked = [asks_for_more(auto.isel(draw=slice(0, end))) is not None for end in ends if end <= n]
    assert asked == [True] * (len(asked) - 1) + [False]
    assert not any(reason.remedy == "draw more" for reason in pmm.verdict(auto).reasons)


SLOW = {"step": pmm.PoissonULMC(K=16, step_size=0.02, steps_per_draw=1), "chains": 4}


@pytest.mark.parametrize("stored", [False, True])
def test_at_the_bound_it_ends_says_why_and_goes_on(well, stored, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(stopping, "DRAWS", 100)
    options = SLOW | {"store": tmp_path / "a" if stored else None}
    with caplog.at_level(logging.DEBUG, "pmm_mcmc"):
        first = run(well, draws="auto", **options)
    (said,) = (record for record in caplog.records if "draws='auto'" in record.getMessage())
    missing = asks_for_more(first)
    assert drawn(first) == 100 and missing.parameter.startswith("x") and said.levelno == logging.WARNING
    assert said.getMessage() == (
        f"draws='auto' ended at its bound, 100 draws of each chain, where {missing}; it goes on with "
        + ("store= and resume=True" if stored else "pmm.extend(dt, model=model)")
    )
    if stored:
        second = run(well, draws="auto", resume=True, **options)
    else:
        second = pmm.extend(first, "auto", model=well, **QUIET)
    assert drawn(second) == 200
    assert_same(second, run(well, draws=200, **SLOW))


def test_stopped_anywhere_it_resumes_to_the_same_end_and_bytes(schools, tmp_path, monkeypatch):
    monkeypatch.setattr(recorders, "_MOST_ROWS", 50)
    options = {"draws": "auto", "chains": 4, "discard_tuned_samples": False}
    whole = run(schools, store=tmp_path / "whole", **options)
    assert 100 < drawn(whole) < 1000
    run(schools, store=tmp_path / "parts", callback=Stop(1), **options)
    for _ in range(30):
        tree = run(schools, store=tmp_path / "parts", resume=True, callback=Stop(1), **options)
        if drawn(tree) == drawn(whole):
            break
    run(schools, store=tmp_path / "parts", resume=True, **options)
    assert files(tmp_path / "whole") == files(tmp_path / "parts")


def test_in_memory_it_goes_on_to_the_same_end(schools, monkeypatch):
    monkeypatch.setattr(recorders, "_MOST_ROWS", 50)
    whole = run(schools, draws="auto", chains=4)
    part = run(schools, draws="auto", chains=4, callback=Stop(8))
    assert 0 < drawn(part) < drawn(whole)
    for dt in (part, whole):
        assert_same(pmm.extend(dt, "auto", model=schools, **QUIET), whole)


def test_a_store_that_began_with_a_number_is_looked_at_in_its_own_chunks(well, tmp_path, monkeypatch):
    monkeypatch.setattr(recorders, "_MOST_ROWS", 30)
    run(well, draws=30, store=tmp_path / "a", **SLOW)
    monkeypatch.setattr(stopping, "DRAWS", 200)
    longer = run(well, draws="auto", store=tmp_path / "a", resume=True, **SLOW)
    assert drawn(longer) == 240, "looks are at whole chunks of 30: after 120 and 240"
    assert_same(longer, run(well, draws=240, **SLOW))


def test_an_error_in_a_look_loses_no_draws(well, monkeypatch, caplog):
    monkeypatch.setattr(stopping, "DRAWS", 200)
    monkeypatch.setattr(stopping, "asks_for_more", lambda dt: 1 / 0)
    assert drawn(run(well, draws="auto", chains=4)) == 200
    assert "could not be judged" in caplog.text


def test_all_processes_end_where_the_first_one_says():
    class Second(Processes):
        primary = False
        said = 1

        def first(self, number):
            return self.said

    never = VerdictRule(100, 0, lambda: pytest.fail("only the first process looks"), Second(slice(0, 2), 1, 2))
    assert never(100) and not never(150)
    Second.said = 0
    assert not never(200) and never(1000)


@pytest.mark.parametrize("options, words", [({"draws": 40}, ""), ({"draws": "auto"}, "up to ")])
def test_the_cost_is_announced_with_the_first_draws(well, caplog, options, words):
    step = pmm.PoissonULMC(steps_per_draw=3)
    heard = []

    def seen(chunk):
        heard.append([record.getMessage() for record in caplog.records if "for warm-up, " in record.getMessage()])
        if not chunk.tuning:
            raise pmm.StopSampling

    with caplog.at_level(logging.DEBUG, "pmm_mcmc"):
        dt = run(well, step=step, chains=4, callback=seen, **options)
    (line,) = heard[-1]
    assert not any(heard[:-1]), "not before the end of the warm-up"
    stats = dt["sample_stats"]
    each = float(stats["n_grad"].mean())
    tuning = float((stats["n_grad_total"] - stats["n_grad"]).isel(draw=0).mean())
    most = 1000 if options["draws"] == "auto" else 40
    cost = rf"Gradients a chain: {tuning:.0f} for warm-up, then {words}(\d+) for {most} draws \(.+ (s|min)\)"
    found = re.fullmatch(cost, line)
    assert float(found[1]) == pytest.approx(most * each, rel=0.05) and len(line) <= 80


def test_the_time_that_is_announced_is_that_of_draws(well, caplog, monkeypatch):
    """By the pace of the warm-up it was wrong by nine times."""

    class Clock:
        """Adds a second between two looks while chains draw, an hour before."""

        def __init__(self):
            self.now = 0.0
            self.tick = 3600.0

        def perf_counter(self):
            self.now += self.tick
            return self.now

    clock = Clock()
    monkeypatch.setattr(phases, "time", clock)
    draw = phases.Drawing.advance

    def drawing(self, run, stopped):
        clock.tick = 1.0
        return draw(self, run, stopped)

    monkeypatch.setattr(phases.Drawing, "advance", drawing)
    with caplog.at_level(logging.DEBUG, "pmm_mcmc"):
        run(well, draws=40, chains=2)
    (line,) = (record.getMessage() for record in caplog.records if "for warm-up, " in record.getMessage())
    assert line.endswith("(40 s)")


def test_by_number_nothing_else_is_said_and_a_quiet_run_says_nothing(well, capfd):
    run(well, draws=40)
    assert capfd.readouterr() == ("", "")
    dt = pmm.sample(model=well, chains=2, random_seed=1, **QUIET)
    assert drawn(dt) == stopping.DRAWS == 1000 and np.isfinite(numbers(dt)["posterior/x"]).all()

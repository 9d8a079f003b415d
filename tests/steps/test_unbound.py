"""Steps made outside a model: they take the variables of the model in whose context they are asked for them."""

import pickle

import numpy as np
import pymc as pm
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.steps import pymc_step

pytestmark = pytest.mark.pymc
QUIET = {"progressbar": False, "compute_convergence_checks": False, "cores": 1, "random_seed": 1}
SHORT = {"draws": 20, "tune": 40, "chains": 2}


def normal(name, **options):
    with pm.Model() as model:
        pm.Normal(name, **options)
    return model


def counts():
    with pm.Model() as model:
        k = pm.Poisson("k", 3.0)
        pm.Normal("x", k, 1.0)
    return model


def wrapper(model, **kwargs):
    """As Bambi and others do it: all that they do not know goes to ``pm.sample``."""
    with model:
        return pm.sample(**SHORT, **QUIET, **kwargs)


def test_a_step_from_outside_is_that_made_inside():
    model = normal("x", shape=2)
    with model:
        inside = pm.sample(step=pmm.PoissonULMC(), **SHORT, **QUIET)
    for step in (pmm.PoissonULMC(), [pmm.PoissonULMC()]):
        np.testing.assert_array_equal(wrapper(model, step=step)["posterior"]["x"], inside["posterior"]["x"])


def test_it_takes_the_model_of_the_call_before_that_of_the_context():
    other, model = normal("z"), normal("x")
    step = pmm.PoissonULMC()
    first = pm.sample(model=model, step=step, **SHORT, **QUIET)
    with other:
        second = pm.sample(model=model, step=step, **SHORT, **QUIET)
    for dt in (first, second, pm.sample(model=model, step=pmm.PoissonULMC(model=model), **SHORT, **QUIET)):
        assert list(dt["posterior"].data_vars) == ["x"]


def test_it_binds_anew_to_each_model_and_keeps_what_it_was_given():
    step = pmm.PoissonULMC(target_bias=0.1, keep_gradients=True)
    first = wrapper(normal("x"), step=step)
    mixed = wrapper(counts(), step=step)
    last = wrapper(normal("z", shape=3), step=step)
    assert step.model is not None and [var.name for var in step.vars] == ["z"]
    assert "gradient" in first["sample_stats"] and "gradient" in last["sample_stats"]
    assert set(mixed["posterior"].data_vars) == {"k", "x"}, "beside the sampler that PyMC gives a count"
    assert first["posterior"]["x"].shape == (2, 20) and last["posterior"]["z"].shape == (2, 20, 3)
    dt = pmm.sample(step=step, model=normal("w"), **SHORT, progressbar=False, compute_convergence_checks=False)
    assert "w" in dt["posterior"], "for pmm.sample it is still of no model"


def test_the_frame_of_pm_sample_has_what_a_step_reads_there(monkeypatch):
    seen, read_options = {}, pymc_step.options_of_call
    monkeypatch.setattr(pymc_step, "options_of_call", lambda: seen.update(options := read_options()) or options)
    wrapper(normal("x"), step=pmm.GHMC())
    read = {"tune", "draws", "chains", "model", "quiet", "progressbar", "initial_points", "provided_steps"}
    assert read <= set(seen), (
        f"PyMC has moved {sorted(read - set(seen))} out of pm.sample: see pmm_mcmc/steps/pymc_step.py"
    )


def test_where_pymc_has_moved_the_frame_a_step_takes_the_defaults(monkeypatch):
    model = normal("x", shape=2)
    calls = [{"step": pmm.GHMC}, {"step": lambda: pmm.ULMC(step_size=0.1), "tune": 0}]
    found = []
    for options in ({}, {"options_of_call": dict}):
        for name, value in options.items():
            monkeypatch.setattr(pymc_step, name, value)
        with model:
            found += [pm.sample(**SHORT | QUIET | given | {"step": given["step"]()}) for given in calls]
    for with_it, without in zip(found[:2], found[2:], strict=True):
        np.testing.assert_array_equal(with_it["posterior"]["x"], without["posterior"]["x"])


def test_a_model_that_has_grown_is_seen():
    step, model = pmm.PoissonULMC(), normal("x")
    wrapper(model, step=step)
    with model:
        pm.Normal("more")
    assert set(wrapper(model, step=step)["posterior"].data_vars) == {"x", "more"}


def test_nobody_knows_its_variables_without_a_model():
    step = pmm.PoissonULMC()
    with pytest.raises(ValueError, match=r"created outside a model.*with model"):
        _ = step.vars
    with pytest.raises(ValueError, match="created outside a model"):
        _ = step.stats_dtypes
    with normal("x"):
        assert [var.name for var in pickle.loads(pickle.dumps(step)).vars] == ["x"]
    assert step.model is None


def test_one_variable_is_not_moved_by_two_steps_nor_a_step_taken_to_another_model():
    with pm.Model() as model:
        x, y = pm.Normal("x"), pm.Normal("y")
        for other in (pm.Slice([x]), pmm.MALA([x, y])):
            with pytest.raises(ValueError, match=f"x is moved by two steps, GHMC and {type(other).__name__}; give it"):
                pm.sample(step=[pmm.GHMC([x]), other], **SHORT, **QUIET)
        step = pmm.GHMC()
    assert step.model is model
    with pytest.raises(ValueError, match="GHMC was made for another model: make it within the one to sample"):
        wrapper(normal("x"), step=step)


def test_a_warm_up_that_no_chain_can_forget_its_start_in_is_named(caplog):
    wrapper(normal("x"), step=pmm.GHMC(steps_per_draw=5))
    assert "tune=40 is too short: chains forget where they start after 50 transitions; leave tune out" in caplog.text
    caplog.clear()
    wrapper(normal("x"), step=pmm.GHMC(steps_per_draw=4))
    assert "too short" not in caplog.text


def test_wrong_arguments_are_named_when_it_binds():
    with pytest.raises(ValueError, match="scaling has length 2: must have 3"):
        wrapper(normal("x", shape=3), step=pmm.PoissonULMC(scaling=[1.0, 2.0]))
    with pytest.raises(ValueError, match=r"vars=.*needs a model"):
        pmm.PoissonULMC(["x"])


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        (
            pmm.PoissonULMC,
            {"stepsize": 0.1},
            "stepsize=0.1 is no argument of pmm.PoissonULMC; did you mean step_size\\?",
        ),
        (pmm.PoissonULMC, {"K": 16, "gird": "left"}, "gird='left' .*; did you mean grid\\?"),
        (
            pmm.OLMC,
            {"gamma": 1.0},
            "gamma=1.0 is no argument of pmm.OLMC, which takes vars, step_size, steps_per_",
        ),
        (pmm.GHMC, {"K": 16}, "K=16 is no argument of pmm.GHMC, which takes vars, step_size, friction"),
    ],
)
def test_a_wrong_name_is_said_with_the_right_one(method, options, words):
    with pytest.raises(TypeError, match=words):
        method(**options)
    with normal("x"), pytest.raises(TypeError, match=words):
        method(**options)


# -- the scheme that nobody asked for ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "scheme"),
    [
        ({}, "recycled"),
        ({"step_size": 0.1, "friction": 2.0, "target_bias": 0.01}, "recycled"),
        ({"scheme": "paper"}, "paper"),
        ({"K": 16}, "paper"),
        ({"option": 1}, "paper"),
        ({"grid": "centred"}, "paper"),
        ({"midpoint": "importance"}, "paper"),
    ],
)
def test_the_scheme_is_the_papers_where_something_of_it_is_given(options, scheme):
    assert pmm.PoissonULMC(**options).arguments.scheme == scheme
    with normal("x"):
        assert pmm.PoissonULMC(**options).arguments.scheme == scheme


@pytest.mark.parametrize(
    ("options", "grid"),
    [
        ({"K": 16}, "centred"),
        ({"K": 16, "grid": "auto"}, "centred"),
        ({"K": 16, "grid": "left"}, "left"),
        ({"K": 1}, "left"),
        ({"scheme": "paper"}, "left"),
        ({"scheme": "paper", "grid": "centred"}, "centred"),
        ({}, "left"),
    ],
)
def test_the_grid_is_centred_where_K_is_given(options, grid):
    for method in (pmm.PoissonULMC, pmm.PoissonOLMC)[: 1 if "scheme" in options else 2]:
        assert method(**options).arguments.grid == grid


def test_chosen_or_asked_for_the_scheme_is_the_same():
    model = normal("x", shape=2)
    automatic, asked = pmm.PoissonULMC(), pmm.PoissonULMC(scheme="recycled")
    assert repr(automatic.arguments) == repr(asked.arguments), "also what stores know a method by"
    np.testing.assert_array_equal(
        wrapper(model, step=automatic)["posterior"]["x"], wrapper(model, step=asked)["posterior"]["x"]
    )


def test_beside_other_steps_it_is_the_papers():
    model = counts()
    with model:
        assert pmm.PoissonULMC().arguments.scheme == "paper"
    step = pmm.PoissonULMC()
    wrapper(model, step=step)
    assert "scheme='paper'" in step.settings
    wrapper(normal("x"), step=step)
    assert "scheme='recycled'" in step.settings, "alone again"

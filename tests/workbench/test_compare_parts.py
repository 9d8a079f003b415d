"""What of ``compare`` needs no run: refusals, names, references, the error curve, the verdict in words."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pymc as pm
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.workbench import targets
from pmm_mcmc.workbench.comparison import compare
from pmm_mcmc.workbench.comparison.findings import verdict_in_words
from pmm_mcmc.workbench.comparison.measures import COLUMNS, error_curve, gradients_to_limit, row
from pmm_mcmc.workbench.comparison.reference import Truth, truth_of_draws, truth_of_target
from pmm_mcmc.workbench.comparison.runs import Ran, Seconds, Trace, name_of
from pmm_mcmc.workbench.targets import Modes


def one_trace(position, n_grad, warmup):
    return Trace("it", position, n_grad, warmup, Seconds(0, 1, 1), 0, 1, Ran(True, "Fine."), "")


def test_error_curve_is_its_definition():
    rng = np.random.default_rng(8)
    position, n_grad = rng.normal(size=(3, 6, 2)), rng.integers(1, 9, size=(3, 6))
    trace = one_trace(position, n_grad, np.array([10, 20, 60]))
    second, variance = np.array([1.2, 0.7]), np.array([2.0, 0.5])
    nothing = np.zeros(2)
    truth = Truth(nothing, nothing, second, variance, nothing, nothing, True, "", None)
    spent, error = error_curve(trace, truth)
    for n in range(1, 7):
        own = [max((np.mean(x[:n] ** 2, axis=0) - second) ** 2 / variance) for x in position]
        assert error[n - 1] == pytest.approx(np.median(own))
        assert spent[n - 1] == pytest.approx(30 + n_grad[:, :n].sum() / 3)
    assert gradients_to_limit(np.array([5.0, 9.0]), np.array([0.02, 0.005])) == 9.0
    assert gradients_to_limit(np.array([5.0]), np.array([0.02])) == math.inf


@pytest.mark.statistical
def test_standard_errors_of_independent_draws_are_the_textbook_ones():
    # Rate 1e-5: standard errors of 16 pieces vary by 18 % of themselves.
    position = np.random.default_rng(11).normal(3.0, 2.0, size=(4, 1000, 1))
    nothing, one = np.zeros(1), np.ones(1)
    truth = Truth(3 * one, 2 * one, 13 * one, one, nothing, nothing, True, "", None)
    found = row(one_trace(position, np.ones((4, 1000), int), np.zeros(4)), truth, ["it"], None, 1)
    assert 0.4 < found["mean_error_se"] * np.sqrt(4000) < 2.0
    assert 0.4 < found["sd_error_se"] * np.sqrt(8000) < 2.0
    assert found["mean_error"] == pytest.approx(abs(position.mean() - 3) / 2)
    assert found["sd_error"] == pytest.approx(abs(np.sqrt(np.mean((position - 3) ** 2)) / 2 - 1))
    assert found["mean_error_noise"] > 1.9 * found["mean_error_se"] and found["mean_error_at"] == "it"
    vague = dataclasses.replace(truth, error=one, error_of_sd=3 * one)
    less = row(one_trace(position, np.ones((4, 1000), int), np.zeros(4)), vague, ["it"], None, 1)
    assert less["mean_error_se"] == pytest.approx(0.5, rel=0.01)
    assert less["sd_error_se"] == pytest.approx(1.5, rel=0.01)


def test_occupancy_is_of_the_mode_that_is_off_most():
    names, weights = ("a", "b", "c"), (0.6, 0.1, 0.3)
    known = Modes(names, np.array(weights), lambda x: x[..., 0].astype(int))
    position = np.random.default_rng(12).permutation(np.repeat([0.0, 1.0, 2.0], [1080, 720, 200]))
    nothing, one = np.zeros(1), np.ones(1)
    truth = Truth(nothing, one, one, one, nothing, nothing, True, "", None)
    trace = one_trace(position.reshape(2, 1000, 1), np.ones((2, 1000), int), np.zeros(2))
    found = row(trace, truth, ["it"], known, 1)
    assert found["occupancy_at"] == "b"
    assert found["occupancy_error"] == pytest.approx(0.26)
    assert found["occupancy"].startswith("a 0.54 ± 0.0") and found["occupancy"].endswith("(true 0.30)")
    assert 0.004 < found["occupancy_se"] < 0.03


def test_names_say_what_is_not_a_default():
    assert name_of(pmm.PoissonULMC(K=16, grid="centred")) == "PoissonULMC(K=16, grid='centred')"
    assert name_of(pmm.RLMC(dynamics="overdamped")) == "RLMC(dynamics='overdamped')"
    assert name_of(pmm.GHMC()) == "GHMC"


def test_reference_draws_must_be_enough_finite_and_varied():
    good = np.random.default_rng(10).normal(size=(2, 60, 1))
    assert truth_of_draws(good, "").sd == pytest.approx(good.std())
    for bad, match in ((good[:, :20], "too few"), (np.where(good > 2, np.nan, good), "finite"), (0 * good, "the same")):
        with pytest.raises(ValueError, match=match):
            truth_of_draws(bad, "")


def test_targets_know_the_errors_of_their_standard_deviations():
    rng = np.random.default_rng(1)
    exact, long = (truth_of_target(targets.get(name), rng) for name in ("banana", "galaxies"))
    assert np.all(exact.error == 0) and np.all(exact.error_of_sd == 0)
    known = targets.get("galaxies").reference
    # Of a coordinate of mean 0, where the error of the second moment is all there is.
    assert long.error_of_sd[0] == pytest.approx(known.second_moment_error[0] / (2 * known.sd[0]), rel=1e-9)
    assert np.all(long.error_of_sd > 0) and np.all(long.error_of_sd < 0.01 * long.sd)
    other = dataclasses.replace(known, second_moment_error=None)
    assert np.all(np.isnan(other.error_of_sd))
    mine = truth_of_target(dataclasses.replace(targets.get("galaxies"), find_reference=lambda: other), rng)
    assert np.all(mine.error_of_sd == 0)
    np.testing.assert_array_equal(mine.error, known.error)


def table_of(**rows):
    plain = {
        "trusted": True, "ess_bulk_per_1000": 10.0, "b2_max": 0.001, "grads_to_b2": 1000.0, "mean_error": 0.01,
        "mean_error_se": 0.01, "mean_error_noise": 0.03, "mean_error_at": "mu", "sd_error": 0.01, "sd_error_se": 0.01,
        "sd_error_noise": 0.03, "sd_error_at": "mu",
    }  # fmt: skip
    assert set(plain) <= set(COLUMNS)
    return pd.DataFrame.from_dict({name: {**plain, **row} for name, row in rows.items()}, orient="index")


class Fine:
    warning = None


def test_verdict_says_who_is_best_who_is_wrong_and_who_knows():
    table = table_of(
        A={"grads_to_b2": 500.0},
        B={"mean_error": 0.4, "grads_to_b2": 100.0},
        C={"sd_error": 0.3, "trusted": False},
        D={"mean_error": 0.4, "mean_error_noise": 0.5, "ess_bulk_per_1000": 20.0, "trusted": False},
    )
    sentences = verdict_in_words(table, Fine, {})
    assert sentences[0].startswith(
        "Among the samplers that do not differ from the reference beyond noise, A has an error b2"
    )
    assert (
        "after 500 gradients a chain (next: D, after 1,000). Most effective draws for 1,000 gradients: D 20."
        in sentences[0]
    )
    assert sentences[1] == "B is off: the mean of mu by 0.40 ± 0.01 posterior sd; the run does not notice."
    assert sentences[2] == "C is off: the sd of mu by 0.30 ± 0.01 posterior sd; the run says so itself."
    assert sentences[3] == "D does not differ from the reference beyond noise but asks for a longer or better run."


def test_verdict_says_whose_warm_up_took_the_budget():
    spent = {"grads_warmup": 600, "grads_sampling": 400}
    table = table_of(A=spent, B={"grads_warmup": 400, "grads_sampling": 600})
    said = verdict_in_words(table, Fine, {})
    assert said[1:] == ["A spent 60 % of its gradients on warm-up: a larger n_grad shows what it does after it."]


def test_names_with_commas_are_quoted_in_sentences():
    table = table_of(**{"A, long": {}, "B(K=2, grid='left')": {"mean_error": 0.4}})
    best, wrong, failed = verdict_in_words(table, Fine, {"C, d": "No."})
    assert "noise, \N{LEFT DOUBLE QUOTATION MARK}A, long\N{RIGHT DOUBLE QUOTATION MARK} has an error" in best
    assert wrong.startswith("B(K=2, grid='left') is off")
    assert failed.startswith("\N{LEFT DOUBLE QUOTATION MARK}C, d\N{RIGHT DOUBLE QUOTATION MARK} failed")


def test_verdict_without_a_winner():
    assert verdict_in_words(table_of(A={"mean_error": 0.4}), Fine, {})[0].startswith("Every sampler differs")
    sentence = verdict_in_words(table_of(A={"grads_to_b2": math.inf, "b2_max": 0.2}), Fine, {"B": "It broke"})
    assert sentence == ["none has an error b2 below 0.01 within the budget; A is nearest (0.2).", "B failed: It broke."]


TARGET = targets.get("mixture_4sd")


@pytest.mark.parametrize(
    "options, error, match",
    [
        ({"n_grad": 0.5}, ValueError, "n_grad=0.5"),
        ({"n_grad": 700}, ValueError, "n_grad=700: is for all 8 chains; give at least 800"),
        ({"chains": 1}, ValueError, "chains=1: must be an integer of at least 2"),
        ({"random_seed": -1}, ValueError, "random_seed=-1: must be"),
        ({"random_seed": 1.5}, ValueError, "or a Generator or SeedSequence"),
        ({"samplers": []}, ValueError, "samplers: is empty"),
        ({"samplers": "nuts"}, TypeError, "must be a list"),
        ({"samplers": ["NUTS"]}, ValueError, "'NUTS' is unknown; the ones with a name are default, nuts, nutpie"),
        ({"samplers": [pmm.ULMC]}, TypeError, "with brackets"),
        ({"samplers": [pmm.ULMC(), pmm.ULMC()]}, ValueError, "ULMC is there twice"),
        ({"samplers": [pmm.ULMC(keep_gradients=False)]}, ValueError, "keep_gradients=False"),
        ({"reference": "NUTS"}, ValueError, "reference='NUTS'"),
        ({"model_or_target": 3}, TypeError, "model_or_target=3: must be a PyMC model"),
    ],
)
def test_wrong_arguments_are_named_before_anything_runs(options, error, match):
    arguments = {"model_or_target": TARGET, "samplers": [pmm.ULMC()], **options}
    with pytest.raises(error, match=match):
        compare(arguments.pop("model_or_target"), arguments.pop("samplers"), **arguments)


def test_models_and_steps_that_do_not_fit_are_refused():
    with pm.Model() as discrete:
        pm.Poisson("n", 3.0)
    with pytest.raises(ValueError, match="n: discrete variables"):
        compare(discrete, [pmm.ULMC()])
    with TARGET.model():
        step = pmm.ULMC()
    with pytest.raises(ValueError, match="ULMC was made for another model"):
        compare(TARGET, [step])

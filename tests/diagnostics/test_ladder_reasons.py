"""What a verdict says of a ladder: how many restarts weights rest on, and what was measured."""

from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr

from pmm_mcmc.diagnostics.checks import evidence, ladder_description, restarts
from pmm_mcmc.diagnostics.reading import Run
from pmm_mcmc.diagnostics.statement import verdict_of


def ladder(count, weights, reached, gap=0.1):
    data = {
        "forward_minus_backward": gap, "forward_minus_backward_se": 0.05,
        "restarts": count, "log_evidence": -3.217, "log_evidence_se": 0.042,
        "mode_weight": ("mode", np.array(weights)), "mode_weight_se": ("mode", np.array(weights) / 20),
        "mode_restarts": ("mode", np.array(reached)),
    }  # fmt: skip
    return SimpleNamespace(ladder=xr.Dataset(data))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (ladder(99, [1.0], [99]), "99 chains came from the reference to the posterior, limit 100"),
        (ladder(100, [1.0], [100]), None),
        (
            ladder(200, [0.95, 0.05], [191, 9]),
            "the mode of weight 0.05 was reached from the reference 9 times, limit 10",
        ),
        (ladder(200, [0.95, 0.05, np.nan], [190, 10, 0]), None),
    ],
)
def test_weights_rest_on_restarts(run, words):
    reason = restarts(run)
    assert (reason is None) == (words is None)
    if reason is not None:
        assert reason.words.startswith(words) and reason.code == "ladder"
        assert verdict_of([reason], "").state == "undecided"


def test_levels_that_contradict_each_other_leave_the_evidence_undecided():
    assert evidence(ladder(200, [1.0], [200], -0.14)) is None
    reason = evidence(ladder(200, [1.0], [200], -0.2))
    assert reason.code == "ladder" and (reason.value, reason.limit) == (pytest.approx(4.0), 3.0)
    assert reason.words.startswith("log evidence forward and backward differ by 0.2 (error 0.05), limit 3 errors")
    assert verdict_of([reason], "").state == "undecided"


def test_rounding_of_a_reference_that_is_the_posterior_is_no_contradiction():
    run = ladder(200, [1.0], [200], 7e-15)
    for error in (2e-15, 0.0):
        run.ladder["forward_minus_backward_se"] = error
        assert evidence(run) is None


def test_the_sentence_says_what_was_measured():
    two = ladder_description(ladder(200, [0.7, 0.3, np.nan], [140, 60, 0]).ladder, True)
    assert two == (
        " Ladder: log evidence -3.22 (error 0.04), 200 restarts, 2 modes of weights 0.7 (error 0.03), 0.3 (error 0.01)."
    )
    one = ladder(200, [1.0], [200]).ladder
    assert ladder_description(one, True).endswith("200 restarts, one mode: a run without a ladder would do.")
    assert ladder_description(one, False).endswith("200 restarts, one mode.")
    one["log_evidence_se"] = 0.0037
    assert " log evidence -3.217 (error 0.004), " in ladder_description(one, True)
    assert ladder_description(None, True) == ""


def test_draws_of_a_ladder_are_adjusted():
    posterior = xr.Dataset({"x": (("chain", "draw"), np.zeros((2, 3)))})
    assert Run(posterior, {}, ladder=ladder(1, [1.0], [1]).ladder).adjusted
    assert not Run(posterior, {}).adjusted

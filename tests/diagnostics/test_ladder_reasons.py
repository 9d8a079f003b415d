"""What a verdict says of a ladder: how many restarts weights rest on, and what was found."""

import numpy as np
import pytest
import xarray as xr

from pmm_mcmc.diagnostics.exact import is_exact
from pmm_mcmc.diagnostics.ladder import ladder_reasons, with_ladder
from pmm_mcmc.diagnostics.statement import concluded


def tree(restarts, weights, reached, gap=0.1):
    data = {
        "forward_minus_backward": gap, "forward_minus_backward_se": 0.05,
        "restarts": restarts, "log_evidence": -3.217, "log_evidence_se": 0.042,
        "mode_weight": ("mode", np.array(weights)), "mode_weight_se": ("mode", np.array(weights) / 20),
        "mode_restarts": ("mode", np.array(reached)),
    }  # fmt: skip
    return xr.DataTree.from_dict({"ladder": xr.Dataset(data)})


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (tree(99, [1.0], [99]), "99 chains came from the reference to the posterior, limit 100"),
        (tree(100, [1.0], [100]), None),
        (tree(200, [0.95, 0.05], [191, 9]), "the mode of weight 0.05 was reached from the reference 9 times, limit 10"),
        (tree(200, [0.95, 0.05, np.nan], [190, 10, 0]), None),
        (tree(200, [1.0], [200], -0.14), None),
        (xr.DataTree.from_dict({"posterior": xr.Dataset()}), None),
    ],
)
def test_weights_rest_on_restarts(found, words):
    reasons = ladder_reasons(found)
    assert len(reasons) == (words is not None)
    if words is not None:
        assert reasons[0].words.startswith(words) and reasons[0].code == "restarts"
        assert concluded(reasons, "").state == "undecided"


def test_rungs_that_contradict_each_other_leave_the_evidence_undecided():
    (reason,) = ladder_reasons(tree(200, [1.0], [200], -0.2))
    assert reason.code == "evidence" and (reason.value, reason.limit) == (pytest.approx(4.0), 3.0)
    assert reason.words.startswith("log evidence forward and backward differ by 0.2 (error 0.05), limit 3 errors")
    assert concluded([reason], "").state == "undecided"
    both = ladder_reasons(tree(20, [1.0], [20], 1.0))
    assert [reason.code for reason in both] == ["restarts", "evidence"]


def test_rounding_of_a_reference_that_is_the_posterior_is_no_contradiction():
    found = tree(200, [1.0], [200], 7e-15)
    for error in (2e-15, 0.0):
        found["ladder"]["forward_minus_backward_se"] = error
        assert ladder_reasons(found) == []


def test_the_sentence_says_what_was_found():
    before = concluded([], "All is well.")
    two = with_ladder(tree(200, [0.7, 0.3, np.nan], [140, 60, 0]), before).sentence
    assert two.startswith(before.sentence)
    assert two.endswith(
        " Ladder: log evidence -3.22 (error 0.04), 200 restarts, 2 modes of weights 0.7 (error 0.03), 0.3 (error 0.01)."
    )
    assert with_ladder(tree(200, [1.0], [200]), before).sentence.endswith(
        "200 restarts, one mode: a run without a ladder would do."
    )
    small = tree(200, [1.0], [200])
    small["ladder"]["log_evidence_se"] = 0.0037
    assert " log evidence -3.217 (error 0.004), " in with_ladder(small, before).sentence
    assert with_ladder(xr.DataTree(), before) is before


def test_draws_of_a_ladder_have_no_bias_to_be_measured():
    assert is_exact(tree(1, [1.0], [1])) and not is_exact(xr.DataTree())

"""What a verdict says of modes that the search found (``pmm_mcmc.diagnostics.checks``)."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from results import gaussian, grid

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.checks import evidence, ladder_description, modes, restarts
from pmm_mcmc.diagnostics.reading import Run, read
from pmm_mcmc.diagnostics.statement import verdict_of


def result(mass, at=10.0, coordinate=1, undecided="", **others):
    """A good run, with what a search has found."""
    position = None if coordinate < 0 else [0.0, 0.0, 0.0]
    found = {"mass": mass, "position": position, "coordinate": coordinate, "offset": at, "undecided": undecided}
    dt = gaussian(grid(3))
    dt["posterior"].attrs["findings"] = json.dumps({"modes": found | others})
    return dt


def test_another_mode_with_mass_is_not_trusted():
    found = pmm.verdict(result(0.3))
    assert found.state == "not trusted" and [reason.code for reason in found.reasons] == ["modes"]
    assert found.sentence == (
        "Not trusted: chains do not move to another mode, 10 sd above theirs in b[0], that has about 30 % of the mass, "
        "limit 1 %. Reparametrise so that there is one mode, or use "
        "pmm.temper(), which moves between modes."
    )
    assert found.reasons[0].value == pytest.approx(0.3)
    assert "12 sd below theirs in a" in pmm.verdict(result(0.3, -12.0, 0)).sentence


@pytest.mark.parametrize(("mass", "state"), [(0.011, "not trusted"), (0.009, "trusted"), (0.002, "trusted")])
def test_the_limit_is_a_hundredth(mass, state):
    found = pmm.verdict(result(mass))
    assert found.state == state
    assert f"has about {100 * mass:.2g} % of the mass" in found.sentence, "less is said, too"


@pytest.mark.parametrize("mass", [0.0, np.nan])
def test_nothing_is_said_of_nothing(mass):
    assert pmm.verdict(result(mass)).sentence == pmm.verdict(gaussian(grid(3))).sentence


def test_no_answer_is_undecided():
    found = pmm.verdict(result(np.nan, coordinate=-1, undecided="no ascent ended within its gradients"))
    assert found.state == "undecided" and [reason.code for reason in found.reasons] == ["search"]
    assert found.sentence == (
        "Undecided: other modes were looked for without an answer: no ascent ended within its gradients. "
        "Use pmm.temper(), which moves between modes."
    )
    both = pmm.verdict(result(0.3, undecided="the mass of another mode is not known"))
    assert [reason.code for reason in both.reasons] == ["modes"], "what was found is said"


def test_mass_without_a_maximum_has_no_place():
    assert "about 30 % of the mass is where there is no draw, around the chains" in str(
        modes(read(result(0.3, coordinate=-1)))
    )


def test_without_positions_the_name_of_the_coordinate_is_said():
    run = read(result(0.3, name="s_log__"))
    run.position = None
    assert str(modes(run)).startswith("chains do not move to another mode, 10 sd above theirs in s_log__, that has")


# -- ladders -----------------------------------------------------------------------------------------------------------


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

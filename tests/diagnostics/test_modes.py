"""What a verdict says of modes that the search found (``pmm_mcmc.diagnostics.checks``)."""

import json

import numpy as np
import pytest
from results import gaussian, grid

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.checks import modes
from pmm_mcmc.diagnostics.reading import read


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

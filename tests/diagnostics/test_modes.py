"""What a verdict says of modes that scouts found (``pmm_mcmc.diagnostics.modes``)."""

import numpy as np
import pytest
from results import gaussian, grid

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.modes import mode_reasons


def result(mass, at=10.0, coordinate=1, x=None, chain=2, visited=0):
    """A good run, one of whose chains has heard of another mode."""
    x = grid(3) if x is None else x
    of_chain = np.where(np.arange(4) == chain, mass, 0.0)
    where, place = np.where(of_chain > 0.0, coordinate, -1), np.where(of_chain > 0.0, at, np.nan)
    stats = {"other_modes": of_chain, "other_mode_coordinate": where, "other_mode_position": place}
    stats["other_mode_visited"] = np.where(of_chain > 0.0, visited, 0)
    return gaussian(x, **{name: np.repeat(values[:, None], x.shape[1], axis=1) for name, values in stats.items()})


def test_another_mode_with_mass_is_not_trusted():
    found = pmm.verdict(result(0.3))
    assert found.state == "not trusted" and [reason.code for reason in found.reasons] == ["modes"]
    assert found.sentence == (
        "Not trusted: chains do not move to another mode, 10 sd above theirs in b[0], that has about 30 % of the mass, "
        "limit 1 %. Reparametrise so that there is one mode, or use "
        "pmm.sample(ladder='auto'), which moves between modes."
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


@pytest.mark.parametrize(("mass", "mirrored"), [(0.5, True), (0.52, True), (2 / 3, True), (0.3, False), (0.6, False)])
def test_modes_of_equal_mass_may_be_relabellings(mass, mirrored):
    assert ("order these" in pmm.verdict(result(mass)).sentence) == mirrored


def test_modes_that_chains_have_visited_are_judged_by_their_agreement():
    x, often = grid(3), np.random.default_rng(1).random((4, 600)) < 0.05
    x[..., 1] += 10.0 * often
    assert mode_reasons(result(0.05, x=x)["sample_stats"], x) == ([], "")
    often_enough, _ = mode_reasons(result(0.9, x=x)["sample_stats"], x)
    assert often_enough, "a twentieth of the draws is there, where nine tenths should be"
    x = grid(3)
    x[:, ::2, 1] += 20.0
    assert mode_reasons(result(0.5, 20.0, x=x)["sample_stats"], x) == ([], "")
    near, _ = mode_reasons(result(0.05, 3.0)["sample_stats"], grid(3))
    assert near, "within 3 sd draws do not tell"


def test_modes_of_unequal_width_that_chains_visit_leave_a_run_undecided():
    dt = result(0.3, visited=1)
    found = pmm.verdict(dt)
    assert found.state == "undecided" and [reason.code for reason in found.reasons] == ["weights"]
    assert found.sentence.startswith("Undecided: chains move between modes of unequal width, apart in b[0]: a step ")
    assert found.sentence.endswith(" and no gradient shows it. Use pmm.sample(exact=True), whose steps have no bias.")
    stats = dt["sample_stats"]
    assert mode_reasons(stats, exact=True) == ([], "")
    assert "unequal width: a step" in str(mode_reasons(stats)[0][0]), "as moments have it"
    # A mode that no chain visits is said first, whichever chain knows of it.
    stats["other_modes"][0], stats["other_mode_coordinate"][0], stats["other_mode_position"][0] = 0.1, 0, 9.0
    assert [reason.code for reason in mode_reasons(stats)[0]] == ["modes"]


def test_without_positions_the_place_is_not_said():
    reasons, note = mode_reasons(result(0.3)["sample_stats"])
    assert (
        str(reasons[0]).startswith("chains do not move to another mode that has about 30 % of the mass") and note == ""
    )
    totals = result(0.3)["sample_stats"].to_dataset().isel(draw=-1)
    assert mode_reasons(totals)[0] == reasons

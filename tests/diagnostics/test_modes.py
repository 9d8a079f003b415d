"""What a verdict says of modes that the search found (``pmm_mcmc.diagnostics.checks``)."""

import numpy as np
import pytest
from results import gaussian, grid

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.checks import modes, unvisited_mode
from pmm_mcmc.diagnostics.reading import read


def result(mass, at=10.0, coordinate=1, x=None, chain=2):
    """A good run, one of whose chains has heard of another mode."""
    x = grid(3) if x is None else x
    of_chain = np.where(np.arange(4) == chain, mass, 0.0)
    where, place = np.where(of_chain > 0.0, coordinate, -1), np.where(of_chain > 0.0, at, np.nan)
    stats = {"other_modes": of_chain, "other_mode_coordinate": where, "other_mode_position": place}
    return gaussian(x, **{name: np.repeat(values[:, None], x.shape[1], axis=1) for name, values in stats.items()})


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


@pytest.mark.parametrize(("mass", "mirrored"), [(0.5, True), (0.52, True), (2 / 3, True), (0.3, False), (0.6, False)])
def test_modes_of_equal_mass_may_be_relabellings(mass, mirrored):
    assert ("order these" in pmm.verdict(result(mass)).sentence) == mirrored


def test_modes_that_chains_have_visited_are_judged_by_their_agreement():
    x, often = grid(3), np.random.default_rng(1).random((4, 600)) < 0.05
    x[..., 1] += 10.0 * often
    run = read(result(0.05, x=x))
    assert modes(run) is None and unvisited_mode(run) == ""
    assert modes(read(result(0.9, x=x))), "a twentieth of the draws is there, where nine tenths should be"
    x = grid(3)
    x[:, ::2, 1] += 20.0
    run = read(result(0.5, 20.0, x=x))
    assert modes(run) is None and unvisited_mode(run) == ""
    assert modes(read(result(0.05, 3.0))), "within 3 sd draws do not tell"


def test_without_positions_the_place_is_not_said():
    run = read(result(0.3))
    run.position = None
    assert str(modes(run)).startswith("chains do not move to another mode that has about 30 % of the mass")

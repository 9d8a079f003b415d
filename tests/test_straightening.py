"""The warm-up that looks for funnels, fed with exact, independent draws: seeds fixed, nothing is left to chance.

What is learnt from how many draws is tested in ``test_noncentring_learn.py``; here, what is done with it, and when.
"""

import copy

import numpy as np
import pytest
from test_noncentring_learn import funnel, rosenbrock

from pmm_mcmc.methods import Settings
from pmm_mcmc.noncentring.funnel_map import FunnelMap
from pmm_mcmc.storage.codec import decode, encode
from pmm_mcmc.tuning.setting import Block, Tuned, fixed_setting
from pmm_mcmc.tuning.straightening import Straightening

CHAINS = 8
NEAL = FunnelMap(
    np.arange(1, 6), np.arange(6), np.zeros(5, int), np.full(5, 0.5), np.zeros(5), np.zeros(5), np.zeros(5),
    np.zeros(5), np.full(5, np.inf), np.zeros(5),
).checked(6)  # fmt: skip


def gaussian(rng, n):
    x = rng.normal(size=(n, 6))
    return x, -x


def neal(rng, n):
    return funnel(rng, 5, n)


def block(draw, rng, rows):
    """Return a block of exact draws; its log density is that of the funnel, or of anything else up to a constant."""
    x, g = draw(rng, CHAINS * rows)
    d = x.shape[1]
    y = x[:, :1]
    lp = -(y**2) / 18 - 0.5 * (d - 1) * y - 0.5 * (x[:, 1:] ** 2 * np.exp(-y)).sum(axis=1, keepdims=True)
    if draw is not neal:
        lp = -0.5 * (x**2).sum(axis=1, keepdims=True)
    x, g = (part.reshape(CHAINS, rows, d) for part in (x, g))
    nothing = np.zeros((CHAINS, rows), np.int64)
    return Block(x, g, lp.reshape(CHAINS, rows), nothing, nothing, nothing, np.ones((CHAINS, rows)))


def begin(draw, rng, length=1000, **arguments):
    settings = Settings.checked("PoissonULMC", dynamics="underdamped", **arguments)
    return Straightening.start(settings, length, *draw(rng, CHAINS))


def warm(found, draw, rng, until=None):
    """Run to the end, or until something holds; return the transitions at which the map changed."""
    changes = []
    while not found.finished and not found.ready and not (until and until(found)):
        before = found.funnels
        found.observe(block(draw, rng, found.boundary - found.done))
        found.update()
        if found.funnels is not before:
            changes.append(found.done)
    return changes


def test_a_funnel_is_found_and_the_schedule_begins_anew_in_its_coordinates():
    rng = np.random.default_rng(1)
    found = begin(neal, rng)
    changes = warm(found, neal, rng)
    assert 151 <= changes[0] <= 219
    assert len(changes) == 1, "a map that leaves nothing to gain stays, and nothing begins anew"
    assert found.ready and found.frozen > changes[-1] and found.done < found.length
    funnels = found.tuned.coordinates.funnels
    assert sorted(funnels.sink) == list(range(1, 6)) and set(funnels.source) == {0}
    # Straightened, the posterior is a Gaussian: it is whitened to sampling error.
    x, _ = neal(rng, 4000)
    y = found.tuned.coordinates.whiten(x)
    np.testing.assert_allclose(y.std(axis=0), 1.0, atol=0.15)
    assert found.words.startswith("x[1..5] scale with x[0]: straightened")
    assert found.learnt.after < 0.05 and np.isnan(found.tuned.funnel_left)
    found.stop()
    assert 0.0 < found.update().funnel_left < 0.05, "what is left is judged by the last draws"
    assert found.rounds >= 2, "what the first map lets the chains see is looked at too"


def test_what_needs_nothing_is_searched_once_and_left_alone():
    rng = np.random.default_rng(2)
    found = begin(gaussian, rng)
    plain = copy.deepcopy(found.warmup)
    assert warm(found, gaussian, rng) == []
    assert found.rounds == 1 and not found.searching and found.words == "" and found._positions == []
    assert found.tuned.coordinates.funnels is None
    # The schedule has seen nothing of it.
    rng = np.random.default_rng(2)
    gaussian(rng, CHAINS)
    while not plain.ready:
        plain.observe(block(gaussian, rng, plain.boundary - plain.done))
        plain.update()
    assert plain.done == found.done
    for name in ("step_size", "K", "friction", "steps_per_draw"):
        assert getattr(plain.tuned, name) == getattr(found.tuned, name)


def test_what_an_affine_scale_does_not_fit_is_searched_again_and_not_for_ever():
    rng = np.random.default_rng(3)
    found = begin(lambda rng, n: tuple(part[:n] for part in rosenbrock(rng)), rng)
    warm(found, lambda rng, n: tuple(np.tile(part, (n // len(part) + 1, 1))[:n] for part in rosenbrock(rng)), rng)
    # Chains may not have seen yet what a map could be learnt from.
    assert found.rounds == 4 and found.funnels is None and np.isnan(found.tuned.funnel_left)


def test_what_is_not_far_from_a_gaussian_is_searched_twice():
    def heavy(rng, n):
        x = np.log(np.abs(rng.standard_cauchy(size=(n, 6))))  # divergence 2 (sqrt(pi^2 / 8) - 1) = 0.22
        return x, -np.tanh(x)

    rng = np.random.default_rng(3)
    # Nothing is frozen early: a frozen setting ends the search too.
    found = Straightening.start(
        Settings.checked("PoissonULMC", dynamics="underdamped"), 1900, *heavy(rng, CHAINS), least=1900
    )
    warm(found, heavy, rng, until=lambda found: found.done > 1200)
    assert found.frozen is None and not found.searching and found.rounds == 2
    assert found.funnels is None and 0.1 < found.learnt.before < 0.3


@pytest.mark.parametrize(
    "arguments", [{"reparametrise": False}, {"scaling": np.ones(6)}, {"reparametrise": NEAL}], ids=lambda a: str([*a])
)
def test_nothing_is_learnt_where_the_user_has_said_what_to_do(arguments):
    rng = np.random.default_rng(4)
    found = begin(neal, rng, **arguments)
    assert not found.searching
    assert warm(found, neal, rng, until=lambda found: found.done > 400) == []
    given = arguments.get("reparametrise")
    assert found.rounds == 0 and found.learnt is None
    if given is None or given is False:
        assert found.funnels is None and found._positions == []
    else:
        assert found.funnels is not None and np.isnan(found.tuned.funnel_left)


@pytest.mark.parametrize("slope, trusted", [(0.5, True), (0.1, False)])
def test_a_map_that_was_given_is_judged_too(slope, trusted):
    rng = np.random.default_rng(14)
    found = begin(neal, rng, reparametrise=NEAL._replace(slope=np.full(5, slope)))
    warm(found, neal, rng, until=lambda found: found.done > 400)
    found.stop()
    left = found.update().funnel_left
    assert left < 0.1 if trusted else left > 3.0
    assert found._positions == []


def test_nothing_is_learnt_among_other_step_methods():
    settings = Settings.checked("PoissonULMC", dynamics="underdamped")
    found = Straightening.start(settings, 1000, *neal(np.random.default_rng(5), CHAINS), alone=False)
    assert not found.searching


def test_a_map_that_new_draws_do_not_bear_out_is_taken_back():
    rng = np.random.default_rng(6)
    found = begin(neal, rng)
    warm(found, neal, rng, until=lambda found: found.funnels is not None)
    mapped = found.done
    # As if the neck had been an artefact of the way down.
    warm(found, gaussian, rng, until=lambda found: found.funnels is None)
    assert found.done > mapped and found.funnels is None
    assert found.tuned.coordinates.funnels is None


def test_there_must_be_time_to_use_a_map():
    rng = np.random.default_rng(7)
    found = begin(neal, rng, length=180)
    assert warm(found, neal, rng) == []
    assert found.finished


def test_transitions_gradients_and_the_end_are_counted_over_all_schedules():
    rng = np.random.default_rng(8)
    found, asked = begin(neal, rng), []

    def gradient_at(x):
        asked.extend(np.atleast_2d(x))
        return -np.ones_like(x)

    done = 0
    while not found.finished:
        rows = found.boundary - found.done
        assert rows > 0 and found.done == done
        found.observe(block(neal, rng, rows))
        done += rows
        found.update(gradient_at)
    assert found.length == found.done == done
    assert found.n_grad == len(asked) > 0
    assert found.frozen is None or found.frozen <= done


def test_the_schedule_sees_the_log_density_of_its_own_coordinates():
    rng = np.random.default_rng(9)
    found = begin(neal, rng, reparametrise=NEAL)
    given = block(neal, rng, found.boundary)
    found.observe(given)
    seen = found.warmup._blocks[-1]
    z = NEAL.to_z(given.position)
    np.testing.assert_allclose(seen.position, z, rtol=0.0, atol=1e-12)
    np.testing.assert_allclose(seen.gradient, -z / np.array([9.0, 1, 1, 1, 1, 1]), rtol=0.0, atol=1e-9)
    # A Gaussian's, up to a constant.
    expected = -0.5 * (z**2 / np.array([9.0, 1, 1, 1, 1, 1])).sum(axis=2)
    np.testing.assert_allclose(seen.lp, expected, rtol=0.0, atol=1e-9)
    np.testing.assert_allclose(found.log_det(given.position), NEAL.log_det(z), rtol=0.0, atol=1e-12)


def test_a_fixed_setting_is_in_the_coordinates_of_a_given_map():
    settings = Settings.checked("PoissonULMC", dynamics="underdamped", step_size=0.5, reparametrise=NEAL)
    start = np.array([1.0, 2.0, -1.0, 0.5, 0.0, 3.0])
    coordinates = fixed_setting(settings, start).coordinates
    assert coordinates.funnels is not None
    np.testing.assert_allclose(coordinates.place(np.zeros(6)), start, rtol=0.0, atol=1e-12)


def test_a_stored_warm_up_goes_on_as_if_it_had_never_been_interrupted():
    from pmm_mcmc.sinks import _TYPES

    rng = np.random.default_rng(10)
    found = begin(neal, rng)
    for _ in range(5):
        found.observe(block(neal, rng, found.boundary - found.done))
        found.update()
    other = decode(encode(found), _TYPES)
    twin = copy.deepcopy(rng)
    assert warm(found, neal, rng) == warm(other, neal, twin) != []
    assert encode(found) == encode(other)
    assert isinstance(other.tuned, Tuned)


def test_maps_as_text_and_back():
    ceiling, anchor_load = np.array([np.inf, 0.5, np.inf, -1.0, 2.0]), np.array([0.0, 0.1, 0.0, 0.7, -2.0])
    mixed = NEAL._replace(ceiling=ceiling, anchor_load=anchor_load)
    again = FunnelMap.from_json(mixed.to_json())
    for name, part, other in zip(FunnelMap._fields, mixed, again, strict=True):
        np.testing.assert_array_equal(part, other, err_msg=name)
    assert "Infinity" not in mixed.to_json()


@pytest.mark.parametrize("wrong", [True, None, "never", 1, {"sink": []}])
def test_other_values_are_refused(wrong):
    with pytest.raises(ValueError, match=r"^reparametrise=.*: must be 'auto', False, or a map"):
        Settings.checked("PoissonULMC", dynamics="underdamped", reparametrise=wrong)


def test_settings_with_different_maps_are_different():
    one, other = (
        Settings.checked("PoissonULMC", dynamics="underdamped", reparametrise=m)
        for m in (NEAL, NEAL._replace(slope=NEAL.slope + 1e-3))
    )
    assert repr(one) != repr(other) and one != other
    again = Settings.checked("PoissonULMC", dynamics="underdamped", reparametrise=NEAL)
    assert repr(one) == repr(again) and one == again and hash(one) == hash(again)


def test_a_warm_up_that_is_stopped_before_any_draw_ends():
    found = begin(neal, np.random.default_rng(15))
    found.stop()
    assert np.isnan(found.update().funnel_left) and found.finished and not found.searching

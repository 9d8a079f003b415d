"""The schedule of the warm-up, on blocks made by hand: when it freezes, what it checks, what moves the step.

Blocks are independent draws at fixed seeds; what is asserted is exact or has a margin of many standard errors.
"""

import numpy as np
import pytest
from covering import pairs

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.langevin.methods import METHODS
from pmm_mcmc.warmup.block import Block
from pmm_mcmc.warmup.step_size import safe_step
from pmm_mcmc.warmup.thresholds import THRESHOLDS
from pmm_mcmc.warmup.warm_up import Warmup

pytestmark = pytest.mark.quick

PAPER = MethodArguments.checked("PoissonULMC", dynamics="underdamped")
RECYCLED = MethodArguments.checked("PoissonULMC", dynamics="underdamped", scheme="recycled")
OVERDAMPED = MethodArguments.checked("PoissonOLMC", dynamics="overdamped")
ADJUSTED = MethodArguments.checked("GHMC", dynamics="underdamped")
D = 3


def underdamped(**arguments):
    return MethodArguments.checked("PoissonULMC", dynamics="underdamped", **arguments)


class Driver:
    """Feed a warm-up with independent draws of a Gaussian.

    ``failing(done)`` says in which share of the transitions the step fails, ``blamed`` whether it is put down to the
    model; ``sd(done)`` is the standard deviation of the draws, ``precision`` that of the density; ``accept(step)`` is
    the acceptance rate, of all chains or of each.
    """

    def __init__(
        self, arguments, length=1000, *, chains=1, least=130, d=D, precision=1.0, failing=None, blamed=False,
        sd=None, change=None, accept=None, ends="length", seed=7,
    ):  # fmt: skip
        self.rng, self.chains, self.d, self.precision = np.random.default_rng(seed), chains, d, precision
        self.failing, self.blamed, self.change = failing or (lambda done: 0.0), blamed, change
        self.sd = sd or (lambda done: np.full(d, 1.0) / np.sqrt(precision))
        self.accept = accept or (lambda step: 0.5)
        start = self.rng.normal(size=(9, d)) * self.sd(0)
        self.warmup = Warmup.start(arguments, length, start, -precision * start, ends=ends)
        self.warmup.least = least
        self.tuned, self.boundaries, self.frozen_at, self.checks, self.sources = [self.warmup.tuned], [0], [], [], []

    def block(self):
        warmup = self.warmup
        n, done = warmup.boundary - warmup.done, warmup.done
        x = self.rng.normal(size=(self.chains, n, self.d)) * self.sd(done)
        if self.change is not None:
            x = self.change(x, warmup)
        failed = np.zeros((self.chains, n), int)
        failed[:, : int(np.ceil(self.failing(done) * n))] = 1
        accept = np.ones((self.chains, n)) * np.reshape(self.accept(warmup.tuned.step_size), (-1, 1))
        lp = -0.5 * (self.precision * x**2).sum(axis=2)
        return Block(x, -self.precision * x, lp, failed, np.zeros_like(failed), failed * self.blamed, accept)

    def turn(self):
        warmup, frozen = self.warmup, self.warmup.frozen is not None
        assert warmup.done < warmup.boundary <= warmup.length
        warmup.observe(self.block())
        self.tuned.append(warmup.update())
        self.boundaries.append(warmup.done)
        self.sources.append(warmup.source)
        if frozen:
            self.checks.append(warmup.passed)

    def run(self):
        while not self.warmup.finished:
            self.turn()
        return self


STEP = safe_step(PAPER, 1.0, 1.0, PAPER.target_bias)


# -- blocks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "arguments", "rejected", "chains"),
    pairs((1, 2, 5, 25, 26, 49, 100, 1000), (PAPER, RECYCLED, OVERDAMPED, ADJUSTED), (0.0, 1.0), (1, 4)),
    ids=lambda value: getattr(value, "method", str(value)),
)
def test_boundaries_cover_the_warm_up_and_end_with_it(length, arguments, rejected, chains):
    driver = Driver(arguments, length, chains=chains, failing=lambda done: rejected).run()
    for tuned in driver.tuned:
        assert np.isfinite(tuned.step_size) and tuned.step_size > 0 and np.all(np.isfinite(tuned.coordinates.scale))
    assert all(tuned.steps_per_draw == 1 for tuned in driver.tuned[:-1])
    assert 1 <= driver.tuned[-1].steps_per_draw <= THRESHOLDS.most_steps_per_draw
    warmup = driver.warmup
    assert warmup.done == warmup.length >= length and len(driver.boundaries) <= 40
    # Only a failed check lasts longer.
    assert (warmup.done > length) == (rejected > 0 and arguments is not ADJUSTED and len(driver.checks) > 0)


def test_blocks_grow_by_a_third_and_the_last_ones_check():
    driver = Driver(PAPER, 1000, sd=lambda done: 1.01**done * np.ones(D)).run()
    sizes = np.diff(driver.boundaries)
    assert sizes[0] == 25
    freeze = driver.boundaries.index(700)
    for before, size in zip(driver.boundaries[1 : freeze - 1], sizes[1:], strict=False):
        assert size == max(25, int(0.3 * before))
    assert sum(sizes[freeze:]) == 300


def test_stopping_ends_it_at_once():
    driver = Driver(PAPER, 1000)
    driver.turn()
    driver.warmup.stop()
    assert driver.warmup.finished and driver.warmup.length == 25
    last = driver.warmup.finish()
    assert last.step_size == driver.tuned[-1].step_size
    driver = Driver(PAPER, 100, failing=lambda done: 1.0)
    while driver.warmup.frozen is None:
        driver.turn()
    driver.warmup.observe(driver.block())
    driver.warmup.stop()
    driver.warmup.update()
    assert driver.warmup.finished and driver.warmup.passed is False, "a failed check does not prolong what is stopped"


# -- when it freezes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [PAPER, RECYCLED, OVERDAMPED], ids=["PoissonULMC", "recycled", "PoissonOLMC"])
@pytest.mark.parametrize("least", [60, 130, 300])
def test_it_freezes_once_settled_and_no_sooner(arguments, least):
    driver = Driver(arguments, 1000, chains=4, least=least).run()
    frozen = driver.warmup.frozen
    index = driver.boundaries.index(frozen)
    assert driver.boundaries[index - 1] < least <= frozen < 500
    assert driver.warmup.passed is True and all(driver.checks)


@pytest.mark.parametrize(("precision", "factor"), [(1.0, 1.0), (3.0, 1.5), (3.4, 1.7)])
def test_stiff_posteriors_are_watched_longer(precision, factor):
    # A scale that is given leaves the curvature what it is; this far from 1 it is still called a fit.
    driver = Driver(underdamped(scaling=np.ones(D)), 3000, chains=4, precision=precision).run()
    index = driver.boundaries.index(driver.warmup.frozen)
    assert driver.boundaries[index - 1] < factor * 130 <= driver.boundaries[index] < 1000


def test_it_does_not_freeze_while_the_scale_does_not_fit():
    for growth, settled in ((1.0, True), (1.02, False)):
        driver = Driver(PAPER, 1000, chains=4, sd=lambda done, growth=growth: growth**done * np.ones(D)).run()
        assert (driver.warmup.frozen < 300) == settled
        assert settled or driver.warmup.frozen == 700, "at 70 % it must"


def test_it_does_not_freeze_while_steps_fail_or_chains_are_stuck():
    driver = Driver(PAPER, 1000, chains=4, failing=lambda done: 0.02 if done < 400 else 0.0).run()
    assert driver.warmup.frozen > 400

    def one_far_away(x, warmup):
        x[2] += 1e3 * (warmup.done < 400)
        return x

    driver = Driver(PAPER, 1000, chains=4, change=one_far_away).run()
    assert driver.warmup.frozen > 400


# -- the check ---------------------------------------------------------------------------------------------------------


def frozen_settings(driver):
    return driver.tuned[driver.boundaries.index(driver.warmup.frozen) :]


def assert_unchanged_but_for_the_step(arguments):
    first = arguments[0]
    for tuned in arguments:
        assert tuned.coordinates is first.coordinates and tuned.friction == first.friction


def test_a_frozen_setting_is_not_touched_when_the_checks_are_clean():
    driver = Driver(PAPER, 1000, chains=2, least=100).run()
    arguments = frozen_settings(driver)
    assert_unchanged_but_for_the_step(arguments)
    assert len(arguments) > 2 and {(t.step_size, t.K) for t in arguments} == {(arguments[0].step_size, arguments[0].K)}
    assert driver.warmup.passed is True and driver.warmup.done == 1000


def test_a_failed_check_shortens_the_step_and_nothing_else():
    checked = []

    def failing(done):
        checked.append(driver.warmup.frozen is not None)
        return 0.01 if sum(checked) == 1 and checked[-1] else 0.0

    driver = Driver(PAPER, 1000, chains=2, least=100, failing=failing)
    driver.run()
    arguments = frozen_settings(driver)
    assert_unchanged_but_for_the_step(arguments)
    steps = [tuned.step_size for tuned in arguments]
    assert driver.checks == [False] + [True] * (len(steps) - 2)
    assert steps[1:] == [THRESHOLDS.shrink * steps[0]] * (len(steps) - 1)
    assert arguments[-1].K <= arguments[0].K


def test_a_setting_whose_last_check_failed_is_checked_again():
    def failing(done):
        return 0.01 if 600 < done < 1000 and driver.warmup.frozen is not None else 0.0

    driver = Driver(PAPER, 1000, chains=2, failing=failing)
    driver.run()
    assert driver.boundaries[-3] < 1000 == driver.boundaries[-2] < driver.warmup.length
    assert driver.checks[-2:] == [False, True] and driver.warmup.passed is True
    steps = [tuned.step_size for tuned in frozen_settings(driver)]
    assert steps[-1] == pytest.approx(steps[0] * THRESHOLDS.shrink ** driver.checks.count(False), rel=1e-12)


@pytest.mark.parametrize("chains", [1, 4])
def test_extensions_end_somewhere(chains):
    driver = Driver(PAPER, 1000, chains=chains, failing=lambda done: 0.01 + 0.0 * done).run()
    beyond = [b for b in driver.boundaries if b > 1000]
    assert len(beyond) == 8 and driver.warmup.passed is False and driver.warmup.frozen == 700
    assert beyond[0] - 1000 >= 50


@pytest.mark.parametrize("name", ["given", "adjusted"])
def test_nothing_is_extended_where_there_is_no_step_to_shorten(name):
    arguments = underdamped(step_size=0.2) if name == "given" else ADJUSTED
    driver = Driver(arguments, 1000, failing=lambda done: 0.01).run()
    assert driver.warmup.done == 1000 and driver.warmup.frozen is not None
    steps = {tuned.step_size for tuned in frozen_settings(driver)}
    assert len(steps) == 1


# -- what moves the step -----------------------------------------------------------------------------------------------


def test_failures_of_the_step_shorten_it_and_those_of_the_model_do_not():
    clean = Driver(PAPER, 1000, chains=2).run()
    steps = {
        blamed: Driver(PAPER, 1000, chains=2, failing=lambda done: 0.05, blamed=blamed).run().tuned[-1].step_size
        for blamed in (False, True)
    }
    np.testing.assert_allclose(clean.tuned[-1].step_size, STEP, rtol=1e-9)
    assert steps[True] == clean.tuned[-1].step_size
    assert steps[False] < 0.1 * STEP


@pytest.mark.parametrize("share", [0.02, 1.0])
def test_the_step_grows_back_after_early_failures(share):
    driver = Driver(PAPER, 1000, chains=2, failing=lambda done: share if done < 100 else 0.0).run()
    during = driver.tuned[driver.boundaries.index(min(b for b in driver.boundaries if b > 100))].step_size
    assert during < 0.6 * STEP
    np.testing.assert_allclose(driver.tuned[-1].step_size, STEP, rtol=1e-9)


def test_a_bias_that_the_draws_show_shortens_the_step():
    # Draws 20 % too wide for the density: excess of the identity 0.44, far more than twice the target.
    honest = Driver(PAPER, 1000, chains=4).run()
    wide = Driver(PAPER, 1000, chains=4, sd=lambda done: np.full(D, 1.2)).run()
    assert honest.tuned[-1].step_size == pytest.approx(STEP, rel=1e-9)
    assert wide.tuned[-1].step_size < 0.3 * STEP and False in wide.checks
    # Half as much again as the target is no reason; nor is a chain that is narrow because it has not been everywhere.
    for chains, sd in ((4, np.sqrt(1.07)), (1, 0.9)):
        driver = Driver(PAPER, 1000, chains=chains, sd=lambda done, sd=sd: np.full(D, sd)).run()
        assert driver.tuned[-1].step_size == pytest.approx(STEP, rel=1e-9)


def test_steps_at_most_double_from_block_to_block():
    driver = Driver(PAPER, 1000, chains=2, precision=1.0, sd=lambda done: np.full(D, 1.0))
    driver.warmup._set_step(1e-3)
    driver.run()
    steps = np.array([tuned.step_size for tuned in driver.tuned[1:]])
    assert np.all(steps[1:] / steps[:-1] <= 2.0 + 1e-12) and steps[0] == pytest.approx(2e-3)


def test_an_adjusted_step_is_frozen_once_its_acceptance_is_as_wanted():
    # The share of rejected steps grows like the third power of the step, and is right at 0.3.
    wanted = THRESHOLDS.adjusted_acceptance
    driver = Driver(ADJUSTED, 2000, accept=lambda step: 1.0 - (1.0 - wanted) * (step / 0.3) ** 3).run()
    assert 130 <= driver.warmup.frozen < 400
    assert {tuned.step_size for tuned in frozen_settings(driver)} == {driver.tuned[-1].step_size}
    assert driver.tuned[-1].step_size == pytest.approx(0.3, rel=1e-9)
    # No step is found where the acceptance is low at any.
    assert Driver(ADJUSTED, 2000, accept=lambda step: 0.5).run().warmup.frozen == 1400
    # Nor is there a longer one than that of a method whose steps are all accepted.
    free = Driver(ADJUSTED, 2000, accept=lambda step: 1.0).run()
    assert free.warmup.frozen < 400 and free.tuned[-1].step_size == METHODS["GHMC"].largest_step
    given = MethodArguments.checked("GHMC", dynamics="underdamped", step_size=0.2)
    fixed = Driver(given, 2000, accept=lambda step: 0.5).run()
    assert fixed.warmup.frozen < 400 and {tuned.step_size for tuned in fixed.tuned} == {0.2}


def test_an_adjusted_step_grows_back_after_blocks_in_which_nothing_was_accepted():
    """As where the first blocks have not shown the scale yet: six of them shorten the step by 64."""
    wanted, driver = THRESHOLDS.adjusted_acceptance, None

    def accept(step):
        early = driver is not None and driver.warmup.done < 169
        return 0.0 if early else 1.0 - (1.0 - wanted) * min(step / 0.3, 2.0) ** 3

    driver = Driver(ADJUSTED, 1500, accept=accept)
    driver.run()
    assert min(tuned.step_size for tuned in driver.tuned) < 0.02
    assert driver.warmup.frozen < 1050 and driver.tuned[-1].step_size == pytest.approx(0.3, rel=1e-9)


def test_the_chain_that_accepts_least_decides_on_an_adjusted_step():
    def accept(step):
        return 1.0 - 0.1 * step**3 * np.array([0.1, 0.5, 8.0, 1.0])

    driver = Driver(ADJUSTED, 2000, chains=4, accept=accept).run()
    expected = ((1.0 - THRESHOLDS.adjusted_acceptance) / 0.8) ** (1.0 / 3.0)
    assert driver.tuned[-1].step_size == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("ends", ["frozen", "passed", "length"])
def test_a_warm_up_ends_where_it_is_frozen_where_a_check_has_passed_or_at_its_length(ends):
    driver = Driver(PAPER, 1000, chains=4, ends=ends).run()
    assert driver.warmup.passed is (None if ends == "frozen" else True)
    assert len(driver.checks) == {"frozen": 0, "passed": 1}.get(ends, len(driver.checks))
    assert (driver.warmup.done == driver.warmup.frozen) == (ends == "frozen")
    assert (driver.warmup.done == 1000) == (ends == "length")
    frozen, last = driver.tuned[driver.boundaries.index(driver.warmup.frozen)], driver.tuned[-1]
    assert all(getattr(last, name) is getattr(frozen, name) for name in ("step_size", "K", "friction", "coordinates"))


def test_stuck_chains_neither_stay_nor_spoil_the_scale():
    def one_far_away(x, warmup):
        x[2] += 1e3 * (warmup.done < 200)
        return x

    driver = Driver(PAPER, 1000, chains=4, change=one_far_away).run()
    early = [source for b, source in zip(driver.boundaries, driver.sources, strict=False) if b < 200]
    assert all(source.tolist() == [0, 1, 0, 3] for source in early)
    assert driver.sources[-1].tolist() == [0, 1, 2, 3]
    for tuned in driver.tuned[2:]:
        np.testing.assert_allclose(tuned.coordinates.scale, 1.0, rtol=1e-9)
        assert np.all(np.abs(tuned.coordinates.centre) < 1e-9)


def test_given_arguments_are_kept():
    given = {"step_size": 0.123, "K": 7, "friction": 0.8, "steps_per_draw": 3, "scaling": [1.0, 20.0, 0.3]}
    driver = Driver(underdamped(**given), 200, precision=5.0, failing=lambda done: 1.0).run()
    for t in driver.tuned:
        assert (t.step_size, t.K, t.friction, tuple(t.coordinates.scale)) == (0.123, 7, 0.8, (1.0, 20.0, 0.3))
    assert driver.tuned[-1].steps_per_draw == 3


def test_the_first_setting_is_where_the_start_is():
    start = np.random.default_rng(1).normal(size=(9, D)) * [0.1, 1.0, 10.0]
    tuned = Warmup.start(PAPER, 100, start, -start / np.array([0.1, 1.0, 10.0]) ** 2).tuned
    assert isinstance(tuned.coordinates, Coordinates)
    np.testing.assert_array_equal(tuned.coordinates.centre, start[0])
    np.testing.assert_allclose(tuned.coordinates.scale, [0.1, 1.0, 10.0])
    assert tuned.step_size == pytest.approx(0.5 * STEP)

"""Coefficients, blocks and errors.  Nothing is random."""

import doctest
import subprocess
import sys

import numpy as np
import pytest
from diffusion_reference import SHORT, estimates, say, short

from pmm_mcmc.diffusion import Blocks, DiffusionSchedule, plan_blocks
from pmm_mcmc.diffusion.interpolation import make_table
from pmm_mcmc.diffusion.schedule import PREDICTIONS, VARIANTS

pytestmark = pytest.mark.quick

MOST_REFINEMENTS = np.arange(1, 25)
ALPHA = 1.0 - SHORT
BAR = np.cumprod(ALPHA)
BEFORE = np.concatenate([[1.0], BAR[:-1]])


def coefficients(variant, kind="epsilon"):
    return (c[1:] for c in short(variant).coefficients(kind))


def final_variance(a, b, sigma):
    """Of a chain with noise prediction on data of variance 1, where the state keeps variance 1 at every level."""
    variance = 1.0
    for n in reversed(range(len(a))):
        variance = (a[n] + b[n] * np.sqrt(1 - np.cumprod(1 - BETAS)[n])) ** 2 * variance + sigma[n] ** 2
    return variance


BETAS = np.linspace(1e-4, 0.02, 1000)


def test_variant_2_is_ddpm():
    """The posterior mean and variance of Ho et al. (arXiv:2006.11239, equations 6, 7 and 11)."""
    a, b, sigma = coefficients("2")
    assert np.allclose(a, 1 / np.sqrt(ALPHA), rtol=1e-12)
    assert np.allclose(b, -SHORT / np.sqrt(ALPHA * (1 - BAR)), rtol=1e-10)
    assert np.allclose(sigma**2, SHORT * (1 - BEFORE) / (1 - BAR), rtol=1e-12)
    a, b, _ = coefficients("2", "x0")
    assert np.allclose(a, np.sqrt(ALPHA) * (1 - BEFORE) / (1 - BAR), atol=1e-12)
    assert np.allclose(b, np.sqrt(BEFORE) * SHORT / (1 - BAR), rtol=1e-10)


def test_variant_3_is_the_consistent_family():
    """Erratum i: the variance stands under the root as well; with less noise alone the samples come out too narrow."""
    _, b, sigma = coefficients("3")
    assert np.allclose(sigma**2, SHORT * (1 - BEFORE), rtol=1e-12)
    assert np.allclose(b, np.sqrt(1 - BEFORE - sigma**2) - np.sqrt((1 - BAR) / ALPHA), rtol=1e-10)
    two, three = (DiffusionSchedule.named("linear", 1000, v).coefficients() for v in "23")
    assert final_variance(*(c[1:] for c in three)) == pytest.approx(1.0, abs=0.01)
    assert final_variance(two.a[1:], two.b[1:], three.sigma[1:]) == pytest.approx(0.71**2, abs=0.01)


@pytest.mark.parametrize(("variant", "i"), [("1", -1), ("1a", -1), ("1b", 0), ("1c", 1), ("1d", 2)])
def test_variant_1(variant, i):
    """Errata d and g: one factor for a noise prediction, another for a score, and no noise in the last update."""
    a, b, sigma = coefficients(variant)
    assert np.allclose(a, 1 / np.sqrt(ALPHA), rtol=1e-12)
    assert np.allclose(b, -2 * (1 - np.sqrt(ALPHA)) / np.sqrt(ALPHA * (1 - BAR)), rtol=1e-10)
    assert sigma[0] == 0.0
    assert np.allclose(sigma[1:] ** 2, (SHORT / (1 + i * SHORT))[1:], rtol=1e-12)
    _, b, _ = coefficients(variant, "score")
    assert np.allclose(b, 2 * (1 - np.sqrt(ALPHA)) / np.sqrt(ALPHA), rtol=1e-10)


def test_variant_1_as_printed_fails():
    """The printed mixture gives, of a noise prediction and of a score, 0.17 and 7e20 where the variance is 1."""
    a, b, sigma = (c[1:] for c in DiffusionSchedule.named("linear", 1000, "1a").coefficients())
    bar = np.cumprod(1 - BETAS)
    assert final_variance(a, b, sigma) == pytest.approx(1.0, abs=0.01)
    printed = b / np.sqrt(1 - bar)
    assert final_variance(a, printed, sigma) == pytest.approx(0.17, abs=0.01)
    assert final_variance(a, -printed / np.sqrt(1 - bar), sigma) == pytest.approx(6.9e20, rel=0.01)


@pytest.mark.parametrize("variant", VARIANTS)
def test_there_are_as_many_updates_as_levels_and_the_last_adds_no_noise(variant):
    """Errata f and g."""
    schedule = short(variant)
    assert schedule.N == 24 and schedule.signal[0] == 1.0 and schedule.coefficients().sigma[1] == 0.0
    assert np.all(schedule.coefficients().sigma[2:] > 0.0)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_prediction_gives_the_same_update(variant):
    schedule = short(variant)
    x, epsilon = 0.7, np.cos(MOST_REFINEMENTS)
    a, b, _ = (c[1:] for c in schedule.coefficients("epsilon"))
    data = estimates(schedule, "epsilon", x, epsilon, MOST_REFINEMENTS)[0]
    for kind in (*PREDICTIONS, 0.05, 7.0):
        said = say(schedule, kind, data, epsilon, x, MOST_REFINEMENTS)
        a_k, b_k, _ = (c[1:] for c in schedule.coefficients(kind))
        assert np.allclose(a_k * x + b_k * said, a * x + b * epsilon, rtol=0, atol=1e-13), kind
        p = schedule.estimates(kind)
        assert np.allclose(p.x0_x[1:] * x + p.x0_f[1:] * said, data, rtol=1e-12), kind
        assert np.allclose(p.eps_x[1:] * x + p.eps_f[1:] * said, epsilon, rtol=0, atol=1e-12), kind


@pytest.mark.parametrize("kind", PREDICTIONS)
def test_conversions(kind):
    schedule = short()
    data, noise = np.sin(MOST_REFINEMENTS), np.cos(MOST_REFINEMENTS)
    x = np.sqrt(schedule.signal[1:]) * data + np.sqrt(schedule.noise[1:]) * noise
    said = say(schedule, kind, data, noise, x, MOST_REFINEMENTS)
    for to in (*PREDICTIONS, 0.3):
        of_x, of_f = (c[1:] for c in schedule.conversion(kind, to))
        assert np.allclose(of_x * x + of_f * said, say(schedule, to, data, noise, x, MOST_REFINEMENTS), atol=1e-12), to


def test_data_variance_of_a_prediction_reaches_v_x0_and_epsilon():
    schedule = short()
    one, v = schedule.estimates(1.0), schedule.estimates("v")
    assert all(np.allclose(p, q, rtol=1e-14) for p, q in zip(one, v, strict=True))
    near, x0 = schedule.coefficients(1e-14), schedule.coefficients("x0")
    assert np.allclose(near.a[1:], x0.a[1:], atol=1e-9) and np.allclose(-near.b[1:], x0.b[1:], atol=1e-9)
    far, epsilon = schedule.coefficients(1e14), schedule.coefficients("epsilon")
    assert np.allclose(far.a[1:], epsilon.a[1:], atol=1e-9)


def test_schedule_without_signal_at_the_end():
    signal = np.concatenate([np.linspace(0.99, 0.01, 50), [0.0]])
    schedule = DiffusionSchedule(signal, "3")
    assert all(np.all(np.isfinite(c)) for c in schedule.coefficients("v"))
    assert all(np.all(np.isfinite(c)) for c in make_table(schedule, Blocks.shrinking(51, 5), "v"))
    for call in (lambda: schedule.coefficients("epsilon"), lambda: make_table(schedule, Blocks.shrinking(51, 5))):
        with pytest.raises(ValueError, match="use 'v' or 'x0'"):
            call()
    with pytest.raises(ValueError, match="use variant 2 or 3"):
        DiffusionSchedule(signal, "1a")


def test_named_schedules():
    linear = DiffusionSchedule.named("linear", 1000)
    assert linear.signal[-1] == pytest.approx(4.0e-5, rel=0.02)
    assert DiffusionSchedule.named("scaled_linear").signal[-1] == pytest.approx(0.0047, rel=0.02)
    cosine = DiffusionSchedule.named("cosine", 100)
    share = np.cos((np.array([0, 50]) / 100 + 0.008) / 1.008 * np.pi / 2) ** 2
    assert cosine.signal[50] == pytest.approx(share[1] / share[0])


def test_respacing_keeps_levels_and_times():
    schedule = short("2")
    fewer = schedule.respaced(5, eta=0.0)
    levels = np.round(np.linspace(0, 24, 6)).astype(int)[1:]
    assert np.array_equal(fewer.timesteps, levels - 1) and fewer.timesteps[-1] == 23
    assert np.array_equal(fewer.signal[1:], schedule.signal[levels])
    # DDIM: the same estimates of data and noise, put together again at the level before.
    a, b, sigma = fewer.coefficients("epsilon")
    x, epsilon = 0.3, -0.8
    data = (x - np.sqrt(fewer.noise[1:]) * epsilon) / np.sqrt(fewer.signal[1:])
    assert np.allclose(
        a[1:] * x + b[1:] * epsilon, np.sqrt(fewer.signal[:-1]) * data + np.sqrt(fewer.noise[:-1]) * epsilon
    )
    assert np.all(sigma == 0.0)


@pytest.mark.parametrize("N", (24, 1000))
@pytest.mark.parametrize("power", (1.0, 1.5, 3.0))
def test_shrinking_blocks(N, power):
    for n_steps in (1, 2, 5, N // 2):
        blocks = Blocks.shrinking(N, n_steps, power)
        assert blocks.steps == n_steps and blocks.edges[0] == N and blocks.edges[-1] == 0
        assert blocks.sizes.min() >= 2 and blocks.calls == 2 * n_steps
        if power == 1.0:
            assert np.ptp(blocks.sizes) <= 1
    wide = Blocks.shrinking(1000, 10, power).edges[:-4]
    assert np.allclose(wide, 1000 * (np.arange(10, 3, -1) / 10) ** power, atol=2.5)


BAD = {
    "schedule from betas": (lambda: DiffusionSchedule(SHORT), r"alphas_cumprod must decrease.*from_betas"),
    "one level": (lambda: DiffusionSchedule([]), "alphas_cumprod"),
    "variant": (lambda: DiffusionSchedule.named("linear", 10, "4"), "variant='4' is not known; use one of 1, 1a"),
    "eta": (lambda: DiffusionSchedule(BAR, "2", eta=1.5), "eta=1.5"),
    "eta of variant 1": (lambda: DiffusionSchedule(BAR, "1a", eta=0.0), "variant 2 or 3"),
    "timesteps": (lambda: DiffusionSchedule(BAR, timesteps=[1, 2]), r"shape \(2,\); give one for each of the 24"),
    "betas": (lambda: DiffusionSchedule.from_betas([0.1, -0.1]), r"betas must lie in \(0, 1\]; got -0.1 to 0.1"),
    "name": (lambda: DiffusionSchedule.named("quadratic"), "name='quadratic' is not known"),
    "N": (lambda: DiffusionSchedule.named("linear", 0), "N=0"),
    "respaced": (lambda: short().respaced(25), "n_steps=25 is not between 1 and the 24 steps"),
    "prediction": (lambda: short().coefficients("noise"), "prediction 'noise' is not known"),
    "data variance": (lambda: short().coefficients(-1.0), "or a data variance > 0"),
    "too many blocks": (lambda: Blocks.shrinking(24, 13), "n_steps=13 for a chain of 24 steps: use 1 to 12"),
    "no blocks": (lambda: Blocks.equal(24, 0), "n_steps=0"),
    "power": (lambda: Blocks.shrinking(24, 5, 0.5), "power=0.5 must be a number >= 1"),
    "edges": (lambda: Blocks((24, 3)), "down to 0"),
    "repeated edges": (lambda: Blocks((24, 3, 3, 0)), "leave repeated levels out"),
    "broken edges": (lambda: Blocks((24, 3.5, 0)), "give whole levels"),
    "midpoint": (lambda: Blocks((24, 0), "poisson"), "midpoint='poisson' is not known"),
    "blocks of another chain": (lambda: make_table(short(), Blocks.equal(25, 5)), "start at level 25.*has 24"),
    "range": (lambda: plan_blocks(short(), 5, (1.0, 0.1)), "0 < smallest <= largest"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_name_argument_value_and_remedy(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.process
def test_importing_the_schedule_loads_no_heavy_package():
    code = (
        "import sys, pmm_mcmc.diffusion, pmm_mcmc.diffusion.schedule, pmm_mcmc.diffusion.planner\n"
        "heavy = {'pymc', 'pytensor', 'torch', 'jax', 'numba', 'scipy', 'xarray'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_example_of_the_package():
    import pmm_mcmc.diffusion as package

    assert doctest.testmod(package) == (0, 5)


def test_names_of_the_package():
    import pmm_mcmc.diffusion as package

    of_torch = {"PoissonMidpointScheduler", "PoissonMidpointFlowScheduler"}
    assert set(package.__all__) <= set(dir(package)) and of_torch <= set(package.__all__)
    for name in set(package.__all__) - of_torch:
        assert getattr(package, name).__module__.startswith("pmm_mcmc.diffusion.")
    with pytest.raises(AttributeError, match="no attribute 'Scheduler'"):
        _ = package.Scheduler


@pytest.mark.parametrize(
    ("name", "missing", "extra"),
    [
        ("poisson_midpoint_sample", "jax", "jax"),
        ("PoissonMidpointScheduler", "torch", "diffusers"),
        ("PoissonMidpointFlowScheduler", "torch", "diffusers"),
    ],
)
def test_name_that_needs_an_extra_says_which(name, missing, extra, monkeypatch):
    import pmm_mcmc.diffusion as package

    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, package._NAMES[name], raising=False)
    with pytest.raises(ImportError, match=rf"{name} needs {missing}: .*pmm-mcmc\[{extra}\]"):
        getattr(package, name)

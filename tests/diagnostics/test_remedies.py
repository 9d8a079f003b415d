"""What a verdict advises helps: each remedy is followed on three models, and ends the reason that printed it."""

import re

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pmm_mcmc as pmm

QUIET = {"progressbar": False, "random_seed": 3}


def schools():
    effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    mu = pm.Normal("mu", 0, 5)
    tau = pm.HalfNormal("tau", 5)
    theta = pm.Normal("theta", mu, tau, shape=8)
    pm.Normal("y", theta, errors, observed=effects)


def logistic():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 3))
    b = pm.Normal("b", 0, 2, shape=3)
    pm.Bernoulli("y", logit_p=x @ b, observed=x @ [1, -1, 0.5] + rng.logistic(size=60) > 0)


def counts():
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(8), 6)
    rates = np.exp(1 + 0.5 * rng.normal(size=8))
    mean = pm.Normal("mean", 0, 2)
    sd = pm.HalfNormal("sd", 1)
    effect = pm.Normal("effect", 0, sd, shape=8)
    pm.Poisson("y", pt.exp(mean + effect[group]), observed=rng.poisson(rates[group]))


def two_means():
    rng = np.random.default_rng(5)
    means = pm.Normal("means", 0, 5, shape=2)
    pm.NormalMixture("y", [0.5, 0.5], means, 1, observed=np.append(rng.normal(-2, 1, 40), rng.normal(2, 1, 40)))


def far_apart():
    pm.NormalMixture("x", [0.3, 0.7], [-5, 5], [1, 1])
    pm.Normal("z", 0, 1, shape=3)


def of_two_widths():
    pm.NormalMixture("x", [0.5, 0.5], [-6, 4], [1, 2])
    pm.Normal("z", 0, 1)


def in_a_plane():
    x = pm.Normal("x", 0, 10)
    y = pm.Normal("y", 0, 10)
    one = -0.5 * ((x + 4) ** 2 + (y - 1) ** 2)
    pm.Potential("modes", pt.logaddexp(one, -0.5 * ((x - 4) ** 2 + (y + 2) ** 2)))


def three_means():
    rng = np.random.default_rng(6)
    means = pm.Normal("means", 0, 5, shape=3)
    data = np.concatenate([rng.normal(centre, 1, 30) for centre in (-5, 0, 5)])
    pm.NormalMixture("y", [1 / 3, 1 / 3, 1 / 3], means, 1, observed=data)


def signs():
    a = pm.Normal("a", 0, 2)
    pm.Normal("y", a**2, 0.3, observed=[2.0, 2.2, 1.9])


MODELS = [schools, logistic, counts]
WITH_MODES = [far_apart, of_two_widths, in_a_plane]
WITH_LABELS = [two_means, three_means, signs]


@pytest.fixture(scope="module")
def built():
    """Return the model that a function makes, made once."""
    models = {}

    def build(function):
        if function not in models:
            with pm.Model() as model:
                function()
            models[function] = model
        return models[function]

    return build


def codes(dt):
    return {reason.code for reason in pmm.verdict(dt).reasons}


@pytest.mark.parametrize("function", MODELS)
def test_so_many_times_as_many_draws(built, function):
    """The factor is an estimate from few draws, so that one round is not always enough."""
    model = built(function)
    dt = pmm.sample(draws=25, model=model, **QUIET)
    for _ in range(4):
        times = float(re.search(r"Draw more: at least ([\d.]+) times as many", pmm.verdict(dt).sentence)[1])
        extra = int(np.ceil((times - 1.0) * dt.posterior.sizes["draw"]))
        dt = pmm.extend(dt, extra, model=model, progressbar=False)
        if pmm.verdict(dt).trusted:
            return
    raise AssertionError(pmm.verdict(dt).sentence)


@pytest.mark.parametrize("function", MODELS)
def test_four_chains(built, function):
    model = built(function)
    alone = pmm.verdict(pmm.sample(chains=1, draws=2000, model=model, **QUIET))
    assert alone.sentence.endswith("Run four chains.")
    assert pmm.verdict(pmm.sample(model=model, **QUIET)).trusted


@pytest.mark.parametrize("function", MODELS)
def test_a_longer_warm_up(built, function):
    model = built(function)
    short = pmm.sample(draws=200, tune=10, model=model, **QUIET)
    assert "equilibration" in codes(short) and "Raise tune" in pmm.verdict(short).sentence
    assert "equilibration" not in codes(pmm.sample(draws=200, model=model, **QUIET))


@pytest.mark.parametrize("function", MODELS)
def test_adjusted_draws(built, function):
    """What a long step does to draws no shorter one mends for certain; by both doors adjusted draws do."""
    model = built(function)
    step = pmm.PoissonULMC(K=16, grid="left", step_size=3.0)  # on the centred grid so long a step is right here
    long = pmm.sample(step=step, adjusted=False, model=model, **QUIET)
    verdict = pmm.verdict(long)
    assert not verdict.trusted
    assert "pm.sample(step=pmm.GHMC())" in verdict.sentence
    assert pmm.verdict(pmm.sample(model=model, **QUIET)).trusted
    with model:
        dt = pm.sample(step=pmm.GHMC(), chains=4, cores=1, compute_convergence_checks=False, **QUIET)
    assert pmm.verdict(dt).trusted


@pytest.mark.parametrize("function", WITH_MODES)
def test_a_ladder_moves_between_modes(built, function):
    model = built(function)
    for seed in (1, 2):
        verdict = pmm.verdict(pmm.sample(model=model, random_seed=seed, progressbar=False))
        assert not verdict.trusted and "pmm.temper()" in verdict.sentence, verdict.sentence
    ladder = pmm.verdict(pmm.temper(draws=100, model=model, **QUIET))
    assert ladder.trusted, ladder.sentence


@pytest.mark.parametrize("function", WITH_LABELS)
def test_draws_in_one_labelling(built, function):
    dt = pmm.sample(model=built(function), **QUIET)
    verdict = pmm.verdict(dt)
    assert not verdict.trusted and "pmm.relabel(dt)" in verdict.sentence, verdict.sentence
    assert pmm.verdict(pmm.relabel(dt)).trusted

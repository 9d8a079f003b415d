"""What a verdict advises helps: each remedy is followed on three models, and ends the reason that printed it."""

import re

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.statement import MORE

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


def sticks(rest):
    """Sixteen shares of a stick; without the rest they sum to less than 1, up to what a check of the sum lets pass."""
    b = pm.Beta("b", 1, 1, shape=16)
    shares = b * pt.concatenate([[1.0], pt.extra_ops.cumprod(1 - b)[:-1]])
    return pt.concatenate([shares, [pt.prod(1 - b)]]) if rest else shares


def categories(rest):
    data = np.random.default_rng(0).choice(4, 40, p=[0.5, 0.3, 0.15, 0.05])
    pm.Categorical("y", sticks(rest), observed=data)


def mixture(rest):
    rng = np.random.default_rng(0)
    data = np.append(rng.normal(-2, 0.5, 20), rng.normal(1, 0.8, 30))
    pm.NormalMixture("y", sticks(rest), np.linspace(-3, 3, 16 + rest), sigma=0.7, observed=data)


def multinomial(rest):
    data = np.random.default_rng(0).multinomial(30, np.ones(16 + rest) / (16 + rest), size=2)
    pm.Multinomial("y", 30, sticks(rest), observed=data)


def triangle(ends):
    a = pm.Uniform("a", 0, 1)
    b = pm.Uniform("b", 0, pt.minimum(1.0, 1.5 - a)) if ends else pm.Uniform("b", 0, 1)
    width = pt.minimum(1.0, 1.5 - a) if ends else 1.0
    pm.Potential("keep", pt.log(width) if ends else pt.switch(a + b < 1.5, 0.0, -np.inf))


def half_plane(ends):
    if ends:
        pm.Truncated("x", pm.Normal.dist(0, 1), lower=0.3)
    else:
        x = pm.Normal("x", 0, 1)
        pm.Potential("keep", pt.switch(x > 0.3, 0.0, -1e10))
    pm.Normal("z", 0, 1, shape=2)


def in_order(ends):
    if ends:
        pm.Normal("x", 0, 1, shape=3, transform=pm.distributions.transforms.ordered, initval=[-1.0, 0.0, 1.0])
    else:
        x = pm.Normal("x", 0, 1, shape=3, initval=[-1.0, 0.0, 1.0])
        pm.Potential("keep", pt.switch((x[0] < x[1]) & (x[1] < x[2]), 0.0, -np.inf))


def separated(proper):
    k = pm.Normal("k", 0, 10) if proper else pm.Flat("k")
    x = np.linspace(-2, 2, 12)
    pm.Bernoulli("y", logit_p=k * x, observed=(x > 0).astype(int))


def no_failures(proper):
    rate = pm.Normal("rate", 0, 5) if proper else pm.Flat("rate")
    pm.Binomial("y", 20, logit_p=rate, observed=[0, 0, 0])


def unseen_level(proper):
    b = pm.Normal("b", 0, 5, shape=3) if proper else pm.Flat("b", shape=3)
    pm.Poisson("y", pt.exp(b[np.repeat(np.arange(3), 4)]), observed=np.repeat([3, 1, 0], 4))


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
        assert not verdict.trusted, verdict.sentence
        # Where chains cross often enough, some times as many draws will do.
        crosses = verdict.reasons[0].remedy == MORE and verdict.reasons[0].draws_factor < 10.0
        assert ("pmm.temper()" in verdict.sentence) != crosses, verdict.sentence
    ladder = pmm.verdict(pmm.temper(draws=100, model=model, **QUIET))
    assert ladder.trusted, ladder.sentence


@pytest.mark.parametrize("function", [categories, mixture, multinomial])
def test_the_last_one_takes_the_rest(function):
    verdicts = []
    for rest in (False, True):
        with pm.Model():
            function(rest)
            verdicts.append(pmm.verdict(pmm.sample(draws=400, **QUIET)))
    assert "draws followed a divergence: a check of y fails" in verdicts[0].sentence
    assert "et the last one take the rest (1 minus the sum of the others)" in verdicts[0].sentence
    assert verdicts[1].trusted, verdicts[1].sentence


@pytest.mark.parametrize(("function", "advice"), [
    *((function, "et a prior end there") for function in (triangle, half_plane, in_order)),
    *((function, "a proper prior") for function in (separated, no_failures, unseen_level)),
])  # fmt: skip
def test_a_prior_that_ends_there_and_a_proper_one(function, advice):
    verdicts = []
    for mended in (False, True):
        with pm.Model():
            function(mended)
            verdicts.append(pmm.verdict(pmm.sample(**QUIET)))
    assert advice in verdicts[0].sentence
    assert verdicts[1].trusted and advice not in verdicts[1].sentence, verdicts[1].sentence


@pytest.mark.parametrize("function", WITH_LABELS)
def test_draws_in_one_labelling(built, function):
    dt = pmm.sample(model=built(function), **QUIET)
    verdict = pmm.verdict(dt)
    assert not verdict.trusted and "pmm.relabel(dt)" in verdict.sentence, verdict.sentence
    assert pmm.verdict(pmm.relabel(dt)).trusted

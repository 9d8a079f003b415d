"""Hierarchical models of textbooks, as one would type them: ``held_out`` of the scoreboard.

They follow the descriptions in Gelman and Hill (2007), McElreath (2020), Gelman et al. (BDA3, 2013), Kruschke (2015)
and Bambi's documentation, centred where they may be.  Data are simulated with fixed seeds, but for those that are
public and short: the Nile, beta blockers, rats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from gallery_models import _effects
from targets import _autoregression, _simulated_autoregression

# Nile's discharge at Aswan, 1871 to 1970.
NILE = np.array(
    "1120 1160 963 1210 1160 1160 813 1230 1370 1140 995 935 1110 994 1020 960 1180 799 958 1140 1100 1210 1150 1250 "
    "1260 1220 1030 1100 774 840 874 694 940 833 701 916 692 1020 1050 969 831 726 456 824 702 1120 1100 832 764 821 "
    "768 845 864 862 698 845 744 796 1040 759 781 865 845 944 984 897 822 1010 771 676 649 846 812 742 801 1040 860 "
    "874 848 890 744 749 838 1050 918 986 797 923 975 815 1020 906 901 1170 912 746 919 718 714 740".split(),
    float,
)
# Beta blockers after a heart attack, 22 trials: deaths and patients, control and treated (BDA3, table 5.4).
DEATHS = np.array(
    "3 14 11 127 27 6 152 48 37 188 52 47 16 45 31 38 12 6 3 40 43 39 "
    "3 7 5 102 28 4 98 60 25 138 64 45 9 57 25 33 28 8 6 32 27 22".split(),
    int,
).reshape(2, 22)
PATIENTS = np.array(
    "39 116 93 1520 365 52 939 471 282 1921 583 266 293 883 147 213 122 154 134 218 364 674 "
    "38 114 69 1533 355 59 945 632 278 1916 873 263 291 858 154 207 251 151 174 209 391 680".split(),
    int,
).reshape(2, 22)
# Rats with a tumour of rats in 71 groups (BDA3, table 5.1).
TUMOURS = np.array(
    "0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1 2 2 2 2 2 2 2 2 2 1 5 2 5 3 2 7 7 3 3 2 9 10 4 4 4 4 4 4 4 10 4 4 4 5 "
    "11 12 5 5 6 5 6 6 6 6 16 15 15 9 4".split(),
    int,
)
RATS = np.array(
    "20 20 20 20 20 20 20 19 19 19 19 18 18 17 20 20 20 20 19 19 18 18 25 24 23 20 20 20 20 20 20 10 49 19 46 27 17 49 "
    "47 20 20 13 48 50 20 20 20 20 20 20 20 48 19 19 19 22 46 49 20 20 23 19 22 20 20 20 52 46 47 24 14".split(),
    int,
)


class Held(NamedTuple):
    """A model: how it is built, what it is, and whether it has a form non-centred by hand, ``build(False)``."""

    build: Callable[..., pm.Model]
    note: str
    twin: bool = True


def group_predictors(centred: bool = True) -> pm.Model:
    rng = np.random.default_rng(101)
    county = np.repeat(np.arange(60), rng.integers(1, 9, 60))
    uranium, floor = rng.normal(0, 0.5, 60), rng.binomial(1, 0.2, county.size)
    a, b = 1.5 + 0.7 * uranium + rng.normal(0, 0.15, 60), -0.6 - 0.3 * uranium + rng.normal(0, 0.3, 60)
    y = a[county] + b[county] * floor + rng.normal(0, 0.75, county.size)
    with pm.Model(coords={"county": np.arange(60), "effect": ["intercept", "slope"]}) as model:
        g0, g1 = pm.Normal("g0", 0, 5, dims="effect"), pm.Normal("g1", 0, 5, dims="effect")
        sd = pm.Exponential("sd", 1.0, dims="effect")
        ab = _effects("ab", g0 + g1 * uranium[:, None], sd, (60, 2), centred)
        sigma = pm.Exponential("sigma", 1.0)
        pm.Normal("y", ab[county, 0] + ab[county, 1] * floor, sigma, observed=y)
    return model


def pilots(centred: bool = True) -> pm.Model:
    rng = np.random.default_rng(102)
    condition, airport = (part.ravel() for part in np.indices((5, 8)))
    y = 0.44 + rng.normal(0, 0.05, 5)[condition] + rng.normal(0, 0.3, 8)[airport] + rng.normal(0, 0.2, 40)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        sd_c, sd_a = pm.HalfCauchy("sd_c", 1), pm.HalfCauchy("sd_a", 1)
        c, a = _effects("c", 0, sd_c, 5, centred), _effects("a", 0, sd_a, 8, centred)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", mu + c[condition] + a[airport], sigma, observed=y)
    return model


def pupils(centred: bool = True) -> pm.Model:
    rng = np.random.default_rng(103)
    school = np.repeat(np.arange(12), 4)
    logit = 0.5 + rng.normal(0, 0.8, 12)[school] + rng.normal(0, 0.4, 48)
    passed = rng.binomial(12, 1 / (1 + np.exp(-logit)))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1.5)
        sd_school, sd_class = pm.Exponential("sd_school", 1), pm.Exponential("sd_class", 1)
        of_school = _effects("of_school", mu, sd_school, 12, centred)
        of_class = _effects("of_class", of_school[school], sd_class, 48, centred)
        pm.Binomial("passed", 12, logit_p=of_class, observed=passed)
    return model


def police_stops(centred: bool = True) -> pm.Model:
    rng = np.random.default_rng(104)
    ethnicity, precinct = (part.ravel() for part in np.indices((3, 25)))
    arrests = rng.integers(20, 400, 75)
    rate = rng.normal(0, 0.4, 3)[ethnicity] + rng.normal(0, 0.5, 25)[precinct] + rng.normal(0, 0.25, 75) - 1
    stops = rng.poisson(arrests * np.exp(rate))
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2)
        sd = [pm.HalfNormal(f"sd_{name}", 1) for name in ("alpha", "beta", "eps")]
        alpha, beta = _effects("alpha", 0, sd[0], 3, centred), _effects("beta", 0, sd[1], 25, centred)
        eps = _effects("eps", 0, sd[2], 75, centred)
        log_rate = np.log(arrests) + mu + alpha[ethnicity] + beta[precinct] + eps
        pm.Poisson("stops", pm.math.exp(log_rate), observed=stops)
    return model


def two_parameter_logistic(centred: bool = True) -> pm.Model:
    rng = np.random.default_rng(105)
    ability, slope, difficulty = rng.normal(size=50), np.exp(rng.normal(0, 0.4, 12)), rng.normal(0, 1, 12)
    y = rng.binomial(1, 1 / (1 + np.exp(-slope * (ability[:, None] - difficulty))))
    with pm.Model() as model:
        mu, sd_b, sd_a = pm.Normal("mu", 0, 1), pm.HalfNormal("sd_b", 1), pm.HalfNormal("sd_a", 1)
        theta, b = pm.Normal("theta", shape=50), _effects("b", mu, sd_b, 12, centred)
        if centred:
            a = pm.LogNormal("a", 0, sd_a, shape=12)
        else:
            a = pm.Deterministic("a", pm.math.exp(sd_a * pm.Normal("z_a", shape=12)))
        pm.Bernoulli("y", logit_p=a * (theta[:, None] - b), observed=y)
    return model


def frailty(centred: bool = True) -> pm.Model:
    rng = np.random.default_rng(106)
    hospital, treated = np.repeat(np.arange(20), 8), rng.binomial(1, 0.5, 160)
    scale = np.exp(2 + 0.5 * treated + rng.normal(0, 0.3, 20)[hospital])
    time, end = scale * rng.weibull(1.5, 160), rng.uniform(4, 25, 160)
    with pm.Model() as model:
        alpha, beta = pm.Gamma("alpha", 2, 1), pm.Normal("beta", 0, 1)
        mu, sd = pm.Normal("mu", 2, 2), pm.HalfNormal("sd", 1)
        u = _effects("u", mu, sd, 20, centred)
        survival = pm.Weibull.dist(alpha=alpha, beta=pm.math.exp(u[hospital] + beta * treated))
        pm.Censored("time", survival, lower=None, upper=end, observed=np.minimum(time, end))
    return model


def nile(centred: bool = True) -> pm.Model:
    y = (NILE - 900) / 100
    with pm.Model() as model:
        s_level, s_noise = pm.HalfNormal("s_level", 1), pm.HalfNormal("s_noise", 2)
        if centred:
            level = pm.GaussianRandomWalk("level", sigma=s_level, init_dist=pm.Normal.dist(0, 3), steps=99)
        else:
            steps = s_level * pm.Normal("z", shape=99)
            first = 3 * pm.Normal("first", shape=1)
            level = pm.Deterministic("level", pm.math.concatenate([first, first + pm.math.cumsum(steps)]))
        pm.Normal("y", level, s_noise, observed=y)
    return model


def _grid(side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    row, column = (part.ravel() for part in np.indices((side, side)))
    return row, column, (abs(row[:, None] - row) + abs(column[:, None] - column) == 1).astype(int)


def disease_map() -> pm.Model:
    rng, (row, column, W) = np.random.default_rng(108), _grid(6)
    expected = rng.uniform(2, 15, 36)
    cases = rng.poisson(expected * np.exp(0.4 * np.sin(row / 2) + 0.3 * np.cos(column) + rng.normal(0, 0.15, 36)))
    with pm.Model() as model:
        b0, sigma, share = pm.Normal("b0", 0, 1), pm.HalfNormal("sigma", 1), pm.Beta("share", 0.5, 0.5)
        theta, phi = pm.Normal("theta", shape=36), pm.ICAR("phi", W=W)
        mixed = pm.math.sqrt(1 - share) * theta + pm.math.sqrt(share / 0.5) * phi
        pm.Poisson("cases", expected * pm.math.exp(b0 + sigma * mixed), observed=cases)
    return model


def crop_yield(centred: bool = True) -> pm.Model:
    rng, (row, column, W) = np.random.default_rng(109), _grid(7)
    y = 3 + np.sin(row / 2) + 0.5 * np.cos(column / 2) + rng.normal(0, 0.5, 49)
    with pm.Model() as model:
        mu, tau, alpha = pm.Normal("mu", 0, 5), pm.Gamma("tau", 2, 1), pm.Beta("alpha", 4, 1)
        if centred:
            fertility = pm.CAR("fertility", mu=mu * np.ones(49), W=W, alpha=alpha, tau=tau)
        else:
            L = pt.linalg.cholesky(np.diag(W.sum(axis=0)) - alpha * W)
            z = pt.linalg.solve_triangular(L.T, pm.Normal("z", shape=49), lower=False)
            fertility = pm.Deterministic("fertility", mu + z / pm.math.sqrt(tau))
        pm.Normal("y", fertility, pm.HalfNormal("sigma", 1), observed=y)
    return model


def beta_blockers(centred: bool = True) -> pm.Model:
    with pm.Model() as model:
        base = pm.Normal("base", -2, 1.5, shape=22)
        mu, tau = pm.Normal("mu", 0, 1), pm.HalfNormal("tau", 0.5)
        if centred:
            theta = pm.StudentT("theta", nu=4, mu=mu, sigma=tau, shape=22)
        else:
            theta = pm.Deterministic("theta", mu + tau * pm.StudentT("z", nu=4, shape=22))
        logit = pm.math.stack([base, base + theta])
        pm.Binomial("deaths", PATIENTS, logit_p=logit, observed=DEATHS)
    return model


def volatility(centred: bool = True) -> pm.Model:
    rng = np.random.default_rng(110)
    h = _simulated_autoregression(150, 0.95, 0.25, -2.0, rng)
    y = 0.05 + np.exp(h / 2) * rng.standard_t(8, 150)
    with pm.Model() as model:
        drift, mu, s = pm.Normal("drift", 0, 0.5), pm.Normal("mu", -2, 2), pm.HalfNormal("s", 0.5)
        rho = 2 * pm.Beta("r", 20, 1.5) - 1
        if centred:
            start = pm.Normal.dist(mu, s / pm.math.sqrt(1 - rho**2))
            h = pm.AR("h", [mu * (1 - rho), rho], sigma=s, constant=True, init_dist=start, shape=150)
        else:
            h = pm.Deterministic("h", _autoregression(pm.Normal("z", shape=150), rho, s, mu))
        pm.StudentT("y", nu=8, mu=drift, sigma=pm.math.exp(h / 2), observed=y)
    return model


def group_variances(centred: bool = True) -> pm.Model:
    rng = np.random.default_rng(111)
    group = np.repeat(np.arange(15), rng.integers(3, 10, 15))
    y = rng.normal(0, 0.5, 15)[group] + np.exp(rng.normal(0, 0.5, 15))[group] * rng.normal(size=group.size)
    with pm.Model(coords={"group": np.arange(15)}) as model:
        mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
        level, omega = pm.Normal("level", 0, 1), pm.HalfNormal("omega", 1)
        theta = _effects("theta", mu, tau, 15, centred)
        if centred:
            sd = pm.LogNormal("sd", level, omega, dims="group")
        else:
            sd = pm.Deterministic("sd", pm.math.exp(level + omega * pm.Normal("z_sd", shape=15)))
        pm.Normal("y", theta[group], sd[group], observed=y)
    return model


def gamma_scales(centred: bool = True) -> pm.Model:
    rng = np.random.default_rng(112)
    counts = rng.poisson(rng.gamma(2.0, 3.0, (30, 1)) * np.ones((30, 3)))
    with pm.Model() as model:
        mean, shape = pm.Exponential("mean", 0.1), pm.Gamma("shape", 2, 0.5)
        rate = pm.Gamma("rate", shape, shape / mean, shape=(30, 1))
        pm.Poisson("counts", rate, shape=(30, 3), observed=counts)
    return model


def rat_tumours() -> pm.Model:
    with pm.Model() as model:
        omega, kappa = pm.Beta("omega", 1, 1), pm.Gamma("kappa", 2, 0.1)
        theta = pm.Beta("theta", omega * kappa, (1 - omega) * kappa, shape=71)
        pm.Binomial("tumours", RATS, theta, observed=TUMOURS)
    return model


def horseshoe(centred: bool = True) -> pm.Model:
    rng = np.random.default_rng(113)
    x = rng.normal(size=(60, 15))
    y = x[:, :3] @ [1.2, -0.8, 0.5] + rng.normal(size=60)
    with pm.Model() as model:
        sigma, tau = pm.HalfNormal("sigma", 2), pm.HalfCauchy("tau", 0.2)
        local = pm.HalfCauchy("local", 1, shape=15)
        beta = _effects("beta", 0, tau * local, 15, centred)
        pm.Normal("y", x @ beta, sigma, observed=y)
    return model


def chimpanzees() -> pm.Model:
    rng = np.random.default_rng(114)
    actor, block, treatment = (part.ravel() for part in np.indices((7, 6, 4)))
    logit = 0.6 + rng.normal(0, 1.5, 7)[actor] + rng.normal(0, 0.2, 6)[block] + rng.normal(0, 0.3, 4)[treatment]
    pulled = rng.binomial(3, 1 / (1 + np.exp(-logit)))
    with pm.Model() as model:
        abar, b = pm.Normal("abar", 0, 1.5), pm.Normal("b", 0, 0.5, shape=4)
        sd_a, sd_g = pm.Exponential("sd_a", 1), pm.Exponential("sd_g", 1)
        z, x = pm.Normal("z", shape=7), pm.Normal("x", shape=6)
        logit_p = abar + sd_a * z[actor] + sd_g * x[block] + b[treatment]
        pm.Binomial("pulled", 3, logit_p=logit_p, observed=pulled)
    return model


def sleep_study() -> pm.Model:
    rng = np.random.default_rng(115)
    subject, days = (part.ravel() for part in np.indices((18, 10)))
    y = 250 + 10 * days + rng.normal(0, 25, 18)[subject] + rng.normal(0, 6, 18)[subject] * days + rng.normal(0, 25, 180)
    with pm.Model(coords={"subject__factor_dim": np.arange(18)}) as model:
        intercept, slope = pm.Normal("Intercept", y.mean(), 2.5 * y.std()), pm.Normal("days", 0, 50)
        eta = intercept + slope * (days - days.mean())
        for name, x, scale in (("1|subject", np.ones(180), 2.5 * y.std()), ("days|subject", days, 50)):
            sigma = pm.HalfNormal(f"{name}_sigma", scale)
            offset = pm.Normal(f"{name}_offset", 0, 1, dims="subject__factor_dim")
            effect = pm.Deterministic(name, offset * sigma, dims="subject__factor_dim")
            eta = eta + effect[subject] * x
        pm.Normal("y", eta, pm.HalfStudentT("sigma", nu=4, sigma=y.std()), observed=y)
    return model


MODELS = {
    "group_predictors": Held(group_predictors, "intercepts and slopes of 60 counties by a predictor of the county"),
    "pilots": Held(pilots, "crossed effects of 5 conditions and 8 airports, one observation of each"),
    "pupils": Held(pupils, "three levels: passes of 48 classes of 12 schools"),
    "police_stops": Held(police_stops, "counts with crossed effects and overdispersion"),
    "two_parameter_logistic": Held(two_parameter_logistic, "item response with LogNormal discriminations"),
    "frailty": Held(frailty, "Weibull survival with censoring, frailties of 20 hospitals"),
    "nile": Held(nile, "local level: a random walk with noise"),
    "disease_map": Held(disease_map, "BYM2: ICAR and independent effects, non-centred by hand", False),
    "crop_yield": Held(crop_yield, "CAR with unknown mean, precision and dependence"),
    "beta_blockers": Held(beta_blockers, "meta-analysis of 22 trials, StudentT effects"),
    "volatility": Held(volatility, "AR(1) log volatility, StudentT returns"),
    "group_variances": Held(group_variances, "means and LogNormal standard deviations of 15 groups"),
    "gamma_scales": Held(gamma_scales, "Gamma rates of 30 groups, mean and shape unknown", False),
    "rat_tumours": Held(rat_tumours, "Beta-binomial, 71 groups", False),
    "horseshoe": Held(horseshoe, "linear regression, 15 covariates, horseshoe"),
    "chimpanzees": Held(chimpanzees, "crossed logistic effects, non-centred by hand", False),
    "sleep_study": Held(sleep_study, "(1 + days|subject) as Bambi writes it, non-centred", False),
}

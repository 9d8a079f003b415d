"""Small hierarchical models, one for each family of the non-centring, and their densities."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pmm_mcmc.model.pymc_density import build_log_density

W = np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]])
EFFECT, ERROR = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def eight_schools():
    """The effects as they are written."""
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
        theta = pm.Normal("theta", mu, tau, shape=8)
        pm.Normal("y", theta, ERROR, observed=EFFECT)
    return model


def _real(name):
    mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
    if name == "StudentT":
        pm.StudentT("x", nu=4, mu=mu, sigma=tau, shape=3)
    else:
        getattr(pm, name)("x", mu, tau, shape=3)


def _positive(name):
    tau = pm.HalfNormal("tau")
    arguments = {
        "HalfNormal": {"sigma": tau}, "HalfCauchy": {"beta": tau}, "HalfStudentT": {"nu": 3, "sigma": tau},
        "Exponential": {"lam": 1 / tau}, "Gamma": {"alpha": 2.0, "beta": 1 / tau},
        "InverseGamma": {"alpha": 2.0, "beta": tau}, "Weibull": {"alpha": 2.0, "beta": tau},
    }  # fmt: skip
    getattr(pm, name)("x", shape=2, **arguments[name])


def _lkj(n=2, sd_dist=None):
    sd_dist = pm.HalfNormal.dist(1.0) if sd_dist is None else sd_dist
    chol, _, _ = pm.LKJCholeskyCov("chol", n=n, eta=2.0, sd_dist=sd_dist, compute_corr=True)
    pm.MvNormal("x", pm.Normal("mu", shape=n), chol=chol, shape=(3, n))


def _by_correlations():
    chol = pm.HalfNormal("sd", shape=3)[:, None] * pm.LKJCorr("corr", n=3, eta=2.0)
    pm.MvNormal("x", pm.Normal("mu", shape=3), chol=chol, shape=(2, 3))


def two_scales(prior=(2.0, 2.0), seen=False):
    """Two standard deviations, each a variable of its own, and a correlation."""
    with pm.Model() as model:
        a, b, rho = pm.HalfNormal("a"), pm.Exponential("b"), 2.0 * pm.Beta("r", *prior) - 1.0
        chol = pt.stacklists([[a, 0.0], [rho * b, pt.sqrt(1.0 - rho**2) * b]])
        x = pm.MvNormal("x", pm.Normal("mu", shape=2), chol=chol, shape=(3, 2))
        pm.Normal("y", x.sum(axis=1) + (rho if seen else 0.0), 1.0, observed=np.arange(3.0))
    return model


def _multivariate(how):
    mu, sd = pm.Normal("mu", shape=2), pm.HalfNormal("sd", shape=2)
    covariance = pm.math.stack([[sd[0] ** 2, 0.3 * sd[0] * sd[1]], [0.3 * sd[0] * sd[1], sd[1] ** 2]])
    if how == "cov":
        pm.MvNormal("x", mu, cov=covariance, shape=(3, 2))
    else:
        pm.MvNormal("x", mu, tau=covariance, shape=(3, 2))


def _process():
    eta, length = pm.HalfNormal("eta"), pm.InverseGamma("length", 3.0, 3.0)
    apart = np.subtract.outer(np.linspace(0, 2, 7), np.linspace(0, 2, 7))
    covariance = eta**2 * pm.math.exp(-0.5 * (apart / length) ** 2) + 1e-3 * np.eye(7)
    f = pm.MvNormal("f", np.zeros(7), cov=covariance)
    pm.Poisson("y", pm.math.exp(f), observed=np.arange(7))


def _walks():
    mu, s, rho = pm.Normal("mu"), pm.HalfNormal("s"), pm.Beta("rho", 20.0, 3.0)
    pm.GaussianRandomWalk("walk", mu=mu, sigma=s, init_dist=pm.Normal.dist(0.0, 1.0), steps=5)
    start = pm.Normal.dist(mu, s / pm.math.sqrt(1 - rho**2))
    pm.AR("constant", [mu * (1 - rho), rho], sigma=s, constant=True, init_dist=start, shape=6)
    pm.AR("second", [rho, -0.2], sigma=s, init_dist=pm.Normal.dist(0.0, 1.0, shape=2), shape=6)


def _neighbours():
    mu, tau, precision = pm.Normal("mu"), pm.HalfNormal("tau"), pm.Gamma("precision", 2.0, 2.0)
    pm.ZeroSumNormal("sums", sigma=tau, shape=4)
    pm.CAR("car", mu=mu * np.ones(3), W=W, alpha=0.5, tau=precision)
    pm.ICAR("icar", W=W, sigma=tau)


def _nested():
    mu, data = pm.Normal("mu", 0.0, 3.0), pm.Data("data", np.ones((3, 2)))
    tau, omega = pm.HalfNormal("tau", 2.0), pm.HalfNormal("omega", 2.0)
    a = pm.Normal("a", mu, tau, shape=3)
    centre = pm.Deterministic("centre", a[:, None] + 0.0)
    b = pm.Normal("b", centre, omega, shape=(3, 2))
    pm.Normal("y", b, 1.0, observed=data)


def _horseshoe():
    tau, local, slab = pm.HalfCauchy("tau", 1.0), pm.HalfCauchy("local", 1.0, shape=5), pm.InverseGamma("slab", 2, 2)
    scale = tau * local * pm.math.sqrt(slab / (slab + (tau * local) ** 2))
    beta = pm.Normal("beta", 0.0, scale, shape=5)
    pm.Normal("y", beta.sum(), 1.0, observed=3.0)


def _imputed():
    mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
    pm.Normal("y", mu, tau, observed=np.ma.masked_invalid([1.0, np.nan, 2.0]))


def _potential():
    mu, tau = pm.Normal("mu"), pm.HalfNormal("tau")
    x = pm.Normal("x", mu, tau, shape=4)
    pm.Potential("coupled", -(x.sum() ** 2))


def by_hand(product=False, symmetric=True, also_noise=False):
    """Intercepts and slopes of three groups, non-centred by hand, and a scale of noise that has no offsets."""
    x, scales = np.array([0.5, -1.0, 2.0]), pm.HalfNormal("scales", [2.0, 1.0], shape=2)
    mu = pm.Normal("mu", 0.0, 3.0)
    offset = pm.Normal("offset", 0.0, 1.0, shape=(3, 2))
    gumbel = pm.Normal("shift") if symmetric else pm.Gumbel("shift", 0.0, 1.0)
    own = pm.HalfNormal("own", 1.0)
    effect = offset * scales * (own if product else 1.0)
    noise = pm.HalfNormal("noise", 1.0)
    seen = effect[:, 0] + effect[:, 1] * x + gumbel * own + mu
    pm.Normal("y", seen, noise * (own if also_noise else 1.0), observed=[1.0, -0.3, 2.0])


BUILD = {
    **{name: (lambda name=name: _real(name)) for name in
       ("Normal", "StudentT", "Laplace", "Cauchy", "Logistic", "Gumbel", "LogNormal")},
    **{name: (lambda name=name: _positive(name)) for name in
       ("HalfNormal", "HalfCauchy", "HalfStudentT", "Exponential", "Gamma", "InverseGamma", "Weibull")},
    **{how: (lambda how=how: _multivariate(how)) for how in ("cov", "tau")},
    "lkj": _lkj, "lkj of three": lambda: _lkj(3), "lkj of gammas": lambda: _lkj(3, pm.Gamma.dist(2.0, 2.0)),
    "correlations": _by_correlations,
    "Gaussian process": _process, "walks": _walks, "neighbours": _neighbours, "nested": _nested,
    "regularised horseshoe": _horseshoe, "imputed": _imputed, "potential": _potential,
    "by hand": by_hand,
}  # fmt: skip


def build(name):
    """Return a model by name."""
    with pm.Model() as model:
        BUILD[name]()
    return model


def densities(model, choices=None):
    """Return the densities of a model as it is written and non-centred, and a flat starting position."""
    point = model.initial_point(0)
    vars = list(model.value_vars)
    plain, mapped = (build_log_density(vars, model, point, asked) for asked in (None, choices or {}))
    start = np.concatenate([np.ravel(point[var.name]) for var in vars]).astype(float)
    return plain, mapped, start


def some_noncentring(structure, rng, none=False):
    """Return parameters of a non-centring at random: ``a`` of any sign, ``H`` without negative eigenvalues."""
    noncentring = structure.initial_noncentring()
    signs = structure.n_parameters - len(structure.signed)
    noncentring[signs:] = rng.normal(size=len(structure.signed))
    if none:
        return noncentring
    begin = 0
    for child in structure.children:
        a, m = rng.normal(size=child.size) * 2, child.size
        if child.kind == "grouped":
            K = child.shape[-1]
            root = rng.normal(size=(m // K, K, K))
            h = root @ root.swapaxes(1, 2)
        else:
            h = 3 * rng.exponential(size=m)
        # Groups are turned or not; what elements have in common is made up for to a degree.
        rho = {"elementwise": rng.uniform(size=1), "grouped": [1.0]}.get(child.kind, [])
        noncentring[begin : begin + child.n_parameters] = np.concatenate([a, h.ravel(), rho])
        begin += child.n_parameters
    noncentring[begin:signs] = rng.normal(size=signs - begin)
    return noncentring

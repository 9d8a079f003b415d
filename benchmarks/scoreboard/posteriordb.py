"""The posteriors of posteriordb with reference draws, as PyMC models: ``scoreboard.check`` compares them.

Models are those of the Stan programs, with their flat priors.  Variables have the names of the references, so that a
result is judged by name; what a model samples in place of one of them is said by ``free``.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions import transforms
from scoreboard.time_series import ARMA, HMM, ODE

DATA = Path(__file__).parent / "data"


class Posterior(NamedTuple):
    """A model: how it is built, and what turns reference draws into free variables that references do not have.

    ``mode`` is PyTensor's for the check: what is a loop is compiled.
    """

    build: Callable[[], pm.Model]
    free: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None
    mode: str = "FAST_COMPILE"


def data(name: str) -> SimpleNamespace:
    """Return a data set, its lists as arrays."""
    content = json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))
    return SimpleNamespace(**{key: np.array(v) if isinstance(v, list) else v for key, v in content.items()})


def regression(source: str, columns: Callable[[Any], tuple[Any, ...]], half_cauchy: bool = False) -> pm.Model:
    """Linear regression of the first of the columns on the others and a constant, with a flat prior of ``beta``."""
    y, *x = columns(data(source))
    X = np.column_stack([np.ones(len(y)), *x])
    with pm.Model() as model:
        beta = pm.Flat("beta", shape=X.shape[1])
        sigma = pm.HalfCauchy("sigma", 2.5) if half_cauchy else pm.HalfFlat("sigma")
        pm.Normal("y", pt.as_tensor(X.astype(float)) @ beta, sigma, observed=y.astype(float))
    return model


def _z(x: np.ndarray, sds: float = 1.0) -> np.ndarray:
    return (x - x.mean()) / (sds * x.std(ddof=1))


def _interaction(y: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    return y, a, b, a * b


def _kid(centre: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, ...]]) -> Callable[[Any], tuple[Any, ...]]:
    return lambda d: _interaction(d.kid_score, *centre(d.mom_hs.astype(float), d.mom_iq.astype(float)))


def _factor(x: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple((x == level).astype(float) for level in (2, 3, 4))


def _mesquite(*names: str) -> Callable[[Any], tuple[Any, ...]]:
    def columns(d: Any) -> tuple[Any, ...]:
        volume, area, shape = d.diam1 * d.diam2 * d.canopy_height, d.diam1 * d.diam2, d.diam1 / d.diam2
        known = {"volume": volume, "area": area, "shape": shape, **vars(d)}
        return (np.log(d.weight), *(known[n] if n == "group" else np.log(known[n]) for n in names))

    return columns


def _nes(d: Any) -> tuple[Any, ...]:
    return (d.partyid7, d.real_ideo, d.race_adj, *_factor(d.age_discrete), d.educ1, d.gender, d.income)


_SIX = ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
_VAS = ("volume", "area", "shape", "total_height")
_EARNINGS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "earn_height": lambda d: (d.earn, d.height),
    "log10earn_height": lambda d: (np.log10(d.earn), d.height),
    "logearn_height": lambda d: (np.log(d.earn), d.height),
    "logearn_height_male": lambda d: (np.log(d.earn), d.height, d.male),
    "logearn_interaction": lambda d: _interaction(np.log(d.earn), d.height, d.male),
    "logearn_interaction_z": lambda d: _interaction(np.log(d.earn), _z(d.height), d.male),
    "logearn_logheight_male": lambda d: (np.log(d.earn), np.log(d.height), d.male),
}
_KIDIQ: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "interaction": _kid(lambda hs, iq: (hs, iq)),
    "momhs": lambda d: (d.kid_score, d.mom_hs),
    "momhsiq": lambda d: (d.kid_score, d.mom_hs, d.mom_iq),
    "momiq": lambda d: (d.kid_score, d.mom_iq),
}
_MOM_WORK: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "interaction_c": _kid(lambda hs, iq: (hs - hs.mean(), iq - iq.mean())),
    "interaction_c2": _kid(lambda hs, iq: (hs - 0.5, iq - 100)),
    "interaction_z": _kid(lambda hs, iq: (_z(hs, 2), _z(iq, 2))),
    "mom_work": lambda d: (d.kid_score, *_factor(d.mom_work)),
}
_MESQUITE: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "logmesquite": _mesquite(*_SIX),
    "logmesquite_logva": _mesquite("volume", "area", "group"),
    "logmesquite_logvas": _mesquite(*_VAS, "density", "group"),
    "logmesquite_logvash": _mesquite(*_VAS, "group"),
    "logmesquite_logvolume": _mesquite("volume"),
    "mesquite": lambda d: (d.weight, *(getattr(d, name) for name in _SIX)),
}


def blr(source: str) -> pm.Model:
    d = data(source)
    with pm.Model() as model:
        beta, sigma = pm.Normal("beta", 0, 10, shape=d.D), pm.HalfNormal("sigma", 10)
        pm.Normal("y", pt.as_tensor(d.X) @ beta, sigma, observed=d.y)
    return model


def diamonds() -> pm.Model:
    d = data("diamonds")
    X = d.X[:, 1:] - d.X[:, 1:].mean(axis=0)
    with pm.Model() as model:
        b = pm.Normal("b", 0, 1, shape=X.shape[1])
        intercept = pm.StudentT("Intercept", nu=3, mu=8, sigma=10.0)
        sigma = pm.HalfStudentT("sigma", nu=3, sigma=10.0)
        pm.Normal("Y", intercept + pt.as_tensor(X) @ b, sigma, observed=d.Y)
    return model


def kilpisjarvi() -> pm.Model:
    d = data("kilpisjarvi_mod")
    with pm.Model() as model:
        alpha, beta = pm.Normal("alpha", d.pmualpha, d.psalpha), pm.Normal("beta", d.pmubeta, d.psbeta)
        pm.Normal("y", alpha + beta * d.x.astype(float), pm.HalfFlat("sigma"), observed=d.y)
    return model


def schools(centred: bool) -> pm.Model:
    d = data("eight_schools")
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        if centred:
            theta = pm.Normal("theta", mu, tau, shape=8)
        else:
            theta = pm.Deterministic("theta", mu + tau * pm.Normal("theta_trans", shape=8))
        pm.Normal("y", theta, d.sigma.astype(float), observed=d.y.astype(float))
    return model


def _covariance(x: np.ndarray, alpha: Any, rho: Any) -> Any:
    return alpha**2 * pt.exp(-0.5 * ((x[:, None] - x) / rho) ** 2)


def gp_poisson() -> pm.Model:
    d = data("gp_pois_regr")
    with pm.Model() as model:
        rho, alpha = pm.Gamma("rho", 25, 4), pm.HalfNormal("alpha", 2)
        factor = pt.linalg.cholesky(_covariance(d.x.astype(float), alpha, rho) + 1e-10 * np.eye(d.N))
        f = pm.Deterministic("f", factor @ pm.Normal("f_tilde", shape=d.N))
        pm.Poisson("k", pt.exp(f), observed=d.k)
    return model


def _f_tilde(draws: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    x = data("gp_pois_regr").x.astype(float)
    alpha, rho = (draws[name][..., None, None] for name in ("alpha", "rho"))
    factor = np.linalg.cholesky(alpha**2 * np.exp(-0.5 * ((x[:, None] - x) / rho) ** 2) + 1e-10 * np.eye(len(x)))
    return {"f_tilde": np.linalg.solve(factor, draws["f"][..., None])[..., 0]}


def gp_gaussian() -> pm.Model:
    d = data("gp_pois_regr")
    with pm.Model() as model:
        rho, alpha = pm.Gamma("rho", 25, 4), pm.HalfNormal("alpha", 2)
        sigma = pm.HalfNormal("sigma", 1)
        # The Stan program adds sigma, not its square.
        cov = _covariance(d.x.astype(float), alpha, rho) + sigma * np.eye(d.N)
        pm.MvNormal("y", np.zeros(d.N), cov=cov, observed=d.y)
    return model


def motorcycle() -> pm.Model:
    d = data("mcycle_gp")

    def gaussian_process(name: str, basis: np.ndarray, frequency: np.ndarray) -> Any:
        sd, scale = pm.HalfStudentT(f"sdgp{name}", nu=3, sigma=36.0), pm.InverseGamma(f"lscale{name}", 1.124909, 0.0177)
        z = pm.Normal(f"zgp{name}", shape=len(frequency))
        spectrum = sd**2 * np.sqrt(2 * np.pi) * scale * pt.exp(-0.5 * scale**2 * frequency[:, 0] ** 2)
        return pt.as_tensor(basis) @ (pt.sqrt(spectrum) * z)

    with pm.Model() as model:
        mean = pm.StudentT("Intercept", nu=3, mu=-13, sigma=36.0)
        mean = mean + gaussian_process("_1", d.Xgp_1, d.slambda_1)
        log_sd = pm.StudentT("Intercept_sigma", nu=3, mu=0, sigma=10.0)
        log_sd = log_sd + gaussian_process("_sigma_1", d.Xgp_sigma_1, d.slambda_sigma_1)
        pm.Normal("Y", mean, pt.exp(log_sd), observed=d.Y)
    return model


def gaussian_mixture() -> pm.Model:
    d = data("low_dim_gauss_mix")
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 2, shape=2, transform=transforms.ordered, initval=[-1.0, 1.0])
        sigma, theta = pm.HalfNormal("sigma", 2, shape=2), pm.Beta("theta", 5, 5)
        pm.NormalMixture("y", w=pt.stack([theta, 1 - theta]), mu=mu, sigma=sigma, observed=d.y)
    return model


_LINEAR = [
    *(("earnings", "{}", name, columns, False) for name, columns in _EARNINGS.items()),
    *(("kidiq", "kidscore_{}", name, columns, True) for name, columns in _KIDIQ.items()),
    *(("kidiq_with_mom_work", "kidscore_{}", name, columns, False) for name, columns in _MOM_WORK.items()),
    *(("mesquite", "{}", name, columns, False) for name, columns in _MESQUITE.items()),
    *((f"nes{year}", "{}", "nes", _nes, False) for year in (*range(1972, 2000, 4), 2000)),
]
POSTERIORS: dict[str, Posterior] = {
    **{
        f"{source}-{pattern.format(name)}": Posterior(partial(regression, source, columns, prior))
        for source, pattern, name, columns, prior in _LINEAR
    },
    **{f"{source}-blr": Posterior(partial(blr, source)) for source in ("sblrc", "sblri")},
    "diamonds-diamonds": Posterior(diamonds),
    "kilpisjarvi_mod-kilpisjarvi": Posterior(kilpisjarvi),
    "eight_schools-eight_schools_centered": Posterior(partial(schools, True)),
    "eight_schools-eight_schools_noncentered": Posterior(
        partial(schools, False),
        lambda draws: {"theta_trans": (draws["theta"] - draws["mu"][..., None]) / draws["tau"][..., None]},
    ),
    "gp_pois_regr-gp_pois_regr": Posterior(gp_poisson, _f_tilde),
    "gp_pois_regr-gp_regr": Posterior(gp_gaussian),
    "mcycle_gp-accel_gp": Posterior(motorcycle),
    "low_dim_gauss_mix-low_dim_gauss_mix": Posterior(gaussian_mixture),
    "arK-arK": Posterior(lambda: ARMA["arK"](data("arK"))),
    "arma-arma11": Posterior(lambda: ARMA["arma11"](data("arma"))),
    "garch-garch11": Posterior(
        lambda: ARMA["garch11"](data("garch")), lambda draws: {"share": draws["beta1"] / (1 - draws["alpha1"])}
    ),
    "hmm_example-hmm_example": Posterior(lambda: HMM["hmm_example"](data("hmm_example"))),
    "bball_drive_event_0-hmm_drive_0": Posterior(lambda: HMM["hmm_drive_0"](data("bball_drive_event_0"))),
    "bball_drive_event_1-hmm_drive_1": Posterior(lambda: HMM["hmm_drive_1"](data("bball_drive_event_1"))),
    "hudson_lynx_hare-lotka_volterra": Posterior(lambda: ODE["lotka_volterra"](data("hudson_lynx_hare")), mode="NUMBA"),
    "one_comp_mm_elim_abs-one_comp_mm_elim_abs": Posterior(
        lambda: ODE["one_comp_mm_elim_abs"](data("one_comp_mm_elim_abs")), mode="NUMBA"
    ),
}

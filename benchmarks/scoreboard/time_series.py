"""Time series, hidden Markov models and differential equations of posteriordb, without loops where that can be.

A linear recurrence and a product of transition matrices are associative: about log2(n) operations on arrays do what a
loop over n times would.  Differential equations are solved by Runge-Kutta steps in a scan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions import transforms
from targets import linear_recurrence


def ark(d: Any) -> pm.Model:
    lags = np.column_stack([d.y[d.K - k - 1 : d.T - k - 1] for k in range(d.K)])
    with pm.Model() as model:
        alpha, beta = pm.Normal("alpha", 0, 10), pm.Normal("beta", 0, 10, shape=d.K)
        sigma = pm.HalfCauchy("sigma", 2.5)
        pm.Normal("y", alpha + pt.as_tensor(lags) @ beta, sigma, observed=d.y[d.K :])
    return model


def arma11(d: Any) -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 10)
        phi, theta = pm.Normal("phi", 0, 2), pm.Normal("theta", 0, 2)
        sigma = pm.HalfCauchy("sigma", 2.5)
        before = pt.concatenate([pt.stack([mu]), pt.as_tensor(d.y[:-1])])
        error = linear_recurrence(d.y - mu - phi * before, -theta, d.T)
        pm.Potential("y", pm.logp(pm.Normal.dist(0, sigma), error).sum())
    return model


def garch11(d: Any) -> pm.Model:
    with pm.Model() as model:
        mu, alpha0 = pm.Flat("mu"), pm.HalfFlat("alpha0")
        # Uniform over the triangle alpha1 + beta1 < 1.
        alpha1 = pm.Beta("alpha1", 1, 2)
        beta1 = pm.Deterministic("beta1", pm.Uniform("share", 0, 1) * (1 - alpha1))
        first = pt.as_tensor([float(d.sigma1) ** 2])
        variance = linear_recurrence(pt.concatenate([first, alpha0 + alpha1 * (d.y[:-1] - mu) ** 2]), beta1, d.T)
        pm.Normal("y", mu, pt.sqrt(variance), observed=d.y)
    return model


ARMA: dict[str, Callable[[Any], pm.Model]] = {"arK": ark, "arma11": arma11, "garch11": garch11}


def log_product(log_matrices: Any, n: int) -> Any:
    """Return the logarithm of the product of ``n`` matrices ``(n, k, k)`` that are given by their logarithms."""
    while n > 1:
        half, left = n // 2, log_matrices[: n - n % 2]
        pairs = pt.logsumexp(left[0::2, :, :, None] + left[1::2, None, :, :], axis=2)
        log_matrices = pt.concatenate([pairs, log_matrices[n - 1 :]]) if n % 2 else pairs
        n = half + n % 2
    return log_matrices[0]


def hidden_markov(theta: Any, emission: Any, n: int) -> Any:
    """Return the log likelihood of two states from transition probabilities and log densities ``(n, 2)``.

    As in the Stan programs, the first state has no probability of its own.
    """
    steps = pt.log(theta)[None, :, :] + emission[1:, None, :]
    return pt.logsumexp(emission[0][:, None] + log_product(steps, n - 1))


def _transitions(alpha: np.ndarray) -> Any:
    return pt.stack([pm.Dirichlet("theta1", alpha[0]), pm.Dirichlet("theta2", alpha[1])])


def _pair(name: str, mean: list[float], positive: bool) -> Any:
    ordered = transforms.Chain([transforms.log, transforms.ordered]) if positive else transforms.ordered
    return pm.Normal(name, np.array(mean), 1.0, shape=2, transform=ordered, initval=np.array(mean) + 0.5)


def hmm_example(d: Any) -> pm.Model:
    with pm.Model() as model:
        theta, mu = _transitions(np.ones((2, 2))), _pair("mu", [3.0, 10.0], True)
        emission = pm.logp(pm.Normal.dist(mu, 1.0), pt.as_tensor(d.y[:, None]))
        pm.Potential("y", hidden_markov(theta, emission, d.N))
    return model


def _drive(d: Any, positive: bool, density: Callable[[str, Any, np.ndarray], Any]) -> pm.Model:
    with pm.Model() as model:
        theta = _transitions(d.alpha.astype(float))
        phi, lam = _pair("phi", [0.0, 3.0], positive), _pair("lambda", [0.0, 3.0], positive)
        emission = density("tau", phi, d.u[:, None]) + density("rho", lam, d.v[:, None])
        pm.Potential("uv", hidden_markov(theta, emission, d.N))
    return model


def hmm_drive_0(d: Any) -> pm.Model:
    return _drive(d, True, lambda _, rate, x: pt.log(rate) - rate * x)


def hmm_drive_1(d: Any) -> pm.Model:
    return _drive(d, False, lambda sd, mean, x: pm.logp(pm.Normal.dist(mean, getattr(d, sd)), pt.as_tensor(x)))


HMM: dict[str, Callable[[Any], pm.Model]] = {
    "hmm_example": hmm_example,
    "hmm_drive_0": hmm_drive_0,
    "hmm_drive_1": hmm_drive_1,
}


def solved(field: Callable[..., Any], start: Any, parameters: list[Any], interval: float, n: int, steps: int) -> Any:
    """Return the solution of z' = field(t, z, *parameters) after each of ``n`` intervals, each of so many RK4 steps."""
    h = interval / steps

    def one(t: Any, z: Any, *p: Any) -> Any:
        a = field(t, z, *p)
        b = field(t + h / 2, z + h / 2 * a, *p)
        c = field(t + h / 2, z + h / 2 * b, *p)
        return z + h / 6 * (a + 2 * b + 2 * c + field(t + h, z + h * c, *p))

    times = pt.as_tensor(h * np.arange(n * steps))
    path = pytensor.scan(one, sequences=[times], outputs_info=[start], non_sequences=parameters, return_updates=False)
    return path[steps - 1 :: steps]


def lotka_volterra(d: Any) -> pm.Model:
    def field(t: Any, z: Any, theta: Any) -> Any:
        return pt.stack([(theta[0] - theta[1] * z[1]) * z[0], (-theta[2] + theta[3] * z[0]) * z[1]])

    half = {"lower": 0.0}
    with pm.Model() as model:
        mean, sd = np.array([1, 0.05, 1, 0.05]), np.array([0.5, 0.05, 0.5, 0.05])
        theta = pm.TruncatedNormal("theta", mean, sd, **half, shape=4, initval=[0.5, 0.03, 0.8, 0.025])
        z_init = pm.LogNormal("z_init", np.log(10), 1, shape=2, initval=[30.0, 5.0])
        sigma = pm.LogNormal("sigma", -1, 1, shape=2)
        z = pt.concatenate([z_init[None, :], solved(field, z_init, [theta], 1.0, d.N, 16)])
        pm.LogNormal("y", pt.log(z), sigma, observed=np.vstack([d.y_init, d.y]).astype(float))
    return model


def one_compartment(d: Any) -> pm.Model:
    def field(t: Any, c: Any, k_a: Any, K_m: Any, V_m: Any) -> Any:
        return pt.exp(-k_a * t) * d.D * k_a / d.V - V_m / d.V * c / (K_m + c)

    with pm.Model() as model:
        k_a, K_m, V_m, sigma = (pm.HalfCauchy(name, 1) for name in ("k_a", "K_m", "V_m", "sigma"))
        c = solved(field, pt.zeros((), dtype="float64"), [k_a, K_m, V_m], 0.5, d.N_t, 20)
        pm.LogNormal("C", pt.log(c), sigma, observed=d.C_hat)
    return model


ODE: dict[str, Callable[[Any], pm.Model]] = {
    "lotka_volterra": lotka_volterra,
    "one_comp_mm_elim_abs": one_compartment,
}

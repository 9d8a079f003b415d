"""Models of NumPyro's example gallery as they stand there, each with the arguments that it is run with.

Data are those of the example where they are short or simulated in it (schools, baseball, admissions, lynx and hare);
else they are simulated with fixed seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.experimental.ode import odeint
from jax.scipy.special import logsumexp
from numpyro.contrib.control_flow import scan
from numpyro.handlers import condition, reparam
from numpyro.infer.reparam import LocScaleReparam, TransformReparam

__all__ = ["GALLERY", "Example"]


class Example(NamedTuple):
    """A model, its arguments, the example that it is from, and a twin that NUTS samples more easily."""

    model: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]
    source: str
    twin: Callable[..., Any] | None = None


def eight_schools(y, sigma):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("J", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("obs", dist.Normal(theta, sigma), obs=y)


def schools_data():
    return np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def divorce(marriage, age, divorce):
    a = numpyro.sample("a", dist.Normal(0.0, 0.2))
    bM, bA = numpyro.sample("bM", dist.Normal(0.0, 0.5)), numpyro.sample("bA", dist.Normal(0.0, 0.5))
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    mu = numpyro.deterministic("mu", a + bM * marriage + bA * age)
    numpyro.sample("obs", dist.Normal(mu, sigma), obs=divorce)


def divorce_data():
    rng = np.random.default_rng(2)
    age = rng.normal(size=50)
    marriage = -0.7 * age + 0.7 * rng.normal(size=50)
    return marriage, age, -0.6 * age + 0.8 * rng.normal(size=50)


HITS = np.array([18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7])


def baseball_data():
    return np.full(18, 45), HITS


def baseball_logit(at_bats, hits):
    loc, scale = numpyro.sample("loc", dist.Normal(-1, 1)), numpyro.sample("scale", dist.HalfCauchy(1))
    with numpyro.plate("num_players", len(at_bats)):
        alpha = numpyro.sample("alpha", dist.Normal(loc, scale))
        numpyro.sample("obs", dist.Binomial(at_bats, logits=alpha), obs=hits)


def baseball_beta(at_bats, hits):
    m, kappa = numpyro.sample("m", dist.Uniform(0, 1)), numpyro.sample("kappa", dist.Pareto(1, 1.5))
    with numpyro.plate("num_players", len(at_bats)):
        phi = numpyro.sample("phi", dist.Beta(m * kappa, (1 - m) * kappa))
        numpyro.sample("obs", dist.Binomial(at_bats, probs=phi), obs=hits)


def admissions(dept, male, applications, admit):
    v_mu = numpyro.sample("v_mu", dist.Normal(0, jnp.array([4.0, 1.0])))
    sigma = numpyro.sample("sigma", dist.HalfNormal(jnp.ones(2)))
    L_Rho = numpyro.sample("L_Rho", dist.LKJCholesky(2, concentration=2))
    z = numpyro.sample("z", dist.Normal(jnp.zeros((6, 2)), 1))
    v = jnp.dot(sigma[..., None] * L_Rho, z.T).T
    logits = v_mu[0] + v[dept, 0] + (v_mu[1] + v[dept, 1]) * male
    numpyro.sample("admit", dist.Binomial(applications, logits=logits), obs=admit)


def admissions_data():
    applied = np.array([825, 108, 560, 25, 325, 593, 417, 375, 191, 393, 373, 341])
    admitted = np.array([512, 89, 353, 17, 120, 202, 138, 131, 53, 94, 22, 24])
    return np.repeat(np.arange(6), 2), np.tile([1.0, 0.0], 6), applied, admitted


def stochastic_volatility(returns):
    step = numpyro.sample("sigma", dist.Exponential(50.0))
    s = numpyro.sample("s", dist.GaussianRandomWalk(scale=step, num_steps=len(returns)))
    nu = numpyro.sample("nu", dist.Exponential(0.1))
    numpyro.sample("r", dist.StudentT(df=nu, loc=0.0, scale=jnp.exp(s)), obs=returns)


def returns():
    rng = np.random.default_rng(6)
    return (np.exp(-0.5 + np.cumsum(0.15 * rng.normal(size=100))) * rng.standard_t(10, size=100),)


def gaussian_process(x, y):
    var, noise, length = (
        numpyro.sample(f"kernel_{name}", dist.LogNormal(0.0, 10.0)) for name in ("var", "noise", "length")
    )
    k = var * jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + (noise + 1e-6) * jnp.eye(len(x))
    numpyro.sample("Y", dist.MultivariateNormal(loc=jnp.zeros(len(x)), covariance_matrix=k), obs=y)


def curve():
    rng, x = np.random.default_rng(0), np.linspace(-1, 1, 30)
    y = x + 0.2 * x**3 + 0.5 * (0.5 + x) ** 2 * np.sin(4.0 * x) + 0.15 * rng.normal(size=30)
    return x, (y - y.mean()) / y.std()


def funnel(dim):
    y = numpyro.sample("y", dist.Normal(0, 3))
    numpyro.sample("x", dist.Normal(jnp.zeros(dim - 1), jnp.exp(y / 2)))


def hidden_markov(categories, words, labelled, unlabelled):
    """Forward algorithm over the unlabelled words, as a factor."""
    transition = numpyro.sample(
        "transition_prob", dist.Dirichlet(jnp.broadcast_to(jnp.ones(categories), (categories, categories))).to_event(1)
    )
    emission = numpyro.sample(
        "emission_prob", dist.Dirichlet(jnp.broadcast_to(0.1 * jnp.ones(words), (categories, words))).to_event(1)
    )
    category, word = labelled
    numpyro.sample("supervised_categories", dist.Categorical(transition[category[:-1]]), obs=category[1:])
    numpyro.sample("supervised_words", dist.Categorical(emission[category]), obs=word)
    log_t, log_e = jnp.log(transition), jnp.log(emission)

    def forward(log_prob, word):
        return logsumexp(log_prob[:, None] + log_t, axis=0) + log_e[:, word], None

    start = log_t[category[-1]] + log_e[:, unlabelled[0]]
    log_prob, _ = jax.lax.scan(forward, start, unlabelled[1:])
    numpyro.factor("forward_log_prob", logsumexp(log_prob))


def sentences():
    rng, categories, words = np.random.default_rng(9), 3, 10
    transition = rng.dirichlet(np.ones(categories), categories)
    emission = rng.dirichlet(0.1 * np.ones(words), categories)
    state, states, said = 0, [], []
    for _ in range(600):
        state = rng.choice(categories, p=transition[state])
        states.append(state)
        said.append(rng.choice(words, p=emission[state]))
    states, said = np.array(states), np.array(said)
    return categories, words, (states[:100], said[:100]), said[100:]


LYNX_HARE = np.array(
    "30 4 47.2 6.1 70.2 9.8 77.4 35.2 36.3 59.4 20.6 41.7 18.1 19 21.4 13 22 8.3 25.4 9.1 27.1 7.4 40.3 8 57 12.3 "
    "76.6 19.5 52.3 45.7 19.5 51.1 11.2 29.7 7.6 15.8 14.6 9.7 16.2 10.1 24.7 8.6".split(),
    float,
).reshape(-1, 2)


def predator_prey(y):
    def change(z, t, theta):
        u, v = z
        alpha, beta, gamma, delta = theta
        return jnp.stack([(alpha - beta * v) * u, (-gamma + delta * u) * v])

    start = numpyro.sample("z_init", dist.LogNormal(jnp.log(10), 1).expand([2]))
    theta = numpyro.sample(
        "theta",
        dist.TruncatedNormal(low=0.0, loc=jnp.array([1.0, 0.05, 1.0, 0.05]), scale=jnp.array([0.2, 0.01, 0.2, 0.01])),
    )
    z = odeint(change, start, jnp.arange(float(len(y))), theta, rtol=1e-6, atol=1e-5, mxstep=1000)
    sigma = numpyro.sample("sigma", dist.LogNormal(-1, 1).expand([2]))
    numpyro.sample("y", dist.LogNormal(jnp.log(z), sigma), obs=y)


def horseshoe(x, y):
    lambdas = numpyro.sample("lambdas", dist.HalfCauchy(jnp.ones(x.shape[1])))
    tau = numpyro.sample("tau", dist.HalfCauchy(jnp.ones(1)))
    unscaled = numpyro.sample("unscaled_betas", dist.Normal(0.0, jnp.ones(x.shape[1])))
    betas = numpyro.deterministic("betas", tau * lambdas * unscaled)
    precision = numpyro.sample("prec_obs", dist.Gamma(3.0, 1.0))
    numpyro.sample("Y", dist.Normal(jnp.sum(betas * x, axis=-1), 1.0 / jnp.sqrt(precision)), obs=y)


def sparse_data():
    rng = np.random.default_rng(0)
    x, slopes = rng.normal(size=(100, 10)), np.append([2.0, -1.0, 0.6], np.zeros(7))
    return x, x @ slopes + 0.5 * rng.normal(size=100)


def autoregression(y):
    alpha_1, alpha_2 = (numpyro.sample(f"alpha_{i}", dist.Normal(0, 1)) for i in (1, 2))
    const, sigma = numpyro.sample("const", dist.Normal(0, 1)), numpyro.sample("sigma", dist.HalfNormal(1))

    def transition(carry, _):
        before, earlier = carry
        mean = const + alpha_1 * before + alpha_2 * earlier
        now = numpyro.sample("y", dist.Normal(mean, sigma))
        return (now, before), mean

    with condition(data={"y": y[2:]}):
        _, mu = scan(transition, (y[1], y[0]), jnp.arange(len(y) - 2))
    numpyro.deterministic("mu", mu)


def cycle():
    t = np.arange(60)
    return (jnp.asarray(np.sin(0.1 * t) + 0.1 * np.random.default_rng(0).normal(size=60)),)


def ordinal(x, y, classes):
    b = numpyro.sample("b_X_eta", dist.Normal(0, 5))
    with numpyro.handlers.reparam(config={"c_y": TransformReparam()}):
        c = numpyro.sample(
            "c_y",
            dist.TransformedDistribution(
                dist.Dirichlet(jnp.ones(classes)), dist.transforms.SimplexToOrderedTransform(0.0)
            ),
        )
    with numpyro.plate("obs", len(x)):
        numpyro.sample("Y", dist.OrderedLogistic(x * b, c), obs=y)


def ordered_data():
    rng = np.random.default_rng(3)
    x = rng.normal(size=60)
    return x, np.digitize(1.5 * x + rng.logistic(size=60), [-1.0, 0.5]), 3


def zero_inflated(x, y):
    b1 = numpyro.sample("b1", dist.Normal(jnp.zeros(x.shape[1]), 1.0))
    b2 = numpyro.sample("b2", dist.Normal(jnp.zeros(x.shape[1]), 1.0))
    with numpyro.plate("obs", len(x)):
        numpyro.sample("Y", dist.ZeroInflatedPoisson(jax.nn.sigmoid(x @ b1), rate=jnp.exp(x @ b2)), obs=y)


def fish():
    rng = np.random.default_rng(4)
    x = np.column_stack([np.ones(200), rng.normal(size=(200, 2))])
    fishing = rng.uniform(size=200) > 1 / (1 + np.exp(-x @ [-0.5, 1.0, 0.0]))
    return x, fishing * rng.poisson(np.exp(x @ [0.8, 0.3, -0.5]))


def lung_decline(patient, week, fvc):
    mu_a, sigma_a = numpyro.sample("mu_alpha", dist.Normal(0.0, 5.0)), numpyro.sample("sigma_alpha", dist.HalfNormal(5))
    mu_b, sigma_b = numpyro.sample("mu_beta", dist.Normal(0.0, 5.0)), numpyro.sample("sigma_beta", dist.HalfNormal(5))
    with numpyro.plate("patients", len(np.unique(patient))):
        alpha = numpyro.sample("alpha", dist.Normal(mu_a, sigma_a))
        beta = numpyro.sample("beta", dist.Normal(mu_b, sigma_b))
    sigma = numpyro.sample("sigma", dist.HalfNormal(5.0))
    with numpyro.plate("data", len(patient)):
        numpyro.sample("obs", dist.Normal(alpha[patient] + beta[patient] * week, sigma), obs=fvc)


def patients():
    rng, patient = np.random.default_rng(5), np.repeat(np.arange(20), 7)
    week = rng.normal(size=140)
    level, slope = 1.5 * rng.normal(size=20), -0.4 + 0.1 * rng.normal(size=20)
    return patient, week, level[patient] + slope[patient] * week + 0.3 * rng.normal(size=140)


def noncentred(model, *sites):
    return reparam(model, config={site: LocScaleReparam(0) for site in sites})


GALLERY = {
    "eight_schools": Example(eight_schools, schools_data, "README", noncentred(eight_schools, "theta")),
    "divorce": Example(divorce, divorce_data, "bayesian_regression"),
    "baseball_logit": Example(baseball_logit, baseball_data, "baseball", noncentred(baseball_logit, "alpha")),
    "baseball_beta": Example(baseball_beta, baseball_data, "baseball"),
    "admissions": Example(admissions, admissions_data, "ucbadmit"),
    "stochastic_volatility": Example(stochastic_volatility, returns, "stochastic_volatility"),
    "gaussian_process": Example(gaussian_process, curve, "gp"),
    "funnel": Example(funnel, lambda: (10,), "funnel", noncentred(funnel, "x")),
    "hidden_markov": Example(hidden_markov, sentences, "hmm"),
    "predator_prey": Example(predator_prey, lambda: (LYNX_HARE,), "ode"),
    "horseshoe": Example(horseshoe, sparse_data, "horseshoe_regression"),
    "autoregression": Example(autoregression, cycle, "ar2"),
    "ordinal": Example(ordinal, ordered_data, "ordinal_regression"),
    "zero_inflated": Example(zero_inflated, fish, "zero_inflated_poisson"),
    "lung_decline": Example(
        lung_decline, patients, "bayesian_hierarchical_linear_regression", noncentred(lung_decline, "alpha", "beta")
    ),
}

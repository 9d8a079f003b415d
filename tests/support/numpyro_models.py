"""Three models of NumPyro's example gallery, with moments by a long run of its NUTS.

``python tests/support/numpyro_models.py`` makes ``numpyro_references.json`` in a minute.  Data are those of the example
for the schools, else simulated with fixed seeds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import xarray as xr
from numpyro.handlers import reparam
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import LocScaleReparam

REFERENCES = Path(__file__).parent / "numpyro_references.json"
LONG = {"num_warmup": 1000, "num_samples": 2000, "num_chains": 4}


class Example(NamedTuple):
    """A model, its arguments, and a twin that NUTS samples more easily."""

    model: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]
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


EXAMPLES = {
    "eight_schools": Example(eight_schools, schools_data, reparam(eight_schools, config={"theta": LocScaleReparam(0)})),
    "divorce": Example(divorce, divorce_data),
    "zero_inflated": Example(zero_inflated, fish),
}


def reference(example: Example) -> dict[str, Any]:
    """Return moments of every site by NUTS, with its divergences."""
    import arviz as az

    with jax.enable_x64(True):
        kernel = NUTS(example.twin or example.model, target_accept_prob=0.95)
        run = MCMC(kernel, **LONG, chain_method="sequential", progress_bar=False)
        run.run(jax.random.key(1), *example.args(), extra_fields=("diverging",))
        drawn = {site: np.asarray(values) for site, values in run.get_samples(group_by_chain=True).items()}
    labels = [
        site + (f"[{', '.join(map(str, i))}]" if i else "")
        for site in sorted(drawn)
        for i in np.ndindex(drawn[site].shape[2:])
    ]
    flat = np.concatenate([drawn[site].reshape(*drawn[site].shape[:2], -1) for site in sorted(drawn)], axis=-1)
    x = xr.DataArray(flat, dims=("chain", "draw", "i"))
    moments = {"mean": flat.mean((0, 1)), "sd": flat.std((0, 1)), "mcse_mean": np.asarray(az.mcse(x, method="mean"))}
    figures = {field: [float(f"{value:.8g}") for value in values] for field, values in moments.items()}
    return {**LONG, "divergences": int(run.get_extra_fields()["diverging"].sum()), "labels": labels, **figures}


if __name__ == "__main__":
    lines = (f" {json.dumps(name)}: {json.dumps(reference(example))}" for name, example in EXAMPLES.items())
    REFERENCES.write_text("{\n" + ",\n".join(lines) + "\n}\n")

r"""Gradients to the posterior with many chains, against LAPS and NUTS: ``python -m benchmarks exact_peers``.

All samplers begin with the same number of chains within one unit of the model's initial point.  The error is that of
the mean of x^2 over the chains *at one time*, b2max = max_i (mean x_i^2 - E x_i^2)^2 / Var x_i^2, and the figure the
number of gradients of a chain after which it stays below 0.01.  With 2,048 chains chance alone makes about 0.004.

- ``pmm``: ``pmm.sample(exact=True)``, its warm-up from the first gradient on, then the approach of the leg.
- ``LAPS`` of BlackJAX (Late Adjusted Parallel Sampler) for each of the pairs of lengths in ``LENGTHS``, which its user
  gives; its unadjusted phase stops by itself.  A step takes one gradient, one of the adjusted phase two or more.
- ``NUTS`` of NumPyro, each chain with a warm-up of its own of 200 iterations; gradients are means over chains.

References are those of ``tests/support/targets.py`` or, for models of ``scoreboard``, 4 x 5,000 draws of PyMC's NUTS.
"""

from __future__ import annotations

import argparse
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
from scoreboard.posteriordb import data
from scoreboard.published import PUBLISHED
from targets import TARGETS, reference
from versus.jax_density import jax_log_density, starts

import pmm_mcmc as pmm
from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.run.exact_leg import Leg
from pmm_mcmc.run.plan import Asked, SamplingPlan
from pmm_mcmc.warmup.pooled import Warming

LENGTHS = ((100, 200), (300, 600))
LIMIT, LONGEST, NUTS_WARM_UP = 0.01, 1000, 200


def german25() -> pm.Model:
    """Logistic regression on the German credit data: 24 standardised features and an intercept."""
    d = data("german_credit")
    x = np.column_stack([(d.features - d.features.mean(axis=0)) / d.features.std(axis=0), np.ones(len(d.bad))])
    with pm.Model() as model:
        weights = pm.Normal("weights", shape=x.shape[1])
        pm.Bernoulli("bad", logit_p=x @ weights, observed=d.bad)
    return model


def model_and_moments(name):
    if name in TARGETS:
        return TARGETS[name].build(), reference(name)
    model = german25() if name == "german25" else PUBLISHED[name]()
    with model:
        dt = pm.sample(5000, chains=4, cores=2, random_seed=1, progressbar=False, include_transformed=True)
    group = dt["unconstrained_posterior"] if "unconstrained_posterior" in dt.children else dt["posterior"]
    values = [(group if v.name in group else dt["posterior"])[v.name].values for v in model.continuous_value_vars]
    x = np.concatenate([part.reshape(*part.shape[:2], -1) for part in values], axis=-1).reshape(20_000, -1)
    return model, SimpleNamespace(second=(x**2).mean(axis=0), variance_of_square=(x**2).var(axis=0))


def settled(gradients, errors):
    """Return the gradients from which on the error stays below the limit, and the last error."""
    below = np.logical_and.accumulate((np.asarray(errors) < LIMIT)[::-1])[::-1]
    return (float(np.asarray(gradients)[np.argmax(below)]) if below.any() else np.inf), float(errors[-1])


def b2max(second, known):
    return ((second - known.second) ** 2 / known.variance_of_square).max(axis=-1)


def ours(model, known, x, seed):
    plan = SamplingPlan.of(Asked(pmm.PoissonULMC(), model, len(x), leg=LONGEST))
    warming = Warming.start(plan.engine, plan.arguments, x, LONGEST, np.random.default_rng(seed))
    spent, errors = [float(warming.n_grad.mean())], [np.inf]

    def block(advance):
        squares, gradients = [], []

        def look(which, chunk):
            squares.append((chunk.model_position**2).mean(axis=0))
            gradients.append(chunk.n_grad.mean(axis=0))

        spent_before = float(warming.n_grad.mean())
        advance(look)
        (second,), (each,) = squares, gradients
        # What the block's end evaluates besides counts from the next on.
        spent.extend(spent_before + np.cumsum(each))
        errors.extend(b2max(second, known))

    while not warming.finished:
        block(lambda look: warming.block(plan.engine, None, look))
    warm_up, leg = spent[-1], Leg.begin(warming, plan.engine.kernel, LONGEST, None)
    while not leg.finished:
        block(lambda look: leg.block(warming, plan.adjusted, None, look, Processes(slice(0, len(x)))))
    note = f"warm-up {warm_up:.0f}, in all {spent[-1]:.0f}{'' if leg.ended else ', leg too short'}"
    return *settled(spent, errors), note


def laps(density, known, x, seed, lengths):
    from blackjax.adaptation.laps import laps as run

    mesh, starts_of = jax.sharding.Mesh(np.array(jax.devices()[:1]), "chains"), jnp.asarray(x)
    second, variance = jnp.asarray(known.second), jnp.asarray(known.variance_of_square)
    info, each, _, _ = run(
        density, lambda key: starts_of[jax.random.randint(key, (), 0, len(x))], x.shape[1], *lengths, len(x), mesh,
        jax.random.key(seed), observables_for_bias=jnp.square,
        contract=lambda e: jnp.array([jnp.max((e - second) ** 2 / variance)]),
    )  # fmt: skip
    (first, then), each = (np.asarray(part["bias"])[:, 0] for part in info.values()), each * 15
    gradients = np.r_[1 + np.arange(len(first)), 1 + len(first) + each * (1 + np.arange(len(then)))]
    return *settled(gradients, np.r_[first, then]), f"unadjusted phase {len(first)}, in all {gradients[-1]}"


def nuts(density, known, x, seed):
    from numpyro.infer import MCMC, NUTS

    kernel = NUTS(potential_fn=lambda z: -density(z))
    mcmc = MCMC(
        kernel, num_warmup=NUTS_WARM_UP, num_samples=1, num_chains=len(x), chain_method="vectorized",
        progress_bar=False,
    )  # fmt: skip
    mcmc.warmup(jax.random.key(seed), init_params=jnp.asarray(x), collect_warmup=True, extra_fields=("num_steps",))
    position = np.asarray(mcmc.get_samples(group_by_chain=True))
    steps = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["num_steps"])
    return *settled(1 + np.cumsum(steps.mean(axis=0)), b2max((position**2).mean(axis=0), known)), ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=["german25", "brownian_motion", "breast_cancer"])
    parser.add_argument("--samplers", nargs="+", default=["pmm", "LAPS", "NUTS"], choices=["pmm", "LAPS", "NUTS"])
    parser.add_argument("--chains", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{'target':24}{'sampler':18}{'gradients':>10}{'last b2max':>12}  gradients of a chain")
    for name in given.targets:
        model, known = model_and_moments(name)
        density = jax_log_density(model)
        x = starts(model, given.chains, given.seed, jax.jit(density))
        runs = {"pmm": [("pmm, exact=True", lambda: ours(model, known, x, given.seed))]}
        runs["NUTS"] = [("NUTS", lambda: nuts(density, known, x, given.seed))]
        runs["LAPS"] = [
            (f"LAPS {lengths}", lambda lengths=lengths: laps(density, known, x, given.seed, lengths))
            for lengths in LENGTHS
        ]
        for sampler in given.samplers:
            for label, run in runs[sampler]:
                first, last, note = run()
                print(f"{name:24}{label:18}{first:10.0f}{last:12.4f}  {note}", flush=True)


if __name__ == "__main__":
    main()

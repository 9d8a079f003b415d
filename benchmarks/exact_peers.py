r"""Gradients to the posterior with many chains, against LAPS, MAMS and NUTS: ``python -m benchmarks exact_peers``.

All samplers begin with the same chains within one unit of the model's initial point.  The error of a square is that of
its mean over the chains *at one time*, b2_i = (mean x_i^2 - E x_i^2)^2 / Var x_i^2, and the figures are the numbers of
gradients of a chain after which its maximum over i (``max``) and its mean over i less chance (``mean``) stay below
0.01.  Chance alone makes 1 / chains of the mean, and of the maximum about (2 log d) / chains: with 500 parameters the
maximum asks for 2,000 chains, the mean for few.

- ``pmm``: ``pmm.sample()``, its warm-up from the first gradient on, then equilibration.
- ``LAPS`` of BlackJAX (Late Adjusted Parallel Sampler) with the lengths of its paper's script (``LENGTHS``), which its
  user gives; its unadjusted phase stops by itself.  A step takes one gradient, one of the adjusted phase two or more.
- ``MAMS`` of BlackJAX (adjusted microcanonical): one chain is tuned with BlackJAX' defaults and an acceptance of 0.9,
  which takes the gradients in the last column, and all chains begin with its step, length and scale.
- ``NUTS`` of NumPyro, each chain with a warm-up of its own of 200 iterations; gradients are means over chains.

Squares are of the parameters as ``scoreboard/published.py`` names them, with the moments kept there; of unconstrained
coordinates for targets of ``tests/support/targets.py``.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
import pytensor.tensor as pt
from pymc.model.transform.optimization import freeze_dims_and_data
from pymc.pytensorf import join_nonshared_inputs
from scoreboard.published import PUBLISHED
from scoreboard.truth import stored
from targets import TARGETS, reference
from versus.jax_density import jax_log_density, starts

from pmm_mcmc.engines.processes import Processes
from pmm_mcmc.run.plan import Asked, SamplingPlan
from pmm_mcmc.warmup.equilibration import Equilibration
from pmm_mcmc.warmup.pooled import Warming

# Unadjusted and adjusted phase in papers/LAPS/main.py of github.com/reubenharry/sampler-benchmarks.
LENGTHS = {"stochastic_volatility": (800, 1500), "german25": (500, 400), "german_sparse": (500, 400)}
LENGTHS_ELSE = (500, 500)
LIMIT, LONGEST, NUTS_WARM_UP = 0.01, 1000, 200
MAMS_TUNING, MAMS_LONGEST = 1000, 4000  # transitions of one chain; gradients of each
AT_ONCE = 64  # chains in a batch of gradients: all at once take gigabytes where data are many


def model_and_moments(name):
    """Return a model, its moments, and the names of the variables that they are of, empty for flat coordinates."""
    if name in TARGETS:
        return TARGETS[name].build(), reference(name), ()
    truth = stored("published", name)
    return PUBLISHED[name](), truth, truth.names


def squares_of(model, names):
    """Return the squares of variables, or of all flat coordinates, as a function of flat coordinates for JAX."""
    if not names:
        return jnp.square
    frozen = freeze_dims_and_data(model)
    (flat,), x = join_nonshared_inputs(
        point=frozen.initial_point(0),
        outputs=[pt.concatenate([v.ravel() for v in frozen.replace_rvs_by_values([frozen[name] for name in names])])],
        inputs=[{v.name: v for v in frozen.value_vars}[v.name] for v in model.continuous_value_vars],
        make_inputs_shared=False,
    )
    compiled = pytensor.function([x], [flat], mode="JAX", trust_input=True)
    shared = [jnp.asarray(s.get_value(borrow=True)) for s in compiled.get_shared()]
    return lambda x: jnp.square(compiled.vm.jit_fn(x, *shared)[0])


def in_batches(density):
    """Return a log density whose gradients of many chains are evaluated a batch at a time."""
    both = jax.custom_batching.custom_vmap(jax.value_and_grad(density))

    @both.def_vmap
    def _(size, batched, x):
        return jax.lax.map(jax.value_and_grad(density), x, batch_size=AT_ONCE), (True, True)

    log_density = jax.custom_vjp(lambda x: both(x)[0])
    log_density.defvjp(both, lambda gradient, out: (out * gradient,))
    return log_density


@dataclass(frozen=True)
class Errors:
    """Errors of means over chains of squares."""

    known: Any
    squares: Any
    chains: int

    def of_means(self, second):
        """Return the maximum and the mean, less chance, for means of squares."""
        b2 = (second - self.known.second) ** 2 / self.known.variance_of_square
        return jnp.stack([b2.max(axis=-1), b2.mean(axis=-1) - 1.0 / self.chains], axis=-1)

    def of(self, x):
        """Return both errors for positions ``(chain, ..., d)``."""
        return np.asarray(self.of_means(self.sums(x) / self.chains))

    def sums(self, x):
        """Return the sums of squares over the first axis."""
        return sum(self._sum(x[i : i + AT_ONCE]) for i in range(0, len(x), AT_ONCE))

    @cached_property
    def _sum(self):
        return jax.jit(lambda x: jax.vmap(self.squares)(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1).sum(0))


def settled(gradients, errors):
    """Return the gradients from which on each error stays below the limit, and the last errors."""
    errors, found = np.asarray(errors), []
    for each in errors.T:
        below = np.logical_and.accumulate((each < LIMIT)[::-1])[::-1]
        found.append(float(np.asarray(gradients)[np.argmax(below)]) if below.any() else np.inf)
    return (*found, *errors[-1])


def ours(model, density, errors, x, seed, lengths):
    plan = SamplingPlan.of(Asked(None, model, len(x)))
    warming = Warming.start(plan.engine, plan.arguments, x, LONGEST, np.random.default_rng(seed), checked=False)
    spent, found = [float(warming.n_grad.mean())], [np.full(2, np.inf)]

    def block(advance):
        sums, gradients = [], []

        def look(which, chunk):
            sums.append(errors.sums(chunk.model_position))
            gradients.append(chunk.n_grad.sum(axis=0))

        spent_before = float(warming.n_grad.mean())
        advance(look)
        # What the block's end evaluates besides counts from the next on.
        spent.extend(spent_before + np.cumsum(sum(gradients)) / len(x))
        found.extend(np.asarray(errors.of_means(sum(sums) / len(x))))

    while not warming.finished:
        block(lambda look: warming.block(plan.engine, 2 * AT_ONCE, look))
    warm_up, engine = spent[-1], plan.adjusted_engine
    equilibration = Equilibration.begin(warming, plan.engine.kernel, plan.arguments, LONGEST)
    while not equilibration.finished:
        block(lambda look: equilibration.block(warming, engine, 2 * AT_ONCE, look, Processes(slice(0, len(x)))))
    note = f"warm-up {warm_up:.0f}, in all {spent[-1]:.0f}{'' if equilibration.ended else ', which did not end'}"
    return *settled(spent, found), note


def laps(model, density, errors, x, seed, lengths):
    from blackjax.adaptation.laps import laps as run

    mesh, starts_of = jax.sharding.Mesh(np.array(jax.devices()[:1]), "chains"), jnp.asarray(x)
    info, each, _, _ = run(
        density, lambda key: starts_of[jax.random.randint(key, (), 0, len(x))], x.shape[1], *lengths, len(x), mesh,
        jax.random.key(seed), observables_for_bias=errors.squares, contract=errors.of_means,
    )  # fmt: skip
    (first, then), each = (np.asarray(part["bias"]) for part in info.values()), each * 15
    gradients = np.r_[1 + np.arange(len(first)), 1 + len(first) + each * (1 + np.arange(len(then)))]
    return *settled(gradients, np.concatenate([first, then])), f"unadjusted {len(first)}, in all {gradients[-1]}"


def mams(model, density, errors, x, seed, lengths):
    import blackjax
    from blackjax.mcmc.adjusted_mclmc_dynamic import make_random_trajectory_length_fn

    kernel, keys = (
        partial(
            blackjax.adjusted_mclmc_dynamic.build_kernel(make_random_trajectory_length_fn(True)), logdensity_fn=density
        ),
        jax.random.split(jax.random.key(seed), 3),
    )
    state = blackjax.adjusted_mclmc_dynamic.init(jnp.asarray(x[0]), density, keys[0])
    _, tuned, tuning = blackjax.adjusted_mclmc_find_L_and_step_size(
        mclmc_kernel=lambda rng_key, state, logdensity_fn, **setting: kernel(rng_key, state, **setting),
        logdensity_fn=density, num_steps=5 * MAMS_TUNING, state=state, rng_key=keys[1], target=0.9,
    )  # fmt: skip
    setting = {
        "step_size": tuned.step_size,
        "inverse_mass_matrix": tuned.inverse_mass_matrix,
        "integration_steps_params": (tuned.L / tuned.step_size,),
    }
    states = jax.vmap(blackjax.adjusted_mclmc_dynamic.init, (0, None, 0))(
        jnp.asarray(x), density, jax.random.split(keys[2], len(x))
    )
    step = jax.jit(jax.vmap(lambda key, state: kernel(key, state, **setting)))
    spent, found = [1.0], [errors.of(x)]
    while spent[-1] < MAMS_LONGEST and not (len(found) > 100 and (np.array(found)[-100:] < LIMIT).all()):
        keys = jax.random.split(jax.random.fold_in(keys[1], len(spent)), len(x))
        states, info = step(keys, states)
        spent.append(spent[-1] + float(info.num_integration_steps.mean()))
        found.append(errors.of(states.position))
    return *settled(spent, found), f"{float(tuning):.0f} to tune one chain, then {spent[-1]:.0f}"


def nuts(model, density, errors, x, seed, lengths):
    from numpyro.infer import MCMC, NUTS

    kernel = NUTS(potential_fn=lambda z: -density(z))
    mcmc = MCMC(
        kernel, num_warmup=NUTS_WARM_UP, num_samples=1, num_chains=len(x), chain_method="vectorized",
        progress_bar=False,
    )  # fmt: skip
    mcmc.warmup(jax.random.key(seed), init_params=jnp.asarray(x), collect_warmup=True, extra_fields=("num_steps",))
    steps = np.asarray(mcmc.get_extra_fields(group_by_chain=True)["num_steps"])
    gradients = 1 + np.cumsum(steps.mean(axis=0))
    found = errors.of(np.asarray(mcmc.get_samples(group_by_chain=True)))
    return *settled(gradients, found), f"in all {gradients[-1]:.0f}"


SAMPLERS = {"pmm": ours, "LAPS": laps, "MAMS": mams, "NUTS": nuts}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=[n for n in PUBLISHED if n != "banana2"])
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=SAMPLERS)
    parser.add_argument("--chains", type=int, default=2048)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{'target':22}{'sampler':17}{'chains':>7}{'max':>7}{'mean':>7}{'last max':>10}{'mean':>8}  gradients")
    for name in given.targets:
        model, known, names = model_and_moments(name)
        density = jax_log_density(model)
        x = starts(model, given.chains, given.seed, jax.jit(density))
        errors, lengths = Errors(known, squares_of(model, names), len(x)), LENGTHS.get(name, LENGTHS_ELSE)
        for sampler in given.samplers:
            *figures, note = SAMPLERS[sampler](model, in_batches(density), errors, x, given.seed, lengths)
            label = f"LAPS {lengths}" if sampler == "LAPS" else sampler
            words = "{:7.0f}{:7.0f}{:10.4f}{:8.4f}".format(*figures)
            print(f"{name:22}{label:17}{len(x):7}{words}  {note}", flush=True)


if __name__ == "__main__":
    main()

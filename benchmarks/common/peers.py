"""Other samplers on a PyMC model, with their defaults: NUTS of PyMC, nutpie and NumPyro, and BlackJAX's MCLMC.

Those that JAX compiles start within one unit of the model's initial point (`jax_density.starts`); a compiled loop makes
``CHUNK`` draws at a time, so that no compilation falls into the time that is measured.

* PyMC's NUTS: jitter and adapted diagonal scale, 1,000 tuning iterations.  Gradients are leapfrog steps (``n_steps``):
  that at the start of a trajectory is known from the last one, though PyMC evaluates it again.
* nutpie's NUTS: 400 tuning iterations.  Gradients are ``n_steps``.
* NumPyro's NUTS: 1,000 tuning iterations, diagonal scale, acceptance 0.8.  Gradients are ``num_steps``; chains run one
  after the other, as loops in lockstep would wait for the longest trajectory.
* MCLMC, with BlackJAX's own tuner of step, length and scale, which has no default length: it is told ``TUNER_STEPS``
  and takes a third of them.  An isokinetic minimal-norm step takes two gradients, which are counted as it is traced.
"""

from __future__ import annotations

import time
import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm

# The length that the tuner of MCLMC is told, of which it spends a third: 6.7 thousand gradients.
TUNER_STEPS = 10_000
CHUNK = 500  # draws in one call of a compiled loop
WARM_UP = 1000


class Run(NamedTuple):
    """Chains of one sampler and what they cost.

    ``draws`` (chain, draw, d) are unconstrained positions after warm-up, in the order of
    ``model.continuous_value_vars``; ``gradients`` (chain, draw) were spent for each, ``warm_up`` (chain,) before the
    first; ``failing`` draws diverged.  ``seconds`` are those of CPU, warm-up included, without compilation.
    """

    draws: np.ndarray
    gradients: np.ndarray
    warm_up: np.ndarray
    failing: int
    seconds: float


def build(name: str, model: pm.Model, chains: int) -> Any:
    """Compile a sampler, of which ``run(seed, draws)`` returns a :class:`Run`."""
    makers = {
        "PyMC NUTS": PyMCNUTS,
        "nutpie NUTS": Nutpie,
        "nutpie low rank": partial(Nutpie, adaptation="low_rank"),
        "NumPyro NUTS": NumPyroNUTS,
        "MCLMC": MCLMC,
    }
    return makers[name](model, chains)


class PyMCNUTS:
    """PyMC's NUTS; seconds are those within its transitions."""

    def __init__(self, model: pm.Model, chains: int):
        self.model, self.chains = model, chains

    def run(self, seed: int, draws: int) -> Run:
        """Sample, chains one after the other."""
        with self.model, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            dt = pm.sample(
                draws=draws,
                tune=WARM_UP,
                chains=self.chains,
                cores=1,
                nuts_sampler="pymc",
                random_seed=seed,
                discard_tuned_samples=False,
                compute_convergence_checks=False,
                progressbar=False,
                quiet=True,
                idata_kwargs={"include_transformed": True},
            )
        posterior, stats, warm = dt["posterior"], dt["sample_stats"], dt["warmup_sample_stats"]
        names = [v.name for v in self.model.continuous_value_vars]
        flat = [np.asarray(posterior[name]).reshape(self.chains, draws, -1) for name in names]
        seconds = sum(float(part["process_time_diff"].sum()) for part in (warm, stats))
        before = np.asarray(warm["n_steps"].sum("draw"))
        failing = int(stats["diverging"].sum())
        return Run(np.concatenate(flat, axis=2), np.asarray(stats["n_steps"]), before, failing, seconds)


class Nutpie:
    """nutpie's NUTS, with an adaptation of the scale."""

    def __init__(self, model: pm.Model, chains: int, adaptation: str = "diag"):
        import nutpie

        self._sample = partial(
            nutpie.sample, nutpie.compile_pymc_model(model), cores=1, progress_bar=False, adaptation=adaptation
        )
        self.chains = chains
        # A run, so that nothing is left to compile.
        self._sample(draws=10, chains=1, seed=0)

    def run(self, seed: int, draws: int) -> Run:
        """Sample."""
        began = time.process_time()
        dt = self._sample(draws=draws, chains=self.chains, seed=seed, store_unconstrained=True)
        seconds = time.process_time() - began
        stats = dt["sample_stats"]
        before = dt["warmup_sample_stats"]["n_steps"].sum("draw").values
        failing = int(stats["diverging"].sum())
        return Run(stats["unconstrained_draw"].values, stats["n_steps"].values, before, failing, seconds)


class JaxPeer:
    """A sampler that JAX compiles."""

    lockstep = True  # chains advance in one batch; else one after the other, where they differ in work

    def __init__(self, model: pm.Model, chains: int):
        import jax
        from jax_density import jax_log_density, starts

        self.jax, self.chains = jax, chains
        self.density = jax_log_density(model)
        evaluate = jax.jit(self.density)
        self._starts = lambda seed: starts(model, chains, seed, evaluate)
        begin = self._starts(0)
        self.d = begin.shape[1]
        self.build()
        keys = jax.random.split(jax.random.key(0), chains)
        self._warm = jax.jit(self._over_chains(self.warm)).lower(keys, begin).compile()
        carry, _ = jax.eval_shape(self._over_chains(self.warm), keys, begin)
        self._chunk = jax.jit(self._chunk_of).lower((carry, keys), 0).compile()

    def _over_chains(self, function: Any) -> Any:
        """Map a function over chains."""
        if self.lockstep:
            return self.jax.vmap(function)
        return lambda *arrays: self.jax.lax.map(lambda one: function(*one), arrays)

    def _chunk_of(self, carry: Any, first: Any) -> Any:
        """CHUNK draws of all chains: new carry, and positions, gradients and failures of each."""
        jax = self.jax

        def chain(state, key):
            def one(state, i):
                return self.step(state, jax.random.fold_in(key, i))

            return jax.lax.scan(one, state, first + jax.numpy.arange(CHUNK))

        states, keys = carry
        states, out = self._over_chains(chain)(states, keys)
        return (states, keys), out

    def build(self) -> None:
        """Build what ``warm`` and ``step`` need of ``density``."""
        raise NotImplementedError

    def warm(self, key: Any, x: Any) -> Any:
        """Warm one chain up: its state, and the gradients that this took."""
        raise NotImplementedError

    def step(self, state: Any, key: Any) -> Any:
        """One draw of one chain: its state, and position, gradients and failures."""
        raise NotImplementedError

    def run(self, seed: int, draws: int) -> Run:
        """Warm up and sample so many draws, rounded up to whole chunks."""
        warm_key, sample_key = self.jax.random.split(self.jax.random.key(seed))
        x = self._starts(seed)
        keys = self.jax.random.split(warm_key, self.chains)
        began = time.process_time()
        state, warm_up = self._warm(keys, x)
        carry = state, self.jax.random.split(sample_key, self.chains)
        parts = []
        for done in range(0, draws, CHUNK):
            carry, out = self._chunk(carry, done)
            parts.append(tuple(np.asarray(part) for part in out))
        seconds = time.process_time() - began
        positions, gradients, failures = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
        return Run(positions, gradients, np.asarray(warm_up), int(failures.sum()), seconds)


class MCLMC(JaxPeer):
    """Microcanonical Langevin, each chain tuned by itself."""

    def build(self) -> None:
        """The kernel, and the evaluations of one step, counted as it is traced."""
        import blackjax

        self._blackjax = blackjax
        self._kernel = blackjax.mclmc.build_kernel()
        self._a_step = 0

        def counting(x):
            self._a_step += 1
            return self.density(x)

        def one(key, x):
            state = blackjax.mclmc.init(x, self.density, key)
            return self._kernel(key, state, counting, np.ones(self.d), 1.0, 1.0)

        self.jax.eval_shape(one, self.jax.random.key(0), np.zeros(self.d))

    def warm(self, key, x):
        """BlackJAX's tuner."""
        state_key, key = self.jax.random.split(key)
        state, tuned, steps = self._blackjax.mclmc_find_L_and_step_size(
            mclmc_kernel=self._kernel,
            num_steps=TUNER_STEPS,
            state=self._blackjax.mclmc.init(x, self.density, state_key),
            rng_key=key,
            logdensity_fn=self.density,
        )
        return (state, tuned), 1 + self._a_step * steps

    def step(self, state, key):
        """A step."""
        state, tuned = state
        new, _ = self._kernel(key, state, self.density, tuned.inverse_mass_matrix, tuned.L, tuned.step_size)
        return (new, tuned), (new.position, self._a_step, 0)


class NumPyroNUTS(JaxPeer):
    """NumPyro's NUTS."""

    lockstep = False

    def build(self) -> None:
        """The kernel; its functions exist once it was initialised."""
        from numpyro.infer import NUTS

        self._kernel = NUTS(potential_fn=lambda x: -self.density(x))

    def warm(self, key, x):
        """Tuning iterations."""
        state = self._kernel.init(key, WARM_UP, x, (), {})

        def one(state, _):
            state = self._kernel.sample(state, (), {})
            return state, state.num_steps

        state, steps = self.jax.lax.scan(one, state, None, length=WARM_UP)
        return state, 1 + steps.sum()

    def step(self, state, key):
        """A trajectory; the kernel has a key of its own."""
        state = self._kernel.sample(state, (), {})
        return state, (state.z, state.num_steps, state.diverging)

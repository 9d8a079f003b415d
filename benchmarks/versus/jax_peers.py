"""Samplers that JAX compiles, of BlackJAX and NumPyro, on a PyMC model: compiled once and run from many seeds.

All chains start within one unit of the model's initial point (`jax_density.starts`); a compiled loop makes ``CHUNK``
draws at a time, so that a run can be lengthened at will and no compilation falls into the time that is measured.

* MCLMC, with BlackJAX's own tuner of step, length and scale, which has no default length: it is told ``tuner_steps``
  and takes a third of them.  An isokinetic minimal-norm step takes two gradients, which are counted as it is traced.
* NumPyro's NUTS with its defaults: 1,000 tuning iterations, diagonal scale, acceptance 0.8.  Gradients are
  ``num_steps``; chains run one after the other, as loops in lockstep would wait for the longest trajectory.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy as np
import pymc as pm
from versus.first_times import Run

__all__ = ["MCLMC", "JaxPeer", "NumPyroNUTS"]

# The length that the tuner of MCLMC is told, of which it spends a third: 6.7 thousand gradients.
TUNER_STEPS = 10_000
CHUNK = 500  # draws in one call of a compiled loop
WARM_UP = 1000


@functools.lru_cache(maxsize=1)
def _densities(model: pm.Model) -> tuple[Any, Any]:
    """The log density of a model, to be traced, and compiled, for all samplers of the model."""
    import jax
    from versus.jax_density import jax_log_density

    density = jax_log_density(model)
    return density, jax.jit(density)


class JaxPeer:
    """A sampler that JAX compiles: warmed up by ``begin`` from any seed, lengthened at will.

    ``warm_up_seconds`` and ``seconds`` are those of CPU without compilation.
    """

    name = ""
    first = 2000
    lockstep = True  # chains advance in one batch; else one after the other, where they differ in work

    def __init__(self, model: pm.Model, chains: int = 8):
        import jax
        from versus.jax_density import starts

        self.jax, self.chains = jax, chains
        self.density, evaluate = _densities(model)
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

    def warm(self, key: Any, x: Any) -> Any:
        """Warm one chain up: its state, and the gradients that this took."""
        raise NotImplementedError

    def step(self, state: Any, key: Any) -> Any:
        """One draw of one chain: its state, and position, gradients and failures."""
        raise NotImplementedError

    def begin(self, seed: int) -> None:
        """Start anew from a seed, and warm up."""
        warm_key, sample_key = self.jax.random.split(self.jax.random.key(seed))
        x = self._starts(seed)
        keys = self.jax.random.split(warm_key, self.chains)
        began = time.process_time()
        state, gradients = self._warm(keys, x)
        self.warm_up_gradients = np.asarray(gradients)
        self.warm_up_seconds, self.seconds = time.process_time() - began, 0.0
        self._carry = state, self.jax.random.split(sample_key, self.chains)
        self._drawn = 0
        self._parts: list[tuple[np.ndarray, ...]] = []
        self._state_after_warm_up = state

    def lengthen(self, draws: int) -> None:
        """Make the run longer by so many draws, rounded up to whole chunks."""
        began = time.process_time()
        for _ in range(0, draws, CHUNK):
            self._carry, out = self._chunk(self._carry, self._drawn)
            self._parts.append(tuple(np.asarray(part) for part in out))
            self._drawn += CHUNK
        self.seconds += time.process_time() - began

    def run(self) -> Run:
        """Return the whole run."""
        positions, gradients, failures = (np.concatenate(part, axis=1) for part in zip(*self._parts, strict=True))
        self.failing = int(failures.sum())
        return Run(self.name, positions, gradients, self.warm_up_gradients, note=self.note())

    def note(self) -> str:
        """What was tuned."""
        return ""


class MCLMC(JaxPeer):
    """Microcanonical Langevin, each chain tuned by itself."""

    name = "MCLMC"

    def __init__(self, model: pm.Model, chains: int = 8, *, tuner_steps: int = TUNER_STEPS):
        self.tuner_steps = tuner_steps
        super().__init__(model, chains)

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
            num_steps=self.tuner_steps,
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

    def note(self) -> str:
        """Median step and length."""
        tuned = self._state_after_warm_up[1]
        return f"L {np.median(tuned.L):.2g}, step {np.median(tuned.step_size):.2g}"


class NumPyroNUTS(JaxPeer):
    """NumPyro's NUTS with its defaults."""

    name, lockstep = "NumPyro NUTS", False

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

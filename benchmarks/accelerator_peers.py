"""Samplers of BlackJAX in thousands of chains, followed to the posterior: a part of ``accelerator``."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

SEED, LIMIT, FEW = 1, 0.01, 256
LAPS_STEPS = (500, 500)
ADAPTATION = {"MEADS": 1000, "ChEES": 500}  # steps; of BlackJAX's own examples
APPROACH = {"MCLMC": 600, "NUTS": 50}  # steps of all chains after the tuning of one
DRAWS = {"MEADS": 400, "ChEES": 50, "MCLMC": 400, "NUTS": 50}


class Known(NamedTuple):
    """Second moments and variances of squares of the unconstrained coordinates."""

    second: np.ndarray
    variance_of_square: np.ndarray

    def b2max(self, squares: Any) -> np.ndarray:
        """Return by step ``(n,)`` the largest error of the mean over the later half of the steps ``(n, d)`` so far."""
        total = np.concatenate([np.zeros((1, len(self.second))), np.cumsum(np.asarray(squares, float), axis=0)])
        steps = np.arange(1, len(total))
        mean = (total[1:] - total[steps // 2]) / (steps - steps // 2)[:, None]
        return ((mean - self.second) ** 2 / self.variance_of_square).max(axis=1)


class Followed(NamedTuple):
    """What a sampler did up to its draws: by step ``(n, ...)``; and seconds of compilation, ESS of squares a second."""

    squares: Any  # means over chains, (n, d)
    gradients: Any  # in sequence, until then
    seconds: Any  # until then
    compiling: float
    rates: Any = (np.nan, np.nan)  # of x and of x^2

    def row(self, known: Known) -> dict[str, Any]:
        """Return the figures."""
        errors = known.b2max(self.squares)
        below = np.logical_and.accumulate((errors < LIMIT)[::-1])[::-1]
        at = int(np.argmax(below)) if below.any() else None
        return {
            "seconds": None if at is None else round(float(np.asarray(self.seconds)[at]), 3),
            "compiling": round(self.compiling, 3),
            "gradients": None if at is None else round(float(np.asarray(self.gradients)[at])),
            "last_b2max": float(f"{errors[-1]:.3g}"),
            "ess_of_squares_per_second": None if np.isnan(self.rates[1]) else round(self.rates[1]),
        }


class Compiling:
    """Seconds that JAX has compiled since this was made."""

    def __init__(self) -> None:
        import jax

        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._add)

    def _add(self, event: str, seconds: float, **_: Any) -> None:
        # Traces and lowerings hold each other, and would count twice.
        self.seconds += seconds * event.endswith("backend_compile_duration")


def rate_of(draws: np.ndarray, chains: int, seconds: float) -> list[float]:
    """Return effective samples a second of the slowest coordinate of draws ``(chain, draw, d)``, and of its square.

    The draws are of some of the chains.
    """
    import arviz as az

    each = range(draws.shape[-1])
    values = (draws, (draws - draws.mean(axis=(0, 1))) ** 2)
    slowest = [min(float(az.ess(x[..., i], method="bulk")) for i in each) for x in values]
    return [ess * chains / len(draws) / seconds for ess in slowest]


def laps(density: Any, x: np.ndarray) -> Followed:
    """BlackJAX's Late Adjusted Parallel Sampler."""
    import jax
    import jax.numpy as jnp
    from blackjax.adaptation.laps import laps as run

    compiling = Compiling()
    began, mesh, starts = time.perf_counter(), jax.sharding.Mesh(np.array(jax.devices()[:1]), "chains"), jnp.asarray(x)
    info, each, _, _ = run(
        density, lambda key: starts[jax.random.randint(key, (), 0, len(x))], x.shape[1], *LAPS_STEPS, len(x), mesh,
        jax.random.key(SEED), observables_for_bias=jnp.square,
        contract=lambda means: means,
    )  # fmt: skip
    (first, then), each = (np.asarray(part["bias"]) for part in info.values()), each * 15
    gradients = np.r_[1 + np.arange(len(first)), 1 + len(first) + each * (1 + np.arange(len(then)))]
    seconds = np.full(len(gradients), time.perf_counter() - began)
    return Followed(np.concatenate([first, then]), gradients, seconds, compiling.seconds)


class Seen(NamedTuple):
    """A step of all chains: mean squares and gradients in sequence."""

    second: Any
    gradients: Any


def pooled(name: str, density: Any, key: Any, x: Any) -> tuple[Any, Any, Seen]:
    """MEADS and ChEES: the states after their adaptation, what steps them, and what was seen."""
    import blackjax
    import jax.numpy as jnp

    def see(states, info, _):
        lengths = info.num_integration_steps.max() if name == "ChEES" else 1
        return Seen((states.position**2).mean(axis=0), lengths)

    if name == "MEADS":
        adapt = blackjax.meads_adaptation(density, len(x), adaptation_info_fn=see)
        (states, setting), seen = adapt.run(key, x, ADAPTATION[name])
        kernel = blackjax.ghmc.build_kernel()
    else:
        import optax

        adapt = blackjax.chees_adaptation(density, len(x), adaptation_info_fn=see)
        (states, setting), seen = adapt.run(key, x, 0.1, optax.adam(0.02), ADAPTATION[name])
        kernel = blackjax.dynamic_hmc.build_kernel(
            next_random_arg_fn=setting.pop("next_random_arg_fn"),
            integration_steps_fn=setting.pop("integration_steps_fn"),
        )
    return states, (kernel, setting), Seen(jnp.asarray(seen.second), jnp.asarray(seen.gradients))


def alone(name: str, density: Any, key: Any, x: Any) -> tuple[Any, Any]:
    """MCLMC and NUTS: what steps them, and how a chain begins, from the tuning of one chain."""
    import blackjax

    if name == "MCLMC":
        kernel = blackjax.mclmc.build_kernel()
        _, tuned, _ = blackjax.mclmc_find_L_and_step_size(
            mclmc_kernel=kernel, num_steps=12_000, state=blackjax.mclmc.init(x[0], density, key), rng_key=key,
            logdensity_fn=density,
        )  # fmt: skip
        setting = {"inverse_mass_matrix": tuned.inverse_mass_matrix, "L": tuned.L, "step_size": tuned.step_size}
        return (kernel, setting), lambda x, key: blackjax.mclmc.init(x, density, key)
    (_, setting), _ = blackjax.window_adaptation(blackjax.nuts, density).run(key, x[0], 1000)
    return (blackjax.nuts.build_kernel(), setting), lambda x, key: blackjax.nuts.init(x, density)


def peer(name: str, density: Any, x: np.ndarray) -> Followed:
    """Follow a sampler of BlackJAX: all up to the draws is one program, the draws are another."""
    import jax

    steppers: dict[str, Any] = {}

    def steps(stepper, states, key, n, keep):
        kernel, setting = stepper

        def one(states, key):
            new, info = jax.vmap(lambda key, state: kernel(key, state, density, **setting))(
                jax.random.split(key, len(x)), states
            )
            count = 2 if name == "MCLMC" else info.num_integration_steps.max() if name != "MEADS" else 1
            return new, (Seen((new.position**2).mean(axis=0), count), new.position[:keep])

        return jax.lax.scan(one, states, jax.random.split(key, n))

    def approach(x, key):
        tuning, starting, going = jax.random.split(key, 3)
        if name in ADAPTATION:
            states, (steppers["kernel"], setting), seen = pooled(name, density, tuning, x)
            return states, setting, seen
        (steppers["kernel"], setting), begin = alone(name, density, tuning, x)
        states = jax.vmap(begin)(x, jax.random.split(starting, len(x)))
        states, (seen, _) = steps((steppers["kernel"], setting), states, going, APPROACH[name], 0)
        return states, setting, seen

    def draw(states, setting, key):
        return steps((steppers["kernel"], setting), states, key, DRAWS[name], FEW)[1]

    began = time.perf_counter()
    first = jax.jit(approach).lower(x, jax.random.key(SEED)).compile()
    compiling = time.perf_counter() - began
    states, setting, seen = jax.block_until_ready(first(x, jax.random.key(SEED)))
    spent, gradients = time.perf_counter() - began, 1 + np.cumsum(np.asarray(seen.gradients, float))
    then = jax.jit(draw).lower(states, setting, jax.random.key(2)).compile()
    start = time.perf_counter()
    _, positions = jax.block_until_ready(then(states, setting, jax.random.key(2)))
    rates = rate_of(np.swapaxes(np.asarray(positions), 0, 1), len(x), time.perf_counter() - start)
    # The tuning of one chain has no steps of its own here: its seconds are spread over the steps of the approach.
    seconds = compiling + (spent - compiling) * gradients / gradients[-1]
    return Followed(seen.second, gradients, seconds, compiling, rates)

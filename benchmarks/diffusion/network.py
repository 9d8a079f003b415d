"""A small network for the digits, trained on the spot: a residual perceptron that predicts ``v``."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmm_mcmc.diffusion import DiffusionSchedule

_WIDTH, _BLOCKS, _WAVES, _BATCH, _RATE = 192, 3, 16, 256, 2e-3


class Trained(NamedTuple):
    """A network with its parameters, and its loss (mean squared error) on data it was not trained on."""

    network: object
    parameters: int
    held_out_loss: float


def _linear(key: jax.Array, inputs: int, outputs: int, scale: float = 1.0) -> dict:
    return {"w": scale * jax.random.normal(key, (inputs, outputs)) / np.sqrt(inputs), "b": jnp.zeros(outputs)}


def _initial(key: jax.Array, d: int) -> dict:
    keys = iter(jax.random.split(key, 3 + 3 * _BLOCKS))
    return {
        "time": _linear(next(keys), 2 * _WAVES, _WIDTH),
        "into": _linear(next(keys), d, _WIDTH),
        "blocks": [
            {
                "up": _linear(next(keys), _WIDTH, _WIDTH),
                "time": _linear(next(keys), _WIDTH, _WIDTH),
                "down": _linear(next(keys), _WIDTH, _WIDTH, 0.1),
            }
            for _ in range(_BLOCKS)
        ],
        "out": _linear(next(keys), _WIDTH, d, 0.1),
    }


def _apply(layer: dict, x: jax.Array) -> jax.Array:
    return x @ layer["w"] + layer["b"]


def _predict(parameters: dict, x: jax.Array, t: jax.Array) -> jax.Array:
    angles = t[:, None] * jnp.exp(jnp.linspace(0.0, -np.log(2000.0), _WAVES))
    time = jax.nn.silu(_apply(parameters["time"], jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)))
    h = _apply(parameters["into"], x)
    for block in parameters["blocks"]:
        normal = h / jnp.sqrt(jnp.mean(h**2, axis=1, keepdims=True) + 1e-6)
        h = h + _apply(block["down"], jax.nn.silu(_apply(block["up"], normal) + _apply(block["time"], time)))
    return _apply(parameters["out"], h)


def train(
    data: np.ndarray,
    held_out: np.ndarray,
    schedule: DiffusionSchedule,
    iterations: int,
    seed: int = 0,
) -> Trained:
    """Minimise the squared error by Adam with a falling rate; the result is the mean of the last parameters.

    ``held_out`` is for the loss that is reported.
    """
    tree = jax.tree.map
    data, held_out = jnp.asarray(data, jnp.float32), jnp.asarray(held_out, jnp.float32)
    signal, noise = (jnp.sqrt(jnp.asarray(c, jnp.float32)) for c in (schedule.signal, schedule.noise))
    told = jnp.asarray(np.concatenate([[0.0], schedule.timesteps]), jnp.float32)
    key, begin = jax.random.split(jax.random.key(seed))
    parameters = _initial(begin, data.shape[1])

    def loss(parameters: dict, key: jax.Array, x: jax.Array) -> jax.Array:
        keys = jax.random.split(key)
        level = jax.random.randint(keys[0], (len(x),), 1, schedule.N + 1)
        z = jax.random.normal(keys[1], x.shape)
        r, s = signal[level][:, None], noise[level][:, None]
        return jnp.mean((_predict(parameters, r * x + s * z, told[level]) - (r * z - s * x)) ** 2)

    def step(state: tuple, i: jax.Array) -> tuple[tuple, None]:
        parameters, first, second, mean = state
        keys = jax.random.split(jax.random.fold_in(key, i))
        x = data[jax.random.randint(keys[0], (_BATCH,), 0, len(data))]
        slope = jax.grad(loss)(parameters, keys[1], x)
        first = tree(lambda m, g: 0.9 * m + 0.1 * g, first, slope)
        second = tree(lambda v, g: 0.999 * v + 0.001 * g**2, second, slope)
        rate = _RATE * 0.5 * (1.0 + jnp.cos(jnp.pi * i / iterations)) * jnp.minimum(1.0, (i + 1) / 100)
        size = rate * jnp.sqrt(1.0 - 0.999 ** (i + 1.0)) / (1.0 - 0.9 ** (i + 1.0))
        parameters = tree(lambda p, m, v: p - size * m / (jnp.sqrt(v) + 1e-8), parameters, first, second)
        share = jnp.maximum(0.001, 1.0 / (i + 1.0))
        return (parameters, first, second, tree(lambda a, p: a + share * (p - a), mean, parameters)), None

    zero = tree(jnp.zeros_like, parameters)
    (*_, mean), _ = jax.jit(lambda state: lax.scan(step, state, jnp.arange(iterations)))((parameters, zero, zero, zero))
    judged = jnp.tile(held_out, (20, 1))
    return Trained(
        lambda x, t: _predict(mean, x, t),
        sum(p.size for p in jax.tree.leaves(mean)),
        float(loss(mean, jax.random.key(seed + 1), judged)),
    )

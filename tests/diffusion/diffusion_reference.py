"""The method by its definition, one step of the chain after the other, to hold the efficient form against."""

import numpy as np

from pmm_mcmc.diffusion import DiffusionSchedule
from pmm_mcmc.diffusion.interpolation import advance, following, make_rows, make_table, start

SHORT = np.linspace(1e-3, 0.3, 24)
RATIOS = (1e-3, 1e-2, 0.1, 1.0)


def short(variant="3"):
    """Return a chain of 24 steps, with little left of the data at its end."""
    return DiffusionSchedule.from_betas(SHORT, variant)


def gaussian(schedule, variance):
    """Exact noise prediction in JAX, which the tests of diffusers have not."""
    import jax.numpy as jnp

    g = np.sqrt(schedule.noise) / (schedule.signal * variance + schedule.noise)
    return lambda x, t: jnp.asarray(g, x.dtype)[t + 1][:, None] * x


def estimates(schedule, kind, x, f, level):
    """Data and noise from a prediction, each by the definition of its kind."""
    r, s = np.sqrt(schedule.signal[level]), np.sqrt(schedule.noise[level])
    if kind == "epsilon":
        return (x - s * f) / r, f
    if kind == "score":
        return (x + s**2 * f) / r, -s * f
    if kind == "x0":
        return f, (x - r * f) / s
    if kind == "v":
        return r * x - s * f, s * x + r * f
    if kind == "flow":
        # x in the terms of the flow: (1 - sigma) data + sigma noise, told noise - data.
        sigma = s / (r + s)
        state = x * np.sqrt(sigma**2 + (1 - sigma) ** 2)
        return state - sigma * f, state + (1 - sigma) * f
    raise ValueError(kind)


def say(schedule, kind, data, noise, x, level):
    """What a network of some kind says where it estimates the data and the noise to be these."""
    r, s = np.sqrt(schedule.signal[level]), np.sqrt(schedule.noise[level])
    if isinstance(kind, float):
        total = kind * r**2 + s**2
        return (r * kind / total * x - data) * np.sqrt(total) / s
    return {"epsilon": noise, "score": -noise / s, "x0": data, "v": r * noise - s * data, "flow": noise - data}[kind]


def weights(schedule, blocks, t, K):
    """Weight of the correction of each cell by its definition: ``K``, ``K - 1`` or one over the probability."""
    if blocks.midpoint == "bernoulli":
        return np.full(K, float(K))
    if blocks.midpoint == "uniform":
        return np.full(K, K - 1.0)
    a, b, _ = schedule.coefficients(blocks.frozen)
    q = np.array([abs(np.prod(a[t - K + 1 : t - tau]) * b[t - tau]) * tau**0.5 for tau in range(K)])
    return np.divide(q.sum(), q, out=np.zeros(K), where=q > 0)


def sequential(schedule, blocks, f, x, Z, levels):
    """Run all steps of the chain, each with the frozen prediction or, where its cell is marked, the corrected one.

    ``f(x, level)`` is of the kind that is frozen, ``Z`` the noise by the level of the update, ``levels`` those of the
    calls.
    """
    a, b, sigma = schedule.coefficients(blocks.frozen)
    for t, s in zip(blocks.edges[:-1], blocks.edges[1:], strict=True):
        frozen = f(x, t)
        midpoint = x
        weight = weights(schedule, blocks, t, t - s)
        for n in range(t, s, -1):
            drift = frozen
            if n < t and n in levels:
                drift = frozen + weight[t - n] * (f(midpoint, n) - frozen)
            x = a[n] * x + b[n] * drift + sigma[n] * Z[n]
            midpoint = a[n] * midpoint + b[n] * frozen + sigma[n] * Z[n]
    return x


def draws_of(schedule, blocks, levels, rows, Z):
    """Draws after each call that make the path of the noise ``Z``: by hand, from the noise of every step."""
    a, _, sigma = schedule.coefficients(blocks.frozen)
    draws, path = [], None
    for i, (n, after) in enumerate(zip(levels, following(levels), strict=True)):
        stop = max(edge for edge in blocks.edges if edge < n)
        path = 0.0 if n in blocks.edges else path
        carried = rows.path_factor[i] * path
        for k in range(n, max(stop, after), -1):
            path = a[k] * path + sigma[k] * Z[k]
        draws.append((path - carried) / rows.fresh_sd[i] if rows.fresh_sd[i] > 0 else 0.0 * Z[1])
    return draws


def run(schedule, blocks, network, x, levels, draws, prediction="epsilon"):
    """Run the efficient form in NumPy with given draws; ``network(x, timestep)``."""
    table = make_table(schedule, blocks, prediction)
    rows = make_rows(table, levels, following(levels))
    state = start(x)
    for i, level in enumerate(levels):
        row = type(rows)(*(c[i] for c in rows))
        state = advance(row, state, network(state.y, table.timestep[level]), draws[i])
    return state.x

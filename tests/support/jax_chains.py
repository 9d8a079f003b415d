"""Targets for the JAX engine, and groups of chains on the numba engine's random numbers."""

from __future__ import annotations

from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from numba import cfunc, njit
from one_chain import followed
from reference import MOST_REFINEMENTS, SUBSTEPS, stream
from test_engine import COORDINATES, SCHEMES, D, limits_of, rough

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.jax_affine import JaxCoordinates
from pmm_mcmc.engines import jax_engine
from pmm_mcmc.engines.contract import Ensemble, Parameters, TunedParameters, chains_of, empty_state
from pmm_mcmc.engines.jax_engine import JaxEngine
from pmm_mcmc.engines.jax_ghmc import adjusted, begun
from pmm_mcmc.engines.jax_poisson import unadjusted
from pmm_mcmc.engines.jax_shared import END, MIDPOINT
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.engines.numba_shared import Functions
from pmm_mcmc.langevin.methods import OVERDAMPED, Scheme
from pmm_mcmc.model.jax_density import JaxDensity
from pmm_mcmc.model.native import SIGNATURE

_rough = njit(rough.__wrapped__)


@cfunc(SIGNATURE)
def rough_gradient(x, gradient, table, n):
    # As of a model: the function for midpoints knows no log density.
    _rough(x, gradient, table, n)
    return 0.0


def rough_jax(x, mode):
    """Return log density and gradient of ``test_engine.rough``."""
    before, after = jnp.roll(x, 1), jnp.roll(x, -1)
    lp = jnp.sum(0.5 * x**2 - 0.25 * x**4 + 0.3 * jnp.sin(x * before))
    gradient = x - x**3 + 0.3 * (jnp.cos(x * before) * before + jnp.cos(x * after) * after)
    mode = jnp.where(x[0] > 0.8, mode, 0)
    wall = jnp.where(mode == 6, x[0] - 0.8, 0.0)
    infinite = jnp.full_like(lp, jnp.inf)
    lp = lax.select_n(mode, lp, jnp.nan * infinite, lp, lp, -infinite, infinite, lp - 1e4 * wall**2)
    gradient = gradient.at[0].add(-2e4 * wall)
    gradient = gradient.at[-1].set(jnp.where(mode == 2, jnp.nan, gradient[-1]))
    return lp, gradient.at[0].set(jnp.where(mode == 3, jnp.inf, gradient[0]))


class Rough:
    """The density with what it does beyond the wall, which can be changed without compiling anew."""

    def __init__(self, d=D):
        self.mode = np.zeros((), np.int32)
        self.density = JaxDensity(rough_jax, d, data=lambda: [self.mode.copy()])


ROUGH = Rough()


@cache
def rough_engine(name, chains, devices=1):
    """Return the engine of one of ``SCHEMES`` on the rough density, in groups of at most four chains, compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax_engine, "_GROUP_CPU", 4)
        return JaxEngine(SCHEMES[name][0], ROUGH.density, chains, devices=jax.local_devices()[:devices])


@cache
def gaussian_engine(kernel, d, chains, precision="float64"):
    """Return the engine on the unit Gaussian, compiled once."""
    return JaxEngine(kernel, JaxDensity.of_function(lambda x: -0.5 * jnp.sum(x * x), d), chains, precision)


def rough_starts(run, chains, mode=0, coordinates=COORDINATES):
    """Return states and gradients of chains that begin near to each other, on the good side of the wall."""
    rng = np.random.default_rng(chains)
    u = np.array([0.6 if mode else -0.6, 0.5, 0.8, -1.1]) - 0.1 * np.abs(rng.normal(size=(chains, D)))
    v = rng.normal(size=(chains, D)) * (run.kernel.dynamics != OVERDAMPED)
    state = empty_state(u, v)
    return state, run.evaluate(coordinates, state)


def keys_of(chains):
    """Return keys ``(chain, 2)`` with the seed first."""
    return np.column_stack([np.full(chains, 2**63 + 12345), np.arange(chains) + 7]).astype(np.uint64)


# -- the numba engine's random numbers ---------------------------------------------------------------------------------


class Replayed(NamedTuple):
    """Random numbers of one transition of a group, or of many: then with a leading axis.

    Index 0 of an axis of blocks is the end of a step, 1 its midpoint.  ``far`` is what is drawn beyond gaps, and
    ``substeps`` are numbers, normals and far normals of each substep.
    """

    numbers: Any
    normals: Any
    velocities: Any
    far: Any
    substeps: Any

    def take(self, *blocks, beyond=False):
        arrays = (self.normals, self.far) if beyond else (self.normals,)
        return [(self.numbers[i - END], w[i - END, 0], w[i - END, 1]) for w in arrays for i in blocks]

    def velocity(self):
        return self.velocities

    def of(self, chains):
        numbers, normals, far = self.substeps
        few = numbers[:, :, chains], normals[:, :, :, chains], far[:, :, :, chains]
        return self._replace(velocities=self.velocities[chains], substeps=few)

    def substep(self, i):
        numbers, normals, far = (array[i] for array in self.substeps)
        return self._replace(numbers=numbers, normals=normals, far=far)


def replay(kernel, K, keys, first, transitions):
    """Return the random numbers of transitions ``(transition, block, ...)``, as the numba engine draws them.

    Adjusted chains are at rest before the first transition, and have a number and a velocity ever after.
    What the numba engine does not draw is filled with other numbers: none of them may matter.
    """
    g, finest = len(keys), SUBSTEPS**MOST_REFINEMENTS
    end, midpoint = END - END, MIDPOINT - END
    other = np.random.default_rng(11)
    shape = (transitions, 2 * finest, 2)
    uniforms, normals = other.random((*shape, g, 1)), other.standard_normal((*shape, 2, 2, g, D))
    if kernel.dynamics == OVERDAMPED:
        normals[:, :, :, :, 0] = 0.0
    velocities = np.zeros((transitions, g, D))

    def fill(t, substep, i):
        """Fill in a step (0) or a substep of one, of one chain."""
        rng = stream(keys[i], first + t, substep)
        moving = 1 if kernel.dynamics == OVERDAMPED else 0

        def gap(block, is_last=False):
            for where in range(1 if substep == 0 or is_last else 2):
                normals[t, substep, block, where, moving:, i] = rng.standard_normal((2 - moving, D))

        if kernel.adjusted:
            if t == 0:  # a chain at rest
                uniforms[t, substep, end, i] = rng.random()
                velocities[t, i] = rng.standard_normal(D)
            normals[t, substep, end, 0, 1, i] = rng.standard_normal(D)
            return
        uniforms[t, substep, midpoint, i] = number = rng.random()
        in_first_cell = kernel.scheme == Scheme.CELLS and int(number ** (1.0 / (1.0 + kernel.power)) * K) == 0
        if kernel.offset or not in_first_cell:
            gap(midpoint)
        gap(end, is_last=substep in (2 * SUBSTEPS - 1, 2 * finest - 1))

    of_levels = [range(SUBSTEPS**level, 2 * SUBSTEPS**level) for level in range(1, MOST_REFINEMENTS + 1)]
    for t in range(transitions):
        for i in range(g):
            fill(t, 0, i)
            for substep in chain.from_iterable(of_levels if not kernel.adjusted else []):
                fill(t, substep, i)
    near, far = normals[:, :, :, 0], normals[:, :, :, 1]
    return Replayed(uniforms[:, 0], near[:, 0], velocities, far[:, 0], (uniforms, near, far))


def numba_chains(name, mode, step, keys, transitions, tolerance=0.0):
    """Return starting states and gradients, and the chunks of the numba engine, chain by chain."""
    kernel, K = SCHEMES[name]
    tables = [np.array([0, mode]) for _ in range(2)]
    joint, alone = tables
    run = NumbaEngine(kernel, D, Functions(rough, lambda noncentring: joint, rough_gradient, lambda noncentring: alone))
    state, gradient = rough_starts(run, len(keys), mode)
    setting = TunedParameters(step, K, 1.4, COORDINATES, 1)
    chunks = [
        followed(run, setting, Ensemble(state[i].copy(), gradient[i].copy(), key), transitions, tolerance=tolerance)
        for i, key in enumerate(keys)
    ]
    return state, gradient, chunks


@cache
def _followed(kernel, dtype, calls):
    """Return a compiled function that follows a group over all its transitions."""
    run = JaxEngine(kernel, ROUGH.density, 1, "float32" if dtype == np.float32 else "float64")

    def follow(parameters, coordinates, mode, chains, draws):
        plain = run._drift(coordinates, [mode])

        def drift(y):
            if calls is not None:
                jax.debug.callback(partial(calls.append, len(y)))
            return plain(y)

        if kernel.adjusted:
            chains = begun(chains, jax.tree.map(lambda a: a[0], draws))
            transition = adjusted(kernel, parameters, drift)
        else:
            transition = partial(unadjusted, kernel, parameters, drift)

        def step(chains, draws):
            after, counts = transition(chains, draws)
            return after, (after, counts)

        return lax.scan(step, chains, draws)[1]

    # Half of the time goes into making it fast, which would not pay here.
    return jax.jit(follow, compiler_options={"xla_backend_optimization_level": 0})


class Calls(list):
    """Sizes of the batches in which drifts were asked for; hashable, to key the function that fills it."""

    __hash__ = object.__hash__


def follow(name, mode, step, state, gradient, draws, *, tolerance=0.0, dtype=np.float64, calls=None):
    """Return chains and counts after each transition, of the JAX kernels."""
    kernel, K = SCHEMES[name]
    limits = limits_of(kernel, step, K)
    chains = chains_of(state, gradient)
    given = (
        Parameters(step, 1.4, float(K), *limits, tolerance),
        JaxCoordinates.of(COORDINATES, np.dtype(float)),
        chains,
        draws,
    )
    given = jax.tree.map(lambda a: np.asarray(a, dtype if np.asarray(a).dtype == np.float64 else None), given)
    parameters, coordinates, chains, draws = given
    with jax.enable_x64(dtype == np.float64):
        found = _followed(kernel, dtype, calls)(parameters, coordinates, np.int32(mode), chains, draws)
        jax.effects_barrier()
        return jax.tree.map(np.asarray, found)


def unit(d):
    """Return coordinates that change nothing."""
    return Coordinates(np.zeros(d), np.ones(d))

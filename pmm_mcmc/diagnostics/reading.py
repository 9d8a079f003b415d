"""Reading a result: its parameters, some at a time, and the gradients that biases are measured with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from arviz_base import xarray_sel_iter
from arviz_base.labels import BaseLabeller

from pmm_mcmc.coordinates.scale import MOST_DENSE, affine_scale
from pmm_mcmc.diagnostics.breaks import Break, noted
from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.noncentred import judged_positions
from pmm_mcmc.diagnostics.reasons import identity_holds, walled
from pmm_mcmc.warmup.standard_errors import degrees_of_freedom
from pmm_mcmc.warmup.stein_identity import Identity, stein_identity

__all__ = ["SLAB", "Parameters", "Run", "labels_of", "read", "scalars"]

# Bytes of parameters that are in memory together.
SLAB = 2**23
_SAMPLE = ("chain", "draw")
_NONE = (
    "the result holds no gradients (sample_stats 'gradient' and 'unconstrained'): sample with a step method of "
    "pmm_mcmc that moves all continuous variables of the model, with keep_gradients=True"
)


def labels_of(group: xr.Dataset) -> list[str]:
    """Return ArviZ's labels of the scalars of a group, in the order of its variables."""
    labeller, every = BaseLabeller(), xarray_sel_iter(group, skip_dims=set(_SAMPLE))
    return [labeller.make_label_flat(name, selection, index) for name, selection, index in every]


class Parameters:
    """The scalar parameters of a posterior: labels as of ArviZ, and draws that are read some at a time."""

    def __init__(self, posterior: xr.Dataset):
        self._posterior = posterior

    @cached_property
    def labels(self) -> list[str]:
        """Labels of all scalars, in the order of the variables."""
        return labels_of(self._posterior)

    def __len__(self) -> int:
        sizes = (dict(variable.sizes) for variable in self._posterior.data_vars.values())
        return sum(int(np.prod([size for dim, size in every.items() if dim not in _SAMPLE])) for every in sizes)

    def slabs(self, which: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield numbers of parameters with their draws ``(chain, draw, n)``: of all, or of those in ``which``."""
        kept, draws, size = [], [], 0
        for at, values in self._pieces(which):
            kept.append(at)
            draws.append(values)
            size += values.nbytes
            if size >= SLAB:
                yield np.concatenate(kept), draws[0] if len(draws) == 1 else np.concatenate(draws, axis=-1)
                kept, draws, size = [], [], 0
        if kept:
            yield np.concatenate(kept), draws[0] if len(draws) == 1 else np.concatenate(draws, axis=-1)

    def _pieces(self, which: np.ndarray | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        wanted = np.ones(len(self), bool)
        if which is not None:
            wanted[:] = False
            wanted[which] = True
        first = 0
        for variable in self._posterior.data_vars.values():
            dims = [dim for dim in variable.dims if dim not in _SAMPLE]
            variable = variable.transpose(*_SAMPLE, *dims)
            if not dims:
                dims, variable = ["scalar"], variable.expand_dims("scalar", axis=2)
            shape = variable.shape[2:]
            numbers = first + np.arange(int(np.prod(shape))).reshape(shape)
            first += numbers.size
            # Slices along the longest dimension, so that a variable on disk is not read as a whole.
            long = int(np.argmax(shape))
            step = max(1, SLAB * shape[long] // max(1, 8 * int(np.prod(variable.shape))))
            for begin in range(0, shape[long], step):
                part = slice(begin, begin + step)
                at = numbers[(slice(None),) * long + (part,)].ravel()
                if wanted[at].any():
                    values = variable.isel({dims[long]: part}).values
                    values = values.reshape(*values.shape[:2], -1)
                    if not wanted[at].all():
                        at, values = at[wanted[at]], values[..., wanted[at]]
                    yield at, values.astype(float, copy=False)

    def read(self, which: np.ndarray | None = None) -> np.ndarray:
        """Return draws ``(chain, draw, n)`` of the parameters numbered ``which``, in this order; by default of all."""
        which = np.arange(len(self)) if which is None else np.asarray(which)
        sizes = self._posterior.sizes
        values = np.empty((sizes["chain"], sizes["draw"], len(which)))
        place = np.full(len(self), -1)
        place[which] = np.arange(len(which))
        for at, part in self.slabs(which):
            values[..., place[at]] = part
        return values


@dataclass
class Run:
    """A result as it was read: ``p`` parameters and, if it has them, positions and gradients ``(chain, draw, d)``.

    Attributes
    ----------
    parameters
        The parameters with their draws.
    position
        Unconstrained positions, ``None`` if there are none.
    judged, gradient
        Gradients, and the positions at which they are taken: non-centred ones if the run has them.
    walled
        Whether the density jumps, or may end at a wall: there the Stein identity lacks a boundary term.
    broken
        The jump or wall that was found between draws, if any.
    """

    parameters: Parameters
    chains: int
    draws: int
    position: Any = None
    gradient: Any = None
    judged: Any = None
    walled: bool = False
    broken: Break | None = None

    @property
    def labels(self) -> list[str]:
        """Labels of the parameters."""
        return self.parameters.labels

    @cached_property
    def identity(self) -> Identity:
        """The Stein identity of each coordinate: see :func:`pmm_mcmc.warmup.stein_identity.stein_identity`."""
        return stein_identity(self.judged, self.gradient)

    @cached_property
    def together(self) -> Identity:
        """The Stein identity of whitened coordinates, which speaks of all together.

        Collinear coordinates have products that vary by far more than 1; whitened ones do not, and none hides in their
        noise.  The whitening is symmetric, so that each remains the one most like the coordinate of its number.
        """
        d, n = self.judged.shape[2], self.chains * self.draws
        if not (1 < d <= MOST_DENSE and n > 3 * d and np.isfinite(self.identity.excess).all() and self.moving.all()):
            return self.identity
        x, g = (array.reshape(n, d)[:: -(-n // CALIBRATION.fitted_draws)] for array in (self.judged, self.gradient))
        centre, root = affine_scale(x, g, dense=True)
        y = np.empty((n, d))
        for i in range(0, n, SLAB // 8 // d):
            part = slice(i, i + SLAB // 8 // d)
            y[part] = np.linalg.solve(root, (self.judged.reshape(n, d)[part] - centre).T).T
        if not np.isfinite(y).all():
            return self.identity
        return stein_identity(y.reshape(self.judged.shape), self.gradient @ root)

    @property
    def degrees(self) -> int:
        """Degrees of freedom of standard errors."""
        return degrees_of_freedom(self.chains, self.draws)

    @cached_property
    def correctable(self) -> bool:
        """Whether there are gradients, and the Stein identity can correct the draws."""
        if self.judged is None or self.walled:
            return False
        return identity_holds(self.identity, self.degrees, self.moving)

    @property
    def moving(self) -> np.ndarray:
        """Which coordinates vary between draws."""
        with np.errstate(invalid="ignore"):  # what is infinite does not move
            return np.ptp(self.judged, axis=(0, 1)) > 0.0

    @cached_property
    def values(self) -> np.ndarray:
        """Draws of all parameters."""
        return self.parameters.read()

    @cached_property
    def own(self) -> np.ndarray:
        """Number of the coordinate that each parameter is, or -1."""
        return self.own_of(self.values)

    def own_of(self, values: np.ndarray) -> np.ndarray:
        """Return the number of the coordinate that each parameter ``(chain, draw, n)`` equals in all draws, or -1."""
        own = np.full(values.shape[-1], -1)
        if self.judged is None:
            return own
        same = values[0, 0][:, None] == self.judged[0, 0][None, :]
        for i, j in zip(*np.nonzero(same), strict=True):
            if np.array_equal(values[..., i], self.judged[..., j]):
                own[i] = j
        return own


def scalars(dt: Any, var_names: Any = None) -> xr.Dataset:
    """Return the posterior of a result, or some of its variables."""
    posterior = dt["posterior"].dataset
    if var_names is not None:
        posterior = posterior[[var_names] if isinstance(var_names, str) else list(var_names)]
    return posterior


def read(dt: Any, var_names: Any = None, *, strict: bool = False) -> Run:
    """Read a result.

    Parameters
    ----------
    dt
        A result of any sampler.
    var_names
        Parameters; all by default.
    strict
        Raise an error if there are no gradients, or fewer than 20 draws; by default they are ``None`` then.

    Raises
    ------
    ValueError
        If ``strict`` and biases cannot be measured.
    """
    posterior = scalars(dt, var_names)
    chains, draws = (posterior.sizes[dim] for dim in _SAMPLE)
    stats = dt["sample_stats"] if "sample_stats" in dt.children else {}
    there = "gradient" in stats and "unconstrained" in stats
    if strict and not there:
        raise ValueError(_NONE)
    enough = draws >= CALIBRATION.fewest_of_chain and chains * draws >= CALIBRATION.fewest
    if strict and not enough:
        raise ValueError(f"{chains} x {draws} draws are too few to measure a bias: draw at least {CALIBRATION.fewest}")
    run = Run(Parameters(posterior), chains, draws, broken=noted(dt["posterior"].attrs))
    if not there or not enough:
        return run
    run.position, run.gradient = (np.asarray(stats[name].values, dtype=float) for name in ("unconstrained", "gradient"))
    run.judged = judged_positions(stats)
    run.walled = run.broken is not None or walled(stats, chains * draws)
    return run

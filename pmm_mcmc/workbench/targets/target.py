"""Targets of the gallery: model, log density, reference moments and modes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pmm_mcmc.model.density import LogDensity

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["Modes", "Reference", "Target", "labels_of"]


@dataclass(frozen=True)
class Reference:
    """Moments of each coordinate of the flat unconstrained vector: value variables raveled in the model's order.

    Attributes
    ----------
    mean : ndarray
        E[x], shape ``(d,)``.
    second_moment : ndarray
        E[x^2], shape ``(d,)``.
    square_variance : ndarray
        Var[x^2], shape ``(d,)``.
    exact : bool
        True if they come from a formula or a quadrature, False if from a long run.
    source : str
        Origin and precision, in one sentence.
    error : ndarray or None
        Standard errors of ``mean``, shape ``(d,)``; required if the moments are not exact.
    second_moment_error : ndarray or None
        Standard errors of ``second_moment``, shape ``(d,)``, if known.

    Raises
    ------
    ValueError
        If shapes disagree, numbers are not finite, variances are not positive, or errors are missing.
    """

    mean: np.ndarray
    second_moment: np.ndarray
    square_variance: np.ndarray
    exact: bool
    source: str
    error: np.ndarray | None = None
    second_moment_error: np.ndarray | None = None

    def __post_init__(self) -> None:
        fields = ["mean", "second_moment", "square_variance", "error", "second_moment_error"]
        for field in (name for name in fields if getattr(self, name) is not None):
            # Arrays may be given as lists, and the class is frozen.
            object.__setattr__(self, field, np.asarray(getattr(self, field), dtype=float))
            value = getattr(self, field)
            if value.ndim != 1 or value.shape != self.mean.shape:
                raise ValueError(f"{field} has shape {value.shape}: must be (d,), one number for each coordinate")
            if not np.all(np.isfinite(value)):
                raise ValueError(f"{field} is not finite at coordinate {int(np.argmin(np.isfinite(value)))}")
        if not np.all(self.second_moment > self.mean**2) or not np.all(self.square_variance >= 0):
            raise ValueError("second_moment must exceed mean**2, and square_variance must not be negative")
        if not self.exact and self.error is None:
            raise ValueError("error is missing: a reference with exact=False needs the standard errors of its means")

    @property
    def sd(self) -> np.ndarray:
        """Standard deviations, shape ``(d,)``."""
        return np.sqrt(self.second_moment - self.mean**2)

    @property
    def error_of_sd(self) -> np.ndarray:
        """Standard errors of ``sd``, shape ``(d,)``: zero if exact, NaN if not known.

        They follow by the delta method, with the errors of the two moments taken as independent.  Where the mean is far
        from 0 these errors are correlated, and the standard error is too large rather than too small.
        """
        if self.exact:
            return np.zeros_like(self.mean)
        if self.error is None or self.second_moment_error is None:
            return np.full_like(self.mean, np.nan)
        return np.hypot(self.second_moment_error, 2.0 * self.mean * self.error) / (2.0 * self.sd)


@dataclass(frozen=True)
class Modes:
    """Regions around the modes of a target, which partition the space.

    Attributes
    ----------
    names : tuple of str
        Names of the regions.
    weights : ndarray
        Their probabilities under the target.
    label : callable
        Function from positions ``(..., d)`` to the index of their region, of shape ``(...)``.

    Raises
    ------
    ValueError
        If names and weights differ in number, or the weights are not probabilities.
    """

    names: tuple[str, ...]
    weights: np.ndarray
    label: Callable[[np.ndarray], np.ndarray]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "weights", np.asarray(self.weights, dtype=float))
        if self.weights.shape != (len(self.names),):
            raise ValueError(f"weights has shape {self.weights.shape}: must be ({len(self.names)},), as many as names")
        if not np.all(self.weights > 0) or abs(self.weights.sum() - 1) > 1e-6:
            raise ValueError(f"weights={self.weights}: must be positive and sum to 1")


@dataclass(frozen=True)
class Target:
    """A posterior with known moments, as a PyMC model and as a log density in JAX.

    Attributes
    ----------
    name : str
        Name in tables and for :func:`pmm_mcmc.workbench.targets.get`.
    title : str
        Description in a few words.
    note : str
        Description and difficulty, in two to four sentences.
    labels : tuple of str
        Names of the coordinates of the flat unconstrained vector, in its order, from the names in the model.
    build : callable
        Function that returns a new ``pm.Model``.
    find_reference : callable
        Function that returns the :class:`Reference`.
    log_density_of : callable or None
        Log density of a flat vector up to a constant, for JAX to trace.
    find_modes : callable or None
        Function that returns the :class:`Modes`, if they are known.
    draw : callable or None
        ``draw(n, rng)`` returns independent draws ``(n, d)``, if there is a way to make them.
    trustworthy : bool
        False if a Langevin sampler cannot be trusted with the model as written.

    Raises
    ------
    ValueError
        If name, title or note is empty, or the labels are not distinct.

    Examples
    --------
    >>> import numpy as np
    >>> from pmm_mcmc.workbench.targets import Reference, Target
    >>> def build():
    ...     import pymc as pm
    ...     with pm.Model() as model:
    ...         pm.Normal("x", 1.0, 2.0, shape=2)
    ...     return model
    >>> def moments():
    ...     return Reference([1, 1], [5, 5], [48, 48], exact=True, source="Moments of a Gaussian.")
    >>> target = Target("mine", "A Gaussian", "Easy, to show how.", ("x[0]", "x[1]"), build, moments)
    >>> target.ndim, target.reference.sd
    (2, array([2., 2.]))
    """

    name: str
    title: str
    note: str
    labels: tuple[str, ...]
    build: Callable[[], pm.Model]
    find_reference: Callable[[], Reference]
    log_density_of: Callable[[Any], Any] | None = None
    find_modes: Callable[[], Modes] | None = None
    draw: Callable[[int, np.random.Generator], np.ndarray] | None = None
    trustworthy: bool = True

    def __post_init__(self) -> None:
        for field in ("name", "title", "note"):
            if not isinstance(getattr(self, field), str) or not getattr(self, field).strip():
                raise ValueError(f"{field}={getattr(self, field)!r}: must be a text that is not empty")
        object.__setattr__(self, "labels", tuple(self.labels))
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise ValueError(f"labels={self.labels}: must be distinct, one for each coordinate of the flat vector")

    @property
    def ndim(self) -> int:
        """Length of the flat unconstrained vector."""
        return len(self.labels)

    def model(self) -> pm.Model:
        """Return a new PyMC model."""
        return self.build()

    def log_density(self) -> LogDensity:
        """Return the JAX log density for ``pmm.sample``.

        Raises
        ------
        ValueError
            If the target has no JAX log density.
        ImportError
            If JAX is not installed.
        """
        if self.log_density_of is None:
            raise ValueError(
                f"the target {self.name!r} has no log density in JAX: pass log_density_of= to Target, or sample "
                "target.model() with backend='jax', which compiles the model itself"
            )
        return LogDensity.from_jax(self.log_density_of, self.ndim)

    @cached_property
    def reference(self) -> Reference:
        """Moments of every coordinate.

        Raises
        ------
        ValueError
            If their length differs from that of the labels.
        """
        found = self.find_reference()
        if found.mean.size != self.ndim:
            raise ValueError(
                f"the reference of {self.name!r} has {found.mean.size} coordinates, its labels {self.ndim}"
            )
        return found

    @cached_property
    def modes(self) -> Modes | None:
        """Regions around the modes with their probabilities, or None if they are not known."""
        return None if self.find_modes is None else self.find_modes()

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray | None:
        """Return independent draws from the target.

        Parameters
        ----------
        n
            Number of draws.
        rng
            Random number generator.

        Returns
        -------
        ndarray or None
            Draws ``(n, d)``; None if there is no way to make them.

        Raises
        ------
        ValueError
            If ``n`` is not a positive integer.
        """
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise ValueError(f"n={n!r}: must be an integer of at least 1, the number of draws")
        return None if self.draw is None else self.draw(int(n), rng)


def labels_of(**shapes: tuple[int, ...]) -> tuple[str, ...]:
    """Return labels of parameters of these shapes in order: ``labels_of(mu=(), x=(2,))`` is mu, x[0], x[1].

    ``log_`` before a name stands for the logarithm of the parameter.
    """
    labels = []
    for key, shape in shapes.items():
        name = f"log {key.removeprefix('log_')}" if key.startswith("log_") else key
        labels += [name + (f"[{', '.join(map(str, index))}]" if index else "") for index in np.ndindex(*shape)]
    return tuple(labels)

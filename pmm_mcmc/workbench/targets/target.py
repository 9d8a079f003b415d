"""Targets of the gallery: a model, and reference moments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pymc as pm

__all__ = ["Reference", "Target"]


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
        """Standard errors of ``sd``, shape ``(d,)``: zero if exact, NaN if not known; too large rather than too small.

        They follow by the delta method, with the errors of the two moments taken as independent.
        """
        if self.exact:
            return np.zeros_like(self.mean)
        if self.error is None or self.second_moment_error is None:
            return np.full_like(self.mean, np.nan)
        return np.hypot(self.second_moment_error, 2.0 * self.mean * self.error) / (2.0 * self.sd)


@dataclass(frozen=True)
class Target:
    """A posterior with known moments.

    Attributes
    ----------
    name, title, note : str
        Name in the gallery, description in a few words, and what is hard about it.
    build : callable
        Function that returns a new ``pm.Model``.
    find_reference : callable
        Function that returns the :class:`Reference`.
    draw : callable or None
        Function ``(rng, n)`` that returns independent draws ``(n, d)`` of the law itself.
    mode : callable or None
        Function that returns the number of the mode of each point ``(..., d)``, from 0.
    mode_weights : tuple of float
        Exact weights of the modes.

    Examples
    --------
    >>> from pmm_mcmc.workbench.targets import Reference, Target
    >>> def build():
    ...     import pymc as pm
    ...     with pm.Model() as model:
    ...         pm.Normal("x", 1.0, 2.0, shape=2)
    ...     return model
    >>> def moments():
    ...     return Reference([1, 1], [5, 5], [48, 48], exact=True, source="Moments of a Gaussian.")
    >>> target = Target("mine", "A Gaussian", "Easy, to show how.", build, moments)
    >>> target.ndim, target.reference.sd
    (2, array([2., 2.]))
    """

    name: str
    title: str
    note: str
    build: Callable[[], pm.Model]
    find_reference: Callable[[], Reference]
    draw: Callable[[np.random.Generator, int], np.ndarray] | None = None
    mode: Callable[[np.ndarray], np.ndarray] | None = None
    mode_weights: tuple[float, ...] = ()

    @property
    def ndim(self) -> int:
        """Length of the flat unconstrained vector."""
        return self.reference.mean.size

    @cached_property
    def reference(self) -> Reference:
        """Moments of every coordinate."""
        return self.find_reference()

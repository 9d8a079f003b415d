r"""Fits shift and scale of many sinks at once, each by itself, so that its straightened coordinate is a unit Gaussian.

Of a sink with ``z = (x - l) e^{-L}`` and gradient :math:`g^z = g\,e^{L}` the residual is :math:`r = z + g^z`: zero at
every draw, on its way to the posterior or there, where the law of the sink given all else is Gaussian with this mean
and scale.  The mean of :math:`r^2` is the Fisher divergence of that law from the unit Gaussian.  The fit takes the sum
of :math:`\kappa^2 \log(1 + r^2 / \kappa^2)`, so that few draws do not decide, and no penalty: an error of the
location or of a slope that is left grows as :math:`e^{-L}` below the draws, into a funnel that chains do not enter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pmm_mcmc.noncentring.funnel_map import saturate
from pmm_mcmc.noncentring.gauss_newton import KAPPA, fitted

__all__ = ["Sinks", "anchor_scores", "fit", "location_scores", "mean_loss", "scale_effect_scores"]


@dataclass(frozen=True)
class Sinks:
    """Sinks with the sources of their scales and locations, padded with -1, and what has been fitted.

    Attributes
    ----------
    sink : (m,)
        Coordinates.
    by_scale, by_location, by_anchor : (m, k), (m, l), (m, q)
        Their sources, ``by_anchor`` those of their locations at the ceiling.
    theta : (m, k + l + q + 4)
        ``a``, ``B`` (k), ``c``, ``C`` (l), ``E`` (q), ``t``, ``e``, in units of the draws given.
    loss : (m,)
        Mean loss of each.
    """

    sink: np.ndarray
    by_scale: np.ndarray
    by_location: np.ndarray
    by_anchor: np.ndarray
    theta: np.ndarray
    loss: np.ndarray

    @classmethod
    def start(cls, sink: np.ndarray, by_scale: np.ndarray, by_location: np.ndarray, slope: np.ndarray) -> Sinks:
        """Begin linear, at slopes ``(m, k)`` and without an effect on the locations."""
        m, k = by_scale.shape
        theta = np.zeros((m, k + by_location.shape[1] + 4))
        theta[:, 1 : 1 + k] = slope
        theta[:, -2] = np.inf
        return cls(sink, by_scale, by_location, np.full((m, 0), -1), theta, np.full(m, np.inf))

    @property
    def saturating(self) -> np.ndarray:
        """Which of them have a ceiling."""
        return np.isfinite(self.theta[:, -2])

    @property
    def slope(self) -> np.ndarray:
        """``B`` of shape ``(m, k)``."""
        return self.theta[:, 1 : 1 + self.by_scale.shape[1]]

    @property
    def load(self) -> np.ndarray:
        """``C`` of shape ``(m, l)``."""
        return self.theta[:, 2 + self.by_scale.shape[1] : -2 - self.by_anchor.shape[1]]

    @property
    def anchor_load(self) -> np.ndarray:
        """``E`` of shape ``(m, q)``."""
        return self.theta[:, -2 - self.by_anchor.shape[1] : -2]

    def take(self, which: np.ndarray) -> Sinks:
        """Return some of them."""
        return Sinks(*(part[which] for part in vars(self).values()))

    def put(self, which: np.ndarray, other: Sinks) -> Sinks:
        """Return them with ``theta`` and ``loss`` of some replaced."""
        theta, loss = self.theta.copy(), self.loss.copy()
        theta[which], loss[which] = other.theta, other.loss
        return replace(self, theta=theta, loss=loss)

    def adding(self, location: np.ndarray) -> Sinks:
        """Return them with another source of the location each, -1 for none, without an effect yet."""
        by_location = np.concatenate([self.by_location, location[:, None]], axis=1)
        theta = np.insert(self.theta, self.theta.shape[1] - 2 - self.by_anchor.shape[1], 0.0, axis=1)
        return replace(self, by_location=by_location, theta=theta)

    def adding_anchor(self, source: np.ndarray) -> Sinks:
        """Return them with another source of the anchor each, -1 for none, without an effect yet."""
        by_anchor = np.concatenate([self.by_anchor, source[:, None]], axis=1)
        theta = np.insert(self.theta, self.theta.shape[1] - 2, 0.0, axis=1)
        return replace(self, by_anchor=by_anchor, theta=theta)

    def adding_scale(self, source: np.ndarray) -> Sinks:
        """Return them with another source of the scale each, -1 for none, without an effect yet."""
        by_scale = np.concatenate([self.by_scale, source[:, None]], axis=1)
        theta = np.insert(self.theta, 1 + self.by_scale.shape[1], 0.0, axis=1)
        return replace(self, by_scale=by_scale, theta=theta)

    def beside(self, other: Sinks) -> Sinks:
        """Return these sinks and others."""
        one = self
        for name, adding in (
            ("by_scale", Sinks.adding_scale),
            ("by_location", Sinks.adding),
            ("by_anchor", Sinks.adding_anchor),
        ):
            while (lack := getattr(one, name).shape[1] - getattr(other, name).shape[1]) != 0:
                few = one if lack < 0 else other
                wider = adding(few, np.full(len(few.sink), -1))
                one, other = (wider, other) if few is one else (one, wider)
        parts = zip(vars(one).values(), vars(other).values(), strict=True)
        return Sinks(*(np.concatenate(pair) for pair in parts))

    def packed(self) -> Sinks:
        """Return them without columns of sources that no sink has."""
        sources, effects = [], []
        for which, effect in (
            (self.by_scale, self.slope),
            (self.by_location, self.load),
            (self.by_anchor, self.anchor_load),
        ):
            order = np.argsort(which < 0, axis=1, kind="stable")[:, : (which >= 0).sum(axis=1).max(initial=0)]
            sources.append(np.take_along_axis(which, order, axis=1))
            effects.append(np.take_along_axis(effect, order, axis=1))
        a, c, rest = self.theta[:, :1], self.theta[:, 1 + self.by_scale.shape[1], None], self.theta[:, -2:]
        theta = np.concatenate([a, effects[0], c, *effects[1:], rest], axis=1)
        by_scale, by_location, by_anchor = sources
        return Sinks(self.sink, by_scale, by_location, by_anchor, theta, self.loss)

    def with_ceiling(self, ceiling: np.ndarray) -> Sinks:
        """Return them as saturating ones, to be fitted from these ceilings and with their location as the anchor."""
        k, q = self.by_scale.shape[1], self.by_anchor.shape[1]
        theta = self.theta.copy()
        same = (self.by_anchor[:, :, None] == self.by_location[:, None]) & (self.by_anchor >= 0)[:, :, None]
        theta[:, -2 - q : -2] = (same * self.load[:, None]).sum(axis=2)
        theta[:, -2], theta[:, -1] = ceiling, theta[:, 1 + k]
        return replace(self, theta=theta, loss=np.full(len(theta), np.inf))

    def evaluate(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return ``l``, ``L``, ``w`` and ``c + C x - e - E x``, ``(m, n)`` each, at draws ``(d, n)``."""
        k = self.by_scale.shape[1]
        v = self.theta[:, :1] + _combine(self.slope, x, self.by_scale)
        anchor = self.theta[:, -1:]
        if self.by_anchor.size:
            anchor = anchor + _combine(self.anchor_load, x, self.by_anchor)
        apart = self.theta[:, 1 + k, None] + _combine(self.load, x, self.by_location) - anchor
        log_scale, w = saturate(v, self.theta[:, -2:-1])
        return anchor + w * apart, log_scale, w, apart

    def straighten(self, x: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``z`` and its gradient ``(m, n)`` at draws and gradients ``(d, n)``."""
        shift, log_scale, *_ = self.evaluate(x)
        return (x[self.sink] - shift) * np.exp(-log_scale), g[self.sink] * np.exp(log_scale)

    def losses(self, x: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Return the mean loss of each at draws and gradients ``(d, n)``."""
        z, g_z = self.straighten(x, g)
        return mean_loss(z + g_z)


def fit(sinks: Sinks, x: np.ndarray, g: np.ndarray, iterations: int = 60, fixed: np.ndarray | None = None) -> Sinks:
    """Fit by damped Gauss-Newton steps, each sink with a damping of its own, from where they stand.

    Parameters
    ----------
    sinks
        Saturating where their ceiling is finite, linear elsewhere: kinds are kept.
    x, g : (d, n)
        Draws and gradients of the log density, coordinates first, in units in which the draws are of order one.
    iterations
        Most steps.
    fixed : (m, p) bool, optional
        What of ``theta`` stays as it is.

    Returns
    -------
    Sinks
        With their ``theta`` and ``loss``.
    """
    free = np.ones(sinks.theta.shape, bool) if fixed is None else ~fixed
    sources = (np.ascontiguousarray(part) for part in (sinks.by_scale, sinks.by_location, sinks.by_anchor))
    theta, loss = fitted(np.ascontiguousarray(sinks.theta), free, sinks.sink, *sources, x, g, iterations)
    return replace(sinks, theta=theta, loss=loss)


def location_scores(sinks: Sinks, x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return how strongly each coordinate calls for an effect on each location: correlations ``(m, d)``."""
    _, log_scale, w, _ = sinks.evaluate(x)
    z, g_z = sinks.straighten(x, g)
    return _scores(z + g_z, -np.exp(-log_scale) * w, x)


def anchor_scores(sinks: Sinks, x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return how strongly each coordinate calls for an effect on each anchor: correlations ``(m, d)``, 0 if linear."""
    _, log_scale, w, _ = sinks.evaluate(x)
    z, g_z = sinks.straighten(x, g)
    return _scores(z + g_z, -np.exp(-log_scale) * (1.0 - w), x)


def scale_effect_scores(sinks: Sinks, x: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return how strongly each coordinate calls for an effect on each log scale: correlations ``(m, d)``."""
    _, log_scale, w, apart = sinks.evaluate(x)
    z, g_z = sinks.straighten(x, g)
    by_v = (g_z - z) * w
    by_v += np.where(sinks.saturating[:, None], 2.0 * w * (1.0 - w) * apart * np.exp(-log_scale), 0.0)
    return _scores(z + g_z, by_v, x)


def _scores(residual: np.ndarray, derivative: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return correlations of the residuals with the derivative by the intercept times each coordinate, centred."""
    with np.errstate(all="ignore"):
        root = 1.0 / np.sqrt(1.0 + (residual / KAPPA) ** 2)
        residual, derivative = residual * root, derivative * root
        weight = derivative**2
        total = weight.sum(axis=1, keepdims=True)
        spread = weight @ (x**2).T - (weight @ x.T) ** 2 / total
        score = (residual * derivative) @ x.T
        score -= (residual * derivative).sum(axis=1, keepdims=True) * (weight @ x.T) / total
        return np.nan_to_num(score / np.sqrt(spread * (residual**2).sum(axis=1, keepdims=True)), posinf=0.0, neginf=0.0)


def mean_loss(residual: np.ndarray) -> np.ndarray:
    """Return the mean over the last axis of what a residual costs."""
    loss = (KAPPA**2 * np.log1p((residual / KAPPA) ** 2)).mean(axis=-1)
    return np.where(np.isfinite(loss), loss, np.inf)


def _rows(x: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return the rows ``(m, k, n)`` of ``x``, zero where ``which`` is -1."""
    rows = x[which]
    rows[which < 0] = 0.0
    return rows


def _combine(factor: np.ndarray, x: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return the sums ``(m, n)`` of rows of ``x`` with factors ``(m, k)``."""
    return (np.where(which >= 0, factor, 0.0)[:, None] @ _rows(x, which))[:, 0]

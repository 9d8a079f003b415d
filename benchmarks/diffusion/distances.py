"""How far samples lie from the data: sliced Wasserstein and Frechet distances, and the excess of negative log density.

All but the last are squared where the literature squares them (Frechet), not where it does not (Wasserstein).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

NAMES = ("SW2", "FD features", "FD pixels", "NLL excess")
_PROJECTIONS = 100


def _moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x.mean(axis=0), np.cov(x, rowvar=False)


def frechet(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> float:
    r"""Frechet distance :math:`|m_a - m_b|^2 + tr(C_a + C_b - 2 (C_a^{1/2} C_b C_a^{1/2})^{1/2})`."""
    values, vectors = np.linalg.eigh(a[1])
    root = vectors * np.sqrt(np.maximum(values, 0.0)) @ vectors.T
    both = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ b[1] @ root), 0.0)).sum()
    return float(np.sum((a[0] - b[0]) ** 2) + np.trace(a[1]) + np.trace(b[1]) - 2.0 * both)


class Distances:
    """Distances from a reference sample ``(m, d)``, larger than the samples that are judged.

    ``features`` are weights and offsets of which the positive part is taken; ``moments`` the exact mean and covariance,
    in place of those of the reference; ``nll`` gives the mean negative log density of a sample.
    """

    def __init__(
        self,
        reference: np.ndarray,
        features: tuple[np.ndarray, np.ndarray] | None = None,
        moments: tuple[np.ndarray, np.ndarray] | None = None,
        nll: Callable[[np.ndarray], float] | None = None,
    ) -> None:
        directions = np.random.default_rng(0).standard_normal((reference.shape[1], _PROJECTIONS))
        self._directions = directions / np.linalg.norm(directions, axis=0)
        self._projected = np.sort(reference @ self._directions, axis=0)
        self._features = features
        self._moments = _moments(reference) if moments is None else moments
        self._of_features = None if features is None else _moments(self._seen(reference))
        self._nll = nll
        self._level = None if nll is None else nll(reference)

    def _seen(self, x: np.ndarray) -> np.ndarray:
        weights, offsets = self._features
        # What leaves the range of the pixels is cut, as it is where samples are stored as images.
        return np.maximum(np.clip(x, -1.0, 1.0) @ weights + offsets, 0.0)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the distances of :data:`NAMES`; NaN where one is not defined."""
        x = np.asarray(x, dtype=float)
        projected = np.sort(x @ self._directions, axis=0)
        at = (np.arange(len(x)) + 0.5) / len(x) * len(self._projected) - 0.5
        low = np.clip(np.floor(at).astype(int), 0, len(self._projected) - 2)
        share = np.clip(at - low, 0.0, 1.0)[:, None]
        quantiles = (1.0 - share) * self._projected[low] + share * self._projected[low + 1]
        return np.array(
            [
                np.sqrt(np.mean((projected - quantiles) ** 2)),
                np.nan if self._features is None else frechet(self._of_features, _moments(self._seen(x))),
                frechet(self._moments, _moments(x)),
                np.nan if self._nll is None else self._nll(x) - self._level,
            ]
        )


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the seeds, the first axis, and its standard error."""
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def table(found: dict[tuple[str, int], np.ndarray]) -> list[str]:
    """Lines of mean and standard error over the seeds, the first axis, by sampler and calls."""
    lines = [f"{'sampler':22}{'calls':>6}  " + "".join(f"{column:>20}" for column in NAMES)]
    for (family, calls), values in found.items():
        lines.append(f"{family:22}{calls or '-':>6}  " + "".join(map(_cell, *mean_and_error(values))).rstrip())
    return lines


def _cell(mean: float, error: float) -> str:
    """A mean with its error, or without where nothing in it is random."""
    if not np.isfinite(mean):
        return " " * 20
    return f"{mean:>11.4g} +-{error:7.2g}" if error > 1e-6 * abs(mean) else f"{mean:>11.4g}{'':9}"


def compared(found: dict[tuple[str, int], np.ndarray], pairs: Iterable[tuple]) -> list[str]:
    """Lines with how much further off one sampler is than another, and the standard error of that.

    ``pairs`` are a sampler and its calls, and another and its calls.  Of the excess, which has a sign, the absolute
    value of the mean counts.
    """
    lines = ["How much further off the first is; below 0: nearer"]
    for a, calls_a, b, calls_b in pairs:
        if (a, calls_a) in found and (b, calls_b) in found:
            values = [found[a, calls_a], found[b, calls_b]]
            excess = np.array(NAMES) == "NLL excess"
            signed = [np.where(excess, np.sign(v.mean(axis=0)) * v, v) for v in values]
            (mean, error), (other, error_of_other) = map(mean_and_error, signed)
            cells = map(_cell, mean - other, np.hypot(error, error_of_other))
            lines.append(f"  {a:20}{calls_a:>4}  {b:20}{calls_b:>5}" + "".join(cells).rstrip())
    return lines

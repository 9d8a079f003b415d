"""Exact moments of the acceptance set and of the targets of the workbench: closed forms and quadratures.

``python benchmarks/common/exact_moments.py`` writes those of the workbench's targets into their data file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from pmm_mcmc.workbench import targets as workbench
from pmm_mcmc.workbench.targets import gallery

PATH = Path(gallery.__file__).parent / "data" / "references.json"


@dataclass(frozen=True)
class Reference:
    """Moments of each coordinate, arrays of shape ``(d,)``; standard errors are 0 where the moments are exact."""

    mean: np.ndarray
    second: np.ndarray
    variance_of_x: np.ndarray
    variance_of_square: np.ndarray
    se_mean: np.ndarray
    se_second: np.ndarray

    @classmethod
    def of_moments(cls, moments: np.ndarray) -> Reference:
        """Return the reference of exact raw moments 1, 2 and 4, ``(3, d)``."""
        mean, second, fourth = moments
        zero = np.zeros_like(mean)
        return cls(mean, second, second - mean**2, fourth - second**2, zero, zero)


def of_gallery(name: str) -> Reference:
    """Moments of a target of :mod:`pmm_mcmc.workbench.targets` that has exact ones."""
    stored = workbench.get(name).reference
    if not stored.exact:
        raise ValueError(f"name={name!r}: these moments are not exact: {stored.source}")
    zero = np.zeros_like(stored.mean)
    variance = stored.second_moment - stored.mean**2
    return Reference(stored.mean, stored.second_moment, variance, stored.square_variance, zero, zero)


def gaussian_moments(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Raw moments 1, 2 and 4 of Gaussians, stacked along a new first axis."""
    return np.stack([mean, mean**2 + variance, mean**4 + 6 * mean**2 * variance + 3 * variance**2])


def gaussian(variance: np.ndarray) -> Reference:
    """Moments of a Gaussian about 0 with these marginal variances."""
    return Reference.of_moments(gaussian_moments(np.zeros_like(variance), variance))


def mixture(weight: tuple[float, ...], mean: tuple[float, ...], d: int) -> Reference:
    """Moments of unit Gaussians whose means lie on the first axis."""
    axis = gaussian_moments(np.array(mean), np.ones(len(mean))) @ np.array(weight)
    others = gaussian_moments(np.zeros(d - 1), np.ones(d - 1))
    return Reference.of_moments(np.column_stack([axis, others]))


def bent_pairs(
    pairs: int, mean: float, sd: float, curve: Callable[[np.ndarray], np.ndarray], noise_variance: float
) -> Reference:
    """Moments of pairs a ~ N(mean, sd^2), b ~ N(curve(a), noise): first all a, then all b.

    They are exact if ``curve`` is a polynomial of degree at most 19: the quadrature is exact up to degree 79.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    centre = curve(mean + sd * nodes)
    bent = gaussian_moments(centre, np.full_like(centre, noise_variance)) @ (weights / weights.sum())
    straight = gaussian_moments(np.array(mean), np.array(sd**2))
    return Reference.of_moments(np.repeat(np.column_stack([straight, bent]), pairs, axis=1))


def ring() -> Reference:
    """Moments of a ring: E[cos^2] = 1/2 and E[cos^4] = 3/8, with a squared radius N(1, RING^2)."""
    return Reference.of_moments(np.array([[0.0, 0.0], [0.5, 0.5], [3 / 8 * (1 + gallery.RING**2)] * 2]))


def funnel(sd: float, others: int) -> Reference:
    """Moments of y ~ N(0, sd^2) and so many x ~ N(0, exp(y)), from E exp(k y) = exp(k^2 sd^2 / 2)."""
    neck = gaussian_moments(np.array([0.0]), np.array([sd**2]))
    scaled = np.array([0.0, np.exp(sd**2 / 2), 3 * np.exp(2 * sd**2)])
    return Reference.of_moments(np.concatenate([neck, np.repeat(scaled[:, None], others, axis=1)], axis=1))


def weights_on(nodes: np.ndarray, log_density: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Weights of equidistant nodes: the trapezoidal rule is exact to rounding (Trefethen and Weideman, 2014)."""
    log_weight = log_density(nodes)
    weight = np.exp(log_weight - log_weight.max())
    return weight / weight.sum()


def double_well() -> Reference:
    """Moments of the tilted double well, by quadrature over the first coordinate."""
    nodes = np.linspace(-3.0, 3.0, 1200)
    weight = weights_on(nodes, gallery.well)
    first = np.stack([nodes, nodes**2, nodes**4]) @ weight
    followers = gaussian_moments(nodes, np.full_like(nodes, gallery.NOISE**2)) @ weight
    return Reference.of_moments(np.column_stack([first, *[followers] * gallery.FOLLOWERS]))


def eight_schools(centred: bool) -> Reference:
    """Moments of eight schools: quadrature over log tau, with mu and the effects integrated out in closed form."""
    effect, error = gallery.EFFECT, gallery.ERROR
    log_tau = np.linspace(-40.0, 12.0, 4001)
    tau = np.exp(log_tau)[:, None]
    # Given tau and mu, the effects' deviations are z ~ N(slope (effect - mu), error^2 / spread).
    spread = error**2 + tau**2
    slope = tau / spread
    mu_variance = 1 / (1 / gallery.MU_SD**2 + (1 / spread).sum(axis=1))
    mu_mean = mu_variance * (effect / spread).sum(axis=1)
    log_density = (
        log_tau
        - np.log1p((tau[:, 0] / gallery.TAU_SCALE) ** 2)
        - 0.5 * (np.log(spread) + effect**2 / spread).sum(axis=1)
        + 0.5 * (np.log(mu_variance) + mu_mean**2 / mu_variance)
    )
    weight = weights_on(log_tau, lambda _: log_density)
    centre = slope * (effect - mu_mean[:, None])
    gain = -slope
    variance = error**2 / spread
    if centred:
        centre = mu_mean[:, None] + tau * centre
        gain = 1 + tau * gain
        variance = tau**2 * variance
    schools = gaussian_moments(centre, variance + gain**2 * mu_variance[:, None])
    of_log_tau = np.stack([log_tau, log_tau**2, log_tau**4]) @ weight
    mu = gaussian_moments(mu_mean, mu_variance) @ weight
    return Reference.of_moments(np.column_stack([mu, of_log_tau, np.einsum("t,ktj->kj", weight, schools)]))


TARGETS: dict[str, Callable[[], Reference]] = {
    "mixture_4sd": partial(mixture, (0.5, 0.5), (-2.0, 2.0), 10),
    "mixture_7sd": partial(mixture, (0.5, 0.5), (-3.5, 3.5), 10),
    "mixture_unequal": partial(mixture, (0.7, 0.3), (-1.2, 2.8), 20),
    "three_modes": partial(mixture, (0.5, 0.3, 0.2), (-3.0, 0.0, 3.0), 10),
    "double_well": double_well,
    "banana": partial(bent_pairs, gallery.PAIRS, 0.0, gallery.SD, gallery.bend, 1.0),
    "rosenbrock": partial(bent_pairs, gallery.RIDGES, 1.0, 1.0, np.square, gallery.ROSENBROCK_NOISE),
    "ring": ring,
    "funnel": partial(funnel, gallery.FUNNEL_SD, gallery.FUNNEL_OTHERS),
    "eight_schools": partial(eight_schools, False),
    "eight_schools_centred": partial(eight_schools, True),
}


def main() -> None:
    """Write the moments of the workbench's targets; those of long runs stay."""
    entries = json.loads(PATH.read_text(encoding="utf-8"))
    for name, find in TARGETS.items():
        moments = find()
        fields = {"mean": moments.mean, "second_moment": moments.second, "square_variance": moments.variance_of_square}
        entries.setdefault(name, {"source": "Closed form, to rounding.", "exact": True})
        entries[name] |= {field: values.tolist() for field, values in fields.items()}
    lines = [f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

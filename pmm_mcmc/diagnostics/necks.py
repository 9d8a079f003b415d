"""A search for necks of funnels after the draws: narrow places that chains have hardly entered.

The noise of a model that can fit its data exactly is an example: where it is small, all other coordinates are narrow.
Steps of the run's length turn back there, and chains agree with each other without that tail; no transition diverges.

The mass of the tail is predicted.  Along a coordinate ``z_i`` with which the gradients of the others grow, the marginal
density ``p(z_i)`` is computed at places outward from the median of the draws.  At each place the density is maximised
over the other coordinates, and integrated over them by importance sampling from the Gaussian of Laplace's approximation
there.  A prediction counts only if its bulk agrees with that of the draws (:func:`_mass_beyond`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.interpolate import PchipInterpolator

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics.statement import Reason
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.warmup.ascent import Density

if TYPE_CHECKING:
    from pmm_mcmc.diagnostics.reading import Run

__all__ = ["MOST_COORDINATES", "MOST_DRAWS", "neck", "necks_beyond"]

# Draws whose gradients show whether the posterior narrows.
MOST_DRAWS = 400
# Distances of places from the median of the draws, in their sds (half their middle 68 %), towards the neck and away.
_TOWARDS = (0.7, 1.4, 2.1, 3.0, 4.0, 5.5, 7.5, 10.0)
_AWAY = _TOWARDS[:4]
# Most coordinates of the model, of which each costs a gradient at each place.
MOST_COORDINATES = 64
# Coordinates along which a neck is searched, at most.
_SEARCHED = 2
# Fall of the log marginal density, in nats, beyond which no place matters.
_DEEP = 8.0
# Twice the rise that the next step of Newton's method promises, in nats, at which it has reached the maximum.
_ARRIVED = 0.05
# Hessian matrices of a search for a maximum, and steps with each.
_HESSIANS = 3
_STEPS = 8
# Whitened distance of the gradients whose differences make a Hessian matrix.
_APART = 1e-3
# Antithetic pairs of draws from Laplace's Gaussian.
_PAIRS = 16
# Rise of a prediction beyond its maximum, in nats, that 32 draws leave: it ends before a larger one.
_RISE = 0.5
# Share of the draws beyond which a neck begins, and the bulk in which the prediction must agree with the draws.
_TAIL = 0.01
_BULK = 0.05


def necks_beyond(draws: np.ndarray, coordinates: Coordinates, density: Density) -> dict[str, Any]:
    """Predict the marginal densities of coordinates along which the posterior narrows.

    ``draws`` ``(n, d)`` are positions ``z`` from all chains, ``coordinates`` the whitened ones of the run; ``density``
    returns log densities of ``z`` with gradients.  The result has the number of ``gradients`` that were evaluated and,
    in ``along``, for each coordinate its number, the ``side`` of the neck, places and log densities there.
    """
    search = _Search(coordinates, density)
    d = draws.shape[1]
    predictions = []
    if 1 < d <= MOST_COORDINATES and np.isfinite(draws).all():
        with np.errstate(all="ignore"):  # densities that are not finite, or vast
            predictions = [search.predicted(draws, i, side) for i, side in search.narrowing(draws)]
    return {"gradients": search.spent, "along": predictions}


class _Search:
    """The search in whitened coordinates ``y``, with the number of gradients ``spent``."""

    def __init__(self, coordinates: Coordinates, density: Density):
        self._coordinates = coordinates
        self._density_of_z = density
        self.spent = 0

    def _density(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.spent += len(y)
        lp, gradient = self._density_of_z(self._coordinates.place(y))
        return lp, self._coordinates.pull_back(gradient)

    def _axes(self, d: int) -> np.ndarray:
        """Return in column ``i`` the gradient of ``z_i`` with respect to ``y``."""
        return self._coordinates._replace(centre=np.zeros(d)).place(np.eye(d))

    def narrowing(self, draws: np.ndarray) -> list[tuple[int, int]]:
        """Return the coordinates with which the others' gradients grow most evenly, and on which side, 1 or -1."""
        _, g = self._density(self._coordinates.whiten(draws))
        axes = self._axes(draws.shape[1])
        others = (g**2).sum(axis=1)[:, None] - (g @ axes) ** 2 / (axes**2).sum(axis=0)
        correlation = np.corrcoef(draws.T, np.log(np.maximum(others, 1e-300)).T)[: draws.shape[1], draws.shape[1] :]
        follows = np.nan_to_num(correlation.diagonal())
        steepest = np.argsort(-np.abs(follows))[:_SEARCHED]
        return [(int(i), int(np.sign(follows[i]))) for i in steepest if abs(follows[i]) > THRESHOLDS.narrowing]

    def predicted(self, draws: np.ndarray, i: int, side: int) -> dict[str, Any]:
        """Return the marginal density of coordinate ``i``, outward on both sides as far as there is a maximum."""
        low, median, high = np.quantile(draws[:, i], [0.16, 0.5, 0.84])
        nearest = draws[np.argmin(np.abs(draws[:, i] - median))]
        start = self._coordinates.whiten(nearest)
        axis = self._axes(draws.shape[1])[:, i]
        length = float(np.linalg.norm(axis))
        axis = axis / length
        centre = float(start @ axis) + (median - nearest[i]) / length
        positions = np.empty(0)
        log_densities = np.empty(0)
        for sign, distances in ((-side, _AWAY), (side, (0.0, *_TOWARDS))):
            offsets = 0.5 * sign * (high - low) * np.array(distances)
            values = self._marginal(axis, centre + offsets / length, start)
            positions = np.r_[positions, median + offsets[: len(values)]]
            log_densities = np.r_[log_densities, values]
        order = np.argsort(positions)
        return {
            "coordinate": i,
            "side": side,
            "at": positions[order].tolist(),
            "log_density": log_densities[order].tolist(),
        }

    def _marginal(self, axis: np.ndarray, places: np.ndarray, start: np.ndarray) -> list[float]:
        """Return log marginal densities at places along an axis, in order, until they are low or there is no maximum.

        The search for a maximum begins at ``start``, then where the line through the last two maxima leads.
        """
        plane = np.linalg.svd(axis[None])[2][1:]  # its rows are the directions across the axis
        log_densities: list[float] = []
        maxima: list[np.ndarray] = []
        y = start
        hessian = None
        for place in places:
            if len(maxima) > 1:
                step = maxima[-1] - maxima[-2]
                y = maxima[-1] + step * np.clip((place - maxima[-1] @ axis) / (step @ axis), 0.0, 2.0)
            maximum = self._maximum(y + (place - y @ axis) * axis, plane, hessian)
            if maximum is None:
                break
            y, hessian, log_density = maximum
            maxima.append(y)
            log_densities.append(log_density)
            if log_density < max(log_densities) - _DEEP:
                break
        return log_densities

    def _maximum(
        self, y: np.ndarray, plane: np.ndarray, hessian: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, float] | None:
        """Return the maximum in the plane through ``y``, its Hessian matrix there, and the log integral over the plane.

        Newton's method goes on with one ``hessian``, that of the last place, until a step promises little.
        """
        (lp,), (g,) = self._density(y[None])
        for _ in range(_HESSIANS):
            if hessian is None:
                hessian = self._hessian(y, g, plane)
            for _ in range(_STEPS):
                if not (np.isfinite(hessian).all() and np.isfinite(lp)):
                    return None
                step, gain, *_ = _newton_step(g, plane, hessian)
                point = self._higher_point(y, lp, step, gain) if gain >= _ARRIVED else None
                if point is None:
                    break
                y, lp, g = point
            hessian = self._hessian(y, g, plane)
            if not np.isfinite(hessian).all():
                return None
            _, gain, values, vectors = _newton_step(g, plane, hessian)
            if gain < 2.0 * _ARRIVED and values[0] > 0.0:
                return y, hessian, float(lp + self._log_volume(y, lp, plane, values, vectors))
        return None

    def _higher_point(
        self, y: np.ndarray, lp: float, step: np.ndarray, gain: float
    ) -> tuple[np.ndarray, float, np.ndarray] | None:
        """Return the end of a step, or of a half, a quarter ... of it, that is higher; None if none is.

        ``gain`` is the rise that the step promises, times two.
        """
        share = 1.0
        while share > 1e-3:
            (new_lp,), (gradient,) = self._density((y + share * step)[None])
            if new_lp > lp + 1e-3 * share * gain:
                return y + share * step, new_lp, gradient
            share *= 0.5
        return None

    def _log_volume(
        self, y: np.ndarray, lp: float, plane: np.ndarray, values: np.ndarray, vectors: np.ndarray
    ) -> float:
        """Return the log integral of a density over its maximum ``lp``, by importance sampling from Laplace's Gaussian.

        The random numbers are the same at all places: what they leave cancels in part.
        """
        normal = np.random.default_rng(len(y)).standard_normal((_PAIRS, len(values)))
        normal = np.concatenate([normal, -normal])
        around = self._density(y + (normal @ (vectors / np.sqrt(values)) @ vectors.T) @ plane)[0]
        weights = np.nan_to_num(around, nan=-np.inf) - lp + 0.5 * (normal**2).sum(axis=1)
        return float(np.logaddexp.reduce(weights) - np.log(len(weights)) - 0.5 * np.log(values).sum())

    def _hessian(self, y: np.ndarray, g: np.ndarray, plane: np.ndarray) -> np.ndarray:
        """Return the negative Hessian matrix within a plane, by differences of gradients."""
        hessian = -(self._density(y + _APART * plane)[1] - g) @ plane.T / _APART
        return 0.5 * (hessian + hessian.T)


def _newton_step(
    g: np.ndarray, plane: np.ndarray, hessian: np.ndarray
) -> tuple[np.ndarray, float, np.ndarray, np.ndarray]:
    """Return Newton's step within a plane, twice the rise that it promises, and the eigenvalues and -vectors."""
    values, vectors = np.linalg.eigh(hessian)
    slope = vectors.T @ (plane @ g)
    curvature = np.maximum(np.abs(values), 1e-4)
    return slope / curvature @ vectors.T @ plane, float((slope**2 / curvature).sum()), values, vectors


def neck(run: Run) -> Reason | None:
    """Return a reason if a neck beyond the draws has, by prediction, a hundredth more of the mass than of the draws."""
    predictions = run.findings.get("necks", {}).get("along", []) if run.gradient is not None else []
    limit = _TAIL + THRESHOLDS.mass
    for prediction in predictions:
        side = prediction["side"]
        z = run.sampled_position[..., prediction["coordinate"]].ravel()
        mass = _mass_beyond(z, side, prediction["at"], prediction["log_density"])
        if mass > limit:
            edge = side * float(np.quantile(side * z, 1.0 - _TAIL))
            parameter = run.closest_parameter(run.sampled_position, prediction["coordinate"])
            value = run.parameters.draws_of(parameter).ravel()[int(np.argmin(np.abs(z - edge)))]
            where = "below" if edge < np.median(z) else "above"
            text = (
                f"by a prediction {100.0 * mass:.0f} % of the mass is where {parameter} is {where} {value:.3g}, a neck "
                f"with {100.0 * _TAIL:.0f} % of the draws"
            )
            remedy = f"draw more, or keep {parameter} from there by its prior"
            return Reason("neck", text, remedy, parameter, mass, limit)
    return None


def _mass_beyond(z: np.ndarray, side: int, places: list[float], log_densities: list[float]) -> float:
    """Return the mass predicted beyond the last hundredth of draws ``z`` on a side; 0 where that is no evidence."""
    z = side * z  # so that the neck is on the right
    grid = side * np.array(places)[::side]
    log_density = np.array(log_densities)[::side]
    low, high, edge = np.quantile(z, [_BULK, 1.0 - _BULK, 1.0 - _TAIL])
    if not ((grid >= low) & (grid <= high)).any():
        return 0.0
    top = int(np.where((grid >= low) & (grid <= high), log_density, -np.inf).argmax())
    rises = np.flatnonzero(np.diff(log_density[top:]) > _RISE)
    if rises.size:  # there the prediction fails, or another mode begins
        grid, log_density = (values[: top + rises[0] + 1] for values in (grid, log_density))
    if len(grid) < 5 or grid[0] > low or grid[-1] < edge:
        return 0.0
    fine = np.linspace(grid[0], grid[-1], 4001)
    density = np.exp(PchipInterpolator(grid, log_density)(fine) - log_density[top])
    inside = (fine >= low) & (fine <= high)
    share = np.cumsum(density * inside) / (density * inside).sum()
    drawn = np.sort(z[(z >= low) & (z <= high)])
    if np.abs(np.interp(drawn, fine, share) - (np.arange(len(drawn)) + 0.5) / len(drawn)).max() > THRESHOLDS.agree:
        return 0.0
    return float(density[fine > edge].sum() / (density * inside).sum() * (1.0 - 2.0 * _BULK))

"""A search for necks of funnels after the draws: narrow places that chains have hardly entered.

The noise of a model that can fit its data exactly is an example: where it is small, all other coordinates are narrow.
Steps turn back there, and chains agree with each other without that tail; no transition diverges.

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
from pmm_mcmc.warmup.ascent import Ascents, Density

if TYPE_CHECKING:
    from pmm_mcmc.diagnostics.reading import Run

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
# Gradients of a search for a maximum, at most.
_ASCENT = 100
# Whitened distance of the gradients whose differences make a Hessian matrix.
_APART = 1e-3
# Antithetic pairs of draws from Laplace's Gaussian.
_PAIRS = 16
# Rise of a prediction beyond its maximum, in nats, that 32 draws leave: it ends before a larger one.
_RISE = 0.5
# Share of the draws beyond which a neck begins, and the bulk in which the prediction must agree with the draws.
_TAIL = 0.01
_BULK = 0.05


def necks_beyond(draws: np.ndarray, coordinates: Coordinates, density: Density) -> list[dict[str, Any]]:
    """Predict the marginal densities of coordinates along which the posterior narrows.

    ``draws`` ``(n, d)`` are positions ``z`` from all chains, ``coordinates`` the whitened ones ``y`` of the run;
    ``density`` returns log densities of ``z`` with gradients.  The result has for each coordinate its number, the
    ``side`` of the neck, places and log densities there.
    """

    def whitened_density(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lp, gradient = density(coordinates.place(y))
        return lp, coordinates.pull_back(gradient)

    d = draws.shape[1]
    if not (1 < d <= MOST_COORDINATES and np.isfinite(draws).all()):
        return []
    axes = coordinates._replace(centre=np.zeros(d)).place(np.eye(d))  # column i is the gradient of z_i in y
    y = coordinates.whiten(draws)
    with np.errstate(all="ignore"):  # densities that are not finite, or vast
        gradient = whitened_density(y)[1]
        others = (gradient**2).sum(axis=1)[:, None] - (gradient @ axes) ** 2 / (axes**2).sum(axis=0)
        correlation = np.corrcoef(draws.T, np.log(np.maximum(others, 1e-300)).T)[: draws.shape[1], draws.shape[1] :]
        follows = np.nan_to_num(correlation.diagonal())
        steepest = np.argsort(-np.abs(follows))[:_SEARCHED]
        necks = [(int(i), int(np.sign(follows[i]))) for i in steepest if abs(follows[i]) > THRESHOLDS.narrowing]
        return [_predicted(draws[:, i], y, axes[:, i], i, side, whitened_density) for i, side in necks]


def _predicted(z: np.ndarray, y: np.ndarray, axis: np.ndarray, i: int, side: int, density: Density) -> dict[str, Any]:
    """Return the marginal density of coordinate ``i`` with draws ``z``, outward on both sides."""
    low, median, high = np.quantile(z, [0.16, 0.5, 0.84])
    nearest = int(np.argmin(np.abs(z - median)))
    length = float(np.linalg.norm(axis))
    axis = axis / length
    centre = float(y[nearest] @ axis) + (median - z[nearest]) / length
    places = np.empty(0)
    log_densities = np.empty(0)
    for sign, distances in ((-side, _AWAY), (side, (0.0, *_TOWARDS))):
        offsets = 0.5 * sign * (high - low) * np.array(distances)
        values = _marginal(axis, centre + offsets / length, y[nearest], density)
        places = np.r_[places, median + offsets[: len(values)]]
        log_densities = np.r_[log_densities, values]
    order = np.argsort(places)
    return {
        "coordinate": i,
        "side": side,
        "at": places[order].tolist(),
        "log_density": log_densities[order].tolist(),
    }


def _marginal(axis: np.ndarray, places: np.ndarray, start: np.ndarray, density: Density) -> list[float]:
    """Return log marginal densities at places along an axis, in order, until they are low or there is no maximum.

    The search for a maximum begins at ``start``, then where the line through the last two maxima leads.
    """
    plane = np.linalg.svd(axis[None])[2][1:]  # its rows are the directions across the axis
    log_densities: list[float] = []
    maxima = [start]
    for place in places:
        y = maxima[-1]
        if len(maxima) > 2:
            step = y - maxima[-2]
            y = y + step * np.clip((place - y @ axis) / (step @ axis), 0.0, 2.0)
        ascent = _ascent(y + (place - y @ axis) * axis, plane, density)
        if ascent is None:
            break
        maxima.append(ascent[0])
        log_densities.append(ascent[1])
        if log_densities[-1] < max(log_densities) - _DEEP:
            break
    return log_densities


def _ascent(y: np.ndarray, plane: np.ndarray, density: Density) -> tuple[np.ndarray, float] | None:
    """Return the maximum in the plane through ``y``, and the log integral over the plane; None if there is none."""

    def in_plane(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lp, gradient = density(y + x @ plane)
        return lp, gradient @ plane.T

    start = np.zeros((1, len(plane)))
    ascent = Ascents.of(in_plane, start, start[0], _ASCENT)
    if not ascent.arrived[0]:
        return None
    x = ascent.position[0]
    hessian = (ascent.gradient[0] - in_plane(x + _APART * np.eye(len(x)))[1]) / _APART
    if not np.isfinite(hessian).all():
        return None
    values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
    if not values[0] > 0.0:
        return None
    # Importance sampling from Laplace's Gaussian.  The random numbers are the same at all places: what they leave
    # cancels in part.
    normal = np.random.default_rng(len(y)).standard_normal((_PAIRS, len(x)))
    normal = np.concatenate([normal, -normal])
    around = in_plane(x + normal @ (vectors / np.sqrt(values)) @ vectors.T)[0]
    weights = np.nan_to_num(around, nan=-np.inf, neginf=-np.inf) + 0.5 * (normal**2).sum(axis=1)
    log_volume = np.logaddexp.reduce(weights) - np.log(len(weights)) - 0.5 * np.log(values).sum()
    return (y + x @ plane, float(log_volume)) if np.isfinite(log_volume) else None


def neck(run: Run) -> Reason | None:
    """Return a reason if a neck beyond the draws has, by prediction, a hundredth more of the mass than of the draws."""
    predictions = run.findings.get("necks", []) if run.gradient is not None else []
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

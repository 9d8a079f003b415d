r"""A start from a former run: its setting is checked on one block of the new posterior before it is trusted.

Chains start from draws of the former run, resampled in the ratio of the two densities :math:`p_{new} / p_{former}`
where it is bounded enough (Pareto :math:`k < 0.7` of the smoothed ratios [1]_), otherwise taken as they are.  At all of
them positions and gradients must have the same spread in whitened coordinates: where half of them differ by far, the
setting is dropped, where some do, refined by what the gradients say of these (:func:`relearnt`).  Otherwise the
preconditioner is fitted to them anew, since a draw is worth a third less with that of another posterior, and the chains
advance by one block of the kernel of the draws, whose setting

- **fits** if the block is past the transient and whitened by the criterion by which a warm-up freezes its
  preconditioner, Stein's identity holds in each coordinate, and each chain accepts most of its steps;
- is **refined**, by blocks of an ordinary warm-up that begins with it, if the draws are usable and one of these fails;
- is **dropped** for a cold start otherwise.

Equilibration judges the chains as always.

.. [1] A. Vehtari, D. Simpson, A. Gelman, Y. Yao and J. Gabry, "Pareto smoothed importance sampling", Journal of Machine
   Learning Research 25 (2024) 72.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates, diagonal_scale
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Engine, Ensemble, TunedParameters, empty_state, log_det_of
from pmm_mcmc.warmup import block_checks, step_size
from pmm_mcmc.warmup.block import Block, narrowness, past_transient
from pmm_mcmc.warmup.curvature import LocalCurvature
from pmm_mcmc.warmup.noncentring import noncentring_at
from pmm_mcmc.warmup.stein_identity import count_pieces, degrees_of_freedom, largest_t, stein_identity
from pmm_mcmc.warmup.thresholds import THRESHOLDS
from pmm_mcmc.warmup.warm_up import Warmup, end_of_check, end_of_growing, shortest_block, stiffness

# Ratios from which on a Pareto distribution is fitted to the largest fifth of them.
_FEWEST_RATIOS = 25
# Differences of log ratios that are rounding.
_EQUAL = 1e-6
# Outcomes of a trial.
FITS = "fits"
REFINED = "refined"
DROPPED = "dropped"


def number_of_candidates(chains: int) -> int:
    """Return how many draws of a former run are looked at for the starts."""
    return int(np.clip(THRESHOLDS.candidates * chains, 4 * THRESHOLDS.candidates, THRESHOLDS.most_candidates))


def resampled(log_ratio: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, float]:
    """Return the numbers of ``count`` draws, by their ratios of densities if these allow it, and Pareto's ``k``.

    Draws whose ratio is not finite are left out.
    """
    from arviz_stats.base import array_stats

    finite = np.flatnonzero(np.isfinite(log_ratio))
    ratios = log_ratio[finite]
    log_weights = ratios
    equal = np.ptp(ratios) < _EQUAL
    k = 0.0 if equal else np.inf
    if not equal and len(finite) >= _FEWEST_RATIOS:
        with contextlib.suppress(ValueError):  # the largest are all of one draw
            log_weights, k = array_stats.psislw(-ratios)  # of minus the log ratios
    trusted = bool(k < THRESHOLDS.pareto_k)
    weights = np.exp(log_weights - log_weights.max()) if trusted else np.ones(len(finite))
    ends = np.cumsum(weights) / weights.sum()
    places = (np.arange(count) + rng.uniform()) / count
    chosen = finite[np.minimum(np.searchsorted(ends, places), len(finite) - 1)]
    return rng.permutation(chosen), float(k)


def warmup_from(
    arguments: MethodArguments, length: int, tuned: TunedParameters, draws: Block, *, chains: int, adjusts: bool,
    fits: bool,
) -> Warmup:  # fmt: skip
    """Return a warm-up of at most ``length`` transitions that begins with a setting.

    A setting that ``fits`` is checked, another one adapted, from half its step on.  ``draws`` show the curvature;
    ``adjusts`` says that an equilibration follows.
    """
    usable = np.ones(draws.lp.shape, bool)
    curvature = block_checks.curvature(arguments, tuned.coordinates, draws, usable, LocalCurvature())
    shortest = shortest_block(chains)
    ends = "frozen" if adjusts else "passed"
    frozen = 0 if fits else None
    least = 2 * THRESHOLDS.first_block
    if fits:
        boundary = end_of_check(0, length, chains, stiffness(curvature))
    else:
        boundary = end_of_growing(0, length, shortest)
        tuned = step_size.with_step(arguments, tuned, arguments.step_size or 0.5 * tuned.step_size, curvature)
    return Warmup(
        arguments, length, tuned, least, shortest, ends, boundary=boundary, frozen=frozen, _curvature=curvature
    )


def relearnt(
    engine: Engine, tuned: TunedParameters, x: np.ndarray, of_x: np.ndarray, chosen: np.ndarray, keys: np.ndarray
) -> tuple[TunedParameters, Ensemble, tuple[np.ndarray, np.ndarray], int]:
    """Return the setting that gradients of the new density at former draws ``(n, d)`` show, and chains to begin with.

    The non-centring is that of the new data.  Scales are former ones, and those of the gradients in coordinates where
    these differ by far, which a group whose data are new has at first in every draw.  There chains do not begin at the
    ``chosen`` draws, which may be forty standard deviations off, but at those of the Gaussian of these gradients.  Then
    come the draws in the new coordinates and gradients there, and the number of gradients spent.
    """
    structure = engine.structure
    coordinates = tuned.coordinates
    n_grad = 0
    if structure.children and coordinates.density_parameters is not None:
        former = coordinates.density_parameters
        noncentring, n_grad = noncentring_at(engine, x, of_x, former)
        noncentring = structure.with_signs_of(noncentring, former)
        coordinates = coordinates._replace(density_parameters=noncentring)
    z, _ = structure.to_z(x, coordinates.density_parameters)
    _, gradient = structure.pull_back(z, of_x, coordinates.density_parameters)
    y = coordinates.whiten(z)
    g = coordinates.pull_back(gradient)
    centre, scale = diagonal_scale(y, g, np.ones(engine.d))
    with np.errstate(all="ignore"):
        changes = np.abs(np.log([scale, np.sqrt(y.std(axis=0) * g.std(axis=0))]))
    other = (np.where(np.isfinite(changes), changes, 0.0) > np.log(THRESHOLDS.other_scale)).any(axis=0)
    coordinates = coordinates._replace(centre=coordinates.place(np.where(other, centre, 0.0)))
    coordinates = coordinates.stretched(np.where(other, scale, 1.0))
    u = coordinates.whiten(z[chosen])
    moved = u.copy()
    moved[:, other] = np.random.default_rng(keys[0]).standard_normal((len(u), int(other.sum())))
    gradients = engine.gradient_at(coordinates.place(moved), coordinates.density_parameters)
    good = np.isfinite(gradients).all(axis=1)
    state = empty_state(np.where(good[:, None], moved, u), np.zeros(engine.d))
    ensemble = Ensemble(state, engine.evaluate(coordinates, state), keys)
    return tuned._replace(coordinates=coordinates), ensemble, (z, gradient), n_grad + 2 * len(u)


def _identity_holds(z: np.ndarray, gradient: np.ndarray) -> bool:
    """Return whether draws ``(chain, n, d)`` are not too wide for Stein's identity: too narrow a block is chance."""
    chains, n, d = z.shape
    if chains * count_pieces(chains, n) < 2:  # no standard errors
        return True
    limit = max(THRESHOLDS.identity_z, largest_t(d, degrees_of_freedom(chains, n)))
    return bool((stein_identity(z, gradient).z < limit).all())


@dataclass
class WarmStart:
    """The trial of a former run's setting: all that is needed to continue it, bit for bit.

    Attributes
    ----------
    starts : (chain, d)
        Starts of a cold run, which follows if the setting is dropped.
    outcome, reason
        Empty before the trial; "fits", or "refined" or "dropped" with the reason.
    former
        The coordinates of the setting, which are judged; chains move in coordinates refitted to former draws.
    pareto_k
        Of the ratios of densities; NaN without any.
    """

    starts: np.ndarray
    outcome: str = ""
    reason: str = ""
    former: Coordinates | None = None
    pareto_k: float = np.nan

    def end(self, outcome: str, reason: str = "") -> None:
        """End the trial."""
        self.outcome = outcome
        self.reason = reason

    def look_at(self, tuned: TunedParameters, z: np.ndarray, gradient: np.ndarray) -> None:
        """Look at former draws ``z`` ``(n, d)`` with gradients of the new density, and end the trial if they differ."""
        finite = np.isfinite(gradient).all(axis=1)
        if finite.sum() < max(2, len(z) // 2):
            self.end(DROPPED, "the log density is not finite at most former draws")
            return
        y = tuned.coordinates.whiten(z[finite])
        g = tuned.coordinates.pull_back(gradient[finite])
        with np.errstate(all="ignore"):
            scale = np.sqrt(y.std(axis=0) / g.std(axis=0))
            change = np.maximum(scale, 1.0 / scale)
        change = change[np.isfinite(change)]
        if change.max(initial=1.0) > THRESHOLDS.other_scale:
            # A group whose data are left out changes its own scales alone.
            far = np.median(change) > THRESHOLDS.other_scale**2
            self.end(DROPPED if far else REFINED, f"a scale has changed by a factor of {change.max():.2g}")

    def judge(self, engine: Engine, tuned: TunedParameters, block: Block) -> None:
        """Judge the setting by a block of draws, with whole evaluations."""
        d = engine.d
        z, gradient = engine.structure.folded(block.position, block.gradient[..., :d])
        n = block.lp.shape[1]
        lp = block.lp + log_det_of(block.gradient, d)
        usable = past_transient(-lp, d, narrowness(block.gradient, d))
        arrived = bool(usable[:, -max(1, n // 4) :].any(axis=1).all())
        accepted = float(block.accept.mean(axis=1).min())
        if not arrived or accepted < THRESHOLDS.least_accepted_usable:
            moved = f"chains hardly move by it: acceptance {accepted:.2f}"
            self.end(DROPPED, moved if arrived else "chains are far off")
            return
        coordinates = self.former or tuned.coordinates
        if not block_checks.whitens(coordinates, block._replace(position=z, gradient=gradient), usable):
            self.end(REFINED, "it does not whiten the draws")
        elif not _identity_holds(z, gradient):
            self.end(REFINED, "Stein's identity fails")
        elif accepted < THRESHOLDS.least_accepted:
            self.end(REFINED, f"acceptance is {accepted:.2f}")
        else:
            self.end(FITS)

    def words(self, n_grad: float) -> str:
        """Return the line that says what became of the setting."""
        if self.outcome == FITS:
            return f"start: the setting of the former run fits; {n_grad:.0f} gradients"
        then = "warm-up goes on from it" if self.outcome == REFINED else "dropped for a cold start"
        return f"start: the setting of the former run does not fit ({self.reason}): {then}"

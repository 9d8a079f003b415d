"""The witness of a run: the bias of each mean and sd, measured by adjusted trajectories that start at its draws."""

from __future__ import annotations

import json
import numbers
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.scale import best_coordinates
from pmm_mcmc.diagnostics.convergence import convergence
from pmm_mcmc.diagnostics.noncentred import SITES, judged_positions
from pmm_mcmc.diagnostics.reading import read
from pmm_mcmc.engines.arguments import TunedParameters
from pmm_mcmc.engines.contract import empty_state
from pmm_mcmc.run.exact_leg import for_trajectories, next_step
from pmm_mcmc.run.plan import Asked, SamplingPlan
from pmm_mcmc.run.witness_trajectories import Ends, expected_shadow, follow
from pmm_mcmc.warmup.calibration import CALIBRATION
from pmm_mcmc.warmup.standard_errors import degrees_of_freedom, largest_t, spread

__all__ = ["Witness", "changes", "witness"]

_PILOT = 500  # draws at most that the preconditioner is fitted to
_STARTS = 16  # draws that the step is adapted from


class Witness(NamedTuple):
    """What :func:`pmm_mcmc.witness` returns.

    Attributes
    ----------
    table : pandas.DataFrame
        A row for each parameter: ``bias``, ``bias_se``, ``bias_of_sd``, ``bias_of_sd_se``, in posterior standard
        deviations, and ``kept``, the share of a deviation from the mean that a trajectory keeps; NaN for constants.
    sentence : str
        The largest bias, and what the witness cost.
    gradients : int
        Gradients spent.
    """

    table: pd.DataFrame
    sentence: str
    gradients: int

    def __str__(self) -> str:
        return self.sentence


def witness(dt: Any, *, model: Any = None, gradients: int | None = None, random_seed: Any = None) -> Witness:
    r"""Measure the bias of a run by Metropolis-adjusted trajectories from its draws.

    Under an invariant kernel the mean of any function stays what it is if the draws are of the posterior.  From draws
    :math:`x` of the run one adjusted trajectory each leads to a proposal :math:`x'`, accepted with probability
    :math:`a`.  With :math:`\bar f` the mean of the whole run, :math:`f' = a f(x') + (1 - a) f(x)`, and :math:`s` what
    the same noise makes of :math:`f` on the Gaussian that the coordinates whiten, minus its mean given :math:`x`,

    .. math:: bias = \frac{\bar f - \overline{f' - \beta (f(x) - \bar f) - \gamma s}}{1 - \beta}

    is how far :math:`\bar f` is off, if the rest of the bias decays as a deviation from the mean does; :math:`\beta`
    and :math:`\gamma` are slopes of :math:`f'` on :math:`f(x)` and :math:`s`.  Where a trajectory forgets little,
    :math:`\beta` is near 1 and the error is large.  No statistic of gradients is used: the witness also measures
    parameters for which :func:`pmm_mcmc.summary` finds no correction.

    Parameters
    ----------
    dt
        A result of :func:`pmm_mcmc.sample` or of ``pm.sample`` with a step of this package that moves all variables.
    model
        The PyMC model (default: that of the enclosing ``with``) or the :class:`pmm_mcmc.LogDensity` of the run.
    gradients
        Gradients to spend in all; by default a fifth of those of the run.
    random_seed
        A seed, or a generator of NumPy.

    Returns
    -------
    Witness
        ``table``, ``sentence``, ``gradients``; pass it on as ``pmm_mcmc.verdict(dt, witness=...)``.

    Raises
    ------
    ValueError
        If the result holds no unconstrained positions, is of another model, or has fewer than 20 draws; if
        ``gradients`` is too small.

    Notes
    -----
    Errors are those between chains and between batches of draws, with that of the run's own mean.  Trajectories stay
    within a mode: wrong weights of separate modes are not seen.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Gamma("x", 3, 1, shape=2)
    ...     dt = pmm.sample(pmm.OLMC(step_size=0.8), draws=500, chains=8, progressbar=False, random_seed=1)
    ...     found = pmm.witness(dt, random_seed=1)
    >>> bool((found.table["bias_of_sd"] > 0.05).all())
    True
    """
    run, x, stats = _read(dt)
    chains, draws, d = x.shape
    total = int(stats["n_grad_total"].values[:, -1].sum()) if "n_grad_total" in stats else 5 * chains * draws
    budget = total // 5 if gradients is None else gradients
    whole = isinstance(budget, numbers.Integral) and not isinstance(budget, bool)
    if not whole or (gradients is not None and budget < 1):
        raise ValueError(f"gradients={gradients!r}: must be a positive integer, or None for a fifth of the run's")
    plan = SamplingPlan.of(Asked(None, model, chains))
    if plan.engine.d != d:
        raise ValueError(f"model: has {plan.engine.d} coordinates, and the result {d}: give the model of the result")
    rng, engine = np.random.default_rng(random_seed), plan.adjusted
    known = _Starts.of(dt, x, stats, plan)
    some = rng.choice(chains * draws, min(_PILOT if known.cost == 0 else 4 * _STARTS, chains * draws), replace=False)
    at = some // draws, some % draws
    tuned = for_trajectories(TunedParameters(1.0, 1, 1.0, known.fitted(at, engine), 1))
    trial = known.states(tuple(part[:_STARTS] for part in at), tuned.coordinates, engine)
    _check_model(engine, tuned.coordinates, trial, d)
    spent = len(trial) + known.cost * (len(some) + len(trial))
    for i in range(CALIBRATION.leg_rounds):
        accept = follow(engine, tuned, trial, rng).accept
        spent += tuned.K * len(trial)
        tuned = next_step(tuned, float(accept.mean()), i + 1)
    each = min(draws, (budget - spent) // (chains * (tuned.K + known.cost)))
    if each < 1 or each * chains < 20:
        need = spent + max(20, chains) * (tuned.K + 1)
        raise ValueError(f"gradients={budget}: too few to start from 20 draws; give gradients={need} or more")
    rows = np.linspace(0, draws - 1, each).round().astype(int)
    state = known.states((np.repeat(np.arange(chains), each), np.tile(rows, chains)), tuned.coordinates, engine)
    found = follow(engine, tuned, state, rng)
    spent += (known.cost + tuned.K) * chains * each

    def values(x: np.ndarray) -> np.ndarray:
        ends = plan.values(x.reshape(chains, each, d))["posterior"]
        return np.concatenate([np.asarray(ends[name], float).reshape(chains, each, -1) for name in dt["posterior"]], -1)

    def values_of_whitened(y: np.ndarray) -> np.ndarray:
        z, structure = tuned.coordinates.place(y), plan.engine.structure
        return values(z if structure is None or known.sites is None else structure.to_x(z, known.sites))

    mean = run.values.mean(axis=(0, 1))
    # Where nothing was accepted the end does not matter, but must be a number.
    x = np.where(found.accept[:, None] > 0.0, found.x, known.x[:, rows].reshape(-1, d))
    with np.errstate(all="ignore"):
        shadow = values_of_whitened(found.shadow)
        expected = expected_shadow(values_of_whitened, tuned, state[:, :d], mean, rng)
    ends = Ends(values(x), found.accept.reshape(chains, each, 1), shadow, *expected)
    table = changes(run.values, rows, ends)
    table.index = pd.Index(run.labels)
    degrees, accepted = degrees_of_freedom(chains, each), float(found.accept.mean())
    return Witness(table, _sentence(table, chains * each, degrees, accepted, spent, total), spent)


def changes(values: np.ndarray, rows: np.ndarray, ends: Ends) -> pd.DataFrame:
    """Return the biases of means and standard deviations, in standard deviations, from one trajectory a draw.

    Parameters
    ----------
    values : (chain, draw, p)
        All draws.
    rows : (n,)
        The draws of each chain that trajectories start from.
    ends
        Where they lead to.
    """
    mean, sd = values.mean(axis=(0, 1)), values.std(axis=(0, 1))
    unit = np.where(sd > 0.0, sd, np.nan)
    found = {}
    for name, scale, power, expected in (
        ("bias", unit, 1, ends.shadow_mean),
        ("bias_of_sd", 2.0 * unit**2, 2, ends.shadow_square),
    ):
        every = (values - mean) ** power
        level = every.mean(axis=(0, 1))
        before = every[:, rows] - level
        there = ends.accept * ((ends.proposed - mean) ** power - level) + (1.0 - ends.accept) * before
        with np.errstate(invalid="ignore", over="ignore"):
            control = (ends.shadow - mean) ** power - expected
        control = np.where(np.isfinite(control).all(axis=(0, 1)), control, 0.0)
        slope, gain = _slopes(there, before, control)
        left = there - slope * before - gain * control
        forgotten = np.maximum(1.0 - slope, 1e-3)
        own = convergence(every).mcse
        # Batches are few, and their spread may be too small by chance; that of independent trajectories is a floor.
        error = np.maximum(spread(left), left.std(axis=(0, 1)) / np.sqrt(left.shape[0] * left.shape[1]))
        found[name] = -left.mean(axis=(0, 1)) / forgotten / scale
        found[f"{name}_se"] = np.hypot(error / forgotten, own) / scale
        if name == "bias":
            kept = np.where(sd > 0.0, slope, np.nan)
    return pd.DataFrame(found | {"kept": kept})


def _slopes(there: np.ndarray, *explaining: np.ndarray) -> np.ndarray:
    """Return the coefficients ``(k, p)`` of the least-squares fit of values ``(chain, n, p)`` by others."""
    apart = np.stack([part - part.mean(axis=(0, 1)) for part in explaining])
    size = np.sqrt((apart**2).mean(axis=(1, 2)))
    apart /= np.where(size > 0.0, size, 1.0)[:, None, None]
    products = np.einsum("icnp,jcnp->pij", apart, apart)
    products += 1e-12 * there[..., 0].size * np.eye(len(apart))  # for what does not vary
    fitted = np.linalg.solve(products, np.einsum("icnp,cnp->pi", apart, there)[..., None])[..., 0].T
    return fitted / np.where(size > 0.0, size, np.inf)


def _read(dt: Any) -> tuple[Any, np.ndarray, Any]:
    if not {"posterior", "sample_stats"} <= set(getattr(dt, "children", ())):
        raise ValueError("dt: must be a result with groups posterior and sample_stats; moments alone are not enough")
    stats = dt["sample_stats"]
    if "unconstrained" not in stats or "gradient" not in stats:
        raise ValueError(
            "dt: holds no unconstrained positions to start from: sample with a step of pmm_mcmc that moves all "
            "continuous variables, with keep_gradients=True"
        )
    run = read(dt)
    if run.chains * run.draws < 20 or run.draws < 4:
        raise ValueError(f"dt: {run.chains} x {run.draws} draws are too few; draw at least 20, and 4 of each chain")
    return run, np.asarray(stats["unconstrained"].values, dtype=float), stats


class _Starts(NamedTuple):
    """Draws ``(chain, draw, d)`` to start from: the model's positions, non-centred ones, and what is known there.

    ``slope`` and ``lp``, gradient and log density of the non-centred position, are None where a result does not hold
    them; then a start costs a gradient.
    """

    x: np.ndarray
    z: np.ndarray
    log_det: np.ndarray
    sites: np.ndarray | None
    lp: np.ndarray | None = None
    slope: np.ndarray | None = None

    @classmethod
    def of(cls, dt: Any, x: np.ndarray, stats: Any, plan: SamplingPlan) -> _Starts:
        structure, attrs = plan.engine.structure, dt["posterior"].attrs
        starts = cls(x, x, np.zeros(x.shape[:2]), None)
        if structure is not None:
            sites = np.array(json.loads(attrs[SITES])["sites"]) if SITES in attrs else structure.none()
            z, log_det = structure.to_z(x, sites)
            starts = cls(x, z, log_det, sites)
        name = next((name for name in ("lp", "model_logp") if name in stats), None)
        if name is None or not np.allclose(judged_positions(stats), starts.z, rtol=1e-6, atol=1e-8):
            return starts
        return starts._replace(
            lp=stats[name].values + starts.log_det, slope=np.asarray(stats["gradient"].values, dtype=float)
        )

    @property
    def cost(self) -> int:
        return int(self.slope is None)

    def fitted(self, at: Any, engine: Any) -> Coordinates:
        """Return the preconditioner fitted to some draws, given by their chains and rows."""
        slope = engine.gradient_at(self.z[at], self.sites) if self.slope is None else self.slope[at]
        return best_coordinates(self.z[at], slope)._replace(sites=self.sites)

    def states(self, at: Any, coordinates: Coordinates, engine: Any) -> np.ndarray:
        """Return the states ``(n, 4 d + 2)`` of chains at some draws."""
        z, d = self.z[at], self.z.shape[-1]
        state = empty_state(coordinates.whiten(z), np.zeros_like(z))
        if self.slope is None or self.lp is None:
            engine.evaluate(coordinates, state)
        else:
            state[:, 3 * d : 4 * d], state[:, 4 * d] = state[:, :d], self.lp[at]
            state[:, 2 * d : 3 * d] = coordinates.pull_back(self.slope[at]) + state[:, :d]
        return state


def _check_model(engine: Any, coordinates: Coordinates, known: np.ndarray, d: int) -> None:
    """Raise ``ValueError`` where the log densities of the draws are not those of the model."""
    state = empty_state(known[:, :d], np.zeros((1, d)))
    engine.evaluate(coordinates, state)
    if not np.allclose(state[:, 4 * d], known[:, 4 * d], rtol=1e-4, atol=1e-2):
        raise ValueError("model: its log density is not that of the draws; give the model of the result, with its data")


def _sentence(table: pd.DataFrame, starts: int, degrees: int, accept: float, spent: int, total: int) -> str:
    limit = largest_t(2 * len(table), degrees)
    sizes = [
        (abs(row[name]), row[f"{name}_se"], f"{what} of {label}")
        for label, row in table.iterrows()
        for name, what in (("bias", "mean"), ("bias_of_sd", "sd"))
        if np.isfinite(row[name])
    ]
    if not sizes:
        return "Nothing varies."
    size, error, what = max(sizes, key=lambda entry: entry[0] / max(entry[1], 1e-300))
    found = f"the {what} is off by {size:.2f} posterior sd (error {error:.2f})"
    words = f"Biased: {found}" if size > limit * error else f"No bias beyond chance; at most {found}"
    cost = f"{starts} adjusted trajectories, acceptance {accept:.2f}, {spent} gradients ({100 * spent / total:.0f} %)"
    return f"{words}. {cost[0].upper()}{cost[1:]}."

"""Bias by step halving: a check of a run that is independent of gradient-based estimates."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytensor
from scipy.stats import norm, t

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.coordinates.scale import best_coordinates
from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.diagnostics.convergence import convergence
from pmm_mcmc.diagnostics.reading import Run, read
from pmm_mcmc.diagnostics.table import table_of
from pmm_mcmc.langevin.methods import OVERDAMPED, Kernel, Scheme
from pmm_mcmc.steps.base import LangevinStep
from pmm_mcmc.warmup.calibration import CALIBRATION as WARMUP
from pmm_mcmc.workbench.coupled import ProbeDensity, ProbeSetting, Sums, run_copies

__all__ = ["BiasProbe", "bias_probe", "order_of_bias"]

_RELAXATIONS = 10  # autocorrelation times of the slowest parameter that copies run for by default
_ROUNDING = 1e-9  # posterior standard deviations below which a number is rounding


class BiasProbe(NamedTuple):
    """The result of a probe: a row for each parameter, a sentence, and whether the order held for all of them."""

    table: pd.DataFrame
    sentence: str
    order_holds: bool


def order_of_bias(kernel: Kernel) -> int:
    """Return the lowest power of the step size in the bias of a method, at fixed K.

    On the left grid a finite K leaves a term of order 1 (divided by K); otherwise the order is 2, or 3 for underdamped
    dynamics.  At the step in use terms of higher order may be larger, but they fall faster when the step is halved.
    """
    if kernel.scheme == Scheme.CELLS and kernel.offset == 0.0:
        return 1
    return 2 if kernel.dynamics == OVERDAMPED else 3


def bias_probe(dt: Any, step: Any, *, transitions: int | None = None, random_seed: Any = None) -> BiasProbe:
    r"""Measure the bias of a run by halving its step, twice, on the same noise.

    From draws of the run, 32 replicas continue with the run's step size :math:`\alpha`, each with copies at
    :math:`\alpha/2` and :math:`\alpha/4` that are driven by the same Brownian path.  With :math:`E_\alpha` the average
    over the later two thirds of the transitions, :math:`D_1 = E_\alpha - E_{\alpha/2}`, :math:`D_2 = E_{\alpha/2} -
    E_{\alpha/4}` and ``p`` the lowest order of the method's bias (1 on the left grid; else 2, underdamped 3),

    .. math:: bias = D_1 + D_2 + \frac{D_2}{2^p - 1} .

    The last term extrapolates, by the order, the bias of the finest step.  It requires
    :math:`|D_2| \le 2^{-p} |D_1|`; where a test rejects that, the term is omitted and the bias is a lower bound.

    No statistic of gradients is used: the probe is an independent check of ``pmm_mcmc.summary(dt, kind="bias")``.

    Parameters
    ----------
    dt
        A result of one of this package's unadjusted step methods, with ``gradient`` and ``unconstrained`` among its
        statistics.
    step
        The step method with which it was sampled.
    transitions
        Number of transitions of the coarse copy; each costs seven times the gradients of a step.  Default: ten times
        the longest autocorrelation time of the run, between 200 and 2000.
    random_seed
        A seed, or a generator of NumPy.

    Returns
    -------
    BiasProbe
        ``table``, ``sentence`` and ``order_holds`` (for all parameters).  The table has a row for each parameter with,
        for its mean, ``difference`` (:math:`D_1`), ``difference_half`` (:math:`D_2`), ``bias``, their standard errors
        between replicas (``..._se``) and ``order_holds``, the same for its standard deviation (``..._of_sd``), and
        ``distance``, the root mean square distance of the first two copies.  **All in posterior standard deviations**
        (``sd_corrected`` of ``pmm_mcmc.summary(dt, kind="bias")``); NaN for constants.

    Raises
    ------
    TypeError
        If ``step`` is not a step method of this package.
    ValueError
        If the method is MALA, which has no bias; if the step was created outside a model; if the result has no
        gradients, or is not one of this step and the current state of its model; if ``transitions`` is not an integer
        of at least 30.

    Notes
    -----
    Step size, K and friction are those of each chain's last draw; the chains take turns in providing replicas.  The
    preconditioner is the given ``scaling`` or, if that was learnt, one learnt from all draws together; in a run of
    PyMC's ``pm.sample`` each chain has its own.  The bias is that of the step in these coordinates.

    A run refines a step where the posterior is too steep for it.  Copies do not: the probe measures the bias of whole
    steps.  It then finds more bias than the run has, and its sentence gives the number of such transitions.

    A t-test of each mean and standard deviation, at level 0.01 over their number, rejects an order that holds with
    probability at most 0.01 in all.  The probe does not see the weights of modes between which no replica moves, places
    where no replica has been, or heavy tails.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=2)
    ...     step = pmm.ULMC(step_size=0.5)
    ...     dt = pm.sample(100, tune=100, chains=2, step=step, progressbar=False)
    >>> probe = pmm.workbench.bias_probe(dt, step, random_seed=1)
    >>> bool((probe.table["bias_of_sd"] > 0.05).all())
    True
    """
    arguments = _checked(step)
    if transitions is not None and (
        isinstance(transitions, bool) or not isinstance(transitions, numbers.Integral) or transitions < 30
    ):
        raise ValueError(f"transitions={transitions!r}: must be an integer of at least 30, or None")
    rng = np.random.default_rng(random_seed)
    if not {"posterior", "sample_stats"} <= set(getattr(dt, "children", ())):
        raise ValueError("dt: must be a result of pm.sample, a DataTree with groups posterior and sample_stats")
    known = {var.name for var in step.model.unobserved_value_vars}
    names = [name for name in dt["posterior"].data_vars if name in known]
    if not names:
        raise ValueError(
            f"the result has no parameter of the step's model, which has {', '.join(sorted(known))}: give the step "
            "with which it was sampled"
        )
    run = read(dt, names, strict=True)
    rows = _starts(*run.position.shape[:2])
    setting = _setting(dt, arguments, rows[0])
    coordinates = _coordinates(step, run)
    if dt["posterior"].attrs.get("tuning_steps") == 0 and arguments.scaling is None:
        coordinates = coordinates._replace(scale=np.ones(run.position.shape[2]))
    elif arguments.scaling is not None:
        coordinates = coordinates._replace(scale=np.array(arguments.scaling))
    target = ProbeDensity(step, coordinates, names)
    _check_same_model(run, rows, target)
    relaxation = _relaxation(run) * dt["sample_stats"]["steps_per_draw"].isel(draw=-1).values.max()
    if transitions is None:
        transitions = int(np.clip(math.ceil(_RELAXATIONS * relaxation.max()), 200, 2000))
    centre = np.nan_to_num(run.values.mean(axis=(0, 1)))
    sums = run_copies(setting, run.position[rows], centre, target, int(transitions), rng)
    unit = table_of(run)["sd_corrected"].to_numpy()
    unit = np.where(unit > _ROUNDING * np.abs(run.values).max(axis=(0, 1)), unit, np.nan)
    table = _report(run, sums, unit, order_of_bias(setting.kernel))
    slow = [
        label for label, time in zip(run.labels, relaxation, strict=True) if _RELAXATIONS * time > 1.5 * transitions
    ]
    counts = int(sums.unstable[0]), sums.steep, int(transitions) * len(rows[0])
    sentence = _sentence(table, order_of_bias(setting.kernel), slow, *counts)
    return BiasProbe(table, sentence, bool((table["order_holds"] & table["order_holds_of_sd"]).all()))


def _coordinates(step: LangevinStep, run: Run) -> Coordinates:
    """Return coordinates that whiten the draws; for a non-centred run, with sites learnt from all draws."""
    structure, d = step._density.structure, run.position.shape[-1]
    x, judged, gradient = (part.reshape(-1, d) for part in (run.position, run.judged, run.gradient))
    if structure is None or np.array_equal(judged, x):
        return best_coordinates(x, gradient)
    x, sites = x[:: -(-len(x) // 2000)], structure.none()  # 2,000 draws are enough to fit the sites
    z, _ = structure.to_z(x, sites)
    _, evaluation = ProbeDensity(step, Coordinates(np.zeros(d), np.ones(d), sites), []).evaluate(z)
    slope = evaluation[:, 2 * d : 3 * d]
    sites = structure.learn(x, slope, evaluation[:, :d], sites)
    z, _ = structure.to_z(x, sites)
    return best_coordinates(z, structure.pull_back(z, slope, sites)[1])._replace(sites=sites)


def _checked(step: Any) -> Any:
    if not isinstance(step, LangevinStep):
        raise TypeError(
            f"step={step!r}: must be the step method of pmm_mcmc with which the result was sampled, such as "
            "pmm_mcmc.PoissonULMC()"
        )
    if step.model is None:
        raise ValueError(
            f"step={type(step).__name__}: was made outside a model and knows no variables; make it again inside "
            "`with model:`, with the same arguments"
        )
    if step._arguments.kernel.scheme == Scheme.MALA:
        raise ValueError("step=MALA: it is adjusted and has no bias from its step; there is nothing to probe")
    return step._arguments


def _starts(chains: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Return chain and draw of each replica's start: the chains in turn, late draws spread over the run."""
    replicas = min(CALIBRATION.probe_replicas, chains * draws)
    turn = np.arange(replicas)
    each = -(-replicas // chains)
    return turn % chains, draws - 1 - (turn // chains) * draws // each


def _setting(dt: Any, arguments: Any, chain: np.ndarray) -> ProbeSetting:
    stats, found = dt["sample_stats"], {}
    for name in ("step_size", "K", "steps_per_draw", *(["friction"] if arguments.dynamics == "underdamped" else [])):
        if name not in stats:
            raise ValueError(f"the result has no sample_stats {name!r}: it is not one of {arguments.method}")
        found[name] = stats[name].isel(draw=-1).values.astype(int if name in ("K", "steps_per_draw") else float)
        given = arguments.fixed_K if name == "K" else getattr(arguments, name)
        if given is not None and not np.allclose(found[name], given):
            raise ValueError(
                f"the result was sampled with {name}={found[name][0]}, the step has {name}={given}: give the step "
                "with which it was sampled"
            )
    friction = found.get("friction", np.ones(len(found["K"])))
    return ProbeSetting(arguments.kernel, *(a[chain][:, None] for a in (found["step_size"], friction, found["K"])))


def _check_same_model(run: Run, rows: tuple[np.ndarray, np.ndarray], target: ProbeDensity) -> None:
    position, d = run.position[rows], target.density.d
    tolerance = 1e-6 if pytensor.config.floatX == "float64" else 1e-3
    same = position.shape[1] == d and len(target.coordinates.centre) == d
    if same:
        values = target.parameters(position)
        gradient = run.gradient[rows] if target.density.structure is not None else target.evaluate(position)[1]
        size = np.abs(run.gradient[rows]).max()
        same = (
            values.shape[1] == len(run.labels)
            and np.allclose(values, run.values[rows], tolerance, tolerance, equal_nan=True)
            and np.allclose(gradient, run.gradient[rows], tolerance, tolerance * size)
        )
    if not same:
        raise ValueError(
            f"the result is not one of the step's model as it is now ({run.position.shape[2]} coordinates in the "
            f"result, {d} in the step): parameters or gradients at its draws differ; give the step with which it was "
            "sampled, and the same data"
        )


def _relaxation(run: Run) -> np.ndarray:
    """Return the autocorrelation time of each parameter, in draws."""
    total, moves = run.chains * run.draws, run.values.std(axis=(0, 1)) > 0.0
    return np.where(moves, np.nan_to_num(total / convergence(run.values).ess_bulk), 0.0)


def _report(run: Run, sums: Sums, unit: np.ndarray, order: int) -> pd.DataFrame:
    mean = sums.first.mean(axis=1, keepdims=True)
    # Each replica's part in the standard deviation over all of them.
    part = sums.second - 2.0 * mean * sums.first + mean**2
    variance = part.mean(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        sd = np.sqrt(variance)
        sd = sd + (part - variance) / (2.0 * sd)
        columns = {
            **_extrapolated(sums.first / unit, order, ""),
            **_extrapolated(sd / unit, order, "_of_sd"),
            "distance": np.sqrt(sums.distance.mean(axis=0)) / unit,
        }
    return pd.DataFrame(columns, index=run.labels)


def _extrapolated(levels: np.ndarray, order: int, suffix: str) -> dict[str, np.ndarray]:
    """Return differences, bias, standard errors and whether the order holds, from averages ``(level, R, p)``."""
    replicas, p = levels.shape[1:]
    first, second = levels[0] - levels[1], levels[1] - levels[2]
    sign, limit = np.sign(second.mean(axis=0)), t.ppf(1.0 - WARMUP.chance / (2 * p), replicas - 1)
    fails = np.abs(second.mean(axis=0)) > _ROUNDING
    for other in (first, -first):
        beyond = sign * (second - 2.0**-order * other)
        fails &= beyond.mean(axis=0) > limit * _error(beyond)
    bias = first + second + np.where(fails, 0.0, 1.0 / (2.0**order - 1.0)) * second
    out = {"difference": first, "difference_half": second, "bias": bias}
    named = {}
    for name, values in out.items():
        named[name + suffix], named[f"{name}{suffix}_se"] = values.mean(axis=0), _error(values)
    return {**named, "order_holds" + suffix: ~fails}


def _error(values: np.ndarray) -> np.ndarray:
    return values.std(axis=0, ddof=1) / math.sqrt(len(values))


def _sentence(table: pd.DataFrame, order: int, slow: list[str], unstable: int, steep: int, steps: int) -> str:
    size = pd.concat([table["bias"], table["bias_of_sd"]]).abs().to_numpy()
    error = pd.concat([table["bias_se"], table["bias_of_sd_se"]]).to_numpy()
    seen = (size > norm.ppf(1.0 - WARMUP.chance / (2 * len(size))) * error) & (size > _ROUNDING)
    bound = math.ceil(100 * np.nanmax(size + 2.0 * error, initial=0.0))
    caveats = []
    fails = table.index[~(table["order_holds"] & table["order_holds_of_sd"])]
    if len(fails):
        caveats.append(
            f"The bias of {_few(fails)} does not fall as fast as order {order}, that of the method: the value there "
            "is a lower bound (halve step_size, and probe again)."
        )
    # Independent draws are sqrt(2) posterior sds apart: copies beyond 1 are hardly coupled any more.
    apart = table.index[(table["distance"] > 1.0) & ~seen.reshape(2, -1).any(axis=0)]
    if len(apart):
        caveats.append(
            f"Copies on the same noise drift apart as far as the posterior is wide in {_few(apart)}: there the probe "
            "has no more power than separate runs."
        )
    if slow:
        caveats.append(f"It was too short for {_few(slow)}, which relax slower (give more transitions).")
    if unstable:
        caveats.append(f"{unstable} of {steps} transitions at the run's step were unstable.")
    if steep:
        caveats.append(
            f"{steep} of {steps} transitions met places so steep that the run would refine them. The probe does not: "
            "the run's own bias is smaller."
        )
    if seen.any():
        worst = int(np.argmax(np.where(seen, size, 0.0)))
        what, label = "mean" if worst < len(table) else "sd", table.index[worst % len(table)]
        first = f"By step halving, the {what} of {label} is off by {100 * size[worst]:.1f} % of a posterior sd"
        first += "." if caveats else f", and no mean or sd by more than {bound} %."
    else:
        first = f"Step halving shows no bias above {bound} % of a posterior sd in any mean or sd."
    return " ".join([first, *caveats])


def _few(labels: Sequence[str]) -> str:
    return ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")

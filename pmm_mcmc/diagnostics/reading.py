"""A result as the checks of a verdict read it: draws, gradients and groups, and a table of its parameters."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pmm_mcmc.diagnostics import control_variates
from pmm_mcmc.diagnostics.convergence import convergence, mcse_of_means, tail_index
from pmm_mcmc.diagnostics.labels import FINDINGS, Exchange, highest, labels_of, relabelled
from pmm_mcmc.diagnostics.parameters import Parameters, Result, checked, coordinate_of
from pmm_mcmc.diagnostics.statement import ADJUST
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.langevin.gaussian_law import variance_error
from pmm_mcmc.model.result_tree import BLOCK_MEAN, INTEGRATED
from pmm_mcmc.warmup.stein_identity import Identity, between_pieces, count_pieces, degrees_of_freedom, poisson_limit

# Attributes of a result: the numbers of the non-centring, and what is non-centred, in words.
NONCENTRING = "noncentring"
WORDS = "reparametrisation"
# Columns of ``pmm.summary(dt, kind="bias")``.
BIASES = (
    "mean", "mcse", "mean_cv", "mcse_cv", "bias", "bias_se", "bias_sd_units",
    "sd", "sd_cv", "mcse_sd_cv", "bias_of_sd", "bias_of_sd_se", "unexplained",
)  # fmt: skip
_WHOLE = ("whole_bias_of_sd", "whole_bias_of_sd_se")
# Relative differences up to which values are one constant: a diagonal of correlations is 1 to rounding.
_ROUNDING = 32.0 * float(np.finfo(float).eps)


@dataclass
class Run:
    """A result of sampling; its groups, and its arrays ``(chain, draw, d)``, are None where it has none."""

    posterior: xr.Dataset  # draws of the parameters
    stats: Any  # the group ``sample_stats``
    ladder: Any = None
    equilibration: Any = None
    position: Any = None  # unconstrained positions of the model, if gradients were kept
    gradient: Any = None
    sampled_position: Any = None  # what gradients are taken with respect to: non-centred if the run is
    labels: Sequence[Exchange] = ()  # what may be exchanged: the draws are relabelled
    mixed_labels: Sequence[Exchange] = ()  # what may be exchanged, in draws that mix over it
    averages: xr.Dataset | None = None  # the posterior, of an integrated block's draw and its mirror image

    @property
    def chains(self) -> int:
        """Number of chains."""
        return int(self.posterior.sizes["chain"])

    @property
    def draws(self) -> int:
        """Number of draws of each chain."""
        return int(self.posterior.sizes["draw"])

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """The steps of this package that made the draws in PyMC's loop, as ``sampler`` of the first draw has them."""
        if "sampler" not in self.stats:
            return []
        texts = np.atleast_1d(np.asarray(self.stats["sampler"].values)[0, 0])
        return [json.loads(text) for text in texts if text]

    @property
    def made_by(self) -> dict[str, Any]:
        """The one step that made the draws by either door, with its arguments; empty where that is not known."""
        attributes = self.posterior.attrs
        if "arguments" in attributes:
            return {"sampler": attributes["sampler"], "arguments": json.loads(attributes["arguments"])}
        return self.steps[0] if len(self.steps) == 1 else {}

    @property
    def adjust(self) -> str:
        """The remedy for what a step does to draws."""
        names = [name for step in self.steps if not step["adjusted"] for name in step["vars"]]
        several = len(self.steps) > 1 or "gradient" not in self.stats
        if not names or not several:
            return ADJUST
        return f"take adjusted draws: give {', '.join(names)} to pmm.GHMC"

    @property
    def of_package(self) -> bool:
        """Whether a method of this package made the draws."""
        return "n_grad_total" in self.stats or "gradient" in self.stats or self.ladder is not None

    @property
    def adjusted(self) -> bool:
        """Whether the posterior is the stationary law of the kernels of this package that made the draws."""
        if "adjusted" in self.posterior.attrs:
            return bool(self.posterior.attrs["adjusted"])
        if self.steps:
            return all(step["adjusted"] for step in self.steps)
        accepts = "acceptance_rate" in self.stats and "unstable" not in self.stats
        return self.ladder is not None or (self.of_package and accepts)

    @property
    def unadjusted(self) -> bool:
        """Whether the draws may have the bias of a step."""
        return self.of_package and not self.adjusted

    @cached_property
    def findings(self) -> dict[str, Any]:
        """The findings of searches after the draws, by name."""
        return json.loads(self.posterior.attrs.get(FINDINGS, "{}"))

    @property
    def jumps(self) -> bool:
        """Whether the log density jumps between draws, or at a wall."""
        return bool(self.findings.get("jump", 0.0)) or self.wall

    @property
    def wall(self) -> bool:
        """Whether the density ends at once somewhere, or falls to next to nothing."""
        return bool(self.findings.get("wall", False))

    @cached_property
    def parameters(self) -> Parameters:
        """The parameters with their draws."""
        return Parameters(self.posterior)

    @cached_property
    def table(self) -> pd.DataFrame:
        """Estimates of the parameters that a verdict judges."""
        return table_of(self, _selected(self))

    @cached_property
    def identity(self) -> Identity:
        """Stein's identity of each coordinate, where there are gradients."""
        return control_variates.identity_of(self.sampled_position, self.gradient)

    @cached_property
    def whitened_identity(self) -> Identity | None:
        """Stein's identity of whitened coordinates, where these can be had."""
        return control_variates.whitened_identity(self.sampled_position, self.gradient)

    @property
    def identity_degrees(self) -> int:
        """Degrees of freedom of the standard errors of the identity."""
        return degrees_of_freedom(self.chains, self.draws, THRESHOLDS.identity_pieces)

    @cached_property
    def way(self) -> tuple[str, float, float] | None:
        """The number that is furthest on its way, with its means in the first and last quarter; None if none is.

        Where equilibration did not end and the means of all chains rise, or all fall, from quarter to quarter.
        """
        furthest = None
        if self.equilibration is None or int(self.equilibration["ended"]) or self.draws < 4:
            return None
        for name, variable in self.posterior.data_vars.items():
            if variable.dims != ("chain", "draw"):
                continue
            means = np.stack([quarter.mean(axis=1) for quarter in np.array_split(variable.values, 4, axis=1)])
            steps = np.diff(means, axis=0)
            if (steps > 0.0).all() or (steps < 0.0).all():
                begin = float(means[0].mean())
                end = float(means[-1].mean())
                distance = abs(end - begin) / float(variable.values.std())
                if furthest is None or distance > furthest[0]:
                    furthest = distance, (str(name), begin, end)
        return None if furthest is None else furthest[1]

    @property
    def has_edge(self) -> bool:
        """Whether the identity fails as at an edge or a jump of the density, and not on the way there."""
        if self.way is not None:
            return False
        with np.errstate(invalid="ignore"):  # what is infinite does not move
            moving = np.ptp(self.sampled_position, axis=(0, 1)) > 0.0
        return control_variates.fails_as_at_an_edge(self.identity, self.identity_degrees, moving, self._widening)

    @cached_property
    def _widening(self) -> np.ndarray:
        """The excess ``(d,)`` of the identity that a given step explains: that of its exact law on a Gaussian.

        The Gaussian's scale is the geometric mean of those that positions and gradients of the draws show, which a
        common error of both leaves right, as in warm-up.  It is infinite where the step is not stable.
        """
        d = self.position.shape[2]
        method = self.made_by
        if self.adjusted or not method or "step_size" not in method["arguments"]:
            return np.zeros(d)
        arguments = MethodArguments.checked(method["sampler"], **method["arguments"])
        scale = np.ones(d)
        if arguments.scaling is not None:
            spread = self.position.std(axis=(0, 1)) / np.maximum(self.gradient.std(axis=(0, 1)), 1e-300)
            scale = np.array(arguments.scaling) / np.sqrt(np.maximum(spread, 1e-300))
        friction, K = (self._setting(name) for name in ("friction", "K"))
        step = float(arguments.step_size or 0.0)
        excess = [variance_error(arguments.kernel, step, friction, int(K), float(c)) for c in scale**2]
        return np.array(excess)

    def _setting(self, name: str) -> float:
        """Return a number of the setting that made the draws, 1 where the method has none."""
        value = self.posterior.attrs.get(name, 1.0)
        if name in self.stats:
            value = np.asarray(self.stats[name].values).flat[-1]
        return float(value) if np.isfinite(value) else 1.0

    @cached_property
    def folds(self) -> control_variates.Folds:
        """The draws in folds, for corrected estimates."""
        return control_variates.Folds(self.sampled_position, self.gradient)

    @cached_property
    def correctable(self) -> bool:
        """Whether Stein's identity can correct the draws."""
        # Where the density jumps, or may end, the identity lacks a boundary term.
        failures = int(self.stats["model_failures"].sum()) if "model_failures" in self.stats else 0
        if self.gradient is None or self.jumps or failures > harmless(self.chains * self.draws):
            return False
        # A scale so small that non-centred coordinates overflow.
        return bool(np.isfinite(self.sampled_position).all()) and not self.has_edge

    def closest_parameter(self, positions: np.ndarray, number: int) -> str:
        """Return the label of the parameter that a coordinate equals, or that correlates with it most."""
        x = positions[..., number]
        best = ""
        closest = -1.0
        numbers = np.flatnonzero(np.isin(self.parameters.labels, self.table.index))
        for indices, values in self.parameters.slabs(numbers):
            flat = values.reshape(x.size, -1)
            with np.errstate(all="ignore"):
                correlation = np.nan_to_num(np.abs([np.corrcoef(x.ravel(), f)[0, 1] for f in flat.T]))
            correlation[coordinate_of(values, positions) == number] = np.inf
            if correlation.max() > closest:
                best = self.parameters.labels[indices[int(correlation.argmax())]]
                closest = float(correlation.max())
        return best


def read(dt: Result, labels: Sequence[Exchange] | None = None) -> Run:
    """Read a result of any sampler; of exchangeable ``labels``, as in its attribute by default, in one labelling.

    Draws that mix over the labels are read as they are.
    """
    dt = checked(dt)
    ladder, equilibration = (dt[name] if name in dt.children else None for name in ("ladder", "equilibration"))
    posterior = dt["posterior"].to_dataset()
    exchanges = labels_of(posterior) if labels is None else labels
    mixed = [] if not exchanges or not _mix(posterior, exchanges) else exchanges
    if mixed:
        exchanges = []
    elif exchanges:
        posterior = relabelled(posterior, exchanges, highest(dt))
    stats = dt["sample_stats"] if "sample_stats" in dt.children else {}
    averages = None if exchanges else _averages(posterior, stats)
    run = Run(posterior, stats, ladder, equilibration, labels=exchanges, mixed_labels=mixed, averages=averages)
    enough = run.draws >= THRESHOLDS.fewest_of_chain and run.chains * run.draws >= THRESHOLDS.fewest
    if "gradient" in run.stats and "unconstrained" in run.stats and enough:
        sampled = "noncentred" if "noncentred" in run.stats else "unconstrained"
        run.position = np.asarray(run.stats["unconstrained"].values, dtype=float)
        run.sampled_position = np.asarray(run.stats[sampled].values, dtype=float)
        run.gradient = np.asarray(run.stats["gradient"].values, dtype=float)
    return run


def _averages(posterior: xr.Dataset, stats: Any) -> xr.Dataset | None:
    """Return draws with averages over those of an integrated block and their mirror images; None without them."""
    sizes = json.loads(posterior.attrs.get(INTEGRATED, "{}"))
    if BLOCK_MEAN not in stats:
        return None
    ends = np.cumsum([0, *sizes.values()])
    averages = np.asarray(stats[BLOCK_MEAN].values)
    variables = {}
    for name, begin, end in zip(sizes, ends[:-1], ends[1:], strict=True):
        draws = posterior[name].transpose("chain", "draw", ...) if name in posterior else None
        if draws is not None and draws.size == averages[..., begin:end].size:
            variables[name] = draws.copy(data=averages[..., begin:end].reshape(draws.shape))
    return posterior.assign(variables)


def _mix(posterior: xr.Dataset, exchanges: Sequence[Exchange]) -> bool:
    """Return whether draws mix over labels as a verdict wants it of any parameter."""
    names = {name for exchange in exchanges for name in exchange.axes if name in posterior}
    values = [posterior[name].transpose("chain", "draw", ...).values for name in sorted(names)]
    if not values:
        return False
    each = convergence(np.concatenate([array.reshape(*array.shape[:2], -1) for array in values], axis=2))
    return bool((each.r_hat <= THRESHOLDS.r_hat).all() and (each.ess_bulk >= THRESHOLDS.mcse**-2.0).all())


def harmless(draws: float) -> int:
    """Return the number of transitions that may fail without harm, for so many effective draws, with chance."""
    return poisson_limit(THRESHOLDS.unstable_rate * draws)


# -- the table ---------------------------------------------------------------------------------------------------------


def table_of(run: Run, numbers: np.ndarray | None = None) -> pd.DataFrame:
    """Return a row for each parameter, or for those with these ``numbers``.

    Columns are those of ``BIASES`` and of convergence: ``r_hat``, ``ess_bulk``, and ``within`` and ``between``, two
    standard errors of the mean over the standard deviation of the draws: ArviZ's, and that between the chains; and
    ``tail``, the index of the heavier tail.
    """
    numbers = np.arange(len(run.parameters)) if numbers is None else numbers
    averages: Iterable[tuple[np.ndarray, ...]] = itertools.repeat(())
    if run.averages is not None:
        averages = ((values,) for _, values in Parameters(run.averages).slabs(numbers))
    tables = [
        pd.DataFrame(_columns(run, values, *average), index=indices)
        for (indices, values), average in zip(run.parameters.slabs(numbers), averages, strict=False)
    ]
    if not tables:
        return pd.DataFrame(columns=[*BIASES, *_WHOLE, "r_hat", "ess_bulk", "within", "between", "tail"], dtype=float)
    table = pd.concat(tables).loc[numbers]
    table.index = pd.Index([run.parameters.labels[i] for i in numbers])
    return table


def two_errors(table: pd.DataFrame) -> pd.Series:
    """Return two standard errors of corrected means in standard deviations; NaN where the bias is not measurable."""
    moving = table[table["sd"] != 0.0]
    return 2.0 * (moving["mcse_cv"] / moving["sd_cv"]).where(moving["bias"].notna())


@np.errstate(all="ignore")  # draws that are not finite, or vast
def _columns(run: Run, values: np.ndarray, average: np.ndarray | None = None) -> dict[str, np.ndarray]:
    """Return the columns of parameters with draws ``(chain, draw, p)``; corrected means are of averages, if any."""
    chains = values.shape[0]
    coordinate = coordinate_of(values, run.sampled_position)
    constant = np.ptp(values, axis=(0, 1)) <= _ROUNDING * np.abs(values[0, 0])
    values = np.where(constant, values[:1, :1], values) if constant.any() else values
    f = values
    noise = None
    if average is not None:
        f = np.where(np.isfinite(average).all(axis=(0, 1)) & ~constant, average, values)
        noise = values - f
    if run.correctable:
        mean, variance = control_variates.corrected(f, run.folds, coordinate, noise, unbiased=run.adjusted)
    else:
        mean = control_variates.uncorrected(f)
        variance = control_variates.uncorrected((f - mean.value) ** 2 + (0.0 if noise is None else noise**2))
    plain = mean if noise is None else control_variates.uncorrected(values)
    sd = np.sqrt(np.maximum(variance.value, 0.0))
    twice_sd = np.maximum(2.0 * sd, 1e-300)  # by which errors of a variance are divided: the delta method
    about_first = values - values[:1, :1]
    plain_sd = about_first.std(axis=(0, 1))
    converged = convergence(values)
    moves = plain_sd > 0.0
    between = np.zeros_like(plain_sd)
    if chains > 1:
        between = about_first.mean(axis=1).std(axis=0, ddof=1) / np.sqrt(chains)
    return {
        "mean": plain.plain,
        "mcse": plain.plain_se,
        "mean_cv": mean.value,
        # Plain means are kept where the error between few batches is small, by chance too: ArviZ's may be larger.
        "mcse_cv": np.where(
            mean.used, mean.se, np.fmax(mean.se, converged.mcse if noise is None else mcse_of_means(f))
        ),
        "bias": mean.bias,
        "bias_se": mean.bias_se,
        "bias_sd_units": mean.bias / np.where(sd > 0.0, sd, np.nan),
        "sd": plain_sd,
        "sd_cv": np.where(variance.used, sd, plain_sd),
        "mcse_sd_cv": variance.se / twice_sd,
        "bias_of_sd": np.where(variance.used, plain_sd - sd, np.nan),
        "bias_of_sd_se": variance.bias_se / twice_sd,
        "unexplained": mean.unexplained,
        "whole_bias_of_sd": variance.whole_bias / twice_sd,
        "whole_bias_of_sd_se": variance.whole_bias_se / twice_sd,
        "r_hat": np.where(moves, converged.r_hat, np.nan),
        "ess_bulk": converged.ess_bulk,
        "within": np.where(moves, converged.mcse / plain_sd, 0.0),
        "between": np.where(moves, between / plain_sd, 0.0),
        "tail": np.where(moves, tail_index(values), np.nan),
    }


def _selected(run: Run) -> np.ndarray:
    """Return the numbers of the parameters that a verdict judges: all or, of very many, the most suspect.

    The first ones, which are the free variables, are always judged.  Of the others those are judged whose mean, or
    variance, has the largest standard errors between batches; of unadjusted draws, a bias of which these do not show,
    all coordinates.
    """
    p = len(run.parameters)
    free = sum(run.posterior[name].size for name in run.findings.get("free", []) if name in run.posterior)
    always = min(free // (run.chains * run.draws) or p, THRESHOLDS.always_judged)
    if run.unadjusted and run.position is not None:
        always = max(always, 2 * run.position.shape[2])
    if p <= max(always, THRESHOLDS.always_judged) + 2 * THRESHOLDS.worst_judged:
        return np.arange(p)
    suspicion = np.zeros((2, p))
    for indices, values in run.parameters.slabs():
        suspicion[:, indices] = _relative_errors(values)
    finite = np.isfinite(suspicion).all(axis=0)
    suspicion = np.where(finite, suspicion, 0.0)[:, always:]
    worst = np.argsort(-suspicion, axis=1, kind="stable")[:, : THRESHOLDS.worst_judged] + always
    return np.union1d(np.arange(always), np.r_[worst.ravel(), np.flatnonzero(~finite)[:1]])


@np.errstate(all="ignore")  # draws that are not finite, or vast
def _relative_errors(values: np.ndarray) -> np.ndarray:
    """Return standard errors ``(2, p)`` between batches: of means in sds, and of variances relative to them."""
    chains, draws, p = values.shape
    cut = count_pieces(chains, draws)
    origin = values[0, 0]
    means = np.empty((chains * cut, p))
    squares = np.empty((chains * cut, p))
    of_batch = draws // cut
    batches = values[:, draws - cut * of_batch :].reshape(chains * cut, of_batch, p)
    for i, batch in enumerate(batches):  # one by one: they fit a cache
        f = batch - origin
        means[i] = f.mean(axis=0)
        squares[i] = np.einsum("np,np->p", f, f) / of_batch
    centre = means.mean(axis=0)
    squares += centre * (centre - 2.0 * means)
    variance = squares.mean(axis=0)
    errors = np.stack([between_pieces(means, chains) / np.sqrt(variance), between_pieces(squares, chains) / variance])
    return np.where(variance == 0.0, 0.0, errors)

"""Runs of this package's samplers under a budget of gradients: draws, gradients, time and verdict."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from pmm_mcmc.diagnostics.noncentred import WORDS
from pmm_mcmc.diagnostics.verdict import verdict
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.langevin.methods import METHODS
from pmm_mcmc.run.sample import sample
from pmm_mcmc.warmup.equilibration import EQUILIBRATION

__all__ = [
    "Ran", "Seconds", "Trace", "altered", "cut", "for_few_draws", "in_words", "name_of", "run_step", "thinning",
]  # fmt: skip

# Most transitions of a warm-up: PyMC's own default, for all samplers.
TUNE = 1000
# Fewest draws of each chain for a row of the table.
FEWEST = 50
_PILOT = 4  # draws of the short run that compiles
_MOST_NUMBERS = 2**24  # kept of one sampler: 128 megabytes


class Seconds(NamedTuple):
    """Processor time of compilation, warm-up and sampling, over all cores.

    Chains on several threads therefore have no advantage, and other load on the machine has little influence.
    """

    compile: float
    warmup: float
    sampling: float


@dataclass(frozen=True)
class Ran:
    """The verdict of a run's own diagnostics: whether it is trusted, and a sentence."""

    trusted: bool
    sentence: str


@dataclass(frozen=True)
class Trace:
    """A sampler's run within its budget.

    Attributes
    ----------
    name : str
        The sampler, with the arguments that are not defaults.
    position : (chain, draw, d)
        Unconstrained draws after warm-up.
    n_grad : (chain, draw)
        Gradients from one draw to the next.
    warmup_n_grad : (chain,)
        Gradients of the warm-up.
    seconds
        Processor time.
    unstable, transitions : int
        Failed transitions after warm-up (rejected as unstable, or divergent), and all of them.
    ran
        The verdict of the run's own diagnostics.
    setting : str
        The tuned parameters as text.
    gradient : (chain, draw, d), optional
        Gradient of the log density at the draws.
    noncentred : (chain, draw, d), optional
        Non-centred positions to which the gradient belongs, if the run was non-centred.
    tuned : dict, optional
        Step size, K and friction of a sampler of this package.
    """

    name: str
    position: np.ndarray
    n_grad: np.ndarray
    warmup_n_grad: np.ndarray
    seconds: Seconds
    unstable: int
    transitions: int
    ran: Ran
    setting: str
    gradient: np.ndarray | None = None
    tuned: dict[str, Any] | None = None
    noncentred: np.ndarray | None = None

    @property
    def spent(self) -> float:
        """All gradients of all chains, warm-up included."""
        return float(self.warmup_n_grad.sum() + self.n_grad.sum())


class TooSmall(ValueError):
    """The budget does not cover the warm-up and some draws."""


def in_words(error: Exception) -> str:
    """Return the reason of a failure as text."""
    text = str(error).strip()
    if isinstance(error, TooSmall | ImportError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def name_of(step: Any) -> str:
    """Return a name for a step: its method, with the arguments that are not defaults."""
    arguments = step.arguments
    plain = MethodArguments.checked(arguments.method, dynamics=arguments.dynamics)
    told = [
        f"{field.name}={getattr(arguments, field.name)!r}"
        for field in fields(MethodArguments)
        if field.name not in ("method", "dynamics", "scaling")
        and getattr(arguments, field.name) != getattr(plain, field.name)
    ]
    if len(METHODS[arguments.method].dynamics) > 1:
        told.insert(0, f"dynamics={arguments.dynamics!r}")
    if arguments.scaling is not None:
        told.append("scaling=...")
    return f"{arguments.method}({', '.join(told)})" if told else arguments.method


def cut(n_grad: np.ndarray, warmup: float, budget: int) -> int:
    """Return the number of draws of each chain within the budget of all chains, warm-up included.

    Raises
    ------
    TooSmall
        If there are fewer than :data:`FEWEST`.
    """
    spent = warmup + np.cumsum(n_grad.sum(axis=0))
    n = int(np.searchsorted(spent, budget, side="right"))
    if n < FEWEST:
        mean = float(n_grad.sum(axis=0).mean())
        raise TooSmall(for_few_draws(warmup, budget, warmup + FEWEST * mean))
    return n


def for_few_draws(warmup: float, budget: int, needed: float) -> str:
    """Return an error message for a budget that is too small, with one that is sufficient."""
    enough = math.ceil(needed / 1000) * 1000
    return (
        f"the warm-up took {warmup:,.0f} of {budget:,} gradients and left too few for {FEWEST} draws of each chain: "
        f"give n_grad={enough:_} or more"
    )


def thinning(numbers: float) -> int:
    """Return the factor by which to thin draws, from the number of numbers without thinning."""
    return max(1, math.ceil(numbers / _MOST_NUMBERS))


def run_step(
    name: str, step: Any, model: Any, budget: int, chains: int, seed: int, adjusted: bool | None = None
) -> Trace:
    """Run a step method of this package with ``pmm.sample``.

    A first, very short run with the same seed compiles and shows the cost of the warm-up.  The second run, which is
    measured, repeats that warm-up bit for bit.

    Parameters
    ----------
    name
        Name of the sampler.
    step
        The step method.
    model
        The PyMC model.
    budget
        Gradients of all chains, warm-up included.
    chains, seed
        Number of chains, and the seed of all.
    adjusted
        As for ``pmm.sample``.

    Raises
    ------
    TooSmall
        If the budget does not cover the warm-up and some draws.
    """
    pilot, compiling = _sample(step, model, _PILOT, chains, seed, adjusted)
    stats = pilot["sample_stats"]
    warmup = _warmup(stats)
    each = float(gradients(stats).mean())
    left = (budget - warmup.sum()) / chains
    if left < each * FEWEST:
        raise TooSmall(for_few_draws(float(warmup.sum()), budget, warmup.sum() + chains * each * FEWEST))
    # 5 % more, since gradients of a draw vary; what is beyond the budget is cut off.
    draws = math.ceil(1.05 * left / each) + _PILOT
    numbers = sum(array.nbytes for group in pilot.children.values() for array in group.data_vars.values()) / 8
    factor = thinning(numbers / _PILOT * draws)
    if factor > 1:
        step = altered(step, steps_per_draw=factor * _tuned(pilot)["steps_per_draw"])
        draws = math.ceil(draws / factor)
    result, seconds = _sample(step, model, draws, chains, seed, adjusted)
    stats = result["sample_stats"]
    n = cut(gradients(stats), float(warmup.sum()), budget)
    result = _first(result, n)
    stats, tuned = result["sample_stats"], _tuned(result)
    return Trace(
        name,
        np.asarray(stats["unconstrained"], dtype=float),
        gradients(stats),
        warmup,
        Seconds(max(compiling.warmup - seconds.warmup, 0.0), seconds.warmup, seconds.sampling),
        int(stats["unstable" if "unstable" in stats else "diverging"].sum()),
        chains * n * tuned["steps_per_draw"],
        _verdict(result),
        _setting(result, tuned),
        np.asarray(stats["gradient"], dtype=float),
        tuned,
        np.asarray(stats["noncentred"], dtype=float) if "noncentred" in stats else None,
    )


def gradients(stats: Any) -> np.ndarray:
    """Return the gradients from one draw to the next."""
    return np.asarray(stats["n_steps" if "n_steps" in stats else "n_grad"])


def _sample(
    step: Any, model: Any, draws: int, chains: int, seed: int, adjusted: bool | None
) -> tuple[xr.DataTree, Seconds]:
    ends = [time.process_time()] * 2

    def note(drawn: Any) -> None:
        ends[1 if drawn.tuning else 0] = time.process_time()

    began = time.process_time()
    result = sample(
        step,
        draws,
        tune=TUNE,
        chains=chains,
        superchains=None,
        model=model,
        random_seed=seed,
        adjusted=adjusted,
        callback=note,
        progressbar=False,
        compute_convergence_checks=False,
    )
    return result, Seconds(math.nan, ends[1] - began, ends[0] - ends[1])


def _warmup(stats: Any) -> np.ndarray:
    return np.asarray(stats["n_grad_total"].isel(draw=0)) - gradients(stats)[:, 0]


def altered(step: Any, **arguments: Any) -> Any:
    """Return the same step with other arguments."""
    other = object.__new__(type(step))
    other.__dict__.update(step.__dict__)
    other.arguments = replace(step.arguments, **arguments)
    return other


def _first(result: xr.DataTree, n: int) -> xr.DataTree:
    """Return the first draws of a result."""
    groups = {name: result[name].dataset.isel(draw=slice(n)) for name in ("posterior", "sample_stats")}
    if EQUILIBRATION in result.children:
        groups[EQUILIBRATION] = result[EQUILIBRATION].dataset
    return xr.DataTree.from_dict(groups)


def _verdict(result: xr.DataTree) -> Ran:
    found = verdict(result)
    return Ran(found.trusted, found.sentence)


def _tuned(result: Any) -> dict[str, Any]:
    stats = result[EQUILIBRATION if EQUILIBRATION in result.children else "sample_stats"]
    names = [name for name in ("step_size", "K", "steps_per_draw", "friction") if name in stats]
    return {name: stats[name].values[0].flat[-1].item() for name in names}


def _setting(result: Any, tuned: dict[str, Any]) -> str:
    parts = [f"step size {tuned['step_size']:.2g}"]
    if tuned.get("K", 1) > 1:
        parts.append(f"K {tuned['K']}")
    if np.isfinite(tuned.get("friction", np.nan)):
        parts.append(f"friction {tuned['friction']:.2g}")
    parts.append(f"{tuned['steps_per_draw']} steps a draw")
    stats = result["sample_stats"]
    if "acceptance_rate" in stats:
        parts.append(f"acceptance {float(stats['acceptance_rate'].mean()):.2f}")
    if result["posterior"].attrs.get(WORDS):
        parts.append("non-centred")
    return ", ".join(parts)

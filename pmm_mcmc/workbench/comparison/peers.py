"""Runs of samplers that have a name: ``pmm.sample``'s default, PyMC's NUTS, draw by draw, and nutpie's."""

from __future__ import annotations

import importlib
import math
import time
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import arviz as az
import numpy as np

from pmm_mcmc.diagnostics.calibration import CALIBRATION
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.model.log_density import log_density
from pmm_mcmc.steps.poisson import PoissonULMC
from pmm_mcmc.workbench.comparison.runs import (
    FEWEST,
    TUNE,
    Ran,
    Seconds,
    TooSmall,
    Trace,
    cut,
    for_few_draws,
    run_step,
    thinning,
)

__all__ = ["PEERS", "NutsRun", "nuts_run", "run_default", "run_nutpie", "run_nuts", "with_gradients"]


def run_nuts(name: str, model: Any, budget: int, chains: int, seed: int) -> Trace:
    """Run PyMC's own NUTS until its budget is spent; see :func:`nuts_run`."""
    return nuts_run(model, budget, chains, seed).trace(name, budget)


def nuts_run(model: Any, budget: int, chains: int, seed: int) -> NutsRun:
    """Run PyMC's own NUTS with its defaults, until the budget of all chains together is spent.

    The step method that ``pm.sample`` would use is called here draw by draw, chains in turn, so that the run ends with
    its budget.  Gradients are the leapfrog steps of its trees, warm-up included.

    Parameters
    ----------
    model
        The PyMC model.
    budget
        Gradients of all chains, warm-up included.
    chains, seed
        Number of chains, and the seed of all.

    Raises
    ------
    TooSmall
        If the budget does not cover the warm-up of 1,000 iterations and some draws: before the run if it is too small
        for any posterior, otherwise as soon as the first chains show it.
    """
    d = sum(np.size(value) for value in model.initial_point(0).values())
    if budget < chains * (TUNE + FEWEST) * least_of(d):
        raise TooSmall(
            f"not run, for its warm-up would not fit the budget: {TUNE:,} iterations in {chains} chains take some "
            f"{chains * TUNE * least_of(d):,.0f} gradients even on a Gaussian of {d} dimensions, of {budget:,}: give "
            "a larger n_grad, or fewer chains"
        )
    began = time.process_time()
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # overflow in a trajectory that diverges
        nuts = _Nuts(model, chains, seed)
        compiled = time.process_time()
        n_warmup = nuts.warm_up(budget)
        warmed = time.process_time()
        left = (budget - n_warmup.sum()) / chains
        if left < FEWEST * nuts.mean:
            raise TooSmall(for_few_draws(n_warmup.sum(), budget, n_warmup.sum() + chains * FEWEST * nuts.mean))
        nuts.thin = thinning(left / nuts.mean * chains * d * 3)
        nuts.draw(budget - int(n_warmup.sum()))
    ended = time.process_time()
    return NutsRun(nuts, n_warmup, Seconds(compiled - began, warmed - compiled, ended - warmed))


def least_of(d: int) -> float:
    """Return a lower bound of the gradients of an iteration of NUTS' warm-up in ``d`` dimensions.

    On standard Gaussians PyMC's NUTS takes 2.1, 5.2, 8.4 and 15.1 in 1, 10, 100 and 1,000 dimensions (the cheapest of
    eight chains); the bound is 2.0, 3.6, 6.3 and 11.2.
    """
    return 2.0 * d**0.25


class NutsRun(NamedTuple):
    """A run of NUTS, whose first part is the run of a smaller budget."""

    nuts: _Nuts
    n_warmup: np.ndarray
    seconds: Seconds

    def trace(self, name: str, budget: int) -> Trace:
        """Return the part of the run within a budget of gradients.

        Raises
        ------
        TooSmall
            If the budget does not cover the warm-up and some draws.
        """
        nuts, n_grad = self.nuts, np.array(self.nuts.n_grad)
        n = cut(n_grad, float(self.n_warmup.sum()), budget)
        position, diverging = np.array(nuts.position)[:, :n], int(np.array(nuts.diverging)[:, :n].sum())
        sampling = self.seconds.sampling * n_grad[:, :n].sum() / n_grad.sum()
        return Trace(
            name,
            position,
            n_grad[:, :n],
            self.n_warmup,
            self.seconds._replace(sampling=sampling),
            diverging,
            n * len(position) * nuts.thin,
            judged(position, diverging),
            f"step size {np.median([state.step_size for state in nuts.states]):.2g}, "
            f"{n_grad[:, :n].mean() / nuts.thin:.0f} leapfrog steps a draw",
        )


class _Nuts:
    """Chains of PyMC's NUTS that take turns in one step method; the state of each is saved and restored."""

    def __init__(self, model: Any, chains: int, seed: int):
        import pymc as pm

        with model:
            self.starts, self.step = pm.init_nuts(chains=chains, random_seed=seed, progressbar=False, quiet=True)
        self.names = [value.name for value in model.continuous_value_vars]
        self.rngs = np.random.default_rng(seed).spawn(chains)
        self.points = list(self.starts)
        self.states: list[Any] = [None] * chains
        self.position: list[list[np.ndarray]] = [[] for _ in range(chains)]
        self.n_grad: list[list[int]] = [[] for _ in range(chains)]
        self.diverging: list[list[int]] = [[] for _ in range(chains)]
        self.thin, self.mean = 1, math.nan

    def flat(self, point: dict[str, Any]) -> np.ndarray:
        return np.concatenate([np.ravel(point[name]) for name in self.names])

    def warm_up(self, budget: int) -> np.ndarray:
        """Tune all chains; return the gradients of each."""
        spent, late, step = np.zeros(len(self.points), np.int64), [], self.step
        for c, start in enumerate(self.starts):
            # In the order of the calls in PyMC's own loop.
            step.setup_chain(self.rngs[c], TUNE, 1)
            step.tune = True
            step.reset_tuning()
            point = start
            for i in range(TUNE):
                point, (stats,) = step.step(point)
                spent[c] += int(stats["tree_size"])
                if i >= TUNE // 2:
                    late.append(stats["tree_size"])
                # Other chains do not make up for one that takes 1.5 times its share of the budget.
                if spent.sum() > budget * min(1.0, 1.5 * (c + 1) / len(spent)):
                    needed = len(spent) * (spent[c] * TUNE / (i + 1) + FEWEST * float(np.mean(late or [1.0])))
                    raise TooSmall(
                        f"stopped in its warm-up, which took {spent.sum():,} of {budget:,} gradients in {c + 1} of "
                        f"{len(spent)} chains: give n_grad={math.ceil(needed / 1000) * 1000:_} or more"
                    )
            step.stop_tuning()
            self.points[c], self.states[c] = point, step.sampling_state
        self.mean = float(np.mean(late))
        return spent

    def draw(self, budget: int) -> None:
        """Draw until the budget is spent, and a little beyond."""
        spent = draws = 0
        while spent < budget:
            mean = spent / draws if draws else self.mean * self.thin * len(self.points)
            block = int(np.clip((budget - spent) / max(mean, 1.0), 10, 200))
            for c in range(len(self.points)):
                spent += self._block(c, block)
            draws += block

    def _block(self, c: int, block: int) -> int:
        step, point = self.step, self.points[c]
        step.sampling_state = self.states[c]
        total = 0
        for _ in range(block):
            n_grad = diverging = 0
            for _ in range(self.thin):
                point, (stats,) = step.step(point)
                n_grad += int(stats["tree_size"])
                diverging += bool(stats["diverging"])
            self.position[c].append(self.flat(point))
            self.n_grad[c].append(n_grad)
            self.diverging[c].append(diverging)
            total += n_grad
        self.points[c], self.states[c] = point, step.sampling_state
        return total


def run_nutpie(name: str, model: Any, budget: int, chains: int, seed: int) -> Trace:
    """Run nutpie's NUTS with its defaults; see :func:`run_nuts` for the arguments.

    Gradients are its leapfrog steps.  A first run of the warm-up and a few draws shows how many draws the budget
    allows; draws of the second run beyond the budget are cut off.

    Raises
    ------
    ImportError
        If it is not installed.
    TooSmall
        If the budget does not cover the warm-up and some draws.
    """
    try:
        nutpie = importlib.import_module("nutpie")
    except ImportError:
        raise ImportError("nutpie is not installed: pip install nutpie") from None
    began = time.process_time()
    compiled = nutpie.compile_pymc_model(model)
    compiling = time.process_time() - began

    def sample(draws: int) -> Any:
        return nutpie.sample(
            compiled,
            draws=draws,
            tune=TUNE,
            chains=chains,
            cores=1,
            seed=seed,
            save_warmup=True,
            store_unconstrained=True,
            progress_bar=False,
        )

    began = time.process_time()
    pilot = sample(FEWEST)
    warming = time.process_time() - began
    n_warmup = np.asarray(pilot["warmup_sample_stats"]["n_steps"].sum("draw"))
    each = float(pilot["sample_stats"]["n_steps"].mean())
    left = (budget - n_warmup.sum()) / chains
    if left < FEWEST * each:
        raise TooSmall(for_few_draws(float(n_warmup.sum()), budget, n_warmup.sum() + chains * FEWEST * each))
    began = time.process_time()
    result = sample(math.ceil(1.2 * left / each) + FEWEST)
    took = time.process_time() - began
    stats, n_warmup = result["sample_stats"], np.asarray(result["warmup_sample_stats"]["n_steps"].sum("draw"))
    n_grad = np.asarray(stats["n_steps"])
    n = cut(n_grad, float(n_warmup.sum()), budget)
    position = np.asarray(stats["unconstrained_draw"], dtype=float)[:, :n]
    diverging = int(stats["diverging"].values[:, :n].sum())
    # The second run repeats the warm-up; its time is divided between warm-up and draws by their gradients.
    share = n_grad.sum() / (n_grad.sum() + n_warmup.sum())
    return Trace(
        name,
        position,
        n_grad[:, :n],
        n_warmup,
        Seconds(compiling, min(warming, (1.0 - share) * took), share * took * n / n_grad.shape[1]),
        diverging,
        n * chains,
        judged(position, diverging),
        f"{n_grad[:, :n].mean():.0f} leapfrog steps a draw",
    )


def judged(position: np.ndarray, divergences: int) -> Ran:
    """Return a verdict on an adjusted sampler by PyMC's warnings: divergences, R-hat and effective draws."""
    chains, reasons = position.shape[0], []
    with np.errstate(all="ignore"):
        worst = max(float(az.rhat(position[..., i])) for i in range(position.shape[-1]))
        least = min(float(az.ess(position[..., i])) for i in range(position.shape[-1]))
    if divergences:
        reasons.append(f"{divergences} divergence{'s' if divergences > 1 else ''}")
    if not worst <= CALIBRATION.r_hat:
        reasons.append(f"chains disagree: r_hat is up to {worst:.3g}")
    if not least >= 100 * chains:
        reasons.append(f"{least:.0f} effective draws, fewer than 100 a chain")
    if reasons:
        return Ran(False, f"Do not trust this run: {'; '.join(reasons)}.")
    return Ran(True, "No divergences, and chains agree.")


def with_gradients(trace: Trace, model: Any) -> Trace:
    """Add the gradients at the draws, which the sampler did not store; they are not counted."""
    density = log_density(list(model.value_vars), model, model.initial_point(0))
    engine = NumbaEngine.of(MethodArguments.checked("GHMC", dynamics="underdamped"), density)
    return replace(trace, gradient=np.array([engine.gradient_at(x) for x in trace.position]))


def run_default(name: str, model: Any, budget: int, chains: int, seed: int) -> Trace:
    """Run ``pmm.sample`` with its defaults; see :func:`run_nuts` for the arguments."""
    return replace(run_step(name, PoissonULMC(), model, budget, chains, seed, adjusted=True), tuned=None)


PEERS = {"default": run_default, "nuts": run_nuts, "nutpie": run_nutpie}

"""NUTS of PyMC and nutpie on a PyMC model.

* PyMC's NUTS with its defaults (jitter and adapted diagonal scale, 1,000 tuning iterations).  Gradients are leapfrog
  steps (``n_steps``): that at the start of a trajectory is known from the last one, though PyMC evaluates it again.
* nutpie's NUTS with its defaults (400 tuning iterations).  Gradients are ``n_steps``.
"""

from __future__ import annotations

import time
import warnings

import numpy as np
import pymc as pm
from versus.first_times import Run

__all__ = ["Nutpie", "PyMCNUTS"]


class Rerun:
    """A sampler that is run anew from the start for every length."""

    name, first = "", 4000

    def __init__(self, model: pm.Model, chains: int = 8):
        self.model, self.chains = model, chains

    def begin(self, seed: int) -> None:
        """Take another seed."""
        self._seed, self._draws = seed, 0
        self.warm_up_seconds, self.seconds = 0.0, 0.0

    def lengthen(self, draws: int) -> None:
        """Make the run longer by so many draws."""
        self._draws += draws
        self._run = self.sample(self._draws)

    def run(self) -> Run:
        """Return the whole run."""
        return self._run

    def sample(self, draws: int) -> Run:
        """Sample so many draws; sets ``failing``, ``seconds`` and ``warm_up_seconds``."""
        raise NotImplementedError


class PyMCNUTS(Rerun):
    """PyMC's NUTS with its defaults; seconds are those within its transitions, so without compilation."""

    name = "PyMC NUTS"

    def sample(self, draws: int) -> Run:
        """Sample, chains one after the other."""
        with self.model, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            dt = pm.sample(
                draws=draws,
                tune=1000,
                chains=self.chains,
                cores=1,
                nuts_sampler="pymc",
                random_seed=self._seed,
                discard_tuned_samples=False,
                compute_convergence_checks=False,
                progressbar=False,
                quiet=True,
                idata_kwargs={"include_transformed": True},
            )
        posterior, stats, warm = dt["posterior"], dt["sample_stats"], dt["warmup_sample_stats"]
        names = [v.name for v in self.model.continuous_value_vars]
        flat = [np.asarray(posterior[name]).reshape(self.chains, draws, -1) for name in names]
        self.failing = int(stats["diverging"].sum())
        self.warm_up_seconds, self.seconds = (float(part["process_time_diff"].sum()) for part in (warm, stats))
        before = np.asarray(warm["n_steps"].sum("draw"))
        return Run(self.name, np.concatenate(flat, axis=2), np.asarray(stats["n_steps"]), before)


class Nutpie(Rerun):
    """nutpie's NUTS; the seconds of a call are shared between warm-up and draws as their gradients."""

    name = "nutpie NUTS"

    def __init__(self, model: pm.Model, chains: int = 8, adaptation: str = "diag"):
        import nutpie

        super().__init__(model, chains)
        self._nutpie, self._compiled = nutpie, nutpie.compile_pymc_model(model)
        self._adaptation = adaptation
        # A run, so that nothing is left to compile.
        nutpie.sample(self._compiled, draws=10, chains=1, cores=1, seed=0, progress_bar=False)

    def sample(self, draws: int) -> Run:
        """Sample with the defaults, but for the adaptation of the scale."""
        began = time.process_time()
        dt = self._nutpie.sample(
            self._compiled,
            draws=draws,
            chains=self.chains,
            cores=1,
            seed=self._seed,
            progress_bar=False,
            store_unconstrained=True,
            adaptation=self._adaptation,
        )
        took = time.process_time() - began
        stats, warm = dt["sample_stats"], dt["warmup_sample_stats"]
        self.failing = int(stats["diverging"].sum())
        steps, before = stats["n_steps"].values, warm["n_steps"].sum("draw").values
        share = before.sum() / (before.sum() + steps.sum())
        self.warm_up_seconds, self.seconds = share * took, (1 - share) * took
        return Run(self.name, stats["unconstrained_draw"].values, steps, before)

"""PyMC step methods: ``pm.sample(step=...)``."""

from pmm_mcmc.steps.baselines import OLMC, RLMC, ULMC
from pmm_mcmc.steps.last_words import end_runs_with_the_verdict
from pmm_mcmc.steps.mala import MALA
from pmm_mcmc.steps.poisson import PoissonOLMC, PoissonULMC

__all__ = ["MALA", "OLMC", "RLMC", "ULMC", "PoissonOLMC", "PoissonULMC"]

end_runs_with_the_verdict()

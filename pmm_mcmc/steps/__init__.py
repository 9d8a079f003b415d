"""PyMC step methods: ``pm.sample(step=...)``."""

from pmm_mcmc.steps.adjusted import GHMC, MALA
from pmm_mcmc.steps.baselines import OLMC, RLMC, ULMC
from pmm_mcmc.steps.poisson import PoissonOLMC, PoissonULMC

__all__ = ["BY_NAME", "GHMC", "MALA", "OLMC", "RLMC", "ULMC", "PoissonOLMC", "PoissonULMC"]

BY_NAME = {step.__name__: step for step in (GHMC, MALA, OLMC, RLMC, ULMC, PoissonOLMC, PoissonULMC)}

"""PyMC step methods: ``pm.sample(step=...)``."""

from pmm_mcmc.steps.langevin import MALA, OLMC, RLMC, ULMC, PoissonOLMC, PoissonULMC

__all__ = ["MALA", "OLMC", "RLMC", "ULMC", "PoissonOLMC", "PoissonULMC"]

"""Ways in beside PyMC and JAX: Stan programs, C functions and NumPyro models as :class:`pmm_mcmc.LogDensity`."""

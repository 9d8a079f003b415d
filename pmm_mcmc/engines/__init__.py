"""Engines: the loops of numba and JAX that advance chains by the transitions of :mod:`pmm_mcmc.langevin`."""

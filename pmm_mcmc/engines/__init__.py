"""Engines: the loops that run whole chains over the transitions of :mod:`pmm_mcmc.transitions`."""

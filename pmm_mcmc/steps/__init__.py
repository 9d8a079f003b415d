"""PyMC step methods: ``pm.sample(step=...)``."""

"""The mathematics of Langevin dynamics: exact flows, midpoints, transitions, stationary laws.  It knows no models.

A method, from its equation to its draws:

1. :mod:`~pmm_mcmc.langevin.flows`: the exact flow of the linear part over a time, and the covariance of its noise.
2. :mod:`~pmm_mcmc.langevin.midpoints`: the times within a step at which the drift is evaluated, and their weights.
3. :mod:`~pmm_mcmc.langevin.transitions`: a step built from both, given gradients and noise; the same functions are
   compiled by numba (``engines/numba_poisson.py``) and traced by JAX (``engines/jax_poisson.py``).
4. :mod:`~pmm_mcmc.langevin.methods`: the registry of methods, and a method as plain numbers for an engine.
5. :mod:`~pmm_mcmc.langevin.gaussian_law`: the stationary law of a method on a Gaussian, from which its bias follows,
   and :mod:`~pmm_mcmc.langevin.stability`: the steps for which there is no such law.
"""

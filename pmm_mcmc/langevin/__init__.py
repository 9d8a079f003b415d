"""Numbers of Langevin dynamics: exact flows, midpoints, transitions, stationary laws.  Nothing here knows a model.

A method, from its equation to its draws:

1. :mod:`~pmm_mcmc.langevin.flows`: the exact flow of the linear part over a time, and the covariance of its noise.
2. :mod:`~pmm_mcmc.langevin.midpoints`: at which times between a step's ends the drift is looked at, with which weight.
3. :mod:`~pmm_mcmc.langevin.transitions`: a step put together from both, gradients and noise passed in; the same
   functions are compiled by numba (``engines/numba_step.py``) and traced by JAX (``engines/jax_transition.py``).
4. :mod:`~pmm_mcmc.langevin.methods`: the registry of methods, and a method as plain numbers for an engine.
5. :mod:`~pmm_mcmc.langevin.gaussian_law`: the law that a method has on a Gaussian, which tells its bias, and
   :mod:`~pmm_mcmc.langevin.stability`: where it has none.
"""

"""``pmm.temper``: separated modes and the evidence, by replicas of a ladder of temperatures.

A *ladder* has levels of inverse temperature ``beta`` from 0, the *reference* (the prior, or a mixture of Gaussians), to
1, the posterior: the density at a level is ``reference * exp(beta * log_ratio)`` with ``log_ratio`` the log density of
the posterior over that of the reference.  A *replica* has one chain at each level; neighbours swap.  *Hot* is nearer to
the reference, *cold* is at the posterior, and a *restart* is a chain that has come from the reference to the posterior.

:mod:`~pmm_mcmc.tempering.temper` checks the arguments, :mod:`~pmm_mcmc.tempering.driver` runs the phases: annealing and
:mod:`~pmm_mcmc.tempering.tuning`, and draws of a :mod:`~pmm_mcmc.tempering.ladder`, whose chains move on a
:mod:`~pmm_mcmc.tempering.path`.
"""

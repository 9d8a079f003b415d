"""What a result says about itself: corrected estimates with errors, the bias of unadjusted draws, a verdict.

:mod:`~pmm_mcmc.diagnostics.reading` reads a result, of any sampler, as a ``Run`` with a table of its parameters, whose
means are corrected by :mod:`~pmm_mcmc.diagnostics.control_variates`.  :mod:`~pmm_mcmc.diagnostics.verdict` is the list
of checks, and :mod:`~pmm_mcmc.diagnostics.summary` the table that a user sees.  After the draws a run searches for
:mod:`~pmm_mcmc.diagnostics.edges` of the density and for :mod:`~pmm_mcmc.diagnostics.necks`.
"""

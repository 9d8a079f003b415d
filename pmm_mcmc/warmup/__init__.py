"""Warm-up finds the setting of a method: preconditioner, step size, friction and non-centring.

It looks at positions and gradients of the chains, and at nothing else.

::

    grow ──────────────► trial ──────► freeze ──► check ──► check ... ──► done
    blocks of 25, 32 ...  one friction    70 % at    each judges the setting on
    draws; after each:    after another,  the        new draws: unstable steps,
    preconditioner,       the best one    latest     Stein identity
    non-centring, step    is kept                      │ fails: shorter step, and
                                                       ◄─┘ one more check

:mod:`~pmm_mcmc.warmup.timetable` says when a block ends, :mod:`~pmm_mcmc.warmup.schedule` what follows from its draws,
:mod:`~pmm_mcmc.warmup.noncentring` fits the non-centring to them, and :mod:`~pmm_mcmc.warmup.warming` has the chains
that are tuned together.  All thresholds are in
:mod:`~pmm_mcmc.warmup.thresholds`.
"""

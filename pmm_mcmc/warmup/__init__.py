"""Warm-up finds the setting of a method: preconditioner, step size, friction and non-centring.

It looks at positions and gradients of the chains, and at nothing else.

::

    grow ──────────────► freeze ──► check ──► check ... ──► done
    blocks of 25, 32 ...   70 % at    each judges the setting on
    draws; after each:     the        new draws: unstable steps,
    preconditioner,        latest     Stein identity
    non-centring, step                  │ fails: shorter step, and
                                      ◄─┘ one more check

:mod:`~pmm_mcmc.warmup.warm_up` says when a block ends and what follows from its draws, and has the chains that are
tuned together; :mod:`~pmm_mcmc.warmup.noncentring` fits the non-centring to them.  All thresholds are in
:mod:`~pmm_mcmc.warmup.thresholds`.
"""

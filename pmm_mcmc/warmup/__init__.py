"""Warm-up: preconditioner, step size, friction and non-centring, from positions and gradients alone.

::

    grow ──────────────► trial ──────► freeze ──► check ──► check ... ──► done
    blocks of 25, 32 ...  one friction    70 % at    each judges the setting on
    draws; after each:    after another,  the        new draws: unstable steps,
    preconditioner,       the best one    latest     identities, whitened sds
    sites, step size      is kept                      │ fails: shorter step, and
                                                       ◄─┘ one more check

:mod:`~pmm_mcmc.warmup.timetable` says when blocks end, :mod:`~pmm_mcmc.warmup.schedule` what follows from one,
:mod:`~pmm_mcmc.warmup.pooled` runs it for chains that learn together, :mod:`~pmm_mcmc.warmup.noncentring` beside sites.
"""

"""Posteriors with known answers, most of them not log-concave, to try a sampler on.

>>> from pmm_mcmc.workbench import targets
>>> target = targets.get("banana")
>>> target.ndim, target.reference.exact
(10, True)

Models are built only on request.
"""

from __future__ import annotations

import difflib

from pmm_mcmc.workbench.targets.gallery import TARGETS
from pmm_mcmc.workbench.targets.target import Reference, Target

__all__ = ["Reference", "Target", "get", "list"]

_TARGETS: dict[str, Target] = {target.name: target for target in TARGETS}


def list() -> tuple[str, ...]:
    """Return the names of the targets of the gallery.

    Returns
    -------
    tuple of str
        Names for :func:`get`.

    Examples
    --------
    >>> from pmm_mcmc.workbench import targets
    >>> targets.list()[:2]
    ('mixture_4sd', 'mixture_7sd')
    """
    return tuple(_TARGETS)


def get(name: str) -> Target:
    """Return a target of the gallery.

    Parameters
    ----------
    name
        One of :func:`list`.

    Returns
    -------
    Target

    Raises
    ------
    ValueError
        If there is no target of that name.

    Examples
    --------
    >>> from pmm_mcmc.workbench import targets
    >>> targets.get("funnel").title
    "Neal's funnel, d = 10"
    """
    if isinstance(name, str) and name in _TARGETS:
        return _TARGETS[name]
    near = difflib.get_close_matches(name, _TARGETS, n=1, cutoff=0.5) if isinstance(name, str) else []
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"name={name!r}: there is no such target; {hint}There are: {', '.join(_TARGETS)}")

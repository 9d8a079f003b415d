"""Texts that the docstrings of several methods share: a line ``<name>`` stands for the text of that name."""

from __future__ import annotations

import re

__all__ = ["documented"]

_TEXTS = {
    "vars": r"""
    vars
        Variables to sample, random or value variables of the model; default all continuous ones.  Discrete ones get a
        sampler of PyMC's own.
""",
    "step_size": r"""
    step_size
        :math:`\alpha`, a time: at unit velocity a step moves by ``step_size`` whitened units.  "auto" (default): found
        in warm-up, the largest whose exact variance error on the Gaussian of the posterior's steepest curvature is
        ``target_bias``.
""",
    "friction": r"""
    friction
        :math:`\gamma`, in whitened units.  "auto" (default) is 1, which suits a whitened posterior, or less
        where a trial in warm-up says so.
""",
    "option": r"""
    option
        2 (default): exactly one cell is looked at.  1: each cell with probability :math:`1/K` by itself, as in the
        paper's theorems; more variable, less stable.
""",
    "grid": r"""
    grid
        "left" (default), the paper's; "centred", not in the paper, has next to no bias from the grid from K = 4 on.
""",
    "midpoint": r"""
    midpoint
        "uniform" (default): the one cell of Option 2 is any with the same probability, as in the paper.  "importance",
        **which is not in the paper**: late cells more often, :math:`q_i = ((i+1)/K)^{5/4} - (i/K)^{5/4}`, with
        :math:`1/q_i` in place of ``K`` in the correction.  The mean stays as it is and variance falls: steps are a
        fifth to a half longer at the same ``target_bias``, except where that is below 0.005 or there are a thousand
        coordinates.
""",
    "steps_per_draw": r"""
    steps_per_draw
        Transitions for each recorded draw.  "auto" (default): the smallest number at which every coordinate's lag-one
        autocorrelation in warm-up is below about 0.5, at most 64.
""",
    "scaling": r"""
    scaling
        One positive number for each unconstrained coordinate, about its posterior standard deviation: the unit of
        everything else.  "auto" (default): found in warm-up; with ``tune=0`` it is 1.
""",
    "target_bias": r"""
    target_bias
        The bias that an automatic step size may cause, as a relative error of a variance: at most this on the Gaussian
        of the posterior's steepest curvature.  Default 0.05, which is 2.5% of a standard deviation; between 0.0001 and
        0.5.  In more than 8 coordinates it is :math:`\sqrt{8/d}` times that.  The statistic ``halving_cost`` says
        what half of it would cost.
""",
    "reparametrise": r"""
    reparametrise
        "auto" (default): children of a hierarchical model are sampled non-centred, each element as far as the draws of
        warm-up ask for, about the parents that the model's graph names; draws are in the model's own parameters all
        the same.  False: the model is sampled as written.  A dict such as ``{"theta": "centred", "b": "noncentred"}``:
        so for these variables, and the others as by default.  See also :func:`pmm_mcmc.noncentring`.
""",
    "keep_gradients": r"""
    keep_gradients
        Store the gradient and the unconstrained position of every draw in ``sample_stats`` (default), for
        :func:`pmm_mcmc.summary`: two numbers more for each draw and coordinate.  Only where all variables are moved.
""",
    "pymc": r"""
    model, blocked, rng
        As for PyMC's own step methods: the model of the enclosing ``with`` by default; True (all variables move
        together); a seed, which ``pm.sample(random_seed=...)`` replaces.
""",
    "step_size_overdamped": r"""
    step_size
        :math:`\alpha`, a time: the noise of a step spreads by ``sqrt(2 * step_size)`` whitened units.  "auto"
        (default): found in warm-up, the largest whose exact variance error on the Gaussian of the posterior's steepest
        curvature is ``target_bias``.
""",
    "raises": """
    Raises
    ------
    ValueError
        For an argument, variable or model that cannot work, with its name and the remedy; in ``pm.sample``, for
        ``tune=0`` without ``step_size``.
    SamplingError
        In ``pm.sample``, where the log density or its gradient is not finite at the initial point.
""",
}


def documented[Class: type](cls: Class) -> Class:
    """Put the shared texts into the docstring of a class."""
    cls.__doc__ = re.sub(r"(?m)^ {4}<(\w+)>$", lambda found: _TEXTS[found[1]].strip("\n"), cls.__doc__ or "")
    return cls

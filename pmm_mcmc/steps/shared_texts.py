"""Texts shared by the docstrings of several methods, where a line ``<name>`` stands for the text of that name."""

from __future__ import annotations

import re

__all__ = ["documented"]

_TEXTS = {
    "vars": r"""
    vars
        Variables to sample, random or value variables of the model; by default all continuous ones.  PyMC assigns
        discrete ones a sampler of its own.
""",
    "step_size": r"""
    step_size
        :math:`\alpha`, a time in whitened units.  "auto" (default): learnt in warm-up, the largest one whose exact
        relative error of the variance, on a Gaussian with the posterior's steepest curvature, is ``target_bias``.
""",
    "friction": r"""
    friction
        :math:`\gamma`, in whitened units.  "auto" (default): 1, which suits a whitened posterior.
""",
    "K": r"""
    K
        Number of cells of a step.  "auto" (default): the smallest power of two between 16 and 4096 for which the bias
        of the grid is small beside that of the step.  A larger K costs no gradients and no memory.
""",
    "option": r"""
    option
        2 (default): the drift is corrected in exactly one cell.  1: in each cell with probability :math:`1/K`,
        independently, as in the paper's theorems; more variable, less stable, and on numba alone.
""",
    "grid": r"""
    grid
        "left": the algorithm as printed, whose midpoints begin their cells.  At a given ``K`` its bias is of order 1 in
        the step, so that steps are short: with K = 16 on two regressions (d = 21 and 20) an effective draw costs 1.7
        times as many gradients as on "centred", with d = 500 8.5 times.  "centred": midpoints in the middle of the
        cells, of order 2.  "auto" (default): "centred" for a given ``K`` above 1, else "left", where ``K`` is chosen.
""",
    "midpoint": r"""
    midpoint
        "uniform" (default): Option 2 draws each cell with the same probability, as in the paper.  "importance",
        **which is not in the paper**: it draws late cells more often, with :math:`q_i = ((i+1)/K)^{5/4} - (i/K)^{5/4}`,
        and :math:`1/q_i` replaces ``K`` in the correction.  The correction keeps its mean and has a smaller variance:
        steps are 20 to 50 % longer at the same ``target_bias``, except where that is below 0.005 or there are a
        thousand coordinates.
""",
    "steps_per_draw": r"""
    steps_per_draw
        Number of transitions for each recorded draw.  "auto" (default): the smallest number for which the lag-one
        autocorrelation of every coordinate, and of its square, in warm-up is below about 0.5, at most 64.
""",
    "scaling": r"""
    scaling
        Preconditioner: one positive number for each unconstrained coordinate, about its posterior standard deviation.
        Step size and friction are relative to it.  "auto" (default): learnt in warm-up; 1 with ``tune=0``.
""",
    "target_bias": r"""
    target_bias
        Largest bias of an automatic step size: a relative error of the variance, on a Gaussian with the posterior's
        steepest curvature.  Default 0.05, which is 2.5% of a standard deviation; between 0.0001 and 0.5.  In more than
        8 coordinates it is multiplied by :math:`\sqrt{8/d}`.
""",
    "reparametrise": r"""
    reparametrise
        "auto" (default): the children of a hierarchical model are sampled non-centred.  The degree is learnt in warm-up
        for each element, the parents are read from the model's graph, and draws are in the model's own parameters.
        False: the model is sampled as written.  A dict such as ``{"theta": "centred", "b": "noncentred"}`` decides for
        the named variables; others are "auto".  See also :func:`pmm_mcmc.noncentring`.
""",
    "keep_gradients": r"""
    keep_gradients
        Store gradient and unconstrained position of every draw in ``sample_stats`` (default), for
        :func:`pmm_mcmc.summary`: two more numbers for each draw and coordinate.  It has an effect only if the step
        moves all continuous variables.
""",
    "pymc": r"""
    model, blocked, rng
        As for PyMC's own step methods: the model, by default that of the enclosing ``with``; True, since all variables
        move together; a seed, which ``pm.sample(random_seed=...)`` replaces.
""",
    "of_all": """
    <steps_per_draw>
    <scaling>
    <reparametrise>
    <keep_gradients>
    <pymc>

    <raises>
""",
    "of_unadjusted": """
    <target_bias>
    <of_all>
""",
    "paper": """
    .. [1] S. Kandasamy and D. Nagaraj, "The Poisson Midpoint Method for Langevin Dynamics: Provably Efficient
       Discretization for Diffusion Models", NeurIPS 2024, arXiv:2405.17068.
""",
    "raises": """
    Raises
    ------
    ValueError
        For an invalid argument, variable or model; the message has its name, value and the remedy.  In ``pm.sample``
        also for ``tune=0`` without ``step_size``.
    SamplingError
        In ``pm.sample``, if the log density or its gradient is not finite at the initial point.
""",
}


def documented[Class: type](cls: Class) -> Class:
    """Insert the shared texts into the docstring of a class."""
    text = cls.__doc__ or ""
    while placeholder := re.search(r"(?m)^ {4}<(\w+)>$", text):
        text = text.replace(placeholder[0], _TEXTS[placeholder[1]].strip("\n"))
    cls.__doc__ = text
    return cls

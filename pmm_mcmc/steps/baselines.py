"""Plain Langevin Monte Carlo as PyMC step methods, underdamped and overdamped: baselines."""

from __future__ import annotations

from typing import Any

import pymc as pm

from pmm_mcmc.engines.settings import MethodArguments
from pmm_mcmc.steps.base import LangevinStep
from pmm_mcmc.steps.statistics import WITHOUT_FRICTION

__all__ = ["OLMC", "ULMC"]


class ULMC(LangevinStep):
    r"""Underdamped Langevin Monte Carlo (exponential integrator): unadjusted, one gradient a step.

    The plain discretisation that :class:`PoissonULMC` improves on, and its special case ``K = 1``; a baseline.  It is
    *unadjusted*: nothing is accepted or rejected, and the draws follow a law that is off the posterior.

    *Dynamics*: with position :math:`u`, velocity :math:`v`, potential :math:`F` (minus the log posterior density) and
    :math:`\gamma` = ``friction``, in whitened coordinates (see ``scaling``),

    .. math:: du = v\,dt, \qquad dv = -\gamma v\,dt - \nabla F(u)\,dt + \sqrt{2 \gamma}\,dB.

    A step of length :math:`\alpha` = ``step_size`` solves it exactly with the gradient frozen at its start [1]_,

    .. math:: X' = A_\alpha X + G_\alpha b(X) + \Gamma_\alpha W, \qquad W \sim N(0, I),

    where :math:`X = (u, v)`, :math:`b(X) = -\nabla F(u)`, and :math:`A_h, G_h, \Gamma_h` is the exact flow of the
    linear part (:mod:`pmm_mcmc.langevin.flows`).

    *Cost*: 1 gradient a step; 17 arrays of length :math:`d` a chain, and 6 for each draw computed ahead (at most 256).

    *Bias*: order 1 in :math:`\alpha`; on Gaussians of curvature :math:`L` the relative error of a variance is near
    :math:`\alpha L / (2 \gamma)`.

    Parameters
    ----------
    vars
        Variables to sample, random or value variables of the model; default all continuous ones.  Discrete ones get a
        sampler of PyMC's own.
    step_size
        :math:`\alpha`, a time: at unit velocity a step moves by ``step_size`` whitened units.  "auto" (default): found
        in warm-up, the largest whose exact variance error on the Gaussian of the posterior's steepest curvature is
        ``target_bias``.
    friction
        :math:`\gamma`, in whitened units.  "auto" (default) is 1, which suits a whitened posterior, or less
        where a trial in warm-up says so.
    steps_per_draw
        Transitions for each recorded draw.  "auto" (default): the smallest number at which every coordinate's lag-one
        autocorrelation in warm-up is below about 0.5, at most 64.
    scaling
        One positive number for each unconstrained coordinate, about its posterior standard deviation: the unit of
        everything else.  "auto" (default): found in warm-up; with ``tune=0`` it is 1.
    target_bias
        The bias that an automatic step size may cause, as a relative error of a variance: at most this on the Gaussian
        of the posterior's steepest curvature.  Default 0.05, which is 2.5% of a standard deviation; between 0.0001 and
        0.5.  In more than 8 coordinates it is :math:`\sqrt{8/d}` times that.  The statistic ``halving_cost`` says
        what half of it would cost.
    reparametrise
        "auto" (default): children of a hierarchical model are sampled non-centred, each element as far as the draws of
        warm-up ask for, about the parents that the model's graph names; draws are in the model's own parameters all
        the same.  False: the model is sampled as written.  A dict such as ``{"theta": "centred", "b": "noncentred"}``:
        so for these variables, and the others as by default.  See also :func:`pmm_mcmc.noncentring`.
    keep_gradients
        Store the gradient and the unconstrained position of every draw in ``sample_stats`` (default), for
        :func:`pmm_mcmc.summary`: two numbers more for each draw and coordinate.  Only where all variables are moved.
    model, blocked, rng
        As for PyMC's own step methods: the model of the enclosing ``with`` by default; True (all variables move
        together); a seed, which ``pm.sample(random_seed=...)`` replaces.

    Raises
    ------
    ValueError
        For an argument, variable or model that cannot work, with its name and the remedy; in ``pm.sample``, for
        ``tune=0`` without ``step_size``.
    SamplingError
        In ``pm.sample``, where the log density or its gradient is not finite at the initial point.

    References
    ----------
    .. [1] S. Kandasamy and D. Nagaraj, "The Poisson Midpoint Method for Langevin Dynamics: Provably Efficient
       Discretization for Diffusion Models", NeurIPS 2024, arXiv:2405.17068.
       Equation 1 with the matrices of section 2.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     step = pmm.ULMC(steps_per_draw=5)
    ...     dt = pm.sample(100, tune=100, chains=2, step=step, progressbar=False)
    >>> dt["posterior"]["x"].shape
    (2, 100, 3)
    >>> (dt["sample_stats"]["n_grad"] == 5).all().item()
    True
    """

    name = "ulmc"

    def __init__(
        self,
        vars: Any = None,
        *,
        step_size: float | str = "auto",
        friction: float | str = "auto",
        steps_per_draw: int | str = "auto",
        scaling: Any = "auto",
        target_bias: float = 0.05,
        reparametrise: Any = "auto",
        keep_gradients: bool = True,
        model: pm.Model | None = None,
        blocked: bool = True,
        rng: Any = None,
    ):
        settings = MethodArguments.checked(
            "ULMC",
            dynamics="underdamped",
            step_size=step_size,
            friction=friction,
            steps_per_draw=steps_per_draw,
            scaling=scaling,
            target_bias=target_bias,
            reparametrise=reparametrise,
        )
        super().__init__(vars, settings, keep_gradients=keep_gradients, model=model, blocked=blocked, rng=rng)


class OLMC(LangevinStep):
    r"""Overdamped Langevin Monte Carlo (Euler-Maruyama): unadjusted, one gradient a step.

    The plain discretisation that :class:`PoissonOLMC` improves on, and its special case ``K = 1``; a baseline.  It is
    *unadjusted*: nothing is accepted or rejected, and the draws follow a law that is off the posterior.

    *Dynamics*: :math:`du = -\nabla F(u)\,dt + \sqrt 2\,dB` in whitened coordinates (see ``scaling``), with :math:`F`
    minus the log posterior density.  A step of length :math:`\alpha` = ``step_size`` is [1]_

    .. math:: u' = u - \alpha \nabla F(u) + \sqrt{2 \alpha}\,W, \qquad W \sim N(0, I).

    *Cost*: 1 gradient a step; 17 arrays of length :math:`d` a chain, and 6 for each draw computed ahead (at most 256).

    *Bias*: order 1 in :math:`\alpha`.  On Gaussians of curvature :math:`L` the variance is too large by the factor
    :math:`1 / (1 - \alpha L / 2)`, and the chain explodes from :math:`\alpha L = 2` on.

    Parameters
    ----------
    vars
        Variables to sample, random or value variables of the model; default all continuous ones.  Discrete ones get a
        sampler of PyMC's own.
    step_size
        :math:`\alpha`, a time: the noise of a step spreads by ``sqrt(2 * step_size)`` whitened units.  "auto"
        (default): found in warm-up, the largest whose exact variance error on the Gaussian of the posterior's steepest
        curvature is ``target_bias``.
    steps_per_draw
        Transitions for each recorded draw.  "auto" (default): the smallest number at which every coordinate's lag-one
        autocorrelation in warm-up is below about 0.5, at most 64.
    scaling
        One positive number for each unconstrained coordinate, about its posterior standard deviation: the unit of
        everything else.  "auto" (default): found in warm-up; with ``tune=0`` it is 1.
    target_bias
        The bias that an automatic step size may cause, as a relative error of a variance: at most this on the Gaussian
        of the posterior's steepest curvature.  Default 0.05, which is 2.5% of a standard deviation; between 0.0001 and
        0.5.  In more than 8 coordinates it is :math:`\sqrt{8/d}` times that.  The statistic ``halving_cost`` says
        what half of it would cost.
    reparametrise
        "auto" (default): children of a hierarchical model are sampled non-centred, each element as far as the draws of
        warm-up ask for, about the parents that the model's graph names; draws are in the model's own parameters all
        the same.  False: the model is sampled as written.  A dict such as ``{"theta": "centred", "b": "noncentred"}``:
        so for these variables, and the others as by default.  See also :func:`pmm_mcmc.noncentring`.
    keep_gradients
        Store the gradient and the unconstrained position of every draw in ``sample_stats`` (default), for
        :func:`pmm_mcmc.summary`: two numbers more for each draw and coordinate.  Only where all variables are moved.
    model, blocked, rng
        As for PyMC's own step methods: the model of the enclosing ``with`` by default; True (all variables move
        together); a seed, which ``pm.sample(random_seed=...)`` replaces.

    Raises
    ------
    ValueError
        For an argument, variable or model that cannot work, with its name and the remedy; in ``pm.sample``, for
        ``tune=0`` without ``step_size``.
    SamplingError
        In ``pm.sample``, where the log density or its gradient is not finite at the initial point.

    References
    ----------
    .. [1] S. Kandasamy and D. Nagaraj, "The Poisson Midpoint Method for Langevin Dynamics: Provably Efficient
       Discretization for Diffusion Models", NeurIPS 2024, arXiv:2405.17068.
       Equations 1 and 2.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     step = pmm.OLMC(steps_per_draw=5)
    ...     dt = pm.sample(100, tune=100, chains=2, step=step, progressbar=False)
    >>> dt["posterior"]["x"].shape
    (2, 100, 3)
    >>> (dt["sample_stats"]["n_grad"] == 5).all().item()
    True
    """

    name = "olmc"
    stats_dtypes_shapes = WITHOUT_FRICTION

    def __init__(
        self,
        vars: Any = None,
        *,
        step_size: float | str = "auto",
        steps_per_draw: int | str = "auto",
        scaling: Any = "auto",
        target_bias: float = 0.05,
        reparametrise: Any = "auto",
        keep_gradients: bool = True,
        model: pm.Model | None = None,
        blocked: bool = True,
        rng: Any = None,
    ):
        settings = MethodArguments.checked(
            "OLMC",
            dynamics="overdamped",
            step_size=step_size,
            steps_per_draw=steps_per_draw,
            scaling=scaling,
            target_bias=target_bias,
            reparametrise=reparametrise,
        )
        super().__init__(vars, settings, keep_gradients=keep_gradients, model=model, blocked=blocked, rng=rng)

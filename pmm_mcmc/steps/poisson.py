"""The Poisson midpoint method as PyMC step methods."""

from __future__ import annotations

from typing import Any

import pymc as pm

from pmm_mcmc.engines.settings import MethodArguments
from pmm_mcmc.steps.base import LangevinStep
from pmm_mcmc.steps.statistics import WITHOUT_FRICTION

__all__ = ["PoissonOLMC", "PoissonULMC"]


class PoissonULMC(LangevinStep):
    r"""Poisson midpoint method on underdamped Langevin dynamics: unadjusted, one or two gradients a step.

    With ``K`` it is the method of the paper; without, the recycled scheme, which reaches the same error with fewer
    gradients (see ``scheme``).  What follows is of the paper's.  A step looks at the gradient at its start and at a
    random time within it, and so has about the bias of Langevin Monte Carlo (:class:`ULMC`) with a step ``K`` times
    smaller.  It is *unadjusted*: nothing is accepted or rejected, and the draws follow a law that is a little off the
    posterior.

    *Dynamics*: with position :math:`u`, velocity :math:`v`, potential :math:`F` (minus the log posterior density) and
    :math:`\gamma` = ``friction``, in whitened coordinates (see ``scaling``),

    .. math:: du = v\,dt, \qquad dv = -\gamma v\,dt - \nabla F(u)\,dt + \sqrt{2 \gamma}\,dB.

    For :math:`X = (u, v)`, :math:`b(X) = -\nabla F(u)` and the exact flow :math:`A_h, G_h, \Gamma_h` of the linear part
    (:mod:`pmm_mcmc.langevin.flows`), a step of length :math:`\alpha` = ``step_size`` with :math:`K` = ``K`` cells is
    [1]_

    .. math::

       \hat X_i &= A_{s_i} X + G_{s_i} b(X) + M_{s_i}, \\
       X' &= A_\alpha X + G_\alpha b(X) + M_\alpha
             + K \sum_{i \in I} A_{(K-1-i) \alpha / K} G_{\alpha / K} (b(\hat X_i) - b(X)),

    with the path :math:`M_s \sim N(0, \Gamma_s^2)` of the noise, midpoints :math:`s_i = i \alpha / K` (``grid="left"``)
    or :math:`(i + 1/2) \alpha / K` ("centred"), and a random set :math:`I` of cells (``option``).

    *Cost*: :math:`2 - 1/K` gradients a step on the left grid (in the mean, under either option), 2 on the centred one,
    1 for ``scheme="recycled"``.  17 arrays of length :math:`d` a chain, whatever ``K`` is, and 6 for each draw computed
    ahead (at most 256).

    *Bias*: for Option 1, :math:`L`-Lipschitz gradients, :math:`\gamma > C \sqrt L`, small :math:`\alpha \gamma` and
    about :math:`1/\alpha` steps, the law of the chain is within :math:`O(\alpha^4)` (KL divergence, :math:`K \sim
    1/\alpha`) of that of ULMC with step :math:`\alpha / K` [1]_ (Theorem 3).  On Gaussians, exactly: order 1 in
    :math:`\alpha` on the left grid at fixed ``K``, with a relative error of a variance near :math:`\alpha L / (2 \gamma
    K)`; as ``K`` grows, order 5 for Option 2; order 2 for either option with :math:`K \sim 1/\alpha`.

    Parameters
    ----------
    vars
        Variables to sample, random or value variables of the model; default all continuous ones.  Discrete ones get a
        sampler of PyMC's own.
    K
        Number of cells of a step.  "auto" (default): the power of two between 16 and 4096 from which on the bias of the
        grid is small beside that of the step.  K costs no gradients.  The recycled scheme has none.
    step_size
        :math:`\alpha`, a time: at unit velocity a step moves by ``step_size`` whitened units.  "auto" (default): found
        in warm-up, the largest whose exact variance error on the Gaussian of the posterior's steepest curvature is
        ``target_bias``.
    friction
        :math:`\gamma`, in whitened units.  "auto" (default) is 1, which suits a whitened posterior, or less
        where a trial in warm-up says so.
    option
        2 (default): exactly one cell is looked at.  1: each cell with probability :math:`1/K` by itself, as in the
        paper's theorems; more variable, less stable.
    grid
        "left" (default), the paper's; "centred", not in the paper, has next to no bias from the grid from K = 4 on.
    midpoint
        "uniform" (default): the one cell of Option 2 is any with the same probability, as in the paper.  "importance",
        **which is not in the paper**: late cells more often, :math:`q_i = ((i+1)/K)^{5/4} - (i/K)^{5/4}`, with
        :math:`1/q_i` in place of ``K`` in the correction.  The mean stays as it is and variance falls: steps are a
        fifth to a half longer at the same ``target_bias``, except where that is below 0.005 or there are a thousand
        coordinates.
    scheme
        "paper", or "recycled", **which is not in the paper**: one midpoint uniform in :math:`(0, \alpha)`,
        the correction taken against the gradient at the previous midpoint, and the linear part :math:`-u` of the drift
        integrated exactly.  One gradient a step, exact on a whitened Gaussian; the draws are the midpoints.  "auto"
        (default): "paper" where ``K``, ``option``, ``grid`` or ``midpoint`` is given, and where other steps move some
        of the variables, given which the recycled scheme takes two gradients more; else "recycled", which took 1.5 to
        3.6 times fewer gradients on all ten targets of the documentation's comparison.
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

    Notes
    -----
    The printed algorithm has errors, corrected here: see the errata page of the documentation.  The automatic step of
    ``scheme="recycled"`` allows ``target_bias`` at both ends of the curvatures met in warm-up.

    References
    ----------
    .. [1] S. Kandasamy and D. Nagaraj, "The Poisson Midpoint Method for Langevin Dynamics: Provably Efficient
       Discretization for Diffusion Models", NeurIPS 2024, arXiv:2405.17068.
       Equations 7 to 9; Theorems 1 and 3.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     step = pmm.PoissonULMC(K=16)
    ...     dt = pm.sample(100, tune=100, chains=2, step=step, progressbar=False)
    >>> dt["posterior"]["x"].shape
    (2, 100, 3)
    >>> dt["sample_stats"]["K"].values.max().item()
    16
    """

    name = "poisson_ulmc"

    def __init__(
        self,
        vars: Any = None,
        *,
        K: int | str = "auto",
        step_size: float | str = "auto",
        friction: float | str = "auto",
        option: int = 2,
        grid: str = "left",
        scheme: str = "auto",
        midpoint: str = "uniform",
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
            "PoissonULMC",
            dynamics="underdamped",
            K=K,
            step_size=step_size,
            friction=friction,
            option=option,
            grid=grid,
            scheme=scheme,
            midpoint=midpoint,
            steps_per_draw=steps_per_draw,
            scaling=scaling,
            target_bias=target_bias,
            reparametrise=reparametrise,
        )
        super().__init__(vars, settings, keep_gradients=keep_gradients, model=model, blocked=blocked, rng=rng)


class PoissonOLMC(LangevinStep):
    r"""Poisson midpoint method on overdamped Langevin dynamics: unadjusted, two gradients a step.

    A step looks at the gradient at its start and at a random time within it, and so has about the bias of Langevin
    Monte Carlo (:class:`OLMC`) with a step ``K`` times smaller.  It is *unadjusted*: nothing is accepted or rejected,
    and the draws follow a law that is a little off the posterior.

    *Dynamics*: :math:`du = -\nabla F(u)\,dt + \sqrt 2\,dB` in whitened coordinates (see ``scaling``), with :math:`F`
    minus the log posterior density.  A step of length :math:`\alpha` = ``step_size`` with :math:`K` = ``K`` cells and
    :math:`b = -\nabla F` is [1]_

    .. math::

       \hat u_i &= u + s_i b(u) + M_{s_i}, \\
       u' &= u + \alpha b(u) + M_\alpha + \alpha \sum_{i \in I} (b(\hat u_i) - b(u)),

    with :math:`M` a Brownian path of variance :math:`2 s` at time :math:`s`, midpoints :math:`s_i = i \alpha / K`
    (``grid="left"``) or :math:`(i + 1/2) \alpha / K` ("centred"), and a random set :math:`I` of cells (``option``).

    *Cost*: :math:`2 - 1/K` gradients a step on the left grid (in the mean, under either option), 2 on the centred one.
    17 arrays of length :math:`d` a chain, whatever ``K`` is, and 6 for each draw computed ahead (at most 256).

    *Bias*: for Option 1, :math:`L`-Lipschitz gradients, small :math:`\alpha L` and about :math:`1/\alpha` steps, the
    law of the chain is within :math:`O(\alpha^2)` (KL divergence, :math:`K \sim 1/\alpha`) of that of OLMC with step
    :math:`\alpha / K` [1]_ (Theorem 2).  Measured: order 1 in :math:`\alpha` on the left grid at fixed ``K``, with a
    relative error of a variance near :math:`\alpha L / (2 K)`; as ``K`` grows, order 2 (Option 2 on Gaussians: 3).

    Parameters
    ----------
    vars
        Variables to sample, random or value variables of the model; default all continuous ones.  Discrete ones get a
        sampler of PyMC's own.
    K
        Number of cells of a step.  "auto" (default): the power of two between 16 and 4096 from which on the bias of the
        grid is small beside that of the step.  K costs no gradients.
    step_size
        :math:`\alpha`, a time: the noise of a step spreads by ``sqrt(2 * step_size)`` whitened units.  "auto"
        (default): found in warm-up, the largest whose exact variance error on the Gaussian of the posterior's steepest
        curvature is ``target_bias``.
    option
        2 (default): exactly one cell is looked at.  1: each cell with probability :math:`1/K` by itself, as in the
        paper's theorems; more variable, less stable.
    grid
        "left" (default), the paper's; "centred", not in the paper, has next to no bias from the grid from K = 4 on.
    midpoint
        "uniform" (default): the one cell of Option 2 is any with the same probability, as in the paper.  "importance",
        **which is not in the paper**: late cells more often, :math:`q_i = ((i+1)/K)^{5/4} - (i/K)^{5/4}`, with
        :math:`1/q_i` in place of ``K`` in the correction.  The mean stays as it is and variance falls: steps are a
        fifth to a half longer at the same ``target_bias``, except where that is below 0.005 or there are a thousand
        coordinates.
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

    Notes
    -----
    The printed algorithm has errors, corrected here: see the errata page of the documentation.

    References
    ----------
    .. [1] S. Kandasamy and D. Nagaraj, "The Poisson Midpoint Method for Langevin Dynamics: Provably Efficient
       Discretization for Diffusion Models", NeurIPS 2024, arXiv:2405.17068.
       Equations 7 to 9; Theorems 1 and 2.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     step = pmm.PoissonOLMC(grid="centred", steps_per_draw=3)
    ...     dt = pm.sample(100, tune=100, chains=2, step=step, progressbar=False)
    >>> dt["posterior"]["x"].shape
    (2, 100, 3)
    >>> (dt["sample_stats"]["n_grad"] == 6).all().item()
    True
    """

    name = "poisson_olmc"
    stats_dtypes_shapes = WITHOUT_FRICTION

    def __init__(
        self,
        vars: Any = None,
        *,
        K: int | str = "auto",
        step_size: float | str = "auto",
        option: int = 2,
        grid: str = "left",
        midpoint: str = "uniform",
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
            "PoissonOLMC",
            dynamics="overdamped",
            K=K,
            step_size=step_size,
            option=option,
            grid=grid,
            midpoint=midpoint,
            steps_per_draw=steps_per_draw,
            scaling=scaling,
            target_bias=target_bias,
            reparametrise=reparametrise,
        )
        super().__init__(vars, settings, keep_gradients=keep_gradients, model=model, blocked=blocked, rng=rng)

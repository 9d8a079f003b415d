"""The methods as PyMC steps: arguments and what they mean.

A line ``<name>`` in a docstring stands for the text of that name, which several methods share.
"""

from __future__ import annotations

import re

import pymc as pm

from pmm_mcmc.engines.arguments import MethodArguments, Reparametrise, Scaling
from pmm_mcmc.steps.pymc_step import LangevinStep, Rng, Vars
from pmm_mcmc.steps.statistics import ADJUSTED_STATISTICS, ADJUSTED_WITHOUT_FRICTION, WITHOUT_FRICTION

_TEXTS = {
    "underdamped": r"""
    *Dynamics*: with position :math:`u`, velocity :math:`v`, potential :math:`F` (minus the log posterior density) and
    :math:`\gamma` = ``friction``, in whitened coordinates (see ``scaling``),

    .. math:: du = v\,dt, \qquad dv = -\gamma v\,dt - \nabla F(u)\,dt + \sqrt{2 \gamma}\,dB.
""",
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
    "of_all": r"""
    steps_per_draw
        Number of transitions for each recorded draw.  "auto" (default): the smallest number for which the lag-one
        autocorrelation of every coordinate, and of its square, in warm-up is below about 0.5, at most 64.
    scaling
        Preconditioner: one positive number for each unconstrained coordinate, about its posterior standard deviation.
        Step size and friction are relative to it.  "auto" (default): learnt in warm-up; 1 with ``tune=0``.
    reparametrise
        "auto" (default): the children of a hierarchical model are sampled non-centred.  The degree is learnt in warm-up
        for each element, the parents are read from the model's graph, and draws are in the model's own parameters.
        False: the model is sampled as written.  A dict such as ``{"theta": "centred", "b": "noncentred"}`` decides for
        the named variables; others are "auto".  ``"integrated"``, in ``pmm.sample`` alone, integrates normal variables
        out and draws them back.  See also :func:`pmm_mcmc.noncentring`.
    keep_gradients
        Store gradient and unconstrained position of every draw in ``sample_stats`` (default), for
        :func:`pmm_mcmc.summary`: two more numbers for each draw and coordinate.  It has an effect only if the step
        moves all continuous variables.
    model, blocked, rng
        As for PyMC's own step methods: the model, by default that of the enclosing ``with``; True, since all variables
        move together; a seed, which ``pm.sample(random_seed=...)`` replaces.

    Raises
    ------
    ValueError
        For an invalid argument, variable or model; the message has its name, value and the remedy.  In ``pm.sample``
        also for ``tune=0`` without ``step_size``.
    SamplingError
        In ``pm.sample``, if the log density or its gradient is not finite at the initial point.
""",
    "of_unadjusted": r"""
    target_bias
        Largest bias of an automatic step size: a relative error of the variance, on a Gaussian with the posterior's
        steepest curvature.  Default 0.05, which is 2.5% of a standard deviation; between 0.0001 and 0.5.  In more than
        8 coordinates it is multiplied by :math:`\sqrt{8/d}`.
    <of_all>
""",
    "paper": """
    .. [1] S. Kandasamy and D. Nagaraj, "The Poisson Midpoint Method for Langevin Dynamics: Provably Efficient
       Discretization for Diffusion Models", NeurIPS 2024, arXiv:2405.17068.
""",
}


def _documented[Class: type](cls: Class) -> Class:
    """Insert the shared texts into the docstring of a class."""
    text = cls.__doc__ or ""
    while placeholder := re.search(r"(?m)^ {4}<(\w+)>$", text):
        text = text.replace(placeholder[0], _TEXTS[placeholder[1]].strip("\n"))
    cls.__doc__ = text
    return cls


@_documented
class PoissonULMC(LangevinStep):
    r"""Poisson midpoint method on underdamped Langevin dynamics: unadjusted, one or two gradients a step.

    With ``K`` it is the method of the paper; without, the recycled scheme, which reaches the same error with fewer
    gradients (see ``scheme``).  The following describes the paper's method.  A step evaluates the gradient at its start
    and at a random time within it, and has about the bias of Langevin Monte Carlo (:class:`ULMC`) with a step ``K``
    times smaller.  It is *unadjusted*: there is no Metropolis test, and the law of the draws differs slightly from the
    posterior.

    <underdamped>

    For :math:`X = (u, v)`, :math:`b(X) = -\nabla F(u)` and the exact flow :math:`A_h, G_h, \Gamma_h` of the linear part
    (``pmm_mcmc.langevin.flows``), a step of length :math:`\alpha` = ``step_size`` with :math:`K` = ``K`` cells is
    [1]_

    .. math::

       \hat X_i &= A_{s_i} X + G_{s_i} b(X) + M_{s_i}, \\
       X' &= A_\alpha X + G_\alpha b(X) + M_\alpha
             + K \sum_{i \in I} A_{(K-1-i) \alpha / K} G_{\alpha / K} (b(\hat X_i) - b(X)),

    with the path :math:`M_s \sim N(0, \Gamma_s^2)` of the noise, midpoints :math:`s_i = i \alpha / K` (``grid="left"``)
    or :math:`(i + 1/2) \alpha / K` ("centred"), and a random set :math:`I` of cells (``option``).

    *Cost*: :math:`2 - 1/K` gradients a step on the left grid (in the mean, under either option), 2 on the centred one,
    1 for ``scheme="recycled"``.  ``pm.sample`` runs it on CPUs; on a GPU thousands of chains take it by
    ``pmm.sample(step=pmm.PoissonULMC(K=16), backend="jax")``.

    *Bias*: for Option 1, :math:`L`-Lipschitz gradients, :math:`\gamma > C \sqrt L`, small :math:`\alpha \gamma` and
    about :math:`1/\alpha` steps, the law of the chain is within :math:`O(\alpha^4)` (KL divergence, :math:`K \sim
    1/\alpha`) of that of ULMC with step :math:`\alpha / K` [1]_ (Theorem 3).  On Gaussians, exactly: order 1 in
    :math:`\alpha` on the left grid at fixed ``K``, with a relative error of a variance near :math:`\alpha L / (2 \gamma
    K)`; as ``K`` grows, order 5 for Option 2; order 2 for either option with :math:`K \sim 1/\alpha`.

    Parameters
    ----------
    <vars>
    <K>
    <step_size>
    <friction>
    <option>
    <grid>
    <midpoint>
    scheme
        "paper", or "recycled", **which is not in the paper**: one midpoint uniform in :math:`(0, \alpha)`,
        the correction relative to the gradient at the previous midpoint, and the linear part :math:`-u` of the drift
        integrated exactly.  One gradient a step, no ``K``, exact on a whitened Gaussian; the draws are the midpoints.
        "auto" (default): "paper" if ``K``, ``option``, ``grid`` or ``midpoint`` is given, and beside steps that move
        other variables, where the recycled scheme needs two more gradients; otherwise "recycled", which needed 1.5 to
        3.6 times fewer gradients on all ten targets of the documentation's comparison.
    <of_unadjusted>

    Notes
    -----
    The printed algorithm has errors, corrected here: see the errata page of the documentation.  The automatic step of
    ``scheme="recycled"`` keeps to ``target_bias`` at the smallest and at the largest curvature met in warm-up.

    References
    ----------
    <paper>
       Equations 7 to 9; Theorems 1 and 3.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     dt = pm.sample(100, tune=100, chains=2, step=pmm.PoissonULMC(K=16), progressbar=False)
    >>> dt["sample_stats"]["K"].values.max().item()
    16
    """

    name = "poisson_ulmc"

    def __init__(
        self, vars: Vars = None, *, K: int | str = "auto", step_size: float | str = "auto",
        friction: float | str = "auto", option: int = 2, grid: str = "auto", scheme: str = "auto",
        midpoint: str = "uniform", steps_per_draw: int | str = "auto", scaling: Scaling = "auto",
        target_bias: float = 0.05, reparametrise: Reparametrise = "auto", keep_gradients: bool = True,
        model: pm.Model | None = None, blocked: bool = True, rng: Rng = None,
    ):  # fmt: skip
        arguments = MethodArguments.checked(
            "PoissonULMC", K=K, step_size=step_size, friction=friction, option=option, grid=grid, scheme=scheme,
            midpoint=midpoint, steps_per_draw=steps_per_draw, scaling=scaling, target_bias=target_bias,
            reparametrise=reparametrise,
        )  # fmt: skip
        super().__init__(arguments, vars, keep_gradients, model, blocked, rng)


@_documented
class PoissonOLMC(LangevinStep):
    r"""Poisson midpoint method on overdamped Langevin dynamics: unadjusted, two gradients a step.

    A step evaluates the gradient at its start and at a random time within it, and has about the bias of Langevin
    Monte Carlo (:class:`OLMC`) with a step ``K`` times smaller.  It is *unadjusted*: there is no Metropolis test, and
    the law of the draws differs slightly from the posterior.

    *Dynamics*: :math:`du = -\nabla F(u)\,dt + \sqrt 2\,dB` in whitened coordinates (see ``scaling``), with :math:`F`
    minus the log posterior density.  A step of length :math:`\alpha` = ``step_size`` with :math:`K` = ``K`` cells and
    :math:`b = -\nabla F` is [1]_

    .. math::

       \hat u_i &= u + s_i b(u) + M_{s_i}, \\
       u' &= u + \alpha b(u) + M_\alpha + \alpha \sum_{i \in I} (b(\hat u_i) - b(u)),

    with :math:`M` a Brownian path of variance :math:`2 s` at time :math:`s`, midpoints :math:`s_i = i \alpha / K`
    (``grid="left"``) or :math:`(i + 1/2) \alpha / K` ("centred"), and a random set :math:`I` of cells (``option``).

    *Cost*: :math:`2 - 1/K` gradients a step on the left grid (in the mean, under either option), 2 on the centred one.

    *Bias*: for Option 1, :math:`L`-Lipschitz gradients, small :math:`\alpha L` and about :math:`1/\alpha` steps, the
    law of the chain is within :math:`O(\alpha^2)` (KL divergence, :math:`K \sim 1/\alpha`) of that of OLMC with step
    :math:`\alpha / K` [1]_ (Theorem 2).  Measured: order 1 in :math:`\alpha` on the left grid at fixed ``K``, with a
    relative error of a variance near :math:`\alpha L / (2 K)`; as ``K`` grows, order 2 (Option 2 on Gaussians: 3).

    Parameters
    ----------
    <vars>
    <K>
    <step_size>
    <option>
    <grid>
    <midpoint>
    <of_unadjusted>

    Notes
    -----
    The printed algorithm has errors, corrected here: see the errata page of the documentation.

    References
    ----------
    <paper>
       Equations 7 to 9; Theorems 1 and 2.
    """

    name = "poisson_olmc"
    statistics = WITHOUT_FRICTION

    def __init__(
        self, vars: Vars = None, *, K: int | str = "auto", step_size: float | str = "auto", option: int = 2,
        grid: str = "auto", midpoint: str = "uniform", steps_per_draw: int | str = "auto", scaling: Scaling = "auto",
        target_bias: float = 0.05, reparametrise: Reparametrise = "auto", keep_gradients: bool = True,
        model: pm.Model | None = None, blocked: bool = True, rng: Rng = None,
    ):  # fmt: skip
        arguments = MethodArguments.checked(
            "PoissonOLMC", K=K, step_size=step_size, option=option, grid=grid, midpoint=midpoint,
            steps_per_draw=steps_per_draw, scaling=scaling, target_bias=target_bias, reparametrise=reparametrise,
        )  # fmt: skip
        super().__init__(arguments, vars, keep_gradients, model, blocked, rng)


@_documented
class ULMC(LangevinStep):
    r"""Underdamped Langevin Monte Carlo (exponential integrator): unadjusted, one gradient a step.

    A baseline: the plain discretisation that :class:`PoissonULMC` improves on, and its special case ``K = 1``.  It is
    *unadjusted*: there is no Metropolis test, and the law of the draws differs from the posterior.

    <underdamped>

    A step of length :math:`\alpha` = ``step_size`` solves it exactly with the gradient frozen at its start [1]_,

    .. math:: X' = A_\alpha X + G_\alpha b(X) + \Gamma_\alpha W, \qquad W \sim N(0, I),

    where :math:`X = (u, v)`, :math:`b(X) = -\nabla F(u)`, and :math:`A_h, G_h, \Gamma_h` is the exact flow of the
    linear part (``pmm_mcmc.langevin.flows``).

    *Cost*: 1 gradient a step.  *Bias*: order 1 in :math:`\alpha`; on Gaussians of curvature :math:`L` the relative
    error of a variance is near :math:`\alpha L / (2 \gamma)`.

    Parameters
    ----------
    <vars>
    <step_size>
    <friction>
    <of_unadjusted>

    References
    ----------
    <paper>
       Equation 1 with the matrices of section 2.
    """

    name = "ulmc"

    def __init__(
        self, vars: Vars = None, *, step_size: float | str = "auto", friction: float | str = "auto",
        steps_per_draw: int | str = "auto", scaling: Scaling = "auto", target_bias: float = 0.05,
        reparametrise: Reparametrise = "auto", keep_gradients: bool = True, model: pm.Model | None = None,
        blocked: bool = True, rng: Rng = None,
    ):  # fmt: skip
        arguments = MethodArguments.checked(
            "ULMC", step_size=step_size, friction=friction, steps_per_draw=steps_per_draw, scaling=scaling,
            target_bias=target_bias, reparametrise=reparametrise,
        )  # fmt: skip
        super().__init__(arguments, vars, keep_gradients, model, blocked, rng)


@_documented
class OLMC(LangevinStep):
    r"""Overdamped Langevin Monte Carlo (Euler-Maruyama): unadjusted, one gradient a step.

    A baseline: the plain discretisation that :class:`PoissonOLMC` improves on, and its special case ``K = 1``.  It is
    *unadjusted*: there is no Metropolis test, and the law of the draws differs from the posterior.

    *Dynamics*: :math:`du = -\nabla F(u)\,dt + \sqrt 2\,dB` in whitened coordinates (see ``scaling``), with :math:`F`
    minus the log posterior density.  A step of length :math:`\alpha` = ``step_size`` is [1]_

    .. math:: u' = u - \alpha \nabla F(u) + \sqrt{2 \alpha}\,W, \qquad W \sim N(0, I).

    *Cost*: 1 gradient a step.  *Bias*: order 1 in :math:`\alpha`.  On Gaussians of curvature :math:`L` the variance
    is too large by the factor :math:`1 / (1 - \alpha L / 2)`, and the chain diverges for :math:`\alpha L \ge 2`.

    Parameters
    ----------
    <vars>
    <step_size>
    <of_unadjusted>

    References
    ----------
    <paper>
       Equations 1 and 2.
    """

    name = "olmc"
    statistics = WITHOUT_FRICTION

    def __init__(
        self, vars: Vars = None, *, step_size: float | str = "auto", steps_per_draw: int | str = "auto",
        scaling: Scaling = "auto", target_bias: float = 0.05, reparametrise: Reparametrise = "auto",
        keep_gradients: bool = True, model: pm.Model | None = None, blocked: bool = True, rng: Rng = None,
    ):  # fmt: skip
        arguments = MethodArguments.checked(
            "OLMC", step_size=step_size, steps_per_draw=steps_per_draw, scaling=scaling, target_bias=target_bias,
            reparametrise=reparametrise,
        )  # fmt: skip
        super().__init__(arguments, vars, keep_gradients, model, blocked, rng)


@_documented
class RLMC(LangevinStep):
    r"""Randomised midpoint Langevin Monte Carlo: unadjusted, two gradients a step.

    A step replaces the gradient at its start by that at a uniformly random time within it, where the position comes
    from a cheap interpolation.  It is *unadjusted*: there is no Metropolis test, and the law of the draws differs
    slightly from the posterior.

    *Dynamics*: those of :class:`ULMC` (``dynamics="underdamped"``) or :class:`OLMC` ("overdamped"), in whitened
    coordinates (see ``scaling``).  With :math:`\alpha` = ``step_size``, :math:`s` uniform in :math:`(0, \alpha)` and
    the exact flow :math:`A_h, G_h, \Gamma_h` of the linear part (``pmm_mcmc.langevin.flows``; :math:`\gamma` =
    ``friction``), a step is

    .. math::

       \hat X &= A_s X + G_s b(X) + M_s, \\
       X' &= A_\alpha X + M_\alpha + \alpha A_{\alpha - s} G'_0\, b(\hat X),

    with :math:`b = -\nabla F`, the path :math:`M_s \sim N(0, \Gamma_s^2)` of the noise and :math:`G'_0` the direction
    of the drift: on the velocity [1]_ or, overdamped, on the position: :math:`u' = u + \alpha b(\hat u) + M_\alpha`
    [2]_.

    *Cost*: 2 gradients a step.  *Bias*: for strongly log-concave posteriors with Lipschitz gradients
    :math:`O(\alpha^{3/2})` in Wasserstein distance is proved for the underdamped form [1]_.  Measured in variances:
    order 3 (underdamped); order 2, and 3 on Gaussians (overdamped, where the method is :class:`PoissonOLMC` with
    many cells).

    Parameters
    ----------
    <vars>
    dynamics
        "underdamped" (default) or "overdamped", which has no friction.
    <step_size>
    <friction>
    <of_unadjusted>

    Notes
    -----
    The two noise terms of the overdamped form sum to :math:`N(0, 2 \alpha I)`; the text of [2]_ has :math:`N(0, I)`,
    see the errata page of the documentation.

    References
    ----------
    .. [1] R. Shen and Y. T. Lee, "The Randomized Midpoint Method for Log-Concave Sampling", NeurIPS 2019,
       arXiv:1909.05503.
    .. [2] S. Kandasamy and D. Nagaraj, "The Poisson Midpoint Method for Langevin Dynamics: Provably Efficient
       Discretization for Diffusion Models", NeurIPS 2024, arXiv:2405.17068.
       Section "Technical Notes".
    """

    name = "rlmc"

    def __init__(
        self, vars: Vars = None, *, dynamics: str = "underdamped", step_size: float | str = "auto",
        friction: float | str = "auto", steps_per_draw: int | str = "auto", scaling: Scaling = "auto",
        target_bias: float = 0.05, reparametrise: Reparametrise = "auto", keep_gradients: bool = True,
        model: pm.Model | None = None, blocked: bool = True, rng: Rng = None,
    ):  # fmt: skip
        if dynamics == "overdamped" and friction != "auto":
            raise ValueError(
                f"friction={friction!r} does not apply to dynamics='overdamped', which has no velocity: leave it out"
            )
        arguments = MethodArguments.checked(
            "RLMC", dynamics=dynamics, step_size=step_size, friction=friction, steps_per_draw=steps_per_draw,
            scaling=scaling, target_bias=target_bias, reparametrise=reparametrise,
        )  # fmt: skip
        super().__init__(arguments, vars, keep_gradients, model, blocked, rng)


@_documented
class GHMC(LangevinStep):
    r"""Generalised Hamiltonian Monte Carlo: Metropolis-adjusted Langevin dynamics, one gradient a step.

    The kernel of the draws of :func:`pmm_mcmc.sample`.  It is *adjusted*: the stationary law is the posterior itself.

    *Dynamics*: :math:`du = v\,dt,\ dv = -(\gamma v + \nabla F(u))\,dt + \sqrt{2 \gamma}\,dB` in whitened coordinates
    (see ``scaling``), with :math:`F` minus the log posterior density and :math:`\gamma` = ``friction``.  A step of
    length :math:`h` = ``step_size`` refreshes the velocity [1]_,

    .. math:: v \leftarrow e^{-\gamma h} v + \sqrt{1 - e^{-2 \gamma h}}\,W,

    and proposes :math:`(u', v')` by half a kick :math:`v + \tfrac h2 (u - \nabla F(u))`, a rotation of :math:`(u, v)`
    by the angle :math:`h`, and half a kick there.  With the ratio :math:`r = e^{-F(u') - |v'|^2/2 + F(u) + |v|^2/2}`
    and a number :math:`s \in [-1, 1)` that stays with the chain, the proposal is accepted if :math:`|s| < r`, and then
    :math:`s \leftarrow s / r`; else :math:`v \leftarrow -v`.  Before each test :math:`s` moves on by 0.1, round the
    interval, so that rejections come in clusters and the chain moves on along one path between them [2]_.

    *Cost*: 1 gradient a step, with its log density.  *Bias*: none in the stationary law, for any ``step_size``.

    Parameters
    ----------
    <vars>
    step_size
        :math:`h`, a time: on a posterior that ``scaling`` whitens, an angle.  "auto" (default): adapted in warm-up
        towards an acceptance rate of 0.9.
    friction
        :math:`\gamma`, the rate at which the velocity is forgotten.  "auto" (default): :math:`0.5 + h / 4`.
    <of_all>

    Notes
    -----
    A proposal with a ratio far below :math:`|s|` is taken again along the same time in 4 steps, then in 16 (delayed
    rejection [3]_); where even these are not finite, or their ratio is below :math:`e^{-10}`, the statistic
    ``diverging`` counts it.

    References
    ----------
    .. [1] A. M. Horowitz, "A generalized guided Monte Carlo algorithm", Physics Letters B 268 (1991) 247-252.
    .. [2] R. M. Neal, "Non-reversibly updating a uniform [0,1] value for Metropolis accept/reject decisions",
       arXiv:2001.11950 (2020).
    .. [3] C. Modi, A. Barnett and B. Carpenter, "Delayed rejection Hamiltonian Monte Carlo for sampling multiscale
       distributions", Bayesian Analysis 19 (2024).

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     dt = pm.sample(100, tune=100, chains=2, step=pmm.GHMC(steps_per_draw=2), progressbar=False)
    >>> (dt["sample_stats"]["acceptance_rate"] <= 1).all().item()
    True
    """

    name = "ghmc"
    statistics = ADJUSTED_STATISTICS

    def __init__(
        self, vars: Vars = None, *, step_size: float | str = "auto", friction: float | str = "auto",
        steps_per_draw: int | str = "auto", scaling: Scaling = "auto", reparametrise: Reparametrise = "auto",
        keep_gradients: bool = True, model: pm.Model | None = None, blocked: bool = True, rng: Rng = None,
    ):  # fmt: skip
        arguments = MethodArguments.checked(
            "GHMC", step_size=step_size, friction=friction, steps_per_draw=steps_per_draw, scaling=scaling,
            reparametrise=reparametrise,
        )  # fmt: skip
        super().__init__(arguments, vars, keep_gradients, model, blocked, rng)


@_documented
class MALA(LangevinStep):
    r"""Metropolis-adjusted Langevin algorithm, one gradient a step: the baseline of adjusted Langevin sampling.

    A baseline, for which :class:`GHMC` is the better choice.  It is *adjusted*: the stationary law is the posterior.

    *Dynamics*: a step proposes, in whitened coordinates (see ``scaling``) with :math:`F` minus the log posterior
    density and :math:`h` = ``step_size``,

    .. math:: u' = u - \tfrac{h^2}{2} \nabla F(u) + h W, \qquad W \sim N(0, I),

    the Euler step over a time :math:`h^2/2` of :math:`du = -\nabla F(u)\,dt + \sqrt 2\,dB`, and accepts it with the
    probability of Metropolis and Hastings [1]_.  A rejected proposal is not tried again.

    *Cost*: 1 gradient a step, with its log density.  *Bias*: none in the stationary law, for any ``step_size``.

    Parameters
    ----------
    <vars>
    step_size
        :math:`h`, the standard deviation of the noise of a step.  "auto" (default): adapted in warm-up towards an
        acceptance rate of 0.574, the optimum for many independent coordinates [2]_, at most 1.5.
    <of_all>

    References
    ----------
    .. [1] G. O. Roberts and R. L. Tweedie, "Exponential convergence of Langevin distributions and their discrete
       approximations", Bernoulli 2 (1996).
    .. [2] G. O. Roberts and J. S. Rosenthal, "Optimal scaling of discrete approximations to Langevin diffusions",
       Journal of the Royal Statistical Society B 60 (1998).
    """

    name = "mala"
    statistics = ADJUSTED_WITHOUT_FRICTION

    def __init__(
        self, vars: Vars = None, *, step_size: float | str = "auto", steps_per_draw: int | str = "auto",
        scaling: Scaling = "auto", reparametrise: Reparametrise = "auto", keep_gradients: bool = True,
        model: pm.Model | None = None, blocked: bool = True, rng: Rng = None,
    ):  # fmt: skip
        arguments = MethodArguments.checked(
            "MALA", step_size=step_size, steps_per_draw=steps_per_draw, scaling=scaling, reparametrise=reparametrise,
        )  # fmt: skip
        super().__init__(arguments, vars, keep_gradients, model, blocked, rng)


BY_NAME = {step.__name__: step for step in (GHMC, MALA, OLMC, RLMC, ULMC, PoissonOLMC, PoissonULMC)}

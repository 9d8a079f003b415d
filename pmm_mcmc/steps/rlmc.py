"""The randomised midpoint method as a PyMC step method, a baseline."""

from __future__ import annotations

from typing import Any

import pymc as pm

from pmm_mcmc.engines.settings import MethodArguments
from pmm_mcmc.steps.base import LangevinStep

__all__ = ["RLMC"]


class RLMC(LangevinStep):
    r"""Randomised midpoint Langevin Monte Carlo: unadjusted, two gradients a step.

    A step replaces the gradient at its start by that at a uniformly random time within it, found with a cheap
    interpolation.  It is *unadjusted*: nothing is accepted or rejected, and the draws follow a law that is a little off
    the posterior.

    *Dynamics*: those of :class:`ULMC` (``dynamics="underdamped"``) or :class:`OLMC` ("overdamped"), in whitened
    coordinates (see ``scaling``).  With :math:`\alpha` = ``step_size``, :math:`s` uniform in :math:`(0, \alpha)` and
    the exact flow :math:`A_h, G_h, \Gamma_h` of the linear part (:mod:`pmm_mcmc.langevin.flows`; :math:`\gamma` =
    ``friction``), a step is

    .. math::

       \hat X &= A_s X + G_s b(X) + M_s, \\
       X' &= A_\alpha X + M_\alpha + \alpha A_{\alpha - s} G'_0\, b(\hat X),

    with :math:`b = -\nabla F`, the path :math:`M_s \sim N(0, \Gamma_s^2)` of the noise and :math:`G'_0` the direction
    of the drift: on the velocity [1]_ or, overdamped, on the position: :math:`u' = u + \alpha b(\hat u) + M_\alpha`
    [2]_.

    *Cost*: 2 gradients a step; 17 arrays of length :math:`d` a chain, and 6 for each draw computed ahead (at most 256).

    *Bias*: for strongly log-concave posteriors with Lipschitz gradients :math:`O(\alpha^{3/2})` in Wasserstein distance
    is proved for the underdamped form [1]_.  Measured in variances: order 3 (underdamped); order 2, on Gaussians 3
    (overdamped, where it is :class:`PoissonOLMC` with many cells).

    Parameters
    ----------
    vars
        Variables to sample, random or value variables of the model; default all continuous ones.  Discrete ones get a
        sampler of PyMC's own.
    dynamics
        "underdamped" (default) or "overdamped".
    step_size
        :math:`\alpha`, a time, in whitened units as for :class:`ULMC` or :class:`OLMC`.  "auto" (default): found in
        warm-up, the largest whose exact variance error on the Gaussian of the posterior's steepest curvature is about
        ``target_bias``.
    friction
        :math:`\gamma`, in whitened units.  "auto" (default) is 1, which suits a whitened posterior, or less
        where a trial in warm-up says so.  Not to be given where ``dynamics="overdamped"``.
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
    The two pieces of noise in the overdamped form sum to :math:`N(0, 2 \alpha I)`; the text of [2]_ says
    :math:`N(0, I)`, see the errata page of the documentation.

    References
    ----------
    .. [1] R. Shen and Y. T. Lee, "The Randomized Midpoint Method for Log-Concave Sampling", NeurIPS 2019,
       arXiv:1909.05503.
    .. [2] S. Kandasamy and D. Nagaraj, "The Poisson Midpoint Method for Langevin Dynamics: Provably Efficient
       Discretization for Diffusion Models", NeurIPS 2024, arXiv:2405.17068.
       Section "Technical Notes".

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     step = pmm.RLMC(dynamics="overdamped", steps_per_draw=5)
    ...     dt = pm.sample(100, tune=100, chains=2, step=step, progressbar=False)
    >>> dt["posterior"]["x"].shape
    (2, 100, 3)
    >>> (dt["sample_stats"]["n_grad"] == 10).all().item()
    True
    """

    name = "rlmc"

    def __init__(
        self,
        vars: Any = None,
        *,
        dynamics: str = "underdamped",
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
        if dynamics == "overdamped" and friction != "auto":
            raise ValueError(
                f"friction={friction!r} does not apply to dynamics='overdamped', which has no velocity: leave it out"
            )
        settings = MethodArguments.checked(
            "RLMC",
            dynamics=dynamics,
            step_size=step_size,
            friction=friction,
            steps_per_draw=steps_per_draw,
            scaling=scaling,
            target_bias=target_bias,
            reparametrise=reparametrise,
        )
        super().__init__(vars, settings, keep_gradients=keep_gradients, model=model, blocked=blocked, rng=rng)

"""The unadjusted baselines as PyMC step methods: Langevin Monte Carlo and the randomised midpoint method."""

from __future__ import annotations

from typing import Any

import pymc as pm

from pmm_mcmc.steps.base import LangevinStep
from pmm_mcmc.steps.shared_texts import documented
from pmm_mcmc.steps.statistics import WITHOUT_FRICTION

__all__ = ["OLMC", "RLMC", "ULMC"]


@documented
class ULMC(LangevinStep):
    r"""Underdamped Langevin Monte Carlo (exponential integrator): unadjusted, one gradient a step.

    A baseline: the plain discretisation that :class:`PoissonULMC` improves on, and its special case ``K = 1``.  It is
    *unadjusted*: there is no Metropolis test, and the law of the draws differs from the posterior.

    *Dynamics*: with position :math:`u`, velocity :math:`v`, potential :math:`F` (minus the log posterior density) and
    :math:`\gamma` = ``friction``, in whitened coordinates (see ``scaling``),

    .. math:: du = v\,dt, \qquad dv = -\gamma v\,dt - \nabla F(u)\,dt + \sqrt{2 \gamma}\,dB.

    A step of length :math:`\alpha` = ``step_size`` solves it exactly with the gradient frozen at its start [1]_,

    .. math:: X' = A_\alpha X + G_\alpha b(X) + \Gamma_\alpha W, \qquad W \sim N(0, I),

    where :math:`X = (u, v)`, :math:`b(X) = -\nabla F(u)`, and :math:`A_h, G_h, \Gamma_h` is the exact flow of the
    linear part (:mod:`pmm_mcmc.langevin.flows`).

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

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     dt = pm.sample(100, tune=100, chains=2, step=pmm.ULMC(steps_per_draw=5), progressbar=False)
    >>> (dt["sample_stats"]["n_grad"][:, 1:] == 5).all().item()
    True
    """

    name = "ulmc"

    def __init__(
        self, vars: Any = None, *, step_size: float | str = "auto", friction: float | str = "auto",
        steps_per_draw: int | str = "auto", scaling: Any = "auto", target_bias: float = 0.05,
        reparametrise: Any = "auto", keep_gradients: bool = True, model: pm.Model | None = None, blocked: bool = True,
        rng: Any = None,
    ):  # fmt: skip
        self._begin("ULMC", locals())


@documented
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

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     dt = pm.sample(100, tune=100, chains=2, step=pmm.OLMC(steps_per_draw=5), progressbar=False)
    >>> (dt["sample_stats"]["n_grad"][:, 1:] == 5).all().item()
    True
    """

    name = "olmc"
    stats_dtypes_shapes = WITHOUT_FRICTION

    def __init__(
        self, vars: Any = None, *, step_size: float | str = "auto", steps_per_draw: int | str = "auto",
        scaling: Any = "auto", target_bias: float = 0.05, reparametrise: Any = "auto", keep_gradients: bool = True,
        model: pm.Model | None = None, blocked: bool = True, rng: Any = None,
    ):  # fmt: skip
        self._begin("OLMC", locals())


@documented
class RLMC(LangevinStep):
    r"""Randomised midpoint Langevin Monte Carlo: unadjusted, two gradients a step.

    A step replaces the gradient at its start by that at a uniformly random time within it, where the position comes
    from a cheap interpolation.  It is *unadjusted*: there is no Metropolis test, and the law of the draws differs
    slightly from the posterior.

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

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     dt = pm.sample(100, tune=100, step=pmm.RLMC(dynamics="overdamped", steps_per_draw=5), progressbar=False)
    >>> (dt["sample_stats"]["n_grad"][:, 1:] == 10).all().item()
    True
    """

    name = "rlmc"

    def __init__(
        self, vars: Any = None, *, dynamics: str = "underdamped", step_size: float | str = "auto",
        friction: float | str = "auto", steps_per_draw: int | str = "auto", scaling: Any = "auto",
        target_bias: float = 0.05, reparametrise: Any = "auto", keep_gradients: bool = True,
        model: pm.Model | None = None, blocked: bool = True, rng: Any = None,
    ):  # fmt: skip
        if dynamics == "overdamped" and friction != "auto":
            raise ValueError(
                f"friction={friction!r} does not apply to dynamics='overdamped', which has no velocity: leave it out"
            )
        self._begin("RLMC", locals())

"""The adjusted methods as PyMC step methods, generalised HMC and MALA: draws from the posterior itself."""

from __future__ import annotations

from typing import Any, ClassVar

import pymc as pm

from pmm_mcmc.steps.base import LangevinStep
from pmm_mcmc.steps.shared_texts import documented
from pmm_mcmc.steps.statistics import ADJUSTED_STATISTICS

__all__ = ["GHMC", "MALA"]


@documented
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
    stats_dtypes_shapes: ClassVar[dict[str, tuple[Any, Any]]] = ADJUSTED_STATISTICS

    def __init__(
        self, vars: Any = None, *, step_size: float | str = "auto", friction: float | str = "auto",
        steps_per_draw: int | str = "auto", scaling: Any = "auto", reparametrise: Any = "auto",
        keep_gradients: bool = True, model: pm.Model | None = None, blocked: bool = True, rng: Any = None,
    ):  # fmt: skip
        self._begin("GHMC", locals())


@documented
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

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     dt = pm.sample(100, tune=100, chains=2, step=pmm.MALA(steps_per_draw=2), progressbar=False)
    >>> (dt["sample_stats"]["n_steps"][:, 1:] == 2).all().item()
    True
    """

    name = "mala"
    stats_dtypes_shapes: ClassVar[dict[str, tuple[Any, Any]]] = {
        name: kind for name, kind in ADJUSTED_STATISTICS.items() if name != "friction"
    }

    def __init__(
        self, vars: Any = None, *, step_size: float | str = "auto", steps_per_draw: int | str = "auto",
        scaling: Any = "auto", reparametrise: Any = "auto", keep_gradients: bool = True,
        model: pm.Model | None = None, blocked: bool = True, rng: Any = None,
    ):  # fmt: skip
        self._begin("MALA", locals())

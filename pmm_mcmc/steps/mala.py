"""The Metropolis-adjusted baseline as a PyMC step method."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pymc as pm

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.steps.base import LangevinStep
from pmm_mcmc.steps.shared_texts import documented
from pmm_mcmc.steps.statistics import WITHOUT_FRICTION

__all__ = ["MALA"]


@documented
class MALA(LangevinStep):
    r"""Metropolis-adjusted Langevin algorithm: adjusted, so free of bias; one gradient a step.

    The proposal is a step of :class:`OLMC`, and a Metropolis test accepts or rejects it.  It is *adjusted*: the
    stationary law is the posterior itself, at the price of shorter steps in many dimensions.

    *Dynamics*: :math:`du = -\nabla F(u)\,dt + \sqrt 2\,dB` in whitened coordinates (see ``scaling``), with :math:`F`
    minus the log posterior density.  With :math:`\alpha` = ``step_size`` [1]_

    .. math::

       \tilde u = u - \alpha \nabla F(u) + \sqrt{2 \alpha}\,W, \qquad
       p = \min\left(1, \frac{e^{-F(\tilde u)} q(u | \tilde u)}{e^{-F(u)} q(\tilde u | u)}\right);

    the chain moves to :math:`\tilde u` with probability :math:`p` and stays otherwise.  Here :math:`q(\cdot | u)` is
    the density of :math:`N(u - \alpha \nabla F(u), 2 \alpha I)`.

    *Cost*: 1 gradient a step, with its log density.  Memory: 17 arrays of length :math:`d` for each chain, and 6 for
    each draw computed ahead (at most 256).  The step size scales as :math:`d^{-1/3}` [2]_.

    *Bias*: none in the stationary law, for any ``step_size``.

    Parameters
    ----------
    <vars>
    step_size
        :math:`\alpha`, a time: the noise of a step has standard deviation ``sqrt(2 * step_size)`` in whitened units.
        "auto" (default): adapted in warm-up towards an acceptance rate of 0.574, the optimum in many dimensions [2]_.
    <steps_per_draw>
    <scaling>
    <reparametrise>
    <keep_gradients>
    <pymc>

    <raises>

    Notes
    -----
    A proposal whose log density or gradient is not finite is rejected and counted in the statistic ``unstable``.

    References
    ----------
    .. [1] G. O. Roberts and R. L. Tweedie, "Exponential convergence of Langevin distributions and their discrete
       approximations", Bernoulli 2 (1996) 341-363.
    .. [2] G. O. Roberts and J. S. Rosenthal, "Optimal scaling of discrete approximations to Langevin diffusions", JRSS
       B 60 (1998) 255-268.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     step = pmm.MALA(steps_per_draw=1)
    ...     dt = pm.sample(100, tune=100, chains=2, step=step, progressbar=False)
    >>> dt["posterior"]["x"].shape
    (2, 100, 3)
    >>> (dt["sample_stats"]["acceptance_rate"] <= 1).all().item()
    True
    """

    name = "mala"
    stats_dtypes_shapes: ClassVar[dict[str, tuple[Any, Any]]] = {
        **{name: kind for name, kind in WITHOUT_FRICTION.items() if name != "refined"},
        "acceptance_rate": (np.float64, []),
    }

    def __init__(
        self,
        vars: Any = None,
        *,
        step_size: float | str = "auto",
        steps_per_draw: int | str = "auto",
        scaling: Any = "auto",
        reparametrise: Any = "auto",
        keep_gradients: bool = True,
        model: pm.Model | None = None,
        blocked: bool = True,
        rng: Any = None,
    ):
        arguments = MethodArguments.checked(
            "MALA",
            dynamics="overdamped",
            step_size=step_size,
            steps_per_draw=steps_per_draw,
            scaling=scaling,
            reparametrise=reparametrise,
        )
        super().__init__(vars, arguments, keep_gradients=keep_gradients, model=model, blocked=blocked, rng=rng)

"""The Poisson midpoint method as PyMC step methods."""

from __future__ import annotations

from typing import Any

import pymc as pm

from pmm_mcmc.steps.base import LangevinStep
from pmm_mcmc.steps.shared_texts import documented
from pmm_mcmc.steps.statistics import WITHOUT_FRICTION

__all__ = ["PoissonOLMC", "PoissonULMC"]


@documented
class PoissonULMC(LangevinStep):
    r"""Poisson midpoint method on underdamped Langevin dynamics: unadjusted, one or two gradients a step.

    With ``K`` it is the method of the paper; without, the recycled scheme, which reaches the same error with fewer
    gradients (see ``scheme``).  The following describes the paper's method.  A step evaluates the gradient at its start
    and at a random time within it, and has about the bias of Langevin Monte Carlo (:class:`ULMC`) with a step ``K``
    times smaller.  It is *unadjusted*: there is no Metropolis test, and the law of the draws differs slightly from the
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
    1 for ``scheme="recycled"``.

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
        self, vars: Any = None, *, K: int | str = "auto", step_size: float | str = "auto",
        friction: float | str = "auto", option: int = 2, grid: str = "auto", scheme: str = "auto",
        midpoint: str = "uniform", steps_per_draw: int | str = "auto", scaling: Any = "auto", target_bias: float = 0.05,
        reparametrise: Any = "auto", keep_gradients: bool = True, model: pm.Model | None = None, blocked: bool = True,
        rng: Any = None,
    ):  # fmt: skip
        self._begin("PoissonULMC", locals())


@documented
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

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     dt = pm.sample(100, tune=100, step=pmm.PoissonOLMC(grid="centred", steps_per_draw=3), progressbar=False)
    >>> (dt["sample_stats"]["n_grad"][:, 1:] == 6).all().item()
    True
    """

    name = "poisson_olmc"
    stats_dtypes_shapes = WITHOUT_FRICTION

    def __init__(
        self, vars: Any = None, *, K: int | str = "auto", step_size: float | str = "auto", option: int = 2,
        grid: str = "auto", midpoint: str = "uniform", steps_per_draw: int | str = "auto", scaling: Any = "auto",
        target_bias: float = 0.05, reparametrise: Any = "auto", keep_gradients: bool = True,
        model: pm.Model | None = None, blocked: bool = True, rng: Any = None,
    ):  # fmt: skip
        self._begin("PoissonOLMC", locals())

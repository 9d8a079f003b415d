r"""Noise levels of a diffusion model and the denoising chain that runs down them.

One convention throughout.  A model of ``N`` steps has the levels ``0, 1, ..., N``; at level ``n`` a data point
:math:`x_0` has become :math:`\sqrt{\bar\alpha_n} x_0 + \sqrt{1 - \bar\alpha_n} \epsilon`, with :math:`\bar\alpha_0 = 1`
(clean data).  The network is called at levels ``1`` to ``N``, where it is told the time ``n - 1``.  The update number
``n`` leads from level ``n`` to ``n - 1``, so that there are ``N`` of them (errata f and h):

.. math:: X_{n-1} = a_n X_n + b_n f(X_n, n) + \sigma_n Z_n, \qquad \alpha_n = \bar\alpha_n / \bar\alpha_{n-1},
          \quad \beta_n = 1 - \alpha_n.

With the network's estimates of the data and of the noise in it, every variant has the form

.. math:: X_{n-1} = \sqrt{\bar\alpha_{n-1}}\, \hat x_0 + e_n \hat\epsilon + \sigma_n Z_n,

and both estimates are linear in the state and in whatever the network predicts, which gives :math:`a_n` and
:math:`b_n` for each kind of prediction.

A flow-matching model has :math:`x = (1 - s) x_0 + s \epsilon` at the noise level ``s``, and predicts
:math:`u = \epsilon - x_0`.  Divided by :math:`\sqrt{(1 - s)^2 + s^2}` that is a state as above, with
:math:`\bar\alpha = (1 - s)^2 / ((1 - s)^2 + s^2)`, so that nothing else is needed
(:meth:`DiffusionSchedule.flow`); :func:`flow_scale` is the divisor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

PREDICTIONS = ("epsilon", "score", "x0", "v", "flow")
# Variants of the exponential integrator, with the i of their variance beta / (1 + i beta).
_EXPONENTIAL = {"1": -1, "1a": -1, "1b": 0, "1c": 1, "1d": 2}
VARIANTS = (*_EXPONENTIAL, "2", "3", "sde")


def flow_scale(sigma: Any) -> Any:
    r"""Return :math:`\sqrt{(1 - s)^2 + s^2}`, the norm of unit-variance data at a noise level ``s``; any array type."""
    return ((1.0 - sigma) ** 2 + sigma**2) ** 0.5


def shifted(u: Any, shift: float) -> Any:
    """Return a flow's noise level at the time ``u`` in (0, 1] after a ``shift`` to noise (1: none); any array type."""
    return shift * u / (1.0 + (shift - 1.0) * u)


def named_betas(name: str, N: int, start: float, end: float) -> np.ndarray:
    r"""Return :math:`\beta_1, \dots, \beta_N` from ``start`` to ``end``; the cosine schedule has no use of these."""
    if name == "linear":
        return np.linspace(start, end, N)
    if name == "scaled_linear":
        return np.linspace(start**0.5, end**0.5, N) ** 2
    if name == "sigmoid":
        return (end - start) / (1.0 + np.exp(-np.linspace(-6.0, 6.0, N))) + start
    share = np.cos((np.arange(N + 1) / N + 0.008) / 1.008 * np.pi / 2) ** 2
    return np.minimum(1.0 - share[1:] / share[:-1], 0.999)


class Estimates(NamedTuple):
    """Estimates of data and noise from state and prediction: ``x0 = x0_x x + x0_f f`` and ``eps = eps_x x + eps_f f``.

    Each coefficient of shape ``(N + 1,)``, by level; entry 0 is not used.
    """

    x0_x: np.ndarray
    x0_f: np.ndarray
    eps_x: np.ndarray
    eps_f: np.ndarray


class Coefficients(NamedTuple):
    """Coefficients of ``X_{n-1} = a X_n + b f(X_n, n) + sigma Z``; each ``(N + 1,)``, by level, entry 0 not used."""

    a: np.ndarray
    b: np.ndarray
    sigma: np.ndarray


class DiffusionSchedule:
    r"""Noise levels of a model and the variant of DDPM that runs down them.

    Parameters
    ----------
    alphas_cumprod
        :math:`\bar\alpha_1 > \dots > \bar\alpha_N`, the share of the data in the variance at each level, as a
        diffusers scheduler has it under the same name.
    variant
        Coefficients of the chain, from the paper's "DDPM Variant Details", corrected (errata d, g, h, i):

        - ``"2"``: DDPM's posterior variance :math:`\sigma_n^2 = \beta_n (1 - \bar\alpha_{n-1}) / (1 - \bar\alpha_n)`.
        - ``"3"``: :math:`\sigma_n^2 = \beta_n (1 - \bar\alpha_{n-1})`, less noise with the drift of DDIM that goes with
          it.  The default: the easiest to approximate by long steps.
        - ``"1a"`` (also ``"1"``) to ``"1d"``: exponential integrator with
          :math:`\sigma_n^2 = \beta_n / (1 + i \beta_n)`, ``i = -1, 0, 1, 2``, and no noise in the last update.
        - ``"sde"``: the reverse SDE with ``eta`` squared times the noise of DDPM, solved over the update with both
          estimates frozen, :math:`\sigma_n^2 = (1 - \bar\alpha_{n-1}) (1 - \rho^{\eta^2})`, where
          :math:`\rho = \alpha_n (1 - \bar\alpha_{n-1}) / (1 - \bar\alpha_n)`; with ``eta = 1`` it is variant 2.
    eta
        Factor of :math:`\sigma_n` in variants 2 and 3, between 0 and 1; with variant 2 it is the ``eta`` of DDIM.  In
        ``"sde"`` any number from 0, the ODE.
    timesteps
        What the network is told at levels 1 to ``N``; by default ``0, ..., N - 1``.

    Raises
    ------
    ValueError
        If the levels do not decrease from at most 1 to at least 0, or an argument is unknown or out of range.
    """

    def __init__(
        self,
        alphas_cumprod: ArrayLike,
        variant: str = "3",
        *,
        eta: float = 1.0,
        timesteps: ArrayLike | None = None,
    ) -> None:
        signal = np.concatenate([[1.0], np.asarray(alphas_cumprod, dtype=float).ravel()])
        if signal.size < 2 or not np.all(np.isfinite(signal)) or signal[-1] < 0.0 or np.any(np.diff(signal) >= 0.0):
            raise ValueError(
                f"alphas_cumprod must decrease strictly, within (0, 1) but for a last 0; got {signal.size - 1} values "
                f"from {signal[min(1, signal.size - 1)]:.6g} to {signal[-1]:.6g}. From betas use "
                "DiffusionSchedule.from_betas"
            )
        if variant not in VARIANTS:
            raise ValueError(f"variant={variant!r} is not known; use one of {', '.join(VARIANTS)}")
        if not 0.0 <= eta < np.inf or (eta > 1.0 and variant != "sde") or (eta != 1.0 and variant in _EXPONENTIAL):
            raise ValueError(
                f"eta={eta} with variant={variant!r}: use 0 <= eta <= 1, and variant 2 or 3 where it is not 1; beyond "
                "1 variant 'sde'"
            )
        if signal[-1] == 0.0 and variant in _EXPONENTIAL:
            raise ValueError(f"variant={variant!r} divides by alphas_cumprod[-1] = 0; use variant 2 or 3, or 'sde'")
        labels = np.arange(signal.size - 1) if timesteps is None else np.asarray(timesteps)
        if labels.shape != (signal.size - 1,):
            raise ValueError(
                f"timesteps has shape {labels.shape}; give one for each of the {signal.size - 1} alphas_cumprod"
            )
        self.signal = signal
        self.noise = 1.0 - signal
        self.variant = variant
        self.eta = float(eta)
        self.timesteps = labels
        for array in (self.signal, self.noise, self.timesteps):
            array.setflags(write=False)

    @property
    def N(self) -> int:
        """Number of updates of the chain."""
        return self.signal.size - 1

    def __repr__(self) -> str:
        return f"DiffusionSchedule(N={self.N}, variant={self.variant!r}, eta={self.eta:g})"

    @classmethod
    def from_betas(cls, betas: ArrayLike, variant: str = "3") -> DiffusionSchedule:
        r"""Return the schedule of :math:`\beta_1, \dots, \beta_N`; arguments as of the class."""
        betas = np.asarray(betas, dtype=float).ravel()
        if not np.all((betas > 0.0) & (betas <= 1.0)):
            raise ValueError(f"betas must lie in (0, 1]; got {betas.min():.6g} to {betas.max():.6g}")
        return cls(np.cumprod(1.0 - betas), variant)

    @classmethod
    def named(cls, name: str, N: int = 1000, variant: str = "3") -> DiffusionSchedule:
        r"""Return one of the usual schedules.

        Parameters
        ----------
        name
            ``"linear"``: :math:`\beta` from 1e-4 to 0.02, of DDPM; ``"scaled_linear"``: :math:`\sqrt\beta` linear, from
            0.00085 to 0.012, of latent diffusion; ``"cosine"``: of improved DDPM.
        N
            Number of updates.
        variant
            As of the class.
        """
        if N < 1:
            raise ValueError(f"N={N}: a chain needs at least one update")
        if name not in ("linear", "scaled_linear", "cosine"):
            raise ValueError(
                f"name={name!r} is not known; use linear, scaled_linear or cosine, or give from_betas yours"
            )
        start, end = (1e-4, 0.02) if name == "linear" else (0.00085, 0.012)
        return cls.from_betas(named_betas(name, N, start, end), variant)

    @classmethod
    def flow(cls, N: int = 1000, noise_level: float = 1.0, *, shift: float = 1.0) -> DiffusionSchedule:
        r"""Return the schedule of a flow-matching model, with noise levels from pure noise, ``s = 1``, down to data.

        Parameters
        ----------
        N
            Number of updates of the chain that is approximated.  It may be any: flows are trained at all times.
        noise_level
            Amount of noise ``a`` of the SDE :math:`dx = (u + g^2 \hat\epsilon / (2 s)) ds + g dw`,
            :math:`g^2 = a^2 s / (1 - s)`, as of Flow-GRPO (arXiv:2505.05470): 0 is the ODE, :math:`\sqrt 2` DDPM.  The
            law of the data is the same for all.
        shift
            Of the levels towards noise, as of the model: 3 for Stable Diffusion 3.
        """
        if N < 1:
            raise ValueError(f"N={N}: a chain needs at least one update")
        if not 0.0 < shift < np.inf:
            raise ValueError(f"shift={shift} must be a number > 0; 1 shifts nothing")
        return cls.from_sigmas(shifted(np.arange(1, N + 1) / N, shift), noise_level)

    @classmethod
    def from_sigmas(cls, sigmas: ArrayLike, noise_level: float = 1.0) -> DiffusionSchedule:
        r"""Return the schedule of the noise levels :math:`s_1 < \dots < s_N \le 1` of a flow.

        They are the network's times (``timesteps``); ``noise_level`` is that of :meth:`flow`.  The variant is ``"sde"``
        with ``eta`` the noise level over :math:`\sqrt 2`: in terms of the flow its updates are

        .. math:: x_{n-1} = (1 - s') \hat x_0 + s' (\rho \hat\epsilon + \sqrt{1 - \rho^2} z), \qquad
                  \rho = \left(\frac{s' (1 - s)}{s (1 - s')}\right)^{a^2 / 2}.
        """
        levels = np.asarray(sigmas, dtype=float).ravel()
        if not levels.size or not np.all(np.diff(levels, prepend=0.0) > 0.0) or levels[-1] > 1.0:
            raise ValueError(
                "sigmas must increase strictly, within (0, 1], the data at 0 left out; got "
                f"{levels.size} from {levels[0] if levels.size else None} to {levels[-1] if levels.size else None}"
            )
        if not 0.0 <= noise_level < np.inf:
            raise ValueError(f"noise_level={noise_level} must be a number >= 0: 0 is the ODE, sqrt(2) is DDPM")
        signal = ((1.0 - levels) / flow_scale(levels)) ** 2
        return cls(signal, "sde", eta=noise_level / np.sqrt(2.0), timesteps=levels)

    @property
    def sigmas(self) -> np.ndarray:
        """Noise level of each level as a flow has it, ``(N + 1,)``: 0 at the data, 1 where no data are left."""
        return np.sqrt(self.noise) / (np.sqrt(self.signal) + np.sqrt(self.noise))

    def respaced(self, n_steps: int, *, eta: float | None = None) -> DiffusionSchedule:
        """Return the chain of fewer, longer steps over evenly spaced levels: plain DDPM or DDIM of ``n_steps`` calls.

        Parameters
        ----------
        n_steps
            Steps of the new chain, at most those of this one.
        eta
            Of the new chain; by default as it is.
        """
        if not 1 <= n_steps <= self.N:
            raise ValueError(f"n_steps={n_steps} is not between 1 and the {self.N} steps of the schedule")
        levels = np.round(np.linspace(0, self.N, n_steps + 1)).astype(int)[1:]
        eta = self.eta if eta is None else eta
        return DiffusionSchedule(self.signal[levels], self.variant, eta=eta, timesteps=self.timesteps[levels - 1])

    def estimates(self, kind: str | float) -> Estimates:
        r"""Return how data and noise are estimated from the state and a kind of prediction.

        Parameters
        ----------
        kind
            ``"epsilon"`` (the noise), ``"score"``, ``"x0"`` (the data), ``"v"`` (:math:`\sqrt{\bar\alpha} \epsilon -
            \sqrt{1 - \bar\alpha} x_0`), ``"flow"`` (:math:`\epsilon - x_0`), or a number ``l > 0``: what is left of
            the data after the best linear guess from the state for data of variance ``l`` (the preconditioning of
            Karras et al., arXiv:2206.00364, with their :math:`\sigma_\text{data}^2 = l`).  ``1.0`` is ``"v"``; towards
            0 it becomes ``"x0"``, towards infinity ``"epsilon"``.
        """
        signal = self.signal
        noise = self.noise
        r = np.sqrt(signal)
        s = np.sqrt(noise)
        one = np.ones_like(signal)
        zero = np.zeros_like(signal)
        if kind == "flow":
            # The network is called at x = y / (r + s), at the noise level s / (r + s).
            return Estimates(1 / (r + s), -s / (r + s), 1 / (r + s), r / (r + s))
        if kind in ("epsilon", "score"):
            if signal[-1] == 0.0:
                raise ValueError(
                    f"{kind!r} says nothing of the data where alphas_cumprod[-1] = 0 (in a flow, where sigma = 1); use "
                    "'v' or 'x0'"
                )
            return Estimates(1 / r, -s / r, zero, one) if kind == "epsilon" else Estimates(1 / r, noise / r, zero, -s)
        s_safe = np.where(noise > 0.0, s, 1.0)
        if kind == "x0":
            return Estimates(zero, one, 1 / s_safe, -r / s_safe)
        scale = 1.0 if kind == "v" else kind
        if isinstance(scale, str) or not (np.isfinite(scale) and scale > 0.0):
            raise ValueError(
                f"prediction {kind!r} is not known; use one of {', '.join(PREDICTIONS)} or a data variance > 0"
            )
        total = np.sqrt(signal * scale + noise)
        return Estimates(r * scale / total**2, -s / total, s / total**2, r / total)

    def coefficients(self, kind: str | float = "epsilon") -> Coefficients:
        r"""Return the coefficients :math:`a_n, b_n, \sigma_n` of the chain with a kind of prediction as :math:`f`.

        Parameters
        ----------
        kind
            As of :meth:`estimates`.

        Returns
        -------
        Coefficients
            With the paper's :math:`b_n` for ``"epsilon"`` and ``"score"``: in variant 1
            :math:`-2 (1 - \sqrt{\alpha_n}) / \sqrt{\alpha_n (1 - \bar\alpha_n)}` and
            :math:`2 (1 - \sqrt{\alpha_n}) / \sqrt{\alpha_n}` (erratum d).
        """
        estimates = self.estimates(kind)
        previous_signal = self.signal[:-1]
        previous_noise = self.noise[:-1]
        noise = self.noise[1:]
        alpha = self.signal[1:] / previous_signal
        beta = 1.0 - alpha
        if self.variant in _EXPONENTIAL:
            variance = beta / (1.0 + _EXPONENTIAL[self.variant] * beta)
            variance[0] = 0.0
            on_noise = (noise - 2.0 * (1.0 - np.sqrt(alpha))) / np.sqrt(alpha * noise)
        elif self.variant == "sde":
            # Share of the state's noise after the update: 0 in the last one, and in the first from pure noise.
            ratio = alpha * previous_noise / noise
            retained = ratio ** (self.eta**2)
            variance = previous_noise * (1.0 - retained)
            on_noise = np.sqrt(previous_noise * retained)
        else:
            variance = self.eta**2 * previous_noise * beta / (noise if self.variant == "2" else 1.0)
            on_noise = np.sqrt(np.maximum(previous_noise - variance, 0.0))
        a = np.sqrt(previous_signal) * estimates.x0_x[1:] + on_noise * estimates.eps_x[1:]
        b = np.sqrt(previous_signal) * estimates.x0_f[1:] + on_noise * estimates.eps_f[1:]
        return Coefficients(*(np.concatenate([[0.0], c]) for c in (a, b, np.sqrt(variance))))

    def conversion(self, kind: str | float, to: str | float) -> tuple[np.ndarray, np.ndarray]:
        """Return the coefficients of state and prediction, by level, that turn one kind of prediction into another."""
        if kind == to:
            return np.zeros(self.N + 1), np.ones(self.N + 1)
        old = self.estimates(kind)
        new = self.estimates(to)
        # Both rows hold; the one with the larger share of the prediction divides by nothing small.
        by_noise = np.abs(new.eps_f) * np.sqrt(self.noise) >= np.abs(new.x0_f) * np.sqrt(self.signal)
        by_noise &= new.eps_f != 0.0
        divisor = np.where(by_noise, new.eps_f, new.x0_f)
        divisor = np.where(divisor == 0.0, 1.0, divisor)
        return (
            np.where(by_noise, old.eps_x - new.eps_x, old.x0_x - new.x0_x) / divisor,
            np.where(by_noise, old.eps_f, old.x0_f) / divisor,
        )

r"""Scheduler for Hugging Face diffusers; needs torch and diffusers, and Python 3.11 or later.

A drop-in for the schedulers of pipelines that denoise in a loop:

    pipeline.scheduler = PoissonMidpointScheduler.from_config(pipeline.scheduler.config)
    pipeline(num_inference_steps=15)  # calls the network 30 times

As with other schedulers of more than one call a step, ``timesteps`` lists every call, start of the block and midpoint
in turn, and :meth:`~PoissonMidpointScheduler.step` takes one call after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found]
from diffusers.configuration_utils import ConfigMixin, register_to_config  # type: ignore[import-not-found]
from diffusers.schedulers.scheduling_ddpm import rescale_zero_terminal_snr  # type: ignore[import-not-found]
from diffusers.schedulers.scheduling_utils import (  # type: ignore[import-not-found]
    KarrasDiffusionSchedulers,
    SchedulerMixin,
)

from pmm_mcmc.diffusion.blocks import Blocks
from pmm_mcmc.diffusion.diffusers_calls import MidpointCalls, PoissonMidpointSchedulerOutput
from pmm_mcmc.diffusion.interpolation import make_table
from pmm_mcmc.diffusion.schedule import DiffusionSchedule, named_betas

__all__ = ["PoissonMidpointScheduler", "PoissonMidpointSchedulerOutput"]

# Names of diffusers, and ours.
_PREDICTIONS = {"epsilon": "epsilon", "sample": "x0", "v_prediction": "v"}
_BETA_SCHEDULES = {
    "linear": "linear", "scaled_linear": "scaled_linear", "squaredcos_cap_v2": "cosine", "sigmoid": "sigmoid",
}  # fmt: skip


class PoissonMidpointScheduler(MidpointCalls, SchedulerMixin, ConfigMixin):
    r"""Denoise by the Poisson midpoint method: the chain of ``num_train_timesteps`` steps, at two calls a block.

    The midpoints are drawn by :meth:`set_timesteps`, as pipelines read ``timesteps`` before their loop: all images of
    a pipeline call share them.  Each image has the right law, but the images are not independent.

    Parameters
    ----------
    num_train_timesteps, beta_start, beta_end, beta_schedule, trained_betas, rescale_betas_zero_snr
        The noise levels, as of ``DDPMScheduler``; ``beta_schedule`` is ``"linear"``, ``"scaled_linear"``,
        ``"squaredcos_cap_v2"`` or ``"sigmoid"``.
    prediction_type
        ``"epsilon"``, ``"sample"`` or ``"v_prediction"``.
    clip_sample, clip_sample_range
        Whether the estimate of the data is clipped, and where.  By default not, as latent models need it; the saved
        configuration of a pixel model says otherwise where it should be.
    thresholding
        Dynamic thresholding, which is not supported; the argument is there to refuse it.
    variant
        Chain that is approximated, as of :class:`~pmm_mcmc.diffusion.DiffusionSchedule`.
    midpoint, frozen
        As of :class:`~pmm_mcmc.diffusion.Blocks`.  Under Option 1 (``"bernoulli"``) the number of calls varies.
    block_power
        Blocks as of :meth:`~pmm_mcmc.diffusion.Blocks.shrinking`; 1 makes them equal, as in the paper.
    data_variances
        Smallest and largest variance of the data: where given, the blocks are planned for them
        (:func:`~pmm_mcmc.diffusion.plan_blocks`) and ``block_power`` is not used.
    midpoint_seed
        Seed from which :meth:`set_timesteps` draws the midpoints each time, so that a pipeline call can be repeated.
        With None they differ from call to call, as they should where the law of many images is measured.

    Notes
    -----
    ``num_inference_steps`` is the number of blocks, at most half of the training steps.  ``timestep_spacing`` and
    ``steps_offset`` of other schedulers have no meaning here: all steps of the chain are accounted for.  Of networks
    that predict a variance as well, with twice the channels, the variance is left aside.
    """

    _compatibles = [e.name for e in KarrasDiffusionSchedulers]  # noqa: RUF012

    # Every argument is an entry of the configuration: diffusers reads from a pipeline's those that the signature names.
    @register_to_config
    def __init__(
        self,
        num_train_timesteps: int = 1000,
        beta_start: float = 0.0001,
        beta_end: float = 0.02,
        beta_schedule: str = "linear",
        trained_betas: np.ndarray | list[float] | None = None,
        rescale_betas_zero_snr: bool = False,
        prediction_type: str = "epsilon",
        clip_sample: bool = False,
        clip_sample_range: float = 1.0,
        thresholding: bool = False,
        variant: str = "3",
        midpoint: str = "importance",
        frozen: str | float = "v",
        block_power: float = 2.0,
        data_variances: tuple[float, float] | None = None,
        midpoint_seed: int | None = 0,
    ) -> None:
        if prediction_type not in _PREDICTIONS:
            raise ValueError(
                f"prediction_type={prediction_type!r} is not known; use one of {', '.join(_PREDICTIONS)}. "
                "PoissonMidpointFlowScheduler is for flow-matching models"
            )
        if thresholding:
            raise ValueError("thresholding=True is not supported; use clip_sample=True, or leave it out")
        if trained_betas is not None:
            betas = np.asarray(trained_betas, dtype=float)
        elif beta_schedule in _BETA_SCHEDULES:
            betas = named_betas(_BETA_SCHEDULES[beta_schedule], num_train_timesteps, beta_start, beta_end)
        else:
            raise ValueError(
                f"beta_schedule={beta_schedule!r} is not known; use one of {', '.join(_BETA_SCHEDULES)}, or give "
                "trained_betas"
            )
        if rescale_betas_zero_snr:
            betas = rescale_zero_terminal_snr(torch.from_numpy(betas)).numpy()
        self._schedule = DiffusionSchedule.from_betas(betas, variant)
        self._estimates = self._schedule.estimates(_PREDICTIONS[prediction_type])
        # Errors in these do not depend on the number of steps: they are raised here, not by set_timesteps.
        self._blocks = Blocks((self._schedule.N, 0), midpoint, frozen)
        make_table(self._schedule, self._blocks, "x0" if clip_sample else _PREDICTIONS[prediction_type])
        self.betas = torch.from_numpy(betas).to(torch.float32)
        self.alphas_cumprod = torch.from_numpy(self._schedule.signal[1:].copy()).to(torch.float32)
        self.init_noise_sigma = 1.0
        self.num_inference_steps: int | None = None
        self.timesteps = torch.arange(self._schedule.N - 1, -1, -1)
        self._reset()

    @classmethod
    def from_config(cls, config: Any = None, return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        """As of diffusers; a configuration of a flow-matching model is refused."""
        if isinstance(config, dict) and "shift" in config and "beta_schedule" not in config:
            raise ValueError(
                "this is the configuration of a flow-matching model (it has a shift, and no beta_schedule); use "
                "PoissonMidpointFlowScheduler.from_config"
            )
        return super().from_config(config, return_unused_kwargs, **kwargs)

    def set_timesteps(
        self,
        num_inference_steps: int | None = None,
        device: str | torch.device | None = None,
        timesteps: list[int] | None = None,
    ) -> None:
        """Make the blocks and draw the midpoints.

        Parameters
        ----------
        num_inference_steps
            Number of blocks; the network is called twice in each.
        device
            Where ``timesteps`` is put.
        timesteps
            In its place: the timesteps at which blocks start, in descending order, such as those of planned blocks,
            ``[edge - 1 for edge in blocks.edges[:-1]]``.
        """
        if (num_inference_steps is None) == (timesteps is None):
            raise ValueError("give either num_inference_steps or timesteps (where the blocks start)")
        if timesteps is not None:
            edges = (*(int(t) + 1 for t in timesteps), 0)
            if not len(edges) > 1 or edges[0] > self._schedule.N or min(edges[:-1]) < 1:
                raise ValueError(f"timesteps={list(timesteps)!r} must lie between 0 and {self._schedule.N - 1}")
            blocks = self._blocks_with(edges)
        else:
            blocks = self._make_blocks(int(num_inference_steps))  # type: ignore[arg-type]
        kind = "x0" if self.config.clip_sample else _PREDICTIONS[self.config.prediction_type]
        self._list_calls(self._schedule, blocks, kind, np.arange(-1, self._schedule.N), device)

    def _make_blocks(self, n_steps: int) -> Blocks:
        """Return blocks as the configuration says."""
        N = self._schedule.N
        if not 1 <= n_steps <= N // 2:
            raise ValueError(
                f"num_inference_steps={n_steps} for a chain of {N} steps: use 1 to {N // 2}; the network is called "
                "twice in each"
            )
        if self.config.data_variances is None:
            return self._blocks_with(Blocks.shrinking(N, n_steps, self.config.block_power).edges)
        return self._planned_for(self._schedule, n_steps)

    def step(
        self,
        model_output: torch.Tensor,
        timestep: int | torch.Tensor,
        sample: torch.Tensor,
        generator: torch.Generator | list[torch.Generator] | None = None,
        return_dict: bool = True,
    ) -> PoissonMidpointSchedulerOutput | tuple:
        """Return the next point to call the network at, from its output in one call.

        Parameters
        ----------
        model_output
            Output of the network.
        timestep, sample
            Its input.
        generator
            For the noise; one, or one for each sample.
        return_dict
            Whether to return an object rather than a tuple.

        Returns
        -------
        PoissonMidpointSchedulerOutput or tuple
            ``prev_sample`` and ``pred_original_sample``.
        """
        index = self._next_call(int(timestep))
        level = int(self._levels[index])  # type: ignore[index]
        if model_output.shape[1] == 2 * sample.shape[1]:
            model_output = model_output.chunk(2, dim=1)[0]
        dtype = sample.dtype
        wide = torch.promote_types(dtype, torch.float32)
        sample = sample.to(wide)
        output = model_output.to(wide)
        data = float(self._estimates.x0_x[level]) * sample + float(self._estimates.x0_f[level]) * output
        if self.config.clip_sample:
            data = output = data.clamp(-self.config.clip_sample_range, self.config.clip_sample_range)
        y, _ = self._call(index, sample, output, generator, dtype)
        if not return_dict:
            return y.to(dtype), data.to(dtype)
        return PoissonMidpointSchedulerOutput(prev_sample=y.to(dtype), pred_original_sample=data.to(dtype))

    def _shares(self, timesteps: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the shares of data and noise at timesteps, in the shape of samples."""
        shape = (-1, *(1,) * (like.ndim - 1))
        signal = self.alphas_cumprod[timesteps.to(self.alphas_cumprod.device)].reshape(shape)
        return signal.sqrt().to(like), (1.0 - signal).sqrt().to(like)

    def add_noise(self, original_samples: torch.Tensor, noise: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        """Return the samples with the noise that they have at the timesteps."""
        r, s = self._shares(timesteps, original_samples)
        return r * original_samples + s * noise

    def get_velocity(self, sample: torch.Tensor, noise: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        """Return what a network with ``prediction_type="v_prediction"`` is trained on."""
        r, s = self._shares(timesteps, sample)
        return r * noise - s * sample

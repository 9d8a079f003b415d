r"""Scheduler for flow-matching models in Hugging Face diffusers; needs torch and diffusers, and Python 3.11 or later.

A drop-in for ``FlowMatchEulerDiscreteScheduler``:

    pipeline.scheduler = PoissonMidpointFlowScheduler.from_config(pipeline.scheduler.config)
    pipeline(num_inference_steps=20)  # calls the network 40 times

The mathematics is that of :class:`~pmm_mcmc.diffusion.diffusers.PoissonMidpointScheduler`: a flow's state, divided by
:math:`\sqrt{(1 - s)^2 + s^2}`, is a state of a diffusion model
(:meth:`~pmm_mcmc.diffusion.DiffusionSchedule.from_sigmas`).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found]
from diffusers.configuration_utils import ConfigMixin, register_to_config  # type: ignore[import-not-found]
from diffusers.schedulers.scheduling_utils import SchedulerMixin  # type: ignore[import-not-found]

from pmm_mcmc.diffusion.blocks import Blocks
from pmm_mcmc.diffusion.diffusers_calls import MidpointCalls, PoissonMidpointSchedulerOutput
from pmm_mcmc.diffusion.schedule import DiffusionSchedule, flow_scale, shifted

__all__ = ["PoissonMidpointFlowScheduler"]

# Arguments of FlowMatchEulerDiscreteScheduler that ask for something else, with what to do.
_REFUSED = {
    "invert_sigmas": "models of that kind are told 1 - sigma, which is not supported",
    "use_karras_sigmas": "blocks are planned; where they should start can be passed to set_timesteps as sigmas",
    "use_exponential_sigmas": "blocks are planned; where they should start can be passed to set_timesteps as sigmas",
    "use_beta_sigmas": "blocks are planned; where they should start can be passed to set_timesteps as sigmas",
    "stochastic_sampling": "it renoises fully in each step, for distilled models; noise_level > 0 is the SDE here",
}


class PoissonMidpointFlowScheduler(MidpointCalls, SchedulerMixin, ConfigMixin):
    r"""Sample a flow-matching model by the Poisson midpoint method: its SDE in 1000 steps, at two calls a block.

    The midpoints are drawn by :meth:`set_timesteps`, as pipelines read ``timesteps`` before their loop: all images of
    a pipeline call share them.  Each image has the right law, but the images are not independent.

    Parameters
    ----------
    num_train_timesteps
        Timestep at pure noise, and the number of steps of the chain that is approximated.  More blocks than half of
        these make the chain finer.
    shift, use_dynamic_shifting, time_shift_type, shift_terminal
        Of the noise levels towards noise, as of ``FlowMatchEulerDiscreteScheduler``.  ``shift_terminal`` is where the
        last of passed ``sigmas`` is moved to; blocks that are planned here have no need of it.
    base_shift, max_shift, base_image_seq_len, max_image_seq_len
        What pipelines compute ``mu`` of dynamic shifting from.
    invert_sigmas, use_karras_sigmas, use_exponential_sigmas, use_beta_sigmas, stochastic_sampling
        Of ``FlowMatchEulerDiscreteScheduler``; not supported, and here to be refused.
    use_flow_sigmas
        Tells pipelines of FLUX type to leave the noise levels to the scheduler.  Otherwise they pass evenly spaced
        ones, which are honoured, but too far apart near the data.
    prediction_type
        ``"flow_prediction"``, noise minus data.
    noise_level
        Amount of noise ``a`` of the SDE, as of :meth:`~pmm_mcmc.diffusion.DiffusionSchedule.flow`: 0 is the
        ODE, :math:`\sqrt 2` DDPM.
    data_variances
        Smallest and largest variance of the data that blocks are planned for, as of
        :func:`~pmm_mcmc.diffusion.plan_blocks`.
    midpoint, frozen
        As of :class:`~pmm_mcmc.diffusion.Blocks`.
    midpoint_seed
        Seed from which :meth:`set_timesteps` draws the midpoints each time.  With None they differ from call to call,
        as they should where the law of many images counts, and in training.

    Notes
    -----
    ``num_inference_steps`` is the number of blocks: the network is called twice in each.  Pipelines of flow models do
    not pass their generator to :meth:`step`; ``torch.manual_seed`` makes their images reproducible.
    """

    _compatibles = ["FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler"]  # noqa: RUF012

    # Every argument is an entry of the configuration: diffusers reads from a pipeline's those that the signature names.
    @register_to_config
    def __init__(
        self, num_train_timesteps: int = 1000, shift: float = 1.0, use_dynamic_shifting: bool = False,
        base_shift: float | None = 0.5, max_shift: float | None = 1.15, base_image_seq_len: int | None = 256,
        max_image_seq_len: int | None = 4096, invert_sigmas: bool = False, shift_terminal: float | None = None,
        use_karras_sigmas: bool | None = False, use_exponential_sigmas: bool | None = False,
        use_beta_sigmas: bool | None = False, time_shift_type: str = "exponential", stochastic_sampling: bool = False,
        use_flow_sigmas: bool = True, prediction_type: str = "flow_prediction", noise_level: float = 1.0,
        data_variances: tuple[float, float] = (1e-3, 100.0), midpoint: str = "importance",
        frozen: str | float = "v", midpoint_seed: int | None = 0,
    ) -> None:  # fmt: skip
        for name, remedy in _REFUSED.items():
            if self.config[name]:
                raise ValueError(f"{name}={self.config[name]!r}: {remedy}")
        if prediction_type != "flow_prediction":
            raise ValueError(
                f"prediction_type={prediction_type!r} is not that of a flow-matching model, 'flow_prediction'; "
                "PoissonMidpointScheduler is for the others"
            )
        if time_shift_type not in ("exponential", "linear"):
            raise ValueError(f"time_shift_type={time_shift_type!r} is not known; use exponential or linear")
        if shift_terminal is not None and not 0.0 <= shift_terminal < 1.0:
            raise ValueError(f"shift_terminal={shift_terminal} must lie in [0, 1), or be None")
        # Errors in these do not depend on the number of steps: they are raised here, not by set_timesteps.
        schedule = DiffusionSchedule.flow(
            num_train_timesteps, noise_level, shift=1.0 if use_dynamic_shifting else shift
        )
        schedule.coefficients(Blocks((schedule.N, 0), midpoint, frozen).frozen)
        self._shift = shift
        self.init_noise_sigma = 1.0
        self.num_inference_steps: int | None = None
        self.sigmas = torch.tensor(schedule.sigmas[:0:-1].copy(), dtype=torch.float32)
        self.timesteps = self.sigmas * num_train_timesteps
        self.sigma_min = float(self.sigmas[-1])
        self.sigma_max = float(self.sigmas[0])
        self._reset()

    @classmethod
    def from_config(cls, config: Any = None, return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        """As of diffusers; ``flow_shift`` of other schedulers is ``shift``, and other than flow models are refused."""
        if isinstance(config, dict):
            if "beta_schedule" in config and config.get("prediction_type") != "flow_prediction":
                raise ValueError(
                    "this is not the configuration of a flow-matching model (it has a beta_schedule, and "
                    f"prediction_type={config.get('prediction_type')!r}); use PoissonMidpointScheduler.from_config"
                )
            if "flow_shift" in config and "shift" not in config:
                kwargs.setdefault("shift", config["flow_shift"])
        return super().from_config(config, return_unused_kwargs, **kwargs)

    @property
    def shift(self) -> float:
        """Shift of the noise levels if it is not dynamic."""
        return self._shift

    def set_shift(self, shift: float) -> None:
        """Set the shift of the noise levels from the next :meth:`set_timesteps` on."""
        self._shift = shift

    def _shift_for(self, mu: float | None) -> float:
        """Return the shift of the configuration or, if it is dynamic, of ``mu``."""
        if not self.config.use_dynamic_shifting:
            shift = self._shift
            name = "shift"
        elif mu is None:
            raise ValueError("mu must be passed where use_dynamic_shifting=True: pipelines compute it from the size")
        else:
            shift, name = (math.exp(mu), "exp(mu)") if self.config.time_shift_type == "exponential" else (mu, "mu")
        if not 0.0 < shift < math.inf:
            raise ValueError(f"{name}={shift} must be a number > 0; 1 shifts nothing")
        return shift

    def planned_sigmas(self, num_inference_steps: int, mu: float | None = None) -> list[float]:
        """Return the starts of planned blocks, before the shift, for pipelines that pass sigmas.

        Parameters
        ----------
        num_inference_steps
            Number of blocks.
        mu
            Of dynamic shifting, as of :meth:`set_timesteps`.
        """
        schedule, blocks = self._planned(num_inference_steps, mu)
        return [edge / schedule.N for edge in blocks.edges[:-1]]

    def _planned(self, n_steps: int, mu: float | None) -> tuple[DiffusionSchedule, Blocks]:
        """Return the chain and the blocks that are planned for the variances of the data."""
        if n_steps < 1:
            raise ValueError(f"num_inference_steps={n_steps}: use 1 or more; the network is called twice in each")
        N = max(self.config.num_train_timesteps, 2 * n_steps)
        schedule = _flow(N, self.config.noise_level, self._shift_for(mu))
        return schedule, self._planned_for(schedule, n_steps)

    def set_timesteps(
        self,
        num_inference_steps: int | None = None,
        device: str | torch.device | None = None,
        sigmas: list[float] | None = None,
        mu: float | None = None,
        timesteps: list[float] | None = None,
    ) -> None:
        """Make the blocks and draw the midpoints.

        Parameters
        ----------
        num_inference_steps
            Number of blocks; the network is called twice in each.
        device
            Where ``timesteps`` is put.
        sigmas
            Noise levels at which the blocks start, in descending order, before they are shifted; 0, where the last
            ends, is left out.
        mu
            Of dynamic shifting, with ``use_dynamic_shifting``.
        timesteps
            In place of ``sigmas``: timesteps at which the blocks start.  They are not shifted.
        """
        starts = sigmas if timesteps is None else timesteps
        if sigmas is not None and timesteps is not None:
            raise ValueError("give sigmas or timesteps, not both: the one is the other times num_train_timesteps")
        if starts is None and num_inference_steps is None:
            raise ValueError("give num_inference_steps, or sigmas or timesteps at which the blocks start")
        if starts is not None and num_inference_steps not in (None, len(starts)):
            raise ValueError(f"num_inference_steps={num_inference_steps}, but {len(starts)} starts of blocks are given")
        if starts is None:
            schedule, blocks = self._planned(int(num_inference_steps), mu)  # type: ignore[arg-type]
        else:
            name = "sigmas" if timesteps is None else "timesteps"
            schedule, blocks = self._starting_at(np.asarray(starts, dtype=float), name, self._shift_for(mu))
        labels = schedule.sigmas * self.config.num_train_timesteps
        self._list_calls(schedule, blocks, "flow", labels.astype(np.float32), device)
        # In double precision, whatever the timesteps are rounded to.
        self._call_sigmas = [*schedule.sigmas[self._levels].tolist(), 0.0]
        self.sigmas = torch.tensor(self._call_sigmas, dtype=torch.float32)

    def _starting_at(self, starts: np.ndarray, name: str, shift: float) -> tuple[DiffusionSchedule, Blocks]:
        """Return the chain and its blocks with exactly these starts; other levels are as near as they can be."""
        top = 1.0 if name == "sigmas" else float(self.config.num_train_timesteps)
        if starts.ndim != 1 or not starts.size or not np.all(np.diff(starts, append=0.0) < 0.0) or not starts[0] <= top:
            raise ValueError(
                f"{name}={starts.tolist()!r} must decrease strictly, from at most {top:g} to above 0; the end at 0 is "
                "left out"
            )
        if name == "timesteps":
            levels = starts / top
        else:
            levels = shifted(starts, shift)
            if self.config.shift_terminal:
                levels = 1.0 - (1.0 - levels) * (1.0 - self.config.shift_terminal) / (1.0 - levels[-1])
        # Times of the starts before the shift, the latest last, on a chain of N steps evenly spaced in them.
        even = shifted(levels, 1.0 / shift)[::-1]
        N = max(self.config.num_train_timesteps, 2 * levels.size)
        edges = np.round(N * even).astype(int)
        # Each block holds two steps or more.
        for i, edge in enumerate(edges):
            edges[i] = max(edge, edges[i - 1] + 2 if i else 2)
        # Steps between two starts are even again, so that these are levels of the chain.
        times = np.interp(np.arange(1, edges[-1] + 1), [0, *edges], [0.0, *even])
        sigmas = shifted(times, shift)
        sigmas[edges - 1] = levels[::-1]
        schedule = DiffusionSchedule.from_sigmas(sigmas, self.config.noise_level)
        return schedule, self._blocks_with((*edges[::-1].tolist(), 0))

    def index_for_timestep(self, timestep: float | torch.Tensor, schedule_timesteps: torch.Tensor | None = None) -> int:
        """Return the number of the call at a timestep."""
        candidates = self.timesteps if schedule_timesteps is None else schedule_timesteps
        indices = (candidates == timestep).nonzero()
        if not len(indices):
            raise ValueError(
                f"timestep={float(timestep):g} is not among the {len(candidates)} timesteps of the scheduler"
            )
        return int(indices[0])

    def scale_noise(
        self, sample: torch.Tensor, timestep: float | torch.Tensor, noise: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the samples with the noise that they have at the timesteps, one or one for each of them."""
        if noise is None:
            raise ValueError("noise=None: give standard normal noise in the shape of the sample")
        sigma = torch.as_tensor(timestep, device=sample.device).reshape(-1, *(1,) * (sample.ndim - 1))
        sigma = (sigma / self.config.num_train_timesteps).to(sample.dtype)
        return sigma * noise + (1.0 - sigma) * sample

    def step(
        self,
        model_output: torch.Tensor,
        timestep: float | torch.Tensor,
        sample: torch.Tensor,
        generator: torch.Generator | list[torch.Generator] | None = None,
        return_dict: bool = True,
        *,
        return_log_prob: bool = False,
        prev_sample: torch.Tensor | None = None,
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
        return_log_prob
            Whether to return the log density of the next point, given the earlier ones in the block, summed over all
            but the samples.  It is 0 without noise, which the last call does not add if its midpoint is one step of the
            chain from the end.
        prev_sample
            The next point, in place of a draw: for its log-probability under another network, call after call.

        Returns
        -------
        PoissonMidpointSchedulerOutput or tuple
            ``prev_sample``, ``pred_original_sample`` and, with ``return_log_prob``, ``log_prob``.
        """
        if isinstance(timestep, int) or (isinstance(timestep, torch.Tensor) and not timestep.is_floating_point()):
            raise ValueError(
                f"timestep={timestep!r} is a whole number, such as an index of timesteps; give one of "
                "scheduler.timesteps itself"
            )
        if model_output.shape != sample.shape:
            raise ValueError(f"model_output has shape {tuple(model_output.shape)}, sample {tuple(sample.shape)}")
        if return_log_prob and self.config.noise_level == 0.0:
            raise ValueError("noise_level=0 is the ODE, which has no log-probabilities; make it larger, such as 1.0")
        # Some pipelines pass timesteps in the type of the network, with 8 bits or more.
        half = isinstance(timestep, torch.Tensor) and timestep.dtype in (torch.bfloat16, torch.float16)
        index = self._next_call(float(timestep), slack=2.0**-8 if half else 1e-6)
        sigma, next_sigma = self._call_sigmas[index : index + 2]
        scale = flow_scale(sigma)
        next_scale = flow_scale(next_sigma)
        dtype = model_output.dtype
        wide = torch.promote_types(dtype, torch.float32)
        x = sample.to(wide)
        output = model_output.to(wide)
        # The schedule's states are those of the flow over their scale.
        arrival = None if prev_sample is None else prev_sample.to(wide) / next_scale
        state = self._state
        y, noise = self._call(index, x / scale, output, generator, dtype, arrival)
        arrived = (y * next_scale).to(dtype) if prev_sample is None else prev_sample
        if return_log_prob and arrival is None and arrived.dtype != wide:
            # The density is that of the rounded point that is returned.
            self._state = state
            y, noise = self._call(index, x / scale, output, generator, dtype, arrived.to(wide) / next_scale)
        data = (x - sigma * output).to(dtype)
        log_prob = self._log_density(index, noise, next_scale, x) if return_log_prob else None
        if not return_dict:
            return (arrived, data, log_prob) if return_log_prob else (arrived, data)
        return PoissonMidpointSchedulerOutput(prev_sample=arrived, pred_original_sample=data, log_prob=log_prob)


@lru_cache(maxsize=64)
def _flow(N: int, noise_level: float, shift: float) -> DiffusionSchedule:
    """Return one chain for the same arguments, since plans are cached by the chain."""
    return DiffusionSchedule.flow(N, noise_level, shift=shift)

"""The calls of the network, shared by the schedulers for diffusers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found]
from diffusers.utils import BaseOutput  # type: ignore[import-not-found]
from diffusers.utils.torch_utils import randn_tensor  # type: ignore[import-not-found]

from pmm_mcmc.diffusion.blocks import Blocks
from pmm_mcmc.diffusion.interpolation import (
    Row,
    State,
    draw_levels,
    following,
    make_rows,
    make_table,
    noise_between,
    noiseless_next,
    with_path,
)
from pmm_mcmc.diffusion.planner import plan_blocks
from pmm_mcmc.diffusion.schedule import DiffusionSchedule

__all__ = ["MidpointCalls", "PoissonMidpointSchedulerOutput"]


@dataclass
class PoissonMidpointSchedulerOutput(BaseOutput):
    """The next point to call the network at (after the last call: the sample), and the estimate of the data.

    ``log_prob``, ``(samples,)``, is the log density of ``prev_sample`` given the states before it; it is optional.
    """

    prev_sample: torch.Tensor
    pred_original_sample: torch.Tensor | None = None
    log_prob: torch.Tensor | None = None


class MidpointCalls:
    """The calls of the network, one after the other, start of a block and midpoint in turn.

    A scheduler lists them by :meth:`_list_calls` and takes one by :meth:`_call`, with states as the schedule has them.
    """

    order = 2

    config: Any
    timesteps: torch.Tensor
    num_inference_steps: int | None
    _schedule: DiffusionSchedule
    _blocks: Blocks
    _prediction: str
    _levels: np.ndarray | None = None

    def _reset(self) -> None:
        """Forget all calls."""
        self._step_index: int | None = None
        self._begin_index: int | None = None
        self._state: State | None = None

    def __len__(self) -> int:
        return self.config.num_train_timesteps

    @property
    def step_index(self) -> int | None:
        """Number of the next call, in ``timesteps``."""
        return self._step_index

    @property
    def begin_index(self) -> int | None:
        """Number of the first call, where a pipeline has set it."""
        return self._begin_index

    def set_begin_index(self, begin_index: int = 0) -> None:
        """Start at a later call, as pipelines from image to image do."""
        self._begin_index = begin_index

    def scale_model_input(self, sample: torch.Tensor, timestep: Any = None) -> torch.Tensor:
        """Return the sample as it is."""
        return sample

    def _blocks_with(self, edges: tuple[int, ...]) -> Blocks:
        """Return blocks with these edges."""
        return Blocks(edges, self.config.midpoint, self.config.frozen)

    def _planned_for(self, schedule: DiffusionSchedule, n_steps: int) -> Blocks:
        """Return blocks that are planned for the variances of the data."""
        return self._blocks_with(
            _planned_edges(schedule, n_steps, tuple(self.config.data_variances), self._blocks_with((1, 0)))
        )

    def _list_calls(
        self, schedule: DiffusionSchedule, blocks: Blocks, prediction: str, labels: np.ndarray, device: Any
    ) -> None:
        """Draw the midpoints and list the calls; ``labels`` are the network's times, by level."""
        self._schedule = schedule
        self._blocks = blocks
        self._prediction = prediction
        self._table = make_table(schedule, blocks, prediction)
        self._levels = draw_levels(self._table, blocks, np.random.default_rng(self.config.midpoint_seed))
        self._rows = make_rows(self._table, self._levels, following(self._levels))
        self.num_inference_steps = blocks.steps
        self._times = labels[self._levels]
        self.timesteps = torch.from_numpy(self._times).to(device)
        self._reset()

    def _nearest_call(self, timestep: float) -> int:
        """Return the number of the call whose timestep is nearest."""
        return int(np.abs(self._times - timestep).argmin())

    def _restart(self, index: int) -> None:
        """Start the block of a call with that call; the weights of later midpoints in it do not change."""
        levels = self._levels[index:]  # type: ignore[index]
        edges = (int(levels[0]), *(edge for edge in self._blocks.edges if edge < levels[0]))
        blocks = replace(self._blocks, edges=edges)
        table = make_table(self._schedule, blocks, self._prediction)._replace(weight=self._table.weight)
        rows = make_rows(table, levels, following(levels))
        self._rows = Row(*(np.concatenate([old[:index], new]) for old, new in zip(self._rows, rows, strict=True)))

    def _next_call(self, timestep: float, slack: float = 0.0) -> int:
        """Return the number of this call: the next in turn if the timestep is that of the next.

        ``slack`` is the largest relative difference of the two.
        """
        if self._levels is None:
            raise ValueError("the timesteps are not set; call set_timesteps(num_inference_steps) before step")
        index = self._step_index
        if index is None:
            index = self._begin_index if self._begin_index is not None else self._nearest_call(timestep)
        if index >= len(self._times) or abs(self._times[index] - timestep) > slack * abs(timestep):
            index = self._nearest_call(timestep)
            self._state = None
        if self._state is None and not self._rows.first[index]:
            self._restart(index)
        return index

    def _call(
        self,
        index: int,
        sample: torch.Tensor,
        output: torch.Tensor,
        generator: torch.Generator | list[torch.Generator] | None,
        dtype: torch.dtype,
        arrival: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | float]:
        """Advance by the network's output in a call: to ``arrival``, or by noise of ``dtype``.

        Returns
        -------
        y
            Next point to call the network at.
        noise
            Standard normal noise that led there.
        """
        row = Row(*(float(column[index]) for column in self._rows))
        if row.first or self._state is None:
            zero = torch.zeros_like(sample)
            state = State(sample, sample, zero, zero, zero)
        else:
            state = self._state._replace(y=sample)
        point = noiseless_next(row, state, output)
        noise: torch.Tensor | float = 0.0
        if arrival is not None:
            state, noise = noise_between(row, state, point, arrival)
        else:
            if row.fresh_sd > 0.0:
                noise = randn_tensor(sample.shape, generator=generator, device=sample.device, dtype=dtype)
                noise = noise.to(sample.dtype)
            state = with_path(row, state, point, row.path_factor * state.path + row.fresh_sd * noise)
        if not torch.isfinite(state.y).all():
            self._raise_not_finite(index, sample, output)
        self._state = None if row.last else state
        self._step_index = index + 1
        return state.y, noise

    def _raise_not_finite(self, index: int, sample: torch.Tensor, output: torch.Tensor) -> None:
        """Raise an error that says which of the two is not finite."""
        whose, what = ("the sample", sample) if not torch.isfinite(sample).all() else ("the network's output", output)
        raise ValueError(
            f"{whose} at timestep {self._times[index]:g}, call {index + 1} of {len(self._times)}, is not finite in "
            f"{int((~torch.isfinite(what)).sum())} of {what.numel()} numbers: in half precision try bfloat16 or "
            "float32, otherwise look at the network and its input there"
        )

    def _log_density(self, index: int, noise: torch.Tensor | float, scale: float, like: torch.Tensor) -> torch.Tensor:
        """Return each sample's log density of the point that a call led to, states being ``scale`` times larger."""
        deviation = float(self._rows.fresh_sd[index]) * scale
        if deviation == 0.0:
            return torch.zeros(len(like), device=like.device)
        squares = torch.as_tensor(noise).reshape(len(like), -1).square().sum(dim=1)
        return -0.5 * squares - like[0].numel() * (math.log(deviation) + 0.5 * math.log(2.0 * math.pi))


@lru_cache(maxsize=64)
def _planned_edges(schedule: DiffusionSchedule, n_steps: int, variances: Any, like: Blocks) -> tuple[int, ...]:
    """Return the edges of planned blocks with the midpoints of others, cached since a plan takes most of a second."""
    return plan_blocks(schedule, n_steps, variances, midpoint=like.midpoint, frozen=like.frozen).edges

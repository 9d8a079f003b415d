"""What the flow scheduler for diffusers costs beside the network: ``python -m benchmarks paper.flow_cost``.

Needs torch and diffusers (``make test-diffusion`` makes an environment with them).  A step of the scheduler, against a
call of a transformer of the width and with the tokens of Stable Diffusion 3 medium at 64 by 64 latents (images of 512
by 512), but with one of its 24 layers; one image, one thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))

__all__ = ["main"]


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call, the first left out."""
    call()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return median(times)


def main() -> None:
    """Print the table."""
    import torch
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel

    from pmm_mcmc.diffusion import PoissonMidpointFlowScheduler

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = 1
    network = SD3Transformer2DModel(
        sample_size=64, patch_size=2, in_channels=16, out_channels=16, num_layers=layers, attention_head_dim=64,
        num_attention_heads=24, joint_attention_dim=4096, caption_projection_dim=1536, pooled_projection_dim=2048,
        pos_embed_max_size=96,
    ).eval()  # fmt: skip
    x = torch.randn(1, 16, 64, 64)
    words, pooled = torch.randn(1, 333, 4096), torch.randn(1, 2048)

    def called(t: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return network(x, words, pooled, t.reshape(1), return_dict=False)[0]

    ours = PoissonMidpointFlowScheduler(shift=3.0)
    theirs = FlowMatchEulerDiscreteScheduler(shift=3.0)
    began = time.perf_counter()
    ours.set_timesteps(20)
    first = time.perf_counter() - began
    again = seconds(lambda: ours.set_timesteps(20), 20)
    theirs.set_timesteps(40)
    output = called(ours.timesteps[0])

    def through(scheduler: object, **options: bool) -> float:
        def loop() -> None:
            scheduler._step_index = None
            y = x
            for t in scheduler.timesteps:
                y = scheduler.step(output, t, y, return_dict=False, **options)[0]

        return seconds(loop, 5) / 40

    network_time = seconds(lambda: called(ours.timesteps[0]), 3)
    rows = {
        "network, one layer of 24": network_time,
        "a step of ours": through(ours),
        "  with its log-probability": through(ours, return_log_prob=True),
        "a step of FlowMatchEulerDiscreteScheduler": through(theirs),
        "set_timesteps(20), the first": first,
        "set_timesteps(20), again": again,
    }
    for name, value in rows.items():
        print(f"{name:44}{1e3 * value:>10.2f} ms{100 * value / network_time:>10.2f} % of the one layer")
    print(f"torch {torch.__version__}")


if __name__ == "__main__":
    main()

"""What the tests of both schedulers share: samples, a network, and the loop of a pipeline."""

# ruff: noqa: D103
import torch

__all__ = ["SHAPE", "generators", "loop", "network", "sample"]

SHAPE = (4, 3, 8, 8)


def sample(seed=0, shape=SHAPE, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def network(x, t):
    """Return anything that is not linear in the state."""
    return torch.sin(2.0 * x + 0.01 * float(t)) + 0.3 * x


def generators(seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def loop(scheduler, x, n_steps=10, seed=0, network=network, generator=None, **options):
    """Denoise as pipelines do."""
    generator = generator or torch.Generator().manual_seed(seed)
    scheduler.set_timesteps(n_steps, **options)
    for t in scheduler.timesteps:
        x = scheduler.step(network(scheduler.scale_model_input(x, t), t), t, x, generator=generator).prev_sample
    return x

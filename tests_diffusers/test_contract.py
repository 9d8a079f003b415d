"""What diffusers asks of any scheduler, of both of ours: seeds, types, outputs, and starts in the middle of a chain."""

# ruff: noqa: D103
import pytest
import torch
from scheduler_calls import SHAPE, generators, loop, network, sample

from pmm_mcmc.diffusion.diffusers import PoissonMidpointScheduler
from pmm_mcmc.diffusion.diffusers_flow import PoissonMidpointFlowScheduler

SCHEDULERS = {"DDPM": PoissonMidpointScheduler, "flow": PoissonMidpointFlowScheduler}


@pytest.fixture(params=SCHEDULERS)
def kind(request):
    return SCHEDULERS[request.param]


def test_generators(kind):
    scheduler = kind()
    assert torch.equal(loop(scheduler, sample(), seed=3), loop(scheduler, sample(), seed=3))
    assert not torch.equal(loop(scheduler, sample(), seed=3), loop(scheduler, sample(), seed=4))
    all_four = loop(scheduler, sample(), generator=generators((1, 2, 3, 4)))
    third = loop(scheduler, sample()[2:3], generator=generators((3,)))
    assert torch.allclose(all_four[2:3], third, atol=1e-5)


def test_midpoint_seed(kind):
    def drawn(seed):
        scheduler = kind(midpoint_seed=seed)
        scheduler.set_timesteps(20)
        first = scheduler.timesteps
        scheduler.set_timesteps(20)
        return first, scheduler.timesteps

    (a, b), (c, d), (e, f) = drawn(0), drawn(1), drawn(None)
    assert torch.equal(a, b) and torch.equal(c, d) and not torch.equal(a, c) and not torch.equal(e, f)
    assert torch.equal(a[::2], c[::2]) and torch.equal(e[::2], f[::2])


def test_tuple_is_the_object(kind):
    first, second = kind(), kind()
    first.set_timesteps(5)
    second.set_timesteps(5)
    x = y = sample()
    for t in first.timesteps:
        a = first.step(network(x, t), t, x, generator=torch.Generator().manual_seed(int(t)))
        b = second.step(network(y, t), t, y, torch.Generator().manual_seed(int(t)), return_dict=False)
        assert torch.equal(a.prev_sample, b[0]) and torch.equal(a.pred_original_sample, b[1])
        x, y = a.prev_sample, b[0]


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16, torch.float16))
def test_steps_keep_shape_and_type_at_any_timestep(kind, dtype):
    scheduler = kind()
    scheduler.set_timesteps(10)
    x = sample(dtype=dtype)
    whole = (
        (0, 1, 5, torch.tensor(617), 999) if kind is PoissonMidpointScheduler else (0.5, torch.tensor(617.3), 1000.0)
    )
    for t in (*whole, scheduler.timesteps[3], scheduler.timesteps[-1]):
        for _ in range(2):
            output = scheduler.step(0.2 * x, t, x).prev_sample
            assert output.shape == x.shape and output.dtype == dtype and torch.all(torch.isfinite(output))
    assert scheduler.step_index == 20
    # Between the calls of a block half precision would add up its roundings.
    scheduler.set_timesteps(10)
    scheduler.step(0.2 * x, scheduler.timesteps[0], x)
    assert scheduler._state.path.dtype == torch.promote_types(dtype, torch.float32)


@pytest.mark.parametrize(("midpoint", "first"), [("importance", 8), ("importance", 7), ("bernoulli", 8)])
def test_starting_later_as_from_image_to_image(kind, midpoint, first):
    """At the start of a block and in the middle of one, told where or not: the later calls are those of a chain."""

    def begun(told):
        scheduler = kind(midpoint=midpoint)
        scheduler.set_timesteps(10)
        kept = scheduler.timesteps[first:]
        if told:
            scheduler.set_begin_index(first)
        x = sample()
        for t in kept:
            x = scheduler.step(0.1 * x, t, x, generator=torch.Generator().manual_seed(int(t))).prev_sample
        assert scheduler.step_index == len(scheduler.timesteps)
        assert scheduler.begin_index == (first if told else None)
        return x

    assert begun(True).shape == SHAPE and torch.equal(begun(True), begun(False))

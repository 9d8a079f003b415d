"""What diffusers asks of a scheduler, of ours: config, steps, pipelines; and that it is the method.

Networks are small functions or a tiny UNet with random weights; nothing is statistical.
"""

# ruff: noqa: D103
import json
import sys

import numpy as np
import pytest
import torch
from diffusers import DDPMPipeline, DDPMScheduler, DPMSolverMultistepScheduler, UNet2DModel
from diffusion_reference import run
from scheduler_calls import SHAPE, loop, network, sample

from pmm_mcmc.diffusion import Blocks, DiffusionSchedule, plan_blocks
from pmm_mcmc.diffusion import diffusers_calls as module
from pmm_mcmc.diffusion.diffusers import PoissonMidpointScheduler
from pmm_mcmc.diffusion.interpolation import make_table


@pytest.fixture(scope="module")
def unet():
    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=8, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(8, 8), norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
    ).eval()  # fmt: skip


def test_config_is_saved_and_loaded(tmp_path):
    scheduler = PoissonMidpointScheduler(variant="2", frozen=0.3, block_power=1.5, midpoint="uniform", beta_end=0.03)
    scheduler.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "scheduler_config.json").read_text())["frozen"] == 0.3
    loaded = PoissonMidpointScheduler.from_pretrained(tmp_path)
    assert all(loaded.config[k] == v for k, v in scheduler.config.items() if not k.startswith("_"))
    assert loaded.config.variant == "2"
    assert torch.equal(loop(loaded, sample()), loop(scheduler, sample()))


@pytest.mark.parametrize("other", (DDPMScheduler, DPMSolverMultistepScheduler))
def test_config_of_other_schedulers_and_back(other):
    theirs = other(beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, prediction_type="v_prediction")
    ours = PoissonMidpointScheduler.from_config(theirs.config, variant="2")
    assert ours.config.prediction_type == "v_prediction" and ours.config.variant == "2"
    assert torch.allclose(ours.alphas_cumprod, theirs.alphas_cumprod, rtol=1e-5)
    again = other.from_config(ours.config)
    assert again.config.beta_end == 0.012 and torch.allclose(again.alphas_cumprod, theirs.alphas_cumprod)
    assert PoissonMidpointScheduler.from_config(DDPMScheduler(clip_sample=True).config).config.clip_sample
    assert other in ours.compatibles


@pytest.mark.parametrize("name", ("linear", "scaled_linear", "squaredcos_cap_v2", "sigmoid"))
@pytest.mark.parametrize("zero", (False, True))
def test_noise_levels_are_those_of_ddpm(name, zero):
    theirs = DDPMScheduler(beta_schedule=name, rescale_betas_zero_snr=zero)
    ours = PoissonMidpointScheduler(beta_schedule=name, rescale_betas_zero_snr=zero, prediction_type="v_prediction")
    # theirs in single precision
    assert torch.allclose(ours.alphas_cumprod, theirs.alphas_cumprod, rtol=1e-3, atol=1e-7)
    x, noise, t = sample(), sample(1), torch.tensor([0, 5, 700, 999])
    assert torch.allclose(ours.add_noise(x, noise, t), theirs.add_noise(x, noise, t), atol=1e-4)
    assert torch.allclose(ours.get_velocity(x, noise, t), theirs.get_velocity(x, noise, t), atol=1e-4)
    assert len(ours) == 1000 and ours.init_noise_sigma == 1.0


def test_trained_betas(tmp_path):
    betas = np.linspace(0.001, 0.05, 60)
    scheduler = PoissonMidpointScheduler(num_train_timesteps=60, trained_betas=betas)
    assert torch.allclose(scheduler.betas, torch.tensor(betas, dtype=torch.float32))
    scheduler.save_pretrained(tmp_path)
    again = PoissonMidpointScheduler.from_pretrained(tmp_path)
    assert torch.equal(loop(again, sample()), loop(scheduler, sample()))


@pytest.mark.parametrize("n_steps", (1, 7, 25, 500))
def test_timesteps_list_every_call(n_steps):
    scheduler = PoissonMidpointScheduler()
    scheduler.set_timesteps(n_steps, device="cpu")
    t = scheduler.timesteps
    assert len(t) == 2 * n_steps and scheduler.order == 2 and scheduler.num_inference_steps == n_steps
    assert t[0] == 999 and t[-1] >= 0 and torch.all(t[1:] < t[:-1]) and t.dtype == torch.int64
    assert list(t[::2] + 1) == list(Blocks.shrinking(1000, n_steps).edges[:-1])


@pytest.mark.parametrize("midpoint", ("uniform", "bernoulli", "importance"))
@pytest.mark.parametrize("kind", ("epsilon", "sample", "v_prediction"))
def test_is_the_method_on_the_same_draws(midpoint, kind, monkeypatch):
    draws = []

    def recorded(shape, **options):
        draws.append(np.random.default_rng(len(draws)).standard_normal(shape))
        return torch.from_numpy(draws[-1])

    monkeypatch.setattr(module, "randn_tensor", recorded)
    scheduler = PoissonMidpointScheduler(prediction_type=kind, midpoint=midpoint, variant="2", midpoint_seed=4)
    x = sample(dtype=torch.float64)
    result = loop(scheduler, x, 12)
    blocks = Blocks.shrinking(1000, 12, midpoint=midpoint)
    schedule = DiffusionSchedule.named("linear", 1000, "2")
    levels = scheduler.timesteps.numpy() + 1
    wanted = run(
        schedule, blocks, lambda x, t: network(torch.from_numpy(x), t).numpy(), x.numpy(), levels,
        [*draws, 0.0 * x.numpy()], {"sample": "x0", "v_prediction": "v"}.get(kind, kind),
    )  # fmt: skip
    assert len(draws) in (len(levels), len(levels) - 1)
    assert np.abs(result.numpy() - wanted).max() < 1e-12 * np.abs(wanted).max()
    q = make_table(schedule, blocks).probability
    assert all(level in blocks.edges or q[level] > 0 for level in levels)


def test_prediction_types_agree():
    schedule = DiffusionSchedule.named("linear", 1000)
    results = []
    for name, kind in (("epsilon", "epsilon"), ("sample", "x0"), ("v_prediction", "v")):
        of_x, of_f = schedule.conversion("epsilon", kind)

        def told(x, t, of_x=of_x, of_f=of_f):
            return float(of_x[t + 1]) * x + float(of_f[t + 1]) * network(x, t)

        results.append(loop(PoissonMidpointScheduler(prediction_type=name), sample(dtype=torch.float64), network=told))
    assert torch.allclose(results[1], results[0], atol=1e-9) and torch.allclose(results[2], results[0], atol=1e-9)


def test_clipping_is_that_of_the_estimate_of_the_data():
    schedule = DiffusionSchedule.named("linear", 1000)
    p = schedule.estimates("epsilon")

    def clipped(x, t):
        data = float(p.x0_x[t + 1]) * x + float(p.x0_f[t + 1]) * network(x, t)
        return data.clamp(-0.5, 0.5)

    x = sample(dtype=torch.float64)
    ours = loop(PoissonMidpointScheduler(clip_sample=True, clip_sample_range=0.5), x)
    assert torch.allclose(
        ours, loop(PoissonMidpointScheduler(prediction_type="sample"), x, network=clipped), atol=1e-12
    )
    assert not torch.allclose(ours, loop(PoissonMidpointScheduler(), x))


def test_output_channels_of_a_learned_variance_are_left_aside():
    def with_variance(x, t):
        return torch.cat([network(x, t), torch.ones_like(x)], dim=1)

    scheduler = PoissonMidpointScheduler()
    assert torch.equal(loop(scheduler, sample(), network=with_variance), loop(scheduler, sample()))


def test_ddpm_pipeline_calls_the_network_twice_a_step(unet, tmp_path):
    calls = []
    handle = unet.register_forward_hook(lambda *_: calls.append(1))
    pipeline = DDPMPipeline(unet, PoissonMidpointScheduler())
    pipeline.set_progress_bar_config(disable=True)

    def images(p):
        generator = torch.Generator().manual_seed(0)
        return p(batch_size=2, num_inference_steps=6, generator=generator, output_type="pt").images

    first = images(pipeline)
    handle.remove()
    assert len(calls) == 12 and first.shape == (2, 3, 8, 8)
    assert torch.equal(images(pipeline), first)
    pipeline.save_pretrained(tmp_path)
    again = DDPMPipeline.from_pretrained(tmp_path)
    again.set_progress_bar_config(disable=True)
    assert type(again.scheduler) is PoissonMidpointScheduler
    assert torch.allclose(images(again), first, atol=1e-6)


def test_starting_in_the_middle_of_a_block_is_a_shorter_block():
    scheduler = PoissonMidpointScheduler(num_train_timesteps=40, variant="2", frozen="epsilon")
    scheduler.set_timesteps(timesteps=[39, 19])
    middle = int(scheduler.timesteps[1])
    x = sample(dtype=torch.float64)
    output = scheduler.step(network(x, middle), middle, x, generator=torch.Generator().manual_seed(1)).prev_sample
    noise = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    a, b, sigma = DiffusionSchedule.named("linear", 40, "2").coefficients("epsilon")
    mean, deviation = x, 0.0
    for n in range(middle + 1, 20, -1):
        mean = a[n] * mean + b[n] * network(x, middle)
        deviation = np.hypot(a[n] * deviation, sigma[n])
    assert torch.allclose(output, mean + deviation * noise, atol=1e-12)


def test_planned_blocks():
    schedule = DiffusionSchedule.named("linear", 200)
    plan = plan_blocks(schedule, 6, (0.01, 4.0))
    scheduler = PoissonMidpointScheduler(num_train_timesteps=200, data_variances=(0.01, 4.0))
    scheduler.set_timesteps(6)
    assert list(scheduler.timesteps[::2] + 1) == list(plan.edges[:-1])
    by_hand = PoissonMidpointScheduler(num_train_timesteps=200)
    by_hand.set_timesteps(timesteps=[edge - 1 for edge in plan.edges[:-1]])
    assert torch.equal(by_hand.timesteps, scheduler.timesteps) and by_hand.num_inference_steps == 6


def stepped():
    scheduler = PoissonMidpointScheduler()
    return scheduler.step(sample(), 10, sample())


BAD = {
    "too many steps": (lambda s: s.set_timesteps(501), "num_inference_steps=501 .*use 1 to 500"),
    "no steps": (lambda s: s.set_timesteps(0), "num_inference_steps=0"),
    "neither": (lambda s: s.set_timesteps(), "either num_inference_steps or timesteps"),
    "both": (lambda s: s.set_timesteps(5, timesteps=[9]), "either num_inference_steps or timesteps"),
    "timesteps": (lambda s: s.set_timesteps(timesteps=[1000, 5]), "between 0 and 999"),
    "order": (lambda s: s.set_timesteps(timesteps=[5, 900]), "do not decrease"),
    "not set": (lambda s: stepped(), "call set_timesteps"),
    "prediction": (lambda s: PoissonMidpointScheduler(prediction_type="x0"), "prediction_type='x0' is not known"),
    "thresholding": (lambda s: PoissonMidpointScheduler(thresholding=True), "use clip_sample=True"),
    "betas": (lambda s: PoissonMidpointScheduler(beta_schedule="exp"), "beta_schedule='exp' is not known"),
    "variant": (lambda s: PoissonMidpointScheduler(variant="7"), "variant='7'"),
    "midpoint": (lambda s: PoissonMidpointScheduler(midpoint="heun"), "midpoint='heun'"),
    "no signal": (lambda s: PoissonMidpointScheduler(rescale_betas_zero_snr=True), "use 'v' or 'x0'"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call(PoissonMidpointScheduler())


def test_neither_pymc_nor_jax_is_needed():
    assert not {"pymc", "pytensor", "jax", "numba"} & set(sys.modules)

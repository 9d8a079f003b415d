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

from pmm_mcmc.diffusion import Blocks, DiffusionSchedule, plan_blocks
from pmm_mcmc.diffusion import diffusers_calls as module
from pmm_mcmc.diffusion.diffusers import PoissonMidpointScheduler
from pmm_mcmc.diffusion.interpolation import make_table

SHAPE = (4, 3, 8, 8)


def sample(seed=0, shape=SHAPE, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def network(x, t):
    """Return anything that is not linear in the state."""
    return torch.sin(2.0 * x + 0.01 * float(t)) + 0.3 * x


def loop(scheduler, x, n_steps=10, seed=0, network=network, generator=None, **options):
    """Denoise as pipelines do."""
    generator = generator or torch.Generator().manual_seed(seed)
    scheduler.set_timesteps(n_steps, **options)
    for t in scheduler.timesteps:
        x = scheduler.step(network(scheduler.scale_model_input(x, t), t), t, x, generator=generator).prev_sample
    return x


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


def test_same_generator_gives_the_same_images_and_lists_of_generators_work():
    scheduler = PoissonMidpointScheduler()
    assert torch.equal(loop(scheduler, sample(), seed=3), loop(scheduler, sample(), seed=3))
    assert not torch.equal(loop(scheduler, sample(), seed=3), loop(scheduler, sample(), seed=4))

    def generators(seeds):
        return [torch.Generator().manual_seed(s) for s in seeds]

    all_four = loop(scheduler, sample(), generator=generators((1, 2, 3, 4)))
    third = loop(scheduler, sample()[2:3], generator=generators((3,)))
    assert torch.allclose(all_four[2:3], third, atol=1e-5)


def test_midpoint_seed():
    def drawn(seed):
        scheduler = PoissonMidpointScheduler(midpoint_seed=seed)
        scheduler.set_timesteps(20)
        first = scheduler.timesteps
        scheduler.set_timesteps(20)
        return first, scheduler.timesteps

    (a, b), (c, d), (e, f) = drawn(0), drawn(1), drawn(None)
    assert torch.equal(a, b) and torch.equal(c, d) and not torch.equal(a, c) and not torch.equal(e, f)
    assert torch.equal(a[::2], c[::2]) and torch.equal(e[::2], f[::2])


def test_tuple_is_the_object():
    first, second = PoissonMidpointScheduler(), PoissonMidpointScheduler()
    first.set_timesteps(5)
    second.set_timesteps(5)
    x = y = sample()
    for t in first.timesteps:
        a = first.step(network(x, t), t, x, generator=torch.Generator().manual_seed(int(t)))
        b = second.step(network(y, t), t, y, torch.Generator().manual_seed(int(t)), return_dict=False)
        assert torch.equal(a.prev_sample, b[0]) and torch.equal(a.pred_original_sample, b[1])
        x, y = a.prev_sample, b[0]


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16, torch.float16))
def test_steps_keep_shape_and_type_at_any_timestep(dtype):
    scheduler = PoissonMidpointScheduler()
    scheduler.set_timesteps(10)
    x = sample(dtype=dtype)
    for t in (0, 1, 5, torch.tensor(617), 999, scheduler.timesteps[3], scheduler.timesteps[-1]):
        for _ in range(2):
            output = scheduler.step(0.2 * x, t, x).prev_sample
            assert output.shape == x.shape and output.dtype == dtype and torch.all(torch.isfinite(output))
    assert scheduler.step_index == 20
    # Between the calls of a block half precision would add up its roundings.
    scheduler.set_timesteps(10)
    scheduler.step(0.2 * x, 999, x)
    assert scheduler._state.path.dtype == torch.promote_types(dtype, torch.float32)


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
    p = schedule.prediction("epsilon")

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


@pytest.mark.parametrize("midpoint", ("importance", "bernoulli"))
def test_starting_later_as_from_image_to_image(midpoint):
    """The later calls are those of a chain that starts there."""
    scheduler = PoissonMidpointScheduler(midpoint=midpoint, variant="2")
    scheduler.set_timesteps(10)
    first = 4 * scheduler.order
    kept = scheduler.timesteps[first:]
    scheduler.set_begin_index(first)
    x = scheduler.add_noise(torch.zeros(SHAPE), sample(), kept[:1])
    for t in kept:
        x = scheduler.step(0.1 * x, t, x, generator=torch.Generator().manual_seed(int(t))).prev_sample
    assert scheduler.begin_index == first and scheduler.step_index == len(scheduler.timesteps)
    other = PoissonMidpointScheduler(midpoint=midpoint, variant="2")
    other.set_timesteps(10)
    y = other.add_noise(torch.zeros(SHAPE), sample(), kept[:1])
    for t in kept:
        y = other.step(0.1 * y, t, y, generator=torch.Generator().manual_seed(int(t))).prev_sample
    assert torch.equal(x, y)


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

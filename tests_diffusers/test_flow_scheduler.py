"""What diffusers asks of a flow scheduler, of ours: what FlowMatchEulerDiscreteScheduler does, config, pipelines.

And that it is the method, with the densities of its steps.  Statistical is the law of the importance weights, at fixed
seeds and 5 standard errors, 6 comparisons: a false-alarm rate below 1e-5.
"""

# ruff: noqa: D103
import json
import math

import numpy as np
import pytest
import torch
from diffusers import DDPMScheduler, DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler
from diffusion_reference import run
from scheduler_calls import SHAPE, loop, network, sample
from tiny_pipelines import flux, sd3

from pmm_mcmc.diffusion import DiffusionSchedule, plan_blocks
from pmm_mcmc.diffusion import diffusers_calls as calls_module
from pmm_mcmc.diffusion.diffusers import PoissonMidpointScheduler
from pmm_mcmc.diffusion.diffusers_flow import PoissonMidpointFlowScheduler
from pmm_mcmc.diffusion.schedule import flow_scale

# As published with the models, but for their version.
CONFIGS = {
    "SD3": {"num_train_timesteps": 1000, "shift": 3.0},
    "FLUX.1-dev": {
        "base_image_seq_len": 256, "base_shift": 0.5, "max_image_seq_len": 4096, "max_shift": 1.15,
        "num_train_timesteps": 1000, "shift": 3.0, "use_dynamic_shifting": True,
    },
    "FLUX.1-schnell": {
        "base_image_seq_len": 256, "base_shift": 0.5, "max_image_seq_len": 4096, "max_shift": 1.15,
        "num_train_timesteps": 1000, "shift": 1.0, "use_dynamic_shifting": False,
    },
    "with a terminal": {
        "base_image_seq_len": 256, "base_shift": 0.5, "invert_sigmas": False, "max_image_seq_len": 8192,
        "max_shift": 0.9, "num_train_timesteps": 1000, "shift": 1.0, "shift_terminal": 0.02,
        "stochastic_sampling": False, "time_shift_type": "exponential", "use_beta_sigmas": False,
        "use_dynamic_shifting": True, "use_exponential_sigmas": False, "use_karras_sigmas": False,
    },
    "linear": {"shift": 1.0, "use_dynamic_shifting": True, "time_shift_type": "linear"},
}  # fmt: skip
MU = 0.83


def theirs_and_ours(name, **options):
    config = {"_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.30.0", **CONFIGS[name]}
    return (
        FlowMatchEulerDiscreteScheduler.from_config(config),
        PoissonMidpointFlowScheduler.from_config(config, **options),
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_config_of_a_model_and_back(name, tmp_path):
    theirs, ours = theirs_and_ours(name, noise_level=0.7)
    assert all(ours.config[k] == v for k, v in CONFIGS[name].items()) and ours.config.noise_level == 0.7
    # In training they are read before any set_timesteps.
    assert torch.allclose(ours.timesteps, theirs.timesteps, rtol=1e-6) and torch.allclose(ours.sigmas, theirs.sigmas)
    assert (ours.sigma_min, ours.sigma_max) == pytest.approx((theirs.sigma_min, theirs.sigma_max))
    assert len(ours) == len(theirs) == 1000 and ours.init_noise_sigma == 1.0 and ours.shift == theirs.shift
    again = FlowMatchEulerDiscreteScheduler.from_config(ours.config)
    assert all(again.config[k] == v for k, v in CONFIGS[name].items())
    assert FlowMatchEulerDiscreteScheduler in ours.compatibles
    ours.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "scheduler_config.json").read_text())["noise_level"] == 0.7
    loaded = PoissonMidpointFlowScheduler.from_pretrained(tmp_path)
    assert torch.equal(loop(loaded, sample(), mu=MU), loop(ours, sample(), mu=MU))


def test_config_of_a_flow_solver():
    theirs = DPMSolverMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=5.0, solver_order=2
    )
    assert PoissonMidpointFlowScheduler.from_config(theirs.config).shift == 5.0
    assert PoissonMidpointFlowScheduler.from_config(theirs.config, shift=2.0).shift == 2.0


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("n", (1, 2, 4, 28, 50, 499))
def test_sigmas_passed_in_are_where_blocks_start(name, n):
    theirs, ours = theirs_and_ours(name)
    # With one sigma a terminal is 0 over 0 for them.
    if n == 1 and "terminal" in name:
        return
    sigmas = np.linspace(1.0, 1 / n, n)
    theirs.set_timesteps(sigmas=sigmas, mu=MU)
    ours.set_timesteps(sigmas=sigmas, mu=MU)
    assert torch.allclose(ours.timesteps[::2], theirs.timesteps, rtol=1e-5)
    assert torch.allclose(ours.sigmas[::2], theirs.sigmas, rtol=1e-5)
    assert len(ours.timesteps) == 2 * n and ours.num_inference_steps == n and ours.timesteps.dtype == torch.float32
    assert torch.all(ours.timesteps[1:] < ours.timesteps[:-1]) and ours.timesteps[-1] > 0
    assert torch.allclose(ours.timesteps, 1000 * ours.sigmas[:-1])


def test_timesteps_passed_in_are_not_shifted():
    _, ours = theirs_and_ours("SD3")
    ours.set_timesteps(timesteps=[900.0, 500.0, 77.0])
    assert ours.timesteps[::2].tolist() == pytest.approx([900.0, 500.0, 77.0])


@pytest.mark.parametrize("name", CONFIGS)
def test_own_blocks_are_planned_and_can_be_passed_by_pipelines(name):
    _, ours = theirs_and_ours(name, shift_terminal=None)
    ours.set_timesteps(12, mu=MU)
    t = ours.timesteps
    shift = {"linear": MU, "SD3": 3.0, "FLUX.1-schnell": 1.0}.get(name, math.exp(MU))
    plan = plan_blocks(DiffusionSchedule.flow(1000, 1.0, shift=shift), 12)
    u = np.array(plan.edges[:-1]) / 1000
    assert np.allclose(t[::2], 1000 * shift * u / (1 + (shift - 1) * u), rtol=1e-5)
    assert ours.planned_sigmas(12, mu=MU) == pytest.approx(list(u))
    ours.set_timesteps(sigmas=ours.planned_sigmas(12, mu=MU), mu=MU)
    assert torch.allclose(ours.timesteps, t, rtol=1e-6)


@pytest.mark.parametrize("n", (1, 2, 3, 500, 700))
def test_any_number_of_steps(n):
    scheduler = PoissonMidpointFlowScheduler()
    x = loop(scheduler, sample(), n)
    assert len(scheduler.timesteps) == 2 * n and torch.all(torch.isfinite(x))


def test_shift_can_be_set():
    scheduler = PoissonMidpointFlowScheduler()
    scheduler.set_shift(3.0)
    scheduler.set_timesteps(9)
    other = PoissonMidpointFlowScheduler(shift=3.0)
    other.set_timesteps(9)
    assert torch.equal(scheduler.timesteps, other.timesteps)


def recorded(monkeypatch):
    draws = []

    def randn(shape, **options):
        draws.append(np.random.default_rng(len(draws)).standard_normal(shape))
        return torch.from_numpy(draws[-1])

    monkeypatch.setattr(calls_module, "randn_tensor", randn)
    return draws


@pytest.mark.parametrize("midpoint", ("uniform", "bernoulli", "importance"))
@pytest.mark.parametrize("noise_level", (0.0, 0.5, math.sqrt(2), 3.0))
def test_is_the_method_on_the_same_draws(midpoint, noise_level, monkeypatch):
    """In the terms of the schedule: the network called at the scaled state."""
    draws = recorded(monkeypatch)
    scheduler = PoissonMidpointFlowScheduler(
        shift=3.0, midpoint=midpoint, noise_level=noise_level, midpoint_seed=4, num_train_timesteps=200
    )
    x = sample(dtype=torch.float64)
    result = loop(scheduler, x, 12)
    schedule = DiffusionSchedule.flow(200, noise_level, shift=3.0)
    blocks = plan_blocks(schedule, 12, midpoint=midpoint)
    levels = np.array([round(200 * u) for u in (scheduler.sigmas[:-1] / (3 - 2 * scheduler.sigmas[:-1])).tolist()])

    def scaled(y, sigma):
        return network(torch.from_numpy(y * flow_scale(sigma)), 200 * sigma).numpy()

    silent = [*draws, *(0.0 * x.numpy() for _ in range(len(levels) - len(draws)))]
    wanted = run(schedule, blocks, scaled, x.numpy(), levels, silent, "flow")
    # Times are told in single precision.
    assert np.abs(result.numpy() - wanted).max() < 1e-6 * np.abs(wanted).max()


def test_tuple_is_the_object():
    first, second = PoissonMidpointFlowScheduler(), PoissonMidpointFlowScheduler()
    first.set_timesteps(5)
    second.set_timesteps(5)
    x = sample()
    for t in first.timesteps:
        a = first.step(network(x, t), t, x, generator=torch.Generator().manual_seed(1), return_log_prob=True)
        b = second.step(network(x, t), t, x, torch.Generator().manual_seed(1), return_dict=False, return_log_prob=True)
        assert all(
            torch.equal(p, q) for p, q in zip((a.prev_sample, a.pred_original_sample, a.log_prob), b, strict=True)
        )
        assert torch.allclose(a.pred_original_sample, x - t / 1000 * network(x, t), atol=1e-5)
        x = a.prev_sample


def test_timesteps_rounded_to_half_precision_are_those_that_are_next():
    def told(kind):
        scheduler = PoissonMidpointFlowScheduler(shift=6.0)
        scheduler.set_timesteps(28)
        x, generator = sample(), torch.Generator().manual_seed(0)
        for t in scheduler.timesteps:
            x = scheduler.step(torch.sin(x), t.to(kind), x, generator=generator).prev_sample
        return x

    assert torch.equal(told(torch.bfloat16), told(torch.float32))


def test_a_block_can_be_begun_again_in_its_middle():
    """Where the midpoint lies near the start, too: the timestep says which call is meant."""
    scheduler = PoissonMidpointFlowScheduler(shift=12.0)
    scheduler.set_timesteps(40)
    t, x = scheduler.timesteps, sample()
    near = next(i for i in range(0, 80, 2) if t[i + 1] > t[i] * (1 - 2.0**-9))
    first, again = (scheduler.step(x, t[near], x, torch.Generator().manual_seed(0)).prev_sample for _ in range(2))
    assert torch.equal(first, again) and scheduler.step_index == near + 1


def test_noise_is_scaled_as_theirs():
    theirs, ours = theirs_and_ours("SD3")
    x, noise = sample(), sample(1)
    for scheduler in (theirs, ours):
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 0.1, 10))
    for i in (0, 5, 9):
        t, same = theirs.timesteps[i : i + 1], ours.timesteps[2 * i : 2 * i + 1]
        assert torch.allclose(ours.scale_noise(x, same, noise), theirs.scale_noise(x, t, noise), atol=1e-5)
        assert ours.index_for_timestep(same[0]) == 2 * i
    many = ours.timesteps[[0, 3, 7, 11]]
    each = torch.cat([ours.scale_noise(x[i : i + 1], many[i], noise[i : i + 1]) for i in range(4)])
    assert torch.allclose(ours.scale_noise(x, many, noise), each)
    assert ours.scale_noise(x.to(torch.bfloat16), many, noise.to(torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("make", (sd3, flux))
@pytest.mark.parametrize("name", ("SD3", "FLUX.1-dev"))
def test_pipelines(make, name, tmp_path):
    _, scheduler = theirs_and_ours(name)
    pipeline, words = make(scheduler)
    pipeline.set_progress_bar_config(disable=True)
    calls = []
    handle = pipeline.transformer.register_forward_hook(lambda *_: calls.append(1))

    def images(p):
        torch.manual_seed(5)
        return p(**words, height=16, width=16, num_inference_steps=6, output_type="pt").images

    first = images(pipeline)
    handle.remove()
    assert len(calls) == 12 and first.shape == (2, 3, 16, 16) and torch.all(torch.isfinite(first))
    assert not torch.equal(first[0], first[1]) and torch.equal(images(pipeline), first)
    pipeline.save_pretrained(tmp_path)
    missing = {name: None for name, part in pipeline.components.items() if part is None}
    again = type(pipeline).from_pretrained(tmp_path, **missing)
    again.set_progress_bar_config(disable=True)
    assert type(again.scheduler) is PoissonMidpointFlowScheduler
    assert torch.allclose(images(again), first, atol=1e-6)


def test_flux_leaves_the_noise_levels_to_the_scheduler_if_it_may():
    def first_of(**options):
        _, scheduler = theirs_and_ours("FLUX.1-schnell", **options)
        pipeline, words = flux(scheduler)
        pipeline.set_progress_bar_config(disable=True)
        pipeline(**words, height=16, width=16, num_inference_steps=5, output_type="latent")
        return [round(t) for t in scheduler.timesteps[::2].tolist()]

    assert first_of(use_flow_sigmas=False) == [1000, 800, 600, 400, 200]
    assert first_of() == list(plan_blocks(DiffusionSchedule.flow(1000), 5).edges[:-1])


@pytest.mark.parametrize("make", (sd3, flux))
def test_pipelines_from_image_to_image(make):
    pipeline, words = make(theirs_and_ours("SD3")[1], image_to_image=True)
    pipeline.set_progress_bar_config(disable=True)
    image = torch.rand((2, 3, 16, 16), generator=torch.Generator().manual_seed(0))
    calls = []
    pipeline.transformer.register_forward_hook(lambda *_: calls.append(1))
    result = pipeline(
        **words, image=image, strength=0.75, height=16, width=16, num_inference_steps=8, output_type="pt"
    ).images
    assert result.shape == (2, 3, 16, 16) and torch.all(torch.isfinite(result))
    # FLUX counts 16 steps, as it passes sigmas, and leaves out a quarter of them, two calls each.
    assert len(calls) == (12 if make is sd3 else 8)


# Log-probabilities


def gaussian(variance):
    """Exact network for data ``N(0, variance)``."""

    def velocity(x, t):
        s = float(t) / 1000
        return x * (s - (1 - s) * variance) / ((1 - s) ** 2 * variance + s**2)

    return velocity


def walk(scheduler, x, velocity, n_steps, seed=0, states=None):
    """States and the sum of the log-probabilities of the calls; along given states if there are."""
    generator = torch.Generator().manual_seed(seed)
    scheduler.set_timesteps(n_steps)
    total, kept = 0.0, [x]
    for i, t in enumerate(scheduler.timesteps):
        to = None if states is None else states[i + 1]
        out = scheduler.step(velocity(x, t), t, x, generator, return_log_prob=True, prev_sample=to)
        x = out.prev_sample
        kept.append(x)
        total = total + out.log_prob
    return kept, total


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16))
def test_log_prob_of_what_was_drawn_is_found_again(dtype):
    """Along the states drawn, the same network gives the same log-probabilities: ratios are exactly about 1."""
    scheduler = PoissonMidpointFlowScheduler(shift=3.0)
    states, total = walk(scheduler, sample(dtype=dtype), gaussian(0.5), 8)
    again, same = walk(scheduler, states[0], gaussian(0.5), 8, states=states)
    assert all(torch.equal(p, q) for p, q in zip(states, again, strict=True)) and total.shape == (4,)
    assert states[-1].dtype == dtype
    assert torch.allclose(total, same, rtol=1e-9 if dtype == torch.float64 else 1e-4)


def test_log_prob_is_that_of_two_gaussians():
    """By the definition, in the terms of the flow: one update of the chain after the other, with its own noise."""
    scheduler = PoissonMidpointFlowScheduler(num_train_timesteps=40, noise_level=0.8, frozen="v", midpoint_seed=2)
    scheduler.set_timesteps(timesteps=[40.0, 25.0, 10.0])
    chain = np.concatenate([[0.0], np.arange(1, 41) / 40])
    first, middle = (round(float(t)) for t in scheduler.timesteps[2:4])
    assert first == 25 and 10 < middle < 25
    x, y, z = (sample(i, (3, 2), torch.float64) for i in range(3))
    said, corrected = torch.sin(3 * x), torch.cos(2 * y)

    def linear(level, state, data, noise):
        """Return mean and standard deviation of an update in which the estimates are given."""
        s, after = chain[level], chain[level - 1]
        rho = (after * (1 - s) / (s * (1 - after))) ** (0.8**2 / 2)
        return (1 - after) * data + after * rho * noise, after * math.sqrt(1 - rho**2)

    def frozen_v(state, output, level):
        """Return what is frozen, of a variance preserving state, from what a flow predicts."""
        s = chain[level]
        r, n = (1 - s) / flow_scale(s), s / flow_scale(s)
        data, noise = state - s * output, state + (1 - s) * output
        return r * noise - n * data

    def estimates(state, v, level):
        s = chain[level]
        r, n = (1 - s) / flow_scale(s), s / flow_scale(s)
        return r * state / flow_scale(s) - n * v, n * state / flow_scale(s) + r * v

    def path(level, to, state, v, deviation):
        for n in range(level, to, -1):
            inner, spread = linear(n, state, *estimates(state, v, n))
            # Linear in the state, with this factor.
            one, _ = linear(n, 1.0, *estimates(1.0, 0.0, n))
            state, deviation = inner, math.hypot(float(one) * deviation, spread)
        return state, deviation

    v = frozen_v(x, said, first)
    mean, deviation = path(first, middle, x, v, 0.0)
    wanted = torch.distributions.Normal(mean, deviation).log_prob(y).sum(dim=1)
    at = {i: float(t) for i, t in enumerate(scheduler.timesteps)}
    scheduler.set_begin_index(2)
    found = scheduler.step(said, scheduler.timesteps[2], x, prev_sample=y, return_log_prob=True).log_prob
    assert torch.allclose(found, wanted, rtol=1e-5)
    # From there on: the path goes on from y with what is frozen, and the correction is added.
    mean, deviation = path(middle, 10, y, v, 0.0)
    table = scheduler._table
    mean = mean + float(table.weight[middle]) * flow_scale(chain[10]) * (frozen_v(y, corrected, middle) - v)
    wanted = torch.distributions.Normal(mean, deviation).log_prob(z).sum(dim=1)
    found = scheduler.step(corrected, scheduler.timesteps[3], y, prev_sample=z, return_log_prob=True).log_prob
    assert torch.allclose(found, wanted, rtol=1e-5) and at[3] == pytest.approx(middle)


@pytest.mark.parametrize("noise_level", (0.5, 1.0, math.sqrt(2)))
def test_importance_weights_turn_one_law_into_another(noise_level):
    """Weights of mean 1, and under them the second moment that the other network has by itself."""
    n = 40_000
    scheduler = PoissonMidpointFlowScheduler(shift=2.0, noise_level=noise_level, midpoint_seed=3)
    x = sample(1, (n, 1), torch.float64)
    states, ours = walk(scheduler, x, gaussian(1.0), 4, seed=1)
    assert float(scheduler._rows.fresh_sd[-1]) > 0
    _, other = walk(scheduler, x, gaussian(0.9), 4, states=states)
    weight = (other - ours).exp()
    assert abs(float(weight.mean()) - 1) < 5 * float(weight.std()) / math.sqrt(n)
    wanted, _ = walk(scheduler, sample(2, (n, 1), torch.float64), gaussian(0.9), 4, seed=2)
    squares, weighted = wanted[-1][:, 0] ** 2, weight * states[-1][:, 0] ** 2
    error = math.hypot(float(squares.std()), float(weighted.std())) / math.sqrt(n)
    assert abs(float(weighted.mean() - squares.mean())) < 5 * error
    # The laws differ by far more than that.
    assert abs(float(squares.mean() - (states[-1] ** 2).mean())) > 5 * error


def test_log_prob_where_no_noise_is_added_is_nil():
    for seed in range(200):
        scheduler = PoissonMidpointFlowScheduler(num_train_timesteps=20, midpoint_seed=seed)
        scheduler.set_timesteps(timesteps=[20.0, 4.0])
        if scheduler.timesteps[-1] == 1.0:
            break
    x = sample()
    for t in scheduler.timesteps:
        out = scheduler.step(0.1 * x, t, x, return_log_prob=True)
        x = out.prev_sample
    assert torch.equal(out.log_prob, torch.zeros(4))


def test_a_policy_gradient_step_raises_the_reward():
    """REINFORCE on a flow to a point that a parameter moves; the reward is to be near 1."""
    n, scheduler = 20_000, PoissonMidpointFlowScheduler(midpoint_seed=2)
    centre = torch.zeros((), dtype=torch.float64, requires_grad=True)

    def velocity(x, t):
        s = float(t) / 1000
        return gaussian(0.25)(x - (1 - s) * centre, t) - centre

    def drawn(seed):
        with torch.no_grad():
            states, _ = walk(scheduler, sample(seed, (n, 1), torch.float64), velocity, 10, seed=seed)
        return states, -((states[-1] - 1) ** 2)[:, 0]

    states, reward = drawn(2)
    # Along the same calls, without another set_timesteps.
    total = 0.0
    for t, x, after in zip(scheduler.timesteps, states[:-1], states[1:], strict=True):
        out = scheduler.step(velocity(x, t), t, x, prev_sample=after, return_log_prob=True)
        total = total + out.log_prob
    (total * (reward - reward.mean())).mean().backward()
    # The mean of the data moves with the centre: the reward -(c - 1)^2 - 0.25 has the slope 2.
    assert float(centre.grad) == pytest.approx(2.0, abs=0.3)
    with torch.no_grad():
        centre += 0.1 * centre.grad
    assert float(drawn(3)[1].mean()) == pytest.approx(-(0.8**2) - 0.25, abs=0.1)


# Errors


def made(**options):
    return lambda _: PoissonMidpointFlowScheduler(**options)


def stepped(output=0.0, timestep=None, x=1.0, n_steps=5, ready=True, **options):
    def call(scheduler):
        if ready:
            scheduler.set_timesteps(n_steps)
        t = scheduler.timesteps[0] if timestep is None else timestep
        first = torch.full(SHAPE, x)
        return scheduler.step(
            output if isinstance(output, torch.Tensor) else torch.full(SHAPE, output), t, first, **options
        )

    return call


BAD = {
    "no steps": (lambda s: s.set_timesteps(0), "num_inference_steps=0"),
    "nothing": (lambda s: s.set_timesteps(), "give num_inference_steps, or sigmas or timesteps"),
    "both": (lambda s: s.set_timesteps(sigmas=[1.0], timesteps=[1000.0]), "not both"),
    "number": (lambda s: s.set_timesteps(3, sigmas=[1.0, 0.5]), "num_inference_steps=3, but 2 starts"),
    "rising sigmas": (lambda s: s.set_timesteps(sigmas=[0.2, 0.5]), r"sigmas=\[0.2, 0.5\] must decrease strictly"),
    "equal sigmas": (lambda s: s.set_timesteps(sigmas=[0.5, 0.5]), "must decrease strictly"),
    "a last 0": (lambda s: s.set_timesteps(sigmas=[1.0, 0.5, 0.0]), "the end at 0 is left out"),
    "timesteps as sigmas": (lambda s: s.set_timesteps(sigmas=[1000.0, 500.0]), "from at most 1 to above 0"),
    "NaN": (lambda s: s.set_timesteps(sigmas=[1.0, float("nan")]), "must decrease strictly"),
    "timesteps": (lambda s: s.set_timesteps(timesteps=[1200.0, 5.0]), "from at most 1000 to above 0"),
    "none": (lambda s: s.set_timesteps(sigmas=[]), "must decrease strictly"),
    "no mu": (lambda s: PoissonMidpointFlowScheduler(use_dynamic_shifting=True).set_timesteps(5), "mu must be passed"),
    "mu": (
        lambda s: PoissonMidpointFlowScheduler(use_dynamic_shifting=True, time_shift_type="linear").set_timesteps(
            5, mu=-1.0
        ),
        "mu=-1.0 must be a number > 0",
    ),
    "shift": (made(shift=0.0), "shift=0.0 must be a number > 0"),
    "shift type": (made(time_shift_type="cubic"), "time_shift_type='cubic'"),
    "terminal": (made(shift_terminal=1.0), "shift_terminal=1.0"),
    "noise level": (made(noise_level=-0.1), "noise_level=-0.1 must be a number >= 0"),
    "prediction": (made(prediction_type="epsilon"), "PoissonMidpointScheduler is for the others"),
    "frozen noise": (made(frozen="epsilon"), r"says nothing of the data .*where sigma = 1\); use 'v'"),
    "midpoint": (made(midpoint="heun"), "midpoint='heun'"),
    "inverted": (made(invert_sigmas=True), "invert_sigmas=True: .*not supported"),
    "karras": (made(use_karras_sigmas=True), "use_karras_sigmas=True: blocks are planned"),
    "stochastic": (made(stochastic_sampling=True), "stochastic_sampling=True: it renoises fully"),
    "not set": (stepped(ready=False), "call set_timesteps"),
    "index": (stepped(timestep=3), "timestep=3 is a whole number"),
    "index tensor": (stepped(timestep=torch.tensor(3)), "is a whole number"),
    "NaN from the network": (stepped(float("nan")), r"the network's output at timestep 1000, call 1 of 10, is not fin"),
    "NaN in the sample": (stepped(x=float("inf")), r"the sample at timestep 1000, .* in 768 of 768 numbers"),
    "shape": (stepped(torch.zeros(4, 6, 8, 8)), r"model_output has shape \(4, 6, 8, 8\), sample \(4, 3, 8, 8\)"),
    "no noise": (lambda s: s.scale_noise(sample(), torch.tensor([500.0])), "noise=None"),
    "unknown timestep": (lambda s: s.index_for_timestep(torch.tensor(0.123)), "timestep=0.123 is not among the 1000"),
    "DDPM's config": (
        lambda s: PoissonMidpointFlowScheduler.from_config(DDPMScheduler().config),
        "not the configuration of a flow-matching model .*prediction_type='epsilon'",
    ),
    "a flow's config": (
        lambda s: PoissonMidpointScheduler.from_config(FlowMatchEulerDiscreteScheduler().config),
        "use PoissonMidpointFlowScheduler.from_config",
    ),
    "a flow's prediction": (lambda s: PoissonMidpointScheduler(prediction_type="flow_prediction"), "PoissonMidpointFl"),
    "log_prob of the ODE": (
        lambda s: stepped(return_log_prob=True)(PoissonMidpointFlowScheduler(noise_level=0.0)),
        "noise_level=0 is the ODE",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_errors(case):
    call, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        call(PoissonMidpointFlowScheduler())


def test_half_precision_that_overflows_says_so():
    scheduler = PoissonMidpointFlowScheduler()
    scheduler.set_timesteps(5)
    x = torch.full(SHAPE, 6e4, dtype=torch.float16)
    with pytest.raises(ValueError, match="in half precision try bfloat16"):
        for t in scheduler.timesteps:
            # Data of 1.2e5, beyond float16, whatever the blocks.
            x = scheduler.step(torch.full_like(x, -6e4), t, x).prev_sample

"""Whether the gradients that samplers report are those that are evaluated, in short runs of one chain."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["counts"]

DRAWS = 500
HEADER = f"One chain, {DRAWS} draws: gradients reported, and really evaluated.\n\n" + (
    f"{'':16s}{'warm-up':>10s}{'evaluated':>10s}{'draws':>10s}{'evaluated':>10s}"
)


def _jax_counts(make: Any) -> tuple[int, int, int, int]:
    """Count what a sampler compiled by JAX evaluates, by a callback in the compiled code."""
    from counted import Counter

    counters: list[Counter] = []

    def counting(density: Any) -> Counter:
        counters.append(Counter(density))
        return counters[0]

    sampler = make(counting)
    before = counters[0].gradients
    sampler.begin(1)
    between = counters[0].gradients
    sampler.lengthen(DRAWS)
    run = sampler.run()
    after = counters[0].gradients
    return int(run.warmup_gradients[0]), between - before, int(run.gradients_per_draw.sum()), after - between


def _nutpie_counts(density: Any, d: int) -> tuple[int, int, int, int]:
    """Count the calls of a Python log density, which nutpie takes in place of a model."""
    import jax
    import nutpie

    calls = 0
    both = jax.jit(jax.value_and_grad(density))

    def log_density(x):
        nonlocal calls
        calls += 1
        value, gradient = both(x)
        return float(value), np.asarray(gradient)

    def expand(*_):
        return lambda x: {"x": x}

    def start(seed):
        return np.random.default_rng(seed).uniform(-1.0, 1.0, size=d)

    compiled = nutpie.compiled_pyfunc.from_pyfunc(
        d, lambda: log_density, expand, [np.dtype(np.float64)], [(d,)], ["x"], make_initial_point_fn=start
    )
    runs = []
    for draws in (1, DRAWS):
        calls = 0
        options = {"chains": 1, "cores": 1, "seed": 1, "progress_bar": False}
        dt = nutpie.sample(compiled, draws=draws, **options)
        steps = [int(dt[group]["n_steps"].sum()) for group in ("warmup_sample_stats", "sample_stats")]
        runs.append((*steps, calls))
    # The warm-up is the same in both, so that their difference is what draws took.
    (tuning, one, first), (_, all_draws, total) = runs
    return tuning, first - one, all_draws - one, total - first


def _pymc_counts(model: Any) -> tuple[int, int, int, int]:
    """Count the calls of the function that PyMC's leapfrog steps and starts of trajectories take."""
    import pymc as pm

    calls = []
    with model:
        _, step = pm.init_nuts(chains=1, random_seed=1, progressbar=False)
    inner = step.integrator._logp_dlogp_func
    where = 0

    class Counting:
        def __getattr__(self, name):
            return getattr(inner, name)

        def __call__(self, *arguments, **more):
            calls.append(where)
            return inner(*arguments, **more)

    step.integrator._logp_dlogp_func = step._logp_dlogp_func = Counting()
    point, steps = model.initial_point(0), [0, 0]
    step.setup_chain(np.random.default_rng(1), tune=500, draws=DRAWS)
    for i in range(500 + DRAWS):
        where = int(i >= 500)
        if i == 500:
            step.stop_tuning()
        point, stats = step.step(point)
        # What is called n_steps in a result.
        steps[where] += int(stats[0]["tree_size"])
    return steps[0], calls.count(0), steps[1], calls.count(1)


def counts(target: str) -> str:
    """Return the table for the samplers that are compiled by JAX, for nutpie's, and for PyMC's."""
    from jax_density import jax_log_density
    from jax_peers import MALA, MCLMC, AdjustedMCLMC
    from more_peers import NumPyroNUTS, Solver
    from targets import TARGETS, reference

    model, known = TARGETS[target].build(), reference(target)
    one: dict[str, Any] = {"model": model, "chains": 1}
    scale = np.sqrt(known.variance_of_x)
    makers = {
        "MCLMC": lambda count: MCLMC(**one, density=count),
        "adjusted MCLMC": lambda count: AdjustedMCLMC(**one, density=count),
        "BlackJAX MALA": lambda count: MALA(**one, scale=scale, density=count),
        "NumPyro NUTS": lambda count: NumPyroNUTS(**one, density=count),
        "ALIGN": lambda count: Solver(**one, kind="ALIGN", known=known, search=False, density=count),
        "QUICSORT": lambda count: Solver(**one, kind="QUICSORT", known=known, search=False, density=count),
    }
    found = {name: _jax_counts(make) for name, make in makers.items()}
    found["nutpie NUTS"] = _nutpie_counts(jax_log_density(model), len(known.second))
    found["PyMC NUTS"] = _pymc_counts(model)
    return "\n".join([HEADER, *(f"{n:16s}" + "".join(f"{v:10d}" for v in row) for n, row in found.items())])

"""Every step method, a model for them, and draws made as PyMC's loop makes them."""

import numpy as np
import pymc as pm
import pytest

import pmm_mcmc as pmm

STEPS = {
    "PoissonOLMC": lambda **o: pmm.PoissonOLMC(**o),
    "PoissonULMC K=16": lambda **o: pmm.PoissonULMC(K=16, **o),
    "PoissonULMC option 1": lambda **o: pmm.PoissonULMC(option=1, **o),
    "PoissonULMC centred": lambda **o: pmm.PoissonULMC(grid="centred", **o),
    "PoissonULMC importance": lambda **o: pmm.PoissonULMC(midpoint="importance", **o),
    "PoissonULMC recycled": lambda **o: pmm.PoissonULMC(scheme="recycled", **o),
    "OLMC": lambda **o: pmm.OLMC(**o),
    "ULMC": lambda **o: pmm.ULMC(**o),
    "RLMC overdamped": lambda **o: pmm.RLMC(dynamics="overdamped", **o),
    "RLMC underdamped": lambda **o: pmm.RLMC(dynamics="underdamped", **o),
    "GHMC": lambda **o: pmm.GHMC(**o),
}
every_step = pytest.mark.parametrize("name", STEPS)
N_TUNE, N_DRAWS = 60, 60


def small_model():
    with pm.Model() as model:
        x = pm.Normal("x", [0.0, 3.0, -2.0], [1.0, 0.1, 5.0], shape=3)
        s = pm.HalfNormal("s")
        pm.Normal("y", x.sum(), s + 0.5, observed=[0.3, -0.6, 1.9])
        pm.Deterministic("total", x.sum())
    return model


def build(model, name, **options):
    with model:
        return STEPS[name](**options)


def begin(step, model, seed=3, tune=N_TUNE, draws=N_DRAWS):
    step.setup_chain(np.random.default_rng(seed), tune, draws)
    return model.initial_point(0)


def advance(step, point, first, last, stop_at=N_TUNE):
    """Draws and statistics from ``first`` to ``last``, as PyMC's loop makes them, and the last point."""
    rows = []
    for i in range(first, last):
        if i == stop_at:
            step.stop_tuning()
        point, [stats] = step.step(point)
        stats = {key: value.tobytes() if isinstance(value, np.ndarray) else value for key, value in stats.items()}
        rows.append((*(point[key].tobytes() for key in sorted(point)), *sorted(map(repr, stats.items()))))
    return rows, point


_MAY_BE_UNKNOWN = ("friction",)


def same(first, second, group="posterior"):
    first, second = first[group].to_dataset(), second[group].to_dataset()
    return set(first) == set(second) and all(
        np.array_equal(first[name], second[name], equal_nan=name in _MAY_BE_UNKNOWN) for name in first
    )


def same_run(first, second):
    return same(first, second) and same(first, second, "sample_stats")

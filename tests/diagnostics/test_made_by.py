"""A run of PyMC's loop is judged by the steps that made it, which its statistic ``sampler`` names."""

import json

import numpy as np
from results import gaussian, grid

import pmm_mcmc as pmm

SHAPE = (4, 600)


def made_by(*steps):
    """Return the statistic of steps, each a method with its arguments."""
    texts = []
    for name, arguments in steps:
        made = {"sampler": name, "adjusted": int(name == "GHMC"), "vars": ["a"], "arguments": arguments}
        texts.append(json.dumps(made | {"keep_gradients": 1}))
    return {"sampler": np.broadcast_to(np.array(texts, dtype=object), (*SHAPE, len(texts)))}


def test_an_unadjusted_step_beside_one_with_an_acceptance_rate_is_asked_for_its_bias():
    accept = {"acceptance_rate": np.ones(SHAPE), "n_grad_total": np.ones(SHAPE, int)}
    wide = 1.2 * grid(3)
    dt = gaussian(wide, **accept, **made_by(("ULMC", {"step_size": 0.5}), ("GHMC", {})))
    assert {reason.code for reason in pmm.verdict(dt).reasons} >= {"identity", "bias"}
    assert "Take adjusted draws: give a to pmm.GHMC" in pmm.verdict(dt).sentence
    assert pmm.verdict(gaussian(grid(3), **accept, **made_by(("GHMC", {}), ("GHMC", {})))).trusted


def test_too_long_a_step_is_called_that_where_its_law_on_a_gaussian_explains_the_excess():
    """A step of 1.2 of ULMC makes a variance of 2.2 of one of 1."""
    stats = {"step_size": np.full(SHAPE, 1.2), "friction": np.ones(SHAPE), "n_grad_total": np.ones(SHAPE, int)}
    wide = np.sqrt(2.2) * grid(3)
    given = gaussian(wide, **stats, **made_by(("ULMC", {"step_size": 1.2, "scaling": [1.0] * 3})))
    assert "Take adjusted draws" in pmm.verdict(given).sentence
    automatic = gaussian(wide, **stats, **made_by(("ULMC", {})))
    assert "edge or a jump" in pmm.verdict(automatic).sentence

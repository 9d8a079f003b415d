"""Default-tuned samplers against references on posteriors of the kinds that people fit.

A parameter's posterior mean and standard deviation may differ from the reference by the bias that the settings allow
(5 % of a posterior standard deviation for either; nothing for GHMC) and 4.5 standard errors beyond it: 7e-6 for each
of some 1,500 comparisons, 1 % for the file.
"""

from __future__ import annotations

import json
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from models import MODELS

import pmm_mcmc as pmm

pytestmark = pytest.mark.longest

REFERENCES = json.loads((Path(__file__).parents[1] / "support" / "references.json").read_text())
BIAS, Z = 0.05, 4.5
SAMPLERS = {
    "PoissonULMC": (lambda: pmm.PoissonULMC(scheme="paper"), BIAS),
    "PoissonULMC(K=16)": (lambda: pmm.PoissonULMC(K=16), BIAS),
    "recycled": (lambda: pmm.PoissonULMC(scheme="recycled"), BIAS),
    "GHMC": (lambda: pmm.GHMC(), 0.0),
}
# The slower methods on one model each, so that every method meets a real posterior.
CASES = [(model, sampler) for model in MODELS for sampler in SAMPLERS]
OTHERS = {
    "PoissonOLMC": lambda: pmm.PoissonOLMC(),
    "option 1": lambda: pmm.PoissonULMC(K=16, option=1),
    "centred": lambda: pmm.PoissonULMC(K=16, grid="centred"),
    "OLMC": lambda: pmm.OLMC(),
    "ULMC": lambda: pmm.ULMC(),
    "RLMC underdamped": lambda: pmm.RLMC(),
    "RLMC overdamped": lambda: pmm.RLMC(dynamics="overdamped"),
}


@pytest.fixture(scope="module")
def models() -> dict:
    """Each model once, so that its log density is compiled once."""
    return {name: build() for name, build in MODELS.items()}


def excesses(tree, reference: dict, bias: float) -> dict[str, float]:
    """How many standard errors each moment lies beyond the allowed bias."""
    found = {}
    posterior = tree["posterior"].dataset
    for variable, entry in reference.items():
        moving = np.flatnonzero(np.array(entry["sd"]) > 1e-12)  # not the diagonal of a correlation matrix
        values = posterior[variable].values
        draws = xr.DataArray(values.reshape(*values.shape[:2], -1)[..., moving], dims=("chain", "draw", "i"))
        sd = np.array(entry["sd"])[moving]
        for kind, estimate in (("mean", draws.mean(("chain", "draw"))), ("sd", draws.std(("chain", "draw")))):
            error = np.hypot(az.mcse(draws, method=kind).values, np.array(entry[f"mcse_{kind}"])[moving])
            beyond = np.abs(estimate.values - np.array(entry[kind])[moving]) - bias * sd
            found |= {f"{kind} of {variable}[{i}]": z for i, z in zip(moving, beyond / error, strict=True)}
    return found


def check(model: pm.Model, reference: dict, build, bias: float) -> None:
    with model:
        # Two modes that mix slowly: the standard errors themselves need a longer run.
        draws = 5000 if "velocity" in model.named_vars else 1000
        options = {"progressbar": False, "compute_convergence_checks": False, "random_seed": 20}
        tree = pm.sample(draws, step=build(), chains=4, cores=1, **options)
    found = excesses(tree, reference, bias)
    bad = {name: round(float(value), 1) for name, value in found.items() if not value < Z}
    assert not bad, f"beyond the allowed bias of {bias} sd by so many standard errors: {bad}"


@pytest.mark.parametrize(("name", "sampler"), CASES)
def test_moments_agree_with_reference(models, name, sampler):
    build, bias = SAMPLERS[sampler]
    check(models[name], REFERENCES[name], build, bias)


@pytest.mark.parametrize("sampler", OTHERS)
def test_every_method_on_a_hierarchical_posterior(models, sampler):
    check(models["hierarchical normal"], REFERENCES["hierarchical normal"], OTHERS[sampler], BIAS)


def test_a_biased_chain_is_noticed(models):
    """The comparison has the power to see a bias: a step three times too large fails it."""
    with models["poisson glm"]:
        step = pmm.OLMC(step_size=0.6)
        tree = pm.sample(step=step, chains=4, cores=1, random_seed=20, progressbar=False)
    assert max(excesses(tree, REFERENCES["poisson glm"], BIAS).values()) > Z

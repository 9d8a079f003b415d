"""What ``pmm.sample`` refuses, before it begins: the message names the argument."""

import numpy as np
import pymc as pm
import pytest
from sampling_runs import run

import pmm_mcmc as pmm

pytest_plugins = ["sampling_fixtures"]


BAD = {
    "draws": {"draws": 0},
    "chains": {"chains": 2.5},
    "tune": {"tune": -1},
    "backend": {"backend": "gpu"},
    "device": {"device": "gpu"},
    "precision": {"precision": "f32"},
    "superchains": {"superchains": 4},
    "batch": {"chain_batch_size": 0},
    "random_seed": {"random_seed": -1},
    "resume": {"resume": True},
    "initvals": {"initvals": np.zeros(4)},
    "log_likelihood": {"log_likelihood": True},
    "step": {"step": "nuts"},
    "scaling": {"step": pmm.PoissonULMC(scaling=[1.0])},
    "numba": {"backend": "numba"},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused_by_name(well, name):
    with pytest.raises(ValueError, match=name):
        run(well, **BAD[name])


def test_models_that_cannot_work_are_refused(schools):
    with schools:
        part, bound = pmm.ULMC([schools["mu"]]), pmm.ULMC()
    with pytest.raises(ValueError, match=r"leave tau_log__, z out"):
        run(schools, step=part)
    with pm.Model() as other:
        pm.Normal("x")
    with pytest.raises(ValueError, match="another model"):
        run(other, step=bound)
    with pm.Model() as nowhere:
        pm.Potential("p", pm.math.log(-1.0 - pm.Normal("x") ** 2))
    with pytest.raises(pm.exceptions.SamplingError, match=r"not finite at the initial point.*p \("):
        run(nowhere, "numba")


def test_a_run_that_would_not_fit_is_refused_with_the_numbers(schools, monkeypatch):
    monkeypatch.setattr("pmm_mcmc.run.memory.available_bytes", lambda: 10**6)
    with pytest.raises(ValueError, match=r"6 chains of 9999 draws.*available.*store="):
        run(schools, "numba", draws=9999)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("keep", {"keep": "means"}),
        ("store", {"store": "a.zarr"}),
        ("discard_tuned_samples", {"discard_tuned_samples": False}),
    ],
)
def test_what_moments_do_not_go_with_is_refused(schools, name, options):
    with pytest.raises(ValueError, match=name):
        run(schools, **({"keep": "moments"} | options))

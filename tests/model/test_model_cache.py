"""What is compiled for a model is freed with it, and is neither copied nor pickled with it.  Nothing here is random."""

import copy
import gc
import pickle
import weakref

import cloudpickle
import pymc as pm
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.model.functions import model_cache

pytestmark = pytest.mark.pymc


def hierarchy():
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("x", mu, pm.HalfNormal("scale"), shape=3)
    return model


@pytest.mark.parametrize("options", [{}, {"backend": "numba"}, {"backend": "jax"}, {"ladder": 3}], ids=str)
def test_a_model_and_its_machine_code_are_freed(options):
    # A loop over simulated data builds a model a turn: programs of JAX take hundreds of mappings of memory each, of
    # which Linux gives a process 65,530.
    model = hierarchy()
    with model:
        draw = pmm.temper if "ladder" in options else pmm.sample
        draw(20, tune=20, chains=8, progressbar=False, compute_convergence_checks=False, random_seed=1, **options)
    assert sum(map(len, model._pmm_mcmc.values()))
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda model: cloudpickle.loads(cloudpickle.dumps(model))]
)
def test_copies_of_a_model_hold_nothing_compiled(copied):
    model = hierarchy()
    model_cache(model, "log density")["key"] = lambda: "an address"
    assert model_cache(model, "log density")["key"]() == "an address"
    assert model_cache(copied(model), "log density") == {}
    assert pickle.loads(pickle.dumps(model._pmm_mcmc)) == {}

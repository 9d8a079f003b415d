"""Log densities with operations of Python code alone, which PyTensor does not cache: black boxes, splines, solvers."""

import logging
import os
import subprocess
import sys

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.printing import Print
from scipy import integrate

import pmm_mcmc as pmm

pytestmark = [
    pytest.mark.pymc,
    pytest.mark.filterwarnings("ignore:Numba will use object mode", "ignore:SplineWrapper should implement"),
]
ROWS = np.arange(10.0)
Y = 0.5 * ROWS + 1.0 + np.random.default_rng(0).normal(size=10)
NUMBERS = np.linspace(-3.0, 3.0, 50)
RUN = {"random_seed": 1, "progressbar": False, "compute_convergence_checks": False}


class Gradient(Op):
    """Of the log density of a line."""

    def make_node(self, t):
        return Apply(self, [pt.as_tensor(t)], [pt.vector()])

    def perform(self, node, inputs, output_storage):
        residual = Y - inputs[0][0] * ROWS - inputs[0][1]
        output_storage[0][0] = np.array([residual @ ROWS, residual.sum()])


class BlackBox(Op):
    """The log density of a line, which fails from a slope on."""

    def __init__(self, largest=np.inf):
        self.largest = largest

    def make_node(self, t):
        return Apply(self, [pt.as_tensor(t)], [pt.dscalar()])

    def perform(self, node, inputs, output_storage):
        if inputs[0][0] > self.largest:
            raise ValueError("the solver failed")
        residual = Y - inputs[0][0] * ROWS - inputs[0][1]
        output_storage[0][0] = np.array(-0.5 * residual @ residual)

    def pullback(self, inputs, outputs, cotangents):
        return [cotangents[0] * Gradient()(inputs[0])]


def black_box(largest=np.inf):
    with pm.Model() as model:
        t = pm.Normal("t", 0.0, 2.0, shape=2)
        pm.Potential("line", BlackBox(largest)(t))
    precision = np.array([[ROWS @ ROWS, ROWS.sum()], [ROWS.sum(), 10.0]]) + 0.25 * np.eye(2)
    return model, "t", np.linalg.solve(precision, [ROWS @ Y, Y.sum()])


def interpolated():
    with pm.Model() as model:
        pm.Interpolated("b", NUMBERS, np.exp(-((NUMBERS - 0.5) ** 2) / 2.0))
    weights = np.exp(-((NUMBERS - 0.5) ** 2) / 2.0)
    mean = integrate.simpson(NUMBERS * weights, x=NUMBERS) / integrate.simpson(weights, x=NUMBERS)
    return model, "b", mean


def printed():
    with pm.Model() as model:
        a = pm.Normal("a")
        pm.Normal("y", Print("a", global_fn=lambda op, value: None)(a), 1.0, observed=[1.0, 2.0])
    return model, "a", 1.0


@pytest.mark.parametrize("make", [black_box, interpolated, printed])
def test_chains_begin_on_a_tape(make):
    model, name, mean = make()
    tree = pmm.sample(400, chains=4, model=model, **RUN)
    assert tree["posterior"].attrs["backend"].startswith("tape")
    error = tree["posterior"][name].values.mean(axis=(0, 1)) - mean
    assert np.all(np.abs(error) < 0.15 * tree["posterior"][name].values.std(axis=(0, 1)))


def test_both_doors_sample_them_with_numba():
    model, name, mean = black_box()
    alone = pmm.sample(50, tune=100, chains=2, model=model, backend="numba", **RUN)
    on_tape = pmm.sample(50, tune=100, chains=2, model=model, backend="tape", **RUN)
    np.testing.assert_allclose(alone["posterior"][name].values, on_tape["posterior"][name].values, rtol=1e-6)
    with model:
        step = pmm.PoissonULMC()
        tree = pm.sample(200, tune=200, chains=2, cores=1, step=step, **RUN)
    assert np.abs(tree["posterior"][name].values.mean(axis=(0, 1)) - mean).max() < 0.5


@pytest.mark.parametrize("backend", ["tape", "numba"])
def test_a_failure_counts_as_a_density_that_is_not_finite(backend, caplog):
    model, name, _ = black_box(largest=0.6)
    tree = pmm.sample(200, chains=2, model=model, backend=backend, **RUN)
    assert tree["posterior"][name].values[..., 0].max() <= 0.6
    if backend == "tape":
        failures = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert "BlackBox failed" in failures[0].message and "the solver failed" in failures[0].message


def test_jax_says_which_operation_it_has_not():
    with pytest.raises(ValueError, match=r"(BlackBox|Gradient), an operation .* is not written for JAX"):
        pmm.sample(model=black_box()[0], backend="jax", **RUN)


def test_functions_that_are_not_cached_are_called():
    script = (
        "import pymc as pm, pmm_mcmc as pmm\n"
        "with pm.Model():\n"
        "    X = pm.Data('X', [0.0, 1.0, 2.0])\n"
        "    pm.Normal('y', pm.Normal('a') * X, pm.HalfNormal('s'), observed=[1.0, 2.0, 3.0])\n"
        "    tree = pmm.sample(20, tune=20, chains=2, backend='numba', random_seed=1, progressbar=False)\n"
        "assert tree['posterior'].attrs['backend'] == 'numba'\n"
    )
    flags = os.environ.get("PYTENSOR_FLAGS", "")
    environment = {**os.environ, "PYTENSOR_FLAGS": f"{flags},numba__cache=False".strip(",")}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment, timeout=300)

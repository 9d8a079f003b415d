"""Short runs of ``pmm.sample`` and ``pmm.temper`` that tests share, what results are compared by, a black box."""

import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pmm_mcmc as pmm

BACKENDS = ("numba", "jax")
QUIET = {"progressbar": False, "compute_convergence_checks": False}


def run(model, backend="auto", step=None, **options):
    step = pmm.PoissonULMC(K=16) if step is None else step
    options = QUIET | {"draws": 30, "tune": 160, "chains": 6, "random_seed": 3} | options
    return pmm.sample(step=step, model=model, backend=backend, **options)


def temper(model, backend="auto", **options):
    return pmm.temper(model=model, backend=backend, **QUIET | {"tune": 300, "random_seed": 3} | options)


def numbers(tree):
    """Every array of a result but those that tell the time, and how a run in memory goes on."""
    groups = [group for group in tree.children if group != "checkpoint"]
    return {f"{group}/{name}": values.values for group in groups for name, values in tree[group].data_vars.items()}


def assert_same(a, b):
    one, two = numbers(a), numbers(b)
    assert one.keys() == two.keys()
    for name, values in one.items():
        assert values.dtype == two[name].dtype and values.tobytes() == two[name].tobytes(), name


class Stop:
    """Stops a run after so many chunks."""

    def __init__(self, chunks):
        self.left = chunks

    def __call__(self, drawn):
        self.left -= 1
        if self.left == 0:
            raise pmm.StopSampling


class Opaque(Op):
    """Twice its input, without a gradient."""

    def make_node(self, x):
        x = pt.as_tensor(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = 2.0 * inputs[0]

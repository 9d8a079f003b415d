"""Every operation of the table against PyTensor's own evaluation: shapes, layouts, NaN and infinities."""

import os
import subprocess
import sys

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
from pytensor.raise_op import Assert
from pytensor.scalar.loop import ScalarLoop
from pytensor.scan.utils import until
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.solvers.triangular import SolveTriangular
from tapes import agree, by_tape, inputs_of

from pmm_mcmc.coordinates.groups import noncentred_groups
from pmm_mcmc.coordinates.walk import noncentred_walk
from pmm_mcmc.tape import table
from pmm_mcmc.tape.build import Unsupported

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.3, -0.7, 2.5, -40.0, 40.0, 1e-9, -1e-9, 700.0])
# Pairs of shapes that broadcast: one element, none, more axes than a loop has.
SHAPES = [((), ()), ((3,), ()), ((4, 1), (5,)), ((0, 3), (3,)), ((2, 3, 4), (3, 1)), ((3, 2), (3, 2)), ((1, 1), (7,))]
SIZES = [(1, 1, 1), (3, 1, 2), (4, 3, 5), (7, 5, 1), (1, 5, 7), (0, 3, 2), (2, 0, 3), (40, 40, 1)]
SCALARS = sorted({*table._CODES, *table._FUNCTIONS, *table._SCALARS})
OF_SCIPY = ["Erf", "Erfc", "Erfcx", "Erfinv", "Gamma", "GammaLn", "Psi", "I0", "J1", "GammaInc", "Jv", "BetaInc"]
LOGICAL = {"AND": 2, "OR": 2, "XOR": 2, "Invert": 1}
ARITY = {"Switch": 3, "Clip": 3, "BetaInc": 3} | LOGICAL


def scalar(name):
    """Return a scalar operation by the name of its class, and its number of arguments."""
    import pytensor.scalar.math as psm

    kind = getattr(ps, name, None) or getattr(ps.basic, name, None) or getattr(psm, name)
    if name == "Cast":
        return ps.basic.convert_to_int64, 1
    instances = [op for module in (ps.basic, psm) for op in vars(module).values() if type(op) is kind]
    op = instances[0]
    n = ARITY.get(name) or (op.nin if op.nin > 0 else getattr(op, "nfunc_spec", ("", 2))[1])
    return op, n


def arguments(name, values):
    return [pt.gt(value, 0.0) for value in values] if name in LOGICAL else values


@pytest.mark.parametrize("arguments_of", [1, 2, 3])
def test_scalar_functions_at_special_numbers(arguments_of):
    flat, values = inputs_of(*[(len(SPECIAL),)] * arguments_of)
    numbers = np.concatenate([np.roll(SPECIAL, 4 * i) for i in range(arguments_of)])
    operations = {name: op for name in SCALARS + OF_SCIPY for op, n in [scalar(name)] if n == arguments_of}
    if operations.pop("Cast", None):
        agree(flat, [Elemwise(scalar("Cast")[0])(*values)], np.nan_to_num(numbers, posinf=3.9, neginf=-3.9))
    assert operations
    for name, op in operations.items():
        agree(flat, [Elemwise(op)(*arguments(name, values))], numbers, 1e-11, name)


@pytest.mark.parametrize("name", ["Add", "Switch", "LT", "Pow", "Maximum"])
def test_operands_are_broadcast(name):
    op, n = scalar(name)
    for shapes in SHAPES:
        flat, values = inputs_of(*(*shapes, ())[:n])
        numbers = np.random.default_rng(1).normal(size=flat.type.shape[0])
        agree(flat, [Elemwise(op)(*values)], numbers, what=shapes)


def test_operands_of_any_strides():
    flat, (x, y) = inputs_of((4, 6), (6, 4))
    numbers = np.random.default_rng(2).normal(size=48)
    agree(flat, [x[::2, ::-1] + y.T[1::2, :], x[:, 1] * y[2], (x.T - y)[::-2].T, x[None] + y.T[:, None]], numbers)


@pytest.mark.parametrize("op", ["add", "mul", "maximum", "minimum", "and_", "or_"])
def test_reductions(op):
    flat, (x,) = inputs_of((2, 3, 4))
    numbers = np.random.default_rng(3).normal(size=24)
    value = x > 0.0 if op.endswith("_") else x
    for axes in [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2), None]:
        reduced = CAReduce(getattr(ps, op), axis=axes)
        agree(flat, [reduced(value), reduced(value[:, ::-1])], numbers, what=axes)


@pytest.mark.parametrize("numbers", [[np.nan, 1.0, 2.0], [np.inf, -np.inf, 0.0], [-np.inf, -np.inf, -np.inf]], ids=str)
def test_reductions_of_special_numbers(numbers):
    flat, (x,) = inputs_of((3,))
    agree(flat, [x.sum(), x.prod(), x.max(), x.min(), pt.cumsum(x, axis=0)], np.array(numbers))


def test_reductions_of_nothing():
    flat, (x,) = inputs_of((0, 3))
    agree(flat, [x.sum(axis=0), x.sum(), x.prod(axis=0), x.sum(axis=1), pt.cumsum(x, axis=0)], np.empty(0))
    with pytest.raises(Unsupported, match="largest of nothing"):
        by_tape(flat, [CAReduce(ps.maximum, axis=(0,))(x)], np.empty(0))


def test_indices():
    flat, (x,) = inputs_of((4, 5))
    numbers = np.arange(20.0)
    i, j = np.array([0, -1, 2, 2]), np.array([[1], [-2]])
    agree(
        flat,
        [x[i], x[:, i], x[i, 1], x[j, i], x[::-1][i], x.T[i], x[1], x[-1, 2:], x[:0], x[np.array([], int)]],
        numbers,
    )


def test_increments():
    flat, (x, y, row) = inputs_of((4, 5), (4, 5), (5,))
    numbers = np.random.default_rng(4).normal(size=45)
    i = np.array([0, 2, 2, -1])
    agree(
        flat,
        [
            pt.inc_subtensor(x[i], y), pt.inc_subtensor(x[i], row), pt.inc_subtensor(x.T[i], y.T[:4]),
            x[1:, 2].inc(row[:3]),
            pt.set_subtensor(x[np.array([3, 1])], y[:2]), pt.set_subtensor(x[::2, ::-1], y[1:3]), x[1].set(0.5),
            pt.inc_subtensor(pt.zeros((4, 5))[i, np.array([1, 1, 1, 0])], row[:4]),
        ],
        numbers,
    )  # fmt: skip


def test_joined_and_split():
    flat, (x, y) = inputs_of((2, 3), (2, 2))
    numbers = np.arange(10.0)
    parts = pt.split(x, [1, 0, 2], axis=1)
    agree(flat, [pt.join(1, x, y), pt.join(0, x.T, y), *parts, pt.stack([x[0, 0], y[1, 1], x[1, 2]])], numbers)


def test_shapes():
    flat, (x,) = inputs_of((2, 1, 3))
    numbers = np.arange(6.0)
    agree(
        flat,
        [x.transpose(2, 0, 1).reshape((3, 2)), x[:, 0].T.ravel(), x.dimshuffle("x", 2, 1, 0), pt.alloc(x[0], 4, 1, 3),
         pt.specify_shape(x, (2, 1, 3)), x.shape[2] * x, pt.diagonal(x[:, 0], offset=1), pt.diag(x[0, 0])],
        numbers,
    )  # fmt: skip


@pytest.mark.parametrize(
    "m, k, n", [(1, 1, 1), (3, 1, 2), (4, 3, 5), (7, 5, 1), (1, 5, 7), (0, 3, 2), (2, 0, 3), (40, 40, 1)]
)
def test_products_of_any_layout(m, k, n):
    flat, (x, y, xt, yt) = inputs_of((m, k), (k, n), (k, m), (n, k))
    numbers = np.random.default_rng(5).normal(size=flat.type.shape[0])
    dot = pt.math.Dot()
    outputs = [
        dot(x, y),
        dot(xt.T, yt.T),
        dot(x[::-1], y),
        dot(x, yt.T[:, ::-1]),
        dot(xt.T, y),
        dot(np.ones((2, m)), x),
    ]
    agree(flat, outputs, numbers)


@pytest.mark.parametrize("lower", [True, False])
def test_factors_and_solutions(lower):
    flat, (a, b, c) = inputs_of((4, 4), (4, 3), (4,))
    numbers = np.random.default_rng(6).normal(size=32)
    spd = pt.math.Dot()(a, a.T) + 3.0 * np.eye(4)
    factor = Cholesky(lower=lower)(spd)
    solutions = [SolveTriangular(lower=low, unit_diagonal=unit, b_ndim=rhs.ndim)(matrix, rhs)
                 for matrix, low in ((factor, lower), (factor.T, not lower)) for rhs in (b, b.T[:1].T, c)
                 for unit in (False, True)]  # fmt: skip
    agree(flat, [factor, *solutions], numbers, rtol=1e-10)


@pytest.mark.parametrize("p, n", [(1, 1), (1, 7), (3, 2), (2, 6)])
def test_walks_and_their_adjoints(p, n):
    flat, values = inputs_of((p,), (n,), (n,), (n,), (n,), (n,))
    numbers = np.random.default_rng(8).normal(size=p + 5 * n)
    rho, v, mu, a, h, z = values
    x, log_det = noncentred_walk(rho, pt.exp(v), mu[::-1], a, pt.exp(h), z)
    gradient = pt.grad((x**3).sum() + pt.sin(log_det), values)
    agree(flat, [x, log_det, *gradient], numbers, rtol=1e-11)


@pytest.mark.parametrize("G, K", [(1, 1), (1, 4), (5, 2), (3, 3)])
def test_groups_and_their_adjoints(G, K):
    flat, values = inputs_of((G, K), (K, K), (G, K), (G, K, K), (G, K))
    numbers = np.random.default_rng(9).normal(size=flat.type.shape[0])
    mu, L, a, root, z = values
    L = pt.tril(L, -1) + pt.diag(pt.exp(pt.diagonal(L)))
    H = pt.constant(np.ones((G, K, K)) + np.eye(K))
    x, log_det = noncentred_groups(mu, L, a.T.copy().T, H, z)
    gradient = pt.grad((x**3).sum() + pt.sin(log_det), [mu, values[1], z], consider_constant=[root])
    agree(flat, [x, log_det, *gradient], numbers, rtol=1e-10)


@pytest.mark.parametrize("make", [
    lambda x, y: x + y[:, ::-1], lambda x, y: (x.dimshuffle(2, 0, 1) * y.dimshuffle(2, 0, 1)).sum(axis=1),
    lambda x, y: pt.exp(x[:, None] * y[None]).max(axis=(1, 3)), lambda x, y: pt.cumprod(x + y, axis=1),
    lambda x, y: (x @ y.mT).sum(axis=0), lambda x, y: pt.set_subtensor(x[:, ::2], y[:, ::2]).dimshuffle(1, 2, 0),
], ids=["sum", "transposed", "four", "cumulative", "products", "set"])  # fmt: skip
def test_more_axes_than_two(make):
    flat, (x, y) = inputs_of((11, 9, 10), (11, 9, 10))
    agree(flat, [make(x, y)], np.random.default_rng(4).normal(size=flat.type.shape[0]), rtol=1e-11)


def test_products_that_accumulate():
    flat, (x,) = inputs_of((3, 4))
    numbers = np.array([2.0, 0.0, np.inf, 1.0, np.nan, 3.0, -1.0, 0.5, 1.5, 2.5, -2.0, 4.0])
    agree(flat, [pt.cumprod(x, axis=1), pt.cumprod(x[::-1], axis=0), pt.cumprod(x), pt.cumsum(x.T)], numbers)


@pytest.mark.parametrize("make", [
    lambda a, x: pt.grad(pt.gammainc(a, x).sum(), a), lambda a, x: pt.grad(pt.gammaincc(a, x).sum(), a),
    lambda a, x: pt.grad(pt.betainc(a, x + 1.0, 0.3).sum(), a), lambda a, x: pt.hyp2f1(a, x, a + 1.0, 0.4),
], ids=["gammainc", "gammaincc", "betainc", "hyp2f1"])  # fmt: skip
def test_loops_of_scalars(make):
    flat, (a, x) = inputs_of((6,), (6,))
    numbers = np.append([0.3, 1.0, 2.5, 7.0, 20.0, 0.1], [0.1, 3.0, 2.0, 12.0, 18.0, 5.0])
    agree(flat, [make(a, x)], numbers, rtol=1e-9)


def test_buffers_that_a_loop_reads_again_are_kept():
    state, constant = ps.float64("state"), ps.float64("constant")
    turn = ScalarLoop([state], [ps.sqrt(state + ps.exp(constant) * constant)], [constant])
    flat, (x, y) = inputs_of((3,), (3,))
    agree(flat, [Elemwise(turn)(5, pt.exp(x), pt.exp(y)) + y * pt.sqrt(pt.exp(x))], np.linspace(0.1, 1.0, 6))


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint8", "int32"])
def test_whole_numbers_wrap_around(dtype):
    flat, (x,) = inputs_of((4,))
    small = pt.cast(x, dtype)
    outputs = [small * small, small + np.array(100, dtype), -small, small - np.array(100, dtype)]
    agree(flat, outputs, np.array([0.0, 3.0, 100.0, 127.0]))


def test_more_terms_than_a_function_of_numpy_takes():
    flat, (x,) = inputs_of((40,))
    total = Elemwise(ps.add)(*(x[i] * (i + 1.0) for i in range(40)))
    numbers = np.linspace(0.1, 2.0, 40)
    (mine,), _ = by_tape(flat, [total], numbers)
    (folded,), _ = by_tape(pt.vector("none", shape=(0,)), [total], np.empty(0), [(flat, numbers)])
    np.testing.assert_allclose([mine, folded], numbers @ np.arange(1.0, 41.0), rtol=1e-12)


def test_constants_that_are_none():
    flat, (x,) = inputs_of((4, 3))
    agree(flat, [x[:, None, pt.constant([0, 2])], pt.squeeze(x[None])], np.arange(12.0))


def test_no_factor_is_nan():
    flat, (a,) = inputs_of((2, 2))
    (factor,), held = by_tape(flat, [Cholesky(lower=True)(a)], np.array([1.0, 2.0, 2.0, 1.0]))
    assert held
    assert np.isnan(factor).all()
    agree(flat, [Cholesky(lower=True)(a)], np.array([4.0, 2.0, 2.0, 3.0]))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_softmax(axis):
    flat, (x,) = inputs_of((3, 4))
    numbers = 30.0 * np.random.default_rng(7).normal(size=12)
    agree(flat, [pt.special.softmax(x, axis=axis), pt.special.log_softmax(x, axis=axis)], numbers)


@pytest.mark.parametrize("last, holds", [(0.5, True), (-0.5, False), (np.nan, False)])
def test_checks(last, holds):
    flat, (x,) = inputs_of((3,))
    checked = Assert("x > 0")(x, pt.all(x > 0.0))
    assert by_tape(flat, [checked], np.array([1.0, 2.0, last]))[1] is holds


def test_single_precision_is_rounded():
    flat, (x,) = inputs_of((3,))
    numbers = np.array([0.1, 1.0 / 3.0, 1e-8])
    agree(flat, [pt.cast(x, "float32") * np.float32(1.1)], numbers, rtol=0.0)


@pytest.mark.parametrize("make", [
    lambda x: x[pt.cast(x[0], "int64")], lambda x: x.astype("complex128"),
    lambda x: pytensor.scan(lambda s: (2.0 * s, until(s > 3.0)), outputs_info=x[0], n_steps=9, return_updates=False),
    lambda x: pytensor.scan(lambda s: 1.0 + s, outputs_info=x, n_steps=30_000, return_updates=False),
], ids=["index", "complex", "scan that ends", "long scan"])  # fmt: skip
def test_what_no_tape_runs(make):
    flat, (x,) = inputs_of((3,))
    with pytest.raises(Unsupported):
        by_tape(flat, [make(x)], np.ones(3))


def of_sequence(x, y):
    return pytensor.scan(lambda t, s, y: pt.sqrt(y[0] * t**2 + y[1] * s**2), x, y[0], y, return_updates=False)


def of_two_before(x, y):
    states = pytensor.scan(
        lambda t, a, b, y: a * y[1] + pt.tanh(b) + t,
        x, {"initial": x[:2], "taps": [-2, -1]}, y, return_updates=False,
    )  # fmt: skip
    return states[-1] * states[2:5].sum()


def of_vectors(x, y):
    states, squares = pytensor.scan(
        lambda t, s: (pt.sin(s) + t * s[::-1], (s**2).sum()), x, [y, None], return_updates=False
    )
    return states[-1].sum() + squares * x


@pytest.mark.parametrize("make", [of_sequence, of_two_before, of_vectors])
def test_scans(make):
    """States from one and two steps before, of numbers and of vectors, results of each step, and their gradients."""
    flat, (x, y) = inputs_of((7,), (2,))
    numbers = np.random.default_rng(8).uniform(0.2, 1.5, size=9)
    result = make(x, y)
    agree(flat, [result, pt.grad(result.sum(), flat)], numbers)


def test_an_index_that_depends_on_the_position():
    flat, (x,) = inputs_of((6,))
    in_order = pt.sort(x)
    weighed = (in_order * np.arange(6.0)).sum()
    agree(flat, [in_order, pt.grad(weighed, flat)], np.array([3.0, 1.0, 2.5, -1.0, 7.0, 0.0]))


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs(seed):
    rng = np.random.default_rng(seed)
    flat, values = inputs_of((3, 4), (4,), (3, 1), ())
    unary = [pt.exp, pt.tanh, pt.sqr, pt.neg, pt.sigmoid, lambda x: x.T, lambda x: pt.log1p(pt.sqr(x))]
    of_axes = [
        lambda x: x[::-1], lambda x: x.sum(axis=-1), lambda x: x.max(axis=0), lambda x: pt.cumsum(x, axis=0),
        lambda x: x[np.array([0, -1, 0])],
    ]  # fmt: skip
    binary = [pt.add, pt.mul, pt.sub, pt.maximum, lambda x, y: pt.switch(x > y, x, y), lambda x, y: x / (1 + y * y)]
    for _ in range(30):
        x = values[rng.integers(len(values))]
        if rng.random() < 0.5:
            possible = unary + of_axes if x.ndim else unary
            values.append(possible[rng.integers(len(possible))](x))
            continue
        y = values[rng.integers(len(values))]
        shapes = [tuple(each.type.shape) for each in (x, y)]
        try:
            np.broadcast_shapes(*shapes)
        except ValueError:
            continue
        values.append(pt.tanh(binary[rng.integers(len(binary))](x, y)))
    agree(flat, values[4:], rng.normal(size=20))


def test_bounds():
    """The same again where numba checks every index."""
    environment = os.environ | {"NUMBA_BOUNDSCHECK": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", "not bounds", __file__]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout[-2000:]

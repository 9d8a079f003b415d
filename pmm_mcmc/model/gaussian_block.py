r"""Variables that are Gaussian given all others, integrated out of a PyMC model, and drawn back exactly.

Of the *block* ``b`` ``(p,)`` each variable is normal with a location that is affine in the others of the block, and
enters nothing but locations of normal likelihoods, in which it is affine too; scales depend on the rest :math:`\theta`
alone.  Every term of the log density that has ``b`` is then that of a residual
:math:`e_k(\theta, b) = r_k(\theta) - A_k(\theta)\, b` with standard deviations :math:`s_k(\theta)`, and with
:math:`D = \mathrm{diag}(s^{-2})` of all terms together

.. math::
    P = A^T D A, \quad P m = A^T D\, r, \quad
    \log p(y, \theta) = \log p(\theta) - \tfrac12 (r - A m)^T D\, (r - A m) - \sum \log s - \tfrac12 \log\det P
    - \tfrac{n - p}{2} \log 2\pi, \quad b \mid \theta, y \sim N(m, P^{-1}).

That a residual is affine is seen by its derivative along ``b``, which has no ``b`` in it: there is no list of
operations.  Where neither ``A_k`` nor ``r_k`` depends on :math:`\theta`, a term is three constants, of ``p^2``, ``p``
and one numbers, whatever the number of its data.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import disconnected_grad, pushforward
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.xtensor.type import XTensorType

from pmm_mcmc.model.functions import building, model_cache, python_function, state_of
from pmm_mcmc.model.hierarchy import Law, family_of, law_of

__all__ = ["MARGINAL", "GaussianBlock", "gaussian_names", "integrated_model"]

_log = logging.getLogger("pmm_mcmc")

# The name of the potential that stands for a block and its likelihoods.
MARGINAL = "marginal likelihood"
_LOG_2PI = float(np.log(2.0 * np.pi))
# Walks, of which the non-centring takes as many operations as elements, are integrated out by request alone.
_BY_ITSELF = ("NormalRV", "MvNormalRV", "ZeroSumNormalRV")
_NORMAL = (*_BY_ITSELF, "RandomWalkRV")
_FLAT = ("FlatRV",)
# Their last parameters are scales; all parameters of others are taken for one where a block is looked for.
_BY_SCALE = ("NormalRV", "MvNormalRV")
# Most coefficients of a block that nobody has asked for: 80 MB.
_MOST_NUMBERS = 10**7


class _Term(NamedTuple):
    """A normal term of a log density: its residual ``(n,)`` and standard deviations, ``()`` or ``(n,)``, as graphs.

    ``log_volume`` is the sum of the logarithms of the standard deviations of all ``n``; residuals may have been
    ``whitened`` by a covariance.
    """

    residual: Any
    sd: Any
    log_volume: Any
    whitened: bool = False


@dataclass(frozen=True, eq=False)
class GaussianBlock:
    """A model without the variables of its Gaussian block, and what draws them back.

    Attributes
    ----------
    names, values, likelihoods
        Names of the variables of the block, of their value variables, and of the observed ones that depend on them.
    rest
        The model of the other variables, with value variables of the whole model.
    rows, rows_summed, rows_dependent
        The number of residuals; of those whose squares are summed anew at each position; and of those that are affine
        in the block with coefficients that depend on the rest, by the model and not by a covariance.
    precision, right
        Graphs of the value variables of ``rest``: :math:`P` ``(p, p)`` and :math:`P m` ``(p,)``.
    """

    names: list[str]
    values: list[str]
    likelihoods: list[str]
    rest: pm.Model
    rows: int
    rows_summed: int
    rows_dependent: int
    precision: Any
    right: Any

    @property
    def size(self) -> int:
        """Number of coordinates of the block."""
        return int(self.right.type.shape[0])

    @property
    def words(self) -> str:
        """One line for the user."""
        return f"{', '.join(self.names)}: integrated out of {', '.join(self.likelihoods)}, and drawn back"


def _depends(graphs: Sequence[Any], variables: set[Any]) -> bool:
    return not variables.isdisjoint(ancestors(graphs))


def _is_of(families: Collection[str], model: pm.Model, rv: Any) -> bool:
    """Return whether a variable, free or observed, is of one of these families and a linear map of its value."""
    transform = type(model.rvs_to_transforms.get(rv)).__name__
    return type(rv.owner.op).__name__ in families and transform in ("NoneType", "ZeroSumTransform")


def _law(model: pm.Model, rv: Any, shape: tuple[int, ...]) -> Law | None:
    """Return the law of a normal variable, free or observed; None for others."""
    of_vector = shape[-1:] if family_of(rv) == "MvNormalRV" else shape  # groups of any length
    return law_of(rv, model.rvs_to_transforms.get(rv), of_vector) if _is_of(_NORMAL, model, rv) else None


def why_not(model: pm.Model, names: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Say why variables cannot be integrated out together; "" if they can as far as families and parents say."""
    free = {rv.name: rv for rv in model.free_RVs}
    for name in names:
        if name not in free:
            return f"{name} is not a free variable of the model, which has {', '.join(free)}"
    if len(names) == len(free):
        return "nothing would be left to sample; give one of the scales a prior, or leave one variable out"
    block = {free[name] for name in names}
    for rv in block:
        if not _is_of(_FLAT, model, rv) and _law(model, rv, shapes[rv.name]) is None:
            return f"{rv.name} is {_other(rv)}"
    for potential in model.potentials:
        if _depends([potential], block):
            return f"the potential {potential.name} depends on it"
    for rv in model.basic_RVs:
        if not _depends(rv.owner.inputs, block):
            continue
        if rv not in block and rv in model.free_RVs:
            return f"{rv.name} depends on it: integrate {rv.name} out as well, which works where all is normal"
        law = _law(model, rv, shapes[rv.name])
        if law is None:
            return f"{rv.name}, which depends on it, is {_other(rv)}"
        if _depends([law.scale], block):
            return f"the scale of {rv.name} depends on it"
    return ""


def _other(rv: Any) -> str:
    """Return what a variable is that has no law here."""
    if isinstance(rv.type, XTensorType):
        return "of pymc.dims: write it with pm.Normal"
    if family_of(rv) in _NORMAL:
        return "a batch of walks or covariances, or a walk that does not start or step normally"
    return f"not normal, but {family_of(rv).removesuffix('RV')}"


def _term(model: pm.Model, rv: Any, shape: tuple[int, ...]) -> _Term | None:
    """Return the term of a variable, as graphs of value variables; None for a flat prior."""
    law = _law(model, rv, shape)
    if law is None:
        return None
    # Of whole numbers in 8 bits a power would be in single precision.
    terms = [pt.as_tensor_variable(graph).astype(pytensor.config.floatX) for graph in law.terms[:2]]
    location, scale = model.replace_rvs_by_values(terms)
    residual = pt.broadcast_to(model.rvs_to_values[rv] - location, shape).ravel()
    n = int(np.prod(shape, dtype=int))
    if law.kind == "walk":
        residual = pt.concatenate([residual[:1], residual[1:] - residual[:-1]])
    elif law.kind != "elementwise":
        k = shape[-1]
        whitened = pt.linalg.solve_triangular(scale, residual.reshape((-1, k)).T, lower=True, b_ndim=2).T.ravel()
        return _Term(whitened, pt.ones(()), n // k * pt.log(pt.diagonal(scale)).sum(), True)
    if all(scale.type.broadcastable):
        sd = scale.reshape(())
        return _Term(residual, sd, n * pt.log(sd))
    sd = pt.broadcast_to(scale, shape).ravel()
    return _Term(residual, sd, pt.log(sd).sum())


class _Residual(NamedTuple):
    """A residual ``offset - rows.T @ b``: constants where they do not depend on the rest."""

    offset: Any
    rows: Any


def _number(graph: Any, others: set[Any]) -> Any:
    """Return a graph that does not depend on the rest as numbers, others as they are."""
    return graph if _depends([graph], others) else _evaluated([graph])[0]


def _evaluated(graphs: Sequence[Any]) -> list[np.ndarray]:
    """Return the values of graphs of constants, once: without rewrites, which take longer than to evaluate."""
    return pytensor.function([], list(graphs), mode=Mode(linker="py", optimizer=None))()


def _affine(residual: Any, b: Any, others: set[Any]) -> _Residual | None:
    """Return a residual as an affine function of ``b``; None if it is none."""
    p = b.type.shape[0]
    tangent = b.type("tangent")
    derivative = rewrite_graph(-pushforward(residual, b, tangent), include=("canonicalize",), clone=True)
    if _depends_by_value(derivative, b):
        # A function of b may still be there for its shape alone.
        simplest = rewrite_graph(derivative, include=("specialize",), exclude=("inplace",), clone=True)
        if _depends_by_value(simplest, b):
            return None
    origin = {b: pt.zeros(p, dtype=b.dtype)}
    offset, derivative = clone_replace([residual, derivative], origin)
    rows = vectorize_graph(derivative, {tangent: pt.eye(p, dtype=b.dtype)})
    return _Residual(_number(offset, others), _number(rows, others))


def _depends_by_value(graph: Any, variable: Any) -> bool:
    """Return whether a graph depends on more than the shape of a variable."""
    nodes = [node for node in ancestors([graph]) if node.owner is not None]
    shapes = {node for node in nodes if isinstance(node.owner.op, Shape | Shape_i)}
    return variable in ancestors([graph], blockers=shapes)


def _is_number(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic)


class _Sums:
    """Precision, right-hand side and sum of squares of residuals, added up term by term."""

    def __init__(self, p: int, dtype: str):
        self.precision = pt.zeros((p, p), dtype=dtype)
        self.right = pt.zeros(p, dtype=dtype)
        self.rows_summed = 0
        self.rows_dependent = 0
        self._squares: list[Callable[[Any], Any]] = []

    def add(self, residual: _Residual, weight: Any, n: int, whitened: bool) -> None:
        """Add a term of ``n`` residuals with weights ``()`` or ``(n,)``, whitened by a covariance or as they are."""
        offset = residual.offset
        rows = residual.rows
        if weight.ndim == 0 and _is_number(rows):
            gram = rows @ rows.T
            self.precision = self.precision + weight * gram
            if _is_number(offset):
                product = rows @ offset
                square = float(offset @ offset)
                self.right = self.right + weight * product
                self._squares.append(lambda m: weight * (square - 2.0 * product @ m + m @ pt.dot(gram, m)))
                return
            self.right = self.right + weight * pt.dot(rows, offset)
        else:
            self.rows_summed += n
            self.rows_dependent += n * (not _is_number(rows) and not whitened)
            self.precision = self.precision + pt.dot(rows * weight, pt.as_tensor(rows).T)
            self.right = self.right + pt.dot(rows, weight * offset)
        self._squares.append(lambda m: (weight * (offset - pt.dot(m, rows)) ** 2).sum())

    def squares(self, m: Any) -> Any:
        """Return the weighted sum of the squares of all residuals at ``b = m``."""
        return sum(square(m) for square in self._squares)


def _is_data(node: Any) -> bool:
    return isinstance(node, SharedVariable) and not isinstance(node.type, RandomType)


def _frozen(graphs: Sequence[Any]) -> list[Any]:
    """Return graphs with the present values of shared data."""
    data = [node for node in ancestors(graphs) if _is_data(node)]
    return clone_replace(list(graphs), {node: node.type.constant_type(node.type, node.get_value()) for node in data})


def integrated_model(model: pm.Model, point: Mapping[str, np.ndarray], names: Sequence[str]) -> GaussianBlock | None:
    """Return a model with these variables integrated out, built once for its present data; None without any.

    Arguments and errors are those of :func:`_integrated`.
    """
    if not names:
        return None
    shared = [node for node in ancestors([*model.basic_RVs, *model.rvs_to_values.values()]) if _is_data(node)]
    contents = [np.asarray(node.get_value(borrow=True)) for node in shared]
    data = tuple((values.shape, hashlib.blake2b(values.tobytes()).digest()) for values in contents)
    key = state_of(model, model.value_vars), tuple(sorted(names)), data
    blocks: dict[tuple[Any, ...], GaussianBlock] = model_cache(model, "Gaussian block")
    if key not in blocks:
        try:
            blocks[key] = _integrated(model, names, point)
        except (NotImplementedError, AttributeError, TypeError, IndexError) as error:  # no derivative of an operation
            reason = f"{', '.join(names)} cannot be integrated out: {type(error).__name__}: {error}"
            raise ValueError(reason) from error
    return blocks[key]


@building()
def _integrated(model: pm.Model, names: Sequence[str], point: Mapping[str, np.ndarray]) -> GaussianBlock:
    """Return a model with these variables integrated out.

    ``point`` has the shapes of its value variables.

    Raises
    ------
    ValueError
        If they are not Gaussian given the others, with the reason.
    """
    shapes = _shapes_of_data(model)
    shapes |= {rv.name: np.shape(point[model.rvs_to_values[rv].name]) for rv in model.free_RVs}
    reason = why_not(model, names, shapes)
    block = [rv for rv in model.free_RVs if rv.name in names]
    values = [model.rvs_to_values[rv] for rv in block]
    sizes = [int(np.prod(shapes[rv.name], dtype=int)) for rv in block]
    ends = np.cumsum([0, *sizes]).tolist()
    p = ends[-1]
    b = pt.vector("block", dtype=pytensor.config.floatX, shape=(p,))
    cuts = {
        value: b[begin:end].reshape(shapes[rv.name]).astype(value.dtype)
        for rv, value, begin, end in zip(block, values, ends[:-1], ends[1:], strict=True)
    }
    others = set(model.value_vars) - set(values)
    sums = _Sums(p, b.dtype)
    n = 0
    log_volume = 0.0
    inside = [rv for rv in model.basic_RVs if rv in block or _depends(rv.owner.inputs, set(block))]
    for rv in () if reason else inside:
        term = _term(model, rv, shapes[rv.name])
        if term is None:
            continue
        residual, sd, volume = clone_replace(_frozen(term[:3]), cuts, rebuild_strict=False)
        affine = _affine(residual, b, others)
        if affine is None:
            reason = f"the location of {rv.name} is not affine in it"
            break
        count = int(np.prod(shapes[rv.name], dtype=int))
        sums.add(affine, sd**-2.0, count, whitened=term.whitened)
        n += count
        log_volume = log_volume + volume
    if reason:
        raise ValueError(f"{', '.join(names)} cannot be integrated out: {reason}")

    # The gradient of the log density at fixed m and P^-1: by m it is 0, and that of log det P is P^-1.
    precision = disconnected_grad(sums.precision)
    root = pt.linalg.cholesky(precision, lower=True, on_error="nan")
    inverse_root = pt.linalg.solve_triangular(root, pt.eye(p, dtype=b.dtype), lower=True, b_ndim=2)
    whitened = pt.dot(inverse_root, disconnected_grad(sums.right))
    m = pt.dot(whitened, inverse_root)
    covariance = disconnected_grad(pt.dot(inverse_root.T, inverse_root))
    log_det = pt.log(pt.diagonal(root)).sum()
    trace = (covariance * sums.precision).sum()
    marginal = (
        -0.5 * sums.squares(disconnected_grad(m))
        - log_volume
        - disconnected_grad(log_det)
        - 0.5 * (trace - disconnected_grad(trace))
        - 0.5 * (n - p) * _LOG_2PI
    )
    if any(family_of(rv) in _FLAT for rv in block):
        _refuse_improper(sums.precision, names, point)
    likelihoods = [rv.name for rv in inside if rv not in block]
    return GaussianBlock(
        [rv.name for rv in block],
        [value.name for value in values],
        likelihoods,
        _rest(model, inside, marginal),
        n,
        sums.rows_summed,
        sums.rows_dependent,
        sums.precision,
        sums.right,
    )


def gaussian_names(model: pm.Model, point: Mapping[str, np.ndarray]) -> list[str]:
    """Return the variables of the largest Gaussian block that is found in a model, looked for once; none without one.

    Variables come in one by one, the largest first, if not all together are Gaussian given the rest.  Blocks whose
    coefficients would be more than ``_MOST_NUMBERS`` are not looked at.
    """
    blocks: dict[tuple[Any, ...], list[str]] = model_cache(model, "names of the Gaussian block")
    key = state_of(model, model.value_vars)
    if key not in blocks:
        names = _normal_names(model)
        if not _can_be_integrated(model, names, point):
            by_size = sorted(names, key=lambda name: -_value_of(model, point, name).size)
            names = []
            for name in by_size:
                names += [name] * _can_be_integrated(model, [*names, name], point)
        blocks[key] = names
    return blocks[key]


def _value_of(model: pm.Model, point: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """Return the value at a point of a free variable, whose value variable may have another name."""
    return np.asarray(point[model.rvs_to_values[model[name]].name])


def _can_be_integrated(model: pm.Model, names: Sequence[str], point: Mapping[str, np.ndarray]) -> bool:
    if not names:
        return True
    p = sum(_value_of(model, point, name).size for name in names)
    rows = sum(int(np.prod(shape, dtype=int)) for shape in _shapes_of_data(model).values())
    if p * (p + rows) > _MOST_NUMBERS:
        return False
    try:
        return integrated_model(model, point, names) is not None
    except Exception as error:  # nobody has asked for it: the model is sampled as it is
        _log.debug("%s: not integrated out (%s)", ", ".join(names), error)
        return False


def _shapes_of_data(model: pm.Model) -> dict[str, tuple[int, ...]]:
    observed = _evaluated(_frozen([model.rvs_to_values[rv] for rv in model.observed_RVs]))
    return {rv.name: values.shape for rv, values in zip(model.observed_RVs, observed, strict=True)}


def _normal_names(model: pm.Model) -> list[str]:
    """Return the free normal variables that by families alone enter nothing but locations of normal ones.

    Walks are not among them.
    """
    normal = {rv for rv in model.basic_RVs if _is_of(_BY_ITSELF, model, rv)}
    block = normal & set(model.free_RVs)
    scales = [graph for rv in normal for graph in rv.owner.inputs[-1 if family_of(rv) in _BY_SCALE else 0 :]]
    while block:
        others = [rv for rv in model.basic_RVs if rv not in normal]
        outside = [rv for rv in model.free_RVs if rv not in block]
        entered = set(ancestors([*others, *scales, *outside, *model.potentials]))
        if block.isdisjoint(entered):
            break
        block -= entered
    return [rv.name for rv in model.free_RVs if rv in block] if len(block) < len(model.free_RVs) else []


def _refuse_improper(precision: Any, names: Sequence[str], point: Mapping[str, np.ndarray]) -> None:
    """Raise ``ValueError`` if flat priors and data leave a direction of a block without precision."""
    inputs = [node for node in ancestors([precision]) if node.owner is None and node.name in point]
    P = python_function(inputs, [precision])(*(point[var.name] for var in inputs))[0]
    if np.linalg.eigvalsh(P)[0] < 1e-12 * np.abs(P).max():
        raise ValueError(
            f"the posterior is improper: it does not change when some of {', '.join(names)} move together, since a "
            "prior is flat; give it a proper prior, such as pm.Normal"
        )


def _rest(model: pm.Model, inside: Sequence[Any], marginal: Any) -> pm.Model:
    """Return a model of the variables outside of a block and its likelihoods, with their ``marginal`` log density."""
    other = pm.Model(check_bounds=model.check_bounds, model=None)
    for rv in model.basic_RVs:
        if rv in inside:
            continue
        value = model.rvs_to_values[rv]
        (other.free_RVs if rv in model.free_RVs else other.observed_RVs).append(rv)
        other.named_vars[rv.name] = rv
        other.rvs_to_values[rv] = value
        other.values_to_rvs[value] = rv
        other.rvs_to_transforms[rv] = model.rvs_to_transforms[rv]
        if rv in model.rvs_to_initial_values:
            other.rvs_to_initial_values[rv] = model.rvs_to_initial_values[rv]
    for potential in model.potentials:
        other.potentials.append(potential)
        other.named_vars[potential.name] = potential
    marginal.name = MARGINAL
    other.potentials.append(marginal)
    return other

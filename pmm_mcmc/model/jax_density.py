"""Log densities as JAX functions, from a PyMC model or from a user's function, and their non-centring.

The map is that of :mod:`pmm_mcmc.coordinates.child`, learnt as for a PyMC model.  When the location or scale of a
*child*, a variable that may be non-centred, is evaluated, its own elements and all later children are NaN: if it
depends on one of them after all, the density is NaN rather than wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pmm_mcmc.coordinates.child import Child, Places, element_to_x
from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.model.functions import in_products
from pmm_mcmc.model.hierarchy import in_order
from pmm_mcmc.model.outputs import is_length, jax_function
from pmm_mcmc.model.tempered import mixture_density, path_numbers, width_of
from pmm_mcmc.model.user_density import LogDensity, check_ndim

try:
    import jax
    import jax.numpy as jnp
    from jax.extend.core import jaxpr_as_fun
except ImportError as error:  # pragma: no cover
    raise ImportError("backend='jax' needs JAX: pip install 'pmm-mcmc[jax]', or use backend='numba'") from error


# By name: the child's coordinates, and its location and scale as functions of all coordinates.
Children = Mapping[str, tuple[slice, Callable[[Any], Any], Callable[[Any], Any]]]


def checked_children(children: Any, d: int) -> dict[str, tuple[slice, Any, Any]]:
    """Return children, parents before their children, with locations and scales in the shape of the child."""
    form = "must be a dict of name: (slice(start, stop), location, scale), the last two functions of the whole vector"
    if not isinstance(children, Mapping):
        raise ValueError(f"children={children!r}: {form}")
    taken: dict[int, str] = {}
    checked: dict[str, tuple[slice, Any, Any]] = {}
    for name, child in children.items():
        what = f"children[{name!r}]"
        if not (isinstance(name, str) and isinstance(child, tuple) and len(child) == 3 and isinstance(child[0], slice)):
            raise ValueError(f"{what}={child!r}: {form}")
        coordinates = child[0]
        ends = coordinates.start, coordinates.stop
        is_range = coordinates.step in (None, 1) and all(isinstance(end, int | np.integer) for end in ends)
        if not (is_range and 0 <= coordinates.start < coordinates.stop <= d):
            raise ValueError(f"{what}: {coordinates} must be slice(start, stop) of some of the {d} coordinates")
        for i in range(coordinates.start, coordinates.stop):
            if taken.setdefault(i, name) != name:
                raise ValueError(f"{what}: coordinate {i} is of {taken[i]!r} too; each belongs to one child at most")
        size = coordinates.stop - coordinates.start
        location = _sized(child[1], d, size, f"{what}: its location")
        scale = _sized(child[2], d, size, f"{what}: its scale")
        checked[name] = slice(int(coordinates.start), int(coordinates.stop)), location, scale
    return _ordered(checked, d)


def _sized(function: Any, d: int, size: int, what: str) -> Callable[[Any], Any]:
    """Return a location or scale broadcast to ``size`` elements; its shape is checked."""
    if not callable(function):
        raise ValueError(f"{what} is {function!r}: must be a function of the whole vector, such as lambda x: x[0]")
    try:
        with jax.enable_x64(True):
            out = jax.eval_shape(function, jax.ShapeDtypeStruct((d,), np.float64))
    except Exception as error:
        raise ValueError(f"{what} cannot be traced by JAX for a vector of length {d}: {error}") from error
    shape = getattr(out, "shape", None)
    if shape not in ((), (1,), (size,)):
        raise ValueError(f"{what} has shape {shape}: must return one number, or one for each of the {size} elements")
    return lambda x: jnp.broadcast_to(jnp.asarray(function(x), x.dtype), (size,))


def _ordered(children: dict[str, tuple[slice, Any, Any]], d: int) -> dict[str, tuple[slice, Any, Any]]:
    """Return the children, parents first, after a check of what their locations and scales depend on: NaN spreads."""
    with jax.enable_x64(True):
        points = [np.zeros(d), np.random.default_rng(0).normal(size=d)]
        needs = {}
        for name, (coordinates, location, scale) in children.items():
            values = [np.concatenate([location(x), scale(x)]) for x in map(jnp.asarray, points)]
            size = coordinates.stop - coordinates.start
            sound = [i for i, v in enumerate(values) if np.isfinite(v).all() and (v[size:] != 0.0).all()]
            if not sound:
                raise ValueError(
                    f"children[{name!r}]: its location or scale is not finite, or its scale is 0, at the origin "
                    f"({values[0]}) and at random ({values[1]}); scales must be positive, such as exp(x[1])"
                )

            def depends(on: slice, x: Any = points[sound[0]], of: Any = (location, scale)) -> bool:
                poisoned = jnp.asarray(x).at[on].set(jnp.nan)
                return any(bool(jnp.isnan(f(poisoned)).any()) for f in of)

            if depends(coordinates):
                raise ValueError(
                    f"children[{name!r}]: its location or scale depends on {name!r} itself; read what they need by "
                    "index, such as x[0]: a product with zeros depends on all that it is made of"
                )
            needs[name] = {other for other, (where, *_) in children.items() if other != name and depends(where)}
    ordered = in_order(needs)
    if len(ordered) < len(children):
        raise ValueError(f"children: {', '.join(n for n in children if n not in ordered)} depend on each other")
    return {name: children[name] for name in ordered}


def _composed_of(
    fn: Callable[[Any], Any], d: int, children: Children, fixed: Mapping[str, bool]
) -> tuple[Callable[[Any, Any], tuple[Any, Any]], Structure]:
    """Return log density and evaluation as a function of ``z`` and ``noncentring``, and the structure.

    ``fixed`` says which children are non-centred, and whether fully so.
    """
    noncentred = []
    for name, is_fixed in fixed.items():
        coordinates = children[name][0]
        shape = (coordinates.stop - coordinates.start,)
        noncentred.append(Child(name, "elementwise", coordinates.start, shape, is_fixed))
    laws = [children[child.name][1:] for child in noncentred]
    slices = Places.of(noncentred).children
    free = np.setdiff1d(np.arange(d), np.concatenate([np.arange(d)[child.at] for child in noncentred]))
    free = free.astype(np.int32)  # the same in both precisions: JAX traces the map in each

    def to_x(z: Any, noncentring: Any) -> tuple[Any, Any]:
        """Return ``x`` and the log determinant of the map."""
        x = jnp.full(d, jnp.nan, z.dtype).at[free].set(z[free])
        log_det = jnp.zeros((), z.dtype)
        for child, indices, (location, scale) in zip(noncentred, slices, laws, strict=True):
            mu = location(x)
            L = scale(x)
            a, h, rho = child.split(noncentring[indices])
            element, of_child = element_to_x(jnp, mu, L, a, h, rho, z[child.at])
            x = x.at[child.at].set(element)
            log_det += of_child
        return x, log_det

    def evaluate(z: Any, noncentring: Any) -> tuple[Any, Any]:
        (x, log_det), pull_back = jax.vjp(lambda z: to_x(z, noncentring), z)
        lp, gradient = jax.value_and_grad(fn)(x)
        (slope,) = pull_back((gradient, jnp.ones_like(log_det)))
        return lp + log_det, jnp.concatenate([slope, x, gradient, log_det[None]])

    def pulled(z: Any, gradient: Any, noncentring: Any) -> tuple[Any, Any]:
        (x, log_det), pull_back = jax.vjp(lambda z: to_x(z, noncentring), z)
        return x, pull_back((gradient, jnp.ones_like(log_det)))[0]

    pull = _of_many(pulled, (0, 0, None))
    scales = _of_many(lambda x: [(location(x), scale(x)) for location, scale in laws], (0,))
    return evaluate, Structure(d, noncentred, scales, pull)


def _of_many(function: Callable[..., Any], axes: tuple[int | None, ...]) -> Callable[..., Any]:
    """Return a function of many positions, in double precision; their number is padded to a power of two."""
    compiled = jax.jit(jax.vmap(function, axes))

    def call(*arrays: np.ndarray) -> Any:
        n = len(arrays[0])
        more = (1 << max(n - 1, 63).bit_length()) - n
        padded = [
            a if axis is None else np.concatenate([a, np.broadcast_to(a[:1], (more, *a.shape[1:]))])
            for a, axis in zip(arrays, axes, strict=True)
        ]
        with jax.enable_x64(True):
            return jax.tree.map(lambda out: np.asarray(out)[:n], compiled(*padded))

    return call


class JaxDensity(LogDensity):
    """A log density that JAX traces: see :meth:`pmm_mcmc.LogDensity.from_jax`.

    Parameters
    ----------
    evaluate
        Function of one position, of the density's parameters if it has some, and of the arrays of ``data``, that
        returns log density and evaluation.
    d
        Number of coordinates.
    parameters
        Initial values of the density's parameters, if it has some.
    data
        Function that returns the current data.
    lengths
        Function that returns the lengths that are fixed when JAX traces ``evaluate``.

    Attributes
    ----------
    structure : Structure
        The non-centring that it applies.
    width : int
        Length of an evaluation: see :mod:`pmm_mcmc.engines.contract`.
    """

    runs_on = "jax"

    def __init__(
        self,
        evaluate: Callable[..., tuple[Any, Any]],
        d: int,
        parameters: np.ndarray | None = None,
        data: Callable[[], list[np.ndarray]] = list,
        lengths: Callable[[], tuple[int, ...]] = tuple,
        structure: Structure | None = None,
    ):
        super().__init__(d)
        self._evaluate = evaluate
        self._parameters = parameters
        self._data = data
        self.lengths = lengths
        self.structure = structure or Structure.identity(d)
        self.width = self.structure.width
        self.engines: dict[Any, Any] = {}  # compiled engines, for later runs
        self._fn: Callable[[Any], Any] | None = None
        self._path: JaxDensity | None = None

    @classmethod
    def of_function(cls, fn: Callable[[Any], Any], ndim: int, children: Children | None = None) -> JaxDensity:
        """Return the density of :meth:`pmm_mcmc.LogDensity.from_jax`."""
        check_ndim(ndim, "fn")
        try:
            with jax.enable_x64(True):
                traced = jax.make_jaxpr(fn)(jax.ShapeDtypeStruct((int(ndim),), np.float64))
        except Exception as error:
            raise ValueError(
                f"fn cannot be traced by JAX for a vector of length {ndim}: {error}. Write it with jax.numpy, for one "
                "vector at a time"
            ) from error
        if len(traced.out_avals) != 1 or traced.out_avals[0].shape != ():
            shapes = ", ".join(str(out.shape) for out in traced.out_avals)
            raise ValueError(f"fn returns {shapes} for a vector of length {ndim}: must return one number, of shape ()")
        checked = {} if children is None else checked_children(children, int(ndim))
        density = cls(jax.value_and_grad(fn), int(ndim))
        density._fn = fn
        density.children = checked
        return density

    def _composed(self, fixed: Mapping[str, bool]) -> LogDensity:
        assert self._fn is not None
        evaluate, structure = _composed_of(self._fn, self.d, self.children, fixed)
        return self._derived(JaxDensity(evaluate, self.d, structure.initial_noncentring(), structure=structure))

    def tempered(self) -> JaxDensity:
        """Return the path to this density from a mixture of Gaussians: see :mod:`pmm_mcmc.model.tempered`."""
        if self._path is None:
            of_target = self._evaluate
            d = self.d

            def evaluate(x: Any, numbers: Any, *target_data: Any) -> tuple[Any, Any]:
                lp, g = of_target(x, *target_data)
                logq, g0 = mixture_density(jnp, x, numbers[2:], d)
                log_ratio = lp - logq
                gl = g - g0
                beta = numbers[0]
                evaluation = jnp.concatenate([g0 + beta * gl, g0, gl, jnp.stack([log_ratio, logq])])
                return logq + beta * log_ratio, evaluation

            numbers = path_numbers(0.0, None, d)
            self._path = self._derived(JaxDensity(evaluate, d, numbers, self._data, self.lengths))
            self._path.width = width_of(d)
        return self._path

    def _derived(self, density: JaxDensity) -> JaxDensity:
        """Give a density of the same coordinates this one's names, reasons, starts and prior."""
        for name in ("layout", "explain", "start", "prior"):
            setattr(density, name, getattr(self, name))
        return density

    @classmethod
    def from_model(cls, density: Any) -> JaxDensity:
        """Compile a :class:`pmm_mcmc.model.pytensor_density.PyTensorDensity` with pytensor's JAX backend.

        At its first use that backend sets JAX to the precision of ``pytensor.config.floatX``, as for PyMC's own JAX
        samplers.
        """
        graph = _GraphFunction(density)
        numbers = None if density.density_parameters is None else density.density_parameters.get_value()
        jax_density = cls(graph, density.d, numbers, graph.data, graph.lengths, density.structure)
        jax_density.width = density.width
        return jax_density

    def shared(self, precision: str, density_parameters: np.ndarray | None = None) -> list[Any]:
        """Return the current data that the function takes beside the position, and its parameters."""
        numbers = self._parameters if density_parameters is None else density_parameters
        arrays = [*([] if self._parameters is None else [np.asarray(numbers)]), *self._data()]
        if precision == "float64":
            return arrays
        return [a.astype(np.float32) if a.dtype == np.float64 else a for a in arrays]

    def batch(self, x: Any, shared: Any, precision: str) -> tuple[Any, Any]:
        """Return log densities ``(n,)`` and evaluations ``(n, width)`` at positions ``(n, d)``; for JAX to trace."""
        batched = jax.vmap(lambda one, *data: self._evaluate(one, *data), (0, *(None for _ in shared)))
        with warnings.catch_warnings():
            # A model's graph may cast to double precision, where single was requested.
            warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
            if precision != "mixed":
                return batched(x, *shared)
            # Traced in single precision, then inserted into the double-precision program.
            shapes = [
                jax.ShapeDtypeStruct(x.shape, np.float32),
                *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in shared),
            ]
            with jax.enable_x64(False):
                single = jax.make_jaxpr(batched)(*shapes)
        lp, gradient = jaxpr_as_fun(single)(x.astype(jnp.float32), *shared)
        return lp, gradient


class _GraphFunction:
    """Log density and evaluation of a :class:`pmm_mcmc.model.pytensor_density.PyTensorDensity` as a JAX function."""

    def __init__(self, density: Any):
        self._dtype = np.dtype(density.flat.dtype)
        self._graph = density.graph
        try:
            double, self._shared = self._compiled(False)
        except NotImplementedError as error:
            what = str(error).rpartition("Op`: ")[2].partition("{")[0]
            raise ValueError(
                f"backend='jax': {what}, an operation of the log density, is not written for JAX; leave backend out"
            ) from error
        self._functions = {False: double}
        # Lengths must be known when the function is traced; parameters are passed, and then the other data.
        self._lengths = [shared for shared in self._shared if is_length(shared.get_value(borrow=True))]
        self._parameters = [shared for shared in self._shared if shared is density.density_parameters]
        self._arrays = [shared for shared in self._shared if shared not in (*self._lengths, *self._parameters)]

    def _compiled(self, single: bool) -> tuple[Any, list[Any]]:
        """Return the graph as a function that JAX traces, and its shared variables."""
        flat, outputs = self._graph
        epsilon = np.finfo(np.float32 if single else self._dtype).eps
        return jax_function(flat, in_products(outputs, epsilon**-0.3), single)

    def lengths(self) -> tuple[int, ...]:
        """Return the lengths of the model's mutable dimensions."""
        return tuple(int(shared.get_value(borrow=True)) for shared in self._lengths)

    def data(self) -> list[np.ndarray]:
        """Return the model's current data."""
        return [np.asarray(shared.get_value(borrow=True)) for shared in self._arrays]

    def __call__(self, x: Any, *arrays: Any) -> tuple[Any, Any]:
        """Return log density and evaluation at one position, for JAX to trace in its current precision."""
        single = not jax.config.values["jax_enable_x64"]
        if single not in self._functions:
            self._functions[single], _ = self._compiled(single)
        shared = (*self._lengths, *self._parameters, *self._arrays)
        values = dict(zip(shared, (*self.lengths(), *arrays), strict=True))
        inputs = [values[variable] for variable in self._shared]
        lp, evaluation = self._functions[single](x.astype(self._dtype) if self._dtype == np.float32 else x, *inputs)
        return lp, evaluation

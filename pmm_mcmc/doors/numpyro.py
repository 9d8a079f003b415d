"""NumPyro models as log densities: names, dims and what may be non-centred are read from a trace of the model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pmm_mcmc.api import (
    LogDensity,
    ResultTree,
    checked_jax_children,
    checked_values,
    count_of_draws,
    flat_names,
    in_blocks,
)

try:
    import numpyro.distributions as dist
    from numpyro import handlers
    from numpyro.distributions import biject_to, constraints
    from numpyro.infer import init_to_feasible, init_to_uniform
    from numpyro.infer.util import constrain_fn, potential_energy
except ImportError as error:  # pragma: no cover
    raise ImportError("LogDensity.from_numpyro needs NumPyro: pip install numpyro") from error

__all__ = ["numpyro_density"]

_log = logging.getLogger("pmm_mcmc")

# Those whose value is location + scale * noise; their supports are the real numbers.
_FAMILIES = dist.Normal, dist.StudentT, dist.Laplace, dist.Cauchy, dist.Logistic, dist.Gumbel
# Most draws, and most bytes of their values, of a compiled call.
_MOST_ROWS = 1024
_MOST_BYTES = 2**24


class _Latent(NamedTuple):
    """A latent site: its coordinates, and the shape of its unconstrained value."""

    coordinates: slice
    shape: tuple[int, ...]
    real: bool


class _Sites:
    """The sites of a model at fixed arguments, as functions of the flat vector of its latent sites."""

    def __init__(self, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        if not callable(model):
            raise ValueError(f"model={model!r}: must be a function of NumPyro's primitives, such as numpyro.sample")
        self._model = model
        self._args = _copied(args)
        self._kwargs = _copied(kwargs)
        try:
            with _without_checks():  # a parameter may be invalid where this trace happens to be; starts are tried
                self.trace = self._traced(substitute_fn=init_to_uniform())
        except Exception as error:
            raise ValueError(
                f"the NumPyro model cannot be run at these arguments: {error}. Pass what numpyro.infer.MCMC.run takes "
                "after its key"
            ) from error
        self.latent: dict[str, _Latent] = {}
        self.d = 0
        for name, site in self.trace.items():
            _refuse(name, site)
            if site["type"] == "sample" and not site["is_observed"]:
                support = site["fn"].support
                shape = jnp.shape(biject_to(support).inv(site["value"]))
                size = int(np.prod(shape, dtype=int))
                self.latent[name] = _Latent(slice(self.d, self.d + size), shape, _is_real(support))
                self.d += size
        if not self.d:
            raise ValueError(
                "the NumPyro model has no latent site: there is nothing to sample; pass the observed data as obs= of "
                "the sites that they belong to, and no others"
            )
        self.observed = [
            name
            for name, site in self.trace.items()
            if site["type"] == "sample" and site["is_observed"] and not isinstance(site["fn"], dist.Unit)
        ]

    def _traced(self, **substituted: Any) -> dict[str, Any]:
        seeded = handlers.substitute(handlers.seed(self._model, 0), **substituted)
        return handlers.trace(seeded).get_trace(*self._args, **self._kwargs)

    def _unconstrained(self, trace: dict[str, Any]) -> Any:
        """Return the flat vector of the latent sites of a trace."""
        sites = [trace[name] for name in self.latent]
        return jnp.concatenate([jnp.ravel(biject_to(site["fn"].support).inv(site["value"])) for site in sites])

    def unravel(self, x: Any) -> dict[str, Any]:
        """Return the unconstrained value of each latent site."""
        return {name: x[coordinates].reshape(shape) for name, (coordinates, shape, _) in self.latent.items()}

    def log_density(self, x: Any) -> Any:
        """Return the log density of the unconstrained vector."""
        return -potential_energy(handlers.seed(self._model, 0), self._args, self._kwargs, self.unravel(x))

    def values(self, x: Any, deterministic: bool = True) -> dict[str, Any]:
        """Return latent sites on their own scale, and deterministics."""
        seeded = handlers.seed(self._model, 0)
        return constrain_fn(seeded, self._args, self._kwargs, self.unravel(x), return_deterministic=deterministic)

    def at(self, x: Any) -> dict[str, Any]:
        """Return the trace of the model at a position."""
        return self._traced(data=self.values(x, deterministic=False))

    def explain(self, x: np.ndarray) -> str:
        """Name the sites whose log probability is not finite at a position, and what NumPyro's own checks say."""
        reason = ""
        with jax.enable_x64(True), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                self.at(jnp.asarray(x))
            except ValueError as error:
                reason = f" ({str(error).rstrip('.')})"
            with _without_checks():
                sites = {name: site for name, site in self.at(jnp.asarray(x)).items() if site["type"] == "sample"}
                log_probs = {name: site["fn"].log_prob(site["value"]) for name, site in sites.items()}
        bad = [name for name, values in log_probs.items() if not np.isfinite(values).all()]
        return f"not finite at site {', '.join(bad)}{reason}" if bad else ""

    def start(self, values: Mapping[str, Any]) -> np.ndarray:
        """Return the vector at values of latent sites on their own scale; others are where a vector of zeros is."""
        shapes = {name: jnp.shape(self.trace[name]["value"]) for name in self.latent}
        arrays = checked_values(values, shapes, "the NumPyro model")
        with jax.enable_x64(True), _without_checks():
            data = {name: jnp.asarray(array) for name, array in arrays.items()}
            trace = self._traced(substitute_fn=lambda site: data.get(site["name"], init_to_feasible(site)))
            for name, value in data.items():
                support = trace[name]["fn"].support
                if not bool(jnp.all(support(value))):
                    raise ValueError(
                        f"initvals[{name!r}]={values[name]!r}: is outside the support of the site, {support}"
                    )
            return np.array(self._unconstrained(trace), dtype=float)

    def prior(self, key: np.ndarray) -> np.ndarray:
        """Return draws ``(n, d)`` of the prior; none where it is improper or cannot be drawn from."""

        def one(key: Any) -> Any:
            seeded = handlers.seed(self._model, key)
            return self._unconstrained(handlers.trace(seeded).get_trace(*self._args, **self._kwargs))

        try:
            with jax.enable_x64(True), _without_checks():
                keys = jax.random.split(jax.random.key(int(key[0] ^ key[1])), count_of_draws(self.d))
                return np.array(jax.jit(jax.vmap(one))(keys), dtype=float)
        except Exception:  # the search for modes then starts elsewhere
            return np.empty((0, self.d))

    def dims(self) -> dict[str, list[str]]:
        """Return the plates along which the values of a variable lie, where they are known."""
        variables = {name: site for name, site in self.trace.items() if site["type"] in ("sample", "deterministic")}
        dims = {}
        for name, site in variables.items():
            plates = site.get("cond_indep_stack") or []
            shape = jnp.shape(site["value"])
            is_sample = site["type"] == "sample"
            if not plates or not (is_sample or len(shape) == max(-plate.dim for plate in plates)):
                continue
            batch = len(shape) - (site["fn"].event_dim if is_sample else 0)
            dims[name] = [f"{name}_dim_{i}" for i in range(len(shape))]
            for plate in plates:
                axis = batch + plate.dim
                if axis >= 0 and shape[axis] == plate.size and plate.name not in variables:
                    dims[name][axis] = plate.name
        return dims

    def layout(self) -> ResultTree:
        """Return the map from draws to the variables of the result."""
        dims = self.dims()
        plates = {dim for names in dims.values() for dim in names}
        coords = {
            name: np.arange(site["args"][0])
            for name, site in self.trace.items()
            if site["type"] == "plate" and name in plates
        }
        data = {name: np.asarray(self.trace[name]["value"]) for name in self.observed}
        shapes = [(n if site.real else f"{n}_unconstrained", site.shape) for n, site in self.latent.items()]
        values = _Blocks(self.values, self.d, list(self.trace))
        groups = {"observed_data": data} if data else {}
        return ResultTree(flat_names(shapes), values, lambda: (coords, dims), lambda: groups)

    def children(self) -> dict[str, Any]:
        """Return the sites that may be non-centred, with location and scale as functions of the vector."""
        children: dict[str, Any] = {}
        for name, (coordinates, shape, _) in self.latent.items():
            if _location_and_scale(self.trace[name]["fn"]) is None:
                continue
            child = coordinates, self._term(name, shape, 0), self._term(name, shape, 1)
            nowhere = jnp.full(self.d, jnp.nan)
            if all(bool(jnp.isfinite(function(nowhere)).all()) for function in child[1:]):
                continue  # both are constants: what depends on a position is NaN at NaN
            try:
                children |= checked_jax_children({name: child}, self.d)
            except ValueError as error:  # such as an element that depends on another one of its site
                _log.debug("%s stays centred: %s", name, error)
        return children

    def _term(self, name: str, shape: tuple[int, ...], index: int) -> Callable[[Any], Any]:
        """Return the location (0) or scale (1) of a site as a function of the position."""

        def term(x: Any) -> Any:
            with _without_checks():
                law = _location_and_scale(self.at(x)[name]["fn"])
            assert law is not None
            return jnp.broadcast_to(law[index], shape).ravel()

        return term


def _copied(argument: Any) -> Any:
    """Return arguments with NumPy arrays of their own.

    Users may change theirs; and JAX remembers the precision in which it first met an array by the array's identity, so
    that one that was traced here in double precision fails in the user's own programs in single precision.
    """
    return jax.tree.map(lambda leaf: leaf.copy() if type(leaf) is np.ndarray else leaf, argument)


def _without_checks() -> Any:
    """Return a context in which NumPyro takes NaN for a parameter, as the check of dependence passes them."""
    return dist.distribution.validation_enabled(False)


def _refuse(name: str, site: dict[str, Any]) -> None:
    if site["type"] == "param":
        raise ValueError(f"{name}: is a numpyro.param, which is optimised and not sampled; give it a prior")
    if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0]):
        raise ValueError(
            f"plate {name}: takes a random subsample of {site['args'][1]} of {site['args'][0]}, and every gradient "
            "would differ; leave subsample_size out"
        )
    if site["type"] != "sample" or site["is_observed"]:
        return
    if isinstance(site["fn"], dist.Delta):
        raise ValueError(f"{name}: is a point mass (Delta), which has no gradient; use numpyro.deterministic")
    if site["fn"].support.is_discrete:
        raise ValueError(
            f"{name}: a discrete latent site ({type(site['fn']).__name__}) has no gradient; sum it out, as with "
            "numpyro.distributions.MixtureSameFamily, or observe it (obs=)"
        )


def _is_real(support: Any) -> bool:
    while isinstance(support, type(constraints.real_vector)) and hasattr(support, "base_constraint"):
        support = support.base_constraint
    return support is constraints.real


def _location_and_scale(fn: Any) -> tuple[Any, Any] | None:
    while isinstance(fn, dist.Independent | dist.ExpandedDistribution):
        fn = fn.base_dist
    return (fn.loc, fn.scale) if isinstance(fn, _FAMILIES) else None


class _Blocks:
    """A function of one position at many, in blocks of a fixed size."""

    def __init__(self, one: Callable[[Any], dict[str, Any]], d: int, order: Sequence[str]):
        self._batched = jax.jit(jax.vmap(one))
        with jax.enable_x64(True):
            shapes = jax.eval_shape(one, jax.ShapeDtypeStruct((d,), np.float64))
        self._shapes = {name: shapes[name] for name in order if name in shapes}  # JAX sorts them
        each = 8 * max(d, sum(int(np.prod(out.shape, dtype=int)) for out in self._shapes.values()))
        self._rows = int(min(_MOST_ROWS, 2 ** int(np.log2(max(_MOST_BYTES // each, 1)))))

    def __call__(self, position: np.ndarray) -> dict[str, np.ndarray]:
        def batched(block: np.ndarray) -> list[Any]:
            values = self._batched(block)
            return [values[name] for name in self._shapes]

        with jax.enable_x64(True):
            return in_blocks(batched, np.asarray(position, dtype=float), self._shapes, self._rows)


def numpyro_density(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> LogDensity:
    """Return the density of :meth:`pmm_mcmc.LogDensity.from_numpyro`."""
    with jax.enable_x64(True):
        sites = _Sites(model, args, kwargs)
        children = sites.children()
        density = LogDensity.from_jax(sites.log_density, sites.d, children)
        density.layout = sites.layout()
    density.explain = sites.explain
    density.start = sites.start
    density.prior = sites.prior
    return density

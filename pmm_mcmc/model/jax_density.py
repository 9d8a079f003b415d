"""Log densities as JAX functions: of a model, or a function of the user's own."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.model.outputs import double_precision

try:
    import jax
    import jax.numpy as jnp
    from jax.extend.core import jaxpr_as_fun
except ImportError as error:  # pragma: no cover
    raise ImportError("backend='jax' needs JAX: pip install 'pmm-mcmc[jax]', or use backend='numba'") from error

__all__ = ["LogDensity"]


class LogDensity:
    """An unnormalised log density of a flat vector, to sample with ``pmm.sample`` in place of a PyMC model.

    Build it with :meth:`from_jax`.

    Attributes
    ----------
    d : int
        Number of coordinates.
    fingerprint : str
        What tells it from other densities, for runs that are resumed.
    """

    def __init__(
        self,
        both: Callable[..., tuple[Any, Any]],
        d: int,
        values: Callable[[np.ndarray | None], list[np.ndarray]],
        name: str,
        static: Callable[[], tuple[int, ...]] = tuple,
        structure: Structure | None = None,
    ):
        self._both, self.d, self._values, self.fingerprint, self.static = both, d, values, name, static
        self.structure, self.width = structure, d if structure is None else 3 * d + 1
        self.engines: dict[Any, Any] = {}  # compiled ones, for runs to come

    @classmethod
    def from_jax(cls, fn: Callable[[Any], Any], ndim: int) -> LogDensity:
        """Wrap a JAX function ``fn(x)`` of a vector ``(ndim,)`` that returns a scalar log density.

        Parameters
        ----------
        fn
            Traceable and differentiable by JAX, over all of R^ndim.  It is called with one vector; many chains are
            batched by ``jax.vmap``.
        ndim
            Length of the vector.

        Returns
        -------
        LogDensity

        Raises
        ------
        ValueError
            If ``ndim`` is not a positive integer, or ``fn`` does not return one number for such a vector.

        Examples
        --------
        >>> import jax.numpy as jnp, pmm_mcmc as pmm
        >>> density = pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2), 3)
        >>> density.d
        3
        """
        if isinstance(ndim, bool) or not isinstance(ndim, int | np.integer) or ndim < 1:
            raise ValueError(f"ndim={ndim!r}: must be an integer of at least 1, the length of the vector that fn takes")
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
        digest = hashlib.sha256(str(traced.jaxpr).encode())
        for constant in _constants(traced):
            digest.update(np.asarray(constant).tobytes())
        return cls(jax.value_and_grad(fn), int(ndim), lambda sites: [], digest.hexdigest())

    @classmethod
    def from_model(cls, density: Any, fingerprint: str) -> LogDensity:
        """Compile a :class:`pmm_mcmc.model.log_density.ModelDensity` with pytensor's JAX backend.

        That backend, where it is first used, sets JAX to the precision of ``pytensor.config.floatX``, as it does for
        PyMC's own samplers on JAX.
        """
        import pytensor

        flat, outputs = density.graph

        def compiled(single: bool) -> Any:
            # Constants are put on the device as it is compiled, in the precision of the moment.
            with double_precision(), jax.enable_x64(not single), jax.ensure_compile_time_eval(), _quiet():
                return pytensor.function([flat], outputs, mode="JAX", trust_input=True, on_unused_input="ignore")

        double = compiled(False)
        held = double.get_shared()
        # The traceable function behind a compiled one has no public name.
        functions = {False: double.vm.jit_fn.__wrapped__}
        # Lengths must be known when it is traced; all else is passed.
        lengths = [s.type.ndim == 0 and s.type.dtype.startswith(("int", "uint")) for s in held]
        dtype = np.dtype(flat.dtype)

        def static() -> tuple[int, ...]:
            return tuple(int(s.get_value(borrow=True)) for s, fixed in zip(held, lengths, strict=True) if fixed)

        def values(sites: np.ndarray | None) -> list[np.ndarray]:
            return [
                np.asarray(s.get_value(borrow=True) if s is not density.sites or sites is None else sites)
                for s, fixed in zip(held, lengths, strict=True)
                if not fixed
            ]

        def both(x: Any, *data: Any) -> tuple[Any, Any]:
            single = not jax.config.values["jax_enable_x64"]
            if single not in functions:
                functions[single] = compiled(single).vm.jit_fn.__wrapped__
            known, given = iter(static()), iter(data)
            merged = [next(known) if fixed else next(given) for fixed in lengths]
            lp, gradient = functions[single](x.astype(dtype) if dtype == np.float32 else x, *merged)
            return lp, gradient

        return cls(both, density.d, values, fingerprint, static, density.structure)

    def shared(self, precision: str, sites: np.ndarray | None = None) -> list[Any]:
        """Return the data that the function takes beside the position, as they are now, and the sites."""
        values = self._values(sites)
        if precision == "float64":
            return values
        return [a.astype(np.float32) if a.dtype == np.float64 else a for a in values]

    def batch(self, x: Any, shared: Any, precision: str) -> tuple[Any, Any]:
        """Log densities ``(n,)`` and what is said beside them ``(n, width)`` at positions ``(n, d)``; to be traced."""
        both = jax.vmap(lambda one, *data: self._both(one, *data), (0, *(None for _ in shared)))
        with warnings.catch_warnings():
            # Casts to double precision in a model's graph, where single was asked for.
            warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
            if precision != "mixed":
                return both(x, *shared)
            # Traced as for single precision, then inserted into the double-precision program.
            shapes = [
                jax.ShapeDtypeStruct(x.shape, np.float32),
                *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in shared),
            ]
            with jax.enable_x64(False):
                single = jax.make_jaxpr(both)(*shapes)
        lp, gradient = jaxpr_as_fun(single)(x.astype(jnp.float32), *shared)
        return lp, gradient


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        # Checks of parameters cannot be traced: out of their range the log density has no meaning.
        warnings.filterwarnings("ignore", "Skipping", UserWarning)
        # Constants in double precision, where single was asked for.
        warnings.filterwarnings("ignore", "Explicitly requested dtype", UserWarning)
        yield


def _constants(closed: Any) -> Iterator[Any]:
    """Yield the arrays that a traced function has closed over, those of the functions within it too."""
    yield from closed.consts
    for equation in closed.jaxpr.eqns:
        for value in equation.invars:
            if hasattr(value, "val"):
                yield value.val
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(parameter, "consts"):
                yield from _constants(parameter)

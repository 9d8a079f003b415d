"""``pmm.LogDensity``: what users sample in place of a PyMC model, from JAX, NumPyro, Stan or a C function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pmm_mcmc.model.pytensor_density import PyTensorDensity
from pmm_mcmc.model.result_tree import ResultTree


class LogDensity:
    """An unnormalised log density of a flat vector, to sample with ``pmm.sample`` in place of a PyMC model.

    Build it with :meth:`from_jax`, :meth:`from_numpyro`, :meth:`from_stan`, :meth:`from_bridgestan` or
    :meth:`from_pointer`.

    Attributes
    ----------
    d : int
        Number of coordinates.
    layout : ResultTree
        The map from positions to the variables of the result.
    """

    # What runs it, "jax" or "numba"; whether several threads may; its graph, which a tape runs, where it has one.
    runs_on = ""
    thread_safe = False
    composed: PyTensorDensity | None = None

    def __init__(self, d: int):
        self.d = d
        self.layout = ResultTree.of_vector(d)
        # Why there is no finite value at a position; "" where nothing is known of it.
        self.explain: Callable[[np.ndarray], str] = lambda x: ""
        # The vector at values by name; None where variables have no names.
        self.start: Callable[[Mapping[str, Any]], np.ndarray] | None = None
        # Variables that may be non-centred, by name; the densities of which some are, by which and how.
        self.children: Mapping[str, Any] = {}
        self._noncentred: dict[Any, LogDensity] = {}
        # Draws of the prior by two integers that they depend on; None where there is no known prior.
        self.prior: Callable[[np.ndarray], np.ndarray] | None = None

    @staticmethod
    def from_jax(fn: Callable[[Any], Any], ndim: int, children: Any = None) -> LogDensity:
        """Wrap a JAX function ``fn(x)`` of a vector ``(ndim,)`` that returns a scalar log density.

        Parameters
        ----------
        fn
            A function that JAX can trace and differentiate, defined on all of R^ndim.  It takes one vector; many
            chains are batched by ``jax.vmap``.
        ndim
            Length of the vector.
        children
            Variables that may be sampled non-centred, by name (for a PyMC model they are read from its graph).  Each is
            a tuple of its coordinates ``slice(start, stop)``, its location and its scale.  The latter two are functions
            of the whole vector that return one number, or one for each element.  A child may depend on others, in any
            order.  ``fn`` remains the density of the centred vector, and draws are centred too.

        Returns
        -------
        LogDensity

        Raises
        ------
        ValueError
            If ``ndim`` is not a positive integer, or ``fn`` does not return one number for such a vector; if children
            overlap, or depend on themselves or on each other; if a location or scale has another shape or is not
            finite, or a scale is 0.

        Examples
        --------
        >>> import jax.numpy as jnp, pmm_mcmc as pmm
        >>> density = pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2), 3)
        >>> density.d
        3

        Neal's funnel: ``x[1:]`` has location 0 and scale ``exp(x[0] / 2)``.

        >>> funnel = lambda x: -x[0] ** 2 / 18 - 4.5 * x[0] - 0.5 * jnp.sum(x[1:] ** 2) * jnp.exp(-x[0])
        >>> child = slice(1, 10), lambda x: 0.0, lambda x: jnp.exp(x[0] / 2)
        >>> density = pmm.LogDensity.from_jax(funnel, 10, children={"theta": child})
        """
        from pmm_mcmc.model.jax_density import JaxDensity

        return JaxDensity.of_function(fn, ndim, children)

    @staticmethod
    def from_numpyro(model: Callable[..., Any], /, *args: Any, **kwargs: Any) -> LogDensity:
        """Read a NumPyro model at its arguments: named draws on their own scale, and what may be non-centred.

        The result has the latent and deterministic sites, with plates as dims, and the observed data; for its log
        likelihood there is ``numpyro.infer.log_likelihood``.  Sites with a location and a scale (Normal, StudentT,
        Laplace, Cauchy, Logistic, Gumbel) that depend on other sites are sampled non-centred, as far as the draws ask
        for it: write the model centred.

        Parameters
        ----------
        model
            A function of NumPyro's primitives.
        *args, **kwargs
            Its arguments, observed data among them, as for ``numpyro.infer.MCMC.run``.

        Returns
        -------
        LogDensity

        Raises
        ------
        ValueError
            If the model fails at these arguments, has no latent site, or has a latent site without a gradient: a
            discrete one, a point mass, a ``numpyro.param``, or a plate that takes a random subsample.
        ImportError
            If NumPyro is not installed.

        Examples
        --------
        >>> import numpy as np, numpyro, numpyro.distributions as dist, pmm_mcmc as pmm
        >>> def model(y):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 10))
        ...     tau = numpyro.sample("tau", dist.HalfNormal(5))
        ...     with numpyro.plate("school", len(y)):
        ...         theta = numpyro.sample("theta", dist.Normal(mu, tau))
        ...         numpyro.sample("obs", dist.Normal(theta, 10.0), obs=y)
        >>> density = pmm.LogDensity.from_numpyro(model, np.array([28.0, 8.0, -3.0]))
        >>> density.d
        5
        """
        from pmm_mcmc.doors.numpyro import numpyro_density

        return numpyro_density(model, args, kwargs)

    @staticmethod
    def from_pointer(address: Any, ndim: int, data: Any = None, thread_safe: bool = False) -> LogDensity:
        """Sample a C function, which compiled loops call without Python.

        The function is ``int f(size_t n, const double* x, double* gradient, double* value, void* data)``: it fills the
        gradient ``(n,)`` and the log density at ``x`` and returns 0.  Any other code means that there is no value at
        ``x``; the step is refined or rejected, as where a value is not finite.

        Parameters
        ----------
        address
            Address of the function: an integer, a ctypes function, or a ``numba.cfunc``.  A function of another
            signature crashes the process, except that of a ``numba.cfunc``, which is checked.
        ndim
            Length ``n`` of the vector.
        data
            What the function gets as ``data``: None, an address, a NumPy array, or a ctypes object.  It is kept, and
            passed as it is at each call.
        thread_safe
            Whether several threads may call the function at the same time.  Otherwise the chains of a run advance one
            after the other.

        Returns
        -------
        LogDensity

        Raises
        ------
        ValueError
            If an argument is none of these, or the address is 0.

        Examples
        --------
        >>> import numba, pmm_mcmc as pmm
        >>> from numba import types
        >>> numbers = types.CPointer(types.double)
        >>> @numba.cfunc(types.intc(types.size_t, numbers, numbers, numbers, types.voidptr))
        ... def normal(n, x, gradient, value, data):
        ...     value[0] = 0.0
        ...     for i in range(n):
        ...         gradient[i] = -x[i]
        ...         value[0] -= 0.5 * x[i] * x[i]
        ...     return 0
        >>> pmm.LogDensity.from_pointer(normal, 3, thread_safe=True).d
        3
        """
        from pmm_mcmc.doors.c_function import pointer_density

        return pointer_density(address, ndim, data, thread_safe)

    @staticmethod
    def from_stan(program: Any, data: Any = None, children: Any = None) -> LogDensity:
        """Sample a Stan program, which stanli runs without a compiler.

        The result has parameters, transformed parameters and generated quantities, such as ``log_lik``, by name.
        Random numbers in generated quantities depend on the draw alone, not on the seed of the run.

        Parameters
        ----------
        program
            Path of a Stan file, or the program itself.
        data
            A dict of numbers, lists and arrays, or the path of a JSON file.
        children
            Parameters that may be sampled non-centred, as for :meth:`from_bridgestan`.  None: they are read from
            statements such as ``theta ~ normal(mu, tau)`` or, non-centred by hand, ``theta = mu + tau * z``.  An empty
            dict: none.

        Returns
        -------
        LogDensity

        Raises
        ------
        ValueError
            If Stan refuses the program or the data, or the program has no parameters.
        ImportError
            If stanli or bridgestan is not installed.

        Examples
        --------
        >>> import pmm_mcmc as pmm
        >>> program = '''
        ... data { int J; vector[J] y; vector<lower=0>[J] sigma; }
        ... parameters { real mu; real<lower=0> tau; vector[J] theta; }
        ... model { mu ~ normal(0, 10); tau ~ cauchy(0, 5); theta ~ normal(mu, tau); y ~ normal(theta, sigma); }
        ... '''
        >>> density = pmm.LogDensity.from_stan(program, {"J": 3, "y": [28, 8, -3], "sigma": [15, 10, 16]})
        >>> density.d
        5
        """
        from pmm_mcmc.doors.stan import stan_density, stan_program

        return stan_density(*stan_program(program, data), children)

    @staticmethod
    def from_bridgestan(model: Any, children: Any = None) -> LogDensity:
        """Sample a ``bridgestan.StanModel``, called by compiled loops without Python.

        The result is that of :meth:`from_stan`.  Chains advance on several threads if the model was compiled with
        ``STAN_THREADS=True``.

        Parameters
        ----------
        model
            A model with its data, as from ``bridgestan.StanModel("model.stan", data)``.
        children
            Parameters that may be sampled non-centred: a dict of name to location and scale, each a number or an
            expression of the Stan language in one parameter and data, such as ``{"theta": ("mu", "tau")}``.

        Returns
        -------
        LogDensity

        Raises
        ------
        ValueError
            If ``model`` is no such object, or has no parameters; if a child is no parameter without bounds, or its
            location or scale is not such an expression.
        """
        from pmm_mcmc.doors.stan import stan_density

        return stan_density(model, "", children)

    def noncentred(self, choices: Mapping[str, str] | None) -> LogDensity:
        """Return the density non-centred by the ``choices``, one object for each of them, or this one for None."""
        if choices and not self.children:
            raise ValueError(
                f"reparametrise={dict(choices)!r}: a LogDensity does not say which variables it has; name them in "
                "LogDensity.from_jax(..., children=...), or leave reparametrise out"
            )
        if choices is None:
            return self
        for name in choices:
            if name not in self.children:
                names = ", ".join(self.children)
                raise ValueError(f"reparametrise: {name!r} is none of the children of the LogDensity: {names}")
        fixed = {n: choices.get(n) == "noncentred" for n in self.children if choices.get(n) != "centred"}
        key = tuple(fixed.items())
        if fixed and key not in self._noncentred:
            self._noncentred[key] = self._composed(fixed)
        return self._noncentred[key] if fixed else self

    def _composed(self, fixed: Mapping[str, bool]) -> LogDensity:
        """Return the density with these children non-centred, which may be fixed to be fully so."""
        raise NotImplementedError


def check_ndim(ndim: Any, taker: str) -> None:
    """Raise ``ValueError`` unless ``ndim`` is a positive integer."""
    if isinstance(ndim, bool) or not isinstance(ndim, int | np.integer) or ndim < 1:
        raise ValueError(
            f"ndim={ndim!r}: must be an integer of at least 1, the length of the vector that {taker} takes"
        )

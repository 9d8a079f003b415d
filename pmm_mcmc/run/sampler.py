"""``pmm.Sampler``: the class that ``pm.sample(sampler=...)`` is going to take (pymc#8358)."""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any

import pymc as pm

from pmm_mcmc.model.density import LogDensity
from pmm_mcmc.run import devices
from pmm_mcmc.run.sample import sample

if TYPE_CHECKING:
    import xarray as xr

Base: Any = object
try:
    from pymc.sampling.samplers import base

    Base = base.Sampler
except ImportError:  # PyMC does not have it yet
    pass

__all__ = ["Sampler"]

# Defaults of pm.sample.
_CHAINS, _TUNE = 4, 1000


class Sampler(Base):
    """:func:`pmm_mcmc.sample` behind the interface for samplers of other libraries that PyMC is about to have.

    Once PyMC has ``pm.sample(sampler=...)`` (pymc#8358), this class is a subclass of PyMC's own, and an object of it
    goes there.  Until then call :meth:`sample`.

    Parameters
    ----------
    step
        The method with its arguments, such as ``pmm.PoissonULMC(K=16)``; by default that of :func:`pmm_mcmc.sample`.
    backend, device, precision
        As for :func:`pmm_mcmc.sample`.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", shape=3)
    >>> sampler = pmm.Sampler(pmm.PoissonULMC())
    >>> dt = sampler.sample(model=model, draws=50, tune=200, progressbar=False, random_seed=1)
    >>> dt["posterior"]["x"].shape
    (4, 50, 3)
    """

    def __init__(self, step: Any = None, *, backend: str = "auto", device: str = "auto", precision: str = "float64"):
        self.step, self.backend, self.device, self.precision = step, backend, device, precision

    def sample(self, **arguments: Any) -> xr.DataTree:
        """Draw samples with arguments and defaults of ``pm.sample``; see :meth:`sample_from_init`.

        Raises
        ------
        TypeError
            For an argument that :meth:`sample_from_init` does not have.
        """
        known = [name for name in inspect.signature(self.sample_from_init).parameters]
        for name in arguments:
            if name not in known:
                raise TypeError(f"{name} is no argument of pmm.Sampler.sample, which takes {', '.join(known)}")
        theirs = inspect.signature(pm.sample).parameters
        given: dict[str, Any] = {name: theirs[name].default if name in theirs else False for name in known} | arguments
        if given["model"] is None:
            given["model"] = pm.modelcontext(None)
        return self.sample_from_init(**given)

    def sample_from_init(
        self,
        *,
        model: Any,
        draws: int,
        tune: int | None,
        chains: int | None,
        cores: int | None,
        initvals: Any,
        random_seed: Any,
        progressbar: Any,
        quiet: bool,
        discard_tuned_samples: bool,
        keep_warning_stat: bool,
        var_names: Any,
        idata_kwargs: dict[str, Any] | None,
        compute_convergence_checks: bool,
        compile_kwargs: dict[str, Any] | None,
    ) -> xr.DataTree:
        """Draw samples; what cannot be honoured is warned of.

        Parameters
        ----------
        model, draws, initvals, random_seed, discard_tuned_samples, var_names, compute_convergence_checks
            As for :func:`pmm_mcmc.sample`.
        tune, chains
            Most transitions of each chain in warm-up, None for 1000; number of chains, None for 4.
        cores
            Number of threads; not honoured on JAX.
        progressbar
            Whether to show progress; of other values only the truth counts.
        quiet
            True shows neither progress nor a verdict.
        keep_warning_stat
            Not honoured: warnings are logged.
        idata_kwargs
            ``log_likelihood`` is honoured for all observed variables together, anything else is not.
        compile_kwargs
            Not honoured.

        Returns
        -------
        xarray.DataTree
        """
        if cores is not None and self._on_jax(model):
            _warn(f"cores={cores!r}", "JAX chooses its threads")
            cores = None
        if keep_warning_stat:
            _warn("keep_warning_stat=True", "warnings are logged")
        if compile_kwargs:
            _warn(f"compile_kwargs={compile_kwargs!r}", "the model is compiled by numba, or by JAX (backend='jax')")
        wanted = dict(idata_kwargs or {})
        likelihood = wanted.pop("log_likelihood", False)
        if not isinstance(likelihood, bool):
            _warn(f"idata_kwargs={{'log_likelihood': {likelihood!r}}}", "that of all observed variables is computed")
        for name, value in wanted.items():
            _warn(f"idata_kwargs={{{name!r}: {value!r}}}", "set it in the result")
        return sample(
            self.step,
            draws,
            tune=_TUNE if tune is None else tune,
            chains=_CHAINS if chains is None else chains,
            model=model,
            cores=cores,
            random_seed=random_seed,
            initvals=initvals,
            var_names=var_names,
            backend=self.backend,
            device=self.device,
            precision=self.precision,
            discard_tuned_samples=discard_tuned_samples,
            log_likelihood=bool(likelihood),
            progressbar=bool(progressbar) and not quiet,
            compute_convergence_checks=compute_convergence_checks and not quiet,
        )

    def _on_jax(self, model: Any) -> bool:
        if isinstance(model, LogDensity):
            return model.runs_on == "jax"
        return devices.choose_backend(self.backend, self.device, self.precision, False) == "jax"


def _warn(what: str, instead: str) -> None:
    warnings.warn(f"{what} is not honoured by pmm.Sampler: {instead}", UserWarning, stacklevel=3)

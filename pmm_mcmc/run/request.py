"""The arguments of a run, checked before anything is compiled, with hints for arguments of ``pm.sample``."""

from __future__ import annotations

import copy
import difflib
import inspect
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import xarray as xr

from pmm_mcmc.engines.arguments import MethodArguments, check_choice, unknown_argument
from pmm_mcmc.model.user_density import LogDensity
from pmm_mcmc.run.beginning import FinishedRun, Initvals
from pmm_mcmc.run.driver import FinishedChunk
from pmm_mcmc.run.stopping import AUTO, DRAWS
from pmm_mcmc.run.storage import NothingStored
from pmm_mcmc.run.storage.folder import Folder
from pmm_mcmc.run.storage.store import stored_identity
from pmm_mcmc.steps.methods import GHMC, PoissonULMC
from pmm_mcmc.steps.pymc_step import LangevinStep

type Model = pm.Model | LogDensity
type Step = LangevinStep | Sequence[LangevinStep]
type Seed = int | Sequence[int] | np.random.SeedSequence | np.random.Generator

# Chains by default.
CHAINS = 4
# Most superchains, enough for the variance between them, and fewest chains for which there are any.
_SUPERCHAINS = 16
_FEWEST_CHAINS = 64
# Transitions in which a former setting can be checked.
_SHORTEST_TRIAL = 100
_BITS = 62  # bits of a drawn seed

_NUTS = "NUTS has it, which pm.sample() runs"
# Arguments of pm.sample and its wrappers that have another name here or no meaning.
_ELSEWHERE = {
    "init": "chains start near the model's initial point; initvals= says where else, and warm-up finds "
    "scale and step size by itself",
    "n_init": "warm-up finds scale and step size by itself: leave it out",
    "jitter_max_retries": "starts are looked for until they are finite: leave it out, or give initvals=",
    "target_accept": "leave it out: equilibration finds the step, for an acceptance of about 0.9; where the verdict "
    "wants a shorter one, step=pmm.GHMC(step_size=...) sets it",
    "max_treedepth": _NUTS,
    "nuts": _NUTS,
    "nuts_sampler": _NUTS,
    "nuts_sampler_kwargs": _NUTS,
    "compile_kwargs": "backend= chooses what compiles: 'numba' or 'jax'",
    "idata_kwargs": "pm.compute_log_likelihood(dt, model=model) adds the log likelihood to the result",
    "log_likelihood": "pm.compute_log_likelihood(dt, model=model) adds it to the result; NumPyro has "
    "numpyro.infer.log_likelihood, and of a Stan program log_lik is in the posterior",
    "return_inferencedata": "the result is always an ArviZ DataTree: leave it out",
    "keep": "all draws are kept, with store= on disk; var_names= and steps_per_draw= of the step make them fewer",
    "trace": "store= writes the draws to zarr while the run goes on",
    "keep_warning_stat": "warnings are logged: leave it out",
    "device": "backend=pmm.Jax(device=...) says where JAX runs",
    "precision": "backend=pmm.Jax(precision=...) has others than double",
    "ladder": "pmm.temper(ladder=...) samples on a ladder of temperatures",
    "quiet": "progressbar=False and compute_convergence_checks=False are quiet",
    "progressbar_theme": "progressbar=False is all there is to choose",
    "mp_ctx": "chains run on threads, not in processes: leave it out, or give cores=",
    "blas_cores": "chains that run side by side have one thread each; cores= is their number",
    "seed": "random_seed= is the seed",
    "n_chains": "chains= is their number",
    "num_chains": "chains= is their number",
    "num_samples": "draws= is their number",
    "num_warmup": "tune= is the most transitions of the warm-up",
}
_HARMLESS = {"return_inferencedata": True}


@dataclass(frozen=True)
class Jax:
    """JAX as the backend of a run, for ``backend=`` of :func:`pmm_mcmc.sample`: ``"jax"`` is ``pmm.Jax()``.

    Parameters
    ----------
    device
        "cpu", "gpu", "tpu", or "auto": JAX's default, its accelerator or, if there is none, the CPU.  All local devices
        of the kind share the chains, and so do all processes that ``jax.distributed`` has connected; these must call
        with equal arguments and one ``store``.
    precision
        "float64"; "mixed" (log density and gradient in single precision, everything else in double); "float32", in
        which draws are kept, too.  Means, or data, some 100,000 sds from zero need "float64": the verdict tells.

    Examples
    --------
    >>> Jax(device="gpu")
    Jax(device='gpu', precision='float64')
    """

    device: str = "auto"
    precision: str = "float64"

    def __post_init__(self) -> None:
        check_choice("device", self.device, "auto", "cpu", "gpu", "tpu")
        check_choice("precision", self.precision, "float64", "mixed", "float32")


def check_count(name: str, value: object, least: int, other: str = "") -> None:
    """Raise ``ValueError`` for a count that is no integer or too small."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name}={value!r}: must be an integer of at least {least}{other}")


@dataclass(frozen=True)
class Request:
    """The arguments of :func:`pmm_mcmc.sample`, checked.

    Attributes
    ----------
    draws
        The number of draws, those of a finished run included, or "auto".
    step, reparametrise
        The method; by default that of a warm-up, with a ``reparametrise`` of its own.
    backend
        "numba", "tape", "jax" or, for a tape and numba from some transition on, "auto", which as an argument is what
        suits model and method; a :class:`Jax` sets ``device`` and ``precision`` too.
    adjusted
        Whether draws are adjusted, by a kernel whose stationary law is the posterior; by default unless there is a
        ``step``, which is given for its own draws.
    seed
        The seed; None for a fresh one, or that of a stored run.
    start
        The run from which this one starts.
    finished_run
        The result in memory that is continued.
    replaces_data
        Whether data of the model will be others in the course of the run.
    ladder, reference
        Those of a ladder of temperatures, of :func:`pmm_mcmc.temper`; None without one.
    """

    step: Any = None
    reparametrise: InitVar[Any] = "auto"
    model: Any = None
    chains: int = CHAINS
    draws: Any = DRAWS
    tune: int = 1000
    random_seed: Seed | None = None
    seed: int | None = None
    initvals: Initvals | None = None
    start: FinishedRun | None = None
    finished_run: FinishedRun | None = None
    var_names: Sequence[str] | None = None
    cores: int | None = None
    backend: Any = AUTO
    device: str = "auto"
    precision: str = "float64"
    store: str | os.PathLike[str] | None = None
    resume: bool = False
    discard_tuned_samples: bool = True
    adjusted: Any = None
    ladder: Any = None
    reference: str | None = None
    callback: Callable[[FinishedChunk], None] | None = None
    progressbar: bool = True
    compute_convergence_checks: bool = True
    replaces_data: bool = False

    def __post_init__(self, reparametrise: Any) -> None:
        """Check each field, and choose what is left open."""
        object.__setattr__(self, "step", one_step(self.step, self.draws))
        if isinstance(self.backend, Jax):
            object.__setattr__(self, "device", self.backend.device)
            object.__setattr__(self, "precision", self.backend.precision)
            object.__setattr__(self, "backend", "jax")
        check_choice("backend", self.backend, AUTO, "numba", "tape", "jax")
        if self.adjusted is None:
            object.__setattr__(self, "adjusted", self.step is None)
        if self.draws != AUTO:
            check_count("draws", self.draws, 1, ", or 'auto'")
            object.__setattr__(self, "draws", int(self.draws))
        for name, least in (("chains", 1), ("tune", 0)):
            check_count(name, getattr(self, name), least)
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.cores is not None:
            check_count("cores", self.cores, 1)
        if not isinstance(self.adjusted, bool | np.bool_):
            raise ValueError(f"adjusted={self.adjusted!r}: must be True or False")
        object.__setattr__(self, "backend", self._suitable_backend())
        if self.step is None:
            arguments = MethodArguments.checked("PoissonULMC", scheme="auto", reparametrise=reparametrise)
            object.__setattr__(self, "step", PoissonULMC.of_arguments(arguments))
        elif reparametrise != "auto":
            name = type(self.step).__name__
            raise ValueError(
                f"reparametrise={reparametrise!r} beside step=: give it to the step, as in "
                f"step=pmm.{name}(..., reparametrise={reparametrise!r})"
            )
        object.__setattr__(self, "adjusted", bool(self.adjusted) or self.step.arguments.kernel.adjusted)
        if self.start is not None:
            if self.initvals is not None:
                raise ValueError(
                    "initvals= does not go with start=, whose draws are the starts; leave one of the two out"
                )
            if self.tune < _SHORTEST_TRIAL:
                raise ValueError(
                    f"tune={self.tune} with start=: its setting is checked, and found anew if it does not fit; give "
                    f"tune of at least {_SHORTEST_TRIAL}, or leave start out"
                )
        if self.resume and self.store is None:
            raise ValueError("resume=True needs store=, the path of the run to continue")
        if self.store is not None:
            Folder(self.store)  # raises for a path that cannot be one
        if self.seed is None:
            object.__setattr__(self, "seed", seed_of(self.random_seed))

    def watched(self, model: pm.Model | LogDensity, callback: Callable[..., Any]) -> Request:
        """Return the request with another model and callback; what was left open stays as it was chosen."""
        other = copy.copy(self)
        object.__setattr__(other, "model", model)
        object.__setattr__(other, "callback", callback)
        return other

    def _suitable_backend(self) -> str:
        """Return the backend; raise ``ValueError`` if a log density is not written for the one that was asked for."""
        if not isinstance(self.model, LogDensity):
            compiles = (self.step is not None and self.finished_run is None) or self.reference is not None
            return "numba" if self.backend == AUTO and compiles else str(self.backend)
        suitable = self.model.runs_on
        if self.backend not in (AUTO, suitable):
            what = "a C function; use backend='numba'" if suitable == "numba" else "a JAX function; use backend='jax'"
            raise ValueError(f"backend={self.backend!r}: this LogDensity is {what} or 'auto'")
        return suitable

    @property
    def superchains(self) -> int | None:
        """Number of groups of chains that start together, the largest that divides them; None for few chains."""
        divisors = [s for s in range(2, _SUPERCHAINS + 1) if self.chains % s == 0 and self.chains // s > 1]
        if self.reference is not None or self.chains < _FEWEST_CHAINS or not divisors:
            return None
        return max(divisors)

    @property
    def auto(self) -> bool:
        """Whether draws go on until the verdict asks for no more."""
        return isinstance(self.draws, str)

    @property
    def integrates(self) -> bool:
        """Whether a Gaussian block may be integrated out without being asked for."""
        auto = self.arguments.noncentring is not None and self.adapts and self.reference is None
        return auto and not self.replaces_data and (self.precision, pytensor.config.floatX) == ("float64", "float64")

    @property
    def adapts(self) -> bool:
        """Whether there is a warm-up."""
        return self.tune > 0

    @property
    def arguments(self) -> MethodArguments:
        """The arguments of the step, for a chain that moves all variables."""
        return self.step.arguments.settled(others=False)

    @property
    def description(self) -> str:
        """The methods of the draws and of the warm-up, in words."""
        if not self.adjusted or self.arguments.kernel.adjusted:
            return self.arguments.label
        if self.adapts and self.reference is None:
            return f"Generalised HMC (GHMC) after a warm-up by {self.arguments.method}"
        return "GHMC"

    def check_backend(self) -> None:
        """Raise ``ValueError`` for what is asked of a backend that cannot do it."""
        if self.step.arguments.option == 1 and self.backend == "jax":
            raise ValueError(
                "option=1 does not run on JAX, where all chains evaluate one midpoint a step: leave option out, or "
                "sample a PyMC model with backend='numba'"
            )
        if self.cores is not None and self.backend == "jax":
            raise ValueError(
                f"cores={self.cores!r}: is the number of numba's threads; JAX chooses its own, leave it out"
            )
        if self.adjusted and self.precision != "float64":
            raise ValueError(
                f"precision={self.precision!r}: the Metropolis test of adjusted draws needs the log density in double "
                "precision; give adjusted=False for unadjusted draws, or leave precision out"
            )


def refuse_unknown(arguments: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise ``TypeError`` for an argument that a function does not have, with what to use instead."""
    called = f"pmm.{function.__name__}"
    for name, value in arguments.items():
        if name in _HARMLESS and value is _HARMLESS[name]:
            continue
        of_default = _arguments_of(GHMC)
        of_step = of_default | _arguments_of(PoissonULMC)
        valid = [n for n, p in inspect.signature(function).parameters.items() if p.kind != p.VAR_KEYWORD]
        others = [*_ELSEWHERE, *sorted(of_step)]
        near = [name] if name in others else difflib.get_close_matches(name, [*valid, *others], 1)
        meant = near[0] if near else name
        if meant in _ELSEWHERE:
            raise TypeError(f"{name}={value!r} is no argument of {called}: {_ELSEWHERE[meant]}")
        if meant in of_step and meant not in valid:
            method = "GHMC" if meant in of_default else "PoissonULMC"
            raise TypeError(
                f"{name}={value!r} is no argument of {called}, but of the step: "
                f"pmm.sample(step=pmm.{method}({meant}={value!r}))"
            )
        raise unknown_argument(name, value, called, valid)


def _arguments_of(method: type[LangevinStep]) -> set[str]:
    return set(inspect.signature(method.__init__).parameters) - {"self", "model", "rng"}


def one_step(step: object, draws: object) -> LangevinStep | None:
    """Return the step, of a list of one too; raise ``ValueError`` for a class, several steps, or one as ``draws``."""
    name = type(draws).__name__
    if isinstance(draws, LangevinStep):
        raise ValueError(f"draws={name}(...): is a step; give it by name: pmm.sample(step=pmm.{name}(...))")
    if isinstance(draws, LogDensity) or name == "Model":
        raise ValueError(f"draws=<{name}>: is a model; give it by name: pmm.sample(model=...)")
    if isinstance(step, list | tuple) and len(step) == 1:
        step = step[0]
    if isinstance(step, type):
        raise ValueError(f"step={step.__name__}: is a class; make a step of it, as in pmm.PoissonULMC()")
    if isinstance(step, list | tuple):
        raise ValueError(
            f"step: {len(step)} steps were given, and pmm.sample moves all variables with one; PyMC combines several: "
            "pm.sample(step=[...])"
        )
    if isinstance(step, xr.DataTree):
        raise ValueError("step=<DataTree>: is a result; pmm.temper() samples by itself: call it in place of pmm.sample")
    if not isinstance(step, LangevinStep | None):
        raise ValueError(
            f"step={step!r}: must be a step of pmm_mcmc, such as pmm.PoissonULMC(); pm.sample takes PyMC's own"
        )
    return step


def seed_of(random_seed: Any) -> int | None:
    """Return the integer seed of a run; ``None`` for ``None``.

    An integer is its own seed.  Any other argument of ``numpy.random.default_rng`` (a generator, a seed sequence, a
    list of integers) yields one random integer, so that a generator gives another seed each time.
    """
    if random_seed is None:
        return None
    number = isinstance(random_seed, numbers.Integral) and not isinstance(random_seed, bool | np.bool_)
    if number and random_seed >= 0:
        return int(random_seed)
    try:
        if number or isinstance(random_seed, bool | np.bool_ | float | str):
            raise TypeError
        generator = np.random.default_rng(random_seed)
    except (TypeError, ValueError):
        raise ValueError(
            f"random_seed={random_seed!r}: must be a non-negative integer, a list of them, a numpy Generator or "
            "SeedSequence, or None for a fresh one"
        ) from None
    return int(generator.integers(2**_BITS))


def fresh_seed() -> int:
    """Return a seed from the operating system's entropy."""
    return int(np.random.default_rng().integers(2**_BITS))


def stored_run(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the identity of a stored run; nothing if there is none yet."""
    try:
        return stored_identity(path)
    except NothingStored:
        return {}

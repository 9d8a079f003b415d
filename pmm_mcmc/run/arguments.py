"""Checks of the arguments of ``pmm.sample``, and hints for arguments of ``pm.sample`` that it does not have."""

from __future__ import annotations

import difflib
import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pmm_mcmc.steps.poisson import PoissonULMC

__all__ = [
    "check_adjusted",
    "check_counts",
    "check_keep",
    "check_ladder",
    "fresh_seed",
    "number_of_superchains",
    "refuse_unknown",
    "seed_of",
    "step_and_draws",
]

# Most superchains by default: enough for the variance between them.  _MANY: fewest chains for which there are any.
_SUPERCHAINS, _MANY = 16, 64
_BITS = 62  # bits of a drawn seed

_NUTS = "is NUTS's; pm.sample() runs that"
# Arguments of pm.sample and its wrappers that have another name here or no meaning.
_ELSEWHERE = {
    "init": "chains start within one unit of the model's initial point; initvals= says where else, and warm-up finds "
    "scale and step size by itself",
    "n_init": "warm-up finds scale and step size by itself: leave it out",
    "jitter_max_retries": "starts are looked for until they are finite: leave it out, or give initvals=",
    "target_accept": "equilibration finds the step of adjusted draws, for an acceptance of about 0.9; that of "
    "unadjusted ones follows from the bias that it may cause: pmm.PoissonULMC(target_bias=...)",
    "max_treedepth": _NUTS,
    "nuts": _NUTS,
    "nuts_sampler": _NUTS,
    "nuts_sampler_kwargs": _NUTS,
    "compile_kwargs": "backend= chooses what compiles: 'numba' or 'jax'",
    "idata_kwargs": "log_likelihood=True adds the log likelihood",
    "return_inferencedata": "the result is always an ArviZ DataTree: leave it out",
    "trace": "store= writes the draws to zarr while the run goes on",
    "keep_warning_stat": "warnings are logged: leave it out",
    "quiet": "progressbar=False and compute_convergence_checks=False are quiet",
    "progressbar_theme": "progressbar=False is all there is to choose",
    "mp_ctx": "chains run on threads, not in processes: leave it out, or give cores=",
    "blas_cores": "cores= is the number of threads that run chains",
    "seed": "random_seed= is the seed",
    "n_chains": "chains= is their number",
    "num_chains": "chains= is their number",
    "num_samples": "draws= is their number",
    "num_warmup": "tune= is the most transitions of the warm-up",
}
_HARMLESS = {"return_inferencedata": True}


def refuse_unknown(given: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise ``TypeError`` for an argument that a function does not have, with what to use instead."""
    for name, value in given.items():
        if name in _HARMLESS and value is _HARMLESS[name]:
            continue
        if name in _ELSEWHERE:
            raise TypeError(f"{name}={value!r} is no argument of pmm.sample: {_ELSEWHERE[name]}")
        of_step = _arguments_of_steps()
        known = [n for n, p in inspect.signature(function).parameters.items() if p.kind != p.VAR_KEYWORD]
        if name in of_step:
            raise TypeError(
                f"{name}={value!r} is an argument of the step, not of pmm.sample: "
                f"pmm.sample(pmm.PoissonULMC({name}={value!r}))"
            )
        near = difflib.get_close_matches(name, [*known, *_ELSEWHERE, *of_step], 1)
        meant = f"; did you mean {near[0]}?" if near else f", which takes {', '.join(known)}"
        raise TypeError(f"{name}={value!r} is no argument of pmm.sample{meant}")


def _arguments_of_steps() -> list[str]:
    return [n for n in inspect.signature(PoissonULMC.__init__).parameters if n not in ("self", "model", "rng")]


def step_and_draws(step: Any, draws: Any, default: int) -> tuple[Any, Any]:
    """Return step and draws; users of PyMC may give the draws first."""
    if isinstance(step, list | tuple) and len(step) == 1:
        step = step[0]
    number = isinstance(step, numbers.Integral) and not isinstance(step, bool)
    if number or (isinstance(step, str) and step == "auto"):
        if draws != default:
            raise ValueError(f"step={step!r}: is a number of draws, and so is draws={draws!r}; give one of them")
        return None, step
    if isinstance(step, type):
        raise ValueError(f"step={step.__name__}: is a class; make a step of it, as in pmm.PoissonULMC()")
    if isinstance(step, list | tuple):
        raise ValueError(
            f"step: {len(step)} steps were given, and pmm.sample moves all variables with one; PyMC combines several: "
            "pm.sample(step=[...])"
        )
    return step, draws


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


def check_counts(*, draws: Any, chains: Any, tune: Any, cores: Any, chain_batch_size: Any) -> None:
    """Raise ``ValueError`` for counts that are no integers or too small."""
    counts = {"draws": (draws, 1), "chains": (chains, 1), "tune": (tune, 0)}
    if chain_batch_size != "auto":
        counts["chain_batch_size"] = (chain_batch_size, 1)
    if cores is not None:
        counts["cores"] = (cores, 1)
    for name, (value, least) in counts.items():
        if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Integral) or value < least:
            other = ", or 'auto'" * (name == "draws")
            raise ValueError(f"{name}={value!r}: must be an integer of at least {least}{other}")


def check_keep(
    keep: Any, *, store: bool, log_likelihood: bool, discard_tuned_samples: bool, auto_alone: bool = False
) -> None:
    """Raise ``ValueError`` if ``keep`` is unknown, or no draws are kept and something needs them.

    ``auto_alone``: one chain has ``draws="auto"``, and between chains there are no standard errors.
    """
    if keep not in ("draws", "moments"):
        raise ValueError(f"keep={keep!r}: must be 'draws' or 'moments'")
    needy = {"store": store, "log_likelihood": log_likelihood, "discard_tuned_samples=False": not discard_tuned_samples,
             "draws='auto' of one chain": auto_alone}  # fmt: skip
    for name, wanted in needy.items():
        if keep == "moments" and wanted:
            raise ValueError(f"{name} needs draws, and keep='moments' keeps none: leave one of the two out")


def check_adjusted(adjusted: Any, step: Any) -> bool:
    """Return whether draws are adjusted: by default they are, unless a step is given, whose own draws are asked for.

    Raises
    ------
    ValueError
        If ``adjusted`` is neither a bool nor None.
    """
    if adjusted is None:
        return step is None
    if not isinstance(adjusted, bool | np.bool_):
        raise ValueError(f"adjusted={adjusted!r}: must be True or False")
    return bool(adjusted)


def check_ladder(ladder: Any, reference: Any, *, chains: int) -> tuple[np.ndarray | None, int | None]:
    """Return the temperatures of a ladder and its number of rungs, None where they are to be found.

    Raises
    ------
    ValueError
        For anything that is no ladder, and for too few chains.
    """
    if reference not in ("auto", "prior", "gaussian"):
        raise ValueError(f"reference={reference!r}: must be 'auto', 'prior' or 'gaussian'")
    betas: np.ndarray | None = None
    if isinstance(ladder, str) and ladder == "auto":
        rungs = None
    elif isinstance(ladder, numbers.Integral) and not isinstance(ladder, bool | np.bool_):
        if ladder < 2:
            raise ValueError(f"ladder={ladder!r}: a ladder has two rungs at least, the reference and the posterior")
        rungs = int(ladder)
    else:
        try:
            betas = np.array(ladder, dtype=float)
        except (TypeError, ValueError):
            betas = np.zeros((0, 0))
        remedy = "'auto', a number of rungs, or an array of temperatures that rise from 0 to 1"
        if betas.ndim != 1 or len(betas) < 2 or not np.isfinite(betas).all():
            raise ValueError(f"ladder={ladder!r}: must be {remedy}")
        if betas[0] != 0.0 or betas[-1] != 1.0:
            raise ValueError(
                f"ladder: begins at {betas[0]:g} and ends at {betas[-1]:g}; it must begin at 0, the reference, and end "
                "at 1, the posterior"
            )
        if (np.diff(betas) <= 0.0).any():
            at = int(np.argmax(np.diff(betas) <= 0.0))
            raise ValueError(f"ladder: {betas[at]:g} is followed by {betas[at + 1]:g}; temperatures must rise")
        rungs = len(betas)
    least = 2 * (rungs or 3)
    if chains < least:
        raise ValueError(
            f"chains={chains}: is too few for two copies of a ladder of {rungs or 3} rungs; take chains={least} or "
            "more, some hundreds if modes are many or narrow"
        )
    return betas, rungs


def number_of_superchains(given: Any, chains: int) -> int | None:
    """Return the number of superchains; ``None`` for none."""
    if given is None:
        return None
    if isinstance(given, str) and given == "auto":
        divisors = [s for s in range(2, _SUPERCHAINS + 1) if chains % s == 0 and chains // s > 1]
        return max(divisors) if chains >= _MANY and divisors else None
    wrong = isinstance(given, bool) or not isinstance(given, numbers.Integral)
    if wrong or not 2 <= given <= chains // 2 or chains % given:
        raise ValueError(
            f"superchains={given!r}: must be 'auto', None, or a number of at least 2 that divides chains={chains} into "
            "superchains of two chains or more"
        )
    return int(given)

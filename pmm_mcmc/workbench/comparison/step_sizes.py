"""Error against step size: runs at multiples of the tuned step size."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from pmm_mcmc.workbench.comparison.measures import COLUMNS, errors
from pmm_mcmc.workbench.comparison.reference import Truth
from pmm_mcmc.workbench.comparison.runs import Trace, altered, in_words, run_step

__all__ = ["STEP_COLUMNS", "errors_at_steps"]

_log = logging.getLogger("pmm_mcmc")

STEP_COLUMNS: dict[str, str] = {
    "sampler": "The sampler.",
    "multiple": "Its step size over the tuned or given one.",
    "step_size": "Its step size, in whitened units.",
    **{
        f"{what}_error{part}": COLUMNS[f"{what}_error{part}"]
        for what in ("mean", "sd")
        for part in ("", "_se", "_noise", "_at")
    },
    "unstable": COLUMNS["unstable"],
    "grads": "Gradients of the run, warm-up included; the run at 1 is that of the other tables.",
    "error": "Why the other columns of this row are empty.",
}


def errors_at_steps(
    traces: Sequence[Trace],
    named: Mapping[str, Any],
    model: Any,
    truth: Truth,
    labels: list[str],
    multiples: Sequence[float],
    n_grad: int,
    chains: int,
    seed: int,
) -> pd.DataFrame:
    """Run each sampler of this package at multiples of its step size, and measure the errors.

    K and friction stay as tuned, so that only the step size differs; preconditioners are learnt again.

    Parameters
    ----------
    traces
        The runs of the comparison: their tuned parameters, and the runs at 1.
    named
        The samplers by name.
    model, truth, labels, n_grad, chains, seed
        As in the comparison.
    multiples
        Multiples of the step size.

    Returns
    -------
    pandas.DataFrame
        A row for each sampler and multiple, with :data:`STEP_COLUMNS`; a failed run is a row with the reason.
    """
    rows = []
    for trace in traces:
        if trace.tuned is None:
            continue
        for i, multiple in enumerate(multiples):
            size = multiple * trace.tuned["step_size"]
            found = {"sampler": trace.name, "multiple": multiple, "step_size": size}
            try:
                step = _at(named[trace.name], trace.tuned, size)
                # The seeds differ from those of the comparison and of its reference.
                run = trace if multiple == 1.0 else run_step(trace.name, step, model, n_grad, chains, seed + 2 + i)
                found |= errors(replace(run, gradient=None), truth, labels)
                found |= {"unstable": run.unstable, "grads": run.spent}
            except Exception as error:
                # As in the comparison, a failure does not end the other runs.
                found["error"] = in_words(error)
                _log.warning("%s at %.3g times its step size failed: %s", trace.name, multiple, found["error"])
            rows.append(found)
    return pd.DataFrame(rows, columns=list(STEP_COLUMNS))


def _at(step: Any, tuned: Mapping[str, Any], size: float) -> Any:
    """Return the step with another step size, and K and friction as tuned."""
    arguments = step.arguments
    kept: dict[str, Any] = {"step_size": size}
    if arguments.fixed_K is None and "K" in tuned:
        kept["K"] = tuned["K"]
    if arguments.dynamics == "underdamped" and arguments.friction is None:
        kept["friction"] = tuned["friction"]
    return altered(step, **kept)

"""What the annexes of the package use of its core: nothing else of it do they import.

An annexe uses the samplers; the core does not know of it.
"""

from __future__ import annotations

from typing import Any

from pmm_mcmc.coordinates.child import Child
from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.diagnostics.convergence import Convergence, convergence
from pmm_mcmc.diagnostics.parameters import Result, checked
from pmm_mcmc.diagnostics.reading import WORDS, read
from pmm_mcmc.diagnostics.statement import NOT_TRUSTED, TRUSTED, UNDECIDED, Verdict
from pmm_mcmc.diagnostics.summary import summary, with_numbers
from pmm_mcmc.diagnostics.thresholds import THRESHOLDS
from pmm_mcmc.diagnostics.verdict import COLUMNS, judge
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import density_at
from pmm_mcmc.langevin.methods import METHODS
from pmm_mcmc.model.checks import check_discrete, check_free, model_of
from pmm_mcmc.model.functions import model_cache, python_function, python_mode
from pmm_mcmc.model.hierarchy import MOST_GROUPED, ChildVariable, Law, ordered_children
from pmm_mcmc.model.initial_points import checked_values, count_of_draws, model_starts, spread_starts
from pmm_mcmc.model.native import SIGNATURE, as_pointer
from pmm_mcmc.model.noncentred_density import noncentred_op
from pmm_mcmc.model.outputs import coords_and_dims
from pmm_mcmc.model.result_tree import ResultTree, flat_names, in_blocks
from pmm_mcmc.model.user_density import LogDensity, check_ndim
from pmm_mcmc.run.beginning import FinishedRun, starts
from pmm_mcmc.run.console import DRAWINGS, clock, console, write
from pmm_mcmc.run.driver import Gathered, Groups, StopRequest, stop_on_signals
from pmm_mcmc.run.findings import unconstraining_of, verdict
from pmm_mcmc.run.phases import Sampling
from pmm_mcmc.run.plan import SamplingPlan, cores
from pmm_mcmc.run.request import Model, Request, Seed, Step, check_count, fresh_seed
from pmm_mcmc.run.sample import sample
from pmm_mcmc.run.stopping import DRAWS, StoppingRule
from pmm_mcmc.run.storage.checkpoint import decode, encode
from pmm_mcmc.run.storage.folder import Folder, StoreError
from pmm_mcmc.run.storage.store import differences
from pmm_mcmc.steps.pymc_step import LangevinStep
from pmm_mcmc.tempering.temper import temper
from pmm_mcmc.warmup.equilibration import EQUILIBRATION
from pmm_mcmc.warmup.stein_identity import degrees_of_freedom, standard_error

__all__ = [
    "COLUMNS", "DRAWINGS", "DRAWS", "EQUILIBRATION", "METHODS", "MOST_GROUPED", "NOT_TRUSTED", "SIGNATURE",
    "THRESHOLDS", "TRUSTED", "UNDECIDED", "WORDS", "Child", "ChildVariable", "Convergence", "FinishedRun", "Folder",
    "Gathered", "Groups", "LangevinStep", "Law", "LogDensity", "MethodArguments", "Model", "Request", "Result",
    "ResultTree", "Sampling", "SamplingPlan", "Seed", "Step", "StopRequest", "StoppingRule", "StoreError", "Structure",
    "Verdict", "as_pointer", "check_count", "check_discrete", "check_free", "check_ndim", "checked",
    "checked_jax_children", "checked_values", "clock", "console", "convergence", "coords_and_dims", "cores",
    "count_of_draws", "decode", "degrees_of_freedom", "density_at", "differences", "encode", "flat_names", "fresh_seed",
    "in_blocks", "judge", "model_cache", "model_of", "model_starts", "noncentred_op", "ordered_children",
    "python_function", "python_mode", "read", "sample", "spread_starts", "standard_error", "starts", "stop_on_signals",
    "summary", "temper", "unconstraining_of", "verdict", "with_numbers", "write",
]  # fmt: skip


def checked_jax_children(children: Any, d: int) -> dict[str, Any]:
    """Return the children of :meth:`pmm_mcmc.LogDensity.from_jax`, parents before their children, or raise."""
    from pmm_mcmc.model.jax_density import checked_children

    return checked_children(children, d)

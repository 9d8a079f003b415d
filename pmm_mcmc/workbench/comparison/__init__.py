"""Samplers side by side on one posterior: the same number of gradients for each, against a reference."""

from pmm_mcmc.workbench.comparison.comparison import compare
from pmm_mcmc.workbench.comparison.result import Comparison

__all__ = ["Comparison", "compare"]

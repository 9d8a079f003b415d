"""Comparison of samplers on one posterior, with the same number of gradients each, against a reference."""

from pmm_mcmc.workbench.comparison.comparison import compare
from pmm_mcmc.workbench.comparison.result import Comparison

__all__ = ["Comparison", "compare"]

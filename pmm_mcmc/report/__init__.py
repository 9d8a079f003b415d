"""Reports: one HTML file on a run, or on a comparison of samplers."""

from __future__ import annotations

from pmm_mcmc.report.comparison import comparison_page
from pmm_mcmc.report.files import to_html, write_page
from pmm_mcmc.report.run import run_page

__all__ = ["comparison_page", "run_page", "to_html", "write_page"]

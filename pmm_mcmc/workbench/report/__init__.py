"""Reports on a run: one HTML file."""

from __future__ import annotations

from pmm_mcmc.workbench.report.files import to_html, write_page
from pmm_mcmc.workbench.report.ladder import plot_ladder
from pmm_mcmc.workbench.report.run import run_page

__all__ = ["plot_ladder", "run_page", "to_html", "write_page"]

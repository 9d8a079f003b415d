"""The one sentence that every run ends with."""

from __future__ import annotations

import logging
from typing import Any

from pmm_mcmc.diagnostics.bias import verdict

__all__ = ["last_words"]


def last_words(dt: Any) -> tuple[int, str]:
    """Return the level of logging, and the sentence of the verdict: a warning unless the run is trusted."""
    found = verdict(dt)
    return (logging.INFO if found.trusted else logging.WARNING), found.sentence

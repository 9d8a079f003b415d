"""A failure of a rewrite of PyTensor that means nothing, kept out of the log.

``local_subtensor_merge_slice`` merges ``x[a:b][i]`` with ``i`` in a byte, as PyTensor stores small integers: with NumPy
2 the difference of ``b`` and that byte is an error where ``b`` is above 127.  PyTensor then prints a traceback, leaves
the graph as it is, and goes on; ``Model.logp_dlogp_function`` of a long random walk does the same.
"""

from __future__ import annotations

import logging
import sys
import traceback

__all__ = ["keep_out_of_log"]


def keep_out_of_log() -> None:
    """Keep this failure, and no other, out of PyTensor's log."""
    logging.getLogger("pytensor.graph.rewriting.basic").addFilter(_means_something)


def _means_something(record: logging.LogRecord) -> bool:
    # PyTensor logs while it handles the error.
    error = sys.exc_info()[1]
    if not isinstance(error, OverflowError):
        return True
    return traceback.extract_tb(error.__traceback__)[-1].name != "merge_two_slices"

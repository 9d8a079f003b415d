"""Errors of stores."""

from __future__ import annotations

__all__ = ["Damaged", "NothingStored", "StoreError"]


class StoreError(RuntimeError):
    """A store cannot be read or written: the message names the path, what happened, and the remedy."""


class NothingStored(StoreError):
    """There is nothing to resume or to read: the path is missing, or its creation was interrupted."""


class Damaged(StoreError):
    """The bytes of a file differ from those that were written."""

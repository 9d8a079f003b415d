"""What goes wrong with stores."""

from __future__ import annotations

__all__ = ["Damaged", "NothingStored", "StoreError"]


class StoreError(RuntimeError):
    """A store cannot do what it was asked to: the message names the path, what happened, and the remedy."""


class NothingStored(StoreError):
    """There is nothing to resume or to read: the path is missing, or its creation was cut short."""


class Damaged(StoreError):
    """Bytes that are not those which were written."""

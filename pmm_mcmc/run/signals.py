"""Ctrl-C and SIGTERM as requests to stop a run where its draws are kept."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["StopRequest", "stop_on_signals"]


class StopRequest:
    """Whether a signal has asked the run to stop; ``number`` is that of the signal, or ``None``."""

    number: int | None = None

    def __call__(self) -> bool:
        """Return whether the run is to stop."""
        return self.number is not None

    def raise_again(self) -> None:
        """Let SIGTERM have its usual effect."""
        if self.number == signal.SIGTERM:
            sys.stdout.flush()
            signal.raise_signal(signal.SIGTERM)


@contextmanager
def stop_on_signals(request: StopRequest) -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or SIGTERM into a request to stop; the second has its usual effect.

    Outside the main thread signals do not arrive.
    """
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    handlers: dict[int, Any] = {}

    def note(number: int, frame: Any) -> None:
        request.number = number
        for handled, handler in handlers.items():
            signal.signal(handled, handler)

    for number in (int(signal.SIGINT), int(signal.SIGTERM)):
        handlers[number] = signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)

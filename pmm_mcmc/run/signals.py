"""Ctrl-C and SIGTERM as requests to stop a run where its draws are kept."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

__all__ = ["Interrupt", "StopRequest", "stop_on_signals"]


class StopRequest:
    """Whether a signal has asked the run to stop; ``number`` is that of the signal, or ``None``.

    While ``interrupts``, a signal raises ``KeyboardInterrupt`` too.
    """

    number: int | None = None
    interrupts = False

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
        if request.interrupts:
            raise KeyboardInterrupt

    for number in (int(signal.SIGINT), int(signal.SIGTERM)):
        handlers[number] = signal.signal(number, note)
    try:
        yield request
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class Interrupt:
    """Ctrl-C as ``KeyboardInterrupt``, which :meth:`check` raises again where compiled code has swallowed it.

    Outside the main thread signals do not arrive; another handler than Python's is left alone.
    """

    def __init__(self) -> None:
        self._asked = False
        self._handles = False

    def __enter__(self) -> Self:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._note)
            self._handles = True
        return self

    def _note(self, number: int, frame: Any) -> None:
        self._asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` if Ctrl-C was pressed."""
        if self._asked:
            raise KeyboardInterrupt

    def __exit__(self, *failure: Any) -> None:
        if self._handles:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._handles = False

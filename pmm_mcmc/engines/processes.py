"""The processes of one run: each advances chains of its own, and all keep the same account of the whole.

They do the same in the same order, and meet where they exchange bytes.  Nothing but these meetings tells one process
from several: a schedule that all of them follow sees the same draws everywhere, and takes the same decisions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Processes", "ProcessesError", "speaks"]

_GOES_ON, _FAILED = b"\0", b"\1"
_REMEDY = "begin all processes again, with resume=True"


class ProcessesError(RuntimeError):
    """Another process of the run has failed, or cannot be reached."""


def speaks() -> bool:
    """Whether this process is the first of those that ``jax.distributed`` has connected, or alone."""
    jax = sys.modules.get("jax")
    return jax is None or jax.process_index() == 0


def _alone(data: bytes) -> list[bytes]:
    return [data]


@dataclass(frozen=True)
class Processes:
    """A process among those of a run.

    Attributes
    ----------
    own
        The chains that it advances.
    index, count
        Which of how many processes it is; the first alone publishes and speaks.
    exchange
        Gives bytes to all processes, and returns what each of them gave.  It waits for all.
    """

    own: slice
    index: int = 0
    count: int = 1
    exchange: Callable[[bytes], list[bytes]] = _alone

    @classmethod
    def of(cls, chains: int, group: int, index: int, count: int, exchange: Callable[[bytes], list[bytes]]) -> Processes:
        """Share whole groups of chains among processes, as equally as it goes.

        Raises
        ------
        ValueError
            If there are more processes than groups.
        """
        groups = -(-chains // group)
        if groups < count:
            raise ValueError(
                f"chains={chains}: {count} processes have only {groups} group(s) of {group} chains to share, which "
                "advance in lockstep; take more chains or fewer processes"
            )
        first, last = (i * groups // count * group for i in (index, index + 1))
        return cls(slice(first, min(last, chains)), index, count, exchange)

    @classmethod
    def of_jax(cls, chains: int, group: int) -> Processes:
        """Return what this process is to the others that ``jax.distributed`` has connected; alone without it."""
        import jax

        if jax.process_count() == 1:
            return cls(slice(0, chains))
        return cls.of(chains, group, jax.process_index(), jax.process_count(), _through_jax)

    @property
    def primary(self) -> bool:
        """Whether this is the process that publishes and speaks."""
        return self.index == 0

    def join(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Put the arrays of all processes together along their first axes, which are equally long in each process."""
        if self.count == 1:
            return arrays
        found = self._meet(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))
        sizes = [array.itemsize * int(np.prod(array.shape[1:], dtype=int)) for array in arrays]
        counts = [len(data) // sum(sizes) for data in found]
        joined = []
        for i, (array, size) in enumerate(zip(arrays, sizes, strict=True)):
            begin = sum(sizes[:i])
            parts = [data[n * begin : n * (begin + size)] for data, n in zip(found, counts, strict=True)]
            whole = np.frombuffer(bytearray(b"".join(parts)), array.dtype)
            joined.append(whole.reshape(sum(counts), *array.shape[1:]))
        return tuple(joined)

    def any(self, wish: bool) -> bool:
        """Return whether any process wishes so."""
        return b"\1" in self._meet(b"\1" if wish else b"\0")

    def wait(self) -> None:
        """Wait for all."""
        self._meet(b"")

    def first(self, number: int) -> int:
        """Return the number that the first process has."""
        return int(self.join(np.array([number]))[0][0])

    def check(self, store: Any, **arguments: Any) -> None:
        """Raise unless several processes have a store to write to, and all have the same arguments.

        Raises
        ------
        ValueError, ProcessesError
            The latter in all of them where arguments differ.
        """
        if store is None and self.count > 1:
            raise ValueError(
                f"store=None, and {self.count} processes share the run: give store=, which all of them write to (and "
                "leave keep='moments' out)"
            )
        self.agree(" or ".join(arguments), repr(list(arguments.values())).encode())

    def agree(self, name: str, what: bytes) -> None:
        """Wait for all, and raise :class:`ProcessesError` in all where they do not have the same bytes."""
        if self.count == 1:
            return
        if len(set(self._meet(what))) > 1:
            raise ProcessesError(
                f"the processes of this run differ in {name}: call pmm.sample with the same arguments in all of them, "
                "on processes of one kind"
            )

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let an error end the run in all processes, wherever they meet next.

        Raises
        ------
        ProcessesError
            In those that have not failed themselves.
        """
        try:
            yield
        except ProcessesError:
            raise
        except Exception:
            if self.count > 1:
                with suppress(Exception):
                    self.exchange(_FAILED)
            raise

    def _meet(self, data: bytes) -> list[bytes]:
        if self.count == 1:
            return [data]
        try:
            found = self.exchange(_GOES_ON + data)
        except Exception as error:
            raise ProcessesError(f"the other processes of this run cannot be reached ({error}); {_REMEDY}") from error
        failed = [i for i, message in enumerate(found) if message == _FAILED]
        if failed:
            raise ProcessesError(f"process {failed[0]} of this run has failed, see what it says; {_REMEDY}")
        return [message[1:] for message in found]


def _through_jax(data: bytes) -> list[bytes]:
    from jax.experimental.multihost_utils import process_allgather

    # As bytes, which no precision of JAX can round.
    length = np.frombuffer(len(data).to_bytes(8, "little"), np.uint8)
    lengths = [int.from_bytes(row.tobytes(), "little") for row in process_allgather(length)]
    padded = np.zeros(max(lengths), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    found = process_allgather(padded)
    return [row[:n].tobytes() for row, n in zip(found, lengths, strict=True)]

"""The processes of one run: each advances its own chains, and all hold the same state of the whole run.

They execute the same code in the same order and exchange bytes in collective calls.  Code with one process and with
several differs only there: after the exchange, warm-up sees the same draws in all processes and takes the same
decisions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

_GOES_ON = b"\0"
_FAILED = b"\1"
_REMEDY = "begin all processes again, with resume=True"


class ProcessesError(RuntimeError):
    """Another process of the run failed or cannot be reached."""


def is_primary_process() -> bool:
    """Return whether this process prints and logs: the first that ``jax.distributed`` connected, or the only one."""
    # ArviZ leaves a module of that name that loads JAX when it is asked for anything.
    return "jax._src" not in sys.modules or sys.modules["jax"].process_index() == 0


def _alone(data: bytes) -> list[bytes]:
    return [data]


@dataclass(frozen=True)
class Processes:
    """A process and its place among the processes of a run.

    Attributes
    ----------
    chains
        The chains that this process advances.
    index, count
        Its index, and the number of processes; only the first publishes results, prints and logs.
    exchange
        Collective call: sends bytes to all processes and returns those of each, in order.
    """

    chains: slice
    index: int = 0
    count: int = 1
    exchange: Callable[[bytes], list[bytes]] = _alone

    @classmethod
    def of(cls, chains: int, group: int, index: int, count: int, exchange: Callable[[bytes], list[bytes]]) -> Processes:
        """Share whole groups of chains, of which there must be one for each process, as equally as possible."""
        groups = -(-chains // group)
        if groups < count:
            raise ValueError(
                f"chains={chains}: {count} processes have only {groups} group(s) of {group} chains to share, which "
                "advance in lockstep; take more chains or fewer processes"
            )
        start, stop = (i * groups // count * group for i in (index, index + 1))
        return cls(slice(start, min(stop, chains)), index, count, exchange)

    @classmethod
    def of_jax(cls, chains: int, group: int) -> Processes:
        """Return this process among those that ``jax.distributed`` has connected; alone without it."""
        import jax

        if jax.process_count() == 1:
            return cls(slice(0, chains))
        return cls.of(chains, group, jax.process_index(), jax.process_count(), _through_jax)

    @property
    def primary(self) -> bool:
        """Whether this process publishes results, prints and logs."""
        return self.index == 0

    def join(self, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """Concatenate the arrays of all processes along their first axes, which have one length in each process."""
        if self.count == 1:
            return arrays
        messages = self._exchanged(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays))
        sizes = [array.itemsize * int(np.prod(array.shape[1:], dtype=int)) for array in arrays]
        counts = [len(data) // sum(sizes) for data in messages]
        joined = []
        for i, (array, size) in enumerate(zip(arrays, sizes, strict=True)):
            start = sum(sizes[:i])
            pieces = [data[n * start : n * (start + size)] for data, n in zip(messages, counts, strict=True)]
            values = np.frombuffer(bytearray(b"".join(pieces)), array.dtype)
            joined.append(values.reshape(sum(counts), *array.shape[1:]))
        return tuple(joined)

    def any(self, condition: bool) -> bool:
        """Return whether a condition holds in any process."""
        return b"\1" in self._exchanged(b"\1" if condition else b"\0")

    def wait(self) -> None:
        """Wait for all processes."""
        self._exchanged(b"")

    def first(self, number: int) -> int:
        """Return the number that the first process gives."""
        return int(self.join(np.array([number]))[0][0])

    def check(self, store: object, **arguments: object) -> None:
        """Raise an error, in all processes, unless they have the same arguments and, if several, a store."""
        if store is None and self.count > 1:
            raise ValueError(
                f"store=None, and {self.count} processes share the run: give store=, which all of them write to"
            )
        self.agree(" or ".join(arguments), repr(list(arguments.values())).encode())

    def agree(self, name: str, data: bytes) -> None:
        """Raise :class:`ProcessesError` in all processes if they do not give the same bytes."""
        if self.count == 1:
            return
        if len(set(self._exchanged(data))) > 1:
            raise ProcessesError(
                f"the processes of this run differ in {name}: call pmm.sample with the same arguments in all of them, "
                "on processes of one kind"
            )

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """End the run in all processes, by ProcessesError at their next collective call, if this one fails."""
        try:
            yield
        except ProcessesError:
            raise
        except Exception:
            if self.count > 1:
                with suppress(Exception):
                    self.exchange(_FAILED)
            raise

    def _exchanged(self, data: bytes) -> list[bytes]:
        """Return the bytes of all processes, or raise if one has failed."""
        if self.count == 1:
            return [data]
        try:
            messages = self.exchange(_GOES_ON + data)
        except Exception as error:
            raise ProcessesError(f"the other processes of this run cannot be reached ({error}); {_REMEDY}") from error
        failed = [i for i, message in enumerate(messages) if message == _FAILED]
        if failed:
            raise ProcessesError(f"process {failed[0]} of this run has failed, see what it says; {_REMEDY}")
        return [message[1:] for message in messages]


def _through_jax(data: bytes) -> list[bytes]:
    """Exchange bytes with all processes of ``jax.distributed``."""
    from jax.experimental.multihost_utils import process_allgather

    # Arrays of bytes: JAX would round others to its precision.
    length = np.frombuffer(len(data).to_bytes(8, "little"), np.uint8)
    lengths = [int.from_bytes(row.tobytes(), "little") for row in process_allgather(length)]
    padded = np.zeros(max(lengths), np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    rows = process_allgather(padded)
    return [row[:n].tobytes() for row, n in zip(rows, lengths, strict=True)]

"""The files of a store: bytes under keys such as ``posterior/mu/c.0.3``, in a folder on a disk; and errors of stores.

A file exists whole or not at all: it is written under another name, flushed and renamed.  Every failure becomes a
:class:`StoreError` that names the file.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
from collections.abc import Iterator

from filelock import FileLock, Timeout


class StoreError(RuntimeError):
    """A store cannot be read or written: the message names the path, what happened, and the remedy."""


class NothingStored(StoreError):
    """There is nothing to resume or to read: the path is missing, or its creation was interrupted."""


class Damaged(StoreError):
    """The bytes of a file differ from those that were written."""


PRIVATE = ".pmm"  # files that are not part of the zarr hierarchy
PARTIAL = ".partial"
LOCK = f"{PRIVATE}/lock"
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP)  # from file systems that cannot flush directories
_REMEDIES = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room, then run again (with resume=True if draws were stored)"
    ),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "use a path that may be written to"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST, errno.EISDIR), "a file is in the way: use another path"),
}


@contextlib.contextmanager
def _reported(path: str, doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else f"{type(error).__name__}: {error}"
        remedy = _REMEDIES.get(error.errno or 0, "see to that, then run again (with resume=True if draws were stored)")
        raise StoreError(
            f"{path}: could not be {doing}: {reason}; {remedy}.  What was committed stays readable"
        ) from error


class Folder:
    """Files under keys, with one writer at a time, whose lock the kernel releases when its process ends.

    Raises
    ------
    StoreError
        For a URL, and where a file is in the way.
    ImportError
        If zarr is not installed.
    """

    def __init__(self, path: str | os.PathLike[str]):
        for module in ("zarr", "google_crc32c"):
            if importlib.util.find_spec(module) is None:
                raise ImportError(f"{path}: a store needs {module}: pip install 'pmm-mcmc[store]', or leave store= out")
        if "://" in os.fspath(path):
            raise StoreError(
                f"{path}: is a URL, and a store is a folder on a disk; sample to a disk, and copy the folder during "
                "the run or after it"
            )
        self.root = os.path.abspath(os.path.expanduser(path))
        if os.path.isfile(self.root):
            raise StoreError(f"{self.root}: is a file, and a store is a folder; use another path")
        self._lock = FileLock(self.at(LOCK), thread_local=False)

    def at(self, key: str) -> str:
        """Return the path of a key."""
        return os.path.join(self.root, *key.split("/"))

    def get(self, key: str) -> bytes | None:
        """Return the contents of a file, or ``None`` if there is none."""
        with _reported(self.at(key), "read"):
            try:
                with open(self.at(key), "rb") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def exists(self, key: str) -> bool:
        """Return whether a file exists."""
        return os.path.exists(self.at(key))

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file, whole or not at all; a durable one then survives a power failure."""
        path = self.at(key)
        with _reported(path, "written"):
            _make(os.path.dirname(path))
            try:
                binary = getattr(os, "O_BINARY", 0)  # without it, Windows writes line ends of text
                file = os.open(path + PARTIAL, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | binary, 0o666)
                try:
                    left = memoryview(data)
                    while left:
                        left = left[os.write(file, left) :]
                    if durable:
                        os.fsync(file)
                finally:
                    os.close(file)
                os.replace(path + PARTIAL, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(path + PARTIAL)
                raise
            if durable:
                _flush_folder(os.path.dirname(path))

    def delete(self, key: str) -> None:
        """Remove a file if it exists."""
        with _reported(self.at(key), "removed"), contextlib.suppress(FileNotFoundError):
            os.unlink(self.at(key))

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all files in bytes, by key."""
        sizes = {}
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):  # written at present under this name
                    sizes[os.path.relpath(path, self.root).replace(os.sep, "/")] = os.path.getsize(path)
        return sizes

    @contextlib.contextmanager
    def opened_for_writing(self) -> Iterator[None]:
        """Become the only writer, which raises :class:`StoreError` if there is another; not if the block fails."""
        with _reported(self.at(LOCK), "locked"):
            _make(os.path.dirname(self.at(LOCK)))
            try:
                self._lock.acquire(blocking=False)
            except Timeout:
                raise StoreError(
                    f"{self.root}: another run is writing to this store; wait for it, or use another path"
                ) from None
            self._inode = os.stat(self.at(LOCK)).st_ino
        try:
            yield
        except BaseException:
            self.release()
            raise

    def check(self) -> None:
        """Raise :class:`StoreError` if the folder is there no more, even if another one took its place."""
        try:
            inode = os.stat(self.at(LOCK)).st_ino
        except OSError:
            inode = None
        if inode != self._inode:
            raise StoreError(
                f"{self.root}: the store was removed or moved away while it was written to; start another run"
            )

    def release(self) -> None:
        """Stop being the writer."""
        self._lock.release()


def _make(folder: str) -> None:
    """Create a folder with its parents, each flushed."""
    if os.path.isdir(folder):
        return
    if os.path.dirname(folder) != folder:
        _make(os.path.dirname(folder))
    with contextlib.suppress(FileExistsError):  # created by another thread
        os.mkdir(folder)
    _flush_folder(os.path.dirname(folder))


def _flush_folder(path: str) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # Windows, which cannot open a folder
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(handle)

"""The files of a store: bytes under keys such as ``posterior/mu/c.0.3``, on a disk or behind an fsspec URL.

A file exists whole or not at all: on a disk it is written under another name, flushed and renamed; object stores
replace objects as a whole.  Every failure becomes a :class:`StoreError` that names the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from typing import Any

from filelock import FileLock, Timeout  # comes with pytensor
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from pmm_mcmc.run.storage.errors import StoreError

__all__ = ["LOCKS", "PARTIAL", "PRIVATE", "Folder", "folder_at"]

PRIVATE = ".pmm"  # files that are not part of the zarr hierarchy
PARTIAL = ".partial"
_LOCK = f"{PRIVATE}/lock"
_TOKEN = f"{PRIVATE}/writer"
LOCKS = frozenset((_LOCK, _TOKEN))
_NO_SYNC = (errno.EINVAL, errno.ENOTSUP)  # from file systems that cannot flush directories
_REMEDIES = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make room, then run again (with resume=True if draws were stored)"
    ),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "use a path that may be written to"),
    **dict.fromkeys((errno.ENOTDIR, errno.EEXIST, errno.EISDIR), "a file is in the way: use another path"),
}


def folder_at(path: str | os.PathLike[str]) -> Folder:
    """Return the folder at a path or URL."""
    text = os.fspath(path)
    for scheme in ("file://", "local://"):
        text = text.removeprefix(scheme)
    return Folder(text) if "://" in text else LocalFolder(text)


@contextlib.contextmanager
def _reported(where: str, doing: str) -> Iterator[None]:
    try:
        yield
    except StoreError:
        raise
    except Exception as error:  # fsspec file systems raise errors of any type
        number = getattr(error, "errno", None)
        reason = os.strerror(number) if number else f"{type(error).__name__}: {error}"
        remedy = _REMEDIES.get(number or 0, "see to that, then run again (with resume=True if draws were stored)")
        raise StoreError(
            f"{where}: could not be {doing}: {reason}; {remedy}.  What was committed stays readable"
        ) from error


class Folder:
    """Files under keys, at a URL, with one writer at a time.

    A remote lock would not be released when its process is killed.  Therefore the latest writer wins: it writes its
    token, and a writer that finds another token before a commit stops.  Until then both write the same bytes.
    """

    def __init__(self, url: str):
        self.root = url.rstrip("/")
        self._token: bytes | None = None
        self._fs: Any
        with _reported(self.root, "opened"):
            self._fs, self._base = url_to_fs(self.root)

    def at(self, key: str) -> str:
        """Return the path or URL of a key, for messages."""
        return f"{self.root}/{key}"

    def _path(self, key: str) -> str:
        return f"{self._base}/{key}"

    def get(self, key: str) -> bytes | None:
        """Return the contents of a file, or ``None`` if there is none."""
        with _reported(self.at(key), "read"):
            try:
                return self._fs.cat_file(self._path(key))
            except (FileNotFoundError, NotADirectoryError):
                return None

    def exists(self, key: str) -> bool:
        """Return whether a file exists."""
        with _reported(self.at(key), "looked for"):
            self._fs.invalidate_cache()  # another process may have written it
            return bool(self._fs.exists(self._path(key)))

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file, whole or not at all; a durable one then survives a power failure."""
        with _reported(self.at(key), "written"):
            self._fs.pipe_file(self._path(key), data)

    def delete(self, key: str) -> None:
        """Remove a file if it exists."""
        with _reported(self.at(key), "removed"), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(key))

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all files in bytes, by key."""
        with _reported(self.root, "listed"):
            self._fs.invalidate_cache()
            try:
                files = self._fs.find(self._base, detail=True)
            except FileNotFoundError:
                files = {}
        return {path[len(self._base) + 1 :]: int(info["size"]) for path, info in files.items()}

    def acquire(self) -> None:
        """Become the only writer; on a disk, raise :class:`StoreError` if there is another."""
        token = uuid.uuid4().hex.encode()
        self.put(_TOKEN, token, durable=False)
        self._token = token

    def check(self) -> None:
        """Raise :class:`StoreError` if another writer has taken over, or the folder is there no more."""
        token = self.get(_TOKEN)
        if token is None:
            raise StoreError(
                f"{self.root}: the store was removed or moved away while it was written to; start another run"
            )
        if token != self._token:
            raise self._taken()

    def release(self) -> None:
        """Stop being the writer."""
        if self._token is not None and self.get(_TOKEN) == self._token:
            self.delete(_TOKEN)
        self._token = None

    @contextlib.contextmanager
    def opened_for_writing(self) -> Iterator[None]:
        """Become the only writer; release the lock if the block fails."""
        try:
            self.acquire()
            yield
        except BaseException:
            with contextlib.suppress(StoreError):
                self.release()
            raise

    def _taken(self) -> StoreError:
        return StoreError(f"{self.root}: another run is writing to this store; wait for it, or use another path")


class LocalFolder(Folder):
    """A folder on this machine, locked by the kernel, which releases the lock when its process ends."""

    def __init__(self, path: str):
        self.root = os.path.abspath(os.path.expanduser(path))
        if os.path.isfile(self.root):
            raise StoreError(f"{self.root}: is a file, and a store is a folder; use another path")
        self._token = None
        self._fs = LocalFileSystem()
        self._base = self.root.replace(os.sep, "/")
        self._lock = FileLock(self._path(_LOCK), thread_local=False)

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        path = self._path(key)
        with _reported(path, "written"):
            self._make(os.path.dirname(path))
            try:
                self._write(path + PARTIAL, data, durable)
                os.replace(path + PARTIAL, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(path + PARTIAL)
                raise
            if durable:
                _flush_folder(os.path.dirname(path))

    @staticmethod
    def _write(path: str, data: bytes, durable: bool) -> None:
        binary = getattr(os, "O_BINARY", 0)  # without it, Windows writes line ends of text
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | binary, 0o666)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(file, left) :]
            if durable:
                os.fsync(file)
        finally:
            os.close(file)

    def _make(self, folder: str) -> None:
        if os.path.isdir(folder):
            return
        if os.path.dirname(folder) != folder:
            self._make(os.path.dirname(folder))
        with contextlib.suppress(FileExistsError):  # created by another thread
            os.mkdir(folder)
        _flush_folder(os.path.dirname(folder))

    def acquire(self) -> None:
        with _reported(self.at(_LOCK), "locked"):
            self._make(os.path.dirname(self._path(_LOCK)))
            try:
                self._lock.acquire(blocking=False)
            except Timeout:
                raise self._taken() from None
            super().acquire()

    def release(self) -> None:
        super().release()
        self._lock.release()


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

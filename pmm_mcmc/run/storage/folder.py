"""The files of a store: bytes under keys such as ``posterior/mu/c.0.3``, on a disk or behind an fsspec URL.

A file exists whole or not at all: on a disk it is written under another name, flushed and renamed; object stores
replace objects as a whole.  Every failure becomes a :class:`StoreError` that names the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import IO, Any, ClassVar

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
    return RemoteFolder(text) if "://" in text else LocalFolder(text)


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


def _locked(file: int) -> bool:
    """Lock an open file until it is closed or the process ends; return False if another one holds it."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno != errno.EACCES:
                raise
            return False
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Folder(ABC):
    """Files under keys, with a lock for writing."""

    root: str

    def at(self, key: str) -> str:
        """Return the path or URL of a key, for messages."""
        return f"{self.root}/{key}"

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Return the contents of a file, or ``None`` if there is none."""

    @abstractmethod
    def exists(self, key: str) -> bool:
        """Return whether a file exists."""

    @abstractmethod
    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        """Write a file, whole or not at all; a durable one then survives a power failure."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove a file if it exists."""

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """Return the sizes of all files in bytes, by key."""

    @abstractmethod
    def acquire(self) -> None:
        """Become the only writer, or raise :class:`StoreError` at once."""

    @abstractmethod
    def check(self) -> None:
        """Raise :class:`StoreError` if another writer has taken over."""

    @abstractmethod
    def release(self) -> None:
        """Stop being the writer."""

    @contextlib.contextmanager
    def opened_for_writing(self) -> Iterator[None]:
        """Become the only writer; release the lock if the block fails."""
        self.acquire()
        try:
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
        self._lock: IO[bytes] | None = None

    def _path(self, key: str) -> str:
        return os.path.join(self.root, *key.split("/"))

    def get(self, key: str) -> bytes | None:
        with _reported(self.at(key), "read"):
            try:
                with open(self._path(key), "rb") as file:
                    return file.read()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def exists(self, key: str) -> bool:
        return os.path.exists(self._path(key))

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

    def delete(self, key: str) -> None:
        with _reported(self.at(key), "removed"), contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(key))

    def sizes(self) -> dict[str, int]:
        sizes = {}
        with _reported(self.root, "listed"):
            for folder, _, names in os.walk(self.root):
                for name in names:
                    path = os.path.join(folder, name)
                    with contextlib.suppress(FileNotFoundError):
                        sizes[os.path.relpath(path, self.root).replace(os.sep, "/")] = os.stat(path).st_size
        return sizes

    def acquire(self) -> None:
        with _reported(self.at(_LOCK), "locked"):
            self._make(os.path.dirname(self._path(_LOCK)))
            file = open(self._path(_LOCK), "ab")
            try:
                if not _locked(file.fileno()):
                    raise self._taken()
            except BaseException:
                file.close()
                raise
            self._lock = file

    def check(self) -> None:
        with contextlib.suppress(OSError):
            if self._lock and os.path.samestat(os.fstat(self._lock.fileno()), os.stat(self._path(_LOCK))):
                return
        raise StoreError(f"{self.root}: the store was removed or moved away while it was written to; start another run")

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class RemoteFolder(Folder):
    """A folder at a URL.

    A remote lock is not released when its process is killed.  Therefore the latest writer wins: it writes its token,
    and a writer that finds a token other than its own before a commit stops.  Until then both write the same bytes.
    """

    _here: ClassVar[weakref.WeakValueDictionary[str, RemoteFolder]] = weakref.WeakValueDictionary()  # in this process

    def __init__(self, url: str):
        self.root = url.rstrip("/")
        self._token: str | None = None
        with _reported(self.root, "opened"):
            from fsspec.core import url_to_fs

            self._fs: Any
            self._fs, self._base = url_to_fs(self.root)

    def _path(self, key: str) -> str:
        return f"{self._base}/{key}"

    def get(self, key: str) -> bytes | None:
        with _reported(self.at(key), "read"):
            try:
                return self._fs.cat_file(self._path(key))
            except FileNotFoundError:
                return None

    def exists(self, key: str) -> bool:
        with _reported(self.at(key), "looked for"):
            self._fs.invalidate_cache()  # another process may have written it
            return bool(self._fs.exists(self._path(key)))

    def put(self, key: str, data: bytes, *, durable: bool = True) -> None:
        with _reported(self.at(key), "written"):
            self._fs.pipe_file(self._path(key), data)

    def delete(self, key: str) -> None:
        with _reported(self.at(key), "removed"), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(key))

    def sizes(self) -> dict[str, int]:
        with _reported(self.root, "listed"):
            self._fs.invalidate_cache()
            try:
                files = self._fs.find(self._base, detail=True)
            except FileNotFoundError:
                files = {}
        return {path[len(self._base) + 1 :]: int(info["size"]) for path, info in files.items()}

    def acquire(self) -> None:
        if self.root in self._here:
            raise self._taken()
        token = uuid.uuid4().hex
        self.put(_TOKEN, token.encode())
        self._token = token
        self._here[self.root] = self

    def check(self) -> None:
        if self._token is None or self.get(_TOKEN) != self._token.encode():
            raise self._taken()

    def release(self) -> None:
        if self._token is None:
            return
        self._here.pop(self.root, None)
        token = self._token
        self._token = None
        if self.get(_TOKEN) == token.encode():
            self.delete(_TOKEN)

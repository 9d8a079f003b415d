"""Writing of reports to files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from pmm_mcmc.workbench.report.run import run_page

__all__ = ["check_place", "to_html", "write_page"]


def to_html(dt: Any, path: str | os.PathLike[str]) -> Path:
    """Write the report on a run to a file: verdict, estimates with bias, convergence, tuned parameters, figures.

    Parameters
    ----------
    dt
        A result of ``pm.sample`` or :func:`pmm_mcmc.sample`, or an opened store.
    path
        Path of the file, which is replaced if it exists; at no time is it incomplete.

    Returns
    -------
    pathlib.Path
        Path of the file.

    Raises
    ------
    ValueError
        If ``dt`` is not such a result, or has too few draws for a summary.
    OSError
        If the file cannot be written; nothing is computed then.

    See Also
    --------
    pmm_mcmc.summary : The table in the report.
    """
    check_place(path)
    write_page(run_page(dt), path)
    return Path(path)


def check_place(path: str | os.PathLike[str]) -> None:
    """Raise ``OSError`` if no file can be written at this path."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path}: is a folder; give the name of a file in it")
    folder = path.parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {folder}; make it, or give another path")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{path}: the folder {folder} may not be written to; give another path")


def write_page(html: str, path: str | os.PathLike[str]) -> None:
    """Write a page so that the file exists whole or not at all."""
    check_place(path)
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(html)
        # mkstemp creates files for their owner only; a new file gets the user's default permissions.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise

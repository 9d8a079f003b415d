"""Break what computes draws, one place at a time: each must turn a test red.  ``make mutants`` runs all.

Each mutant is a text replaced in a copy of the package, listed in ``mutants.toml`` of its room.  It survives if the
tests named with it still pass; the script then fails.  ``python tests/mutants.py WORD ...`` runs those whose
description has one of the words.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Mutant(NamedTuple):
    """What is broken, where, by which replacement, and which tests must notice."""

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = [
    Mutant(**{**given, "tests": tuple(given["tests"])})
    for file in sorted(Path(__file__).parent.glob("*/mutants.toml"))
    for given in tomllib.loads(file.read_text(encoding="utf-8"))["mutant"]
]


def killed(mutant: Mutant, folder: Path) -> bool:
    """Whether the named tests fail on the mutant."""
    path = folder / "pmm_mcmc" / mutant.file
    source = path.read_text()
    if mutant.old not in source:
        raise SystemExit(f"{mutant.what}: the text to replace is not in {mutant.file} any more; mend its mutants.toml")
    path.write_text(source.replace(mutant.old, mutant.new))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "NUMBA_CACHE_DIR": str(folder / "numba"),
        "OMP_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    finally:
        path.write_text(source)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{mutant.what}: pytest could not run\n{done.stdout[-3000:]}{done.stderr[-2000:]}")
    return done.returncode == 1


def main(words: list[str]) -> None:
    """Run the chosen mutants; exit with 1 if one survives."""
    chosen = [m for m in MUTANTS if not words or any(word in m.what for word in words)]
    survivors = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("pmm_mcmc", "tests", "examples", "benchmarks/common", "pyproject.toml"):
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / part)
        for mutant in chosen:
            dead = killed(mutant, folder)
            print(f"{'killed  ' if dead else 'SURVIVED'}  {mutant.what}", flush=True)
            survivors += [] if dead else [mutant.what]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    if survivors:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Users who check types: every public name has some, and a wrong call is reported."""

import re
from pathlib import Path

import user_code
from mypy import api

import pmm_mcmc

SOURCE = Path(user_code.__file__)


def test_code_of_a_user_is_checked(monkeypatch, tmp_path):
    monkeypatch.setenv("MYPYPATH", str(Path(pmm_mcmc.__file__).parents[1]))
    options = ["--strict", "--config-file=", "--follow-imports=silent", "--no-error-summary", "--no-incremental"]
    out, err, _ = api.run([*options, f"--cache-dir={tmp_path}", str(SOURCE)])
    assert not err
    found = {}
    for line, said in re.findall(r"\.py:(\d+): (.+)$", out, re.MULTILINE):
        kind = re.search(r'Revealed type is "(?:.*fallback=)?(?:[\w.]*\.)?(\w+)\]?"$|^error: .*\[([\w-]+)\]$', said)
        if kind:
            found.setdefault(int(line), []).append(kind[1] or kind[2])
    expected = {}
    for number, line in enumerate(SOURCE.read_text().splitlines(), 1):
        if "reveal_type(" in line or ("# " in line and not line.strip().startswith("#") and "fmt:" not in line):
            expected[number] = line.rpartition("# ")[2].split()
    assert found == expected


def test_every_public_name_is_in_that_code():
    code = SOURCE.read_text()
    names = [f"pmm.{name}" for name in pmm_mcmc.__all__]
    names += [f"workbench.{name}" for name in (*pmm_mcmc.workbench.__all__, "targets")]
    assert [name for name in names if not re.search(rf"{re.escape(name)}\b", code)] == []

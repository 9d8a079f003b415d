"""``python -m benchmarks``: lists every script, says what it costs and prints, and runs it. Nothing is statistical."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("benchmarks_entry", ROOT / "benchmarks" / "__main__.py")
entry = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(entry)


def guarded(path):
    """Whether a file does something when it is run, by its syntax tree."""
    tests = [ast.unparse(node.test) for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]
    return "__name__ == '__main__'" in tests


def test_every_script_is_listed_and_nothing_else():
    there = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if guarded(path)} - {"__main__"}
    assert set(entry.scripts()) == there
    assert set(entry.ENTRIES) == there


@pytest.mark.parametrize("name", sorted(entry.ENTRIES))
def test_a_script_is_described(name):
    path = entry.scripts()[name]
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert f"python benchmarks/{name}.py" in docstring, "the docstring says how it is run"
    assert len(entry.title(path)) > 10 and "`" not in entry.title(path)
    assert all(entry.ENTRIES[name])
    assert f"{name}: {entry.title(path)}\n    costs   {entry.ENTRIES[name].cost}\n" in entry.listing()


def test_kept_results_are_named():
    for path in (ROOT / "benchmarks" / "results").glob("*.txt"):
        if path.stem in entry.ENTRIES:
            assert f"benchmarks/results/{path.name}" in entry.listing()


def test_without_a_name_it_lists():
    done = subprocess.run([sys.executable, "-m", "benchmarks"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == entry.listing()


def test_an_unknown_name_is_an_error_that_names_the_others(capsys):
    assert entry.main(["peer"]) == 2
    said = capsys.readouterr().err
    assert "'peer'" in said and "peers" in said


def test_a_script_gets_its_arguments_and_hands_back_its_status(tmp_path, monkeypatch):
    (tmp_path / "sibling.py").write_text("STATUS = 7\n")
    script = "import sys\nfrom sibling import STATUS\nif __name__ == '__main__':\n"
    script += "    sys.exit(STATUS if sys.argv[1:] == ['a', '--b'] else 1)\n"
    (tmp_path / "one.py").write_text(script)
    monkeypatch.setattr(entry, "HERE", tmp_path)
    assert list(entry.scripts()) == ["one"]
    assert entry.main(["one", "a", "--b"]) == 7

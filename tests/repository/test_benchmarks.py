"""``python -m benchmarks``: it lists what there is, and what there is runs, in processes: nothing of it is imported."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHMARKS, SUPPORT = ROOT / "benchmarks", ROOT / "tests" / "support"
FILES = [path for path in sorted(BENCHMARKS.glob("**/*.py")) if path != BENCHMARKS / "__main__.py"]
# Of BlackJAX, which only the environment of the benchmarks has.
NEED_PEERS = {"many_chains"}


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "benchmarks", *arguments], cwd=ROOT, capture_output=True, text=True)


def name_of(path):
    return ".".join(path.relative_to(BENCHMARKS).with_suffix("").parts)


def guarded(path):
    """Whether a file does something when it is run."""
    tests = [ast.unparse(node.test) for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]
    return "__name__ == '__main__'" in tests


def test_every_command_is_listed_and_nothing_else():
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    commands = {name_of(path).removesuffix(".__main__"): path for path in FILES if guarded(path)}
    assert sorted(line for line in done.stdout.splitlines()[2:] if line and not line.startswith(" ")) == sorted(
        commands
    )
    for name, path in commands.items():
        docstring = ast.get_docstring(ast.parse(path.read_text()))
        title = docstring.partition("\n")[0].partition(": ``python")[0].rstrip(".")
        assert len(title) > 10 and f"\n{name}\n    {title}" in done.stdout


def test_an_unknown_name_is_an_error_that_names_the_others():
    done = run("verses")
    assert done.returncode == 2 and "'verses'" in done.stderr and "versus" in done.stderr


def test_a_command_gets_its_arguments_and_hands_back_its_status():
    done = run("diffusion", "--quick", "--write")
    assert done.returncode == 2 and "leave --quick out" in done.stderr


def test_every_file_finds_what_it_imports():
    names = [name_of(path) for path in FILES]
    if importlib.util.find_spec("blackjax") is None:
        names = [name for name in names if name not in NEED_PEERS]
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    path = os.pathsep.join(map(str, filter(None, [BENCHMARKS, SUPPORT, os.environ.get("PYTHONPATH")])))
    command, environment = [sys.executable, "-c", code, *names], {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_tests_import_no_benchmark():
    tests = list((ROOT / "tests").glob("**/*.py"))
    modules = {path.stem for path in FILES} | {path.parent.name for path in FILES} | {"benchmarks"}
    modules -= {path.stem for path in tests}
    for path in tests:
        for node in ast.walk(ast.parse(path.read_text())):
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            assert not {name.partition(".")[0] for name in found} & modules, path

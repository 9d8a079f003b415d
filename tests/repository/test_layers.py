"""Which room may import which: an import goes down this list, never up; annexes import the core by ``api`` alone."""

import ast
from pathlib import Path

import pytest

import pmm_mcmc

pytestmark = pytest.mark.quick

PACKAGE = Path(pmm_mcmc.__file__).parent
FLOORS = (
    "langevin", "coordinates", "model", "tape", "engines", "warmup", "diagnostics", "steps", "run", "tempering",
)  # fmt: skip
ANNEXES = {"doors": {"api"}, "workbench": {"api", "_version"}, "diffusion": {"langevin"}}
# Modules that need a package which is not always there: they and annexes alone are imported inside functions.
OPTIONAL = {"model.jax_density", "engines.jax_engine", "diffusion.jax"}


def imports(file):
    """Yield each module of the package that a file imports, and whether inside a function."""
    tree = ast.parse(file.read_text())
    within = {n for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.Lambda) for n in ast.walk(f)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pmm_mcmc":
            for name in (a.name for a in node.names):
                place = PACKAGE.joinpath(*node.module.split(".")[1:], name)
                module = f"{node.module}.{name}" if place.is_dir() or place.with_suffix(".py").exists() else node.module
                yield module.removeprefix("pmm_mcmc."), node in within


FILES = [f for f in sorted(PACKAGE.rglob("*.py")) if f.parent != PACKAGE]


def test_an_import_goes_down():
    for file in FILES:
        room = file.relative_to(PACKAGE).parts[0]
        for module, inside in imports(file):
            other = module.split(".")[0]
            what = f"{file.relative_to(PACKAGE)} imports {module}" + " inside a function" * inside
            assert not inside or module in OPTIONAL or other in ANNEXES, what
            if room in ANNEXES:
                assert other in {room, *ANNEXES[room]}, what
            elif other in ANNEXES:
                assert inside, f"{what}, of an annexe, when it is imported itself"
            elif other != "_version":
                assert other and FLOORS.index(other) <= FLOORS.index(room), what


def test_nothing_lies_outside_a_room():
    assert {f.name for f in PACKAGE.glob("*.py")} == {"__init__.py", "_version.py", "api.py"}
    assert {f.relative_to(PACKAGE).parts[0] for f in FILES} == {*FLOORS, *ANNEXES}

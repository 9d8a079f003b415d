"""What the package needs: every import is declared, and floors and ceilings are those that are tested."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import pmm_mcmc

pytestmark = pytest.mark.quick

PACKAGE = Path(pmm_mcmc.__file__).parent
ROOT = PACKAGE.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def declared(*lists):
    return {each.name: each for names in lists for each in map(Requirement, names)}


def pinned(file):
    lines = (ROOT / file).read_text().splitlines()
    return {each.name.lower(): next(iter(each.specifier)).version for each in map(Requirement, lines)}


def test_every_import_is_a_declared_dependency():
    names = {name.lower() for name in declared(PROJECT["dependencies"], *EXTRAS.values())}
    distributions = packages_distributions()
    undeclared = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module]
            packages = {module.partition(".")[0] for module in modules} - set(sys.stdlib_module_names) - {"pmm_mcmc"}
            undeclared |= {p for p in packages if not names & {d.lower() for d in distributions.get(p, [p])}}
    assert not undeclared


def test_the_oldest_versions_that_are_tested_are_the_floors():
    oldest = pinned("constraints-oldest.txt")
    for name, requirement in declared(PROJECT["dependencies"], EXTRAS["store"]).items():
        (floor,) = requirement.specifier
        assert floor.operator == ">=" and Version(floor.version) == Version(oldest[name]), requirement


@pytest.mark.parametrize(("name", "of"), [("numba", "pytensor"), ("pytensor", "pymc")])
def test_the_newest_versions_that_are_tested_are_at_the_ceilings_of_others(name, of):
    newest = Version(pinned("constraints.txt")[name])
    specifier = declared(line for line in requires(of) if re.match(rf"{name}\b", line))[name].specifier
    # The release after it is another patch of the last line that is allowed, or above the ceiling.
    ceiling = next(each for each in specifier if each.operator in {"<", "<="})
    assert newest in specifier
    if ceiling.operator == "<=":
        assert newest == Version(ceiling.version)
    else:
        assert Version(f"{newest.major}.{newest.minor + 1}") not in specifier


def test_the_version_stands_in_one_place_and_the_changelog_dates_it():
    assert PROJECT["dynamic"] == ["version"]
    heading = re.search(r"^## \[(.*)\] - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heading[1] == pmm_mcmc.__version__

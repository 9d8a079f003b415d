"""What other sites read of the repository agrees with the package: versions, dependencies, the linter's version."""

import re
import tomllib
from pathlib import Path

import pmm_mcmc

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere():
    found = {
        "CITATION.cff": re.search(r'^version: "(.+)"$', text("CITATION.cff"), re.MULTILINE)[1],
        "conda/recipe.yaml": re.search(r'^  version: "(.+)"$', text("conda/recipe.yaml"), re.MULTILINE)[1],
        "_version.py": pmm_mcmc.__version__,
    }
    assert set(found.values()) == {PROJECT["version"]}, found


def test_conda_and_pip_ask_for_the_same_packages():
    run = re.search(r"^  run:\n((?:    - .+\n)+)", text("conda/recipe.yaml"), re.MULTILINE)[1]
    ours = {line.removeprefix("    - ").replace(" ", "") for line in run.splitlines()}
    assert ours == {*PROJECT["dependencies"], f"python{PROJECT['requires-python']}"}


def test_pre_commit_has_the_linter_of_the_checks():
    pinned = re.search(r"^ruff==(.+)$", text("constraints.txt"), re.MULTILINE)[1]
    assert f"ruff-pre-commit\n    rev: v{pinned}\n" in text(".pre-commit-config.yaml")


def test_users_get_our_types():
    assert (Path(pmm_mcmc.__file__).parent / "py.typed").exists() and "Typing :: Typed" in PROJECT["classifiers"]


def test_the_front_page_has_the_table_of_the_readme():
    table = re.search(r"^\| \| `pmm_mcmc` .*\n(?:\|.*\n)+", text("README.md"), re.MULTILINE)[0]
    assert table in text("docs/index.md")

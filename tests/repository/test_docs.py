"""What the documentation says is run: code blocks with their printed output, doctests, claims; names are there.

In a page the ``python`` blocks run in order in one namespace. A ``text`` block right after one holds all that it
prints; a block without one prints nothing. Nothing here is statistical: the chains have fixed seeds, and what is
printed of them has margins beyond their noise.
"""

import contextlib
import doctest
import functools
import importlib
import inspect
import io
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pymc as pm
import pytest

import pmm_mcmc
from pmm_mcmc.langevin.methods import METHODS

pytestmark = pytest.mark.longest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *([README] if README.exists() else [])]
PUBLIC = [name for name in pmm_mcmc.__all__ if not name.startswith("_")]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.fixture
def quiet(monkeypatch):
    """No progress bar, no other process and, unless a page says otherwise, four chains on any machine."""
    monkeypatch.setattr(pm, "sample", functools.partial(pm.sample, progressbar=False, cores=1, chains=4))
    for name in ("sample", "extend", "temper", "refit", "sbc"):
        without_bar = functools.partial(getattr(pmm_mcmc, name), progressbar=False)
        monkeypatch.setattr(pmm_mcmc, name, without_bar, raising=False)


def blocks(text):
    """Line, code and expected output of each python block."""
    fences = list(FENCE.finditer(text))
    for fence, after in zip_longest(fences, fences[1:]):
        if fence[1] == "python":
            follows = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
            yield text.count("\n", 0, fence.start()) + 1, fence[2], after[2] if follows else ""


def run(page):
    """Yield line, expected and actual output of each block of a page."""
    namespace = {"__name__": "page"}
    for line, code, expected in blocks(page.read_text(encoding="utf-8")):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + code, str(page), "exec"), namespace)
        yield line, expected, printed.getvalue()


def strip(text):
    return [line.rstrip() for line in text.rstrip().splitlines()]


@pytest.mark.pymc
@every_page
def test_code_blocks_print_what_the_page_shows(page, quiet):
    for line, expected, printed in run(page):
        assert strip(printed) == strip(expected), f"{page.relative_to(ROOT)}, block at line {line}"


def test_what_the_first_pages_claim_is_what_the_command_prints():
    """Of other pages Sphinx follows the links; of README nobody does."""
    command = [sys.executable, "-m", "benchmarks", "readme"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    texts = [" ".join(page.read_text(encoding="utf-8").split()) for page in (README, ROOT / "docs" / "index.md")]
    assert len(said) == 5 and all(line in texts[0] for line in said) and said[0] in texts[1], "\n".join(said)
    assert all((ROOT / link).exists() for link in re.findall(r"\]\((?!https:)([^)#]+)", texts[0]))


@pytest.mark.pymc
@pytest.mark.parametrize("module", ["", ".model.user_density", ".steps.methods", ".diagnostics.summary"])
def test_doctests(module, quiet):
    with contextlib.redirect_stdout(io.StringIO()) as report:
        result = doctest.testmod(importlib.import_module(f"pmm_mcmc{module}"))
    assert result.attempted > 0
    assert result.failed == 0, report.getvalue()


def test_a_docstring_names_every_parameter():
    things = {name: getattr(pmm_mcmc, name) for name in PUBLIC}
    for name, thing in things.items():
        if name in METHODS or inspect.isfunction(thing):
            section = inspect.getdoc(thing).partition("\nParameters\n---")[2]
            section = re.split(r"^\w[\w ]*\n-{3,}\n", section, maxsplit=1, flags=re.MULTILINE)[0]
            lines = re.findall(r"^\**(\w[\w, ]*)$", section, re.MULTILINE)
            documented = [parameter.strip() for line in lines for parameter in line.split(",")]
            assert sorted(documented) == sorted(inspect.signature(thing).parameters), name


def test_every_public_name_is_in_the_reference_once():
    module, named = None, {}
    for line in (ROOT / "docs" / "api.rst").read_text(encoding="utf-8").splitlines():
        if line.startswith(".. currentmodule:: "):
            module = importlib.import_module(line.split()[-1])
        elif match := re.fullmatch(r"   (\w+)", line):
            named.setdefault(module, []).append(match[1])
    assert pmm_mcmc in named and len(named) == 5
    for module, names in named.items():
        assert sorted(names) == sorted(name for name in module.__all__ if not name.startswith("_"))


def test_each_file_of_results_says_when_it_was_printed_and_evidence_which_are_older():
    page = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    state = int(re.search(r"State: (\d+) November 2026", page)[1])
    older = set(re.findall(r"`(\w+)`", page[page.index("Of 21 to 26") : page.index("frozen.")]))
    days = {}
    for path in (ROOT / "benchmarks" / "results").glob("*.txt"):
        printed = re.search(r"2026-11-(\d+)|(\d+) November 2026", path.read_text(encoding="utf-8"))
        assert printed, f"{path.name} does not say when it was printed"
        days[path.stem] = int(printed[1] or printed[2])
    assert older == {name for name, day in days.items() if day < state - 1}


def test_trust_and_the_rules_for_assistants_have_every_reason_that_a_verdict_can_have():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "pmm_mcmc").rglob("*.py")]
    codes = {code for source in sources for code in re.findall(r'\b(?:Reason|reason_of_largest)\(\s*"(\w+)"', source)}
    page = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    rows = {code for cell in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for code in re.findall(r"`(\w+)`", cell)}
    assert codes == rows | {"ladder"} and "`ladder`" in page
    rules = (ROOT / "docs" / "_root" / "llms.txt").read_text(encoding="utf-8")
    assert codes == set(re.findall(r"^\| ([a-z_]+) \| (?!meaning)", rules, re.MULTILINE))
    assert all(hasattr(pmm_mcmc, name) for name in re.findall(r"pmm\.(\w+)", rules))

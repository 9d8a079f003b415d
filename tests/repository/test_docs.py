"""What the documentation says is run: code blocks with their printed output, doctests, docstring sections, links.

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
from itertools import zip_longest
from pathlib import Path

import pymc as pm
import pytest

import pmm_mcmc
from pmm_mcmc.langevin.methods import METHODS

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *([README] if README.exists() else [])]
PUBLIC = [name for name in pmm_mcmc.__all__ if not name.startswith("_")]
CLASSES = [name for name in PUBLIC if inspect.isclass(getattr(pmm_mcmc, name))]
FUNCTIONS = [name for name in PUBLIC if inspect.isfunction(getattr(pmm_mcmc, name))]
# Pages that open with a figure; ``examples/figures.py`` draws them.
OPENED = ("index", "start", "trust", "funnels", "modes")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
every_method = pytest.mark.parametrize("name", [name for name in CLASSES if name in METHODS])


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


def prose(text):
    return FENCE.sub("", text)


def anchors(page):
    """Anchors of the headings of a page, as GitHub forms them."""
    headings = re.findall(r"^#+ +(.*?)\s*$", prose(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page):
    text = prose(page.read_text(encoding="utf-8"))
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"[a-z]+:", link)]


def strip(text):
    return [line.rstrip() for line in text.rstrip().splitlines()]


def test_there_are_pages_and_classes():
    assert len(PAGES) >= 11 and len(CLASSES) >= 6


@pytest.mark.pymc
@every_page
def test_code_blocks_print_what_the_page_shows(page, quiet):
    for line, expected, printed in run(page):
        assert strip(printed) == strip(expected), f"{page.relative_to(ROOT)}, block at line {line}"


@every_page
def test_links_resolve(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.relative_to(ROOT)}: {link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{page.relative_to(ROOT)}: no heading for {link}"


def test_every_page_is_reached_from_the_index():
    seen, todo = set(), [ROOT / "docs" / "index.md"]
    while todo:
        page = todo.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            todo += [(page.parent / link.partition("#")[0]).resolve() for link in links(page) if link[0] != "#"]
    assert set((ROOT / "docs").rglob("*.md")) <= seen


@pytest.mark.pymc
@pytest.mark.parametrize("module", ["", ".model.user_density", ".steps.methods"])
def test_doctests(module, quiet):
    with contextlib.redirect_stdout(io.StringIO()) as report:
        result = doctest.testmod(importlib.import_module(f"pmm_mcmc{module}"))
    assert result.attempted > 0
    assert result.failed == 0, report.getvalue()


def sections(name):
    """Sections of a class docstring by title; what comes before the first is under ``''``."""
    doc = inspect.getdoc(getattr(pmm_mcmc, name))
    parts = re.split(r"^(\w[\w ]*)\n-{3,}\n", doc, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


@pytest.mark.parametrize(
    "page", [README, *(ROOT / "docs" / f"{name}.md" for name in OPENED)], ids=lambda page: page.stem
)
def test_page_opens_with_a_figure_that_is_small(page):
    text = page.read_text(encoding="utf-8")
    before, image = re.search(r"(.*?)^!\[.+\]\((.+\.png)\)$", text, re.MULTILINE | re.DOTALL).groups()
    assert len(before.split()) < 60
    assert (page.parent / image).stat().st_size < 60_000


@every_page
def test_lines_are_short_enough_to_be_reviewed(page):
    lines = prose(page.read_text(encoding="utf-8")).splitlines()
    assert not [line for line in lines if len(line) > 100 and not line.startswith(("|", "!["))]


@every_method
def test_docstring_has_every_section(name):
    found = sections(name)
    order = [title for title in found if title]
    assert order == [t for t in ("Parameters", "Raises", "Notes", "References", "Examples") if t in order]
    assert {"Parameters", "Raises", "References", "Examples"} <= set(order)
    for part in ("*Dynamics*", "*Cost*", "*Bias*", ".. math::", "[1]_"):
        assert part in found[""], part
    assert ".. [1] " in found["References"]


@every_method
def test_docstring_says_first_whether_it_is_adjusted(name):
    first = " ".join(sections(name)[""].split("\n\n")[:2])
    assert ("unadjusted" in first) == (name not in ("GHMC", "MALA"))
    assert "adjusted" in first


@every_method
def test_docstring_names_every_parameter(name):
    documented = [
        parameter.strip()
        for line in re.findall(r"^(\w.*)$", sections(name)["Parameters"], re.MULTILINE)
        for parameter in line.split(",")
    ]
    assert sorted(documented) == sorted(inspect.signature(getattr(pmm_mcmc, name)).parameters)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_of_a_function_has_every_section(name):
    found = sections(name)
    assert {"Parameters", "Returns"} <= set(found)
    lines = re.findall(r"^\**(\w[\w, ]*)$", found["Parameters"], re.MULTILINE)
    documented = [parameter.strip() for line in lines for parameter in line.split(",")]
    assert sorted(documented) == sorted(inspect.signature(getattr(pmm_mcmc, name)).parameters)


def test_every_public_name_is_a_class_or_a_function():
    assert sorted(CLASSES + FUNCTIONS) == sorted(PUBLIC)
    assert set(METHODS) <= set(CLASSES)
    for name in CLASSES:
        assert len((getattr(pmm_mcmc, name).__doc__ or "").split()) > 5, name


def methods_page():
    """The page of the methods: rows of its table of arguments, and the text of each section by its heading."""
    text = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    _, *rest = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    found = dict(zip(rest[::2], rest[1::2], strict=True))
    rows = re.findall(r"^\| (`.*?) \| (.*?) \| (.*?) \| (.*?) \|$", found["Arguments"], re.MULTILINE)
    return {argument: row for row in rows for argument in re.findall(r"`(\w+)`", row[0])}, found


@every_method
def test_page_of_the_methods_has_each_of_them_with_its_parameters(name):
    arguments, found = methods_page()
    assert ("*Adjusted*" if name in ("GHMC", "MALA") else "*Unadjusted*") in found[name]
    taken = set(inspect.signature(getattr(pmm_mcmc, name)).parameters) - {"blocked", "rng"}
    assert taken <= set(arguments)
    for argument, (_, default, methods, meaning) in arguments.items():
        assert default and len(meaning.split()) > 2, argument
        named = set(re.findall(r"`(\w+)`", methods))
        assert named <= set(METHODS) and (named or methods == "all"), argument
        takes = name not in named if methods.startswith("all") else name in named
        assert takes == (argument in taken), (argument, methods)


def test_trust_has_every_reason_that_a_verdict_can_have():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "pmm_mcmc").rglob("*.py")]
    codes = {code for source in sources for code in re.findall(r'\b(?:Reason|reason_of_largest)\(\s*"(\w+)"', source)}
    page = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
    rows = {code for cell in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for code in re.findall(r"`(\w+)`", cell)}
    assert codes == rows | {"ladder"} and "`ladder`" in page


def test_one_version_everywhere():
    version = pmm_mcmc.__version__
    assert f'version: "{version}"' in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

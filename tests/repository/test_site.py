"""The site without Sphinx: every public name is in the API reference and documented, every page and notebook in a list.

``make docs`` builds the site itself, with warnings as errors.  Nothing here is random.
"""

import ast
import functools
import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Modules that users import from.
PUBLIC = (
    "pmm_mcmc",
    "pmm_mcmc.workbench.targets",
    "pmm_mcmc.workbench",
    "pmm_mcmc.diffusion",
    "pmm_mcmc.langevin.gaussian_law",
)
# What needs packages that the tests do without, and where it is defined.
ELSEWHERE = {
    "PoissonMidpointScheduler": ROOT / "pmm_mcmc" / "diffusion" / "diffusers.py",
    "PoissonMidpointFlowScheduler": ROOT / "pmm_mcmc" / "diffusion" / "diffusers_flow.py",
}


def reference():
    """Names in the API reference, by module."""
    module, named = None, {}
    for line in (DOCS / "api.rst").read_text(encoding="utf-8").splitlines():
        if line.startswith(".. currentmodule:: "):
            module = line.split()[-1]
        elif match := re.fullmatch(r"   (\w+)", line):
            named.setdefault(module, []).append(match[1])
    return named


def toctrees(page):
    """Pages that a page lists, without their suffix; one line each, ``page`` or ``Title <page>``."""
    found = re.findall(r"^:::\{toctree\}\n(.*?)^:::$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for block in found for line in block.splitlines() if line and line[0] != ":"]
    return [(page.parent / re.sub(r"^.* <(.*)>$", r"\1", line)).resolve() for line in lines]


def documented(thing):
    return len((inspect.getdoc(thing) or "").split()) >= 3


@functools.cache
def parsed(path):
    return {node.name: node for node in ast.parse(path.read_text(encoding="utf-8")).body if hasattr(node, "name")}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference_once(module):
    public = [name for name in importlib.import_module(module).__all__ if not name.startswith("_")]
    assert sorted(reference()[module]) == sorted(public)


def test_the_reference_names_no_other_module():
    assert sorted(reference()) == sorted(PUBLIC)


@pytest.mark.parametrize(("module", "name"), [(m, name) for m, names in reference().items() for name in names])
def test_every_name_in_the_reference_is_documented(module, name):
    if name in ELSEWHERE:
        node = parsed(ELSEWHERE[name])[name]
        assert ast.get_docstring(node)
        methods = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name[0] != "_"]
        assert methods and all(ast.get_docstring(method) for method in methods)
        return
    thing = getattr(importlib.import_module(module), name)
    assert documented(thing)
    if inspect.isclass(thing) and thing.__module__.startswith("pmm_mcmc"):
        for key, member in vars(thing).items():
            if key[0] != "_" and (callable(member) or isinstance(member, property | classmethod | staticmethod)):
                assert documented(getattr(member, "__func__", member)), key


def test_every_page_is_in_a_list():
    listed, todo = {DOCS / "index"}, [DOCS / "index.md"]
    while todo:
        for page in toctrees(todo.pop()):
            assert page not in listed, f"{page.name} is listed twice"
            listed.add(page)
            todo += [page.with_suffix(".md")] if page.with_suffix(".md").exists() else []
    # Sphinx finds copies of the notebooks beside the pages.
    notebooks = {DOCS / "notebooks" / path.stem for path in (ROOT / "examples").glob("*.ipynb")}
    pages = {path.with_suffix("") for path in DOCS.rglob("*.md")} | {DOCS / "api"} | notebooks
    assert listed == pages


def test_nothing_of_the_site_is_loaded_from_elsewhere():
    """Sphinx takes MathJax from the network unless it is told otherwise."""
    conf = (DOCS / "conf.py").read_text(encoding="utf-8")
    assert re.search(r'^mathjax_path = "[\w.-]+\.js"$', conf, re.MULTILINE)
    sources = [conf, *(path.read_text(encoding="utf-8") for path in (DOCS / "_static").glob("*.*"))]
    sources += [path.read_text(encoding="utf-8") for path in (DOCS / "_templates").rglob("*.*")]
    assert not any(re.search(r"https?://|@import|src=[\"']?//", source) for source in sources)


def test_figures_of_the_choice_are_those_of_the_evidence():
    evidence = (DOCS / "evidence.md").read_text(encoding="utf-8")
    _, _, table = (DOCS / "nuts.md").read_text(encoding="utf-8").partition("## Which sampler for which posterior")
    table = table.partition("The figures are those of")[0]
    figures = re.findall(r"(?<![\w.])\d{1,3}(?:,\d{3})+(?![\w,])|(?<![\w.,])\d{3}(?![\w,.]\d)", table)
    assert len(figures) > 10
    for figure in figures:
        assert re.search(rf"(?<![\d,]){figure}(?![\d,])", evidence), figure

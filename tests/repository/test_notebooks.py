"""Notebooks: they run in the quick setting, and say what their full run printed.

What a conclusion quotes, in lines that begin with ``>``, stands in the kept outputs.  Cells with the tag ``claim``
print the same in the quick setting as in full.

Cells are run as plain Python in one namespace, with warnings as errors; no kernel is needed for it.  ``make notebooks``
runs them in full and keeps their outputs.  Nothing here is statistical.
"""

import ast
import base64
import json
import logging
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

pytestmark = pytest.mark.longest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path, kind):
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def source(cell):
    return "".join(cell["source"])


def outputs(path):
    return [output for cell in cells(path, "code") for output in cell["outputs"]]


def images(path):
    return [
        base64.b64decode(output["data"]["image/png"])
        for output in outputs(path)
        if "image/png" in output.get("data", {})
    ]


def words(path):
    """All text that outputs show."""
    shown = [output.get("text", "") for output in outputs(path)]
    shown += [text for output in outputs(path) for kind, text in output.get("data", {}).items() if kind[:4] == "text"]
    return "\n".join("".join(text) for text in shown)


def displayed(code, name, namespace):
    """Run a cell; return what a notebook would show of its last line, if that is a figure."""
    tree = ast.parse(code, name)
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    value = None if last is None else eval(compile(last, name, "eval"), namespace)
    return [value] if isinstance(value, Figure) else []


@pytest.fixture
def levels_of_loggers():
    """Restore what notebooks set: the levels of loggers."""
    levels = {name: logging.getLogger(name).level for name in ("pymc", "pmm_mcmc")}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.mark.pymc
@pytest.mark.usefixtures("levels_of_loggers")
@every_notebook
def test_it_runs_in_the_quick_setting(path, monkeypatch, capsys, caplog):
    matplotlib.use("Agg")
    monkeypatch.setenv("PMM_QUICK", "1")
    monkeypatch.chdir(EXAMPLES)
    before = set(EXAMPLES.iterdir())
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.gcf()))
    namespace = {"__name__": "notebook"}
    capsys.readouterr()
    with caplog.at_level(logging.WARNING), matplotlib.rc_context():
        for number, cell in enumerate(cells(path, "code")):
            shown += displayed(source(cell), f"{path.name}, code cell {number}", namespace)
            printed = capsys.readouterr().out
            if "claim" in cell["metadata"].get("tags", []):
                assert printed and printed == "".join("".join(o.get("text", "")) for o in cell["outputs"]), number
    plt.close("all")
    assert len(shown) == len(images(path)), "figures shown now, and kept with the notebook"
    assert set(EXAMPLES.iterdir()) == before, "files left behind"


@every_notebook
def test_what_it_quotes_is_printed(path):
    printed = " ".join(words(path).split())
    texts = [line for cell in cells(path, "markdown") for line in source(cell).split("\n\n") if line.startswith("> ")]
    quotes = [" ".join(text.replace("\n> ", "\n").removeprefix("> ").split()) for text in texts]
    assert [quote for quote in quotes if quote not in printed] == []
    claims = [cell for cell in cells(path, "code") if "claim" in cell["metadata"].get("tags", [])]
    assert claims and (quotes or path.stem not in {"comparing", "not_log_concave"})

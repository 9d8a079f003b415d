"""Values have nouns for names, and an assignment sets one of them."""

import ast
from pathlib import Path

import pytest

import pmm_mcmc

pytestmark = pytest.mark.quick

PACKAGE = Path(pmm_mcmc.__file__).parent
# Words that say how a value came about, or where it stands, and not what it is.
NO_NOUNS = set(
    "found part at known first kept which given own whole spent before most there told said says words together alone "
    "beside seen judged asked much few many mine ours theirs rest ahead after along away".split()
)


def faults(text):
    """Return the lines of parameters and locals without a noun, and of parallel assignments that are not swaps."""
    lines = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for inner in ast.walk(node):
                stored = isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store) and inner.id
                name = inner.arg if isinstance(inner, ast.arg) else stored
                if name in NO_NOUNS:
                    lines.add((inner.lineno, name))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            values = {ast.unparse(value) for value in node.value.elts}
            for target in node.targets:
                if isinstance(target, ast.Tuple) and {ast.unparse(place) for place in target.elts} != values:
                    lines.add((node.lineno, "parallel assignment"))
    return sorted(lines)


def test_a_value_has_a_noun_for_its_name():
    found = {file: faults(file.read_text(encoding="utf-8")) for file in sorted(PACKAGE.rglob("*.py"))}
    assert not {file.relative_to(PACKAGE).as_posix(): lines for file, lines in found.items() if lines}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(found): pass", [(1, "found")]),
        ("def f(*, most=1): pass", [(1, "most")]),
        ("def f(x):\n    for at, y in x: pass", [(2, "at")]),
        ("f = lambda rest: 1", [(1, "rest")]),
        ("x, y = 1, 2", [(1, "parallel assignment")]),
        ("x, y = y, x\na[0], a[1] = a[1], a[0]\nx, y = f()\nwords = 1", []),
    ],
)
def test_what_is_a_fault(text, expected):
    assert faults(text) == expected

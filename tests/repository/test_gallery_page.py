"""The page on PyMC's example gallery: its tables are those of the kept results, its models are short. No chance."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
MODELS = (ROOT / "benchmarks" / "gallery_models.py").read_text(encoding="utf-8")


def test_the_page_has_the_tables_of_the_kept_results():
    assert len(list((ROOT / "benchmarks" / "results" / "gallery").glob("*.json"))) >= 12
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "gallery", "--tables"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    begin, end = "<!-- printed by python -m benchmarks gallery -->\n\n", "\n\n<!-- end -->"
    assert PAGE.partition(begin)[2].partition(end)[0] == done.stdout.strip()


def test_every_model_is_on_the_page_and_short():
    assert ":::{literalinclude} ../benchmarks/gallery_models.py\n:start-at: def _effects\n:::\n" in PAGE
    tree = ast.parse(MODELS).body
    named = {ast.unparse(node.targets[0]): node.value for node in tree if isinstance(node, ast.Assign)}
    models = {node.name: node for node in tree if isinstance(node, ast.FunctionDef)}
    start = models["_effects"].lineno
    for key in named["CHAPTERS"].keys:
        model = models[key.value]
        assert model.lineno > start and model.end_lineno - model.lineno < 15

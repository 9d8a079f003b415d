"""The page on PyMC's example gallery: its tables are those of the kept results, its models are short. No chance."""

import inspect
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def gallery():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
        import gallery

        yield gallery


def test_the_page_has_the_tables_of_the_kept_results(gallery):
    kept = {name: path for name in gallery.CHAPTERS if (path := gallery.KEPT / f"{name}.json").exists()}
    assert len(kept) >= 12
    assert (
        gallery.written(gallery.tables({name: json.loads(path.read_text()) for name, path in kept.items()}), PAGE)
        == PAGE
    )


def test_every_model_is_on_the_page_and_short(gallery):
    assert ":::{literalinclude} ../benchmarks/gallery_models.py\n:start-at: def _effects\n:::\n" in PAGE
    shown = "def _effects" + inspect.getsource(sys.modules["gallery_models"]).partition("def _effects")[2]
    for name, chapter in gallery.CHAPTERS.items():
        model = inspect.getsource(getattr(sys.modules["gallery_models"], name))
        assert model in shown and f'"{chapter.title}"' in shown
        assert len(model.splitlines()) <= 15


def test_a_wrong_error_is_starred_and_a_refusal_is_told(gallery):
    error = {"off": 0.3, "z": 5.0, "of": "x", "wrong": True}
    row = {"state": "trusted", "gradients": 12_000, "cpu_seconds": 1.25, "mean": error, "sd": error | {"wrong": False}}
    kept = {"reference": {"d": 3}, "rows": {"pm.sample": row, "pmm.sample": {"refused": "ValueError: n is discrete"}}}
    text = gallery.tables({"model": kept})
    assert "| model | 3 | +0.30 (+5.0)*, +0.30 (+5.0) | trusted | \N{EM DASH} | \N{EM DASH} |" in text
    assert "| model | 12,000 | \N{EM DASH} |" in text and "- `model` by `pmm.sample`: ValueError: n is discrete" in text


def test_errors_are_in_posterior_sds_with_their_z(gallery):
    known = {"mean": [1.0, 0.0], "sd": [2.0, 1.0], "mcse_mean": [0.06, 0.01], "mcse_sd": [0.1, 0.01]}
    moved = {"mean": [1.5, 0.02], "sd": [2.0, 1.1], "mcse_mean": [0.08, 0.01], "mcse_sd": [0.1, 0.01]}
    found = gallery.errors({key: gallery.np.array(value) for key, value in moved.items()}, known, ["a", "b"])
    assert found["mean"] == {"off": 0.25, "z": 5.0, "of": "a", "wrong": True}
    assert found["sd"]["of"] == "b" and found["sd"]["off"] == 0.1

"""Every mutant still has a text to replace and tests to notice it (``make mutants`` runs them)."""

from pathlib import Path

import pytest
from mutants import MUTANTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_mutant_applies(mutant):
    assert mutant.old in (ROOT / "pmm_mcmc" / mutant.file).read_text(encoding="utf-8")
    assert mutant.tests and all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests)

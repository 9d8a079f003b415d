"""The texts that ``tests/mutants.py`` replaces are in the package; ``make mutants`` says whether tests notice them."""

import ast

import pytest
from mutants import MUTANTS, ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_mutant_is_code_that_differs(mutant):
    source = (ROOT / "pmm_mcmc" / mutant.file).read_text(encoding="utf-8")
    assert mutant.old in source and mutant.new != mutant.old
    ast.parse(source.replace(mutant.old, mutant.new))
    assert mutant.tests and all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests)

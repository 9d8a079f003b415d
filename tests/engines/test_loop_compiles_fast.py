"""What makes numba take seconds longer for the package's own loop is not in it."""

import ast
import inspect

import pytest

from pmm_mcmc.engines import numba_engine, numba_ghmc, numba_poisson, numba_shared


def slices_assigned(source):
    """Return the lines where arrays are assigned to slices."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = (
                zip(target.elts, node.value.elts, strict=True)
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                else [(target, node.value)]
            )
            for part, value in pairs:
                sliced = isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Slice)
                if sliced and not isinstance(value, ast.Constant):
                    found.append(node.lineno)
    return found


@pytest.mark.parametrize("module", [numba_engine, numba_ghmc, numba_poisson, numba_shared])
def test_no_array_is_assigned_to_a_slice(module):
    # numba compiles the message that lengths differ, with the printing of tuples and numbers, in two seconds, and each
    # of twenty places in a tenth of one: `copy` has none.
    assert slices_assigned(inspect.getsource(module)) == []


def test_slices_are_found():
    assert slices_assigned("a[:] = b\nc[:], d[1:2] = 0.0, e\nf[:] = 1.0\ng[0] = h") == [1, 2]

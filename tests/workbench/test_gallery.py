"""The gallery: models, densities, labels and modes belong together, and what is asked wrongly is answered clearly.

Tolerances are for rounding; nothing here is left to chance.
"""

import contextlib
import doctest
import importlib
import io
import re
from functools import cache
from itertools import permutations
from pathlib import Path

import jax
import numpy as np
import pytensor
import pytest
from pymc.pytensorf import join_nonshared_inputs
from pytensor.compile.mode import Mode

from pmm_mcmc.model.log_density import flat_layout
from pmm_mcmc.workbench import targets
from pmm_mcmc.workbench.targets import Modes, Reference, Target

PAGE = Path(__file__).parents[2] / "docs" / "workbench.md"
# Interpreted: fifteen models are evaluated at a handful of points, and compiling would take minutes.
PYTHON = Mode(linker="py", optimizer="fast_compile")
NAMES = targets.list()
WITH_MODES = [name for name in NAMES if targets.get(name).find_modes is not None]

every_target = pytest.mark.parametrize("name", NAMES)


@cache
def in_pymc(name):
    """Log density with gradient on the flat vector, and the layout of the vector."""
    model = targets.get(name).model()
    start = model.initial_point()
    values = model.continuous_value_vars
    assert values == model.value_vars
    (logp,), flat = join_nonshared_inputs(point=start, outputs=[model.logp()], inputs=values)
    both = pytensor.function([flat], [logp, pytensor.grad(logp, flat)], mode=PYTHON)
    return both, flat_layout(values, start)


def points(target, n=6):
    """Points where the density is neither negligible nor flat."""
    rng = np.random.default_rng(1)
    around = target.reference.mean + 0.7 * target.reference.sd * rng.normal(size=(n, target.ndim))
    return around if target.name != "funnel" else rng.normal(size=(n, target.ndim))


@pytest.mark.pymc
@every_target
def test_density_in_jax_is_that_of_the_model(name):
    target = targets.get(name)
    x = points(target)
    both, _ = in_pymc(name)
    expected = [both(row) for row in x]
    density = target.log_density()
    assert density.d == target.ndim
    with jax.enable_x64(True):
        lp, gradient = (np.asarray(a) for a in density.batch(x, [], "float64"))
    assert np.ptp(lp) > 0.5
    values = np.array([float(value) for value, _ in expected])
    np.testing.assert_allclose(lp - lp[0], values - values[0], rtol=1e-10, atol=1e-10 * np.abs(values).max())
    for row, (_, known) in zip(gradient, expected, strict=True):
        np.testing.assert_allclose(row, known, rtol=1e-10, atol=1e-10 * np.abs(known).max())


@pytest.mark.pymc
@every_target
def test_labels_are_in_the_order_of_the_flat_vector(name):
    words = {"": "", "log": "log ", "simplex": "log ratio of "}
    expected = []
    for variable, shape, _, _ in in_pymc(name)[1]:
        parameter, transform = re.fullmatch(r"(\w+?)(?:_(log|simplex)__)?", variable).groups(default="")
        for index in np.ndindex(*shape):
            place = f"[{', '.join(map(str, index))}]" if index else ""
            expected.append(f"{words[transform]}{parameter}{place}")
    assert targets.get(name).labels == tuple(expected)


@every_target
def test_every_part_is_there(name):
    target = targets.get(name)
    assert target.name == name and target.ndim == len(target.labels) == target.reference.mean.size
    assert target.reference is target.reference and np.all(target.reference.sd > 0)
    assert 2 <= len(re.findall(r"[.:](?:\s|$)", target.note)) and target.note.endswith(".")
    assert target.reference.exact == (target.reference.error is None)
    draws = target.sample(3, np.random.default_rng(2))
    if draws is not None:
        assert draws.shape == (3, target.ndim) and len(np.unique(draws[:, 0])) == 3
        np.testing.assert_array_equal(draws, target.sample(3, np.random.default_rng(2)))


def test_the_funnels_are_the_ones_not_to_be_trusted():
    assert {name for name in NAMES if not targets.get(name).trustworthy} == {"funnel", "eight_schools_centred"}


# -- modes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_MODES)
def test_labels_of_modes_are_indices_for_any_shape(name):
    target, rng = targets.get(name), np.random.default_rng(3)
    modes = target.modes
    x = target.reference.mean + 3 * target.reference.sd * rng.normal(size=(50, 20, target.ndim))
    found = modes.label(x)
    assert found.shape == (50, 20) and np.issubdtype(found.dtype, np.integer)
    assert set(np.unique(found)) == set(range(len(modes.names)))
    assert modes.label(x[4, 5]) == found[4, 5]


def test_modes_of_two_are_told_apart_by_their_names():
    def of(name, *position):
        modes = targets.get(name).modes
        return modes.names[int(modes.label(np.array(position, dtype=float)))]

    assert of("double_well", -0.1, 1, 1, 1, 1) == "left" and of("double_well", 0.1, -1, -1, -1, -1) == "right"
    assert of("mixture_unequal", 0.7, *[9] * 19) == "left" and of("mixture_unequal", 0.9, *[-9] * 19) == "right"
    assert of("student_t_regression", 1, -0.2, 1) == "falling line"
    assert of("student_t_regression", -1, 0.2, -1) == "rising line"
    assert of("phi4", *[1.0] * 32, *[-1.1] * 32) == "negative" and of("phi4_ring", *[0.1] * 24) == "positive"


def test_modes_of_galaxies_are_the_orders_of_the_means():
    modes = targets.get("galaxies").modes
    for k, order in enumerate(permutations(range(3))):
        x = np.zeros(8)
        x[2:5][list(order)] = [10.0, 20.0, 30.0]
        assert modes.label(x) == k
        assert modes.names[k] == " < ".join(f"mean[{j}]" for j in order)


def test_modes_of_the_network_are_images_of_each_other_under_its_symmetries():
    target = targets.get("neural_network")
    modes, density = target.modes, target.log_density()
    x = np.random.default_rng(4).normal(size=9)
    inward, threshold, outward, offset = x[:4].reshape(2, 2), x[4:6], x[6:8], x[8:]
    images = []
    for order in permutations(range(2)):
        for sign in ([1, 1], [1, -1], [-1, 1], [-1, -1]):
            parts = [(part * sign)[..., list(order)].ravel() for part in (inward, threshold, outward)]
            images.append(np.concatenate([*parts, offset]))
    assert sorted(modes.label(np.array(images))) == [*range(8)]
    with jax.enable_x64(True):
        lp, _ = density.batch(np.array(images), [], "float64")
    np.testing.assert_allclose(lp, lp[0], rtol=1e-12)
    name = modes.names[int(modes.label(np.array([0, 0, 0, 0, 0, 0, -2.0, 1.0, 0])))]
    assert name == "-+, first unit larger"


# -- what is asked for -------------------------------------------------------------------------------------------------


def test_get_names_the_nearest_match_and_all_there_are():
    with pytest.raises(ValueError, match=r"name='bananna': there is no such target; did you mean 'banana'\? There are"):
        targets.get("bananna")
    with pytest.raises(ValueError, match=r"no such target; There are: .*neural_network"):
        targets.get("qqqq")
    with pytest.raises(ValueError, match="name=3: there is no such target"):
        targets.get(3)


@pytest.mark.process
def test_nothing_is_imported_or_built_before_it_is_needed(run_script):
    found, errors = run_script(
        "import json, sys\n"
        "from pmm_mcmc.workbench import targets\n"
        "names = [targets.get(name).title for name in targets.list()]\n"
        "moments = targets.get('eight_schools').reference.mean.tolist()\n"
        "print(json.dumps([name for name in ('jax', 'pymc', 'pytensor') if name in sys.modules]))\n"
    )
    assert found == [], errors


def good(**changes):
    fields = {
        "name": "mine", "title": "a title", "note": "A note.", "labels": ("x[0]", "x[1]"), "build": lambda: None,
        "find_reference": lambda: Reference([0, 0], [1, 1], [2, 2], exact=True, source="By hand."),
    }  # fmt: skip
    return Target(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "name='': must be a text"),
        ({"note": None}, "note=None: must be a text"),
        ({"labels": ("a", "a")}, "must be distinct"),
        ({"labels": ()}, "must be distinct, one for each"),
    ],
)
def test_a_target_that_cannot_be_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        good(**changes)


def test_a_target_of_ones_own_needs_no_more_than_a_model_and_a_reference():
    target = good()
    assert target.modes is None and target.sample(5, np.random.default_rng(1)) is None and target.trustworthy
    with pytest.raises(ValueError, match="'mine' has no log density in JAX: pass log_density_of="):
        target.log_density()
    with pytest.raises(ValueError, match="reference of 'mine' has 2 coordinates, its labels 3"):
        _ = good(labels=("a", "b", "c")).reference
    for n in (0, 2.5, True):
        with pytest.raises(ValueError, match=f"n={n}: must be an integer"):
            target.sample(n, np.random.default_rng(1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"second_moment": [1.0]}, r"second_moment has shape \(1,\)"),
        ({"mean": [[0.0, 0.0]]}, r"mean has shape \(1, 2\)"),
        ({"mean": [0.0, np.nan]}, "mean is not finite at coordinate 1"),
        ({"mean": [0.0, 1.0]}, "second_moment must exceed"),
        ({"square_variance": [-1.0, 1.0]}, "square_variance must not be negative"),
        ({"exact": False}, "error is missing"),
        ({"exact": False, "error": [0.1]}, r"error has shape \(1,\)"),
    ],
)
def test_a_reference_that_cannot_be_is_refused(changes, message):
    fields = {"mean": [0, 0], "second_moment": [1, 1], "square_variance": [2, 2], "exact": True, "source": "By hand."}
    with pytest.raises(ValueError, match=message):
        Reference(**{**fields, **changes})


@pytest.mark.parametrize(
    ("names", "weights", "message"),
    [(("a", "b"), [1.0], "as many as names"), (("a", "b"), [0.5, 0.6], "sum to 1"), (("a", "b"), [0, 1], "positive")],
)
def test_modes_that_cannot_be_are_refused(names, weights, message):
    with pytest.raises(ValueError, match=message):
        Modes(names, weights, lambda x: x)


# -- documentation -----------------------------------------------------------------------------------------------------


def table():
    """Return the table of the page, from the registry."""
    rows = ["| name | what it is | d | modes | reference | exact draws |", "|---|---|---|---|---|---|"]
    for name in NAMES:
        target = targets.get(name)
        modes = "" if target.modes is None else str(len(target.modes.names))
        kind = "exact" if target.reference.exact else "long run"
        draws = "yes" if target.draw is not None else ""
        title = target.title if target.trustworthy else f"{target.title} (not for Langevin)"
        rows.append(f"| `{name}` | {title} | {target.ndim} | {modes} | {kind} | {draws} |")
    return "\n".join(rows)


def test_the_table_of_the_page_is_that_of_the_registry():
    assert table() in PAGE.read_text(encoding="utf-8"), f"docs/workbench.md should have:\n{table()}"


def test_each_target_says_what_is_hard_about_it():
    notes = [targets.get(name).note for name in NAMES]
    assert all(note.endswith(".") and len(note.split()) >= 20 for note in notes) and len(set(notes)) == len(notes)


@pytest.mark.parametrize("module", ["pmm_mcmc.workbench.targets", "pmm_mcmc.workbench.targets.target"])
def test_doctests(module):
    with contextlib.redirect_stdout(io.StringIO()) as report:
        result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0, report.getvalue()

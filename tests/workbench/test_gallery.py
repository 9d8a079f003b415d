"""The gallery: models and references belong together, and what is asked wrongly is answered clearly.

Moments of targets that ``test_targets.py`` has no second method for are compared here with importance sampling from
the log density alone, and with Gibbs sampling: z-scores at fixed seeds with |z| < 5.5, 25 of them: a false-alarm rate
of 25 * 6e-6 = 2e-4 for all.
"""

import contextlib
import doctest
import importlib
import io
from pathlib import Path

import exact_moments
import numpy as np
import pytensor
import pytest
from pymc.pytensorf import join_nonshared_inputs
from pytensor.compile.mode import Mode
from pytensor.graph.replace import vectorize_graph
from scipy.special import logsumexp

from pmm_mcmc.workbench import targets
from pmm_mcmc.workbench.reference import model_labels
from pmm_mcmc.workbench.targets import Reference, gallery

PAGE = Path(__file__).parents[2] / "docs" / "workbench.md"
PYTHON = Mode(linker="py", optimizer="fast_compile")
NAMES = targets.list()
LIMIT = 5.5
LONG_RUNS = {"galaxies", "lattice", "student_regression"}


def log_density(name, x):
    """Log density of the model at points ``(n, d)``."""
    model = targets.get(name).build()
    values = model.continuous_value_vars
    (logp,), flat = join_nonshared_inputs(point=model.initial_point(), outputs=[model.logp()], inputs=values)
    many = pytensor.tensor.matrix("many")
    return pytensor.function([many], vectorize_graph(logp, {flat: many}), mode=PYTHON)(x)


@pytest.mark.pymc
@pytest.mark.parametrize("name", NAMES)
def test_model_and_reference_belong_together(name):
    target = targets.get(name)
    model = target.build()
    assert target.name == name and target.ndim == len(model_labels(model)) == target.reference.mean.size
    assert model.continuous_value_vars == model.value_vars
    assert target.reference is target.reference and np.all(target.reference.sd > 0)
    assert target.reference.exact == (target.reference.error is None) == (name not in LONG_RUNS)
    assert target.note.endswith(".") and len(target.note.split()) >= 20


@pytest.mark.parametrize("name", exact_moments.TARGETS)
def test_stored_moments_are_those_of_the_formulas(name):
    expected, stored = exact_moments.TARGETS[name](), targets.get(name).reference
    np.testing.assert_allclose(stored.mean, expected.mean, rtol=1e-10)
    np.testing.assert_allclose(stored.second_moment, expected.second, rtol=1e-10)
    np.testing.assert_allclose(stored.square_variance, expected.variance_of_square, rtol=1e-10)


def from_wells(rng, n):
    a = 1.3 * rng.normal(size=(n, 1))
    x = np.concatenate([a, a + 0.6 * rng.normal(size=(n, 4))], axis=1)
    return x, -0.5 * (a[:, 0] / 1.3) ** 2 - 0.5 * (((x[:, 1:] - a) / 0.6) ** 2).sum(axis=1)


def from_a_wide_gaussian(rng, n, width):
    x = rng.normal(size=(n, 10))
    x[:, 0] *= width
    return x, -0.5 * (x[:, 0] / width) ** 2 - 0.5 * (x[:, 1:] ** 2).sum(axis=1)


def from_a_ring(rng, n):
    q = rng.normal(1, 0.15, n)
    angle = rng.uniform(0, 2 * np.pi, n)
    return np.sqrt(q)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1), -0.5 * ((q - 1) / 0.15) ** 2


PROPOSALS = {
    "ring": from_a_ring,
    "double_well": from_wells,
    "mixture_4sd": lambda rng, n: from_a_wide_gaussian(rng, n, 2.5),
    "mixture_7sd": lambda rng, n: from_a_wide_gaussian(rng, n, 4.0),
    "three_modes": lambda rng, n: from_a_wide_gaussian(rng, n, 3.0),
}


@pytest.mark.statistical
@pytest.mark.parametrize("name", PROPOSALS)
def test_exact_moments_against_importance_sampling(name):
    x, log_q = PROPOSALS[name](np.random.default_rng(13), 200_000)
    log_weight = log_density(name, x) - log_q
    weight = np.exp(log_weight - logsumexp(log_weight))
    assert 1 / (weight**2).sum() > 5_000
    known, few = targets.get(name).reference, slice(0, 3)
    x, second, variance = x[:, few], known.second_moment[few], known.square_variance[few]
    for values, truth in ((x, known.mean[few]), (x**2, second), ((x**2 - second) ** 2, variance)):
        error = np.sqrt(weight**2 @ (values - truth) ** 2)
        assert np.all(np.abs(weight @ values - truth) < LIMIT * error)


def gibbs(rng, chains, sweeps):
    """Draws of (log ratios of weights, means, log variances) of the galaxies, by the conjugate updates of the model.

    From the grouping that has nine tenths of the probability: from others it takes chains thousands of sweeps.
    """
    y, k = gallery.velocities(), gallery.CLUSTERS
    mean = np.tile([9.7, 21.0, 33.0], (chains, 1))
    variance = np.full((chains, k), 4.0)
    weight = np.full((chains, k), 1 / k)
    draws = np.empty((sweeps, chains, 3 * k))
    for sweep in range(sweeps):
        log_p = (
            np.log(weight / np.sqrt(variance))[:, None] - 0.5 * (y[:, None] - mean[:, None]) ** 2 / variance[:, None]
        )
        p = np.exp(log_p - log_p.max(axis=2, keepdims=True)).cumsum(axis=2)
        of = (rng.random(p.shape[:2])[..., None] * p[..., -1:] > p).sum(axis=2)
        member = of[..., None] == np.arange(k)
        count, total = member.sum(axis=1), (member * y[:, None]).sum(axis=1)
        gamma = rng.gamma(2.0 + count)
        weight = gamma / gamma.sum(axis=1, keepdims=True)
        precision = count / variance + 1 / 64
        centre = (total / variance + 21 / 64) / precision
        mean = centre + rng.normal(size=centre.shape) / np.sqrt(precision)
        squares = (member * (y[:, None] - mean[:, None]) ** 2).sum(axis=1)
        variance = (2.0 + squares / 2) / rng.gamma(2.0 + count / 2)
        log_weight = np.log(weight)
        draws[sweep] = np.concatenate(
            [log_weight - log_weight.mean(axis=1, keepdims=True), mean, np.log(variance)], axis=1
        )
    return draws


@pytest.mark.statistical
def test_galaxies_agree_with_gibbs_sampling():
    draws = gibbs(np.random.default_rng(15), 100, 2500)[500:]
    known = targets.get("galaxies").reference
    for k, coordinate in ((0, 0), (1, 2), (2, 5)):
        # Pooled over labels; chains are independent of each other.
        group = draws[..., 3 * k : 3 * k + 3]
        for power, truth, error in (
            (1, known.mean, known.error),
            (2, known.second_moment, known.second_moment_error),
        ):
            values = (group**power).mean(axis=(0, 2))
            spread = np.hypot(values.std(ddof=1) / np.sqrt(len(values)), error[coordinate]) + 1e-12
            assert abs(values.mean() - truth[coordinate]) < LIMIT * spread
    # The second grouping of the note.
    far = (draws[..., 3:6] > 28).any(axis=2)
    assert 0.05 < 1 - far.mean() < 0.11


def test_the_long_run_is_precise_and_has_the_symmetries():
    known = targets.get("galaxies").reference
    assert np.all(known.error <= 0.01 * known.sd)
    assert np.all(known.second_moment_error <= 0.01 * np.sqrt(known.square_variance))
    assert np.all(known.mean[:2] == 0) and np.ptp(known.mean[2:5]) == np.ptp(known.mean[5:]) == 0


# -- what is asked for -------------------------------------------------------------------------------------------------


def test_get_names_the_nearest_match_and_all_there_are():
    with pytest.raises(ValueError, match=r"name='bananna': there is no such target; did you mean 'banana'\? There are"):
        targets.get("bananna")
    with pytest.raises(ValueError, match=r"no such target; There are: .*galaxies"):
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


def test_errors_of_standard_deviations_follow_from_those_of_the_moments():
    known = targets.get("galaxies").reference
    # Of a coordinate of mean 0, where the error of the second moment is all there is.
    assert known.error_of_sd[0] == pytest.approx(known.second_moment_error[0] / (2 * known.sd[0]), rel=1e-9)
    assert np.all(known.error_of_sd > 0) and np.all(known.error_of_sd < 0.01 * known.sd)
    other = Reference([0, 1], [1, 2], [2, 2], exact=False, source="", error=[0.1, 0.1])
    assert np.all(np.isnan(other.error_of_sd)) and np.all(targets.get("banana").reference.error_of_sd == 0)


# -- documentation -----------------------------------------------------------------------------------------------------


def test_the_table_of_the_page_is_that_of_the_gallery():
    rows = ["| name | what it is |", "|---|---|"]
    rows += [f"| `{name}` | {targets.get(name).title} |" for name in NAMES]
    table = "\n".join(rows)
    assert table in PAGE.read_text(encoding="utf-8"), f"docs/workbench.md should have:\n{table}"


@pytest.mark.parametrize("module", ["pmm_mcmc.workbench.targets", "pmm_mcmc.workbench.targets.target"])
def test_doctests(module):
    with contextlib.redirect_stdout(io.StringIO()) as report:
        result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0, report.getvalue()

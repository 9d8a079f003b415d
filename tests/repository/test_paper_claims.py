"""``benchmarks/paper_claims.py``: its laws against closed forms, and the claims themselves at small sizes.

Two tests are statistical, at fixed seeds: nine z-scores of counts, |z| < 4.5, a false alarm in 1e5 for each; and the
inequalities around Theorem 1, which hold by more than seven standard errors.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2, norm

from pmm_mcmc.langevin.gaussian_law import stationary_covariance, step_maps
from pmm_mcmc.langevin.methods import OVERDAMPED, UNDERDAMPED, Kernel, Scheme

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import paper_claims
import paper_gaussians
import paper_theorem
from one_variable import START, TARGETS, Chain, Target
from paper_claims import METHODS, QUICK, best, claimed, diffusion_time, floor, slope
from transfer_operator import uniform_on_cells

UNIT = Target("N(0, 1)", lambda x: 0.5 * x**2, lambda x: -x)
EPS = (0.1, 0.03, 0.01, 0.003)


def cells(dynamics, option=2):
    return Kernel(Scheme.CELLS, dynamics, option, 0.0)


# -- laws against closed forms -----------------------------------------------------------------------------------------


def gaussian_distance(mean, variance):
    """Total variation distance of a Gaussian from the standard normal, by quadrature."""
    x = np.linspace(-12.0, 12.0, 24001)
    return 0.5 * np.abs(norm.pdf(x, mean, math.sqrt(variance)) - norm.pdf(x)).sum() * (x[1] - x[0])


@pytest.mark.parametrize(("dynamics", "alpha"), [(OVERDAMPED, 0.03), (OVERDAMPED, 0.001), (UNDERDAMPED, 0.01)])
def test_steps_of_lmc_on_a_gaussian_are_right(dynamics, alpha):
    """LMC keeps Gaussians Gaussian: mean and covariance follow a linear recursion. 0.001 takes powers of the matrix."""
    friction = 2.0
    (step,) = step_maps(cells(dynamics), alpha, friction, 1)
    M, N = step[:, :2], step[:, 2:]
    mean, S = np.array([START[0], 0.0]), np.diag([START[1] ** 2, float(dynamics == UNDERDAMPED)])
    limit = stationary_covariance(cells(dynamics), alpha, friction, 1)[0, 0]
    expected, n = [], 0
    for eps in EPS:
        if gaussian_distance(0.0, limit) > eps:
            expected.append(None)
            continue
        while gaussian_distance(mean[0], S[0, 0]) > eps:
            mean, S, n = M @ mean, M @ S @ M.T + N @ N.T, n + 1
        expected.append(n)
    found = Chain(UNIT, cells(dynamics), alpha, 1, friction).steps(EPS)
    for n, exact in zip(found, expected, strict=True):
        assert n == exact or abs(n - exact) <= max(1.0, 0.005 * exact)


def test_sums_over_cells_are_exact_for_polynomials():
    for K, n in ((7, 10), (10, 10), (11, 10), (200, 10), (10_000, 5)):
        index, weights = uniform_on_cells(K, n)
        for power in range(2 * min(n, K)):
            exact = np.mean((np.arange(K) / K) ** power)
            assert abs(weights @ (index / K) ** power - exact) < 1e-12, (K, power)


def test_an_unstable_step_never_arrives():
    assert Chain(UNIT, cells(OVERDAMPED), 2.5, 1, 2.0).steps((0.1, 0.01)) == [None, None]


# -- the claims --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamics", METHODS)
def test_quadratic_speed_up_where_K_grows_and_none_in_the_order_where_it_does_not(dynamics):
    eps, at = np.array(QUICK.eps), ("double well", dynamics)
    time = np.array(diffusion_time(*at, QUICK.eps))

    def order(name, find=best):
        return -slope(eps, np.array([n for n, _ in find(*at, name, QUICK)]) / time)

    lmc, poisson = paper_claims.MAIN
    assert abs(order(lmc) - 1.0) < 0.05
    assert abs(order(poisson) - 0.5) < 0.06
    assert abs(order("Option 2, K = 4") - 1.0) < 0.2
    # As the corollaries scale the step: eps^-2 and eps^-1, or eps^-1 and eps^-1/2.
    powers = paper_claims.POWERS[dynamics]
    for name in paper_claims.MAIN:
        assert abs(order(name, claimed) - powers[name]) < 0.06


@pytest.mark.parametrize("dynamics", METHODS)
def test_bias_falls_with_K_and_option_1_keeps_a_floor(dynamics):
    alpha = 0.1 if dynamics == "overdamped" else 0.4
    plain, four = (floor("double well", dynamics, name, alpha) for name in ("LMC", "Option 2, K = 4"))
    assert abs(4.0 * four / plain - 1.0) < 0.15
    if dynamics == "overdamped":
        first, second = (Chain(TARGETS["double well"], cells(OVERDAMPED, o), alpha, 64, 2.0).floor() for o in (1, 2))
        assert 2.0 < first / second < 4.0


def test_orders_of_the_variants():
    for dynamics, alphas, orders in (
        ("overdamped", (0.05, 0.025), {"LMC": 1, "Option 2, K = 1/alpha": 2, "randomised midpoint": 2}),
        ("underdamped", (0.1, 0.05), {"LMC": 1, "Option 2, K = 1/alpha": 2, "randomised midpoint": 3}),
    ):
        for name, order in orders.items():
            found = slope(alphas, [floor("double well", dynamics, name, a) for a in alphas])
            assert abs(found - order) < 0.25, (dynamics, name)


# -- Gaussians ---------------------------------------------------------------------------------------------------------


def test_distances_of_products_of_gaussians():
    for s in (0.9, 1.02, 1.3):
        for d in (8, 20, 200):
            # Densities of equal variances cross at one radius.
            edge = d * math.log(s) / (1.0 - 1.0 / s)
            exact = abs(chi2.cdf(edge, d) - chi2.cdf(edge / s, d))
            assert abs(paper_gaussians.total_variation([s, s], d) - exact) < 1e-5
            assert abs(paper_gaussians.kullback_leibler([s, s], d) - 0.5 * d * (s - 1.0 - math.log(s))) < 1e-12
    both, one = (paper_gaussians.total_variation(s, 6) for s in ([1.1, 0.95], [1.1, 1.0]))
    assert one < both < one + paper_gaussians.total_variation([1.0, 0.95], 6)


@pytest.mark.parametrize("dynamics", [OVERDAMPED, UNDERDAMPED])
def test_variances_follow_the_exact_recursion(dynamics):
    alpha, K, L = 0.1, 3, 4.0
    groups = paper_gaussians.variances(cells(dynamics), alpha, K, L)
    for group, precision in zip(groups, (1.0, L), strict=True):
        exact = stationary_covariance(cells(dynamics), alpha, 2.0 * math.sqrt(L), K, precision)[0, 0] * precision
        assert abs(group.after(4000) - exact) < 1e-10
        assert abs(group.after(0) - precision / L) < 1e-12


def test_exponents_on_gaussians():
    _, kept = paper_gaussians.report(quick=True)
    found = {
        name: [row[axis]["slope without log"] for axis in ("d", "L / lambda", "1 / eps")] for name, row in kept.items()
    }
    assert np.allclose(found["LMC"], (0.5, 1.0, 1.0), atol=0.06)
    assert np.allclose(found["underdamped LMC"], (0.5, 1.0, 1.0), atol=0.06)
    assert np.allclose(found["Poisson, the corollary's K"], (0.5, 1.0, 0.5), atol=0.08)
    assert np.allclose(found["underdamped Poisson, the corollary's K"], (5 / 12, 7 / 6, 0.5), atol=0.08)
    for row in kept.values():
        for axis in ("d", "L / lambda", "1 / eps"):
            assert row[axis]["slope without log"] < row[axis]["paper"] + 0.08, "an upper bound"
        assert all(s < 0.12 for s in row.get("spread", [])), "a product of Gaussians, near enough"


# -- gradients and Theorem 1 -------------------------------------------------------------------------------------------


@pytest.mark.statistical
def test_gradients_are_what_is_expected():
    _, kept = paper_theorem.report_gradients(quick=True)
    for words, row in kept.items():
        gap = abs(row["counted"] - row["expected"])
        assert gap <= 4.5 * row["standard error"] if row["standard error"] else gap == 0.0, words
    for dynamics in METHODS:
        assert METHODS[dynamics]["LMC"].gradients(0.1) == kept["OLMC, overdamped"]["counted"]
        assert METHODS[dynamics]["Option 2, K = 4"].gradients(0.1) == 1.75


def test_with_one_cell_the_two_paths_are_one():
    assert all(mean == 0.0 for mean, _ in paper_theorem.quantities(0.1, 1, 20, 10).values())
    found = paper_theorem.divergences(0.1, 1, 10)
    assert max(abs(found["path"]), abs(found["end"])) < 1e-8


def test_with_two_cells_only_beta_is_left():
    """What the first cell corrects is nil, so that the interpolation in the second is the refined point itself."""
    found = paper_theorem.quantities(0.1, 2, 20, 10)
    assert found["B2"][0] < 1e-25
    assert found["beta4"][0] > 1e-4
    assert paper_theorem.quantities(0.1, 3, 20, 10)["B2"][0] > 1e-6


@pytest.mark.statistical
def test_theorem_1_holds_and_is_loose():
    alpha, K, steps = 0.2, 5, 20
    found, true = paper_theorem.quantities(alpha, K, 400, steps), paper_theorem.divergences(alpha, K, steps)
    bound = 2.0 * found["B2"][0] + sum(found[n][0] for n in found if n != "B2")
    assert 0.0 < true["end"] < true["path"] < bound
    assert bound > 20.0 * true["path"]
    assert found["B2"][0] < true["path"] < 2.0 * found["B2"][0], "the corrected factor is needed, and does alone"


def test_arguments_that_make_no_sense_are_refused(capsys):
    for arguments, word in ((["stepz"], "'stepz'"), (["--quick", "--write"], "--write")):
        with pytest.raises(SystemExit):
            paper_claims.main(arguments)
        assert word in capsys.readouterr().err


def test_what_is_written_is_the_sections_that_were_run_and_those_that_were_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paper_claims, "RESULTS", tmp_path)
    for name in ("cells", "theorem"):
        monkeypatch.setitem(paper_claims.SECTIONS, name, lambda size, name=name: ([f"  of {name}"], {"x": math.nan}))
    paper_claims.main(["theorem", "--write"])
    paper_claims.main(["cells", "--write"])
    kept = json.loads((tmp_path / "paper_claims.json").read_text())
    assert list(kept) == ["cells", "theorem"], "in the order of the sections"
    assert kept["cells"]["found"] == {"x": None} and {"date", "machine", "versions"} <= set(kept["cells"])
    text = (tmp_path / "paper_claims.txt").read_text()
    assert "[cells]\n  of cells\n" in text and "[theorem]\n  of theorem\n" in text
    assert "[cells]\n  of cells\n" in capsys.readouterr().out

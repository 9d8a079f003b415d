"""The efficient form is the method as defined, step by step; the pseudocode as printed is not.

Nothing is random but the noise and the midpoints, at fixed seeds.  Equalities are to 1e-12; counts have z-scores with a
false-alarm rate of 1e-6.
"""

import itertools

import numpy as np
import pytest
from covering import pairs
from diffusion_reference import draws_of, estimates, run, say, sequential, short

from pmm_mcmc.diffusion import Blocks
from pmm_mcmc.diffusion.interpolation import constants, draw_levels, following, make_rows, make_table
from pmm_mcmc.diffusion.schedule import PREDICTIONS, VARIANTS

pytestmark = pytest.mark.quick

LAWS = ("uniform", "bernoulli", "importance")
FROZEN = (*PREDICTIONS, 0.3)
CUTS = {"equal": Blocks.equal(24, 4).edges, "shrinking": Blocks.shrinking(24, 5).edges, "ones": (24, 11, 10, 4, 1, 0)}


def network(x, timestep):
    """Return anything that is not linear in the state."""
    return np.sin(2.0 * x + 0.1 * timestep) + 0.3 * x


@pytest.mark.parametrize(("variant", "law", "cut", "frozen"), pairs(VARIANTS, LAWS, CUTS, FROZEN))
def test_update_is_the_sequential_definition(variant, law, cut, frozen):
    schedule, rng = short(variant), np.random.default_rng(3)
    blocks = Blocks(CUTS[cut], law, frozen)
    prediction = PREDICTIONS[len(frozen) % 5] if isinstance(frozen, str) else "v"
    table = make_table(schedule, blocks, prediction)
    x, Z = rng.standard_normal(5), rng.standard_normal((25, 5))

    def f(x, level):
        data, noise = estimates(schedule, prediction, x, network(x, level - 1), level)
        return say(schedule, frozen, data, noise, x, level)

    for _ in range(3):
        levels = draw_levels(table, blocks, rng)
        rows = make_rows(table, levels, following(levels))
        draws = draws_of(schedule, blocks, levels, rows, Z)
        result = run(schedule, blocks, network, x, levels, draws, prediction)
        wanted = sequential(schedule, blocks, f, x, Z, levels)
        assert np.abs(result - wanted).max() < 1e-12 * max(1.0, np.abs(wanted).max())


def literal(schedule, x, Z, marks, option, printed=""):
    """One block over a whole chain of 24 steps, after the pseudocode; the entries named are left as printed.

    ``Z`` counts from 1, as there, and ``marks`` holds the ``i`` with ``H_i = 1``.
    """
    a, b, sigma = schedule.coefficients("epsilon")
    t = K = schedule.N

    def B(k, i, of=b):
        return np.prod(a[t - k + 1 : t - i + 1]) * of[t - i + 1]

    def A(k):
        return a[t] * a[t - 1] * a[t - k + 1] if "c" in printed else np.prod(a[t - k + 1 : t + 1])

    def C(k, i):
        if i > k:
            raise IndexError(f"C_{{{k},{i}}} is not defined")
        return B(k, i, sigma)

    def midpoint(tau):
        path = sum(C(tau, K - j + 1 if "b" in printed else j) * Z[j] for j in range(1, tau + 1))
        return A(tau) * x + sum(B(tau, i) for i in range(1, tau + 1)) * network(x, t - 1) + path

    p = K if option == 1 else K - 1
    new = A(K) * x + sum(B(K, i) for i in range(1, K + 1)) * network(x, t - 1)
    new += sum(C(K, i) * Z[i] for i in range(1, K + 1))
    for i in marks:
        if i > 1:
            new += p * B(K, i) * (network(midpoint(i - 1), t - i) - network(x, t - 1))
    return new


@pytest.mark.parametrize("option", (1, 2))
def test_pseudocode_as_corrected_is_the_definition_and_as_printed_is_not(option):
    schedule, rng = short("2"), np.random.default_rng(4)
    blocks = Blocks((24, 0), "bernoulli" if option == 1 else "uniform", frozen="epsilon")
    x, Z = rng.standard_normal(5), rng.standard_normal((25, 5))
    marks = (3, 9) if option == 1 else (9,)
    wanted = sequential(
        schedule, blocks, lambda x, n: network(x, n - 1), x, {24 - i + 1: Z[i] for i in range(1, 25)},
        [24 - i + 1 for i in marks],
    )  # fmt: skip
    assert np.abs(literal(schedule, x, Z, marks, option) - wanted).max() < 1e-12 * np.abs(wanted).max()
    assert np.abs(literal(schedule, x, Z, marks, option, "c") - wanted).max() > 0.1
    with pytest.raises(IndexError, match="not defined"):
        literal(schedule, x, Z, marks, option, "b")


@pytest.mark.parametrize("option", (1, 2))
def test_midpoints_as_printed_miss_the_last_cell(option):
    """Erratum a: with the printed range of midpoints the mean of the update is not that of the corrected chain."""
    schedule, rng = short("2"), np.random.default_rng(5)
    x, Z = rng.standard_normal(5), rng.standard_normal((25, 5))
    base = literal(schedule, x, Z, (), option)
    corrections = {i: literal(schedule, x, Z, (i,), option) - base for i in range(1, 25)}
    p = 24 if option == 1 else 23
    mean = base + sum(corrections.values()) / p

    def mean_over(marks):
        return base + sum(corrections[i] for i in marks) / (24 if option == 1 else len(marks))

    assert np.abs(mean_over(range(2, 25)) - mean).max() < 1e-12 * np.abs(mean).max()
    assert np.abs(corrections[1]).max() == 0.0
    assert np.abs(mean_over(range(1, 24)) - mean).max() > 1e-2


@pytest.mark.parametrize(("law", "frozen"), list(itertools.product(LAWS, FROZEN)))
def test_mean_over_the_midpoints_does_not_depend_on_the_law(law, frozen):
    """Every law is unbiased: its weight times its probability is the weight of the cell in the chain."""
    schedule = short("3")
    blocks = Blocks((24, 9, 0), law, frozen)
    table = make_table(schedule, blocks)
    a, b, sigma = schedule.coefficients(frozen)
    for t, s in ((24, 9), (9, 0)):
        cells = np.arange(t, s, -1)
        chain = constants(a[cells], b[cells], sigma[cells]).weight
        reached = table.weight[cells] * table.probability[cells]
        drawn = table.probability[cells] > 0
        assert np.allclose(reached[drawn], chain[drawn], rtol=1e-14, atol=0)
        assert np.allclose(chain[1:][~drawn[1:]], 0.0, atol=1e-15)
        assert table.probability[cells].sum() == pytest.approx((t - s - 1) / (t - s) if law == "bernoulli" else 1.0)


def test_uniform_probabilities_are_option_2_and_importance_ones_follow_the_weights():
    schedule = short("2")
    uniform = make_table(schedule, Blocks((24, 0), "uniform", frozen="epsilon")).probability[24:0:-1]
    assert uniform[0] == 0.0 and np.allclose(uniform[1:], 1 / 23)
    law = Blocks((24, 0), "importance", "epsilon")
    q = make_table(schedule, law).probability[24:0:-1]
    a, b, sigma = schedule.coefficients("epsilon")
    tau = np.arange(1, 24)
    wanted = np.abs(constants(a[24:0:-1], b[24:0:-1], sigma[24:0:-1]).weight[1:]) * np.sqrt(tau)
    assert np.allclose(q[1:], wanted / wanted.sum(), rtol=1e-14)


@pytest.mark.parametrize("law", LAWS)
def test_blocks_of_one_step_are_the_chain(law):
    """Erratum j: with ``K = 1`` the method is DDPM, at one call a step."""
    schedule, rng = short("2"), np.random.default_rng(6)
    blocks = Blocks(tuple(range(24, -1, -1)), law, frozen="v")
    levels = draw_levels(make_table(schedule, blocks), blocks, rng)
    x, Z = rng.standard_normal(5), rng.standard_normal((25, 5))
    result = run(schedule, blocks, network, x, levels, Z[levels])
    a, b, sigma = schedule.coefficients("epsilon")
    for n in range(24, 0, -1):
        x = a[n] * x + b[n] * network(x, n - 1) + sigma[n] * Z[n]
    assert list(levels) == list(range(24, 0, -1)) and blocks.calls == 24
    assert np.abs(result - x).max() < 1e-12


def test_path_of_the_noise_has_the_variance_of_its_draws():
    """Two draws a block make the covariance of ``S_tau`` and ``S_K`` that the ``K`` draws would."""
    schedule = short("3")
    blocks = Blocks((24, 0), "uniform", frozen="epsilon")
    a, _, sigma = schedule.coefficients("epsilon")

    def C(k, j):
        return np.prod(a[24 - k + 1 : 24 - j + 1]) * sigma[24 - j + 1]

    for tau in (1, 7, 23):
        levels = np.array([24, 24 - tau])
        rows = make_rows(make_table(schedule, blocks), levels, following(levels))
        mixed = sum(C(tau, j) * C(24, j) for j in range(1, tau + 1))
        assert rows.fresh_sd[0] ** 2 == pytest.approx(sum(C(tau, j) ** 2 for j in range(1, tau + 1)), rel=1e-12)
        assert rows.path_factor[1] * rows.fresh_sd[0] ** 2 == pytest.approx(mixed, rel=1e-12)
        total = (rows.path_factor[1] * rows.fresh_sd[0]) ** 2 + rows.fresh_sd[1] ** 2
        assert total == pytest.approx(sum(C(24, j) ** 2 for j in range(1, 25)), rel=1e-12)


@pytest.mark.parametrize("law", LAWS)
def test_number_of_calls(law):
    schedule, rng = short("3"), np.random.default_rng(7)
    blocks = Blocks((24, 16, 8, 7, 2, 0), law)
    table = make_table(schedule, blocks)
    counts = [len(draw_levels(table, blocks, rng)) for _ in range(2000)]
    if law == "bernoulli":
        # Sum of independent marks: a z-score with a false-alarm rate of 1e-6.
        p = np.concatenate([np.full(K - 1, 1 / K) for K in blocks.sizes])
        assert blocks.calls == pytest.approx(sum(2 - 1 / K for K in blocks.sizes)) == pytest.approx(5 + p.sum())
        assert abs(np.mean(counts) - blocks.calls) < 4.9 * np.sqrt((p * (1 - p)).sum() / 2000)
    else:
        assert set(counts) == {9} and blocks.calls == 9


def test_paper_counts():
    """Section "Number of Neural Network Calls": 40 for 20 steps of Option 2, 97.5 for 50 of Option 1."""
    assert Blocks.equal(1000, 20, midpoint="uniform").calls == 40
    assert [Blocks.equal(1000, n, midpoint="bernoulli").calls for n in (50, 125, 500)] == [97.5, 234.375, 750]

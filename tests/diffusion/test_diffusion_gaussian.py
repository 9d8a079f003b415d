"""The exact recursion for Gaussian data, against enumeration of the midpoints and known values; planned blocks.

Nothing is random.
"""

import itertools

import numpy as np
import pytest
from covering import pairs
from diffusion_reference import RATIOS, sequential, short, weights

from pmm_mcmc.diffusion import Blocks, DiffusionSchedule, gaussian_variance, plan_blocks
from pmm_mcmc.diffusion.gaussian import gains
from pmm_mcmc.diffusion.interpolation import make_table
from pmm_mcmc.diffusion.planner import _costs

pytestmark = pytest.mark.quick

LINEAR = {variant: DiffusionSchedule.named("linear", 1000, variant) for variant in ("1a", "1d", "2", "3")}
PAPER = {"midpoint": "uniform", "frozen": "epsilon"}
OPTION_1 = {"midpoint": "bernoulli", "frozen": "epsilon"}


def patterns(schedule, blocks):
    """Yield the probability and the levels of the calls of every way to draw the midpoints."""
    table = make_table(schedule, blocks)
    of_block = []
    for t, s in zip(blocks.edges[:-1], blocks.edges[1:], strict=True):
        cells = range(t - 1, s, -1)
        if blocks.midpoint == "bernoulli":
            marks = list(itertools.chain(*(itertools.combinations(cells, n) for n in range(len(cells) + 1))))
            q = table.probability
            chances = [np.prod([q[c] if c in m else 1 - q[c] for c in cells]) for m in marks]
        else:
            marks = [(c,) for c in cells] or [()]
            chances = [table.probability[c] for c in cells] or [1.0]
        of_block.append([(p, (t, *m)) for p, m in zip(chances, marks, strict=True)])
    for choice in itertools.product(*of_block):
        yield np.prod([p for p, _ in choice]), [level for _, levels in choice for level in levels]


@pytest.mark.parametrize(
    ("variant", "law", "frozen"),
    pairs(("1c", "2", "3"), ("uniform", "bernoulli", "importance"), ("epsilon", "score", "x0", "v", 0.2)),
)
def test_recursion_is_the_mean_over_all_midpoints(variant, law, frozen):
    """Run the definition on unit vectors, which gives the linear map of the state and of all the noise."""
    schedule = DiffusionSchedule.from_betas(np.linspace(0.01, 0.6, 9), variant)
    blocks = Blocks((9, 4, 1, 0), law, frozen)
    for variance in (0.05, 2.0):
        g = gains(schedule, frozen, np.array([variance]))[:, 0]
        basis = np.eye(10)
        exact, total = 0.0, 0.0
        for p, levels in patterns(schedule, blocks):
            if p > 0.0:
                new = sequential(schedule, blocks, lambda x, n, g=g: g[n] * x, basis[0], basis, levels)
                exact += p * (new @ new)
                total += p
        assert total == pytest.approx(1.0, rel=1e-12)
        assert gaussian_variance(schedule, variance, blocks) == pytest.approx(exact, rel=1e-11)


# Of samples over data, standard deviations, for data variances 0.001, 0.01, 0.1 and 1: found with other code.
def cut(n_steps, power):
    """Edges at ``1000 u^power``, rounded, without a least length."""
    return tuple(sorted(set(np.round(1000 * np.linspace(1, 0, n_steps + 1) ** power)), reverse=True))


KNOWN = {
    "chain 2": ("2", None, (0.883, 0.963, 0.988, 0.996)),
    "chain 3": ("3", None, (0.925, 0.983, 0.995, 0.997)),
    "chain 1a": ("1a", None, (1.000, 1.008, 1.004, 1.001)),
    "paper, 2, 20": ("2", Blocks.equal(1000, 20, **PAPER), (21.969, 2.248, 1.038, 1.005)),
    "paper, 2, 50": ("2", Blocks.equal(1000, 50, **PAPER), (3.565, 1.048, 0.993, 0.996)),
    "paper, 1a, 20": ("1a", Blocks.equal(1000, 20, **PAPER), (22.381, 2.294, 1.053, 1.011)),
    "paper, 1d, 20": ("1d", Blocks.equal(1000, 20, **PAPER), (22.322, 2.287, 1.049, 1.002)),
    "paper, 3, 20": ("3", Blocks.equal(1000, 20, **PAPER), (2.572, 1.252, 1.019, 1.009)),
    "paper, 3, 40": ("3", Blocks.equal(1000, 40, **PAPER), (1.620, 1.047, 0.999, 0.999)),
    "option 1, 50": ("2", Blocks.equal(1000, 50, **OPTION_1), (6.973, 1.237, 1.003, 1.0)),
    "option 1, 250": ("2", Blocks.equal(1000, 250, **OPTION_1), (0.942, 0.966, 0.988, 0.996)),
    "shrinking": ("2", Blocks(cut(20, 2.0), **PAPER), (1.048, 0.998, 1.007, 1.059)),
    "importance": ("2", Blocks(cut(20, 2.0), frozen="epsilon"), (0.966, 0.981, 0.999, 1.037)),
    "importance, 3": ("3", Blocks(cut(20, 1.5), frozen="epsilon"), (1.000, 1.003, 1.007, 1.014)),
    "v frozen, 3": ("3", Blocks(cut(10, 2.0)), (0.972, 0.990, 0.992, 0.997)),
}  # fmt: skip


@pytest.mark.parametrize("case", KNOWN)
def test_known_values(case):
    variant, blocks, wanted = KNOWN[case]
    ratio = np.sqrt(gaussian_variance(LINEAR[variant], RATIOS, blocks) / RATIOS)
    assert np.allclose(ratio, wanted, rtol=0, atol=6e-4)


def test_known_values_of_fewer_steps():
    ddpm = np.sqrt(gaussian_variance(LINEAR["2"].respaced(50), RATIOS) / RATIOS)
    assert np.allclose(ddpm, (0.369, 0.683, 0.848, 0.926), atol=6e-4)
    for n, wanted in ((50, (0.376, 0.742, 0.915, 0.964)), (100, (0.566, 0.859, 0.956, 0.982))):
        ddim = np.sqrt(gaussian_variance(LINEAR["2"].respaced(n, eta=0.0), RATIOS) / RATIOS)
        assert np.allclose(ddim, wanted, atol=6e-4)


def test_shapes_and_errors():
    assert gaussian_variance(short(), 1.0).shape == ()
    assert gaussian_variance(short(), [[1.0, 2.0, 3.0]], Blocks.equal(24, 4)).shape == (1, 3)
    with pytest.raises(ValueError, match="must be positive"):
        gaussian_variance(short(), [1.0, 0.0])
    with pytest.raises(ValueError, match="blocks start at level 20, the chain at 24"):
        gaussian_variance(short(), 1.0, Blocks((20, 10, 0)))


@pytest.mark.parametrize("law", ("uniform", "bernoulli", "importance"))
def test_plan_is_the_best_of_all_cuts(law):
    """Every cut of a short chain is tried; their cost is an error of the variance that is computed with them."""
    schedule = DiffusionSchedule.from_betas(np.linspace(0.01, 0.4, 14))
    plan = plan_blocks(schedule, 4, (0.01, 4.0), midpoint=law)
    variances = np.geomspace(0.01, 4.0, 19)
    costs = _costs(schedule, plan, variances)
    cuts = [(14, *reversed(inner), 0) for inner in itertools.combinations(range(1, 14), 3)]
    totals = {cut: sum(costs[t, s] for t, s in itertools.pairwise(cut)) for cut in cuts}
    assert plan.edges == min(totals, key=totals.get) and plan.sizes.min() >= 2
    chain = gaussian_variance(schedule, variances)
    for cut, total in sorted(totals.items(), key=lambda item: item[1])[:5]:
        error = np.abs(gaussian_variance(schedule, variances, Blocks(cut, law)) / chain - 1.0).max()
        assert 0.05 * total < error < total * (1 + total)


@pytest.mark.parametrize(
    ("variant", "n_steps", "limit"),
    [("3", 20, 0.005), ("3", 15, 0.012), ("3", 10, 0.04), ("2", 20, 0.008), ("1a", 20, 0.008)],
)
def test_planned_blocks_are_near_the_chain(variant, n_steps, limit):
    """Twice as many calls as steps: 20 to 40 in place of 1000, and far nearer than blocks as in the paper."""
    variances = np.geomspace(1e-3, 100.0, 60)
    schedule = LINEAR[variant]
    chain = gaussian_variance(schedule, variances)
    plan = plan_blocks(schedule, n_steps)
    error = np.abs(np.sqrt(gaussian_variance(schedule, variances, plan) / chain) - 1.0).max()
    paper = np.abs(np.sqrt(gaussian_variance(schedule, variances, Blocks.equal(1000, n_steps, **PAPER)) / chain) - 1.0)
    assert error < limit and paper.max() > 100 * error
    assert plan.calls == 2 * n_steps and plan.edges[0] == 1000


def test_weights_of_the_reference_are_those_of_the_table():
    schedule = short("2")
    for law in ("uniform", "bernoulli", "importance"):
        blocks = Blocks((24, 10, 0), law, "epsilon")
        table = make_table(schedule, blocks)
        a, b, _ = schedule.coefficients("epsilon")
        cell = np.array([np.prod(a[11:level]) * b[level] for level in range(24, 10, -1)])
        found = table.weight[24:10:-1][1:]
        assert np.allclose(found, (weights(schedule, blocks, 24, 14) * cell)[1:], rtol=1e-12)


def test_planned_blocks_hold_two_steps_even_where_one_would_do():
    schedule = DiffusionSchedule.from_betas(np.linspace(0.01, 0.8, 14))
    assert list(plan_blocks(schedule, 7, (1e-6, 1e-6), frozen="x0").sizes) == [2] * 7

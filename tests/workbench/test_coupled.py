"""The coupled copies behind the step-halving probe, against the plain reference; and the law of their common noise.

z-scores are normal, |z| < 5.3: a false alarm in 1e7 for each.
"""

import numpy as np
import pytest
from reference import cell_midpoint, flow, uniform_midpoint, unrolled
from test_orders import WELL, double_well

from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, UNDERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.midpoints import LATE
from pmm_mcmc.workbench import coupled

Z = 5.3


class DoubleWell:
    """Stands in for a model: the same two coordinates each time, finite or not."""

    finite = True

    def drift(self, y, active=None):
        lp = np.log(np.cosh(WELL * y)).sum(axis=1) - 0.5 * (y**2).sum(axis=1)
        return np.where(self.finite, lp, np.nan), double_well(y)


def replicas(kernel, n, d=2):
    column = np.arange(n)[:, None]
    setting = coupled.ProbeSetting(kernel, 0.6 + 0.1 * (column % 5), 0.7 + 0.4 * (column % 5), 3 + column % 4)
    levels = coupled.levels_of(setting, d)
    u, v = np.random.default_rng(0).normal(size=(2, n, d))
    v = v * (kernel.dynamics != OVERDAMPED)
    lp, b = DoubleWell().drift(u)
    copies = [coupled._Copy(u, v, b, u, lp, 0.5 * (v**2).sum(axis=1) - lp)] * 3
    return setting, levels, copies


KERNELS = [
    *(Kernel(Scheme.CELLS, dynamics, option, offset)
      for dynamics in (OVERDAMPED, UNDERDAMPED) for option in (1, 2) for offset in (0.0, 0.5)),
    *(Kernel(Scheme.CELLS, dynamics, 2, 0.0, LATE) for dynamics in (OVERDAMPED, UNDERDAMPED)),
    Kernel(Scheme.CONTINUOUS, OVERDAMPED, 2, 0.0),
    Kernel(Scheme.CONTINUOUS, UNDERDAMPED, 2, 0.0),
    Kernel(Scheme.RECYCLED, HARMONIC, 2, 0.0),
]  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_step_is_that_of_the_plain_reference_on_the_common_path(kernel, monkeypatch):
    scheme, dynamics, _, offset, power = kernel
    advance, anchors = coupled._advance, []

    def checked(setting, level, copy, start, ends, first, marks, path, target, rng):
        new, unstable = advance(setting, level, copy, start, ends, first, marks, path, target, rng)
        assert not unstable.any()
        for r in range(len(copy.u)):
            alpha, friction, K = setting.alpha[r, 0], setting.friction[r, 0], setting.K[r, 0]
            begin, h = alpha * ends[0] / 4, alpha * (ends[1] - ends[0]) / 4
            columns, weighted = {0.0: ends[0], h: ends[1]}, []
            for k, mark in enumerate(marks):
                time = mark.time[r, 0] - begin
                if not mark.active[r]:
                    continue
                if scheme == Scheme.CELLS:
                    cell = round(time / h * K - offset)
                    exact, weight = cell_midpoint(dynamics, friction, h, K, cell, offset, power)
                else:
                    exact, weight = uniform_midpoint(dynamics, friction, h, time)
                assert abs(exact - time) < 1e-12
                columns[time] = first + k
                weighted.append((time, weight))

            def gathered(since, until, r=r, columns=columns, friction=friction):
                i, j = (path._rank[r, columns[time]] for time in (since, until))
                M = np.array([path._u[r], path._v[r]])
                return M[:, j] - flow(dynamics, until - since, friction)[0] @ M[:, i]

            state = np.array([copy.u[r], copy.v[r]])
            expected, midpoints = unrolled(
                dynamics, friction, h, weighted, state, copy.b[r], double_well, gathered, scheme != Scheme.CONTINUOUS
            )
            np.testing.assert_allclose([new.u[r], new.v[r]], expected, rtol=0.0, atol=1e-10)
            evaluated = midpoints[-1][0] if scheme == Scheme.RECYCLED else expected[0]
            np.testing.assert_allclose(new.evaluated[r], evaluated, rtol=0.0, atol=1e-10)
            anchors.append((r, columns, begin, h, new.evaluated[r]))
        return new, unstable

    monkeypatch.setattr(coupled, "_advance", checked)
    rng = np.random.default_rng(1)
    setting, levels, copies = replicas(kernel, 5)
    for _ in range(6):
        anchors.clear()
        copies, draws, _ = coupled._coarse_step(setting, levels, copies, DoubleWell(), rng)
        assert len(anchors) == 5 * 7
        for r in range(5):
            # Draws of all levels are of one time: that of the coarse step's.
            mine = [(begin, h, columns, evaluated) for row, columns, begin, h, evaluated in anchors if row == r]
            (_, whole, columns, _), time = mine[0], setting.alpha[r, 0]
            if scheme == Scheme.RECYCLED:
                (time,) = set(columns) - {0.0, whole}
            for level in range(3):
                (same,) = [
                    a
                    for begin, h, _, a in mine
                    if np.isclose(h, whole / 2**level) and begin < time <= begin + h + 1e-12
                ]
                assert np.array_equal(draws[level][r], same)


@pytest.mark.statistical
@pytest.mark.parametrize("dynamics", [OVERDAMPED, UNDERDAMPED, HARMONIC])
def test_noise_between_any_times_has_the_law_of_the_flow(dynamics):
    """Check second moments of gaps and of neighbours, from 40,000 paths: normal z-scores, a false alarm in 1e7 each."""
    n = 40_000
    rng = np.random.default_rng(2)
    setting = coupled.ProbeSetting(
        Kernel(0, dynamics, 2, 0.0), *np.array([0.9, 1.3, 4.0])[:, None, None] * np.ones((n, 1))
    )
    times = np.array([0.0, 0.9, 0.2, 0.5]) * np.ones((n, 1))
    path = coupled._Noise(setting, times, 1, rng)

    def gap(i, j):
        return np.array(path.between(i, j, setting.flow(times[:, j, None] - times[:, i, None])))[..., 0]

    for i, j in ((0, 1), (0, 2), (2, 1), (2, 3)):
        root = flow(dynamics, times[0, j] - times[0, i], 1.3)[2]
        expected, found = root @ root.T, gap(i, j)
        for a in (0, 1):
            for b in (0, 1):
                product = found[a] * found[b]
                error = product.std() / np.sqrt(n)
                assert abs(product.mean() - expected[a, b]) <= Z * error
    for first, second in (((0, 2), (2, 3)), ((0, 2), (2, 1)), ((0, 3), (3, 1))):
        product = gap(*first)[:, None] * gap(*second)[None]
        assert np.all(np.abs(product.mean(axis=-1)) <= Z * product.std(axis=-1) / np.sqrt(n))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_step_that_fails_goes_back_with_a_fresh_velocity(kernel):
    setting, levels, copies = replicas(kernel, 50)
    target = DoubleWell()
    target.finite = np.arange(50) >= 10
    new, _, unstable = coupled._coarse_step(setting, levels, copies, target, np.random.default_rng(3))
    assert unstable.tolist() == [10, 20, 40]
    for copy, old in zip(new, copies, strict=True):
        for name in ("evaluated", "b", "lp"):
            assert np.array_equal(getattr(copy, name)[:10], getattr(old, name)[:10])
            assert not np.any(getattr(copy, name)[10:] == getattr(old, name)[10:])
        assert np.array_equal(copy.u[:10], old.evaluated[:10]) and np.all(np.isfinite(copy.energy))
        if kernel.dynamics != OVERDAMPED:
            assert 0.4 < copy.v[:10].std() < 1.8 and not np.any(copy.v[:10] == old.v[:10])
        else:
            assert np.all(copy.v == 0.0)

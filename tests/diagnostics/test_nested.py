"""Nested R-hat: the formula on draws small enough for a pencil, its limits, its law on independent draws, errors.

Statistical tests are z-scores of 3000 independent parameters at a fixed seed; |z| < 5 fails once in 1.7e6.
"""

import arviz as az
import numpy as np
import pytest
import xarray as xr
from scipy import integrate, stats

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.convergence import nested_r_hat

Z = 5.0
# Two superchains of two chains, and 1, 2, 3 draws: variances between superchains, between chains of one, within chains.
BY_HAND = [
    ([[0], [2], [10], [12]], 50.0, 2.0, 0.0),
    ([[0, 2], [2, 4], [10, 12], [14, 16]], 60.5, (2.0 + 8.0) / 2, 2.0),
    ([[0, 1, 2], [3, 6, 9], [1, 1, 4], [5, 5, 5]], 0.0, (12.5 + 4.5) / 2, (1.0 + 9.0 + 3.0 + 0.0) / 4),
]


def result(x, superchains=None):
    """A result whose parameter ``x`` has draws ``(chain, draw, ...)``."""
    x = np.asarray(x, dtype=float)
    dims = ["chain", "draw", *(f"dim_{i}" for i in range(x.ndim - 2))]
    return tree({"x": (dims, x)}, {} if superchains is None else {"superchains": superchains})


def tree(variables, attrs, **coords):
    coords = {"chain": np.arange(len(variables["x"][1])), **coords}
    return xr.DataTree.from_dict({"posterior": xr.Dataset(variables, coords, attrs)})


def by_ranks(x, member):
    """The ranked statistic of ``(chain, draw)``, written anew: half-chains, normal scores, the larger of two."""
    half = x.shape[1] // 2
    x = np.concatenate([x[:, :half], x[:, -half:]])
    member = np.concatenate([member, member])

    def statistic(y):
        z = stats.norm.ppf((stats.rankdata(y).reshape(y.shape) - 0.375) / (y.size + 0.25))
        groups = [z[member == s] for s in np.unique(member)]
        between = np.var([g.mean() for g in groups], ddof=1)
        within = np.mean([np.var(g.mean(axis=1), ddof=1) + np.mean(np.var(g, axis=1, ddof=1)) for g in groups])
        return np.sqrt(1 + between / within)

    return max(statistic(x), statistic(np.abs(x - np.median(x))))


@pytest.mark.parametrize(("draws", "between", "among", "inside"), BY_HAND)
def test_by_hand(draws, between, among, inside):
    value = nested_r_hat(result(draws, 2))["x"]
    np.testing.assert_allclose(value, np.sqrt(1 + between / (among + inside)), rtol=1e-14)


@pytest.mark.parametrize("draws", [4, 5, 20])
def test_ranks_from_four_draws_on(draws):
    """Independently of ArviZ; a location and a scale of the superchains, so that each part is the larger in turn."""
    rng = np.random.default_rng(2)
    member = np.arange(12) * 3 // 12
    for shift, spread in (([-1, 0, 1], [1, 1, 1]), ([0, 0, 0], [1, 3, 9])):
        x = np.take(shift, member)[:, None] + np.take(spread, member)[:, None] * rng.normal(size=(12, draws))
        np.testing.assert_allclose(nested_r_hat(result(x, 3))["x"], by_ranks(x, member), rtol=1e-12)
        # ... and of any increasing map of the draws, bar the distances from the median
    x = rng.normal(size=(12, 20)) + member[:, None]
    assert nested_r_hat(result(x, 3))["x"] == pytest.approx(nested_r_hat(result(np.arctan(x), 3))["x"], rel=1e-2)


def test_the_formula_is_that_of_arviz():
    """Three draws by the formula here, and doubled to six by ArviZ's, unsplit: equal but for the variance within."""
    x = np.random.default_rng(3).normal(size=(8, 3))
    member = np.arange(8) * 2 // 8
    ours = nested_r_hat(result(x, 2))["x"] ** 2 - 1
    doubled = np.concatenate([x, x], axis=1)
    theirs = float(az.rhat_nested(doubled, superchain_ids=member, method="identity")) ** 2 - 1
    among = np.mean([np.var(g.mean(axis=1), ddof=1) for g in (x[:4], x[4:])])
    inside = np.mean(np.var(x, axis=1, ddof=1))
    assert ours * (among + inside) == pytest.approx(theirs * (among + inside * 4 / 5), rel=1e-12)


@pytest.mark.parametrize("draws", [1, 3, 4, 30])
def test_limits(draws):
    rng = np.random.default_rng(4)
    noise = rng.normal(size=(400, draws))
    start = np.repeat([-1.0, 0.0, 1.0, 3.0], 100)[:, None]
    assert 1.0 <= nested_r_hat(result(noise, 4))["x"] < 1.02, "all the same law"
    far = nested_r_hat(result(start + 1e-3 * noise, 4))["x"]
    assert far > (2.5 if draws >= 4 else 1000.0), "none has left its start: ranks have a largest value"
    assert nested_r_hat(result(np.tile(noise[:100], (4, 1)), 4))["x"] == 1.0, "superchains that are equal"
    still = nested_r_hat(result(np.broadcast_to(start, (400, draws)), 4))["x"]
    assert still > 1e6, "chains at their starts: infinite, but for rounding"
    assert np.isnan(nested_r_hat(result(np.ones((400, draws)), 4))["x"])
    for wrong in (np.nan, np.inf):
        broken = np.where(np.arange(400)[:, None] == 7, wrong, noise)
        assert np.isnan(nested_r_hat(result(broken, 4))["x"])


@pytest.mark.statistical
@pytest.mark.parametrize("draws", [1, 2, 3])
def test_law_of_independent_draws(draws):
    """M N B is chi-square over its degrees of freedom and independent of W, a sum of two such: E[B / W] is exact."""
    superchains, each = 8, 8
    x = np.random.default_rng(6).normal(size=(superchains * each, draws, 3000))
    ratio = nested_r_hat(result(x, superchains)).to_numpy() ** 2 - 1
    among, inside = superchains * (each - 1), superchains * each * (draws - 1)

    def transform(t):  # E[exp(-t W)], whose integral is E[1 / W]
        w = (1 + 2 * t / (draws * among)) ** (-among / 2)
        return w if inside == 0 else w * (1 + 2 * t / inside) ** (-inside / 2)

    expected = integrate.quad(transform, 0, np.inf)[0] / (each * draws)
    assert abs(ratio.mean() - expected) / (ratio.std(ddof=1) / np.sqrt(3000)) < Z
    assert expected == pytest.approx(1 / each if draws == 1 else 1 / (each * (draws + 1)), rel=0.05), "as documented"
    if draws == 1:  # one-way analysis of variance
        law = stats.f(superchains - 1, among)
        for level in (0.5, 0.95):
            above = np.mean(each * ratio > law.ppf(level))
            assert abs(above - (1 - level)) / np.sqrt(level * (1 - level) / 3000) < Z


def test_names_selection_and_types():
    rng = np.random.default_rng(7)
    sample, b = ("chain", "draw"), rng.normal(size=(8, 2, 2, 1))
    posterior = {
        "x": (sample, rng.normal(size=(8, 2))),
        "b": ((*sample, "row", "column"), b),
        "count": (sample, rng.integers(0, 4, size=(8, 2))),
        "flag": (sample, rng.random((8, 2)) < 0.5),
    }
    dt = tree(posterior, {"superchains": np.int64(2)}, row=["u", "v"], column=[0])
    values = nested_r_hat(dt)
    assert list(values.index) == ["x", "b[u, 0]", "b[v, 0]", "count", "flag"]
    assert list(values.index[:3]) == list(az.summary(dt, var_names=["x", "b"], kind="stats").index)
    assert np.isfinite(values).all() and values.dtype == float
    assert values["b[v, 0]"] == nested_r_hat(result(b[:, :, 1, 0], 2))["x"]
    for names in ("b", ["b"]):
        assert nested_r_hat(dt, var_names=names).equals(values[["b[u, 0]", "b[v, 0]"]])
    swapped = xr.DataTree.from_dict({"posterior": dt["posterior"].dataset.transpose("row", "draw", "column", "chain")})
    assert nested_r_hat(swapped)["b[v, 0]"] == values["b[v, 0]"]


@pytest.mark.parametrize("superchains", [None, 3])
def test_chains_that_began_apart_have_none(superchains):
    dt = result(np.random.default_rng(8).normal(size=(8, 5)), superchains)
    with pytest.raises(ValueError, match=r"not all chains of a run that began in superchains.*arviz.rhat_nested"):
        nested_r_hat(dt)


def test_a_part_of_the_chains_has_none_and_a_verdict():
    dt = result(np.random.default_rng(9).normal(size=(8, 500)), 2)
    part = dt.isel(chain=[0, 1, 4, 5])
    with pytest.raises(ValueError, match="dt: its chains are not all chains"):
        nested_r_hat(part)
    assert pmm.verdict(part).trusted
    with pytest.raises(ValueError, match="no draws"):
        nested_r_hat(dt.isel(draw=slice(0)))

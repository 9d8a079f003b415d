"""Moments of draws that are not kept, against the same draws kept.

What is exact is checked to rounding.  Statistical tests have fixed seeds: z-scores of the mean of independent
replications with |z| < 4.5 (some 1e-5 each), and counts within the central binomial interval that a correct program
leaves once in 1e5.
"""

from dataclasses import fields

import arviz as az
import numpy as np
import pymc as pm
import pytest
from results import z_of_mean
from scipy import stats

from pmm_mcmc.coordinates import Coordinates
from pmm_mcmc.diagnostics import moments_summary as reports
from pmm_mcmc.diagnostics.bias import stein_identity
from pmm_mcmc.diagnostics.moments_summary import moments_summary, moments_verdict
from pmm_mcmc.diagnostics.stein import corrected_expectations
from pmm_mcmc.moments import Moments, combined
from pmm_mcmc.results import Layout
from pmm_mcmc.storage.codec import decode, encode

Z, RARE = 4.5, 1e-5


def statistics(position, gradient, **more):
    """Statistics of draws ``(chain, n, d)`` as the host gives them."""
    shape = position.shape[:2]
    numbers = np.arange(np.prod(shape)).reshape(shape)
    return {
        "lp": -0.5 * (position**2).sum(axis=-1),
        "n_grad": 2 + numbers % 3,
        "n_grad_total": 100 + numbers,
        "unstable": np.zeros(shape, np.int64),
        "model_failures": np.zeros(shape, np.int64),
        "steps_per_draw": np.full(shape, 2),
        "step_size": np.full(shape, 0.5),
        "halving_cost": np.full(shape, 1.5),
        "gradient": gradient,
        "unconstrained": position,
    } | more


def collected(posterior, stats, coordinates, cuts=(), d=None):
    """Moments of arrays ``(chain, n, ...)``, taken in chunks."""
    chains, n, width = stats["unconstrained"].shape
    moments = Moments.start(posterior, width if d is None else d, chains, coordinates)
    for begin, end in zip((0, *cuts), (*cuts, n), strict=True):
        parts = ({name: a[:, begin:end] for name, a in group.items()} for group in (posterior, stats))
        moments.add(dict(zip(("posterior", "sample_stats"), parts, strict=True)))
    return moments


def of_vector(x, g, coordinates, cuts=(), **more):
    """Moments of draws of a vector, as a result."""
    moments = collected({"x": x}, statistics(x, g, **more), coordinates, cuts)
    return moments.tree(Layout.of_vector(x.shape[-1]), {})


def whitened(d, rng):
    """Coordinates with a dense scale, and their covariance."""
    root = np.eye(d) * np.geomspace(1.0, 30.0, d)[:, None] + 0.5 * rng.normal(size=(d, d))
    return Coordinates(10 * rng.normal(size=d), root), root @ root.T


def low_rank(d, rng):
    q, _ = np.linalg.qr(rng.normal(size=(d, 2)))
    return Coordinates.low_rank(rng.normal(size=d), np.geomspace(0.1, 10.0, d), np.array([3.0, 0.2]), q)


def within(count, n, probability):
    return stats.binom.ppf(RARE / 2, n, probability) <= count <= stats.binom.isf(RARE / 2, n, probability)


@pytest.fixture(scope="module")
def model():
    """A model with a layout: scalars, matrices, a transform, deterministics that are and are not coordinates."""
    with pm.Model(coords={"row": ["a", "b"], "column": [1, 2, 3]}) as built:
        tau, z = pm.HalfNormal("tau"), pm.Normal("z", dims=("row", "column"))
        pm.Deterministic("again", z[1])
        pm.Deterministic("square", z**2 * tau, dims=("row", "column"))
        pm.Deterministic("positive", (z > 0).sum())
        pm.Deterministic("constant", tau * 0.0 + 0.1)
        pm.Normal("y", z.sum(), 1.0, observed=1.0)
    return Layout.of_model(built, list(built.value_vars), built.initial_point(0))


def draws_of(layout, chains, n, seed=1):
    rng = np.random.default_rng(seed)
    x = 3.0 + rng.normal(size=(chains, n, len(layout.names)))
    return layout.values(x), statistics(x, -np.tanh(x - 3.0))


# -- moments -----------------------------------------------------------------------------------------------------------


@pytest.mark.pymc
def test_moments_are_those_of_kept_draws(model):
    posterior, stats = draws_of(model, 5, 40)
    coordinates = Coordinates(np.full(7, 2.0), np.full(7, 1.5))
    tree = collected(posterior, stats, coordinates, cuts=(1, 2, 17)).tree(model, {"sampler": "PoissonULMC"})
    kept = model.tree({"posterior": posterior}, {"sampler": "PoissonULMC"})
    for group, reduced in (
        ("posterior_mean", kept["posterior"].mean("draw")),
        ("posterior_sd", kept["posterior"].std("draw")),
    ):
        assert list(tree[group].data_vars) == list(reduced.data_vars)
        for name, values in reduced.data_vars.items():
            assert tree[group][name].dims == values.dims
            np.testing.assert_allclose(tree[group][name], values, rtol=1e-10, atol=1e-12)
        assert tree[group].attrs["sampler"] == "PoissonULMC"
    np.testing.assert_array_equal(tree["posterior_mean"]["row"], ["a", "b"])
    assert np.all(tree["posterior_sd"]["constant"] == 0.0) and np.all(tree["posterior_mean"]["constant"] == 0.1)
    assert float(tree["observed_data"]["y"]) == 1.0
    totals = tree["sample_stats_total"]
    for name in ("n_grad", "unstable", "model_failures"):
        np.testing.assert_array_equal(totals[name], stats[name].sum(axis=1))
    assert np.all(totals["transitions"] == 80) and np.all(totals["draws"] == 40)
    np.testing.assert_allclose(totals["lp"], stats["lp"].mean(axis=1), rtol=1e-12)
    np.testing.assert_array_equal(totals["n_grad_total"], stats["n_grad_total"][:, -1])


@pytest.mark.pymc
def test_which_values_are_coordinates_is_told_by_the_draws(model):
    posterior, stats = draws_of(model, 3, 20)
    # Equal in the first draws, and not in a later one.
    posterior = posterior | {"square": posterior["square"].copy()}
    posterior["square"][:, :, 0] = posterior["z"][:, :, 0]
    posterior["square"][2, 15, 0, 1] += 1e-9
    moments = collected(posterior, stats, Coordinates(np.zeros(7), np.ones(7)), cuts=(10,))
    own = dict(zip(model.tree({"posterior": posterior}, {})["posterior"].data_vars, [None] * 9, strict=False))
    begin = 0
    for name, values in posterior.items():
        size = int(np.prod(values.shape[2:], dtype=int))
        own[name] = moments.own[begin : begin + size].tolist()
        begin += size
    at = {name: j for j, name in enumerate(model.names)}
    z = [at[f"z[{i}, {j}]"] for i in range(2) for j in range(3)]
    assert own["z"] == z and own["again"] == z[3:] and own["square"] == [z[0], -1, z[2], -1, -1, -1]
    assert own["tau"] == own["positive"] == own["constant"] == [-1]
    table = moments_summary(moments.tree(model, {}))
    own_rows = table["mean_corrected"].notna()
    assert own_rows["z[a, 1]"] and own_rows["again[2]"] and not own_rows["tau"] and not own_rows["square[a, 2]"]
    np.testing.assert_array_equal(table.loc["again[2]"].to_numpy(), table.loc["z[b, 3]"].to_numpy())


def test_result_does_not_depend_on_the_cuts():
    rng = np.random.default_rng(1)
    coordinates, _ = whitened(4, rng)
    x = coordinates.place(rng.standard_t(5, size=(70, 60, 4)))
    whole, parts = (collected({"x": x}, statistics(x, -np.tanh(x)), coordinates, cuts) for cuts in ((), (1, 2, 9, 40)))
    for field in fields(Moments):
        a, b = getattr(whole, field.name), getattr(parts, field.name)
        if isinstance(a, np.ndarray):
            # Of the size of what is summed: some co-moments are small differences.
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10 * np.abs(a).max(initial=1e-300))
        elif isinstance(a, dict):
            assert all(np.allclose(a[name], b[name], rtol=1e-12) for name in a) and a.keys() == b.keys()
    one, two = (moments_summary(m.tree(Layout.of_vector(4), {})) for m in (whole, parts))
    np.testing.assert_allclose(one, two, rtol=1e-7)


def test_variance_far_from_zero_is_not_lost():
    rng = np.random.default_rng(2)
    x = 1e9 + rng.normal(size=(3, 1000, 2))
    moments = collected({"x": x}, statistics(x, 1e9 - x), Coordinates(np.full(2, 1e9), np.ones(2)), range(10, 1000, 10))
    np.testing.assert_allclose(moments.scatter / 1000, (x - 1e9).var(axis=1), rtol=1e-10)
    np.testing.assert_allclose(moments.mean + moments.origin - 1e9, (x - 1e9).mean(axis=1), atol=1e-6)


def test_combined_is_the_moments_of_all():
    rng = np.random.default_rng(3)
    x = rng.normal(size=(3, 50)) + 5.0
    parts = [x[:, :1], x[:, 1:20], x[:, 20:]]
    pairs = (np.array([0, 0, 2]), np.array([0, 1, 1]))
    scatter = [
        [((p[a] - p[a].mean()) * (p[b] - p[b].mean())).sum() for p in parts] for a, b in zip(*pairs, strict=True)
    ]
    mean = np.array([p.mean(axis=1) for p in parts]).T
    found, total = combined(np.array([1, 19, 30]), mean, np.array(scatter), pairs)
    np.testing.assert_allclose(found, x.mean(axis=1), rtol=1e-14)
    np.testing.assert_allclose(total, 50 * np.cov(x, bias=True)[pairs], rtol=1e-13)


def test_values_that_are_not_finite_spoil_no_others():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(4, 30, 2))
    bad = x.copy()
    bad[1, 7], bad[0, 0] = (np.nan, np.inf), (0.0, np.nan)
    moments = collected({"x": x, "bad": bad}, statistics(x, -x), Coordinates(np.zeros(2), np.ones(2)), (5,))
    np.testing.assert_allclose(moments.mean[:, :2] + moments.origin[:2], x.mean(axis=1), rtol=1e-10)
    np.testing.assert_allclose(moments.mean[2:, 2:] + moments.origin[2:], x[2:].mean(axis=1), rtol=1e-10)
    assert np.isnan(moments.scatter[1, 2:]).all() and np.isnan(moments.scatter[0, 3]) and moments.own[2:].max() == -1


@pytest.mark.parametrize("chains", [1, 6, 64, 150])
def test_memory_does_not_grow_with_draws(chains):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(chains, 300, 3))
    coordinates = Coordinates(np.zeros(3), np.ones(3))
    moments = Moments.start({"x": x}, 3, chains, coordinates)
    before = moments.nbytes
    for begin in range(0, 300, 100):
        part = x[:, begin : begin + 100]
        moments.add({"posterior": {"x": part}, "sample_stats": statistics(part, -part)})
        size = len(encode(moments))
        assert moments.nbytes == before
        assert size < before + 100 * chains + 3000
    assert before <= 8 * 3 * (2 * chains + 27 * 64 + 3)


@pytest.mark.parametrize("form", ["diagonal", "dense", "low rank"])
def test_goes_on_from_its_bytes_to_the_same_bytes(form):
    rng = np.random.default_rng(6)
    coordinates = {
        "diagonal": Coordinates(np.zeros(6), np.full(6, 2.0)),
        "dense": whitened(6, rng)[0],
        "low rank": low_rank(6, rng),
    }[form]
    x = rng.normal(size=(5, 40, 6))
    first = collected({"x": x[:, :10]}, statistics(x[:, :10], -x[:, :10]), coordinates)
    second = decode(encode(first), (Moments, Coordinates))
    assert encode(second) == encode(first)
    for moments in (first, second):
        moments.add({"posterior": {"x": x[:, 10:]}, "sample_stats": statistics(x[:, 10:], -x[:, 10:])})
    assert encode(second) == encode(first)
    fresh = Moments.start({"x": x}, 6, 5, coordinates)
    assert encode(decode(encode(fresh), (Moments, Coordinates))) == encode(fresh)


def test_no_draws_and_no_gradients():
    x = np.random.default_rng(7).normal(size=(4, 50, 2))
    stats = {name: a for name, a in statistics(x, -x).items() if name not in ("gradient", "unconstrained")}
    moments = Moments.start({"x": x}, 2, 4, None)
    empty = moments.tree(Layout.of_vector(2), {})
    assert np.isnan(empty["posterior_mean"]["x"]).all() and int(empty["sample_stats_total"]["draws"][0]) == 0
    with pytest.raises(ValueError, match="4 x 0 draws are too few"):
        moments_summary(empty)
    moments.add({"posterior": {"x": x}, "sample_stats": stats})
    tree = moments.tree(Layout.of_vector(2), {})
    table = moments_summary(tree)
    assert "stein" not in tree.children and table["bias"].isna().all() and table["mean_corrected"].isna().all()
    assert "was not measured: there are no gradients" in moments_verdict(tree).sentence


# -- corrections -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["diagonal", "dense", "low rank"])
@pytest.mark.parametrize("chains", [2, 5, 100])
def test_corrected_moments_of_any_gaussian_are_exact(form, chains):
    """From draws that are shifted and too wide, with a centre that is off: where the scale is that of the posterior."""
    rng = np.random.default_rng(chains)
    d = 6
    if form == "dense":
        coordinates, covariance = whitened(d, rng)
    else:
        sd = np.geomspace(1e-3, 1e3, d)
        coordinates = Coordinates(rng.normal(size=d) * sd, sd)
        if form == "low rank":
            coordinates = low_rank(d, rng)
        root = coordinates.place(np.eye(d)) - coordinates.centre
        covariance = root.T @ root
    sd = np.sqrt(covariance.diagonal())
    mean = coordinates.centre + 0.4 * sd
    x = coordinates.place(0.3 + 1.3 * rng.normal(size=(chains, 400 // chains + 20, d))) + 0.4 * sd
    g = -np.linalg.solve(covariance, (x - mean).reshape(-1, d).T).T.reshape(x.shape)
    tree = of_vector(x, g, coordinates, (3, 9))
    table = moments_summary(tree)
    np.testing.assert_allclose((table["mean_corrected"] - mean) / sd, 0.0, atol=1e-7)
    np.testing.assert_allclose((table["bias"] - (x.mean(axis=(0, 1)) - mean)) / sd, 0.0, atol=1e-7)
    found = reports._read(tree).coordinates
    assert found.first.used.all() and found.second.used.all()
    np.testing.assert_allclose(found.second.value * found.scale**2 / covariance.diagonal(), 1.0, atol=1e-7)
    np.testing.assert_allclose(found.sd * found.scale, x.std(axis=(0, 1)), rtol=1e-10)
    verdict = moments_verdict(tree)
    if chains == 100:
        assert any("the sd of x" in reason for reason in verdict.reasons)
        assert any("E[x dF/dx]" in reason for reason in verdict.reasons)


def test_corrections_agree_with_those_of_kept_draws():
    """By cross-fitting between the same chains, but for the scale, which is that of the warm-up here."""
    rng = np.random.default_rng(8)
    x = 0.05 + 1.05 * rng.logistic(size=(16, 500, 3))
    g = -np.tanh(x / 2)
    kept = corrected_expectations(x, x, g, np.arange(3))
    table = moments_summary(of_vector(x, g, Coordinates(np.full(3, 0.1), np.full(3, 1.7)), (100,)))
    assert kept.used.all()
    np.testing.assert_allclose(table["mean"], kept.raw, rtol=1e-10)
    np.testing.assert_allclose(table["mcse_mean"], kept.raw_se, rtol=1e-10)
    np.testing.assert_allclose(table["mean_corrected"], kept.value, atol=0.2 * kept.se.max())
    np.testing.assert_allclose(table["mcse_corrected"], kept.se, rtol=0.1)
    np.testing.assert_allclose(table["bias_se"], kept.bias_se, rtol=0.1)


@pytest.mark.parametrize(("chains", "n"), [(5, 30), (65, 8)])
def test_each_piece_is_corrected_with_the_slopes_of_the_others(chains, n):
    """By least squares on the draws: 5 pieces of a chain, or 32 of two and one of the chain that is left."""
    rng = np.random.default_rng(18)
    x = 0.2 + rng.logistic(size=(chains, n, 2))
    at = reports._read(of_vector(x, -np.tanh(x / 2), Coordinates(np.full(2, 0.1), np.full(2, 1.7)), (3,))).coordinates
    assert at.pieces == (5 if chains == 5 else 33) and at.first.used.all() and at.second.used.all()
    size = -(-chains // at.pieces)
    piece = np.repeat(np.arange(chains) // size, n)
    weights = np.bincount(piece) / len(piece)
    for j in range(2):
        u = (x[..., j].ravel() - 0.1) / 1.7
        s1 = 1.7 * np.tanh(x[..., j].ravel() / 2)
        terms = np.stack([s1, u * s1 - 1.0, u * u * s1 - 2.0 * u], axis=1)
        for found, f in ((at.first, u), (at.second, (u - at.first.value[j]) ** 2)):
            corrected = {}
            for order in (1, 2, 3):
                design = np.column_stack([np.ones(len(u)), terms[:, :order]])
                fits = [np.linalg.lstsq(design[piece != i], f[piece != i], rcond=None)[0] for i in range(at.pieces)]
                corrected[order] = np.array(
                    [(f - terms[:, :order] @ fit[1:])[piece == i].mean() for i, fit in enumerate(fits)]
                )
            best = min(corrected, key=lambda order: np.abs(corrected[order] - found.by_chain[:, j]).max())
            np.testing.assert_allclose(found.by_chain[:, j], corrected[best], rtol=1e-7, atol=1e-8)
            np.testing.assert_allclose(found.value[j], weights @ corrected[best], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("chains", [16, 50])
def test_identity_agrees_with_that_of_kept_draws(chains):
    rng = np.random.default_rng(9)
    coordinates, covariance = whitened(3, rng)
    x = coordinates.place(1.1 * rng.normal(size=(chains, 80, 3)))
    g = -(x - coordinates.centre) @ np.linalg.inv(covariance)
    excess, z, mean_square = stein_identity(x, g)
    found = reports._read(of_vector(x, g, coordinates, (7, 30))).coordinates
    np.testing.assert_allclose(found.excess, excess, rtol=1e-8)
    np.testing.assert_allclose(found.z, z, rtol=1e-8)
    np.testing.assert_allclose(found.mean_square, mean_square, rtol=1e-8)


@pytest.mark.statistical
@pytest.mark.parametrize("chains", [16, 70])
def test_errors_follow_a_t_distribution(chains):
    """Of raw and corrected means, biases and the identity, from draws without bias."""
    rng = np.random.default_rng(10)
    n, ratios = 30, []
    coordinates = Coordinates(np.full(2, 0.2), np.full(2, 1.7))
    for _ in range(120):
        x = rng.logistic(size=(chains, n, 2))
        tree = of_vector(x, -np.tanh(x / 2), coordinates)
        table = moments_summary(tree)
        at = reports._read(tree).coordinates
        assert at.first.used.all()
        ratios.append(
            [table["mean"] / table["mcse_mean"], table["mean_corrected"] / table["mcse_corrected"],
             table["bias"] / table["bias_se"], at.z]
        )  # fmt: skip
    ratios = np.array(ratios)
    assert at.pieces == (16 if chains == 16 else 35)
    degrees = np.array([chains - 1] + [at.pieces - 1] * 3)
    for ratio, dof in zip(ratios.transpose(1, 0, 2), degrees, strict=True):
        assert within(np.sum(np.abs(ratio) < stats.t.isf(0.025, dof)), ratio.size, 0.95)
    assert np.all(z_of_mean(ratios[:, :3]) < Z)


@pytest.mark.statistical
def test_unequal_pieces_have_honest_errors():
    """Of 65 chains the last piece is half as large as the others; here it is one of two."""
    rng = np.random.default_rng(11)
    n = np.array([8.0, 8.0, 2.0, 8.0])
    values = rng.normal(size=(4000, 4)) / np.sqrt(n)
    mean, error = reports._weighted(n, values.T)
    np.testing.assert_allclose(mean, values @ n / n.sum(), rtol=1e-12)
    # The sum of squares that it makes of pieces of these sizes, exactly.
    w = n / n.sum()
    expected = 4 / 3 * (w**2 * (1 / n - 1 / n.sum())).sum()
    assert z_of_mean(error**2 - expected) < Z and abs(expected * n.sum() - 1.0) < 0.1


# -- summary and verdict -----------------------------------------------------------------------------------------------


def normal(chains=80, n=200, seed=12, **more):
    x = np.random.default_rng(seed).normal(size=(chains, n, 3))
    return x, of_vector(x, -x, Coordinates(np.zeros(3), np.ones(3)), **more)


def test_summary_of_good_draws():
    x, tree = normal()
    table = moments_summary(tree)
    kept = az.summary(az.from_dict({"posterior": {"x": x}}), round_to="none")
    assert list(table.index) == list(kept.index)
    np.testing.assert_allclose(table["mean"], kept["mean"].astype(float), rtol=1e-10)
    np.testing.assert_allclose(table["sd"], kept["sd"].astype(float), rtol=1e-10)
    means, variances = x.mean(axis=1), x.var(axis=1, ddof=1)
    np.testing.assert_allclose(table["mcse_mean"], means.std(axis=0, ddof=1) / np.sqrt(80), rtol=1e-10)
    identity = az.rhat(az.from_dict({"posterior": {"x": x}}), method="identity")["x"]
    np.testing.assert_allclose(table["r_hat"], identity, rtol=1e-10)
    np.testing.assert_allclose(table["r_hat"] ** 2, 199 / 200 + means.var(axis=0, ddof=1) / variances.mean(axis=0))
    np.testing.assert_allclose(table["mean_corrected"], 0.0, atol=1e-9)
    verdict = moments_verdict(tree)
    assert verdict.trusted and table.attrs["verdict"] == verdict.sentence
    assert "in all 3 unconstrained coordinates" in verdict.sentence and "1.5 times the gradients" in verdict.sentence


def test_unstable_transitions_are_reported():
    shape = (80, 200)
    unstable, failures = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    unstable[3, :60] = 1
    verdict = moments_verdict(normal(unstable=unstable, model_failures=failures)[1])
    assert verdict.reasons == ("60 of 32000 transitions were unstable (halve step_size, or reparametrise)",)
    assert "model.debug()" in moments_verdict(normal(unstable=unstable, model_failures=unstable)[1]).sentence
    # Rejections of a method that is exact say nothing.
    assert moments_verdict(normal(unstable=unstable, acceptance_rate=np.ones(shape))[1]).trusted


def test_chains_that_disagree_are_reported():
    rng = np.random.default_rng(13)
    x = rng.normal(size=(40, 200, 3))
    x[:20, :, 1] += 1.0
    verdict = moments_verdict(of_vector(x, -x, Coordinates(np.zeros(3), np.ones(3))))
    assert verdict.reasons[0].startswith("chains disagree: r_hat of x[1] is 1.1")
    few = rng.normal(size=(4, 60, 2)) + 0.13 * np.array([-1.0, 1.0, 1.0, -1.0])[:, None, None]
    found = moments_verdict(of_vector(few, -few, Coordinates(np.zeros(2), np.ones(2))))
    assert any("draw more" in reason for reason in found.reasons)


def test_a_shift_that_all_chains_share_is_reported():
    x = 0.2 + np.random.default_rng(14).normal(size=(80, 200, 2))
    verdict = moments_verdict(of_vector(x, -x, Coordinates(np.zeros(2), np.ones(2))))
    assert len(verdict.reasons) == 1 and verdict.reasons[0].startswith("the mean of x[")
    assert "is off by 2" in verdict.reasons[0]


def test_precise_means_are_needed():
    """Known to 0.08 standard deviations only: chains of few draws that yet agree."""
    x = np.random.default_rng(15).normal(size=(2, 90, 1))
    x += np.array([0.08, -0.08])[:, None, None] - x.mean(axis=1, keepdims=True)
    verdict = moments_verdict(of_vector(x, -x, Coordinates(np.zeros(1), np.ones(1))))
    assert verdict.reasons == ("the mean of x[0] is known to 0.08 posterior sd only (draw more)",)


def test_one_chain_has_no_standard_errors_and_says_so():
    x, tree = normal(chains=1)
    table = moments_summary(tree)
    assert table[["mcse_mean", "r_hat", "bias", "bias_se", "mcse_corrected"]].isna().all(axis=None)
    np.testing.assert_allclose(table["mean"], x.mean(axis=(0, 1)), rtol=1e-10)
    assert moments_verdict(tree).trusted and "One chain" in table.attrs["verdict"]


def test_a_coordinate_that_does_not_move_is_no_obstacle():
    x = np.random.default_rng(16).normal(size=(20, 200, 3))
    g = -x
    x[..., 1] = 0.1
    tree = of_vector(x, g, Coordinates(np.zeros(3), np.ones(3)), (7,))
    table = moments_summary(tree)
    np.testing.assert_allclose(table["mean_corrected"].iloc[[0, 2]], 0.0, atol=1e-9)
    assert "E[x dF/dx] is 0.00 where it must be 1, for x[1]" in table.attrs["verdict"]
    assert table["sd"].iloc[1] == 0.0 and np.isnan(table["r_hat"].iloc[1]) and np.isnan(table["bias"].iloc[1])
    np.testing.assert_allclose(table["mean_corrected"].iloc[1], 0.1, rtol=1e-12)


def test_what_gradients_do_not_explain_stays_raw():
    rng = np.random.default_rng(17)
    # Two modes: the weights of which no gradient knows.
    x = rng.normal(size=(40, 100, 2)) + 5.0 * rng.choice([-1.0, 1.0], size=(40, 100, 2))
    tree = of_vector(x, 5.0 * np.tanh(5.0 * x) - x, Coordinates(np.zeros(2), np.full(2, 5.0)))
    table = moments_summary(tree)
    assert table["bias"].isna().all() and table["bias_se"].isna().all()
    np.testing.assert_allclose(table["mean_corrected"], table["mean"], rtol=1e-9)
    np.testing.assert_allclose(table["mcse_corrected"], table["mcse_mean"], rtol=1e-9)
    verdict = moments_verdict(tree)
    assert verdict.trusted and "not measurable for any unconstrained coordinate" in verdict.sentence


def test_steps_much_longer_than_tuned_are_trusted_only_where_moments_rule_a_bias_out():
    # Little noise is left in the corrected moments of a Gaussian; two modes leave all of it.
    rng = np.random.default_rng(23)
    gaussian = rng.normal(size=(20, 400, 3))
    x = rng.normal(size=(40, 400, 1)) + 5.0 * rng.choice([-1.0, 1.0], size=(40, 400, 1))
    for expected, alarmed in ((0.2, False), (0.5, True), (np.inf, True)):
        more = {"expected_bias": np.full((40, 400), expected)}
        verdict = moments_verdict(
            of_vector(x, 5.0 * np.tanh(5.0 * x) - x, Coordinates(np.zeros(1), np.full(1, 5.0)), **more)
        )
        assert any("steps of this size" in reason for reason in verdict.reasons) == alarmed
        more = {"expected_bias": np.full((20, 400), expected)}
        verdict = moments_verdict(of_vector(gaussian, -gaussian, Coordinates(np.zeros(3), np.ones(3)), **more))
        assert verdict.trusted == (not np.isinf(expected))

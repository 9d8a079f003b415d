"""Exchangeable labels and free signs: found exactly, said, and undone."""

import json

import arviz_base as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from results import gaussian, grid

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.labels import Exchange, exchanges_of, nearest_to
from pmm_mcmc.diagnostics.reading import read
from pmm_mcmc.run import findings


def values(**shapes):
    rng = np.random.default_rng(1)
    return {name: rng.normal(size=(2, *shape)) for name, shape in shapes.items()}


def test_variables_that_belong_together_are_found_and_no_others():
    """A mixture in two dimensions with weights, beside two slopes that are no labels and two equal effects."""

    def log_density(at):
        kernel = np.exp(-(at["mu"][..., 0] ** 2) - 0.3 * at["mu"][..., 1]) * np.exp(at["w"])
        alone = -((at["slopes"] - [1.0, 2.0]) ** 2).sum(axis=1) - (at["effects"] ** 4).sum(axis=1)
        return np.log(kernel.sum(axis=1)) - np.exp(at["mu"]).sum(axis=(1, 2)) + alone + at["effects"].sum(axis=1)

    found = exchanges_of(values(mu=(3, 2), w=(3,), slopes=(2,), effects=(2,)), log_density)
    assert found == [Exchange({"effects": (0,)}, 2), Exchange({"mu": (0,), "w": (0,)}, 3)]


def test_signs_of_columns_are_free():
    data = np.random.default_rng(3).normal(size=(4, 5))

    def log_density(at):
        residual = np.einsum("npk,nqk->npq", at["loading"], at["score"]) - data
        return -(residual**2).sum(axis=(1, 2)) - (at["loading"] ** 2 * [1.0, 2.0]).sum(axis=(1, 2))

    assert exchanges_of(values(loading=(4, 2), score=(5, 2)), log_density) == [
        Exchange({"loading": (1,), "score": (1,)}, 2, signs=True)
    ]


def test_a_matrix_of_transitions_moves_in_both_axes():
    def log_density(at):
        weight = np.exp(at["rates"])
        return np.einsum("nij,ni,nj->n", weight, np.exp(at["mu"]), np.cos(at["mu"]))

    assert exchanges_of(values(rates=(3, 3), mu=(3,)), log_density) == [Exchange({"rates": (0, 1), "mu": (0,)}, 3)]


def test_draws_come_to_the_labels_and_signs_of_a_pivot():
    rng = np.random.default_rng(2)
    pivot = {"mu": np.array([-3.0, 0.0, 3.0]), "loading": np.array([[2.0, 0.0], [0.0, 2.0]])}
    orders = np.array([rng.permutation(3) for _ in range(200)])
    columns = np.array([rng.permutation(2) for _ in range(200)])
    signs = rng.choice([-1.0, 1.0], size=(200, 1, 2))
    mu = pivot["mu"] + 0.1 * rng.normal(size=(200, 3))
    loading = pivot["loading"] + 0.1 * rng.normal(size=(200, 2, 2))
    mixed = {
        "mu": np.take_along_axis(mu, orders, axis=1),
        "loading": signs * np.take_along_axis(loading, columns[:, None, :], axis=2),
    }
    exchanges = [
        Exchange({"mu": (0,)}, 3), Exchange({"loading": (1,)}, 2), Exchange({"loading": (1,)}, 2, signs=True),
    ]  # fmt: skip
    nearest, _ = nearest_to(pivot, mixed, exchanges)
    np.testing.assert_array_equal(nearest["mu"], mu)
    np.testing.assert_allclose(nearest["loading"], loading)


def switching():
    """A good run whose chains have different labels, with a deterministic along the same axis."""
    x = grid(3)
    mu = x[..., :2] + [0.0, 9.0]
    mu[2:] = mu[2:, :, ::-1]
    dt = gaussian(x)
    added = xr.Dataset({
        "mu": (("chain", "draw", "component"), mu),
        "share": (("chain", "draw", "component"), np.where(mu > 4.0, 0.7, 0.3) + 0.01 * x[..., :2]),
    })  # fmt: skip
    dt["posterior"] = dt["posterior"].to_dataset().assign(added)
    dt["posterior"].attrs["findings"] = json.dumps({"labels": [[{"mu": [0]}, 2, False]]})
    return dt


def test_a_verdict_names_labels_and_judges_what_does_not_depend_on_them():
    found = pmm.verdict(switching())
    assert found.state == "undecided" and [reason.code for reason in found.reasons] == ["labels"]
    assert found.sentence == (
        "Undecided: the labels of mu are exchangeable: single components mean nothing as they are drawn. Order them "
        "(transform=ordered), or summarise pmm.relabel(dt)."
    )


def test_draws_that_mix_over_labels_are_judged_as_they_are():
    dt = switching()
    swapped = np.random.default_rng(6).random((4, 600)) < 0.5
    for name in ("mu", "share"):
        values = dt["posterior"][name].values
        values[swapped] = values[swapped][:, ::-1]
    mixed = pmm.verdict(dt)
    assert mixed.trusted and "The labels of mu are exchangeable: pmm.relabel(dt) tells" in mixed.sentence
    assert pmm.summary(dt).loc["mu[0]", "sd"] > 4.0, "as they are drawn"
    assert pmm.verdict(pmm.relabel(dt)).sentence.count("labels") == 0


def test_relabelled_draws_are_judged_as_others_and_what_shares_the_axis_goes_along():
    dt = switching()
    one = pmm.relabel(dt)
    assert pmm.verdict(one).trusted
    high = one["posterior"]["mu"].mean(("chain", "draw")).values > 4.0
    np.testing.assert_allclose(one["posterior"]["share"].mean(("chain", "draw")), np.where(high, 0.7, 0.3), atol=0.01)
    np.testing.assert_array_equal(one["posterior"]["a"], dt["posterior"]["a"])
    with pytest.raises(ValueError, match="no exchangeable labels or free signs are known"):
        pmm.relabel(one)


@pytest.mark.pymc
def test_a_run_on_a_mixture_finds_its_labels_and_no_missing_mass():
    y = np.concatenate([np.random.default_rng(k).normal(6.0 * k, 1.0, 40) for k in range(2)])
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.ones(2))
        mu = pm.Normal("mu", 3.0, 10.0, shape=2)
        pm.NormalMixture("y", w, mu, 1.0, observed=y)
    dt = pmm.sample(400, model=model, random_seed=1, progressbar=False)
    assert [reason.code for reason in pmm.verdict(dt).reasons] == ["labels"]
    means = pmm.relabel(dt)["posterior"]["mu"].mean(("chain", "draw")).values
    np.testing.assert_allclose(np.sort(means), [0.0, 6.0], atol=0.6)


@pytest.mark.pymc
def test_what_is_equal_by_itself_has_no_labels():
    with pm.Model() as model:
        pm.Normal("x", shape=3)
    dt = pmm.sample(200, model=model, random_seed=1, progressbar=False)
    assert json.loads(dt["posterior"].attrs["findings"])["labels"] == []


@pytest.mark.pymc
@pytest.mark.parametrize("kink", [False, True], ids=["smooth", "kinked"])
def test_independent_components_that_are_alike_are_no_labels(kink):
    """They may be exchanged, within one mode: also where an ascent ends short of the maximum, at a kink."""
    with pm.Model() as model:
        x = pm.Normal("x", shape=3)
        if kink:
            pm.Potential("kink", -5.0 * pm.math.abs(x.sum() - 1.0))
    dt = pmm.sample(model=model, random_seed=1, progressbar=False)
    assert "labels" not in {reason.code for reason in pmm.verdict(dt).reasons}


@pytest.mark.pymc
def test_a_narrow_mode_is_asked_too_whether_labels_may_be_exchanged():
    """From draws in the body, which is symmetric, it does not show."""
    narrow = np.array([0.5, -0.5])
    with pm.Model() as model:
        x = pm.Flat("x", shape=2)
        body = -0.5 * (x**2).sum()
        pm.Potential("both", pm.math.logaddexp(body, 6.0 - 0.5e4 * ((x - narrow) ** 2).sum()))
    rng = np.random.default_rng(1)
    draws = rng.normal(size=(4, 500, 2))
    draws[:, 100:400] = narrow + 0.01 * draws[:, 100:400]
    run = read(az.from_dict({"posterior": {"x": draws}}))
    assert findings._searched(run, model)["labels"] == []

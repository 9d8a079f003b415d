"""The table of a result: what it shows, how many digits of it, and of which parameters."""

import re

import numpy as np
import pandas as pd
import pymc as pm
import pytest
from results import gaussian, grid, tree

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics import reading
from pmm_mcmc.diagnostics.summary import rounded


@pytest.fixture
def dt():
    return gaussian(grid(4, draws=1000) + np.array([0.0, 0.05, 100.0, -1e-5]))


def test_the_first_columns_are_those_to_report(dt):
    table = pmm.summary(dt)
    columns = ["mean_cv", "mcse_cv", "sd", "bias", "bias_se", "r_hat", "ess_bulk"]
    assert list(table.columns) == columns and table.attrs["verdict"] == pmm.verdict(dt).sentence
    arviz = pmm.summary(dt, kind="all", round_to="none")
    np.testing.assert_allclose(table[columns].astype(float), arviz[columns], rtol=1e-7)
    assert max(map(len, str(table).splitlines())) <= 80


def test_a_selection_is_that_of_arviz(dt):
    assert list(pmm.summary(dt, "b").index) == list(pmm.summary(dt, ["~a"]).index) == ["b[0]", "b[1]", "b[2]"]
    assert list(pmm.summary(dt, ["^a"], filter_vars="regex").index) == ["a"]
    assert list(pmm.summary(dt, "b", coords={"b_dim_0": [1]}).index) == ["b[1]"]
    with pytest.raises(ValueError, match="ci_prob: goes with kind='all'"):
        pmm.summary(dt, ci_prob=0.5)
    assert "eti50_lb" in pmm.summary(dt, kind="all", ci_prob=0.5)


@pytest.mark.parametrize(
    ("selection", "words"),
    [
        ({"var_names": ["a", "c"]}, r"var_names=\['a', 'c'\]: the result has a, b$"),
        ({"var_names": "b[1]"}, r"var_names='b\[1\]': .* b; coords= chooses elements$"),
        ({"coords": {"b_dim_0": [7]}}, r"coords=.*7.*: the result has {'b_dim_0': \[0, 1, 2\]}$"),
        ({"coords": {"group": [7]}}, "coords=.*: the result has chain, draw, b_dim_0$"),
    ],
)
def test_a_selection_of_what_is_not_there_names_what_is(dt, selection, words):
    with pytest.raises(ValueError, match=words):
        pmm.summary(dt, **selection)


def shown(table, name):
    rows = str(table).splitlines()
    return [row.split()[1 + list(table.columns).index(name)] for row in rows[1:]]


def test_digits_are_those_that_are_known(dt):
    table = pd.DataFrame(
        {
            "mean_cv": [1.23456, -0.00012, 123456.7, 0.0, 5.0],
            "mcse_cv": [0.0123, 0.02, 4321.0, 0.0, 2e-14],
            "sd": [1.0, 1.0, 90000.0, 0.0, 2.0],
            "bias": [-0.00004, 0.0312, np.nan, 0.0, -1e-15],
            "r_hat": [1.0, 1.01449, np.nan, np.nan, np.inf],
            "ess_bulk": [1999.9, 400.0, 12.0, 4000.0, np.nan],
        },
        index=list("abcde"),
    )
    found = rounded(table, "auto")
    assert shown(found, "mean_cv") == ["1.23", "-0.0001", "1.23e+05", "0", "5.00000"]
    assert shown(found, "mcse_cv") == ["0.012", "0.02", "4.3e+03", "0", "2e-14"]
    assert shown(found, "r_hat") == ["1.000", "1.014", "nan", "nan", "inf"]
    assert shown(found, "ess_bulk") == ["1999", "400", "12", "4000", "nan"]
    pd.testing.assert_frame_equal(pd.DataFrame(found), table)
    assert "1.23" in found._repr_html_() and "1.23456" not in found._repr_html_()
    assert type(rounded(table, "none")) is pd.DataFrame
    assert rounded(table, 1).loc["a", "mean_cv"] == 1.2


def test_nothing_is_shown_as_zero_that_is_not(dt):
    for kind in ("short", "all"):
        cells = re.findall(r"(?<= )-?0(?:\.0*)?(?= |$)", str(pmm.summary(dt, kind=kind)), re.M)
        assert "-0" not in cells and not any(set(cell) <= set("-0.") and "." in cell for cell in cells)


def test_what_is_not_finite_is_not_shown_as_zero():
    table = pd.DataFrame({"mean_cv": [np.nan, 1.0], "mcse_cv": [np.nan, 0.1], "sd": [np.nan, 1.0]}, index=["a", "b"])
    assert str(rounded(table, "auto")).splitlines()[1].split() == ["a", "nan", "nan", "nan"]


def counted(monkeypatch):
    calls = []
    columns = reading._columns
    monkeypatch.setattr(reading, "_columns", lambda run, values: calls.append(values.shape[-1]) or columns(run, values))
    return calls


@pytest.mark.parametrize("options", [{}, {"var_names": "b"}, {"kind": "all"}, {"kind": "bias"}])
def test_table_and_verdict_of_a_summary_are_computed_together(dt, monkeypatch, options):
    calls = counted(monkeypatch)
    pmm.summary(dt, **options)
    assert calls == [4]


def many(wrong=None, p=1300):
    """Deterministics of three coordinates, one of which may be off in one of several ways."""
    x = grid(3, draws=1500)
    f = np.tanh(x @ np.random.default_rng(1).normal(size=(3, p)))
    if wrong == "chains":
        f[0, :, 1234] += 1.0
    elif wrong == "spread":
        f[0, :, 1234] *= 3.0
    elif wrong == "mean":
        x = x + 0.07
        f[..., 1234] = x.sum(axis=2)
    elif wrong == "sd":
        x[..., 1] = 0.94 * x[..., 1] + 0.34 * x[..., 0]
        f[..., 1234] = x[..., 0] + x[..., 1]
    return tree({"x": x, "f": f}, x, -x)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [("chains", "r_hat of f[1234]"), ("spread", "r_hat of f[1234]"), ("mean", "mean of f["), ("sd", "sd of f[")],
)
def test_of_very_many_the_ones_that_matter_are_judged(wrong, words, monkeypatch):
    calls = counted(monkeypatch)
    assert pmm.verdict(many()).trusted and sum(calls) <= 403
    assert words in pmm.verdict(many(wrong)).sentence
    assert len(pmm.summary(many(), "f")) == 1300


def test_memory_is_bounded(monkeypatch):
    """Parameters are read some at a time, and tables do not depend on how many."""
    whole = pmm.summary(many())
    monkeypatch.setattr("pmm_mcmc.diagnostics.parameters.SLAB", 2**21)
    calls = counted(monkeypatch)
    pieces = pmm.summary(many())
    assert max(calls) <= 2 * 2**21 // 48000
    assert list(whole.index) == list(pieces.index) and len(calls) > 10
    pd.testing.assert_frame_equal(pd.DataFrame(whole)[["sd", "r_hat"]], pd.DataFrame(pieces)[["sd", "r_hat"]])


def test_deterministics_that_are_infinite_are_not_in_the_way():
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Deterministic("logs", pm.math.concatenate([np.full(5, -np.inf), x * np.arange(1500.0)]))
    dt = pmm.sample(model=model, draws=400, random_seed=1, progressbar=False)
    words = pmm.verdict(dt).sentence
    assert words.startswith("Trusted: the ") and " of 1506 means that were judged are within " in words
    assert words.endswith("; logs[0] is not finite everywhere: look at how it is computed.")

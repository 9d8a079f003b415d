"""What a user sees first: verdicts and tables in a notebook, constants, and what is no result of sampling."""

import logging

import arviz as az
import numpy as np
import pytest
import xarray as xr
from results import gaussian, grid, tree
from test_adjusted_verdict import adjusted

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.verdict import asks_for_more, last_message


def test_a_notebook_shows_the_verdict_with_all_remedies():
    x = grid(3)
    trusted = pmm.verdict(adjusted(x))._repr_html_()
    assert trusted.startswith("<p><b") and ">Trusted</b>: all means are within" in trusted and "<li>" not in trusted
    x[..., 1] += np.array([1.0, -1.0, 1.0, -1.0])[:, None]
    verdict = pmm.verdict(tree({"a<b": x[..., 0], "b": x[..., 1:]}, x, -x))
    html = verdict._repr_html_()
    assert ">Not trusted</b>: " in html and html.count("<li>") == len(verdict.reasons) > 1
    assert all(f"<li>{reason.code}: " in html and f"Remedy: {reason.remedy}." in html for reason in verdict.reasons)


def test_a_notebook_shows_the_verdict_beside_the_table_and_what_its_columns_are():
    dt = adjusted(grid(3))
    table = pmm.summary(dt)
    html = table._repr_html_()
    assert html.startswith(f"<p>{pmm.verdict(dt).sentence}</p>") and "<table" in html
    assert html.endswith(
        "mean_cv is the mean, with less noise by control variates, and mcse_cv its standard error.</p>"
    )
    assert table[["sd"]]._repr_html_().endswith("</table>")
    level, words = last_message(dt)
    assert level == logging.INFO and words.endswith(
        "\nThe estimates are in pmm.summary(dt), where mean_cv is the mean, with less noise by control variates, and "
        "mcse_cv its standard error."
    )


@pytest.mark.parametrize("result", [adjusted, lambda x, posterior: tree(posterior, x, -x)])
def test_values_that_differ_by_rounding_are_a_constant(result):
    """As the diagonal of a matrix of correlations: it was said that its bias is not measurable."""
    x = grid(2)
    ones = 1.0 + np.finfo(float).eps * np.random.default_rng(1).integers(-2, 3, size=(4, 600, 1, 1))
    corr = np.concatenate([np.concatenate([ones, x[:, :, :1, None] / 9.0], axis=2), np.ones((4, 600, 2, 1))], axis=3)
    dt = result(x, posterior={"x": x, "corr": corr})
    sentence = pmm.verdict(dt).sentence
    assert sentence.endswith("; corr[0, 0], corr[0, 1] and corr[1, 1] are constant.") and sentence.startswith("Trusted")
    row = pmm.summary(dt).loc["corr[0, 0]"]
    assert row["sd"] == row["mcse_cv"] == 0.0 and np.isnan(row["r_hat"])


FUNCTIONS = [pmm.verdict, pmm.summary, pmm.noncentring, lambda dt: pmm.expectation(dt, np.exp)]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_no_result_is_refused_with_the_remedy(function):
    class InferenceData:
        posterior = None

        def groups(self):
            return ["posterior"]

    dt = gaussian(grid(3))
    flat = xr.DataTree.from_dict({"posterior": xr.Dataset({"x": ("sample", np.zeros(50))})})
    for other, error, words in (
        (None, TypeError, "dt=None: must be a result of sampling, a DataTree; pass what pmm.sample"),
        (dt["posterior"].to_dataset(), TypeError, "dt=Dataset: .*the whole result, not a group"),
        ({"x": [1.0]}, TypeError, "dt=dict: .*az.from_dict"),
        (InferenceData(), TypeError, r"dt=InferenceData: .*az.convert_to_datatree\(dt\)"),
        (dt["posterior"], ValueError, "dt: has no groups, and not 'posterior': pass the whole result"),
        (flat, ValueError, r"dt: 'x' in its posterior has dimensions \('sample',\): must have 'chain'"),
    ):
        with pytest.raises(error, match=f"^{words}"):
            function(other)


def test_a_result_of_another_sampler_needs_no_statistics():
    dt = az.from_dict({"posterior": {"x": grid(2), "n": np.arange(2400).reshape(4, 600) % 7}})
    assert pmm.verdict(dt).trusted and list(pmm.summary(dt)) == ["mean_cv", "mcse_cv", "sd", "r_hat", "ess_bulk"]


def test_draws_go_on_where_equilibration_did_not_end():
    assert asks_for_more(adjusted(grid(3))) is None
    assert asks_for_more(adjusted(grid(3), ended=0)).code == "equilibration"

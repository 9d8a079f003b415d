"""Pages and what they are made of: numbers, tables, drawings, and the report on a comparison."""

import numpy as np
import pandas as pd
import pytest
import report_pages as pages
from matplotlib.figure import Figure as Drawing

from pmm_mcmc.workbench.comparison.page import comparison_page
from pmm_mcmc.workbench.report.figures import short
from pmm_mcmc.workbench.report.page import (
    Cell,
    Column,
    Figure,
    Page,
    Section,
    Table,
    Text,
    Verdict,
    chosen,
    number,
    plain,
)
from pmm_mcmc.workbench.report.svg import drawn


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567, "1,234,567"),
        (np.int64(0), "0"),
        (4000.0, "4,000"),
        (2345.6, "2,346"),
        (-1e-5, "\N{MINUS SIGN}1e\N{MINUS SIGN}05"),
        (-0.012346, "\N{MINUS SIGN}0.01235"),
        (np.float32(0.5), "0.5"),
        (float("inf"), "\N{INFINITY}"),
        (-np.inf, "\N{MINUS SIGN}\N{INFINITY}"),
        (np.bool_(True), "yes"),
        (False, "no"),
        ("GHMC", "GHMC"),
        (("a", 1), "('a', 1)"),
        (float("nan"), None),
        (None, None),
        (pd.NA, None),
    ],
)
def test_numbers_as_text(value, text):
    assert number(value) == text


def test_what_rounds_to_nothing_has_no_sign():
    assert number(-1e-9, ".3f") == "0.000" and number(-0.0) == "0" and number(-0.01, ".3f") == "\N{MINUS SIGN}0.010"


def test_what_no_file_can_hold_is_replaced():
    assert plain("a\x00b\ud800c\td\n") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c\td\n"


def test_long_names_keep_both_ends():
    assert short("alpha  beta\n") == "alpha beta"
    cut = short("begin" + "-" * 100 + "[end]")
    assert len(cut) == 30 and cut.startswith("begin-") and cut.endswith("[end]")


def test_those_of_most_concern_come_first_and_unknown_last():
    assert chosen("abcd", [1.0, np.nan, 3.0, 2.0], 3) == ["c", "d", "a"]
    assert chosen("abcd", [1.0, np.nan, 3.0, 2.0], 9)[-1] == "b"


def drawing(points=5, label="bias"):
    figure = Drawing(figsize=(4, 2))
    axes = figure.add_subplot()
    axes.plot(np.random.default_rng(1).normal(size=points), "o", label=label)
    axes.set_ylabel(label)
    axes.legend()
    return figure


def page_of(*blocks, title="Title", sentences=()):
    return Page(
        title, Verdict("ok", "Fine", sentences), [Section("One", blocks), Section("Two", [Text("more")])]
    ).html()


def test_two_drawings_on_a_page_have_names_of_their_own():
    page = pages.check(page_of(Figure("first", drawing()), Figure("second", drawing())))
    drawings = page.all("svg")
    assert [e["attrs"]["aria-labelledby"] for e in drawings] == ["block-1-1", "block-1-2"]
    assert all(e["attrs"]["role"] == "img" for e in drawings)
    assert not page.all("metadata") and not [e for e in page.all("style") if "svg" in e["inside"]]
    assert len(page.all("use")) > 4


def test_a_drawing_of_too_many_points_becomes_a_picture():
    few, many = drawn(drawing(50)), drawn(drawing(8_000))
    assert few.png is None and many.svg is None and many.png.startswith(b"\x89PNG")
    page = pages.check(page_of(Figure("what <it> shows", drawing(8_000))))
    (image,) = [e for e in page.all("img")]
    assert image["attrs"]["src"].startswith("data:image/png;base64,") and image["attrs"]["alt"] == "what <it> shows"
    assert drawn(drawing(50)).named("a") == few.named("a") and drawn(drawing(8_000)).png == many.png


def test_text_of_a_drawing_is_text():
    page = pages.check(page_of(Figure("x", drawing(label="\N{CJK UNIFIED IDEOGRAPH-6E29} <b>&"))))
    assert "\N{CJK UNIFIED IDEOGRAPH-6E29} <b>&" in page.texts("text")


def test_every_text_of_a_page_is_escaped():
    bad = "<i id='x'>"
    table = Table(bad, [Column(bad, bad, numeric=False), Column(bad)], [[Cell(bad), Cell(bad, bad)]], bad)
    html = page_of(table, Text(bad), Figure(bad, drawing()), title=bad, sentences=[bad, bad])
    assert "<i" not in html
    page = pages.check(html)
    for tag in ("title", "h1", "caption", "th", "td", "p", "li", "figcaption", "dd"):
        assert any(bad in text for text in page.texts(tag)), tag


def test_cells_without_a_value_say_so():
    frame = pd.DataFrame({"bias": [0.25, np.nan], "why": [None, "x"]}, index=["a", "b"])
    table = Table.of_frame(frame, "T", "name", {}, flags={"bias": (lambda value: value > 0.1, "large")})
    (_, first, second) = pages.check(page_of(table)).tables()["T"]
    assert first == ["a", "0.25, large", "\N{EN DASH}not known"] and second == ["b", "\N{EN DASH}not known", "x"]
    assert [column.numeric for column in table.columns] == [False, True, False]


def test_a_comparison():
    html = comparison_page(pages.Comparison())
    page = pages.check(html)
    assert page.texts("h1") == ["Samplers on galaxies"] and page.texts("title") == ["Samplers on galaxies"]
    items = page.texts("li")
    assert items[:2] == pages.Comparison().verdict and items[2:] == pages.Comparison().notes
    tables = page.tables()
    assert [header for header, *_ in tables.values()] == [
        ["sampler", "trusted", "ess_bulk_per_1000", "r_hat"],
        ["sampler", "mean_error", "mean_error_at"],
        ["sampler", "occupancy"],
        ["sampler", "grads_sampling"],
        ["sampler", "seconds_sampling"],
        ["sampler", "error"],
        ["sampler", "new"],
    ]
    assert tables["Effective draws and convergence"][1:3] == [
        ["PoissonULMC(K=16)", "yes", "12.3", "1.000"],
        ["GHMC", "no", "0.45", "1.012"],
    ]
    assert tables["Effective draws and convergence"][3] == ["nuts", "yes", *2 * ["\N{EN DASH}not known"]]
    assert [row[1] for row in tables["Gradients"][1:]] == ["200,000", "200,000", "199,984"]
    assert [row[1] for row in tables["Time"][1:]] == ["12.3", "2", "1,234"]
    assert tables["In words"][3][1] == "RuntimeError: <b>no</b>" and tables["In words"][1][1].endswith("not known")
    assert "Error of the <mean>, in posterior sd." in page.texts("dd")
    assert len(page.all("svg")) == 1 and len(page.all("img")) == 1  # 8000 points are a picture
    assert page.texts("button", role="tab") == ["Tables", "Figures", "How it was done"]
    assert len(html) < 1_000_000 and html == comparison_page(pages.Comparison())


def test_a_comparison_says_nothing_of_failures_where_there_are_none():
    fine = pages.Comparison()
    fine.table["error"] = None
    assert "In words" not in pages.check(comparison_page(fine)).tables()


def test_a_comparison_of_step_sizes():
    page = pages.check(comparison_page(pages.stepped()))
    assert page.texts("button", role="tab")[1] == "Step sizes"
    tables = page.tables()
    means = tables["Errors of means at multiples of the step size"]
    assert means[0] == ["sampler", "step_size", "mean_error", "mean_error_se", "mean_error_noise", "mean_error_at"]
    times = "\N{MULTIPLICATION SIGN}"
    assert [row[0] for row in means[1:]] == [f"ULMC, {times} 0.5", f"ULMC, {times} 1", f"<b>, {times} 2"]
    assert means[1][1:4] == ["0.125", "0.031", "0.01"]
    spreads = tables["Errors of standard deviations at multiples of the step size"]
    assert spreads[2][2] == "0.2" and spreads[3][2] == "\N{EN DASH}not known"
    runs = tables["These runs"]
    assert runs[1][2] == "40,000" and runs[3][3] == "It broke." and runs[1][3].endswith("not known")


def test_a_comparison_with_names_that_would_do_harm():
    html = comparison_page(pages.Comparison(names=pages.NASTY[:3]))
    shown = [row[0] for row in pages.check(html).tables()["Effective draws and convergence"][1:]]
    assert shown == pages.NASTY[:3]


def test_a_comparison_of_nothing_but_a_table():
    bare = pages.Comparison()
    bare.notes, bare.figures, bare.columns = [], dict, {}
    page = pages.check(comparison_page(bare))
    assert page.texts("button", role="tab") == ["Tables"] and not page.all("details")

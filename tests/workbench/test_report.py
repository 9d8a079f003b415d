"""The report on a run: what it says is what the diagnostics say, whatever the run and its names.

Nothing here is statistical: draws are made so that the verdict is beyond doubt.
"""

import base64
import hashlib

import matplotlib as mpl
import numpy as np
import pytest
import report_pages as pages
import results

import pmm_mcmc as pmm
from pmm_mcmc.diagnostics.summary import bias_table
from pmm_mcmc.workbench import plot_ladder
from pmm_mcmc.workbench.report import run_page, to_html


@pytest.fixture(scope="module")
def good():
    return pages.good()


@pytest.fixture(scope="module")
def page(good):
    return pages.check(run_page(good))


def verdict_of(page):
    box = next(e for e in page.all("div") if e["attrs"].get("class", "").startswith("verdict"))
    return box["attrs"]["class"].split()[1], " ".join(box["text"].split())


def test_the_verdict_stands_on_top_in_words(good, page):
    tone, text = verdict_of(page)
    assert tone == "ok" and text[2:].startswith("TrustedAll corrected means are within ")
    assert page.texts("h1") == ["Report on a run"]


def test_a_run_that_is_not_to_be_trusted_says_why():
    dt = pages.off()
    page = pages.check(run_page(dt))
    tone, text = verdict_of(page)
    judged = pmm.verdict(dt)
    assert tone == "bad" and text[2:].startswith("Not trusted") and len(judged.reasons) >= 2
    for reason in judged.reasons:
        assert (str(reason)[1:] in text) == (reason.state == "not trusted")
    flagged = [e for e in page.all("td") if "flag" in e["attrs"].get("class", "")]
    assert flagged and all("more than the verdict allows" in e["text"] for e in flagged)
    assert not [e for e in pages.check(run_page(pages.good())).all("td") if "flag" in e["attrs"].get("class", "")]


def test_tables_hold_the_numbers_of_the_summary(good, page):
    summary, bias = pmm.summary(good, kind="all"), bias_table(good)
    tables = page.tables()
    seen = set()
    for caption in ("Estimates", "Bias", "How well they are known"):
        header, *rows = tables[caption]
        assert [row[0] for row in rows] == list(summary.index)
        for column, name in enumerate(header[1:], start=1):
            right = summary[name] if name in summary else bias[name]
            for row, value in zip(rows, right.astype(float), strict=True):
                shown = float(row[column].replace("\N{MINUS SIGN}", "-").replace(",", ""))
                assert shown == pytest.approx(value, rel=0.06, abs=0.5 if name.startswith("ess_b") else 6e-4), name
                assert name != "r_hat" or len(row[column].split(".")[1]) == 3
            seen.add(name)
    assert seen >= set(summary.columns) - {"mcse_mean"} and {"bias_of_sd", "sd_cv", "r_hat"} <= seen


def test_every_column_is_explained_twice_over(page):
    """To a pointer and a screen reader by its description, to all others in a list."""
    buttons = [e for e in page.all("button") if e["attrs"].get("class") == "term"]
    meanings = {e["attrs"]["id"]: e["text"] for e in page.all("span") if "id" in e["attrs"]}
    listed = set(page.texts("dd"))
    assert len(buttons) > 12
    for button in buttons:
        meaning = meanings[button["attrs"]["aria-describedby"]]
        assert len(meaning) > 15 and meaning in listed
    header = [e for e in page.all("th", scope="col")]
    assert len([e for e in header if e["text"].strip() in ("parameter", "meaning", "quantity")]) + len(buttons) == len(
        header
    )


def test_setting_and_cost(page):
    rows = {row[0]: row[1:] for row in page.tables()["The setting the chains sampled with, and what it cost"]}
    assert rows["step size"][:3] == ["0.4", "0.415", "0.43"]
    assert rows["gradients"][:3] == ["2,900", "2,900", "2,900"]
    facts = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert facts["Chains"] == "4" and facts["Draws of each chain"] == "600"
    assert facts["Gradients"] == "11,600, 17 % of them in warm-up"


def test_unstable_steps(page):
    assert "None of 4,800 transitions after warm-up was unstable." in page.texts("p")
    other = pages.check(run_page(pages.good(unstable=7)))
    assert any(text.startswith("7 of 4,800 transitions") for text in other.texts("p"))
    assert other.tables()["Chains with unstable transitions"][1:] == [["0", "7", "0"]]


def test_nothing_comes_from_elsewhere_and_no_other_script_runs(good):
    html = run_page(good)
    page = pages.check(html)
    assert "http:" not in html and "https:" not in html and "@import" not in html
    policy = next(e["attrs"]["content"] for e in page.all("meta") if "http-equiv" in e["attrs"])
    (script,) = page.all("script")
    digest = base64.b64encode(hashlib.sha256(script["text"].encode()).digest()).decode()
    assert "default-src 'none'" in policy and f"script-src 'sha256-{digest}'" in policy


def test_names_of_a_model_are_text_and_nothing_else():
    nasty, harmless = (pages.check(run_page(pages.named(n))) for n in (pages.NASTY, [f"n{i}" for i in range(10)]))
    # The same elements in the same order, but for figures, which the length of names changes.
    structure = [[e["tag"] for e in p.elements if "svg" not in e["inside"]] for p in (nasty, harmless)]
    assert structure[0] == structure[1]
    shown = [row[0] for row in nasty.tables()["Estimates"][1:]]
    right = [name.replace("\x07", "\N{REPLACEMENT CHARACTER}") for name in pages.NASTY]
    assert shown == [*(name.replace("/", "|") for name in right), *(f"theta[{name}]" for name in right)]
    drawn = " ".join(nasty.texts("text"))
    assert "<script>window.harmed = 1</script>"[:10] in drawn and {"$\\frac{1}$", "price $ and $"} <= set(
        nasty.texts("text")
    )


def test_equal_runs_give_equal_files_and_are_left_as_they_were(good):
    before, style = good.copy(deep=True), dict(mpl.rcParams)
    from matplotlib import pyplot as plt

    figures = plt.get_fignums()  # which another test may have left open
    assert run_page(good) == run_page(good)
    assert good.identical(before) and dict(mpl.rcParams) == style and plt.get_fignums() == figures


def test_many_chains_make_a_small_file_that_says_what_is_left_out():
    dt = pages.good(d=3, chains=512, draws=40)
    html = run_page(dt)
    assert len(html) < 1_500_000
    captions = pages.check(html).texts("figcaption")
    assert sum("8 of 512 chains" in caption for caption in captions) == 2


def test_many_parameters_are_cut_to_those_that_matter():
    dt = pages.good(d=260, draws=60)
    dt["posterior"]["b"].values[0, :, 250] += 3.0
    page = pages.check(run_page(dt))
    rows = page.tables()["Estimates"][1:]
    assert len(rows) == 200 and "b[250]" in [row[0] for row in rows]
    assert sum(text.startswith("200 of 260 parameters") for text in page.texts("p")) == 3
    captions = page.texts("figcaption")
    assert "40 of 260 parameters" in captions[0] and "6 of 260 parameters" in captions[1]
    assert any("b[250]" in text for text in page.texts("text"))


def test_a_sampler_without_gradients():
    draws = results.grid(2, draws=200)
    tree = results.gaussian(draws, diverging=np.zeros((4, 200), bool))
    tree["sample_stats"] = tree["sample_stats"].to_dataset().drop_vars(["gradient", "unconstrained"])
    page = pages.check(run_page(tree))
    tone, text = verdict_of(page)
    assert tone == "ok" and "All means are within" in text
    assert "Bias" not in page.tables()
    tree["posterior"]["a"].values[0] += 2.0
    tree["sample_stats"]["diverging"].values[2, :3] = True
    page = pages.check(run_page(tree))
    tone, text = verdict_of(page)
    assert tone == "bad" and "3 of 800 transitions diverged; r_hat of a is" in text
    assert "3 divergent transitions after warm-up." in page.texts("p")


def test_parameters_that_stand_still_or_are_not_finite():
    dt = pages.good(d=3, draws=100).copy(deep=True)
    dt["posterior"]["b"].values[..., 0] = 2.0
    dt["posterior"]["b"].values[1, 3, 1] = np.inf
    page = pages.check(run_page(dt))
    assert [row[0] for row in page.tables()["Estimates"][1:]] == ["a", "b[0]", "b[1]"]
    assert "2 of 3" not in page.texts("figcaption")[0]


def test_one_chain_has_no_ranks():
    page = pages.check(run_page(pages.good(chains=1, draws=400)))
    assert [caption.split(":")[0] for caption in page.texts("figcaption")][-1] == "Traces"
    assert verdict_of(page)[1][2:].startswith("UndecidedOne chain ")


@pytest.mark.parametrize(
    ("dt", "words"),
    [
        ({"posterior": 1}, "dt=dict: is no result of sampling"),
        (pages.good(d=2).children["sample_stats"], "no group 'posterior'"),
        (pages.good(d=2, draws=200).isel(draw=slice(3)), "3 draws of each chain, too few"),
    ],
)
def test_what_is_no_result_is_refused(dt, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        run_page(dt)
    with pytest.raises(ValueError, match=words):
        to_html(dt, tmp_path / "run.html")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_whole_or_not_there(good, tmp_path, monkeypatch):
    path = tmp_path / "run.html"
    path.write_text("before")
    path.chmod(0o640)
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no room")))
        with pytest.raises(OSError, match="no room"):
            to_html(good, path)
    assert path.read_text() == "before" and len(list(tmp_path.iterdir())) == 1
    to_html(good, str(path))
    assert path.read_text(encoding="utf-8") == run_page(good)
    assert path.stat().st_mode & 0o777 == 0o640 and len(list(tmp_path.iterdir())) == 1


def test_a_place_that_cannot_be_written_to_is_refused_before_any_work(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder"):
        to_html(None, tmp_path)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        to_html(None, tmp_path / "none" / "run.html")


def test_without_jinja_the_remedy_is_named(good, monkeypatch):
    from pmm_mcmc.workbench.report import page

    page._template.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"pip install 'pmm-mcmc\[report\]'"):
        run_page(good)


@pytest.mark.pymc
def test_real_runs_in_memory_in_a_store_and_of_moments(tmp_path):
    import pymc as pm

    with pm.Model(coords={"school": ["A & B", "<i>"]}):
        mu = pm.Normal("mu")
        theta = pm.Normal("theta", mu, 1.0, dims="school")
        pm.Normal("y", theta, 1.0, observed=[0.3, 1.2])
        given = dict(draws=100, tune=300, chains=4, random_seed=1, backend="numba", progressbar=False)
        given |= {"compute_convergence_checks": False}
        step = pmm.PoissonULMC(K=16)
        dt = pmm.sample(step, **given)
        pmm.sample(step, store=tmp_path / "run.zarr", **given)
        moments = pmm.sample(step, keep="moments", **given)
    stored = pmm.open(tmp_path / "run.zarr")
    html = run_page(dt)
    page = pages.check(html)
    # Times and dates are all that differs.
    for tree in (dt, stored):
        for group in tree.children.values():
            for name in ("created_at", "sampling_time"):
                group.attrs.pop(name, None)
    assert run_page(stored) == run_page(dt)
    facts = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert facts["Sampler"] == "PoissonULMC" and facts["Warm-up"] == "at most 300 transitions"
    assert [row[0] for row in page.tables()["Estimates"][1:]] == ["mu", "theta[A & B]", "theta[<i>]"]

    of_moments = pages.check(run_page(moments))
    assert [row[0] for row in of_moments.tables()["Estimates"][1:]] == list(pmm.summary(moments).index)
    assert "Bias" not in of_moments.tables() and not of_moments.texts("figcaption")
    assert dict(zip(of_moments.texts("dt"), of_moments.texts("dd"), strict=True))["Kept"] == "moments, no draws"


@pytest.mark.pymc
def test_a_run_of_adjusted_draws_shows_its_setting_and_no_bias():
    import pymc as pm

    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu"), 1.0, observed=[0.3, 1.2])
    given = {"draws": 300, "chains": 4, "model": model, "random_seed": 1, "progressbar": False}
    for keep in ("draws", "moments"):
        dt = pmm.sample(keep=keep, **given)
        page = pages.check(run_page(dt))
        rows = {row[0]: row[1:] for row in page.tables()["The setting the chains sampled with, and what it cost"]}
        assert {"step size", "friction", "steps per draw", "acceptance", "gradients"} <= set(rows)
        assert not {"K", "expected bias", "cost of half the bias"} & set(rows)
        assert float(rows["step size"][0]) == pytest.approx(float(dt["equilibration"]["step_size"][0]), rel=0.01)
        facts = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
        assert facts["Sampler"] == "GHMC" and "of them in warm-up" in facts["Gradients"]
        assert "0 divergent transitions after warm-up." in page.texts("p")
        tone, text = verdict_of(page)
        assert tone == "ok" and "bias" not in text.lower(), text
        assert "Bias" not in page.tables(), "adjusted draws have none"


def test_a_ladder_has_a_tab_with_evidence_modes_and_rungs():
    dt = pages.on_ladder()
    page = pages.check(run_page(dt))
    assert "Ladder" in page.texts("button", role="tab")
    tables = page.tables()
    assert [row[:3] for row in tables["Log evidence"][1:]] == [
        ["Bennett", "\N{MINUS SIGN}3.217", "0.042"], ["forward", "\N{MINUS SIGN}3.200", "0.05"],
        ["backward", "\N{MINUS SIGN}3.300", "0.06"], ["forward - backward", "0.100", "0.05"],
    ]  # fmt: skip
    header, *modes = tables["Modes"]
    assert header[:5] == ["mode", "weight", "standard error", "restarts", "p[0]"]
    assert modes == [
        ["0", "0.700", "0.03", "140", "\N{MINUS SIGN}2", *["0"] * 3],
        ["1", "0.300", "0.03", "60", "3", *["0"] * 3],
    ]
    assert [row[1] for row in tables["Rungs"][1:]] == ["0", "0.1", "1"]
    assert any("200 restarts" in text for text in page.texts("p"))
    assert "Ladder" not in pages.check(run_page(pages.good())).texts("button", role="tab")


def test_the_plot_of_a_ladder_shows_what_the_group_holds():
    figure = plot_ladder(pages.on_ladder())
    barrier, swaps, evidence, modes = figure.axes
    assert barrier.lines[0].get_xydata().tolist() == [[0.0, 0.0], [0.1, 0.6], [1.0, 1.3]]
    assert [bar.get_height() for bar in swaps.patches] == [0.5, 0.4]
    assert [label.get_text() for label in evidence.get_yticklabels()] == ["forward", "Bennett", "backward"]
    assert evidence.lines[0].get_xdata().tolist() == [-3.2, -3.217, -3.3]
    (ends,) = [line.get_segments() for line in modes.collections]
    np.testing.assert_allclose([end[:, 0] for end in ends], [[0.64, 0.76], [0.24, 0.36]])
    with pytest.raises(ValueError, match="has no group 'ladder'; give a result of"):
        plot_ladder(pages.good())

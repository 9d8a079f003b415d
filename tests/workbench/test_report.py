"""The report on a run: one file, whose words are those of the verdict and the summary, whatever the names of a model.

Nothing here is statistical: draws are made so that the verdict is beyond doubt.
"""

import base64
import re
import struct
import warnings
from html.parser import HTMLParser

import arviz as az
import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import results
import xarray as xr
from matplotlib import pyplot as plt

import pmm_mcmc as pmm
from pmm_mcmc.workbench.page import _worst, html_of

VOID = {"meta", "img"}
PICTURES = {"trace", "rank", "ess", "autocorr", "pair"}
BS = ["b[0]", "b[1]", "b[2]"]
# Names that would do harm where they are not escaped, or break what draws them.
NASTY = [
    "<script>window.harmed = 1</script>", "\"><img src=x onerror='window.harmed = 1'>", "</style></title><b>&amp;",
    "$body {0} %s", "$\\frac{1}$", "price $ and $", "bell\x07", "x" * 90,
]  # fmt: skip


class Parsed(HTMLParser):
    """The elements of a page, each with its attributes and the text in it; unbalanced ones are an error."""

    def __init__(self, html):
        super().__init__()
        self.elements, self._open = [], []
        self.feed(html)
        self.close()
        assert not self._open, f"left open: {self._open}"
        assert not re.search(r"https?:|@import|<script|<svg", html)

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "attrs": dict(attrs), "text": ""}
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag):
        assert self._open.pop()["tag"] == tag, tag

    def handle_data(self, data):
        for element in self._open:
            element["text"] += data

    def texts(self, tag):
        return [" ".join(e["text"].split()) for e in self.elements if e["tag"] == tag]

    @property
    def verdict(self):
        (box,) = [e for e in self.elements if e["attrs"].get("class", "").startswith("verdict")]
        return box["attrs"]["class"].split()[1], box["text"]

    def tables(self):
        """Rows of text, header first, by the heading above."""
        out = {}
        for element in self.elements:
            text = " ".join(element["text"].split())
            if element["tag"] == "h2":
                rows = out.setdefault(text, [])
            elif element["tag"] == "tr":
                rows.append([])
            elif element["tag"] in ("th", "td"):
                rows[-1].append(text)
        return out

    def pictures(self):
        """The pictures by name, each with its size."""
        images = [e["attrs"] for e in self.elements if e["tag"] == "img"]
        data = {a["alt"]: base64.b64decode(a["src"].removeprefix("data:image/png;base64,")) for a in images}
        return {name: struct.unpack(">2I", png[16:24]) for name, png in data.items()}


def good(d=4, chains=4, draws=600):
    """A run that is to be trusted."""
    each = np.ones((chains, draws))
    stats = {
        "step_size": 0.4 * each + 0.01 * np.arange(chains)[:, None],
        "K": np.full((chains, draws), 16),
        "friction": 1.5 * each,
        "steps_per_draw": np.full((chains, draws), 2),
        "n_grad": np.full((chains, draws), 4),
        "n_grad_total": np.cumsum(np.full((chains, draws), 4), axis=1) + 500,
        "unstable": np.zeros((chains, draws), int),
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found chain dimension to be longer", UserWarning)
        return results.gaussian(results.grid(d, chains, draws), **stats)


def named(names, draws=100):
    """A run whose parameters and coordinates have these names; one of a parameter may hold no slash."""
    position = results.grid(2 * len(names), 4, draws)
    posterior = {name.replace("/", "|"): position[..., i] for i, name in enumerate(names)}
    posterior["theta"] = position[..., len(names) :]
    return results.tree(posterior, position, -position, coords={"group": names}, dims={"theta": ["group"]})


@pytest.fixture(scope="module")
def page():
    return Parsed(html_of(good()))


def test_the_verdict_stands_on_top_in_its_own_words(page):
    judged = pmm.verdict(good())
    assert page.verdict == ("trusted", judged.sentence) and judged.trusted
    dt = good()
    dt["posterior"]["b"].values[0] += 1.0
    assert Parsed(html_of(dt)).verdict == ("not-trusted", pmm.verdict(dt).sentence)
    one = Parsed(html_of(good(chains=1, draws=400)))
    assert one.verdict[0] == "undecided" and "rank" not in one.pictures()


def test_the_table_is_the_summary(page):
    summary = pmm.summary(good())
    header, *rows = page.tables()["Estimates"]
    assert header == ["", *summary.columns, "ess_tail", "mcse_q5", "mcse_q95", "ess_per_grad"]
    assert [row[:-4] for row in rows] == [line.split() for line in summary.to_string().splitlines()[1:]]
    draws = good()["posterior"]["a"].values
    assert float(rows[0][-4]) == pytest.approx(az.ess(draws, method="tail", prob=(0.05, 0.95)), rel=1e-6)
    assert float(rows[0][-3]) == pytest.approx(az.mcse(draws, method="quantile", prob=0.05), rel=0.05)
    assert float(rows[0][-1]) == pytest.approx(summary.loc["a", "ess_bulk"] / (4 * 2900), rel=0.05)


def test_reasons_stand_with_their_remedies_and_plain_means_beside_corrected_ones():
    dt = good()
    dt["posterior"]["b"].values[0] += 1.0
    tables = Parsed(html_of(dt)).tables()
    reasons = pmm.verdict(dt).reasons
    assert [row for row in tables["Reasons"][1:]] == [[r.code, " ".join(str(r).split()), r.remedy] for r in reasons]
    dt["posterior"].attrs |= {"adjusted": 0, "random_seed": 7, "sampler": "ULMC", "arguments": '{"K": 16}'}
    tables = Parsed(html_of(dt)).tables()
    header, *rows = tables["Plain and corrected means of unadjusted draws"]
    assert header == ["", "mean", "mean_cv", "bias", "bias_se"] and [row[0] for row in rows] == ["a", *BS]
    made = {row[0]: row[-1] for row in tables["How it was made"][1:]}
    assert made["seed"] == "7" and made["sampler"] == "ULMC" and made["arguments"] == '{"K": 16}'
    assert made["adjusted"] == "no" and f"pmm_mcmc {pmm.__version__}, pymc" in made["reported with"]


def test_one_parameter_of_each_variable_comes_before_others():
    table = pd.DataFrame({"r_hat": [1.0, 1.5, 1.4, 1.3, 1.01]}, index=["a", "b[0]", "b[1]", "b[2]", "c"])
    assert list(_worst(table, 3).index) == ["a", "b[0]", "c"] and list(_worst(table, 4).index) == [
        "a",
        "b[0]",
        "b[1]",
        "c",
    ]


def test_the_setting_is_that_of_the_chains(page):
    rows = {row[0]: row[1:] for row in page.tables()["Setting of the chains"][1:]}
    assert rows["step size (alpha)"] == ["0.4", "0.415", "0.43"] and rows["K"] == ["16"] * 3
    assert rows["gradients"] == ["2900"] * 3 and rows["steps per draw"] == ["2"] * 3
    made = {row[0]: row[-1] for row in page.tables()["How it was made"][1:]}
    assert made["chains"] == "4" and made["draws of each chain"] == "600"


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_pictures_are_of_what_moves():
    dt = good(d=5, draws=100)
    dt["posterior"]["b"].values[..., 0] = 2.0
    dt["posterior"]["b"].values[1, 3, 1] = np.inf
    page = Parsed(html_of(dt))
    assert set(page.pictures()) == PICTURES
    assert all(size[0] == 880 and size[1] > 200 for size in page.pictures().values())
    assert [row[0] for row in page.tables()["Estimates"][1:]] == ["a", *(f"b[{i}]" for i in range(4))]
    still = good(d=2, draws=100)
    still["posterior"]["a"].values[:] = still["posterior"]["b"].values[:] = 1.0
    assert Parsed(html_of(still)).pictures() == {}


def test_names_of_a_model_are_text_and_nothing_else():
    nasty, harmless = (Parsed(html_of(named(names))) for names in (NASTY, [f"n{i}" for i in range(len(NASTY))]))
    assert [e["tag"] for e in nasty.elements] == [e["tag"] for e in harmless.elements]
    shown = [row[0] for row in nasty.tables()["Estimates"][1:]]
    right = [name.replace("\x07", "\N{REPLACEMENT CHARACTER}") for name in NASTY]
    assert shown == [*(name.replace("/", "|") for name in right), *(f"theta[{name}]" for name in right)]


def test_equal_runs_give_equal_files_and_leave_nothing_behind():
    dt = good()
    before, style, figures = dt.copy(deep=True), dict(mpl.rcParams), plt.get_fignums()
    assert html_of(dt) == html_of(dt.copy(deep=True))
    assert dt.identical(before) and dict(mpl.rcParams) == style and plt.get_fignums() == figures


def test_large_results_are_cut_to_what_is_read_and_say_so():
    many = good(d=3, chains=512, draws=40)
    assert "8 of 512 chains" in html_of(many) and len(html_of(many)) < 1_500_000
    dt = good(d=260, draws=60)
    dt["posterior"]["b"].values[0, :, 250] += 3.0
    page = Parsed(html_of(dt))
    rows = page.tables()["Estimates"][1:]
    assert len(rows) == 200 and "b[250]" in [row[0] for row in rows]
    assert "200 of 260 parameters: those that matter most." in page.texts("p")
    assert "Drawn are 6 of 260 parameters." in page.texts("p")


def test_a_run_of_nuts_has_its_energy():
    draws = results.grid(2, draws=200)
    tree = results.gaussian(draws, diverging=np.zeros((4, 200), bool), energy=0.5 * (draws**2).sum(axis=-1))
    tree["sample_stats"] = tree["sample_stats"].to_dataset().drop_vars(["gradient", "unconstrained"])
    page = Parsed(html_of(tree))
    assert set(page.pictures()) == PICTURES | {"energy"} and page.verdict[0] == "trusted"


def test_a_ladder_has_tables_of_evidence_and_modes():
    dt = good()
    centre = np.zeros((3, 5))
    centre[:, 0] = -2.0, 3.0, np.nan
    data = {
        "log_evidence": -3.217, "log_evidence_se": 0.042, "log_evidence_forward": -3.2, "log_evidence_forward_se": 0.05,
        "log_evidence_backward": -3.3, "log_evidence_backward_se": 0.06, "forward_minus_backward": 0.1,
        "forward_minus_backward_se": 0.05, "restarts": 200, "round_trips": 190,
        "mode_weight": ("mode", [0.7, 0.3, np.nan]), "mode_weight_se": ("mode", [0.03, 0.03, np.nan]),
        "mode_restarts": ("mode", [140, 60, 0]),
        "mode_centre": (("mode", "coordinate"), centre),
    }  # fmt: skip
    dt["ladder"] = xr.DataTree(xr.Dataset(data, {"coordinate": [f"p[{i}]" for i in range(5)]}))
    tables = Parsed(html_of(dt)).tables()
    evidence = [row[1:] for row in tables["Log evidence"][1:]]
    assert evidence == [["-3.217", "0.042"], ["-3.200", "0.05"], ["-3.300", "0.06"]]
    assert tables["Modes"] == [
        ["", "weight", "standard error", "restarts", "p[0]", "p[1]", "p[2]", "p[3]"],
        ["mode 0", "0.700", "0.03", "140", "-2", "0", "0", "0"],
        ["mode 1", "0.300", "0.03", "60", "3", "0", "0", "0"],
    ]
    assert "Modes" not in Parsed(html_of(good())).tables()


@pytest.mark.parametrize(
    ("dt", "words"),
    [
        ({"posterior": 1}, "dt=dict: must be a result of sampling"),
        (good(d=2).children["sample_stats"], "has no groups, and not 'posterior'"),
        (good(d=2, draws=200).isel(draw=slice(3)), "3 draws of each chain, too few"),
    ],
)
def test_what_is_no_result_is_refused(dt, words, tmp_path):
    with pytest.raises((TypeError, ValueError), match=words):
        pmm.workbench.report(dt, tmp_path / "run.html")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "run.html"
    path.write_text("before")
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("no room")))
        with pytest.raises(OSError, match="no room"):
            pmm.workbench.report(good(), path)
    assert path.read_text() == "before" and len(list(tmp_path.iterdir())) == 1
    assert pmm.workbench.report(good(), str(path)) == path
    assert Parsed(path.read_text(encoding="utf-8")).verdict[0] == "trusted" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        pmm.workbench.report(None, tmp_path / "none" / "run.html")


# What ArviZ, bayesplot, shinystan and MCMCDiagnosticTools show of a run: headings with a row or column of each table,
# or the picture.
ITEMS = {
    "reasons with remedies": ("Reasons", "remedy"),
    "means with their errors": ("Estimates", "mcse_cv"),
    "standard deviations": ("Estimates", "sd"),
    "r_hat": ("Estimates", "r_hat"),
    "effective draws, bulk": ("Estimates", "ess_bulk"),
    "effective draws, tails": ("Estimates", "ess_tail"),
    "errors of quantiles": ("Estimates", "mcse_q5"),
    "effective draws for a gradient": ("Estimates", "ess_per_grad"),
    "who made it": ("How it was made", "sampler", "arguments", "adjusted", "date", "seconds", "reported with"),
    "setting": ("Setting of the chains", "step size (alpha)", "friction", "acceptance", "gradients"),
    "densities and traces": "trace",
    "ranks": "rank",
    "effective draws over draws": "ess",
    "autocorrelation": "autocorr",
    "pair of the two worst, with divergences": "pair",
    "energy": "energy",
}


@pytest.mark.pymc
@pytest.mark.parametrize("door", ["pymc", "pmm"])
def test_sixteen_items_of_a_run_are_shown_by_both_doors(door):
    import pymc as pm

    options = {"draws": 60, "tune": 100, "chains": 2, "random_seed": 1, "progressbar": False}
    with pm.Model() as model:
        pm.Normal("x", shape=3)
        if door == "pmm":
            dt = pmm.sample(**options, compute_convergence_checks=False)
        else:
            dt = pm.sample(step=pmm.GHMC(), **options, cores=1, quiet=True, compute_convergence_checks=False)
    page = Parsed(html_of(dt, model))
    tables = {title: {row[0] for row in rows} | set(rows[0]) for title, rows in page.tables().items() if rows}
    shown = [
        name
        for name, place in ITEMS.items()
        if (place in page.pictures() if isinstance(place, str) else set(place[1:]) <= tables.get(place[0], set()))
    ]
    assert len(ITEMS) == 16 and shown == list(ITEMS)
    assert dt["sample_stats"]["energy"].dims == ("chain", "draw")
    az.plot_energy(dt)
    plt.close("all")


@pytest.mark.pymc
def test_real_runs_in_memory_and_in_a_store(tmp_path):
    import pymc as pm

    with pm.Model(coords={"school": ["A & B", "<i>"]}):
        mu = pm.Normal("mu")
        theta = pm.Normal("theta", mu, 1.0, dims="school")
        pm.Normal("y", theta, 1.0, observed=[0.3, 1.2])
        given = dict(draws=100, tune=300, chains=4, random_seed=1, backend="numba", progressbar=False)
        given |= {"compute_convergence_checks": False}
        dt = pmm.sample(**given)
        pmm.sample(store=tmp_path / "run.zarr", **given)
    stored = pmm.open(tmp_path / "run.zarr")
    for tree in (dt, stored):  # times are all that differs
        for group in tree.children.values():
            for name in ("sampling_time", "compile_time", "created_at"):
                group.attrs.pop(name, None)
    page = Parsed(html_of(dt))
    assert html_of(stored) == html_of(dt)
    assert [row[0] for row in page.tables()["Estimates"][1:]] == ["mu", "theta[A & B]", "theta[<i>]"]
    settings = {row[0]: row[1:] for row in page.tables()["Setting of the chains"][1:]}
    assert float(settings["step size (alpha)"][0]) == pytest.approx(
        float(dt["equilibration"]["step_size"][0]), rel=0.001
    )
    assert {"friction", "steps per draw", "acceptance", "gradients"} <= set(settings)

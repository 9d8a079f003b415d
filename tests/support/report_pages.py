"""Pages to look at: results made by hand, a comparison made up, and what an HTML page consists of."""

from __future__ import annotations

import re
import warnings
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import results
import xarray as xr

VOID = {"meta", "link", "img", "br", "hr", "input", "wbr"}
# Names that would do harm where they are not escaped, or break what draws them.
NASTY = [
    "<script>window.harmed = 1</script>",
    "\"><img src=x onerror='window.harmed = 1'>",
    "</style></title><b>&amp;",
    "{{ page.title }}",
    "$\\frac{1}$",
    "price $ and $",
    "\N{CJK UNIFIED IDEOGRAPH-6E29}\N{CJK UNIFIED IDEOGRAPH-5EA6}",
    "\N{RIGHT-TO-LEFT OVERRIDE}back",
    "bell\x07",
    "x" * 90,
]


class Parsed(HTMLParser):
    """The elements of a page, each with its attributes and the text in it; unbalanced ones are an error."""

    def __init__(self, html):
        super().__init__()
        self.elements, self._open = [], []
        self.feed(html)
        self.close()
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "attrs": dict(attrs), "text": "", "inside": [one["tag"] for one in self._open]}
        assert len(element["attrs"]) == len(attrs), f"an attribute twice: {attrs}"
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag):
        assert self._open.pop()["tag"] == tag, tag

    def handle_data(self, data):
        for element in self._open:
            element["text"] += data

    def all(self, tag, **attrs):
        return [e for e in self.elements if e["tag"] == tag and attrs.items() <= e["attrs"].items()]

    def texts(self, tag, **attrs):
        return [" ".join(e["text"].split()) for e in self.all(tag, **attrs)]

    def tables(self):
        """Rows of text, header first, by caption."""
        out, rows = {}, []
        for element in self.elements:
            text = " ".join(element["text"].split())
            if element["tag"] == "caption":
                rows = out.setdefault(text, [])
            elif element["tag"] == "tr":
                rows.append([])
            elif element["tag"] in ("th", "td"):
                rows[-1].append(text)
        return out


def check(html):
    """Assert what must hold of every page, and return it taken apart."""
    page = Parsed(html)
    ids = [e["attrs"]["id"] for e in page.elements if "id" in e["attrs"]]
    assert len(ids) == len(set(ids)), "two elements have one id"
    for element in page.elements:
        for name, value in element["attrs"].items():
            if name in ("aria-controls", "aria-labelledby", "aria-describedby"):
                assert set(value.split()) <= set(ids), (name, value)
            if name in ("src", "href"):
                assert value.startswith(("#", "data:")), value
                assert not value.startswith("#") or value[1:] in ids, value
            for reference in re.findall(r"url\(#([^)]*)\)", value or ""):
                assert reference in ids, reference
            assert not name.startswith("on"), name
    for table in page.all("th"):
        assert table["attrs"].get("scope") in ("row", "col")
    assert len(page.all("html", lang="en")) == len(page.all("title")) == len(page.all("h1")) == 1
    return page


def stats(chains, draws, *, unstable=0):
    """Statistics of a run as the step methods store them."""
    counts = np.zeros((chains, draws), int)
    counts[0, :unstable] = 1
    each = np.ones((chains, draws))
    spent = np.cumsum(np.full((chains, draws), 4), axis=1) + 500
    return {
        "step_size": 0.4 * each + 0.01 * np.arange(chains)[:, None],
        "K": np.full((chains, draws), 16),
        "friction": 1.5 * each,
        "steps_per_draw": np.full((chains, draws), 2),
        "n_grad": np.full((chains, draws), 4),
        "n_grad_total": spent,
        "unstable": counts,
        "model_failures": counts // 2,
        "expected_bias": 0.05 * each,
        "halving_cost": 1.6 * each,
    }


def good(d=4, chains=4, draws=600, **options):
    """A run that is to be trusted."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found chain dimension to be longer", UserWarning)
        return results.gaussian(results.grid(d, chains, draws), **stats(chains, draws, **options))


def off(d=4, chains=4, draws=600):
    """A run of draws that are too wide, by their gradients, and of which one chain is elsewhere."""
    position = 1.3 * results.grid(d, chains, draws)
    position[0] += 0.4
    return results.gaussian(position, **stats(chains, draws, unstable=40))


def named(names, chains=4, draws=100):
    """A run whose coordinates have these labels, and its parameters these names, which may hold no slash."""
    position = results.grid(2 * len(names), chains, draws)
    n = len(names)
    posterior = {name.replace("/", "|"): position[..., i] for i, name in enumerate(names)} | {
        "theta": position[..., n:]
    }
    return results.tree(
        posterior, position, -position, coords={"group": names}, dims={"theta": ["group"]}, **stats(chains, draws)
    )


class Comparison:
    """What a comparison has for its report."""

    title = "Samplers on galaxies"

    def __init__(self, names=("PoissonULMC(K=16)", "GHMC", "nuts")):
        self.verdict = ["PoissonULMC(K=16) has most effective draws for each gradient.", "GHMC missed a mode & more."]
        self.table = pd.DataFrame(
            {
                "trusted": [True, False, True],
                "ess_bulk_per_1000": [12.3, 0.45, np.nan],
                "r_hat": [1.0, 1.0123, np.nan],
                "mean_error": [0.031, 0.0, 0.002],
                "mean_error_at": ["mu[0]", "<i>", "mu[1]"],
                "occupancy": ["0.50, 0.50", "1.00, 0.00", "0.49, 0.51"],
                "grads_sampling": [200_000, 200_000, 199_984],
                "seconds_sampling": [12.345, 2.0, 1234.5],
                "error": [None, None, "RuntimeError: <b>no</b>"],
                "new": [1.0, 2.0, 3.0],
            },
            index=pd.Index(list(names), name="sampler"),
        )
        self.columns = {"mean_error": "Error of the <mean>, in posterior sd.", "grads_sampling": "Gradients spent."}
        self.steps = None
        self.notes = ["The reference is exact.", "Timed on two cores."]

    def figures(self):
        from matplotlib.figure import Figure

        made = {}
        for name, points in (("bias_vs_grad", 50), ("pairs", 8_000)):
            figure = Figure(figsize=(7, 3.5), layout="constrained")
            axes = figure.add_subplot()
            x = np.random.default_rng(1).normal(size=(2, points))
            axes.plot(*np.abs(x) + 0.1, "o", ms=3, label="GHMC")
            axes.set(xscale="log", yscale="log", xlabel="gradients", ylabel="bias")
            axes.legend()
            made[name] = (figure, f"{name}: error <against> gradients.")
        return made


def stepped():
    """A comparison with runs at other step sizes, one of which failed."""
    from pmm_mcmc.workbench.comparison.step_sizes import STEP_COLUMNS

    told = {"mean_error_at": "mu[0]", "sd_error_at": "mu[1]", "unstable": 0, "grads": 40_000}
    numbers = {"mean_error": 0.031, "mean_error_se": 0.01, "mean_error_noise": 0.03}
    numbers |= {"sd_error": 0.2, "sd_error_se": 0.01, "sd_error_noise": 0.03}
    rows = [
        {"sampler": "ULMC", "multiple": 0.5, "step_size": 0.125, **numbers, **told},
        {"sampler": "ULMC", "multiple": 1.0, "step_size": 0.25, **numbers, **told},
        {"sampler": "<b>", "multiple": 2.0, "step_size": 0.5, "error": "It broke."},
    ]
    made = Comparison()
    made.steps = pd.DataFrame(rows, columns=list(STEP_COLUMNS))
    return made


def on_ladder():
    """A result with the group of a ladder of three rungs that found two modes; a third place is empty."""
    dt = good()
    names = [f"p[{i}]" for i in range(5)]
    centre = np.zeros((3, 5))
    centre[:, 0] = -2.0, 3.0, np.nan
    data = {
        "log_evidence": -3.217, "log_evidence_se": 0.042, "log_evidence_forward": -3.2, "log_evidence_forward_se": 0.05,
        "log_evidence_backward": -3.3, "log_evidence_backward_se": 0.06, "forward_minus_backward": 0.1,
        "forward_minus_backward_se": 0.05, "restarts": 200, "round_trips": 190,
        "temperature": ("rung", [0.0, 0.1, 1.0]), "barrier": ("rung", [0.0, 0.6, 1.3]),
        **{name: ("pair", [0.5, 0.4]) for name in ("swap_rate", "step_size", "K", "trajectories")},
        "mode_weight": ("mode", [0.7, 0.3, np.nan]), "mode_weight_se": ("mode", [0.03, 0.03, np.nan]),
        "mode_restarts": ("mode", [140, 60, 0]), "mode_centre": (("mode", "coordinate"), centre),
    }  # fmt: skip
    dt["ladder"] = xr.DataTree(xr.Dataset(data, {"coordinate": names}))
    return dt

"""Numbers of the pages are those of the result files, so that none is old.  Nothing here is random."""

import json
import math
import re
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[2]
EVIDENCE = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
VERSUS = {
    "gaussian1000": "Gaussian, d = 1000",
    "rotated100": "rotated, condition 1000, d = 100",
    "poisson_glm": "Poisson regression, d = 4",
    "mixture20": "two modes 4 sd apart, d = 20",
    "phi4": "lattice field 8 x 8",
    "banana": "banana, 5 x 2",
    "stochastic_volatility": "stochastic volatility, d = 503",
    "galaxies": "galaxies, three components",
    "rosenbrock36": "Rosenbrock, d = 36",
}
HIERARCHIES = {
    "eight_schools_centred": "eight schools (d = 10)",
    "funnel10": "Neal's funnel, 9 children",
    "intercepts_and_slopes": "intercepts and slopes, 85 groups (175)",
    "horseshoe": "horseshoe, logistic (51)",
    "interval_scale": "scale uniform on an interval (22)",
    "correlated": "correlated effects, 40 groups (86)",
    "volatility": "stochastic volatility (123)",
    "gaussian_process": "Gaussian process, counts (28)",
}


def results(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))["rows"]


def of(rows, target, sampler):
    return [row for row in rows if (row["target"], row["sampler"]) == (target, sampler)]


def cells(section, label):
    """Cells of the row that begins with a label in a section of the evidence, without marks of bold type."""
    table = EVIDENCE.partition(f"## {section}\n")[2].partition("\n## ")[0].replace("**", "")
    row = re.search(rf"^\| {re.escape(label)} \| (.*) \|$", table, re.MULTILINE)
    assert row, label
    return [cell.strip() for cell in row[1].split("|")]


def total(row, gradients):
    return math.inf if gradients is None else row["warm_up"] + gradients


@pytest.mark.parametrize("target", VERSUS)
def test_gradients_beside_other_samplers(target):
    rows = results("versus")
    recycled, corrected, *others = cells("Beside other samplers", VERSUS[target])
    for sampler, shown in zip(("recycled", "paper", "PyMC NUTS", "nutpie NUTS"), [recycled, *others], strict=False):
        totals = [total(row, row["b2_max"]["first"]) for row in of(rows, target, sampler)]
        # One seed or none is in a frozen file.
        if len(totals) == 3:
            needed = median(totals)
            assert shown == f"{needed:,.0f}" if needed < math.inf else shown.startswith(">"), sampler
    totals = [total(row, row["corrected"]) for row in of(rows, target, "recycled")]
    assert corrected == ("\N{EN DASH}" if math.inf in totals else f"{median(totals):,.0f}")


@pytest.mark.parametrize("target", HIERARCHIES)
def test_gradients_of_hierarchies(target):
    for sampler, shown in zip(
        ("auto", "by hand"), cells("Hierarchies as they are written", HIERARCHIES[target]), strict=False
    ):
        spent = [row["b2_avg"] for row in of(results("hierarchy_runs"), target, sampler)]
        assert shown == f"{min(spent):,.0f} to {max(spent):,.0f}", sampler


def test_seconds():
    rows = results("wall_clock")
    targets = re.findall(r"^\| `(\w+)` \| \d+\.\d; ", EVIDENCE, re.MULTILINE)
    assert len(targets) == 7
    for target in targets:
        for sampler, shown in zip(
            ("PyMC NUTS", "nutpie", "NumPyro", "pmm default"), cells("Seconds", f"`{target}`"), strict=True
        ):
            (row,) = of(rows, target, sampler)
            speed = min(row["ess"], row["ess_square"]) / row["everything"]
            assert shown == f"{row['everything']:.1f}; {speed:,.0f}", (target, sampler)


SCOREBOARD = {
    "posteriordb": ("default", "posteriordb"),
    "sampler-benchmarks": ("default", "published"),
    "odd": ("default", "odd"),
    "of these held out": ("default", "odd, held out"),
    "all adjusted": ("default", "all"),
    "all unadjusted, with hierarchies, textbooks and PyMC's gallery": ("unadjusted", "all"),
}


@pytest.mark.parametrize("label", SCOREBOARD)
def test_runs_of_the_scoreboard(label):
    sampler, family = SCOREBOARD[label]
    page = (ROOT / "benchmarks" / "results" / "scoreboard.txt").read_text(encoding="utf-8")
    line = re.search(rf"^  {sampler} +{family} {{2,}}(.*)$", page, re.MULTILINE)[1]
    runs, wrong, trusted, right, refused = re.match(r"(\d+) +(\d+) +(\d+) +(\d+) +(\d+)", line).groups()
    assert int(trusted) == 0
    cover = re.search(r"([\d.]+ %) of \d+$", line)[1]
    assert cells("The scoreboard", label) == [runs, wrong, f"{refused} of {right}", cover]


GATE = {
    "posteriordb": "posteriordb",
    "odd": "odd",
    "hierarchies": "hierarchies",
    "textbooks'": "held_out",
    "all": "scoreboard",
    "held out": "scoreboard, held out",
    "narrow densities": "density",
}


@pytest.mark.parametrize("label", GATE)
def test_adjusted_and_unadjusted_draws(label):
    page = (ROOT / "benchmarks" / "results" / "gate.txt").read_text(encoding="utf-8")
    line = re.search(rf"^{GATE[label]} {{2,}}(\d.*)$", page, re.MULTILINE)[1]
    number = [part.replace(",", "") for part in re.findall(r"[\d.]+", line)]
    models, mean, square, trusted = number[0], number[2], number[6], number[9:11]
    refused = [f"{float(number[place]):.2g}" for place in (15, 18)]
    first = [f"{int(part):,}" for part in number[19:21]]
    assert cells("Adjusted and unadjusted draws", label) == [
        models,
        mean,
        square,
        ", ".join(trusted),
        ", ".join(refused),
        ", ".join(first),
    ]


def test_calibration_by_simulation():
    rows = results("sbc")
    for name in ("eight schools", "logistic regression", "50 groups"):
        for sampler, shown in zip(
            ("pmm.sbc", "simuk, PyMC NUTS", "simuk, nutpie"), cells("Calibration by simulation", name), strict=True
        ):
            (row,) = of(rows, f"model/{name}", sampler)
            assert shown == f"{1000 * row['cpu'] / row['replicates']:,.0f}"
    sound = [row["alarm"] for row in rows if row["target"] == "fault/none"]
    planted = [row["alarm"] for row in rows if row["target"].startswith("fault/") and row["target"] != "fault/none"]
    text = " ".join(EVIDENCE.split())
    assert f"in {sum(planted)} of {len(planted)} with a planted fault" in text
    assert f"and in {sum(sound)} of {len(sound)} sound ones" in text


def test_the_ratio_of_the_front_page():
    rows = [row for row in results("scoreboard") if row["target"].startswith("posteriordb/") and row.get("for_400")]
    targets = {row["target"] for row in rows}
    need = {
        (target, sampler): median(row["for_400"] for row in of(rows, target, sampler))
        for target in targets
        for sampler in ("default", "nutpie low rank")
    }
    ratio = median(need[target, "default"] / need[target, "nutpie low rank"] for target in targets)
    assert len(targets) == 47 and f"draws, median | **{ratio:.2f}** |" in (ROOT / "README.md").read_text(
        encoding="utf-8"
    )


def test_wide_priors():
    rows = results("wide_priors")
    wide = [row for row in rows if row["sampler"] != "HalfNormal(1)"]
    states = [row["state"] for row in wide]
    section = " ".join(EVIDENCE.partition("### Wide priors\n")[2].partition("\n## ")[0].split())
    assert (
        f"Of {len(wide)} runs {states.count('trusted')} are trusted, {states.count('undecided')} undecided" in section
    )
    assert len(wide) == states.count("trusted") + states.count("undecided")
    ratios = []
    for target, sampler in sorted({(row["target"], row["sampler"]) for row in wide}):
        costs = [median(row["for_400"] for row in of(rows, target, name)) for name in (sampler, "HalfNormal(1)")]
        ratios.append(costs[0] / costs[1])
    assert f"{median(ratios):.2f} times" in section and f"{max(ratios):.2f} at most" in section
    before = [row["before"] for row in wide]
    assert f"after {median(before):.0f}, {max(before)} at most" in section

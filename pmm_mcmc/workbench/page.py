"""A report on a run: one HTML file with the verdict, the summary, figures of ArviZ and the setting."""

from __future__ import annotations

import base64
import io
import os
import re
import tempfile
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pmm_mcmc._version import __version__
from pmm_mcmc.api import EQUILIBRATION, WORDS, Result, checked, summary, verdict, with_numbers

__all__ = ["html_of", "report"]

# Rows of a table, parameters of a figure, its chains and the draws of each that are read at a glance.
_MOST_ROWS = 200
_MOST_DRAWN = 6
_MOST_CHAINS = 8
_MOST_DRAWS = 500
# Characters that HTML or UTF-8 cannot hold.
_IMPOSSIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_SETTING = {
    "step_size": "step size",
    "K": "K",
    "friction": "friction",
    "steps_per_draw": "steps per draw",
    "acceptance_rate": "acceptance",
    "n_grad_total": "gradients",
}
_EVIDENCE = {
    "log_evidence": "Bennett: the estimate to report",
    "log_evidence_forward": "from the reference",
    "log_evidence_backward": "from the posterior",
}
_FIGURES = {
    "trace": "Densities and traces, a line for each chain.",
    "rank": "Ranks: for each chain, the share of its draws below a quantile of all, minus what is expected. p is the "
    "chance of lines that are further off where the chains agree.",
    "energy": "Energy: where its changes are much narrower than it is, chains move slowly between energies.",
}


def report(dt: Result, path: str | os.PathLike[str]) -> Path:
    """Write a report on a run into one file: verdict, estimates, figures, setting; of a ladder its modes and evidence.

    Parameters
    ----------
    dt
        A result of ``pm.sample`` or :func:`pmm_mcmc.sample`, or an opened store.
    path
        Path of the file, which is replaced if it exists; at no time is it incomplete.

    Returns
    -------
    pathlib.Path
        Path of the file.

    Raises
    ------
    TypeError, ValueError
        If ``dt`` is not such a result, or has too few draws for a summary.
    OSError
        If the file cannot be written.
    ImportError
        If matplotlib is not installed.

    See Also
    --------
    pmm_mcmc.summary : The table in the report.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}; make it, or give another path")
    html = html_of(dt)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        draft = Path(folder, "whole")
        draft.write_text(html, encoding="utf-8", newline="\n")
        draft.replace(path)
    return path


def html_of(dt: Result) -> str:
    """Return the contents of the report, equal for equal results."""
    dt = checked(dt)
    children = dt.children
    if "posterior" in children:
        draws = dt["posterior"].sizes.get("draw", 0)
        if draws < 4:
            raise ValueError(f"the result has {draws} draws of each chain, too few to be summarised: draw at least 4")
        dt = with_numbers(dt)
    judgement = verdict(dt)
    table = summary(dt)
    body = [f'<p class="verdict {judgement.state.replace(" ", "-")}">{escape(judgement.sentence)}</p>']
    body += _section("Estimates", _largest_r_hat(table, _MOST_ROWS), len(table), "parameters")
    if "ladder" in children:
        body += _ladder(dt["ladder"].to_dataset())
    body += _setting(dt)
    if "posterior" in children:
        body += _figures(dt, table)
    template = Template(resources.files("pmm_mcmc.workbench").joinpath("page.html").read_text(encoding="utf-8"))
    return _IMPOSSIBLE.sub("\N{REPLACEMENT CHARACTER}", template.substitute(body="\n".join(body), version=__version__))


def _section(title: str, table: pd.DataFrame, count: int, rows: str) -> list[str]:
    """Return a heading and a table, with a note if it shows only some of ``count`` rows."""
    html = table.to_html(border=0, na_rep="\N{EN DASH}")
    note = [f"<p>{len(table)} of {count:,} {rows}: those that matter most.</p>"] if len(table) < count else []
    return [f"<h2>{title}</h2>", f'<div class="wide">{html}</div>', *note]


def _largest_r_hat(table: pd.DataFrame, limit: int) -> pd.DataFrame:
    """Return at most ``limit`` rows of a summary, in their order."""
    r_hat = table["r_hat"].astype(float).fillna(0.0).to_numpy()
    return table.iloc[np.sort(np.argsort(-r_hat, kind="stable")[:limit])]


def _ladder(ladder: xr.Dataset) -> list[str]:
    """Return sections on the log evidence and on the modes, with the coordinates that tell these apart."""
    evidence = pd.DataFrame(
        [[f"{float(ladder[name]):.3f}", f"{float(ladder[name + '_se']):.2g}"] for name in _EVIDENCE],
        index=list(_EVIDENCE.values()),
        columns=["value", "standard error"],
    )
    modes = ladder.isel(mode=np.flatnonzero(np.isfinite(ladder["mode_weight"].values)))
    table = pd.DataFrame(index=[f"mode {number}" for number in range(modes.sizes["mode"])])
    table["weight"] = [f"{value:.3f}" for value in modes["mode_weight"].values]
    table["standard error"] = [f"{value:.2g}" for value in modes["mode_weight_se"].values]
    table["restarts"] = modes["mode_restarts"].values
    centre = modes["mode_centre"].values
    if len(centre) > 1:
        for i in np.sort(np.argsort(-np.ptp(centre, axis=0), kind="stable")[:4]):
            table[str(modes["coordinate"].values[i])] = [f"{value:.3g}" for value in centre[:, i]]
    return [
        *_section("Log evidence", evidence, len(evidence), "estimates"),
        *_section("Modes", table.iloc[:_MOST_ROWS], len(table), "modes"),
    ]


def _setting(dt: xr.DataTree) -> list[str]:
    """Return the section on the run: its size, and what its chains sampled with."""
    group = dt["posterior"]
    facts = [str(group.attrs[name]) for name in ("sampler", "backend", "precision") if name in group.attrs]
    facts += [f"{group.sizes['chain']:,} chains"]
    facts += [f"{group.sizes['draw']:,} draws of each chain"]
    facts += [f"{group.attrs['sampling_time']:.3g} s"] if "sampling_time" in group.attrs else []
    facts += [str(group.attrs[WORDS])] if group.attrs.get(WORDS) else []
    settings = {label: values for name, label in _SETTING.items() if (values := _of_chains(dt, name)).size}
    table = pd.DataFrame(
        [[f"{value:.4g}" for value in (v.min(), np.median(v), v.max())] for v in settings.values()],
        index=list(settings),
        columns=["least", "middle", "largest"],
    )
    return [*_section("Setting", table, len(table), "settings"), f"<p>{escape('; '.join(facts))}.</p>"]


def _of_chains(dt: xr.DataTree, name: str) -> np.ndarray:
    """Return a number for each chain, where it is finite: the mean acceptance, or the last value of a statistic."""
    for group in (EQUILIBRATION, "sample_stats"):
        if group in dt.children and (name in dt[group] or name in dt[group].attrs):
            values = dt[group][name] if name in dt[group] else xr.DataArray(dt[group].attrs[name])
            if "draw" in values.dims:
                values = values.mean("draw") if name == "acceptance_rate" else values.isel(draw=-1)
            numbers = np.asarray(values, dtype=float)
            return numbers[np.isfinite(numbers)]
    return np.empty(0)


def _figures(dt: xr.DataTree, table: pd.DataFrame) -> list[str]:
    """Return a section with figures of the parameters of the largest ``r_hat``."""
    import arviz as az
    from matplotlib import pyplot as plt

    drawn = _drawn(dt, table)
    sizes = drawn["posterior"].sizes
    count = len(drawn["posterior"].data_vars)
    if not count:
        return []
    plots: dict[str, Any] = {"trace": (az.plot_trace_dist, {}, 0.6 + 1.3 * count)}
    if sizes["chain"] > 1:
        plots["rank"] = (az.plot_rank, {"col_wrap": 3}, 0.4 + 2.2 * -(-count // 3))
    if "sample_stats" in drawn.children:
        plots["energy"] = (az.plot_energy, {}, 3.0)
    html = ["<h2>Figures</h2>"]
    # Not shown in a notebook, and dollar signs in names start no mathematics.
    with plt.ioff(), plt.rc_context({"font.size": 9, "text.parse_math": False}):
        for name, (plot, options, height) in plots.items():
            plotted = plot(drawn, backend="matplotlib", figure_kwargs={"figsize": (8.0, height)}, **options)
            figure = plotted.viz["figure"].item()
            figure.set_layout_engine("constrained")
            png = io.BytesIO()
            figure.savefig(png, format="png", dpi=110)
            plt.close(figure)
            data = base64.b64encode(png.getvalue()).decode("ascii")
            html.append(f'<p><img src="data:image/png;base64,{data}" alt="{name}"></p>\n<p>{_FIGURES[name]}</p>')
    limits = {"parameters": (count, len(table)), "chains": (sizes["chain"], dt["posterior"].sizes["chain"])}
    cut = [f"{shown} of {total:,} {what}" for what, (shown, total) in limits.items() if shown < total]
    return [*html, f"<p>Drawn are {' and '.join(cut)}.</p>"] if cut else html


def _drawn(dt: xr.DataTree, table: pd.DataFrame) -> xr.DataTree:
    """Return draws for figures: a variable for each parameter that moves, some chains, thinned; and the energy."""
    from arviz_base import xarray_sel_iter
    from arviz_base.labels import BaseLabeller

    count, draws = (dt["posterior"].sizes[dim] for dim in ("chain", "draw"))
    chains = np.unique(np.linspace(0, count - 1, min(count, _MOST_CHAINS)).round().astype(int))
    thinned = {"chain": chains, "draw": slice(None, None, -(-draws // _MOST_DRAWS))}
    posterior = dt["posterior"].to_dataset().isel(thinned)
    every = {}
    for name, selection, index in xarray_sel_iter(posterior, skip_dims={"chain", "draw"}):
        values = posterior[name].isel(index).reset_coords(drop=True).astype(float)
        if np.isfinite(values).all() and np.ptp(values.values) > 0.0:  # others have no density and no ranks
            every[BaseLabeller().make_label_flat(name, selection, index)] = values
    shown = _largest_r_hat(table.loc[[label for label in table.index if label in every]], _MOST_DRAWN).index
    groups = {"posterior": xr.Dataset({label: every[label] for label in shown})}
    if "sample_stats" in dt.children and "energy" in dt["sample_stats"]:
        groups["sample_stats"] = dt["sample_stats"].to_dataset()[["energy"]].isel(chain=chains)
    return xr.DataTree.from_dict(groups)

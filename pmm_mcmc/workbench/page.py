"""A report on a run: one HTML file with the verdict, the summary, figures of ArviZ and the setting."""

from __future__ import annotations

import base64
import io
import os
import re
import tempfile
from collections.abc import Iterator
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from pmm_mcmc._version import __version__
from pmm_mcmc.diagnostics.noncentred import WORDS
from pmm_mcmc.diagnostics.parameters import checked
from pmm_mcmc.diagnostics.summary import summary, with_numbers
from pmm_mcmc.diagnostics.verdict import verdict
from pmm_mcmc.warmup.equilibration import EQUILIBRATION

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


def report(dt: Any, path: str | os.PathLike[str]) -> Path:
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


def html_of(dt: Any) -> str:
    """Return the contents of the report, equal for equal results."""
    children = checked(dt).children
    if "posterior" in children:
        draws = dt["posterior"].sizes.get("draw", 0)
        if draws < 4:
            raise ValueError(f"the result has {draws} draws of each chain, too few to be summarised: draw at least 4")
        dt = with_numbers(dt)
    judgement = verdict(dt)
    table = summary(dt)
    body = [f'<p class="verdict {judgement.state.replace(" ", "-")}">{escape(judgement.sentence)}</p>']
    body += _table("Estimates", _concerning(table, _MOST_ROWS), len(table), "parameters")
    if "ladder" in children:
        body += _ladder(dt["ladder"].to_dataset())
    body += _setting(dt)
    if "posterior" in children:
        body += _figures(dt, table)
    template = Template(resources.files("pmm_mcmc.workbench").joinpath("page.html").read_text(encoding="utf-8"))
    return _IMPOSSIBLE.sub("\N{REPLACEMENT CHARACTER}", template.substitute(body="\n".join(body), version=__version__))


# -- tables ----------------------------------------------------------------------------------------------------------


def _table(title: str, table: pd.DataFrame, count: int, what: str) -> list[str]:
    """Return a section with a table, and a note if ``count`` rows were more than it shows."""
    html = table.to_html(border=0, na_rep="\N{EN DASH}")
    note = [f"<p>{len(table)} of {count:,} {what}: those that matter most.</p>"] if len(table) < count else []
    return [f"<h2>{title}</h2>", f'<div class="wide">{html}</div>', *note]


def _concerning(table: pd.DataFrame, limit: int) -> pd.DataFrame:
    """Return the rows of the largest ``r_hat``, in their order."""
    if len(table) <= limit:
        return table
    size = table["r_hat"].astype(float).fillna(0.0).to_numpy()
    return table.iloc[np.sort(np.argsort(-size, kind="stable")[:limit])]


def _ladder(ladder: xr.Dataset) -> list[str]:
    evidence = pd.DataFrame(
        {"value": [f"{float(ladder[name]):.3f}" for name in _EVIDENCE],
         "standard error": [f"{float(ladder[name + '_se']):.2g}" for name in _EVIDENCE]},
        index=list(_EVIDENCE.values()),
    )  # fmt: skip
    present = np.flatnonzero(np.isfinite(ladder["mode_weight"].values))
    names = ladder["coordinate"].values.astype(str)
    centre = ladder["mode_centre"].values[present]
    # Four coordinates tell modes apart: those in which their centres differ most.
    apart: list[int] = []
    if len(present) > 1:
        apart = np.sort(np.argsort(-np.ptp(centre, axis=0), kind="stable")[:4]).tolist()
    modes = pd.DataFrame(
        {"weight": [f"{value:.3f}" for value in ladder["mode_weight"].values[present]],
         "standard error": [f"{value:.2g}" for value in ladder["mode_weight_se"].values[present]],
         "restarts": ladder["mode_restarts"].values[present],
         **{names[i]: [f"{value:.3g}" for value in centre[:, i]] for i in apart}},
        index=[f"mode {number}" for number in present],
    )  # fmt: skip
    return [
        *_table("Log evidence", evidence, len(evidence), "estimates"),
        *_table("Modes", modes.iloc[:_MOST_ROWS], len(modes), "modes"),
    ]


def _setting(dt: Any) -> list[str]:
    """Return the section on the run: its size, and what its chains sampled with."""
    group = dt["posterior" if "posterior" in dt.children else "posterior_mean"]
    named = ("sampler", "backend", "precision")
    facts = [str(group.attrs[name]) for name in named if name in group.attrs]
    facts += [f"{group.sizes['chain']:,} chains"]
    facts += [f"{group.sizes['draw']:,} draws of each chain"] if "draw" in group.sizes else []
    facts += [f"{group.attrs['sampling_time']:.3g} s"] if "sampling_time" in group.attrs else []
    facts += [str(group.attrs[WORDS])] if group.attrs.get(WORDS) else []
    of_chains = {}
    for name, label in _SETTING.items():
        values = _of_chains(dt, name)
        if values is not None:
            of_chains[label] = [f"{value:.4g}" for value in (values.min(), np.median(values), values.max())]
    table = pd.DataFrame.from_dict(of_chains, orient="index", columns=["least", "middle", "largest"])
    return [*_table("Setting", table, len(table), "settings"), f"<p>{escape('; '.join(facts))}.</p>"]


def _of_chains(dt: Any, name: str) -> np.ndarray | None:
    """Return a number for each chain: the mean acceptance, otherwise the last value of the statistic."""
    groups = [group for group in (EQUILIBRATION, "sample_stats", "sample_stats_total") if group in dt.children]
    arrays = [dt[group][name] for group in groups if name in dt[group]]
    arrays += [xr.DataArray(dt[group].attrs[name]) for group in groups if name in dt[group].attrs]
    if not arrays:
        return None
    values = arrays[0]
    if "draw" in values.dims:
        values = values.mean("draw") if name == "acceptance_rate" else values.isel(draw=-1)
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    return finite if finite.size else None


# -- figures ---------------------------------------------------------------------------------------------------------


def _figures(dt: Any, table: pd.DataFrame) -> list[str]:
    """Return a section with figures of the parameters that concern most."""
    drawn = _drawn(dt, table)
    if not drawn["posterior"].data_vars:
        return []
    out = ["<h2>Figures</h2>"]
    for name, png in _pngs(drawn):
        data = base64.b64encode(png).decode("ascii")
        out.append(f'<p><img src="data:image/png;base64,{data}" alt="{name}"></p>\n<p>{_FIGURES[name]}</p>')
    limits = {"parameters": (len(drawn["posterior"].data_vars), len(table))}
    limits["chains"] = (drawn["posterior"].sizes["chain"], dt["posterior"].sizes["chain"])
    cut = [f"{shown} of {count:,} {what}" for what, (shown, count) in limits.items() if shown < count]
    return [*out, f"<p>Drawn are {' and '.join(cut)}.</p>"] if cut else out


def _drawn(dt: Any, table: pd.DataFrame) -> xr.DataTree:
    """Return the draws of what is drawn: a variable for each parameter that moves, of some chains, thinned."""
    from arviz_base import xarray_sel_iter
    from arviz_base.labels import BaseLabeller

    count, draws = (dt["posterior"].sizes[dim] for dim in ("chain", "draw"))
    chains = np.unique(np.linspace(0, count - 1, min(count, _MOST_CHAINS)).round().astype(int))
    some = {"chain": chains, "draw": slice(None, None, -(-draws // _MOST_DRAWS))}
    posterior = dt["posterior"].to_dataset().isel(some)
    every = {}
    for name, selection, index in xarray_sel_iter(posterior, skip_dims={"chain", "draw"}):
        values = posterior[name].isel(index).reset_coords(drop=True).astype(float)
        if np.isfinite(values).all() and np.ptp(values.values) > 0.0:  # others have no density and no ranks
            every[BaseLabeller().make_label_flat(name, selection, index)] = values
    shown = _concerning(table.loc[[label for label in table.index if label in every]], _MOST_DRAWN).index
    groups = {"posterior": xr.Dataset({label: every[label] for label in shown})}
    stats = dt["sample_stats"].to_dataset() if "sample_stats" in dt.children else {}
    if "energy" in stats:
        groups["sample_stats"] = stats[["energy"]].isel(chain=chains)
    return xr.DataTree.from_dict(groups)


def _pngs(drawn: xr.DataTree) -> Iterator[tuple[str, bytes]]:
    """Yield the name and picture of each figure."""
    import arviz as az
    from matplotlib import pyplot as plt

    posterior = drawn["posterior"].to_dataset()
    rows = len(posterior.data_vars)
    plots: dict[str, Any] = {"trace": (az.plot_trace_dist, {}, (8.0, 0.6 + 1.3 * rows))}
    if posterior.sizes["chain"] > 1:
        plots["rank"] = (az.plot_rank, {"col_wrap": 3}, (8.0, 0.4 + 2.2 * -(-rows // 3)))
    if "sample_stats" in drawn.children:
        plots["energy"] = (az.plot_energy, {}, (8.0, 3.0))
    # Not shown in a notebook, and dollar signs in names start no mathematics.
    with plt.ioff(), plt.rc_context({"font.size": 9, "text.parse_math": False}):
        for name, (plot, options, size) in plots.items():
            figure = plot(drawn, backend="matplotlib", figure_kwargs={"figsize": size}, **options).viz["figure"].item()
            figure.set_layout_engine("constrained")
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=110)
            plt.close(figure)
            yield name, buffer.getvalue()

"""A report on a run: one HTML file with the verdict and its reasons, estimates, figures of ArviZ, and who made it."""

from __future__ import annotations

import base64
import importlib.metadata
import io
import os
import re
import tempfile
import warnings
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr
from arviz_base import xarray_sel_iter
from arviz_base.labels import BaseLabeller

from pmm_mcmc._version import __version__
from pmm_mcmc.api import COLUMNS, EQUILIBRATION, WORDS, Model, Result, checked, read, summary, verdict, with_numbers

# Rows of a table, parameters of a figure, its chains and the draws of each that are read at a glance.
_MOST_ROWS = 200
_MOST_DRAWN = 6
_MOST_CHAINS = 8
_MOST_DRAWS = 500
# Characters that HTML or UTF-8 cannot hold.
_IMPOSSIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_SETTING = {
    "step_size": "step size (alpha)",
    "K": "K",
    "friction": "friction",
    "steps_per_draw": "steps per draw",
    "acceptance_rate": "acceptance",
    "n_grad_total": "gradients",
}
# Attributes of a result that say how it was made.
_MADE = {
    "created_at": "date",
    "sampler": "sampler",
    "arguments": "arguments",
    "random_seed": "seed",
    "tuning_steps": "warm-up, at most",
    "backend": "backend",
    "precision": "precision",
    "sampling_time": "seconds",
    "compile_time": "of these to compile",
}
_PACKAGES = ("pymc", "pytensor", "arviz", "numpy")
_COLUMNS = (
    "sd is that of the draws; ess_bulk and ess_tail are effective draws for means and for 5 and 95 % quantiles; "
    "mcse_q5 and mcse_q95 are the standard errors of these quantiles; ess_per_grad is ess_bulk for each gradient, "
    "warm-up included"
)
_EVIDENCE = {
    "log_evidence": "Bennett: the estimate to report",
    "log_evidence_forward": "from the reference",
    "log_evidence_backward": "from the posterior",
}
_FIGURES = {
    "trace": "Densities and traces, a line for each chain.",
    "rank": "Ranks: for each chain, the share of its draws below a quantile of all, minus what is expected. p is the "
    "chance of lines that are further off where the chains agree.",
    "ess": "Effective draws over the draws, for means (blue) and tails (orange): chains that mix give straight lines.",
    "autocorr": "Autocorrelation, a line for each chain.",
    "pair": "The two parameters of the largest r_hat; divergent transitions are marked.",
    "energy": "Energy: where its changes are much narrower than it is, chains move slowly between energies.",
}


def report(dt: Result, path: str | os.PathLike[str], model: Model | None = None) -> Path:
    """Write a report on a run into one file: verdict with all reasons, estimates, figures, and how it was made.

    Of unadjusted draws it has the plain beside the corrected means, of a ladder its modes and evidence.

    Parameters
    ----------
    dt
        A result of ``pm.sample`` or :func:`pmm_mcmc.sample`, or an opened store.
    path
        Path of the file, which is replaced if it exists; at no time is it incomplete.
    model
        The model of the result, for :func:`pmm_mcmc.verdict`: a result of ``pm.sample`` has no search for other modes.

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
    html = html_of(dt, model)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        draft = Path(folder, "whole")
        draft.write_text(html, encoding="utf-8", newline="\n")
        draft.replace(path)
    return path


def html_of(dt: Result, model: Model | None = None) -> str:
    """Return the contents of the report, equal for equal results."""
    dt = checked(dt)
    if "posterior" in dt.children:
        draws = dt["posterior"].sizes.get("draw", 0)
        if draws < 4:
            raise ValueError(f"the result has {draws} draws of each chain, too few to be summarised: draw at least 4")
        dt = with_numbers(dt)
    judgement = verdict(dt, model=model)
    table = summary(dt)
    body = [f'<p class="verdict {judgement.state.replace(" ", "-")}">{escape(judgement.sentence)}</p>']
    if judgement.reasons:
        reasons = pd.DataFrame(
            [[str(reason), reason.remedy] for reason in judgement.reasons],
            index=[reason.code for reason in judgement.reasons],
            columns=["finding", "remedy"],
        )
        body += _section("Reasons", reasons, len(reasons), "reasons")
    rows = _worst(table, _MOST_ROWS)
    body += _section("Estimates", _with_tails(dt, rows), len(table), "parameters")
    body += [f"<p>{escape(f'{COLUMNS}; {_COLUMNS}')}.</p>"]
    if "bias" in table:
        columns = ["mean", "mean_cv", "bias", "bias_se"]
        biases = summary(dt, kind="bias").loc[rows.index, columns]
        body += _section("Plain and corrected means of unadjusted draws", biases, len(table), "parameters")
    if "ladder" in dt.children:
        body += _ladder(dt["ladder"].to_dataset())
    body += _setting(dt)
    if "posterior" in dt.children:
        body += _figures(dt, table)
    template = Template(resources.files("pmm_mcmc.workbench").joinpath("page.html").read_text(encoding="utf-8"))
    return _IMPOSSIBLE.sub("\N{REPLACEMENT CHARACTER}", template.substitute(body="\n".join(body), version=__version__))


def _section(title: str, table: pd.DataFrame, count: int, rows: str) -> list[str]:
    """Return a heading and a table, with a note if it shows only some of ``count`` rows."""
    html = table.to_html(border=0, na_rep="\N{EN DASH}")
    note = [f"<p>{len(table)} of {count:,} {rows}: those that matter most.</p>"] if len(table) < count else []
    return [f"<h2>{title}</h2>", f'<div class="wide">{html}</div>', *note]


def _worst(table: pd.DataFrame, limit: int) -> pd.DataFrame:
    """Return at most ``limit`` rows of a summary, in their order: of each variable the largest r_hat, then others."""
    r_hat = table["r_hat"].astype(float).fillna(0.0).reset_index(drop=True)
    variables = pd.Series([label.partition("[")[0] for label in table.index], dtype=object)
    rank = r_hat.groupby(variables).rank(method="first", ascending=False)
    order = np.lexsort((-r_hat, rank > 1.0))
    return table.iloc[np.sort(order[:limit])]


def _with_tails(dt: xr.DataTree, table: pd.DataFrame) -> pd.DataFrame:
    """Return rows of a summary as texts, with what is said of tails and of gradients beside them."""
    wider = table.copy()
    if "posterior" in dt.children:
        draws = _by_label(dt["posterior"].to_dataset(), set(table.index))
        values = np.stack([draws[label].transpose("chain", "draw").values for label in table.index], axis=-1)
        axes = {"chain_axis": 0, "draw_axis": 1}
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of constants
            wider["ess_tail"] = az.ess(values, method="tail", prob=(0.05, 0.95), **axes)
            for name, prob in (("mcse_q5", 0.05), ("mcse_q95", 0.95)):
                errors = az.mcse(values, method="quantile", prob=prob, **axes)
                wider[name] = [f"{error:.2g}" for error in errors]
        gradients = _of_chains(dt, "n_grad_total")
        if gradients.size:
            wider["ess_per_grad"] = [f"{ess / gradients.sum():.2g}" for ess in table["ess_bulk"].astype(float)]
    return wider


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
    """Return the sections on how the run was made, and on what its chains sampled with."""
    group = dt["posterior"]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    library = f"{group.attrs.get('inference_library', '')} {group.attrs.get('inference_library_version', '')}".strip()
    facts = {"chains": f"{group.sizes['chain']:,}", "draws of each chain": f"{group.sizes['draw']:,}"}
    facts |= {label: str(group.attrs[name]) for name, label in _MADE.items() if name in group.attrs}
    run = read(dt)
    for name in ("sampler", "arguments") if run.steps else ():  # of PyMC's loop
        facts[name] = "; ".join(str(step[name]) for step in run.steps)
    facts |= {"adjusted": "yes" if run.adjusted else "no"} if run.of_package else {}
    facts |= {"made by": library} if library else {}
    facts |= {"reported with": ", ".join([f"pmm_mcmc {__version__}", *versions])}
    made = pd.DataFrame({"": facts})
    settings = {label: values for name, label in _SETTING.items() if (values := _of_chains(dt, name)).size}
    table = pd.DataFrame(
        [[f"{value:.4g}" for value in (v.min(), np.median(v), v.max())] for v in settings.values()],
        index=list(settings),
        columns=["least", "middle", "largest"],
    )
    note = str(group.attrs.get(WORDS, ""))
    return [
        *_section("How it was made", made, len(made), "facts"),
        *_section("Setting of the chains", table, len(table), "settings"),
        *([f"<p>{escape(note)}.</p>"] if note else []),
    ]


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
    """Return a section with figures of the worst parameter of each variable."""
    from matplotlib import pyplot as plt

    every = _drawn(dt, table)
    thin = slice(None, None, -(-dt["posterior"].sizes["draw"] // _MOST_DRAWS))
    drawn = every.isel(draw=thin, missing_dims="ignore")
    sizes = drawn["posterior"].sizes
    names = list(drawn["posterior"].data_vars)
    if not names:
        return []
    rows = -(-len(names) // 3)
    stats = list(drawn["sample_stats"].data_vars) if "sample_stats" in drawn.children else []
    plots: dict[str, Any] = {"trace": (az.plot_trace_dist, {}, 0.6 + 1.3 * len(names))}
    if sizes["chain"] > 1:
        plots["rank"] = (az.plot_rank, {"col_wrap": 3}, 0.4 + 2.2 * rows)
    plots["ess"] = (az.plot_ess_evolution, {"col_wrap": 3}, 0.4 + 2.2 * rows)
    by_chain = {"col_wrap": 3, "cols": ["__variable__"], "aes": {"color": ["chain"]}}
    plots["autocorr"] = (az.plot_autocorr, by_chain, 0.4 + 2.2 * rows)
    if len(names) > 1:
        r_hat = table["r_hat"].astype(float).loc[names]
        two = r_hat.sort_values(ascending=False, kind="stable").index[:2].tolist()
        marked = {"divergence": True} if "diverging" in stats else {}
        plots["pair"] = (az.plot_pair, {"var_names": two, "visuals": marked}, 4.0)
    if "energy" in stats:
        plots["energy"] = (az.plot_energy, {}, 3.0)
    html = ["<h2>Figures</h2>"]
    # Not shown in a notebook, and dollar signs in names start no mathematics.
    with plt.ioff(), plt.rc_context({"font.size": 9, "text.parse_math": False}):
        for name, (plot, options, height) in plots.items():
            tree = every if name in ("ess", "autocorr") else drawn
            plotted = plot(tree, backend="matplotlib", figure_kwargs={"figsize": (8.0, height)}, **options)
            figure = plotted.viz["figure"].item()
            figure.set_layout_engine("constrained")
            png = io.BytesIO()
            figure.savefig(png, format="png", dpi=110)
            plt.close(figure)
            data = base64.b64encode(png.getvalue()).decode("ascii")
            html.append(f'<p><img src="data:image/png;base64,{data}" alt="{name}"></p>\n<p>{_FIGURES[name]}</p>')
    limits = {"parameters": (len(names), len(table)), "chains": (sizes["chain"], dt["posterior"].sizes["chain"])}
    cut = [f"{shown} of {total:,} {what}" for what, (shown, total) in limits.items() if shown < total]
    return [*html, f"<p>Drawn are {' and '.join(cut)}.</p>"] if cut else html


def _drawn(dt: xr.DataTree, table: pd.DataFrame) -> xr.DataTree:
    """Return what is drawn: a variable for each parameter that moves, some chains, and the energy."""
    count = dt["posterior"].sizes["chain"]
    chains = np.unique(np.linspace(0, count - 1, min(count, _MOST_CHAINS)).round().astype(int))
    every = _by_label(dt["posterior"].to_dataset().isel(chain=chains), set(table.index))
    # Others have no density and no ranks.
    moving = [name for name, x in every.items() if np.isfinite(x).all() and np.ptp(x.values) > 0.0]
    shown = _worst(table.loc[[label for label in table.index if label in moving]], _MOST_DRAWN).index
    groups = {"posterior": xr.Dataset({label: every[label] for label in shown})}
    if "sample_stats" in dt.children:
        stats = dt["sample_stats"].to_dataset()
        groups["sample_stats"] = stats[[name for name in ("energy", "diverging") if name in stats]]
        groups["sample_stats"] = groups["sample_stats"].isel(chain=chains, missing_dims="ignore")
    return xr.DataTree.from_dict(groups)


def _by_label(posterior: xr.Dataset, labels: set[str]) -> dict[str, xr.DataArray]:
    """Return the draws of some parameters by their labels."""
    every = {}
    for name, selection, index in xarray_sel_iter(posterior, skip_dims={"chain", "draw"}):
        label = BaseLabeller().make_label_flat(name, selection, index)
        if label in labels:
            every[label] = posterior[name].isel(index).reset_coords(drop=True).astype(float)
    return every

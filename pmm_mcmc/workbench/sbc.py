"""``pmm.sbc``: simulation-based calibration."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import numpy as np
import pymc as pm
import xarray as xr
from arviz_stats.base import array_stats

from pmm_mcmc.api import Seed, Step, check_count, model_of
from pmm_mcmc.workbench.inputs import Inputs, Simulator
from pmm_mcmc.workbench.refit import FIGURES, Fit, Record, Study, table

_log = logging.getLogger("pmm_mcmc")

# Rate of false alarms of a study, over all its parameters.
_ALARMS = 0.05


def sbc(
    model: pm.Model | None = None,
    replicates: int = 1000,
    *,
    step: Step | None = None,
    var_names: Sequence[str] | None = None,
    random_seed: Seed | None = None,
    cores: int | None = None,
    store: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progressbar: bool = True,
) -> xr.DataTree:
    r"""Check a model with its sampler by simulation: draw parameters from the prior, simulate data, sample, rank.

    Where density and sampler are right, the rank of each parameter among its posterior draws is uniform [1]_.  Of a
    replicate with parameter :math:`\theta`, the draws :math:`\theta_1, \dots, \theta_L` of :func:`pmm_mcmc.refit` are
    thinned to its effective sample size :math:`L`, and with :math:`U` uniform on (0, 1)

    .. math:: v = \frac{\#\{\theta_l < \theta\} + U (1 + \#\{\theta_l = \theta\})}{L + 1}

    is uniform too.  A parameter fails if ArviZ's test of uniformity ("pot_c" [2]_, that of ``plot_ecdf_pit``) has a p
    value below :math:`0.05` over the number of parameters: of sound studies 6 to 7 % have an alarm (50 to 1,000
    replicates, 2,000 to 6,000 simulations of each).

    Parameters
    ----------
    model
        A PyMC model with observed data, of which shapes alone matter (default: that of the enclosing ``with``).  It can
        have no ``pm.Potential``, and no prior that cannot be drawn from.
    replicates
        Number of simulated data sets.
    step, var_names, random_seed, cores, store, resume, progressbar
        As for :func:`pmm_mcmc.refit`.  With ``resume``, more replicates than before may be asked for.

    Returns
    -------
    xarray.DataTree
        ``prior_sbc``, ``(1, replicate, *event)``: each :math:`v`, for ``arviz_plots.plot_ecdf_pit(dt)``, without failed
        replicates, of which a warning tells.  ``p_value`` of each parameter.  ``truth``, ``mean``, ``sd``, ``ess`` and
        ``r_hat``, ``(replicate, *event)``.  ``fits``: which replicates were not trusted, and why.  The attribute
        ``sentence`` is the outcome.

    Raises
    ------
    ValueError, StoreError
        As for :func:`pmm_mcmc.refit`; if nothing can be simulated from the model.

    References
    ----------
    .. [1] S. Talts, M. Betancourt, D. Simpson, A. Vehtari and A. Gelman, "Validating Bayesian inference algorithms with
       simulation-based calibration" (2018), arXiv:1804.06788.
    .. [2] H. Tesso et al., "LOO-PIT predictive model checking" (2026), arXiv:2603.02928.

    Examples
    --------
    >>> import pymc as pm, pmm_mcmc as pmm
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0, 1)
    ...     y = pm.Normal("y", mu, 1, observed=[0.0, 0.0, 0.0])
    >>> dt = pmm.sbc(model, 50, random_seed=1, cores=1, progressbar=False)
    >>> dt.attrs["sentence"].split(":")[0]
    'Calibrated'
    """
    check_count("replicates", replicates, 1)
    inputs = Inputs.of(model_of(model), simulated=True)
    simulator = Simulator(inputs)
    study = Study(
        inputs, step, var_names=var_names, random_seed=random_seed, cores=cores, store=store, resume=resume,
        progressbar=progressbar,
    )  # fmt: skip

    def task(i: int) -> Record:
        parameters, data = simulator([study.seed, i, 0])
        truth = np.concatenate([np.ravel(parameters[name]).astype(float) for name in study.names])

        def ranked(fit: Fit | None, shape: tuple[int, int]) -> Record:
            rng = np.random.default_rng([study.seed, i, 2])
            return {"truth": truth, "pit": np.full(shape[1], np.nan) if fit is None else pit(fit, truth, rng)}

        return study.fitted(i, data, ranked)

    records = study.records(task, int(replicates), {})
    ranked = [record for record in records if record["state"] != "failed"]
    figures = {name: study.dataset([r[name] for r in records], "replicate") for name in ("truth", *FIGURES)}
    if not ranked:
        raise RuntimeError(f"all {len(records)} replicates failed, the first for this: {records[0]['reason']}")
    values = np.stack([record["pit"] for record in ranked])
    p = np.asarray(array_stats.uniformity_test(values, axis=0)[0])
    tree = xr.DataTree.from_dict(
        {
            "prior_sbc": study.dataset(values[None], "chain", "draw"),
            "p_value": study.dataset(p[None], "test").isel(test=0),
        }
        | figures
        | {"fits": study.fits_of(records, "replicate")}
    )
    sentence = _sentence(values, p, study.labels, len(records) - len(ranked))
    tree.attrs = {
        "sentence": sentence, "calibrated": int(p.min() >= _ALARMS / len(p)), "random_seed": study.seed,
    }  # fmt: skip
    _log.log(logging.INFO if tree.attrs["calibrated"] else logging.WARNING, "%s", sentence)
    return tree


def pit(fit: Fit, truth: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the rank of the truth ``(p,)`` among nearly independent draws, as a number that is uniform on (0, 1)."""
    values = table(fit.draws)
    flat = values.reshape(-1, values.shape[2])
    thin = np.ceil(len(flat) / np.maximum(np.nan_to_num(fit.convergence.ess_bulk, nan=len(flat)), 1.0)).astype(int)
    below = np.empty((2, len(truth)))
    for step in np.unique(thin):
        some = thin == step
        draws = flat[step - 1 :: step, some]
        below[:, some] = np.stack([(draws < truth[some]).sum(axis=0), (draws == truth[some]).sum(axis=0)])
    return (below[0] + rng.uniform(size=len(truth)) * (1.0 + below[1])) / (len(flat) // thin + 1.0)


def _sentence(values: np.ndarray, p: np.ndarray, labels: Sequence[str], failed: int) -> str:
    """Return the outcome in words, with the direction in which the worst parameter is off."""
    limit = _ALARMS / len(p)
    end = f", {failed} failed" * bool(failed)
    worst = int(p.argmin())
    if p[worst] >= limit:
        return (
            f"Calibrated: ranks of {len(p)} parameters are uniform over {len(values)} replicates{end}; the least p is "
            f"{p[worst]:.2g} ({labels[worst]}), limit {limit:.2g}"
        )
    v = values[:, worst]
    shift = (v.mean() - 0.5) * np.sqrt(12.0 * len(v))
    spread = (((v - 0.5) ** 2).mean() - 1.0 / 12.0) * np.sqrt(180.0 * len(v))
    side = "too low" if shift > 0.0 else "too high"
    width = "too narrow" if spread > 0.0 else "too wide"
    off = side if abs(shift) > abs(spread) else width
    return (
        f"Not calibrated: ranks of {labels[worst]} are not uniform (p {p[worst]:.1g}, limit {limit:.2g}), its "
        f"posteriors are {off}; {int((p < limit).sum())} of {len(p)} parameters fail over {len(values)} replicates{end}"
    )

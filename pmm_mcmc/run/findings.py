"""What is looked for beside the draws, at the end of a run or by ``pmm.verdict``: other modes, labels, jumps, necks."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import xarray as xr
from pytensor.compile.mode import Mode
from pytensor.graph.replace import clone_replace

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.diagnostics import edges, necks, reading
from pmm_mcmc.diagnostics.checks import few_draws
from pmm_mcmc.diagnostics.labels import Exchange, Values, exchanges_of, nearest_to
from pmm_mcmc.diagnostics.mode_search import ModeSearch, SearchSpace, turned
from pmm_mcmc.diagnostics.parameters import evenly_spaced
from pmm_mcmc.diagnostics.reading import FINDINGS, NONCENTRING, WORDS, read
from pmm_mcmc.diagnostics.statement import Verdict
from pmm_mcmc.diagnostics.verdict import judge
from pmm_mcmc.engines import contract
from pmm_mcmc.model.checks import failing_check, flat_priors
from pmm_mcmc.model.functions import building
from pmm_mcmc.model.hierarchy import family_of
from pmm_mcmc.model.initial_points import initial_draws, prior_draws
from pmm_mcmc.model.result_tree import BLOCK_LOGP
from pmm_mcmc.run.beginning import Run, point_of
from pmm_mcmc.run.plan import SamplingPlan
from pmm_mcmc.run.request import Model, Request
from pmm_mcmc.warmup.ascent import Ascents, Density

# Draws by which it is known where the chains are, where each is relabelled.
_LABELLED = 1000
# Whitened distance of a maximum from that with other labels, above which these matter: ascents are .2 sd exact.
_APART = 0.5
# Gradients of the ascent from the highest draw.
_ASCENT = 60


def modes_and_labels(
    plan: SamplingPlan,
    x: np.ndarray,
    noncentring: np.ndarray | None,
    rng: np.random.Generator,
    coordinates: Coordinates | None = None,
) -> dict[str, Any]:
    """Return the findings: modes that draws ``x`` ``(n, d)``, the model's positions, are not in, and labels.

    ``noncentring`` and ``coordinates`` are those of the chains, if they are known.  A mode whose labels are others than
    those of the draws is none.
    """
    space = _space(plan, x, noncentring, coordinates)
    labelling = _Labelling(plan, space, x)
    if labelling.labels:
        x = x[np.linspace(0, len(x) - 1, min(_LABELLED, len(x))).astype(int)]
        space = _space(plan, labelling.nearest(x), noncentring, coordinates, labelling)
    prior = _draws_of_prior(plan, rng)
    modes, _ = ModeSearch(space, rng).run(prior)
    name = "" if modes.position is None else plan.layout.names[modes.coordinate]
    return {"modes": modes._replace(name=name)._asdict(), "labels": labelling.labels}


def _space(
    plan: SamplingPlan,
    x: np.ndarray,
    noncentring: np.ndarray | None,
    coordinates: Coordinates | None,
    labelling: _Labelling | None = None,
) -> SearchSpace:
    """Return the space of draws, in which other turns, signs of scales and labels are copies."""
    engine = plan.engine
    structure = engine.structure

    def copy(positions: np.ndarray) -> np.ndarray:
        positions = turned(positions, x[-1], engine.periods)
        return positions if labelling is None else labelling.nearest(positions)

    has_copies = engine.periods is not None or structure.signed.size or labelling is not None
    return SearchSpace(
        _density_of(engine, noncentring),
        turned(x, x[-1], engine.periods),
        to_z=lambda positions: structure.to_z(positions, noncentring)[0],
        to_x=lambda z: structure.to_x(z, noncentring),
        copy=copy if has_copies else None,
        coordinates=coordinates,
    )


def _density_of(engine: contract.Engine, noncentring: np.ndarray | None) -> Density:
    """Return the function of log densities and gradients at positions ``z``."""

    def density(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lp, evaluation = contract.evaluated_at(engine.evaluate, z, noncentring)
        return lp, evaluation[:, : engine.d]

    return density


class _Labelling:
    """The ``labels`` of a plan's variables that may be exchanged, and positions in one labelling.

    They lead from the highest maximum near draws ``x`` of a space to another place.
    """

    def __init__(self, plan: SamplingPlan, space: SearchSpace, x: np.ndarray):
        self._engine = plan.engine
        self._unconstraining = Unconstraining(plan)
        self.labels: Sequence[Exchange] = []
        if plan.attributes["precision"] != "float64":
            return
        some = space.draws[:: max(1, len(x) // 64)]
        start = some[[np.argmax(space.lp(some))]]
        maximum = Ascents.of(space.density, start, np.zeros(space.d), _ASCENT)
        place = space.place(maximum.position)
        self._pivot = self._unconstraining.values_at(place)
        # At the maximum too: far from what is narrow, that does not show whether it is symmetric.
        some_values = self._unconstraining.values_at(np.concatenate([x[[0, -1]], place]))
        exchanges = exchanges_of(some_values, self._log_density)
        self.labels = [one for one in exchanges if self._matters(one, space, maximum)]

    def _matters(self, exchange: Exchange, space: SearchSpace, maximum: Ascents) -> bool:
        """Return whether a maximum and the same with other labels are two: the density dips between.

        Within one mode it does not, wherever the ascent has ended, as of components that are independent and alike.
        """
        moved = space.whiten(self._unconstraining.of_values(exchange.moved(self._pivot, 0)))
        if np.linalg.norm(moved - maximum.position) <= _APART:
            return False
        between, _ = space.density(0.5 * (moved + maximum.position))
        return not between[0] >= maximum.lp[0]

    def nearest(self, x: np.ndarray) -> np.ndarray:
        """Return positions ``(n, d)`` in the labelling nearest to that of the maximum."""
        values = self._unconstraining.values_at(x)
        nearest, _ = nearest_to({name: array[0] for name, array in self._pivot.items()}, values, self.labels)
        other = np.zeros(len(x), bool)
        for name, array in nearest.items():
            other |= (array != values[name]).reshape(len(x), -1).any(axis=1)
        positions = np.array(x)
        positions[other] = self._unconstraining.of_values({name: array[other] for name, array in nearest.items()})
        return positions

    def _log_density(self, values: Values) -> np.ndarray:
        return contract.density_at(self._engine, self._unconstraining.of_values(values))[0]


_log = logging.getLogger("pmm_mcmc")

# Draws by which it is known where the chains are.
_DRAWS = 4000
# Draws beside which a check of the density may fail: it did beside 4 and 1 of 48 where chains had met it often.
_AROUND = 400
# Positions by which the degree of non-centring is reported.
_NEWEST = 1000


def attributes_of(plan: SamplingPlan, run: Run, draws: xr.DataArray | None, search: bool) -> dict[str, str]:
    """Return the attributes of a result, by its unconstrained ``draws`` ``(chain, draw, d)``.

    Other modes, jumps and necks are searched for if ``search``.
    """
    draws = draws if draws is not None and draws.sizes["draw"] else None
    searches: dict[str, Any] = {}
    if search and draws is not None:
        try:
            searches = _searches(plan, run, draws)
        except Exception:  # no error here may lose the draws
            _log.exception("Other modes, jumps and necks were not looked for, for an error in it; the draws are kept")
    if plan.free:
        searches["free"] = plan.free
        searches["block"] = plan.block
    return _noncentring_of(plan, run, draws) | {FINDINGS: json.dumps(searches)}


def _searches(plan: SamplingPlan, run: Run, draws: xr.DataArray) -> dict[str, Any]:
    """Return other modes, edges of the log density between draws and beyond them, and the necks beyond them."""
    engine = plan.engine
    coordinates = run.tuned.coordinates
    rng = np.random.default_rng(run.warming.ensemble.keys[0])
    noncentring = coordinates.density_parameters
    findings = modes_and_labels(plan, _some_of(draws, _DRAWS), noncentring, rng, coordinates)
    some = _some_of(draws, edges.DRAWS)
    findings |= _edges_at(plan, some)
    if run.unstable.any() and plan.model is not None:
        findings["check"] = _check_near(engine, plan.model, _some_of(draws, _AROUND))
    if plan.attributes["precision"] != "float64":
        return findings
    some = _some_of(draws, necks.MOST_DRAWS) if engine.d <= necks.MOST_COORDINATES else some
    z, _ = engine.structure.to_z(some, noncentring)
    return findings | {"necks": necks.necks_beyond(z, coordinates, _density_of(engine, noncentring))}


def _edges_at(plan: SamplingPlan, draws: np.ndarray) -> dict[str, Any]:
    """Return the largest jump of the log density between draws ``(n, d)``, a wall, and a line without an end."""

    def density(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return contract.density_at(plan.engine, x)

    rounding = {"float64": 1e-10}.get(plan.attributes["precision"], 1e-5)
    findings: dict[str, Any] = {"jump": edges.largest_jump(draws, density, rounding)}
    findings["wall"] = edges.has_wall(draws, density)
    if plan.model is None:
        return findings
    variables = [name.partition("[")[0] for name in plan.layout.names]
    flat = {plan.model.rvs_to_values[rv].name: rv for rv in flat_priors(plan.model)}
    axes = np.flatnonzero(np.isin(variables, list(flat)))
    logarithms = np.isin(variables, [name for name, rv in flat.items() if family_of(rv) == "HalfFlatRV"])
    without_end = edges.endless(draws, axes, logarithms, density)
    if without_end >= 0:
        name, bracket, index = plan.layout.names[without_end].partition("[")
        findings["endless"] = flat[name].name + bracket + index
    return findings


def _noncentring_of(plan: SamplingPlan, run: Run, draws: xr.DataArray | None) -> dict[str, str]:
    """Return the attributes that report what is non-centred, and to what degree."""
    structure = plan.engine.structure
    noncentring = run.tuned.coordinates.density_parameters
    if structure.is_identity or noncentring is None:
        return {}
    if draws is not None:
        newest = -(-_NEWEST // draws.sizes["chain"])
        x = draws[:_NEWEST, -newest:].values.reshape(-1, plan.engine.d)
    else:
        ensemble = run.warming.ensemble
        z = run.tuned.coordinates.place(contract.chains_of(ensemble.state).evaluated[:_NEWEST])
        x, _ = contract.in_model_coordinates(z, ensemble.evaluation[:_NEWEST])
    degree = {name: values.tolist() for name, values in structure.degree(x, noncentring).items()}
    return {NONCENTRING: json.dumps({"parameters": noncentring.tolist(), "degree": degree}), WORDS: structure.words}


def _some_of(draws: xr.DataArray, number: int) -> np.ndarray:
    """Return about ``number`` of the draws ``(chain, draw, d)``, from all of the chains and all of a run, as rows."""
    chains, rows = evenly_spaced(draws.sizes["chain"], draws.sizes["draw"], number)
    return np.asarray(draws.isel(chain=chains, draw=rows).values, dtype=float).reshape(-1, draws.shape[2])


def _draws_of_prior(plan: SamplingPlan, rng: np.random.Generator) -> np.ndarray:
    """Return draws ``(n, d)`` of the prior in the model's coordinates; of Stan's uniform starts if it has none."""
    key = rng.integers(2**62, size=2)
    if plan.model is not None:
        return prior_draws(plan.model, plan.model.value_vars, key)
    drawn = None if plan.density is None or plan.density.prior is None else plan.density.prior(key)
    return initial_draws(plan.engine.d, key) if drawn is None or not len(drawn) else drawn


def _check_near(engine: contract.Engine, model: pm.Model, draws: np.ndarray) -> tuple[str, str] | None:
    """Return a check of a model's log density that fails near draws ``(n, d)``, and what helps; None if none does."""
    if len(draws) < 2:
        return None
    near = draws + np.roll(draws, 1, axis=0) - np.roll(draws, 2, axis=0)
    bad = np.flatnonzero(~np.isfinite(contract.density_at(engine, near)[0]))
    return failing_check(model, point_of(model, near[bad[0]])) if bad.size else None


class Unconstraining:
    """The map from values of the free variables of a plan, by their ``names``, to its positions."""

    def __init__(self, plan: SamplingPlan):
        self._layout = plan.layout
        self._d = plan.engine.d
        values = plan.layout.values(np.zeros((1, 1, self._d)))
        self.names = list(values)
        self._position: Callable[[dict[str, np.ndarray]], np.ndarray] = lambda values: _raveled(values.values())
        start = None if plan.density is None else plan.density.start
        if plan.model is not None:
            function = unconstraining_of(plan.model)
            self.names = [rv.name for rv in plan.model.free_RVs]
            self._position = lambda values: _raveled(function(*values.values()))
        elif start is not None:
            self.names = [name for name in values if _is_free(start, name, values[name][0, 0])]
            self._position = start

    def values_at(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Return the values ``(n, *shape)`` by name at positions ``(n, d)``."""
        values = self._layout.values(x[None])
        return {name: values[name][0] for name in self.names}

    def of_values(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the positions ``(n, d)`` of values ``(n, *shape)`` by name, NaN where there is none."""
        arrays = [np.asarray(values[name]) for name in self.names]
        x = np.full((len(arrays[0]), self._d), np.nan)
        for i in range(len(x)):
            # A value may be outside of a support.
            with np.errstate(all="ignore"), contextlib.suppress(ValueError):
                x[i] = self._position({name: array[i] for name, array in zip(self.names, arrays, strict=True)})
        return x


def _raveled(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.ravel(array) for array in arrays])


def _is_free(start: Callable[..., np.ndarray], name: str, value: np.ndarray) -> bool:
    """Return whether a variable of the result is one of the density, by whether chains may start at its value."""
    try:
        start({name: value})
    except ValueError:
        return False
    return True


def unconstraining_of(model: pm.Model) -> Any:
    """Return a function from the values of a PyMC model's free variables to their unconstrained ones."""
    inputs = [rv.type(name=rv.name) for rv in model.free_RVs]
    transforms = [model.rvs_to_transforms[rv] for rv in model.free_RVs]
    outputs = [
        rv if transform is None else transform.forward(rv, *rv.owner.inputs)
        for rv, transform in zip(model.free_RVs, transforms, strict=True)
    ]
    with building():
        outputs = clone_replace(outputs, dict(zip(model.free_RVs, inputs, strict=True)), rebuild_strict=False)
        mode = Mode(linker="py", optimizer=None)
        return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")


# Draws by which it is known where the chains are, for which positions are computed one by one.
_COMPUTED = 1000


def verdict(dt: xr.DataTree | xr.Dataset, *, model: Model | None = None) -> Verdict:
    """Say in one sentence whether a run may be trusted and, if not, what fails and what to do.

    A run is **not trusted** if something is wrong: chains disagree; transitions diverged, or a chain stands still; the
    Stein identity fails, as it does where chains have not entered an arm or a tail; another mode has more than a
    hundredth of the mass.

    It is **undecided** if nothing wrong is seen, but the draws cannot show that nothing is: there are fewer than 20, or
    one chain; the standard error of a mean exceeds 0.05 posterior standard deviations; the standard deviation of a free
    variable is known to worse than 5 %, where gradients explain neither it nor the mean; equilibration did not end; a
    neck beyond the draws has a hundredth more of the mass than of the draws, by prediction; or, with a ladder, weights
    rest on too few restarts, or its estimates of the evidence differ.

    Otherwise it is **trusted**, and the percentage is two standard errors of the mean that is known worst.  Modes that
    neither a chain nor the search for modes has met are not seen.

    Unadjusted draws are **not trusted** also if too many transitions were unstable, or if the bias of a mean or a
    standard deviation exceeds 0.075 posterior standard deviations (of a mean, with the share that the correction did
    not remove).  They are **undecided** also if no bias could be measured.

    Parameters
    ----------
    dt
        A result of any sampler; one of another sampler is judged by draws and divergences alone.
    model
        The model of the result, a PyMC model or a :class:`pmm_mcmc.LogDensity`: with it other modes, jumps and walls
        are looked for by its density, from some of the draws, if that has not been done at the end of the run.  It
        takes about 2,000 gradients, and seconds where the density is compiled for it.

    Returns
    -------
    Verdict
        ``state``, ``trusted``, ``sentence``, ``reasons``; a notebook shows them.

    Raises
    ------
    TypeError, ValueError
        If ``dt`` is no result of sampling, or of another model; the message has the remedy.

    Notes
    -----
    If there are more than 300 parameters, the verdict judges the first, up to 200 free variables, and of the others up
    to 100 that differ most between batches; of unadjusted draws the first, twice as many as there are coordinates.
    """
    run = read(dt)
    if model is not None and "modes" not in run.findings and few_draws(run) is None:
        findings = _searched(run, model)
        run = read(dt, [Exchange(*record) for record in findings["labels"]])
        run.findings.update(findings)
    return judge(run)


def _searched(run: reading.Run, model: Model) -> dict[str, Any]:
    """Return the findings of a search for other modes, labels and edges beside some of the draws."""
    plan = SamplingPlan.of(Request(model=model, random_seed=0))
    chains, rows = evenly_spaced(run.chains, run.draws, _COMPUTED)
    positions = run.stats.get("unconstrained")
    if positions is not None and BLOCK_LOGP not in run.stats:  # those of a Gaussian block are not kept
        x = np.asarray(positions.isel(chain=chains, draw=rows).values, dtype=float)
        x = x.reshape(-1, x.shape[-1])
    else:
        unconstraining = Unconstraining(plan)
        posterior = run.posterior.isel(chain=chains, draw=rows)
        missing = [name for name in unconstraining.names if name not in posterior]
        if missing:
            raise ValueError(f"dt: has no {missing[0]!r}, a variable of the model; give the model of the result")
        arrays = {name: posterior[name].transpose("chain", "draw", ...).values for name in unconstraining.names}
        x = unconstraining.of_values({name: array.reshape(-1, *array.shape[2:]) for name, array in arrays.items()})
    if x.shape[1] != plan.engine.d:
        raise ValueError(f"model: has {plan.engine.d} coordinates, and dt {x.shape[1]}; give the model of the result")
    some = x[np.linspace(0, len(x) - 1, min(edges.DRAWS, len(x))).astype(int)]
    findings = modes_and_labels(plan, x, contract.start_noncentring(plan.engine), np.random.default_rng(0))
    return findings | _edges_at(plan, some)

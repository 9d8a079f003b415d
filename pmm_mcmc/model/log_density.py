"""A PyMC model as a flat log density with its gradient, compiled for the engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
from pymc.logprob.transforms import CircularTransform
from pymc.pytensorf import compile, make_shared_replacements, rewrite_pregrad
from pymc.util import get_value_vars_from_user_vars
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType

from pmm_mcmc.coordinates.structure import Structure
from pmm_mcmc.model.checks import check_free, missing_data
from pmm_mcmc.model.hierarchy import compose
from pmm_mcmc.model.initial_points import initial_point
from pmm_mcmc.model.model_cache import model_cache, state_of
from pmm_mcmc.model.native import address_table, native_function
from pmm_mcmc.model.products import numba_mode
from pmm_mcmc.model.split_density import SplitDensity, concatenate

__all__ = ["ModelDensity", "bad_start_message", "choose_vars", "flat_layout", "log_density", "periods_of"]


def choose_vars(vars: Any, model: pm.Model) -> list[Any]:
    """Return the value variables to sample, from random or value variables, or ``None`` for all continuous ones.

    Raises
    ------
    ValueError
        If a variable belongs to another model or is discrete, or if there is nothing to sample.
    """
    check_free(model)
    if vars is None:
        chosen = list(model.continuous_value_vars)
        if not chosen:
            raise ValueError(
                "the model has no continuous variable: a Langevin sampler has nothing to sample; "
                "leave step= out and PyMC will assign samplers for discrete variables"
            )
        return chosen
    chosen = list(vars) if isinstance(vars, list | tuple) else [vars]
    for var in chosen:
        if var not in model.value_vars and var not in model.free_RVs:
            names = ", ".join(rv.name for rv in model.free_RVs)
            raise ValueError(f"vars: {var} is not a free variable of this model, which has: {names}")
    chosen = get_value_vars_from_user_vars(chosen, model)
    for var in chosen:
        if var not in model.continuous_value_vars:
            raise ValueError(
                f"vars: {var.name} is discrete ({var.dtype}) and has no gradient: leave it out, and PyMC will "
                "assign it a sampler of its own"
            )
    return chosen


def flat_layout(
    vars: Sequence[Any], point: dict[str, np.ndarray]
) -> tuple[tuple[str, tuple[int, ...], int, np.dtype], ...]:
    """Return name, shape, size and dtype of each variable within the flat vector."""
    return tuple((v.name, np.shape(point[v.name]), int(np.size(point[v.name])), np.dtype(v.dtype)) for v in vars)


def periods_of(vars: Sequence[Any], model: pm.Model) -> np.ndarray | None:
    """Return the periods ``(d,)`` of coordinates that are angles, 0 of others; None if no coordinate is one."""
    point = initial_point(model)
    transforms = [model.rvs_to_transforms[model.values_to_rvs[var]] for var in vars]
    periods = [
        np.full(np.size(point[var.name]), 2.0 * np.pi * isinstance(transform, CircularTransform))
        for var, transform in zip(vars, transforms, strict=True)
    ]
    joined_periods = np.concatenate(periods) if periods else np.empty(0)
    return joined_periods if joined_periods.any() else None


def bad_start_message(model: pm.Model, point: dict[str, np.ndarray]) -> str:
    """Return an error message that names the variables whose log density is not finite at a point."""
    missing = missing_data(model, point)
    if missing:
        return missing
    terms = model.point_logps(point, round_vals=4)
    bad = {name: value for name, value in terms.items() if not np.all(np.isfinite(value))}
    names = ", ".join(f"{name} ({value})" for name, value in bad.items()) or "none by itself: only the gradient"
    return (
        "the log density or its gradient is not finite at the initial point. Terms that are not finite: "
        f"{names}. Start elsewhere with pm.sample(initvals=...), or look at model.debug()"
    )


def _check_inputs(logp: Any) -> None:
    """Raise if a log density is random (Minibatch) or has shared data that the engine cannot pass by address."""
    for node in ancestors([logp]):
        shared = isinstance(node, SharedVariable)
        random = node.owner is not None and isinstance(node.owner.op, RandomVariable)
        if random or (shared and isinstance(node.type, RandomType)):
            raise ValueError(
                "the log density of the model is random: it depends on a Minibatch or an unobserved draw, and every "
                "gradient would differ; use the whole data (pm.Data)"
            )
        if shared and not isinstance(node.get_value(borrow=True), np.ndarray):
            raise ValueError(
                f"shared variable {node.name} holds a {type(node.get_value(borrow=True)).__name__}, not an array: "
                "make it a constant of the model, or dense"
            )


class ModelDensity:
    """The log density of a model as a function of some of its variables, raveled to one vector of length ``d``.

    The constructor derives the gradient, and raises ``ValueError`` if there is none; it compiles nothing.

    Variables that are not among ``vars`` enter as shared values (:attr:`others`), data as shared inputs that
    :meth:`table` reads before each run.

    Attributes
    ----------
    d : int
        Number of unconstrained coordinates.
    structure : Structure
        The non-centring that the functions apply, if requested and the model has children to non-centre.
    width : int
        Length of an evaluation: see :mod:`pmm_mcmc.engines.contract`.
    others : dict
        Shared variables of the model's other value variables, by name.
    """

    def __init__(
        self,
        vars: Sequence[Any],
        model: pm.Model,
        point: dict[str, np.ndarray],
        noncentring: Mapping[str, str] | None = None,
    ):
        self.layout = flat_layout(vars, point)
        self.d = sum(size for _, _, size, _ in self.layout)
        replacements = make_shared_replacements(point, list(vars), model)
        self.others = {var.name: shared for var, shared in replacements.items()}
        logp = rewrite_pregrad(model.logp())
        _check_inputs(logp)
        try:
            density = SplitDensity.of(vars, self.layout, logp, replacements)
        except Exception as error:
            names = ", ".join(var.name for var in vars)
            raise ValueError(
                f"the log density of the model has no gradient with respect to {names}: {error}. Give the operation in "
                "question a gradient, or sample these variables with pm.Slice or pm.DEMetropolisZ"
            ) from error
        self._flat = density.flat()
        logp, gradients = density.at(density.cut(self._flat))
        gradient = concatenate(gradients)
        self._outputs = {"joint": [logp, gradient], "gradient": [gradient]}
        self.structure = Structure.identity(self.d)
        self.density_parameters: SharedVariable | None = None
        if noncentring and self.others:
            raise ValueError(
                f"reparametrise={dict(noncentring)!r}: variables are non-centred only by a step that moves all of the "
                "model; leave it out"
            )
        if noncentring is not None and not self.others and self.d:
            start = np.concatenate([np.ravel(point[var.name]) for var in vars]).astype(float)
            composed = compose(model, vars, self.layout, density, start, noncentring)
            if composed is not None:
                self.structure, self._flat, lp, slope, evaluation, self.density_parameters = composed
                self._outputs = {"joint": [lp, evaluation], "gradient": [slope]}
        self.width = self.structure.width
        self._shared: dict[str, list[SharedVariable]] = {}
        self._held: dict[str, list[tuple[Any, Any]]] = {}
        self._native: dict[str, Any] = {}
        self.jax: Any = None  # the LogDensity of the same model, once a run on JAX has compiled it
        self.tape: Any = None  # the same on a tape, once a run asked for it

    @property
    def graph(self) -> tuple[Any, list[Any]]:
        """The flat input, with log density and evaluation as graphs of it."""
        return self._flat, self._outputs["joint"]

    @property
    def compiled(self) -> bool:
        """Whether the C function ``"joint"`` is there already."""
        return "joint" in self._native

    def function(self, output: str) -> Any:
        """Return the C function ``"joint"`` or ``"gradient"``, compiled at the first call."""
        if output not in self._native:
            compiled = compile(
                [self._flat], self._outputs[output], mode=numba_mode(), trust_input=True, on_unused_input="ignore"
            )
            self._shared[output] = compiled.get_shared()
            self._native[output] = native_function(
                compiled, self._flat.dtype, self._values(output), output == "joint",
                self.width if output == "joint" else self.d,
            )  # fmt: skip
            # The machine code behind the pointer lives as long as this function.
            self._native[output].owner = compiled
        return self._native[output]

    def _values(self, output: str) -> list[np.ndarray]:
        """Return shared data as C-contiguous arrays; a copy is kept as long as the data are the same object."""
        values = [shared.get_value(borrow=True) for shared in self._shared[output]]
        held = self._held.get(output, [(None, None)] * len(values))
        arrays = [
            old if value is source else np.asarray(value, order="C")
            for value, (source, old) in zip(values, held, strict=True)
        ]
        self._held[output] = list(zip(values, arrays, strict=True))
        return arrays

    def table(self, output: str, density_parameters: np.ndarray | None = None) -> np.ndarray:
        """Return addresses and shapes of the current shared data and parameters: arrays that live as long as it."""
        values = self._values(output)
        if self.density_parameters is not None and density_parameters is not None:
            numbers = np.ascontiguousarray(density_parameters, dtype=self.density_parameters.type.dtype)
            values = [
                numbers if shared is self.density_parameters else value
                for shared, value in zip(self._shared[output], values, strict=True)
            ]
        return address_table(values)


def log_density(
    vars: Sequence[Any], model: pm.Model, point: dict[str, np.ndarray], noncentring: Mapping[str, str] | None = None
) -> ModelDensity:
    """Return the log density of a model in its current state, compiled once for each choice of variables and process.

    ``noncentring`` maps random variables to ``"centred"`` or ``"noncentred"``; others are learnt.  None disables
    non-centring.
    """
    choices = None if noncentring is None else tuple(sorted(noncentring.items()))
    key = state_of(model, vars), flat_layout(vars, point), choices
    densities: dict[tuple, ModelDensity] = model_cache(model, "log density")
    if key not in densities:
        densities[key] = ModelDensity(vars, model, point, noncentring)
    return densities[key]

"""The reference of a comparison: exact moments, a user's draws, or a long run of NUTS."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from pmm_mcmc.model.result_tree import flat_names
from pmm_mcmc.warmup.standard_errors import spread

__all__ = ["Truth", "model_labels", "truth_of_draws", "truth_of_target", "unconstrained_draws"]


@dataclass(frozen=True)
class Truth:
    """Known moments of each unconstrained coordinate, and draws if there are any.

    Attributes
    ----------
    mean, sd, second_moment, square_variance
        E[x], its standard deviation, E[x^2] and Var[x^2], each ``(d,)``.
    error, error_of_sd
        Standard errors of mean and standard deviation, ``(d,)``; zero where they are exact.
    exact
        Whether the moments are exact.
    source
        A sentence about the origin of the reference.
    draws : (n, d) or None
        Independent draws, or those of chains one after the other.
    warning
        A reason to doubt the reference, if there is one.
    """

    mean: np.ndarray
    sd: np.ndarray
    second_moment: np.ndarray
    square_variance: np.ndarray
    error: np.ndarray
    error_of_sd: np.ndarray
    exact: bool
    source: str
    draws: np.ndarray | None
    warning: str | None = None


def truth_of_target(target: Any, rng: np.random.Generator) -> Truth:
    """Return the reference of a target, with exact draws if the target can make them."""
    known = target.reference
    nothing = np.zeros(target.ndim)
    # A user's target may lack the errors of its second moments.
    error_of_sd = nothing if known.exact else np.nan_to_num(known.error_of_sd)
    return Truth(
        known.mean,
        known.sd,
        known.second_moment,
        known.square_variance,
        nothing if known.error is None else known.error,
        error_of_sd,
        known.exact,
        known.source,
        target.sample(20_000, rng),  # for distances and figures
    )


def truth_of_draws(position: np.ndarray, source: str, warning: str | None = None) -> Truth:
    """Return a reference from unconstrained draws ``(chain, draw, d)``: moments with their errors.

    Raises
    ------
    ValueError
        If there are too few draws, a draw is not finite, or a coordinate is constant.
    """
    chains, draws, d = position.shape
    if chains * draws < 100:
        raise ValueError(f"reference: {chains} x {draws} draws are too few; bring at least 100")
    if not np.all(np.isfinite(position)):
        raise ValueError("reference: some draws are not finite on the unconstrained scale; leave them out")
    mean, sd = position.mean(axis=(0, 1)), position.std(axis=(0, 1))
    if not np.all(sd > 0):
        raise ValueError(f"reference: coordinate {int(np.argmin(sd))} is the same in all draws; bring draws that vary")
    square = position**2
    keep = -(-chains * draws // 40_000)  # more draws make distances and figures no better
    return Truth(
        mean,
        sd,
        square.mean(axis=(0, 1)),
        square.var(axis=(0, 1)),
        spread(position),
        spread((position - mean) ** 2) / (2.0 * sd),
        False,
        source,
        position[:, ::keep].reshape(-1, d),
        warning,
    )


def model_labels(model: Any) -> list[str]:
    """Return labels of a model's unconstrained coordinates, such as ``school[A]``, or ``log tau`` for a logarithm."""
    point, labels = model.initial_point(0), []
    for value in model.continuous_value_vars:
        variable = model.values_to_rvs[value]
        transform = model.rvs_to_transforms.get(variable)
        name = variable.name if transform is None else f"{str(transform.name).replace('_', ' ')} {variable.name}"
        shape = np.shape(point[value.name])
        known = [model.coords.get(dim) for dim in model.named_vars_to_dims.get(variable.name, ())]
        # A transform may remove a coordinate, and a dim may have no names.
        if len(shape) and tuple(len(each or ()) for each in known) == shape:
            labels += [f"{name}[{', '.join(map(str, index))}]" for index in product(*known)]
        else:
            labels += flat_names([(name, shape)])
    return labels


def unconstrained_draws(dt: Any, model: Any) -> np.ndarray:
    """Return the draws of a result on the unconstrained scale of a model: ``(chain, draw, d)``.

    Raises
    ------
    TypeError
        If it is not a result with a group ``posterior``.
    ValueError
        If it lacks a variable of the model, or has it in another shape.
    """
    if "posterior" not in getattr(dt, "children", ()):
        raise TypeError(
            f"reference={type(dt).__name__}: must be a DataTree with a group 'posterior' (what pm.sample returns), "
            "'nuts' for a long run, or None"
        )
    d = sum(int(np.size(value)) for value in _values_of(model).values())
    stats = dt["sample_stats"] if "sample_stats" in dt.children else {}
    if "unconstrained" in stats and stats["unconstrained"].shape[-1] == d:
        return np.asarray(stats["unconstrained"].values, dtype=float)
    posterior = dt["posterior"]
    missing = [variable.name for variable in model.free_RVs if variable.name not in posterior]
    if missing:
        raise ValueError(f"reference: it has no draws of {', '.join(missing)}: bring draws of all variables")
    given = [np.asarray(posterior[variable.name].values, dtype=float) for variable in model.free_RVs]
    forward = _forward(model)
    chains, draws = given[0].shape[:2]
    try:
        flat = [
            np.concatenate([np.ravel(part) for part in forward(*(value[c, t] for value in given))])
            for c in range(chains)
            for t in range(draws)
        ]
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"reference: its draws do not fit the model ({error}); bring draws of this model, with these data"
        ) from error
    if flat[0].size != d:
        raise ValueError(f"reference: its draws have {flat[0].size} coordinates, the model has {d}")
    return np.array(flat).reshape(chains, draws, d)


def _values_of(model: Any) -> dict[str, Any]:
    point = model.initial_point(0)
    return {value.name: point[value.name] for value in model.value_vars}


def _forward(model: Any) -> Any:
    """Compile the map from values of the random variables, in the order of ``free_RVs``, to unconstrained ones."""
    import pytensor
    from pytensor.graph.replace import graph_replace

    inputs = {variable: variable.type(name=variable.name) for variable in model.free_RVs}
    of_value = {model.rvs_to_values[variable]: variable for variable in model.free_RVs}
    outputs = []
    for value in model.continuous_value_vars:
        variable = of_value[value]
        transform = model.rvs_to_transforms[variable]
        outputs.append(
            inputs[variable] if transform is None else transform.forward(inputs[variable], *variable.owner.inputs)
        )
    outputs = graph_replace(outputs, inputs, strict=False)
    return pytensor.function(list(inputs.values()), outputs, on_unused_input="ignore")

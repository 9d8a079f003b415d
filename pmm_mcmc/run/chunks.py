"""The named arrays of a chunk of draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from pmm_mcmc.engines.arguments import TunedParameters
from pmm_mcmc.engines.contract import Chunk

if TYPE_CHECKING:
    from pmm_mcmc.run.plan import SamplingPlan

__all__ = ["Gathered", "Groups", "groups_of"]

Groups = dict[str, dict[str, np.ndarray]]


def groups_of(plan: SamplingPlan, chunk: Chunk, tuned: TunedParameters, n_grad: np.ndarray, prefix: str) -> Groups:
    """Return values and statistics of a chunk of draws by group and name; ``n_grad`` are gradients before it."""
    d = plan.engine.d
    x = chunk.model_position
    q, gradient = plan.engine.structure.diagnostic_coordinates(
        chunk.position, chunk.evaluation[..., :d], tuned.coordinates.density_parameters
    )
    groups = {prefix + name: values for name, values in plan.values(x, bool(prefix)).items()}
    everything: dict[str, Callable[[], Any]] = {
        "n_grad": lambda: chunk.n_grad,
        "n_steps": lambda: chunk.n_grad,
        "n_grad_total": lambda: n_grad[:, None] + np.cumsum(chunk.n_grad, axis=1),
        "unstable": lambda: chunk.unstable,
        "diverging": lambda: chunk.unstable > 0,
        "model_failures": lambda: chunk.model_failures,
        "lp": lambda: chunk.lp,
        "acceptance_rate": lambda: chunk.accept,
        # Control variates need no more than single precision.
        "gradient": lambda: gradient.astype(np.float32) if plan.adjusted else gradient,
        "unconstrained": lambda: x,
        "noncentred": lambda: q,
    }
    groups[prefix + "sample_stats"] = {name: everything[name]() for name in plan.statistics}
    return groups


class Gathered:
    """The arrays of a chunk, filled from batches of chains and parts of the draws."""

    def __init__(self, chains: int, rows: int):
        self._shape = chains, rows
        self.groups: Groups = {}

    def put(self, chains: slice, start: int, groups: Groups) -> None:
        """Insert arrays ``(chain, n, ...)`` of some chains, from draw ``start`` on."""
        for group, arrays in groups.items():
            destination = self.groups.setdefault(group, {})
            for name, values in arrays.items():
                if values.shape[:2] == self._shape:
                    destination[name] = values
                    continue
                if name not in destination:
                    destination[name] = np.empty((*self._shape, *values.shape[2:]), values.dtype)
                destination[name][chains, start : start + values.shape[1]] = values

    def upto(self, rows: int) -> Groups:
        """Return the first ``rows`` draws."""
        if rows == self._shape[1]:
            return self.groups
        return {
            group: {name: values[:, :rows] for name, values in arrays.items()} for group, arrays in self.groups.items()
        }

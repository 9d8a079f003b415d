"""Models of posteriordb against its reference draws: ``python -m benchmarks scoreboard.check PATH [name ...]``.

``PATH`` is a checkout of github.com/stan-dev/posteriordb.  Every model of ``posteriordb.py`` is evaluated at reference
draws.  If model and reference are of one posterior, Stein's identities hold: the mean of each unconstrained
coordinate's gradient g is 0 and that of (x - E x) g is -1.  Printed is the largest deviation of a model in standard
errors; beyond ``LIMIT`` it fails.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import xarray as xr
from make_references import flat_draws
from scoreboard.posteriordb import POSTERIORS
from scoreboard.truth import flat_labels
from stan.database import Program, programs

# Standard errors: chance exceeds it about once in 40 checks of all models, of 800 figures.
LIMIT = 4.2
CHECKED = 2000


def by_variable(program: Program) -> dict[str, np.ndarray]:
    """Return reference draws by variable, ``(chain, draw, *shape)``."""
    chains = program.reference_draws()
    draws: dict[str, list[np.ndarray]] = {}
    for label in chains[0]:
        draws.setdefault(label.partition("[")[0], []).append(np.array([chain[label] for chain in chains]))
    return {name: of[0] if name in chains[0] else np.stack(of, axis=-1) for name, of in draws.items()}


def worst_deviation(posterior: str, draws: dict[str, np.ndarray]) -> tuple[float, str]:
    """Return the largest deviation from Stein's identities in standard errors, and where it is."""
    held = POSTERIORS[posterior]
    model = held.build()
    variables = {
        name: (("chain", "draw", *(f"{name}_dim_{k}" for k in range(values.ndim - 2))), values)
        for name, values in {**draws, **(held.free(draws) if held.free else {})}.items()
    }
    x = flat_draws(model, xr.DataTree.from_dict({"posterior": xr.Dataset(variables)}))
    x = x.reshape(-1, x.shape[-1])
    x = x[:: max(1, len(x) // CHECKED)]
    evaluate = model.logp_dlogp_function(ravel_inputs=True, mode=held.mode)
    evaluate.set_extra_values({})
    g = np.array([evaluate(np.array(row))[1] for row in x])
    off = (g, (x - x.mean(axis=0)) * g + 1.0)
    z = np.array([part.mean(axis=0) / (part.std(axis=0) / np.sqrt(len(x))) for part in off])
    which, j = np.unravel_index(np.argmax(np.abs(z)), z.shape)
    return float(z[which, j]), f"{('gradient', 'virial')[which]} of {flat_labels(model)[j]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="a checkout of posteriordb")
    parser.add_argument("names", nargs="*", metavar="name", help="posteriors (default: all)")
    asked = parser.parse_args()
    database, failed = programs(asked.path), 0
    for name in asked.names or POSTERIORS:
        z, where = worst_deviation(name, by_variable(database[name]))
        failed += abs(z) > LIMIT
        print(f"{name:50s} {z:+6.2f}  {where}{'  FAILS' if abs(z) > LIMIT else ''}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

"""Write ``tests/support/references.json``: moments of the posteriors in ``models.py`` by long runs of NUTS.

Takes about ten minutes: ``PYTHONPATH=benchmarks/common python tests/support/make_model_references.py [name ...]``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
from models import MODELS

PATH = Path(__file__).parent / "references.json"
DRAWS = {"galaxies": 40_000}


def main(names: list[str]) -> None:
    references = json.loads(PATH.read_text()) if PATH.exists() else {}
    for name in names or MODELS:
        with MODELS[name]():
            tree = pm.sample(
                draws=DRAWS.get(name, 10_000),
                tune=2000,
                chains=4,
                cores=2,
                random_seed=1,
                nuts_sampler="pymc",
                target_accept=0.95,
                progressbar=False,
            )
        posterior = tree["posterior"].dataset
        entry = {}
        for variable in posterior.data_vars:
            entry[variable] = {
                "mean": np.ravel(posterior[variable].mean(("chain", "draw"))).tolist(),
                "sd": np.ravel(posterior[variable].std(("chain", "draw"))).tolist(),
                "mcse_mean": np.ravel(az.mcse(posterior[variable], method="mean")).tolist(),
                "mcse_sd": np.ravel(az.mcse(posterior[variable], method="sd")).tolist(),
            }
        references[name] = entry
        print(name, "largest r_hat", max(float(az.rhat(posterior[v]).max()) for v in posterior.data_vars), flush=True)
        PATH.write_text(json.dumps(references, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

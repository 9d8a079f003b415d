"""Data and reference moments of posteriordb, from a clone of it: ``python -m benchmarks scoreboard.snapshot PATH``.

``PATH`` is a git directory of github.com/stan-dev/posteriordb (BSD 3-Clause, its licence is beside the data).  Of each
posterior with reference draws, the data go to ``scoreboard/data``, and mean, standard deviation and second moment of
every parameter, with their Monte Carlo errors, to ``results/posteriordb.json``.

``--check`` writes nothing: it evaluates every model of ``posteriordb.py`` at reference draws.  If model and reference
are of one posterior, Stein's identities hold: the mean of each unconstrained coordinate's gradient g is 0 and that of
(x - E x) g is -1.  It prints the largest deviation of a model in standard errors, and fails beyond ``LIMIT``.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import re
import subprocess
import sys
import zipfile
from typing import Any

import numpy as np
import xarray as xr
from make_references import flat_draws
from posteriors import moments
from scoreboard.posteriordb import DATA, FAMILY, POSTERIORS
from scoreboard.truth import PATHS, Truth, kept

from pmm_mcmc.model.result_tree import flat_names

ROOT = "posterior_database"
# Standard errors: chance exceeds it about once in 40 checks of all models, of 800 figures.
LIMIT = 4.2
CHECKED = 2000


class Snapshot:
    """Files of a clone, read from its last commit."""

    def __init__(self, path: str):
        self.path = path

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""
        command = ["git", "-C", self.path, "show", f"HEAD:{name}"]
        return subprocess.run(command, check=True, capture_output=True).stdout

    def record(self, name: str) -> Any:
        """Return what a JSON file of the database holds."""
        return json.loads(self.read(f"{ROOT}/{name}.json"))

    def zipped(self, name: str) -> Any:
        """Return what a zipped JSON file of the database holds."""
        with zipfile.ZipFile(io.BytesIO(self.read(f"{ROOT}/{name}.json.zip"))) as archive:
            return json.loads(archive.read(archive.namelist()[0]))

    def commit(self) -> str:
        """Return the commit that is read."""
        command = ["git", "-C", self.path, "rev-parse", "HEAD"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def reference_of(self, posterior: str) -> str:
        """Return the name of the reference of a posterior."""
        return self.record(f"posteriors/{posterior}")["reference_posterior_name"]

    def draws(self, posterior: str) -> dict[str, np.ndarray]:
        """Return reference draws by variable, ``(chain, draw, *shape)``."""
        name = self.reference_of(posterior)
        chains = self.zipped(f"reference_posteriors/draws/draws/{name}")
        parts: dict[str, list[np.ndarray]] = {}
        for label in chains[0]:
            parts.setdefault(label.partition("[")[0], []).append(np.array([chain[label] for chain in chains]))
        scalar = {label for label in chains[0] if not re.search(r"\[", label)}
        return {name: found[0] if name in scalar else np.stack(found, axis=-1) for name, found in parts.items()}


def tree_of(draws: dict[str, np.ndarray]) -> xr.DataTree:
    variables = {
        name: (("chain", "draw", *(f"{name}_dim_{k}" for k in range(values.ndim - 2))), values)
        for name, values in draws.items()
    }
    return xr.DataTree.from_dict({"posterior": xr.Dataset(variables)})


def summary(draws: dict[str, np.ndarray]) -> Truth:
    """Return the moments of reference draws."""
    found, labels, x = moments(tree_of(draws), list(draws))
    square = x**2
    return Truth(tuple(draws), labels, **found, second=square.mean((0, 1)), variance_of_square=square.var((0, 1)))


def published(snapshot: Snapshot, name: str) -> Truth:
    """Return the moments that posteriordb publishes, of draws that the snapshot lacks."""
    folder = "reference_posteriors/summary_statistics"
    first, second = (snapshot.record(f"{folder}/{kind}/{kind}/{name}") for kind in ("mean_value", "mean_squared_value"))
    labels = [re.sub(r"\[(\d+)\]", lambda found: f"[{int(found[1]) - 1}]", label) for label in first["names"]]
    mean, se = (np.array(first[key]) for key in ("mean_value", "mcse_mean"))
    square, se_square = (np.array(second[key]) for key in ("mean_squared_value", "mcse_mean"))
    sd = np.sqrt(square - mean**2)
    names = tuple(dict.fromkeys(label.partition("[")[0] for label in labels))
    return Truth(names, labels, mean, sd, se, np.hypot(se_square, 2 * mean * se) / (2 * sd), square)


def write(snapshot: Snapshot) -> None:
    """Write data and moments of every posterior that has a model here."""
    DATA.mkdir(exist_ok=True)
    (DATA / "LICENCE.md").write_bytes(snapshot.read("LICENCE.md"))
    references: dict[str, Any] = {}
    for posterior in POSTERIORS:
        about = snapshot.record(f"posteriors/{posterior}")
        content = json.dumps(snapshot.zipped(f"data/data/{about['data_name']}"), separators=(",", ":"))
        # Without a time, so that the same data are the same bytes.
        (DATA / f"{about['data_name']}.json.gz").write_bytes(gzip.compress(content.encode(), 9, mtime=0))
        try:
            references[posterior] = kept(summary(snapshot.draws(posterior)))
        except subprocess.CalledProcessError:  # a snapshot may lack its largest files
            references[posterior] = kept(published(snapshot, snapshot.reference_of(posterior)))
        print(posterior, flush=True)
    source = f"reference draws of github.com/stan-dev/posteriordb, commit {snapshot.commit()}"
    lines = [f" {json.dumps(name)}: {json.dumps(entry)}" for name, entry in {"source": source, **references}.items()]
    PATHS[FAMILY].write_text("{\n" + ",\n".join(lines) + "\n}\n")


def worst_deviation(posterior: str, draws: dict[str, np.ndarray]) -> tuple[float, str]:
    """Return the largest deviation from Stein's identities in standard errors, and where it is."""
    held = POSTERIORS[posterior]
    model = held.build()
    free = {**draws, **(held.free(draws) if held.free else {})}
    x = flat_draws(model, tree_of(free))
    x = x.reshape(-1, x.shape[-1])
    x = x[:: max(1, len(x) // CHECKED)]
    evaluate = model.logp_dlogp_function(ravel_inputs=True, mode=held.mode)
    evaluate.set_extra_values({})
    g = np.array([evaluate(np.array(row))[1] for row in x])
    off = (g, (x - x.mean(axis=0)) * g + 1.0)
    z = np.array([part.mean(axis=0) / (part.std(axis=0) / np.sqrt(len(x))) for part in off])
    which, j = np.unravel_index(np.argmax(np.abs(z)), z.shape)
    point = model.initial_point(0)
    labels = flat_names([(var.name, np.shape(point[var.name])) for var in model.continuous_value_vars])
    return float(z[which, j]), f"{('gradient', 'virial')[which]} of {labels[j]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="git directory of a clone of posteriordb")
    parser.add_argument("names", nargs="*", metavar="name", help="with --check: posteriors (default: all)")
    parser.add_argument("--check", action="store_true", help="hold models against reference draws; write nothing")
    given = parser.parse_args()
    snapshot = Snapshot(given.path)
    if not given.check:
        write(snapshot)
        return 0
    failed = 0
    for name in given.names or POSTERIORS:
        try:
            draws = snapshot.draws(name)
        except subprocess.CalledProcessError:
            print(f"{name:50s}  no draws in the snapshot", flush=True)
            continue
        z, where = worst_deviation(name, draws)
        failed += abs(z) > LIMIT
        print(f"{name:50s} {z:+6.2f}  {where}{'  FAILS' if abs(z) > LIMIT else ''}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

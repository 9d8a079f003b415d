"""Stan programs with data and references, in the folders of posteriordb; those of ``programs`` are written here."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import stanli
from posteriors import R_HAT, diagnosed, moments_of
from scoreboard.truth import Truth, kept

from pmm_mcmc.doors.stan import stan_program

HERE = Path(__file__).parent / "programs"
# Ten times as many draws as by default, with shorter steps; converged by its own account, it is a reference.
LONG = {"chains": 4, "warmup": 2_000, "samples": 10_000, "delta": 0.99, "seed": 99, "refresh": 0}
DIVERGING = 1e-4  # the share of draws after a divergence that such a run may have
LEAPFROG, DIVERGENT = 4, 5  # columns of stanli's statistics


@dataclass(frozen=True)
class Program:
    """A program with data."""

    name: str
    root: Path
    model: str
    data_name: str
    reference_name: str | None

    @property
    def file(self) -> Path:
        """The program."""
        return self.root / "models" / "stan" / f"{self.model}.stan"

    @property
    def data(self) -> dict[str, Any]:
        """Its data."""
        return _json(self.root / "data" / "data" / f"{self.data_name}.json")

    def nuts(self, **options: Any) -> Any:
        """Return a fit of Stan's NUTS."""
        return stanli.Model(stan_file=self.file, data=self.data).sample(**options)

    @property
    def labels(self) -> list[str]:
        """The parameters, such as ``theta[1,2]``."""
        model = stan_program(str(self.file), self.data)[0]
        return [bracketed(label) for label in model.param_names()]

    def reference_draws(self) -> list[dict[str, list[float]]] | None:
        """Return posteriordb's draws of each chain by parameter, where it has some."""
        path = self.root / "reference_posteriors" / "draws" / "draws" / f"{self.reference_name}.json"
        there = path.exists() or path.with_suffix(".json.zip").exists()
        return _json(path) if there else None

    def truth(self) -> Truth | None:
        """Return the moments of posteriordb's reference draws, or of a long run of NUTS, which is kept beside them.

        None where that has not converged.
        """
        chains = self.reference_draws()
        if chains is not None:
            labels = [label for label in self.labels if label in chains[0]]
            draws = np.array([[chain[label] for label in labels] for chain in chains]).swapaxes(1, 2)
            return Truth((), labels, **moments_of(draws))
        path = self.root / "long_runs" / f"{self.name}.json"
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text("null")  # of a run that takes too long
            path.write_text(json.dumps(self._of_long_run()))
        entry = json.loads(path.read_text())
        if entry is None:
            return None
        return Truth((), entry["labels"], *(np.array(entry[name]) for name in ("mean", "sd", "mcse_mean", "mcse_sd")))

    def _of_long_run(self) -> dict[str, Any] | None:
        fit = self.nuts(**LONG)
        labels = self.labels
        draws = np.stack([fit.draws(label) for label in labels], axis=-1)
        converged = np.isfinite(draws).all() and fit.divergences.sum() <= DIVERGING * draws[..., 0].size
        if not converged or diagnosed(draws)["r_hat"] > R_HAT:
            return None
        return kept(Truth((), labels, **moments_of(draws)))


def bracketed(label: str) -> str:
    """Return ``b[2,3]`` for ``b.2.3``."""
    name, _, index = label.partition(".")
    return f"{name}[{index.replace('.', ',')}]" if index else name


def nuts_gradients(fit: Any, warmup: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients of each draw ``(chain, draw)`` and of each warm-up ``(chain,)``, which was saved."""
    steps = fit.sampler_stats[..., LEAPFROG]
    return steps[:, warmup:], steps[:, :warmup].sum(axis=1)


def programs(path: Path) -> dict[str, Program]:
    """Return the programs of a database, or of a checkout of posteriordb, by name.

    Raises
    ------
    ValueError
        If there are none.
    """
    root = next((folder for folder in (path, path / "posterior_database") if (folder / "posteriors").is_dir()), None)
    if root is None:
        raise ValueError(f"{path}: must be a checkout of posteriordb, which has posterior_database/posteriors")
    entries = {file.stem: json.loads(file.read_text()) for file in sorted((root / "posteriors").glob("*.json"))}
    return {
        name: Program(name, root, entry["model_name"], entry["data_name"], entry.get("reference_posterior_name"))
        for name, entry in entries.items()
    }


def _json(path: Path) -> Any:
    if path.exists():
        return json.loads(path.read_text())
    with zipfile.ZipFile(path.with_suffix(".json.zip")) as archive:
        return json.loads(archive.read(archive.namelist()[0]))

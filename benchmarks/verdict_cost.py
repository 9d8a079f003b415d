"""What a verdict and a summary cost beside the run that they are of: ``python benchmarks/verdict_cost.py``.

An ordinal regression, ``pm.OrderedLogistic``, of which PyMC stores the probability of each category for each datum as
deterministics, unasked: 10,000 scalars beside 10 free ones.
"""

from __future__ import annotations

import argparse
import resource
import threading
import time
from typing import Any

import numpy as np
import pymc as pm

import pmm_mcmc as pmm

CATEGORIES, PREDICTORS = 4, 7


def model_of(data: int) -> pm.Model:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(data, PREDICTORS))
    latent = x @ np.linspace(-1.0, 1.0, PREDICTORS) + rng.logistic(size=data)
    with pm.Model() as model:
        slopes = pm.Normal("slopes", shape=PREDICTORS)
        cuts = pm.Normal(
            "cuts", 0, 3, shape=CATEGORIES - 1, transform=pm.distributions.transforms.ordered,
            initval=np.linspace(-1.0, 1.0, CATEGORIES - 1),
        )  # fmt: skip
        pm.OrderedLogistic("y", eta=x @ slopes, cutpoints=cuts, observed=np.digitize(latent, [-1.5, 0.0, 1.5]))
    return model


class Peak:
    """Seconds of all cores, and the most memory beyond what was there before: looked at every few milliseconds."""

    def __enter__(self) -> Peak:
        self._before, self._most, self._stop = _resident(), 0, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        self._began = time.process_time()
        return self

    def _look(self) -> None:
        while not self._stop.wait(0.005):
            self._most = max(self._most, _resident())

    def __exit__(self, *_: Any) -> None:
        self.seconds = time.process_time() - self._began
        self._stop.set()
        self._thread.join()
        self.megabytes = max(0, self._most - self._before) / 2**20


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=int, default=2500, help="four deterministics each (default: 2500)")
    data = parser.parse_args().data
    model = model_of(data)
    print(f"{4 * data} deterministics, 4 chains of 1000 draws    CPU seconds  beside the run   MiB above the result")
    began = time.process_time()
    result = pmm.sample(
        model=model, backend="numba", random_seed=1, progressbar=False, compute_convergence_checks=False
    )
    run = time.process_time() - began
    print(f"  {'pmm.sample':46}{run:12.1f}")
    for name, function in (
        ("pmm.verdict", lambda: pmm.verdict(result)),
        ("pmm.summary of the free variables, after it", lambda: pmm.summary(result, ["slopes", "cuts"])),
        ("pmm.summary of all", lambda: pmm.summary(result)),
        ("pmm.summary once more", lambda: pmm.summary(result)),
    ):
        with Peak() as peak:
            function()
        print(f"  {name:46}{peak.seconds:12.1f}{peak.seconds / run:15.0%}{peak.megabytes:20.0f}")
    print(pmm.verdict(result).sentence)


if __name__ == "__main__":
    main()

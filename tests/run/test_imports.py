"""What a default run imports: packages that take longer than a short run are loaded where they are needed."""

import json
import subprocess
import sys

_RUN = """
import json, sys
import pymc as pm
import pmm_mcmc as pmm
with pm.Model():
    pm.Normal("x")
    pmm.sample(50, tune=100, progressbar=False, random_seed=1)
print(json.dumps(sorted({"arviz_stats", "jaxlib", "scipy.stats", "zarr"} & set(sys.modules))))
"""


def test_a_default_run_with_its_verdict_loads_neither_jax_nor_the_slow_parts_of_scipy_and_arviz():
    printed = subprocess.run([sys.executable, "-c", _RUN], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed.splitlines()[-1]) == []

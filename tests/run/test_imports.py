"""What a default run imports: packages that take longer than a short run are loaded where they are needed."""

import json
import subprocess
import sys

_RUN = """
import json, sys
sys.modules |= dict.fromkeys(sys.argv[1:])  # as if these were not installed
import pymc as pm
import pmm_mcmc as pmm
with pm.Model():
    pm.Normal("x")
    for progressbar in (False, True):
        pmm.sample(50, tune=100, progressbar=progressbar, random_seed=1)
    try:
        refused = ""
        pmm.sample(50, store="run.zarr") if sys.argv[1:] else None
    except ImportError as error:
        refused = str(error)
print(refused)
print(json.dumps(sorted({"arviz_stats", "jaxlib", "scipy.stats", "zarr"} & set(sys.modules))))
"""


def printed(*missing):
    return subprocess.run([sys.executable, "-c", _RUN, *missing], capture_output=True, text=True, check=True).stdout


def test_a_default_run_with_its_verdict_loads_neither_jax_nor_the_slow_parts_of_scipy_and_arviz():
    assert json.loads(printed().splitlines()[-1]) == []


def test_zarr_is_needed_by_stores_alone_and_its_extra_is_named():
    refused = printed("zarr", "numcodecs", "google_crc32c").splitlines()[-2]
    assert refused == "run.zarr: a store needs zarr: pip install 'pmm-mcmc[store]', or leave store= out"

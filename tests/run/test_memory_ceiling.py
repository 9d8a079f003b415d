"""Memory of a run with 10,000 chains and 25 parameters in a store: what ``pmm.sample`` says it is at most.

A draw of all chains, with gradient and statistics, is 6.4 MB; the 100 of these runs are 640 MB, so that a run that kept
its chunks would be seen.
"""

import pytest

from pmm_mcmc.run import plan, recorders

pytestmark = pytest.mark.process

CHAINS, D, DRAWS = 10_000, 25, 100
# MB.  The notes of pmm.sample: the chunk in hand, the chains that advance at a time, 20 d numbers for each chain, and
# 100 MiB on JAX.
CEILING = (recorders._CHUNK_BYTES + plan._BATCH_BYTES + 8 * 20 * D * CHAINS + 100 * 2**20) / 1e6

SCRIPT = """
import json, resource, sys, tempfile
import jax.numpy as jnp
import pmm_mcmc as pmm

chains, d, draws = {numbers}
unit = 1e-6 if sys.platform == "darwin" else 1.024e-3
model = pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2), d)


def peak(**options):
    options = dict(chains=chains, draws=draws, tune=60) | options
    tree = pmm.sample(
        step=pmm.ULMC(steps_per_draw=1), model=model, random_seed=1, progressbar=False,
        compute_convergence_checks=False, **options,
    )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, tree


# One group of chains first, so that what compiling needs is not counted.
before, _ = peak(chains=250, draws=4)
with tempfile.TemporaryDirectory() as folder:
    stored, tree = peak(store=folder + "/run")
    size = sum(a.nbytes for group in ("posterior", "sample_stats") for a in tree[group].data_vars.values())
print(json.dumps([stored - before, size / 1e6]))
"""


def test_memory_stays_under_what_is_said_of_it(run_script):
    found, errors = run_script(SCRIPT.replace("{numbers}", repr((CHAINS, D, DRAWS))))
    assert found is not None, errors[-2000:]
    stored, size = found
    print(f"MB beyond the start: {stored:.0f} with a store; the draws are {size:.0f}")
    assert size > 1.3 * CEILING, "chunks that are kept must be seen"
    assert stored < CEILING

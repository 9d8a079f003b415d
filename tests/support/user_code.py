"""Code of a user, with types, that calls every public name; ``tests/repository/test_user_types.py`` has it checked.

Each ``reveal_type`` is followed by the type that a user may rely on; tables of pandas have one where its stubs are
installed.  The lines of ``wrong`` must be reported, as the error behind each.
"""

from pathlib import Path
from typing import reveal_type

import xarray as xr

import pmm_mcmc as pmm
from pmm_mcmc import workbench


def stop(chunk: object) -> None:
    raise pmm.StopSampling


def steps() -> list[pmm.PoissonULMC | pmm.PoissonOLMC | pmm.OLMC | pmm.ULMC | pmm.RLMC | pmm.GHMC | pmm.MALA]:
    return [
        pmm.PoissonULMC(K=16, step_size=0.5), pmm.PoissonOLMC(), pmm.OLMC(), pmm.ULMC(),
        pmm.RLMC(dynamics="underdamped"), pmm.GHMC(), pmm.MALA(),
    ]  # fmt: skip


def density() -> pmm.LogDensity:
    reveal_type(pmm.LogDensity.from_jax(lambda x: x.sum(), 3))  # LogDensity
    reveal_type(pmm.LogDensity.from_numpyro(stop, 1, y=2))  # LogDensity
    reveal_type(pmm.LogDensity.from_pointer(1, 3, thread_safe=True))  # LogDensity
    found = pmm.LogDensity.from_bridgestan(None)
    reveal_type(found.d)  # int
    return found


def run(path: Path) -> xr.DataTree:
    dt = pmm.sample(step=pmm.PoissonULMC(), draws=500, model=density(), chains=8, store=path, callback=stop)
    reveal_type(dt)  # DataTree
    reveal_type(pmm.open(path))  # DataTree
    reveal_type(pmm.extend(dt, "auto", model=density()))  # DataTree
    reveal_type(pmm.temper(100, chains=48, model=density(), backend=pmm.Jax(device="cpu")))  # DataTree
    return dt


def read(dt: xr.DataTree, path: Path) -> bool:
    pmm.summary(dt, var_names=["x"])
    pmm.expectation(dt, lambda posterior: posterior["x"] ** 2)
    reveal_type(pmm.relabel(dt))  # DataTree
    reveal_type(pmm.refit(None, [{"y": [1.0]}]))  # DataTree
    reveal_type(pmm.sbc(replicates=10))  # DataTree
    reveal_type(pmm.noncentring(dt))  # Dataset
    found = pmm.verdict(dt)
    reveal_type(found.trusted)  # bool
    reveal_type(found.sentence)  # str
    reveal_type(workbench.report(dt, path, model=density()))  # Path
    reveal_type(pmm.__version__)  # str
    return found.trusted


def compared(dt: xr.DataTree) -> workbench.Comparison:
    try:
        target = workbench.targets.get("banana")
        reveal_type(target.ndim)  # int
        return workbench.compare(target, [pmm.PoissonULMC(), pmm.temper, dt, "nuts"], seeds=3, reference=dt)
    except pmm.StoreError:
        raise


def wrong(dt: xr.DataTree) -> None:
    pmm.sampel()  # attr-defined
    workbench.compere()  # attr-defined
    pmm.PoissonULMC(k=16)  # call-arg
    pmm.sample(draws="many")  # arg-type
    print(pmm.verdict(dt).state.trusted)  # attr-defined
    len(pmm.LogDensity.from_jax(lambda x: x.sum(), "3"))  # arg-type arg-type

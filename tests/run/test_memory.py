"""Memory that is left, from files as Linux has them, and memory that a run needs."""

import os
import tracemalloc

import numpy as np
import pymc as pm
import pytest

import pmm_mcmc as pmm
from pmm_mcmc.run import recorders
from pmm_mcmc.run.recorders import available_bytes

MB = 1_000_000
RUN = {"backend": "numba", "random_seed": 1, "progressbar": False}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A made-up Linux machine with 8192 kB available: ``machine({path: text})`` adds files."""
    monkeypatch.setattr(recorders, "_ROOT", tmp_path)

    def write(files):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(text))

    write({"proc/meminfo": "MemTotal:       16384 kB\nMemFree:         1024 kB\nMemAvailable:    8192 kB\n"})
    return write


def v2(group, limit, used, stat="anon 5\ninactive_file 0\n", name=None):
    """Files of a group of version 2, of which the process says that it is in group ``name``."""
    files = {"memory.max": limit, "memory.current": used, "memory.stat": stat}
    here = {"proc/self/cgroup": f"0::{group if name is None else name}\n"}
    return here | {f"sys/fs/cgroup{group}/{file}": text for file, text in files.items()}


def v1(said, limit, used, stat="inactive_file 7\ntotal_inactive_file 0\n"):
    """Files of the group ``/job`` of version 1, and what the process says of its groups."""
    files = {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used, "memory.stat": stat}
    return {"proc/self/cgroup": f"{said}\n"} | {
        f"sys/fs/cgroup/memory/job/{file}": text for file, text in files.items()
    }


@pytest.mark.parametrize(
    ("files", "left"),
    [
        # version 2
        (v2("/job", 5 * MB, 2 * MB), 3 * MB),
        ({}, 8192 * 1024),
        (v2("/job", "max\n", 2 * MB), 8192 * 1024),
        (v2("/job", 50 * MB, 2 * MB), 8192 * 1024),
        # what is cached can be had back
        (v2("/job", 5 * MB, 4 * MB, f"inactive_file {2 * MB}\n"), 3 * MB),
        # the limit is that of a group above
        (v2("/job", 6 * MB, 5 * MB) | v2("/job/step", 6 * MB, 4 * MB) | v2("/job/step/task", "max", 3 * MB), 1 * MB),
        # a container's own name for its group, and one that is the host's
        (v2("", 4 * MB, 1 * MB, name="/"), 3 * MB),
        (v2("", 4 * MB, 2 * MB, name="/docker/abc"), 2 * MB),
        (v2("/job", 2 * MB, 3 * MB), 0),
        # version 1, beside an empty version 2
        (v1("9:cpu:/x\n4:memory:/job\n0::/", 5 * MB, 1 * MB), 4 * MB),
        (v1("4:memory:/job", 5 * MB, 4 * MB, f"total_inactive_file {MB}\n"), 2 * MB),
        # a group of something else has no say, whatever its name
        (v1("9:cpu:/job", 5 * MB, 1 * MB), 8192 * 1024),
        # a name with colons, as systemd has them
        (v2("/a:b:c", 5 * MB, 2 * MB), 3 * MB),
    ],
)
def test_control_groups(machine, files, left):
    machine(files)
    assert available_bytes() == left


def test_a_limit_without_statistics_counts_all_as_used(machine, tmp_path):
    machine(v2("/job", 5 * MB, 2 * MB))
    (tmp_path / "sys/fs/cgroup/job/memory.stat").unlink()
    assert available_bytes() == 3 * MB


@pytest.mark.parametrize(
    ("pages", "left"),
    [
        ({"SC_AVPHYS_PAGES": 100, "SC_PHYS_PAGES": 900}, 409_600),
        ({"SC_PHYS_PAGES": 900}, 3_686_400),
        ({"SC_AVPHYS_PAGES": -1, "SC_PHYS_PAGES": 900}, 3_686_400),
        ({}, None),
    ],
)
def test_other_systems(monkeypatch, tmp_path, pages, left):
    values = {**pages, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(recorders, "_ROOT", tmp_path)
    monkeypatch.setattr(os, "sysconf_names", dict.fromkeys(values, 0), raising=False)
    monkeypatch.setattr(os, "sysconf", values.__getitem__, raising=False)
    assert available_bytes() == left


def test_limits_hold_where_the_machine_says_nothing(machine, tmp_path):
    machine(v2("/job", 5 * MB, 2 * MB))
    (tmp_path / "proc/meminfo").unlink()
    assert available_bytes() == 3 * MB


# -- what a run needs -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    with pm.Model() as model:
        pm.Normal("x", 0.0, np.linspace(1.0, 2.0, 40), shape=40)
    pmm.sample(chains=2, draws=40, tune=30, model=model, **RUN)  # compiles, and imports what a verdict needs
    return model


@pytest.mark.parametrize(("chains", "draws"), [(200, 200), (2000, 20)])
def test_the_peak_is_predicted_within_a_fifth(model, monkeypatch, chains, draws):
    predicted, predict = [], recorders.peak_bytes
    monkeypatch.setattr(recorders, "peak_bytes", lambda *a, **k: predicted.append(predict(*a, **k)) or predicted[-1])
    tracemalloc.start()
    try:
        pmm.sample(chains=chains, draws=draws, model=model, **RUN)
        measured = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert predicted[0] == pytest.approx(measured, rel=0.2), f"{predicted[0] / 2**20:.0f}, {measured / 2**20:.0f} MiB"
    assert measured > 30 * 2**20


def test_a_large_run_says_what_it_needs(model, monkeypatch, caplog):
    monkeypatch.setattr(recorders, "_LARGE", 0)
    with caplog.at_level("DEBUG", "pmm_mcmc"):
        pmm.sample(chains=2, draws=8, tune=30, model=model, **RUN)
    assert any(record.getMessage().startswith("Memory: about ") for record in caplog.records)


def test_a_warm_up_alone_can_be_too_large(model, monkeypatch):
    monkeypatch.setattr(recorders, "available_bytes", lambda: 2 * 10**6)
    with pytest.raises(ValueError, match=r"of memory; 2\.0 MB are available"):
        pmm.sample(chains=64, draws=1, model=model, **RUN)


def test_what_is_most_of_the_draws_is_named(monkeypatch):
    with pm.Model() as model:
        b = pm.Normal("b", shape=2)
        pm.Deterministic("p", pm.math.sigmoid(np.linspace(-1.0, 1.0, 1000) * b[0]))
    monkeypatch.setattr(recorders, "available_bytes", lambda: 10**6)
    words = r"p has 1000 of these numbers: leave it out \(var_names=\['b'\]\) and compute it afterwards, with pm"
    with pytest.raises(ValueError, match=words):
        pmm.sample(chains=4, draws=100, model=model, **RUN)
    # The remedy.
    monkeypatch.setattr(recorders, "available_bytes", lambda: 10**7)
    assert list(pmm.sample(chains=4, draws=100, var_names=["b"], model=model, **RUN)["posterior"]) == ["b"]


def test_gradients_that_are_most_of_the_draws_are_named(model, monkeypatch):
    monkeypatch.setattr(recorders, "available_bytes", lambda: 10**6)
    with pytest.raises(ValueError, match=r"leave the gradients out \(step=pmm\.GHMC\(keep_gradients=False\)\)"):
        pmm.sample(chains=4, draws=2000, tune=0, step=pmm.GHMC(step_size=0.5, friction=1.0), model=model, **RUN)

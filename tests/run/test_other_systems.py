"""A run on a system that has nothing of POSIX: no such module, function or signal, folders that cannot be opened."""

import pytest

pytestmark = pytest.mark.process

# What the packages below need of the system they have imported before it is taken away.
SCRIPT = """
import errno, json, os, signal, sys, types
import arviz, concurrent.futures, jax, matplotlib.pyplot, multiprocessing, numba, numpy as np, pandas
import pymc, rich.live, rich.progress, scipy.linalg, scipy.optimize, scipy.stats, tempfile, xarray, zarr

matplotlib.use("agg")
for name in ("fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
for name in (
    "O_DIRECTORY", "fork", "getuid", "geteuid", "killpg", "nice", "sched_getaffinity", "setsid", "sysconf",
    "sysconf_names", "statvfs", "uname", "waitpid",
):
    delattr(os, name)
for name in ("SIGALRM", "SIGHUP", "SIGKILL", "SIGUSR1", "pthread_kill", "pthread_sigmask", "setitimer", "alarm"):
    delattr(signal, name)


os.O_BINARY, opened = 1 << 30, os.open


def open_as_windows(path, flags, *rest, **options):
    if str(path).startswith(FOLDER):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        assert flags & os.O_BINARY or path.endswith(".pmm/lock"), path
    return opened(path, flags & ~os.O_BINARY, *rest, **options)


os.open = open_as_windows

import pmm_mcmc as pmm
from numba import types as t

numbers = t.CPointer(t.double)

@numba.cfunc(t.intc(t.size_t, numbers, numbers, numbers, t.voidptr))
def normal(n, x, gradient, value, data):
    value[0] = 0.0
    for i in range(n):
        gradient[i] = -x[i]
        value[0] -= 0.5 * x[i] * x[i]
    return 0


density = pmm.LogDensity.from_pointer(normal, 2, thread_safe=True)
run = dict(model=density, tune=200, chains=4, random_seed=1, progressbar=False)
store = FOLDER + "/run.zarr"
refused = []

def again(chunk):
    if not refused:
        try:
            pmm.sample(draws=40, store=store, resume=True, **run)
        except pmm.StoreError as error:
            refused.append(str(error))

pmm.sample(draws=20, store=store, callback=again, **run)
stored = pmm.sample(draws=40, store=store, resume=True, **run)
whole = pmm.sample(draws=40, **run)
page = pmm.workbench.report(whole, os.path.dirname(FOLDER) + "/report.html")
print(json.dumps({
    "same": bool((stored["posterior"]["x"].values == whole["posterior"]["x"].values).all()),
    "refused": refused, "page": page.stat().st_size > 1000, "verdict": pmm.verdict(whole).state,
    "read": pmm.open(store)["posterior"].sizes["draw"],
}))
"""


def test_a_run_is_stored_resumed_and_reported_without_posix(run_script, tmp_path):
    said, errors = run_script(f"FOLDER = {str(tmp_path / 'stores')!r}\nimport os\nos.mkdir(FOLDER)\n{SCRIPT}")
    assert said, errors
    assert said["same"] and said["page"] and said["read"] == 40, said
    assert len(said["refused"]) == 1 and "another" in said["refused"][0], said

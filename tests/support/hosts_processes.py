"""Two processes under ``jax.distributed`` on the loopback that share one run; one of them is killed.

Started as a script, which has no threads and so may fork before JAX begins: ``hosts_processes.py FOLDER`` prints what
it found, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time

import jax
import store_runs
from kill_processes import finish, hear, where_it_stands
from store_processes import child, compare

import pmm_mcmc as pmm
from pmm_mcmc.engines import jax_engine
from pmm_mcmc.run import recorders

ROWS, DRAWS = 8, 40
PATIENCE = 60  # seconds in which the other process has to notice
SLOW = 0.2


def sample(index, count, port, path, slow_from, pipe):
    """Be one of the processes of a run."""
    import jax.numpy as jnp

    left = [slow_from]

    def tell(drawn):
        os.write(pipe, b"w" if drawn.tuning else b"s")
        left[0] -= 1
        time.sleep(SLOW * (left[0] < 0))

    if count > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    jax_engine._GROUP_CPU, recorders._MOST_ROWS = 4, ROWS
    tree = pmm.sample(
        step=pmm.PoissonULMC(K=16),
        model=pmm.LogDensity.from_jax(lambda x: -0.5 * jnp.sum(x**2) - 0.1 * jnp.sum(x**4), 3),
        draws=DRAWS,
        tune=160,
        chains=18,
        random_seed=3,
        discard_tuned_samples=False,
        progressbar=False,
        compute_convergence_checks=False,
        store=path,
        resume=True,
        callback=tell,
    )
    posterior = tree["posterior"]
    os.write(pipe, f"|{posterior.sizes['draw']} {posterior['x'].values.tobytes().hex()[:400]}".encode())
    if count > 1:
        jax.distributed.shutdown()  # as at the exit of an interpreter: the first process waits for the other


def start(path, count, slow_from=10**9):
    """Begin the processes of a run; return their ids with the pipes that they tell."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for index in range(count):
        ours, theirs = os.pipe()
        started.append((child(sample, index, count, port, path, slow_from, theirs), ours))
        os.close(theirs)
    return started


def together(path, count, wanted):
    """Run or go on to the end; return what each process said of the result, its status, and what differs."""
    ends = [finish(*one) for one in start(path, count)]
    said = [text.partition("|")[2] for text, _ in ends]
    return {"said": said, "status": [status for _, status in ends], "differences": compare(path, wanted)}


def kill(path, which, chunks):
    """Kill one of two processes after so many chunks; return how both ended, and at what."""
    started = start(path, 2, chunks - 1)
    process, pipe = started[which]
    hear(pipe, chunks)
    os.kill(process, signal.SIGKILL)
    _, killed = finish(process, pipe)
    other, pipe = started[1 - which]
    said = hear(pipe, seconds=PATIENCE)
    os.kill(other, signal.SIGKILL)  # of no effect if it has ended
    os.close(pipe)
    status = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
    return {"killed": killed, "other": status, "said": said, "phase": where_it_stands(path)[0]}


def main(folder):
    whole, two, killed = (os.path.join(folder, name) for name in ("whole", "two", "killed"))
    (one,) = [finish(*process) for process in start(whole, 1)]
    wanted = store_runs.files(whole)
    out = {"result": one[0].partition("|")[2], "two": together(two, 2, wanted)}
    out["kill"] = kill(killed, 1, 8)
    out["resumed"] = together(killed, 2, wanted)
    print(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1])

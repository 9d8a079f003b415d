"""Several processes: the same draws as one, whatever starts them, and errors that reach the caller.  Bit for bit."""

import pytest

pytestmark = [pytest.mark.pymc, pytest.mark.process, pytest.mark.longest]

# A file with a guarded main part, since spawned processes import it.
SCRIPT = """
import json
import numpy as np, pymc as pm, pmm_mcmc as pmm

QUIET = dict(progressbar=False, quiet=True, compute_convergence_checks=False)


def run(step, **options):
    options = dict(tune=150, draws=150, chains=2, cores=2, random_seed=11, discard_tuned_samples=False) | options
    dt = pm.sample(step=step, **QUIET, **options)
    groups = ("posterior", "warmup_posterior", "sample_stats", "warmup_sample_stats")
    return {(g, k): v.values for g in groups if g in dt for k, v in dt[g].to_dataset().items()}


def same(first, second):
    def equal(a, b):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")

    return set(first) == set(second) and all(equal(first[k], second[k]) for k in first)


def message_of(step, **options):
    try:
        run(step, **options)
    except Exception as error:
        parts = []
        while error is not None:
            parts.append(f"{type(error).__name__}: {error}")
            error = error.__cause__
        return " | ".join(parts)
    return "no error"


def main():
    out = {}
    with pm.Model():
        x = pm.Normal("x", [0.0, 5.0], [1.0, 0.1], shape=2)
        s = pm.HalfNormal("s")
        pm.Potential("wall", pm.math.switch(x[0] > 4.0, -np.inf, 0.0))
        %s
    print(json.dumps(out))


if __name__ == "__main__":
    main()
"""

METHODS = (
    SCRIPT
    % """
        pmm_steps = {
            "ULMC": pmm.PoissonULMC(K=16, option=1),
            "recycled": pmm.PoissonULMC(scheme="recycled"),
            "RLMC": pmm.RLMC(),
            "GHMC": pmm.GHMC(),
            "compound": [pmm.PoissonULMC(vars=[x]), pmm.GHMC(vars=[s])],
        }
        for name, step in pmm_steps.items():
            one, two = run(step, cores=1), run(step, mp_ctx="fork")
            out[name] = [same(one, two), same(one, run(step, cores=1, random_seed=12)), len(one)]
        start = [{"x": np.array([9.0, 5.0])}] * 2
        out["no step size"] = message_of(pmm.ULMC(), tune=0, mp_ctx="fork")
        out["bad start"] = message_of(pmm.ULMC(), initvals=start, mp_ctx="fork")
"""
)

METHOD_OF_START = (
    SCRIPT
    % """
        step = pmm.PoissonULMC(K=16)
        one = run(step, cores=1)
        out["same"] = same(one, run(step, mp_ctx="%s"))
        out["moved"] = bool(np.ptp(one["posterior", "x"]) > 0)
"""
)


def test_forked_processes_give_the_draws_of_one_process_and_report_errors(run_script):
    found, log = run_script(METHODS)
    assert found is not None, log
    no_step_size, bad_start = found.pop("no step size"), found.pop("bad start")
    for name, (same, same_with_another_seed, variables) in found.items():
        assert same and not same_with_another_seed and variables > 10, name
    assert "step_size='auto' with tune=0" in no_step_size and "give the step one" in no_step_size, no_step_size
    assert "SamplingError" in bad_start and "not finite at the initial point" in bad_start, bad_start
    assert "wall (-inf)" in bad_start, bad_start


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_processes_that_unpickle_the_step_give_the_same_draws(run_script, start):
    found, log = run_script(METHOD_OF_START % start)
    assert found is not None, log
    assert found == {"same": True, "moved": True}

"""Break the package in the ways that matter, one at a time: each must turn a test red.  ``make mutants`` runs all.

Each mutant is a text replaced in a copy of the package.  It survives if the tests named with it still pass; the script
then fails.  ``python tests/mutants.py WORD ...`` runs those whose description has one of the words.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Mutant(NamedTuple):
    """What is broken, where, by which replacement, and which tests must notice."""

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


LOOP, ONE_STEP = "engines/numba_chain.py", "engines/numba_step.py"
CPU, STEP = "engines/numba_engine.py", "steps/chain.py"
SCHEDULE = "warmup/schedule.py"
ENGINE, GUARD, CURVATURE = ("tests/test_engine.py",), ("tests/test_guard.py",), ("tests/test_curvature.py",)
VIRIAL, VERDICT = ("tests/test_virial.py",), ("tests/test_verdict.py",)
HIERARCHY, SITES = ("tests/test_hierarchy_density.py",), ("tests/test_hierarchy_structure.py",)
WRITTEN = ("tests/test_hierarchy_sampling.py",)
SUBSTEPS, BIAS = ("tests/test_parts.py",), ("tests/test_bias.py",)
MUTANTS = [
    # noise
    Mutant(
        "noise scale, overdamped",
        "langevin/flows.py",
        "xp.sqrt(2.0 * h)",
        "xp.sqrt(h)",
        ("tests/test_coefficients.py",),
    ),
    Mutant(
        "noise scale, underdamped",
        "langevin/flows.py",
        "n_vv = xp.sqrt(2.0 * x * p1_twice)",
        "n_vv = xp.sqrt(x * p1_twice)",
        ("tests/test_coefficients.py",),
    ),
    Mutant(
        "noise of position and velocity uncoupled",
        "langevin/transitions.py",
        "gap.n_uv * w1 + ",
        "",
        ("tests/test_transitions.py",),
    ),
    Mutant(
        "path not carried over the gap",
        "langevin/transitions.py",
        "gap.a_uv * mv + nu",
        "nu",
        ("tests/test_transitions.py",),
    ),
    Mutant(
        "noise reused at the end of the step",
        ONE_STEP,
        "d = mu.size\n    fill_normals(stream, normals)",
        "d = mu.size\n    if mu[0] == 0.0:\n        fill_normals(stream, normals)",
        ENGINE,
    ),
    Mutant("noise reused in every transition", LOOP, "np.uint64(transition))", "np.uint64(first))", ENGINE),
    Mutant(
        "noise ends at K - 1",
        ONE_STEP,
        "gap = flow(kind, step - reached",
        "gap = flow(kind, step * (K - 1) / K - reached",
        ENGINE,
    ),
    # correction and its weight
    Mutant(
        "correction of the position dropped", "langevin/transitions.py", "mu + cu", "mu", ("tests/test_transitions.py",)
    ),
    Mutant(
        "correction of the velocity dropped", "langevin/transitions.py", "mv + cv", "mv", ("tests/test_transitions.py",)
    ),
    Mutant(
        "weight without K",
        "langevin/midpoints.py",
        "times * (rest.a_uu * cell.g_u + rest.a_uv * cell.g_v)",
        "(rest.a_uu * cell.g_u + rest.a_uv * cell.g_v)",
        ("tests/test_transitions.py",),
    ),
    Mutant(
        "weight from the wrong end of the cell", ONE_STEP, "step * (K - 1 - cell) / K", "step * (K - cell) / K", ENGINE
    ),
    Mutant(
        "continuous weight from the start",
        ONE_STEP,
        "rest = flow(kind, step - time,",
        "rest = flow(kind, time,",
        ENGINE,
    ),
    Mutant(
        "correction to the wrong base",
        ONE_STEP,
        "cv[j] += wv * (new_b[j] - base * b[j])",
        "cv[j] += wv * new_b[j]",
        ENGINE,
    ),
    # midpoints
    Mutant(
        "gradient at the start in place of the midpoint",
        ONE_STEP,
        "kind, y, coordinates",
        "kind, u, coordinates",
        ENGINE,
    ),
    Mutant(
        "midpoint without noise",
        "langevin/transitions.py",
        "flow.g_u * b + mu\n",
        "flow.g_u * b\n",
        ("tests/test_transitions.py",),
    ),
    Mutant("midpoint time without the offset", ONE_STEP, "step * (cell + offset) / K", "step * cell / K", ENGINE),
    Mutant(
        "first cell never drawn",
        "langevin/midpoints.py",
        "xp.floor(part * K)",
        "xp.floor(part * (K - 1)) + 1",
        ("tests/test_midpoints.py",),
    ),
    Mutant("late cells drawn often, with the same weight", ONE_STEP, "one_in(cell, K, power)", "1.0 * K", ENGINE),
    Mutant(
        "late cells drawn too often",
        "langevin/midpoints.py",
        "uniform ** (1.0 / (1.0 + power))",
        "uniform ** (1.0 - power)",
        ("tests/test_midpoints.py",),
    ),
    Mutant(
        "exact law of the importance law with the weights of the uniform one",
        "langevin/gaussian_law.py",
        "(a_rest, root_rest), times[:, None] * w",
        "(a_rest, root_rest), w",
        ("tests/test_gaussian_law.py",),
    ),
    Mutant(
        "error of the importance law looked at for the steepest direction only",
        "warmup/step_size.py",
        "    if kernel.power > 0.0:\n",
        "    if kernel.power > 9.0:\n",
        ("tests/test_step_size.py",),
    ),
    Mutant(
        "a probe of whole steps is heard of parts",
        "diagnostics/verdict.py",
        "if whole(stats):",
        "if True or whole(stats):",
        ("tests/test_verdict_with_probe.py",),
    ),
    Mutant(
        "a probe that finds a bias is not heard",
        "diagnostics/verdict.py",
        "for reason in of_probe]",
        "for reason in of_probe[:0]]",
        ("tests/test_verdict_with_probe.py",),
    ),
    Mutant(
        "a probe whose order fails excuses a long step",
        "diagnostics/verdict.py",
        "probe.order_holds and probed.ruled_out",
        "probed.ruled_out",
        ("tests/test_verdict_with_probe.py",),
    ),
    Mutant(
        "marks too frequent",
        "langevin/midpoints.py",
        "where(K > 1, 1.0 / K, 0.5)",
        "where(K > 1, 2.0 / (K + 1), 0.5)",
        ("tests/test_midpoints.py",),
    ),
    Mutant(
        "recycled base never renewed",
        LOOP,
        "= u_new, v_new, new_b, new_gradient, lp_new",
        "= u_new, v_new, b, new_gradient, lp_new",
        ENGINE,
    ),
    # failures
    Mutant("velocity not redrawn on rejection", LOOP, "fill_normals(stream, v)", "v[:] = v", ENGINE),
    Mutant("no guard", ONE_STEP, "finite and rise <= threshold + tolerance * motion", "finite", ENGINE),
    Mutant("guard of one coordinate for all", "langevin/stability.py", "-0.5 * d * np.log1p", "-0.5 * np.log1p", GUARD),
    Mutant(
        "guard blind to some midpoints",
        "langevin/stability.py",
        "step_maps(kernel, step_size, friction, K):",
        "step_maps(kernel, step_size, friction, K)[:1]:",
        GUARD,
    ),
    Mutant(
        "guard without memory",
        "langevin/stability.py",
        "_MEMORY_OF_ONE = 1.25, 1.8",
        "_MEMORY_OF_ONE = 1.0, 1.0",
        GUARD,
    ),
    Mutant("every failure the model's", ONE_STEP, "    return rise <= threshold\n", "    return True\n", GUARD),
    Mutant("every failure the step's", ONE_STEP, "    return rise <= threshold\n", "    return False\n", GUARD),
    Mutant(
        "steps taken whole where it is steep",
        ONE_STEP,
        "motion and steep <= steepest",
        "motion",
        ENGINE,
    ),
    Mutant("parts with the noise of one another", LOOP, "np.uint64(parts + i)", "np.uint64(parts)", ENGINE),
    Mutant("parts with noise of their own", ONE_STEP, "if ahead == 0.0:", "if ahead >= 0.0:", SUBSTEPS),
    Mutant("the last part ends elsewhere", ONE_STEP, "if rest < 1e-9 * ahead:", "if rest < -1.0:", SUBSTEPS),
    Mutant(
        "parts on from the beginning", LOOP, "at_u[:], at_v[:], at_b[:], at_evaluated[:] = u_new", "_ = u_new", ENGINE
    ),
    Mutant(
        "parts judged as a whole", LOOP, "_limit(steepest, parts / shorter", "_limit(steepest, 1.0 / shorter", ENGINE
    ),
    Mutant("surprise spread wrongly", "langevin/transitions.py", "b_vu * i_uv + b_vv * i_vv", "b_vu * i_uv", SUBSTEPS),
    Mutant("curvature is a mean", "langevin/transitions.py", "xp.maximum(cosine, LEAST_COSINE)", "1.0", SUBSTEPS),
    Mutant("JAX parts are all the first", "engines/jax_transition.py", "parts + k)", "parts)", SUBSTEPS),
    Mutant("parts make as much bias likely", "warmup/step_size.py", "+ refined * part", "+ refined * whole", BIAS),
    Mutant(
        "steps in parts are tuned for every place",
        "warmup/step_size.py",
        "CALIBRATION.places if refines",
        "CALIBRATION.nearly_all_places if refines",
        ("tests/test_tuning.py",),
    ),
    Mutant(
        "no method is tuned for nearly every place",
        "warmup/evidence.py",
        "harmonic, settings.sees_curvature)",
        "harmonic, True)",
        ("tests/test_tuning.py",),
    ),
    Mutant(
        "parts of other steps count",
        SCHEDULE,
        "if self.frozen is not None else []",
        "if self.blocks else []",
        ("tests/test_schedule.py",),
    ),
    Mutant("long steps are expected to be harmless", "warmup/step_size.py", "max(error, least)", "error", BIAS),
    Mutant("rejected to the end point", LOOP, "u[:] = evaluated", "u[:] = u", ENGINE),
    Mutant(
        "step not shortened on rejection",
        "langevin/transitions.py",
        "SHRINK, RECOVER, SHORTEST = 0.5",
        "SHRINK, RECOVER, SHORTEST = 1.0",
        ENGINE,
    ),
    Mutant(
        "gradient at the end not counted",
        ONE_STEP,
        "new_gradient, new_b)\n        n_grad += 1",
        "new_gradient, new_b)",
        ENGINE,
    ),
    # adjusted
    Mutant(
        "MALA without the proposal ratio",
        LOOP,
        "log_ratio += mala_log_ratio(",
        "log_ratio += 0.0 * mala_log_ratio(",
        ENGINE,
    ),
    Mutant(
        "MALA's ratio upside down",
        "langevin/transitions.py",
        "forward * forward - backward * backward",
        "backward * backward - forward * forward",
        ENGINE,
    ),
    # warm-up
    Mutant("scale without its root", "coordinates/scale.py", "ratio**0.25", "ratio**0.5", ("tests/test_tuning.py",)),
    Mutant(
        "centre on the wrong side",
        "coordinates/scale.py",
        "position.mean(axis=0) + shift",
        "position.mean(axis=0) - shift",
        ("tests/test_tuning.py",),
    ),
    Mutant(
        "gradient not stretched by the low-rank scale",
        ONE_STEP,
        "_stretch(scale, scale[0] * slope, b)",
        "b[:] = scale[0] * slope",
        ("tests/test_scale.py",),
    ),
    Mutant(
        "diagonal not fitted to what the directions leave",
        "coordinates/scale.py",
        "s = s * left",
        "s = s * 1.0",
        ("tests/test_scale.py",),
    ),
    Mutant(
        "forms of the scale judged on the draws that they were fitted to",
        "coordinates/scale.py",
        "(position[split:], gradient[split:])",
        "(position[:split], gradient[:split])",
        ("tests/test_scale.py",),
    ),
    Mutant(
        "step size blind to the bias",
        "warmup/step_size.py",
        "curvatures) <= target",
        "curvatures) <= 1e9",
        ("tests/test_step_size.py",),
    ),
    Mutant(
        "target_bias ignored",
        "warmup/step_size.py",
        "target = settings.target_bias if target is None else target",
        "target = 0.05",
        ("tests/test_step_size.py",),
    ),
    Mutant(
        "errors of many variances not added up",
        "warmup/step_size.py",
        "min(1.0, float(np.sqrt(8.0 / max(d, 1))))",
        "1.0",
        ("tests/test_step_size.py",),
    ),
    Mutant(
        "linear part left in the local curvature",
        "warmup/curvature.py",
        "change + direction if remainder else change",
        "change",
        CURVATURE,
    ),
    Mutant(
        "power iteration always from the same direction",
        "warmup/curvature.py",
        "self._direction = direction if size > 0.0 else self._direction",
        "pass",
        CURVATURE,
    ),
    Mutant("curvature for nothing", "warmup/curvature.py", "self.evaluations += 1", "pass", CURVATURE),
    Mutant(
        "curvature not charged to the chain",
        STEP,
        "self.pending += warmup.n_grad - before",
        "pass",
        ("tests/test_steps.py",),
    ),
    Mutant(
        "a walk that does not come back taken for a fast one",
        "warmup/evidence.py",
        "return lag if lag <= max(1, n // 8) else largest",
        "return lag",
        ("tests/test_tuning.py",),
    ),
    Mutant(
        "transient judged by the worst chain",
        "warmup/evidence.py",
        "axis=1).min()",
        "axis=1).max()",
        ("tests/test_tuning.py",),
    ),
    Mutant(
        "failures of the model shorten the step",
        "warmup/evidence.py",
        "(block.unstable - block.model_failures)",
        "block.unstable",
        ("tests/test_schedule.py",),
    ),
    Mutant("cap never recovers", SCHEDULE, "self._cap / CALIBRATION.shrink", "self._cap", ("tests/test_schedule.py",)),
    Mutant(
        "failed check without consequence",
        SCHEDULE,
        "self._set_step(CALIBRATION.shrink * self.tuned.step_size)",
        "pass",
        ("tests/test_schedule.py",),
    ),
    Mutant(
        "warm-up ends with a failed check",
        SCHEDULE,
        "self._extensions += 1",
        "self._extensions += 99",
        ("tests/test_schedule.py",),
    ),
    Mutant(
        "frozen as soon as settled",
        SCHEDULE,
        "self.done >= self.least * self._stiffness and not",
        "not",
        ("tests/test_schedule.py",),
    ),
    Mutant(
        "friction chosen by jumps from one transition to the next",
        "warmup/calibration.py",
        "jump_lag: int = 15",
        "jump_lag: int = 1",
        ("tests/test_friction.py",),
    ),
    Mutant(
        "companions that do not follow the scale",
        STEP,
        "self.companions.change(engine, old.coordinates, new)",
        "pass",
        ("tests/test_warm_up.py", "tests/test_tuning.py"),
    ),
    # PyMC
    Mutant("no overdispersed start", STEP, "jittered(1.0) if jitter else None", "None", ("tests/test_steps.py",)),
    Mutant(
        "transitions miscounted on settling", STEP, "self.row * self.thin", "self.row", ("tests/test_step_state.py",)
    ),
    Mutant(
        "midpoint handed to other samplers",
        STEP,
        "if not alone and engine.kernel.scheme == Scheme.RECYCLED:",
        "if False:",
        ("tests/test_pymc_cases.py",),
    ),
    Mutant(
        "other variables never seen",
        "steps/base.py",
        "shared.set_value(point[name], borrow=True)",
        "pass",
        ("tests/test_pymc_cases.py",),
    ),
    Mutant(
        "data never read again",
        "model/log_density.py",
        "values = [shared.get_value(borrow=True) for shared in self._shared[which]]",
        "values = [v for v, _ in self._held.get(which, [])] or [s.get_value(borrow=True) for s in self._shared[which]]",
        ("tests/test_native.py", "tests/test_pymc_cases.py"),
    ),
    # bias
    Mutant(
        "virial terms without their expectation",
        "diagnostics/stein.py",
        "* gradient + 1.0",
        "* gradient",
        VIRIAL,
    ),
    Mutant(
        "virial terms without a ridge",
        "diagnostics/stein.py",
        "np.diag(CALIBRATION.ridge * n * variance)",
        "np.diag(0.0 * n * variance)",
        VIRIAL,
    ),
    Mutant(
        "virial terms for all functions", "diagnostics/stein.py", "* CALIBRATION.gain_of_virial <", "* 0.0 <", VIRIAL
    ),
    Mutant(
        "what a correction leaves not in its error",
        "diagnostics/stein.py",
        "np.hypot(error, remaining)",
        "error",
        VIRIAL,
    ),
    Mutant(
        "what a correction leaves not in the verdict",
        "diagnostics/reasons.py",
        "full = size / (1.0 - left)",
        "full = size",
        VERDICT,
    ),
    Mutant(
        "verdict blind to standard deviations",
        "diagnostics/reasons.py",
        '        ("sd", measured.of_sd, measured.of_sd_se, np.zeros_like(measured.left)),\n',
        "",
        VERDICT,
    ),
    Mutant(
        "noise of all coordinates together taken for a bias",
        "diagnostics/reasons.py",
        "float(np.mean(z**2))",
        "1e9",
        VERDICT,
    ),
    Mutant(
        "few degrees of freedom taken for many",
        "diagnostics/reasons.py",
        "max(WARMUP.identity_z, chance)",
        "WARMUP.identity_z",
        VERDICT,
    ),
    Mutant(
        "model's failures put down to the step", "diagnostics/reasons.py", "2 * by_model > unstable", "False", VERDICT
    ),
    Mutant(
        "length of the step not judged of moments",
        "diagnostics/moments_summary.py",
        "reasons += length_reasons(stats, measured.ruled_out and calm(unstable, chains * read.draws))",
        "pass",
        ("tests/test_moments_summary.py",),
    ),
    # non-centring
    Mutant(
        "drift not rescaled with the coordinates",
        "engines/contract.py",
        "new.pull_back(gradient[..., :d])",
        "gradient[..., :d]",
        ENGINE,
    ),
    Mutant("determinant of the map in the draws", LOOP, "lp_out[row] -= gradient[3 * d]", "pass", WRITTEN),
    Mutant(
        "determinant of the map in the draws, on JAX",
        "engines/jax_engine.py",
        "chains.gradient[:, 3 * d] if",
        "0.0 if",
        WRITTEN,
    ),
    Mutant(
        "determinant of the old sites kept",
        "engines/contract.py",
        "log_det - gradient[..., 3 * d]",
        "log_det",
        HIERARCHY,
    ),
    Mutant(
        "determinant of a signed scale left out",
        "model/hierarchy.py",
        "log_det = log_det - pt.log(pt.abs(pt.tanh(v))).sum()",
        "pass",
        HIERARCHY,
    ),
    Mutant(
        "children keep their sign where the scale's is folded",
        "coordinates/structure.py",
        "*= sign[..., which[has]]",
        "*= 1.0",
        HIERARCHY,
    ),
    Mutant(
        "the score of the noise left out of the regression",
        "coordinates/structure.py",
        "r = (np.sqrt(B) * g + w) / L",
        "r = np.sqrt(B) * g / L",
        SITES,
    ),
    Mutant("a walk's prior counted as data", "coordinates/structure.py", "+ _precision_times(own - mu, *L)", "", SITES),
    Mutant("factors of a product have signs", "model/hierarchy.py", "factors.count(i) == 1 for i", "True for i", SITES),
    Mutant(
        "judged coordinates have the density of z", "coordinates/structure.py", " + np.cosh(v) ** -2", "", HIERARCHY
    ),
    Mutant(
        "unstable transitions judged by their number",
        "diagnostics/reasons.py",
        "CALIBRATION.unstable_rate * effective",
        "CALIBRATION.unstable_rate * transitions",
        VERDICT,
    ),
    Mutant(
        "long steps trusted beside unstable transitions",
        "diagnostics/verdict.py",
        "measured.ruled_out and calm(unstable, run.chains * run.draws)",
        "measured.ruled_out",
        VERDICT,
    ),
    Mutant(
        "neighbours' term counted twice",
        "workbench/targets/potentials.py",
        "own / 2",
        "own",
        ("tests/test_gallery_moments.py",),
    ),
]


def killed(mutant: Mutant, folder: Path) -> bool:
    """Whether the named tests fail on the mutant."""
    path = folder / "pmm_mcmc" / mutant.file
    source = path.read_text()
    if mutant.old not in source:
        raise SystemExit(f"{mutant.what}: the text to replace is not in {mutant.file} any more; mend tests/mutants.py")
    path.write_text(source.replace(mutant.old, mutant.new))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "NUMBA_CACHE_DIR": str(folder / "numba"),
        "OMP_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    finally:
        path.write_text(source)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{mutant.what}: pytest could not run\n{done.stdout[-3000:]}{done.stderr[-2000:]}")
    return done.returncode == 1


def main(words: list[str]) -> None:
    """Run the chosen mutants; exit with 1 if one survives."""
    chosen = [m for m in MUTANTS if not words or any(word in m.what for word in words)]
    survivors = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("pmm_mcmc", "tests", "examples", "pyproject.toml"):
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / part)
        for mutant in chosen:
            dead = killed(mutant, folder)
            print(f"{'killed  ' if dead else 'SURVIVED'}  {mutant.what}", flush=True)
            survivors += [] if dead else [mutant.what]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    if survivors:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])

r"""Whether the law of the midpoints helps the MCMC methods, by their exact law on a Gaussian.

The marked cell ``i`` of the paper's Option 2 is drawn with :math:`q_i \propto i^p` and its correction counts
:math:`1 / (K q_i)` times what it counts under the uniform law, so that its mean is as it was.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pmm_mcmc.langevin.flows import flows
from pmm_mcmc.langevin.gaussian_law import step_maps, variance_error
from pmm_mcmc.langevin.methods import OVERDAMPED, UNDERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.midpoints import cell_weight

__all__ = ["errors", "longest_steps", "report"]

FRICTION = 2.0
EXPONENTS = (0.25, 0.5, 0.75, 1.0)
# Of the variance; the step that keeps it is found on a grid.
ALLOWED = 0.01
KERNELS = {
    "PoissonULMC": (Kernel(int(Scheme.CELLS), UNDERDAMPED, 2, 0.0), np.arange(0.05, 2.5, 0.05)),
    "PoissonOLMC": (Kernel(int(Scheme.CELLS), OVERDAMPED, 2, 0.0), np.arange(0.0125, 0.8, 0.0125)),
}


def error_of(steps: list[tuple[float, np.ndarray]]) -> float:
    """Relative error of the stationary variance of the position, from steps with their probabilities."""
    probabilities, maps = np.array([p for p, _ in steps]), np.stack([m for _, m in steps])
    on_state, on_noise = maps[:, :, :2], maps[:, :, 2:]
    transfer = np.einsum("p,pij,pkl->ikjl", probabilities, on_state, on_state).reshape(4, 4)
    noise = np.einsum("p,pij,pkj->ik", probabilities, on_noise, on_noise)
    if np.abs(np.linalg.eigvals(transfer)).max() >= 1.0:
        return np.inf
    return float(np.linalg.solve(np.eye(4) - transfer, noise.ravel())[0] - 1.0)


def errors(kernel: Kernel, step_size: float, K: int, exponents: tuple[float, ...] = EXPONENTS) -> dict[str, float]:
    """Errors under the uniform law, under others, and with every cell corrected, where nothing random is left."""
    maps = step_maps(kernel, step_size, FRICTION, K)
    # The first cell, where the drift is the one at the start, has no correction: what is left is frozen throughout.
    frozen = maps[0]
    corrections = [step - frozen for step in maps[1:]]
    found = {"uniform": variance_error(kernel, step_size, FRICTION, K)}
    for exponent in exponents:
        q = np.arange(1.0, K) ** exponent
        q /= q.sum()
        found[f"p = {exponent:g}"] = error_of(
            [(p, frozen + correction / (K * p)) for p, correction in zip(q, corrections, strict=True)]
        )
    found["none random"] = error_of([(1.0, frozen + sum(corrections) / K)])
    return found


def longest_steps(kernel: Kernel, sizes: np.ndarray, K: int) -> dict[str, float]:
    """Longest step up to which the error stays below what is allowed, for each law."""
    found: dict[str, float] = {}
    for step_size in sizes:
        now = errors(kernel, step_size, K)
        for law, error in now.items():
            # Zero after the end: a second range of steps, in which errors cancel, does not count.
            if abs(error) <= ALLOWED and found.get(law, 0.0) >= step_size - 1.5 * sizes[0] - 1e-9:
                found[law] = float(step_size)
            else:
                found.setdefault(law, 0.0)
    return found


def simulated_error(
    kernel: Kernel, step_size: float, K: int, exponent: float | None, steps: int, apart: float = 1.5
) -> tuple[float, float]:
    """Error of the variance on the even mixture of ``N(-apart, 1)`` and ``N(apart, 1)``, and its standard error.

    By steps of 20,000 chains, the first tenth left out; ``exponent=None`` is the paper's uniform law.
    """
    flow = flows.overdamped if kernel.dynamics == OVERDAMPED else flows.underdamped
    q = np.full(K, 1.0 / K) if exponent is None else np.arange(float(K)) ** exponent
    q /= q.sum()
    start, rest = (flow(np.arange(K) * step_size / K, FRICTION), flow((K - np.arange(K)) * step_size / K, FRICTION))
    after = flow((K - 1 - np.arange(K)) * step_size / K, FRICTION)
    on_u, on_v = cell_weight(after, flow(step_size / K, FRICTION), K)
    whole = flow(step_size, FRICTION)
    rng = np.random.default_rng(30_000)
    u, v = rng.standard_normal((2, 20_000))
    squares = np.zeros_like(u)
    for i in range(steps):
        cell = rng.choice(K, u.size, p=q)
        to, on = (type(f)(*(np.broadcast_to(c, K)[cell] for c in f)) for f in (start, rest))
        z = rng.standard_normal((4, u.size))
        drift = apart * np.tanh(apart * u) - u
        path_u, path_v = to.n_uv * z[0] + to.n_uu * z[1], to.n_vv * z[0]
        middle = to.a_uu * u + to.a_uv * v + to.g_u * drift + path_u
        change = (apart * np.tanh(apart * middle) - middle - drift) / (K * q[cell])
        noise_u = on.a_uu * path_u + on.a_uv * path_v + on.n_uv * z[2] + on.n_uu * z[3]
        noise_v = on.a_vu * path_u + on.a_vv * path_v + on.n_vv * z[2]
        u, v = (
            whole.a_uu * u + whole.a_uv * v + whole.g_u * drift + noise_u + on_u[cell] * change,
            whole.a_vu * u + whole.a_vv * v + whole.g_v * drift + noise_v + np.broadcast_to(on_v, K)[cell] * change,
        )
        if i >= steps // 10:
            squares += u**2
    ratio = squares / (steps - steps // 10) / (1.0 + apart**2)
    return float(ratio.mean() - 1.0), float(ratio.std() / np.sqrt(ratio.size))


def report(quick: bool = False) -> tuple[list[str], list[dict[str, Any]]]:
    """Lines, and their numbers."""
    lines = [
        f"MIDPOINT LAW IN MCMC: exact error of the variance on the unit Gaussian, friction {FRICTION:g}, the midpoint",
        "in cell i of K with probability proportional to i^p; last column: every cell corrected, nothing random; then",
        f"the longest step whose error is at most {ALLOWED:g}, as are those of all shorter steps",
    ]
    rows: list[dict[str, Any]] = []
    for K in (20,) if quick else (20, 100):
        for name, (kernel, sizes) in KERNELS.items():
            few = sizes[4:40:30] if quick else sizes[[3, 9, 19, 29]]
            found = {f"step {size:.3g}": errors(kernel, size, K) for size in few}
            if not quick:
                found["longest step"] = longest_steps(kernel, sizes, K)
            laws = next(iter(found.values()))
            lines += ["", f"{f'{name}, K = {K}':22}" + "".join(f"{law:>12}" for law in laws)]
            lines += [
                f"  {label:20}" + "".join(f"{v:12.3g}" for v in values.values()) for label, values in found.items()
            ]
            rows.append({"method": name, "K": K, **found})
    if quick:
        return lines, rows
    lines += [
        "",
        "Simulated on N(-1.5, 1) and N(1.5, 1) mixed, where the gradient is not linear: error of the variance",
    ]
    for name, step_size in (("PoissonULMC", 0.5), ("PoissonULMC", 1.0), ("PoissonOLMC", 0.25)):
        pairs = {
            "uniform" if exponent is None else f"p = {exponent:g}": simulated_error(
                KERNELS[name][0], step_size, 20, exponent, 1500
            )
            for exponent in (None, 0.5)
        }
        text = "".join(f"   {law} {error:.4f} +- {noise:.4f}" for law, (error, noise) in pairs.items())
        lines.append(f"  {name}, K = 20, step {step_size:g}:{text}")
        rows.append({"method": name, "K": 20, "on the mixture, step": step_size, **pairs})
    return lines, rows

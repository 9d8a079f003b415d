"""Gradients counted at the log density, and Theorem 1 along real chains against the divergence that it bounds.

The chains are the package's, on the double well.  Theorem 1 bounds the divergence between the path of the Poisson
midpoint method (Option 1) and that of LMC with steps ``K`` times shorter.  Either path is Markov, so that the true
divergence is a sum over the steps: of the divergence between what the two kernels make of a state, averaged over the
law of the state, all of it by quadrature (``transfer_operator.py``).
"""

from __future__ import annotations

import math

import numpy as np
from numba import cfunc
from one_variable import START, TARGETS, WELL
from transfer_operator import Nodes, moments

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import MethodArguments, TunedParameters
from pmm_mcmc.engines.contract import empty_state
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.langevin.flows import flows
from pmm_mcmc.langevin.methods import OVERDAMPED, Kernel, Scheme
from pmm_mcmc.langevin.midpoints import expected_gradients
from pmm_mcmc.langevin.transitions import interpolate
from pmm_mcmc.model.native import SIGNATURE

__all__ = ["divergences", "quantities", "report", "report_gradients", "run"]

SEED, FRICTION = 7, 2.0
TARGET = TARGETS["double well"]
FIRST = Kernel(Scheme.CELLS, OVERDAMPED, 1, 0.0)
# The power 2 r of the last term of the bound: the paper's proofs take r = 7, any r > 1 is allowed.
POWER = 14


@cfunc(SIGNATURE)
def double_well(x, gradient, table, n):
    """Log density of independent double wells; ``table[0]`` counts the calls."""
    table[0] += 1
    lp = 0.0
    for i in range(n):
        t = math.tanh(WELL * x[i])
        gradient[i] = WELL * t - x[i]
        size = abs(WELL * x[i])
        lp += size + math.log1p(math.exp(-2.0 * size)) - 0.5 * x[i] * x[i]
    return lp


def run(kernel: Kernel, alpha: float, K: int, chains: int, steps: int) -> tuple[np.ndarray, int]:
    """Run chains of the package; return positions ``(chain, 1 + steps)`` and how often the log density was asked."""
    table = np.zeros(2, np.int64)
    engine = NumbaEngine(kernel, 1, double_well, double_well, lambda sites: table, lambda sites: table)
    coordinates = Coordinates(np.zeros(1), np.ones(1))
    rng = np.random.default_rng(SEED)
    position = START[0] + START[1] * rng.standard_normal((chains, 1))
    velocity = rng.standard_normal((chains, 1)) if kernel.dynamics != OVERDAMPED else np.zeros((chains, 1))
    state = empty_state(position, velocity)
    gradient = engine.evaluate(coordinates, state)
    before = int(table[0])
    keys = np.column_stack([np.full(chains, SEED), np.arange(chains)]).astype(np.uint64)
    chunk = engine.advance(TunedParameters(alpha, K, FRICTION, coordinates, 1), state, gradient, keys, 0, steps)
    if chunk.unstable.any():
        raise RuntimeError(f"{int(chunk.unstable.sum())} steps of alpha = {alpha:g} were taken back: take shorter ones")
    return np.concatenate([position, chunk.position[:, :, 0]], axis=1), int(table[0]) - before


def report_gradients(quick: bool) -> tuple[list[str], dict]:
    """Table of gradients a step."""
    steps = 100 if quick else 2000
    lines = [f"Calls of the log density a step, counted there: 50 chains of {steps} steps on the double well", ""]
    lines[-1] = f"    {'':44}{'counted':>10}{'expected':>10}{'se':>9}"
    kept = {}
    for method, dynamics, K, options in (
        ("OLMC", "overdamped", 1, {}),
        *(("PoissonOLMC", "overdamped", K, {"option": o}) for o in (1, 2) for K in (4, 16)),
        ("PoissonOLMC", "overdamped", 4, {"grid": "centred"}),
        ("RLMC", "overdamped", 1, {}),
        ("ULMC", "underdamped", 1, {}),
        *(("PoissonULMC", "underdamped", K, {"option": o}) for o in (1, 2) for K in (4, 16)),
        ("PoissonULMC", "underdamped", 4, {"grid": "centred"}),
        ("PoissonULMC", "underdamped", 4, {"option": 1, "grid": "centred"}),
        ("RLMC", "underdamped", 1, {}),
        ("PoissonULMC", "underdamped", 1, {"scheme": "recycled"}),
    ):
        kernel = MethodArguments.checked(method, dynamics=dynamics, **options).kernel
        _, calls = run(kernel, 0.1, K, 50, steps)
        if options.get("scheme") == "recycled":
            expected, variance = 1.0, 0.0
        elif method == "RLMC":
            expected, variance = 2.0, 0.0
        elif options.get("option") == 1:
            cells = K if "grid" in options else K - 1
            expected, variance = expected_gradients(K, options.get("grid", "left")), cells / K * (1.0 - 1.0 / K)
        else:
            expected = expected_gradients(K, options.get("grid", "left"))
            variance = 0.0 if "grid" in options else (1.0 - 1.0 / K) / K
        words = ", ".join(
            [method, dynamics, *(f"{k} {v}" for k, v in options.items()), *([f"K = {K}"] if K > 1 else [])]
        )
        error = math.sqrt(variance / (50 * steps))
        lines.append(f"    {words:44}{calls / (50 * steps):>10.4f}{expected:>10.4f}{error:>9.4f}")
        kept[words] = {"counted": calls / (50 * steps), "expected": expected, "standard error": error}
    return lines, kept


def quantities(alpha: float, K: int, chains: int, steps: int) -> dict[str, float]:
    """Sums of Theorem 1 along chains: of ``E B^2`` and of the terms in ``beta``, each with its standard error.

    The states are those of the package's chains.  The fine path within a step, which a chain never forms, is drawn
    anew: given the state its law is the same.
    """
    rng = np.random.default_rng(SEED)
    x = run(FIRST, alpha, K, chains, steps)[0][:, :-1]
    cell = flows.overdamped(alpha / K, FRICTION)
    frozen = TARGET.drift(x)
    path, refined = np.zeros_like(x), x
    sums = {name: np.zeros(chains) for name in ("B2", "beta4", "beta6", "beta10", "last")}
    for i in range(K):
        found = TARGET.drift(interpolate(x, 0.0, frozen, path, flows.overdamped(alpha * i / K, FRICTION)))
        B = cell.g_u / cell.n_uu * (found - TARGET.drift(refined))
        beta = K * cell.g_u / cell.n_uu * np.abs(found - frozen)
        for name, value in (
            ("B2", B**2), ("beta4", beta**4 / K**2), ("beta6", beta**6 / K**2), ("beta10", beta**10 / K**3),
            ("last", beta**POWER / K),
        ):  # fmt: skip
            sums[name] += value.sum(axis=1)
        noise = cell.n_uu * rng.standard_normal(x.shape)
        marked = rng.random(x.shape) < 1.0 / K
        refined = refined + cell.g_u * (frozen + K * marked * (found - frozen)) + noise
        path = path + noise
    return {name: (float(v.mean()), float(v.std(ddof=1) / math.sqrt(chains))) for name, v in sums.items()}


def divergences(alpha: float, K: int, steps: int) -> dict[str, float]:
    """True divergences: of the two paths, and of the laws at their ends."""
    nodes = Nodes(OVERDAMPED, 147, math.sqrt(32.0 / alpha), half_width=11.0)
    step = moments(nodes, FIRST, TARGET.drift, alpha, K)
    eta = alpha / K
    n = 2 * int(nodes.half_width / (0.55 * math.sqrt(2.0 * eta)))
    spacing = 2.0 * nodes.half_width / n
    y = -nodes.half_width + spacing * (np.arange(n) + 0.5)

    def euler(of: np.ndarray) -> np.ndarray:
        gap = y[:, None] - of - eta * TARGET.drift(of)
        return np.exp(-0.25 * gap**2 / eta) / math.sqrt(4.0 * math.pi * eta)

    fine = spacing * euler(y)
    many = np.linalg.matrix_power(fine, K - 1)
    q = many @ euler(nodes.x)
    waves = np.exp(1j * np.outer(y, nodes.k)) * np.where(nodes.k == 0.0, 1.0, 2.0) / (2.0 * nodes.half_width)
    p = np.real(waves @ step[:, 0, 0])

    def divergence(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        seen = (a > 1e-8) & (b > 1e-12)
        ratio = np.log(np.where(seen, a, 1.0) / np.where(seen, b, 1.0))
        return spacing * np.sum(np.where(seen, a * ratio - a + b, 0.0), axis=0)

    each = divergence(p, q)
    T = nodes.masses(step)
    around = (nodes.x - START[0]) / START[1]
    law = np.exp(-0.5 * around**2)
    law /= law.sum()
    whole, total = np.linalg.matrix_power(many @ fine, steps - 1) @ q @ law, 0.0
    for _ in range(steps - 1):
        total += float(each @ law)
        law = T @ law
    total += float(each @ law)
    return {"path": total, "end": float(divergence(p @ law, whole))}


def report(quick: bool) -> tuple[list[str], dict]:
    """Table of the bound's terms and of what they bound."""
    alphas, chains, time = ((0.2, 0.1), 200, 4.0) if quick else ((0.2, 0.1, 0.05, 0.025), 2000, 12.0)
    kept = {"alpha": list(alphas), "time": time, "rows": []}
    for alpha in alphas:
        K, steps = math.ceil(1.0 / alpha), round(time / alpha)
        measured = quantities(alpha, K, chains, steps)
        kept["rows"].append({"K": K, "steps": steps, **measured, **divergences(alpha, K, steps)})
    rows = kept["rows"]
    lines = [
        f"Theorem 1 on the double well: Option 1, overdamped, K = 1/alpha, T = {time:g}/alpha steps, {chains} chains"
    ]
    lines.append(f"    {'alpha':60}" + "".join(f"{a:>10.3g}" for a in alphas) + "  last order")

    def line(words: str, values: list[float], errors: list[float] | None = None) -> None:
        order = float(np.log(values[-2] / values[-1]) / np.log(alphas[-2] / alphas[-1]))
        lines.append(f"    {words:60}" + "".join(f"{v:>10.2e}" for v in values) + f"{order:>12.2f}")
        if errors is not None:
            lines.append(f"    {'  standard error':60}" + "".join(f"{e:>10.1e}" for e in errors))
        kept.setdefault("orders", {})[words] = order

    terms = {
        "sum of E B^2": "B2", "sum of E beta^4 / K^2": "beta4", "sum of E beta^6 / K^2": "beta6",
        "sum of E beta^10 / K^3": "beta10", f"sum of E beta^{POWER} / K (r = {POWER // 2})": "last",
    }  # fmt: skip
    for words, name in terms.items():
        line(words, [r[name][0] for r in rows], [r[name][1] for r in rows])
    bounds = [2.0 * r["B2"][0] + sum(r[n][0] for n in list(terms.values())[1:]) for r in rows]
    line("bound with C = 1 and the corrected 2 before E B^2", bounds)
    line("true divergence of the two paths", [r["path"] for r in rows])
    line("bound over truth", [b / r["path"] for b, r in zip(bounds, rows, strict=True)])
    line("true divergence of the laws after T steps", [r["end"] for r in rows])
    kept["bound"] = bounds
    return lines, kept

"""The paper's main claims without Monte Carlo: ``python -m benchmarks paper.claims [section ...] [--quick]``.

Sections: ``steps`` (that bring a chain within a total variation distance eps of a target that is not log-concave, at
the best step size and at the corollaries'), ``fixed`` (the same with K held), ``cells`` (bias against K), ``variants``
(Option 1, Option 2, randomised midpoint, recycled), ``gaussians`` (dependence on dimension and condition number,
``gaussians.py``), ``gradients`` (counted at the log density) and ``theorem`` (Theorem 1's quantities along chains
and the divergence that they bound, ``theorem.py``).  Laws of chains are vectors on nodes
(``transfer_operator.py``); only the last two sections draw random numbers, to run real chains.

``--quick`` runs a little of everything; ``--write`` keeps tables and figures in ``benchmarks/paper/results``;
``--picture`` draws what is kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from one_variable import START, TARGETS, Chain
from paper import gaussians, picture, theorem

from pmm_mcmc.langevin.methods import HARMONIC, OVERDAMPED, UNDERDAMPED, Kernel, Scheme

__all__ = ["METHODS", "Method", "Size", "best", "claimed", "floor", "main", "slope"]

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
# The corollary wants c sqrt(L) <= friction <= C sqrt(L); L is 1.25 on either target.
FRICTION = 2.0
# Power of 2^(-1/4) at which the search for a step size starts: 1, and 2 with a velocity.
LONGEST = {"overdamped": 0, "underdamped": -4}
# What --quick leaves out: (dynamics, method).
SLOW = {("underdamped", "Option 1, K = 1/alpha"), ("underdamped", "recycled"), ("overdamped", "Option 1, K = 1/alpha")}


class Method(NamedTuple):
    """A kernel, its K at a step size (None: cells without bound), and its gradients a step."""

    kernel: Kernel
    K: Callable[[float], int | None]

    def gradients(self, alpha: float) -> float:
        """Gradients of a step, as section ``gradients`` counts them."""
        if self.kernel.scheme == Scheme.RECYCLED:
            return 1.0
        K = self.K(alpha)
        return 2.0 if self.kernel.scheme == Scheme.CONTINUOUS or self.kernel.offset or K is None else 2.0 - 1.0 / K


def growing(alpha: float) -> int:
    """Return K as the corollaries have it, in proportion to 1 / alpha."""
    return math.ceil(1.0 / alpha)


def _methods(dynamics: int) -> dict[str, Method]:
    cells = [Kernel(Scheme.CELLS, dynamics, option, 0.0) for option in (1, 2)]
    out = {
        "LMC": Method(cells[1], lambda a: 1),
        "Option 2, K = 1/alpha": Method(cells[1], growing),
        "Option 2, K = 4": Method(cells[1], lambda a: 4),
        "Option 2, K = 16": Method(cells[1], lambda a: 16),
        "Option 1, K = 1/alpha": Method(cells[0], growing),
        "Option 2, centred, K = 4": Method(Kernel(Scheme.CELLS, dynamics, 2, 0.5), lambda a: 4),
        "Option 2, K without bound": Method(cells[1], lambda a: None),
        "randomised midpoint": Method(Kernel(Scheme.CONTINUOUS, dynamics, 2, 0.0), lambda a: None),
    }
    if dynamics == UNDERDAMPED:
        out["recycled"] = Method(Kernel(Scheme.RECYCLED, HARMONIC, 2, 0.0), lambda a: None)
    return out


METHODS = {"overdamped": _methods(OVERDAMPED), "underdamped": _methods(UNDERDAMPED)}
MAIN = ("LMC", "Option 2, K = 1/alpha")
FIXED = ("LMC", "Option 2, K = 4", "Option 2, K = 16", "Option 2, K = 1/alpha")
VARIANTS = tuple(name for name in METHODS["underdamped"] if name not in FIXED[1:3])
# Powers of eps to which the corollaries take the step of either method.
POWERS = {"overdamped": {MAIN[0]: 2.0, MAIN[1]: 1.0}, "underdamped": {MAIN[0]: 1.0, MAIN[1]: 0.5}}


class Size(NamedTuple):
    """How much is run: distances, step sizes (powers of ``2^(-1/4)``, each ``stride``-th), targets, values of K."""

    eps: tuple[float, ...] = tuple(0.032 / 2**i for i in range(7))
    stride: int = 1
    targets: tuple[str, ...] = tuple(TARGETS)
    cells: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    quick: bool = False


QUICK = Size((0.032, 0.008, 0.002), 2, ("double well",), (1, 4, 16), True)


@cache
def steps(target: str, dynamics: str, name: str, alpha: float, eps: tuple[float, ...]) -> tuple[int | None, ...]:
    """Steps to each distance at one step size."""
    return tuple(_chain(target, dynamics, name, alpha).steps(eps))


def _chain(target: str, dynamics: str, name: str, alpha: float) -> Chain:
    method = METHODS[dynamics][name]
    return Chain(TARGETS[target], method.kernel, alpha, method.K(alpha), FRICTION)


@cache
def floor(target: str, dynamics: str, name: str, alpha: float) -> float:
    """Total variation distance of the stationary law."""
    return _chain(target, dynamics, name, alpha).floor()


@cache
def best(target: str, dynamics: str, name: str, size: Size) -> list[tuple[int, float]]:
    """Fewest steps to each distance over all step sizes, and the step size."""
    found: list[tuple[int, float] | None] = [None] * len(size.eps)
    worse, j = 0, LONGEST[dynamics]
    while worse < 4:
        alpha = 2.0 ** (-0.25 * j)
        for i, n in enumerate(steps(target, dynamics, name, alpha, size.eps)):
            if n is not None and (found[i] is None or n < found[i][0]):
                found[i], worse = (n, alpha), 0
        worse += found[-1] is not None
        j += size.stride
    return found


def claimed(target: str, dynamics: str, name: str, size: Size) -> list[tuple[int, float]]:
    """Steps to each distance with the step size as the corollary scales it, with the largest constant that will do."""
    power = POWERS[dynamics][name]
    found = best(target, dynamics, name, size)
    constant = min(alpha / eps**power for (_, alpha), eps in zip(found, size.eps, strict=True))
    alphas = [constant * eps**power for eps in size.eps]
    return [(steps(target, dynamics, name, a, size.eps[: i + 1])[i], a) for i, a in enumerate(alphas)]


@cache
def diffusion_time(target: str, dynamics: str, eps: tuple[float, ...]) -> tuple[float, ...]:
    """Time in which the diffusion itself comes to each distance."""
    alpha = 2.0**-6 if dynamics == "overdamped" else 2.0**-3
    return tuple(alpha * n for n in steps(target, dynamics, "Option 2, K without bound", alpha, eps))


def slope(x: Any, y: Any) -> float:
    """Slope in log-log."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _rows(target: str, dynamics: str, rows: dict[str, tuple[str, list]], size: Size) -> tuple[list[str], dict]:
    """Table of steps and gradients to each distance, with slopes: raw, and for each unit of the diffusion's time."""
    eps, times = np.array(size.eps), np.array(diffusion_time(target, dynamics, size.eps))
    lines = [f"  {dynamics}, {target}: eps{'':{39 - len(dynamics) - len(target)}}" + "".join(f"{e:>9.3g}" for e in eps)]
    lines[0] += "    slope  without log"
    lines.append(f"    {'time of the diffusion itself':44}" + "".join(f"{t:>9.3g}" for t in times))
    kept = {"diffusion": times.tolist()}
    for words, (name, found) in rows.items():
        n, alphas = np.array([f[0] for f in found], float), [f[1] for f in found]
        spent = n * [METHODS[dynamics][name].gradients(a) for a in alphas]
        raw, clean = -slope(eps, n), -slope(eps, n / times)
        lines.append(f"    {words + ': steps':44}" + "".join(f"{v:>9.0f}" for v in n) + f"{raw:>9.2f}{clean:>13.2f}")
        lines.append(f"    {'':{len(words)}}{': gradients':{44 - len(words)}}" + "".join(f"{v:>9.0f}" for v in spent))
        kept[words] = {"steps": n.tolist(), "gradients": spent.tolist(), "alpha": alphas,
                       "slope": raw, "slope without log": clean}  # fmt: skip
    return lines, kept


def section_steps(size: Size) -> tuple[list[str], dict]:
    """LMC against the Poisson midpoint method with growing K, at the best step and at the corollaries'."""
    lines, kept = ["Steps and gradients until TV <= eps; K = 1/alpha as the corollaries have it"], {}
    for target in size.targets:
        for dynamics in METHODS:
            rows = {f"{name}, best step": (name, best(target, dynamics, name, size)) for name in MAIN}
            for name in MAIN:
                words = f"{name}, step ~ eps^{POWERS[dynamics][name]:g}"
                rows[words] = (name, claimed(target, dynamics, name, size))
            more, kept[f"{target}, {dynamics}"] = _rows(target, dynamics, rows, size)
            lines += more
    return lines, kept


def section_fixed(size: Size) -> tuple[list[str], dict]:
    """The same with K held fixed."""
    lines, kept = ["With K held fixed, best step: the order of LMC comes back"], {}
    for dynamics in METHODS:
        rows = {name: (name, best("double well", dynamics, name, size)) for name in FIXED}
        more, kept[dynamics] = _rows("double well", dynamics, rows, size)
        lines += more
    return lines, kept


def section_cells(size: Size) -> tuple[list[str], dict]:
    """Bias against K at one step size."""
    lines, kept = ["TV distance of the stationary law of the double well against K, at one step size"], {}
    for dynamics, alpha in (("overdamped", 0.1), ("underdamped", 0.4)):
        lines.append(f"  {dynamics}, alpha = {alpha:g}; K{'':19}" + "".join(f"{K:>10}" for K in size.cells))
        kept[dynamics] = {"alpha": alpha, "K": list(size.cells)}
        for words, option, offset in (
            ("Option 2, left", 2, 0.0),
            ("Option 2, centred", 2, 0.5),
            ("Option 1, left", 1, 0.0),
        ):
            kernel = Kernel(Scheme.CELLS, METHODS[dynamics]["LMC"].kernel.dynamics, option, offset)
            Ks = [K for K in size.cells if option == 2 or (1 < K <= 64 and not size.quick)]
            found = {K: Chain(TARGETS["double well"], kernel, alpha, K, FRICTION).floor() for K in Ks}
            lines.append(
                f"    {words:40}" + "".join(f"{found[K]:>10.2g}" if K in found else f"{'-':>10}" for K in size.cells)
            )
            kept[dynamics][words] = [found.get(K) for K in size.cells]
        limit = floor("double well", dynamics, "Option 2, K without bound", alpha)
        lines.append(f"    {'Option 2, K without bound':40}{limit:>10.2g}")
        kept[dynamics]["without bound"] = limit
    return lines, kept


def section_variants(size: Size) -> tuple[list[str], dict]:
    """All methods: order of the bias, and gradients to each distance at the best step."""
    lines, kept = ["Variants on the double well: TV distance of the stationary law, its order, and the best step"], {}
    for dynamics, alphas in (("overdamped", (0.2, 0.1, 0.05, 0.025)), ("underdamped", (0.8, 0.4, 0.2, 0.1))):
        names = [n for n in VARIANTS if n in METHODS[dynamics] and not (size.quick and (dynamics, n) in SLOW)]
        lines.append(
            f"  {dynamics}; alpha{'':{37 - len(dynamics)}}" + "".join(f"{a:>9.3g}" for a in alphas) + "  last order"
        )
        kept[dynamics] = {"alpha": list(alphas), "floor": {}}
        for name in names:
            found = [floor("double well", dynamics, name, a) for a in alphas]
            order = slope(alphas[-2:], found[-2:])
            lines.append(f"    {name:44}" + "".join(f"{f:>9.1e}" for f in found) + f"{order:>12.2f}")
            kept[dynamics]["floor"][name] = {"TV": found, "order": order}
        rows = {name: (name, best("double well", dynamics, name, size)) for name in names}
        more, kept[dynamics]["best"] = _rows("double well", dynamics, rows, size)
        lines += more
    return lines, kept


SECTIONS: dict[str, Callable[[Size], tuple[list[str], dict]]] = {
    "steps": section_steps,
    "fixed": section_fixed,
    "cells": section_cells,
    "variants": section_variants,
    "gaussians": lambda size: gaussians.report(size.quick),
    "gradients": lambda size: theorem.report_gradients(size.quick),
    "theorem": lambda size: theorem.report(size.quick),
}


def header() -> list[str]:
    """Return what all tables need to be read."""
    return [
        f"Start: N({START[0]:g}, {START[1]:g}^2); friction {FRICTION:g}. Slopes are of log steps against log 1/eps;",
        "without log: of steps for each unit of the time that the diffusion itself takes to eps, about log 1/eps.",
        *(f"{name}: {target.words}" for name, target in TARGETS.items()),
    ]


def made(name: str, size: Size) -> dict[str, Any]:
    """Run a section: its lines, what it found, and when, where and with what."""
    began = time.process_time()
    lines, found = SECTIONS[name](size)
    versions = {package: version(package) for package in ("pmm_mcmc", "numpy", "scipy", "numba")}
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    date, seconds = time.strftime("%Y-%m-%d", time.gmtime()), round(time.process_time() - began)
    words = f"{seconds} seconds of one core; {date}; {machine}; " + ", ".join(f"{n} {v}" for n, v in versions.items())
    return {"lines": ["", f"[{name}]", *lines, f"  {words}"], "found": _rounded(found), "date": date,
            "machine": machine, "versions": versions, "seconds": seconds, "eps": list(size.eps)}  # fmt: skip


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Run sections, print their tables and return what they hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0].partition(": ``")[0])
    parser.add_argument("sections", nargs="*", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="a little of everything")
    parser.add_argument("--write", action="store_true", help="keep tables and figures of the sections that are run")
    parser.add_argument("--picture", action="store_true", help="draw what is kept, and run nothing")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"no section is called {unknown[0]!r}: take some of {', '.join(SECTIONS)}")
    if options.write and options.quick:
        parser.error("--write keeps sections in full: leave --quick out")
    path = RESULTS / "claims.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    if options.picture:
        picture.draw(kept, ROOT / "docs" / "images" / "paper_claims.png")
        return kept
    print(*header(), sep="\n")
    found = {}
    for name in options.sections or SECTIONS:
        found[name] = made(name, QUICK if options.quick else Size())
        print(*found[name]["lines"], sep="\n", flush=True)
    if options.write:
        kept = {name: {**kept, **found}[name] for name in SECTIONS if name in {**kept, **found}}
        lines = header() + [line for entry in kept.values() for line in entry["lines"]]
        path.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        path.write_text(json.dumps(kept, indent=1) + "\n")
    return found


def _rounded(value: Any) -> Any:
    """Numbers to four digits, NaN as None."""
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    return value


if __name__ == "__main__":
    main()

"""The claims of the paper, each with the difference it is about and the noise of that difference."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from diffusion_distances import NAMES

__all__ = ["CLAIMS", "CLEAR", "WITHIN", "difference", "mean_and_error", "report"]

Found = dict[tuple[str, int, str], np.ndarray]

# Standard errors that make a difference clear: about one in 250 by chance with five seeds on either side.
CLEAR = 4.0
# And those within which a method counts as no worse than another.
WITHIN = 2.0
# Words, the sampler that the claim is about, what it is compared with, and whether it should be as good or better.
CLAIMS = (
    *(
        ("matches DDPM with 1000 calls", f"{method}, variant {variant}", calls, chain, 1000, "no worse")
        for method, all_calls in (("paper", (40, 50, 80, 100)), ("planned", (20, 30, 40, 80)))
        for variant, chain in (("2", "DDPM"), ("3", "DDPM, variant 3"))
        for calls in all_calls
    ),
    *(
        (f"beats {name} of as many calls", f"{method}, variant {variant}", calls, name, calls, "better")
        for name in ("DDIM", "DPM-Solver++ 2M", "DPM-Solver++ 3M", "SDE-DPM-Solver++", "DDPM")
        for method in ("paper", "planned")
        for variant in ("2", "3")
        for calls in (40, 80)
    ),
)


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the seeds, the first axis, and its standard error."""
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


def _from_truth(values: np.ndarray) -> np.ndarray:
    """Distances as they are; of the excess, which has a sign, the absolute value of its mean, seed by seed."""
    sign = np.sign(values.mean(axis=0))
    return np.where(np.array(NAMES) == "NLL excess", sign * values, values)


def difference(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How much further ``a`` is off than ``b``, and the standard error of it."""
    (mean_a, error_a), (mean_b, error_b) = mean_and_error(_from_truth(a)), mean_and_error(_from_truth(b))
    return mean_a - mean_b, np.hypot(error_a, error_b)


def verdict(mean: float, error: float, wanted: str) -> str:
    """``yes``, ``no``, or neither: ``open`` for a claim to be no worse, ``tie`` for one to be better."""
    if mean > CLEAR * error:
        return "no"
    if wanted == "no worse":
        return "yes" if mean <= WITHIN * error else "open"
    return "yes" if mean < -CLEAR * error else "tie"


def _rows(found: Found, of: str) -> Iterator[str]:
    last = None
    for words, method, calls, other, other_calls, wanted in CLAIMS:
        if (method, calls, of) not in found or (other, other_calls, of) not in found:
            continue
        mean, error = difference(found[method, calls, of], found[other, other_calls, of])
        if words != last:
            yield f"  {words}"
            last = words
        cells = (
            f"{m:>10.3g} +-{e:6.1g} {verdict(m, e, wanted):4}" if np.isfinite(m) else " " * 24
            for m, e in zip(mean, error, strict=True)
        )
        yield f"    {method:20}{calls:>4}" + "".join(cells).rstrip()


def report(found: Found, names: list[str]) -> list[str]:
    """Lines with every claim that the measurements are about."""
    lines = []
    for of in names:
        lines += [
            f"Claims, by the distance from the {of}: how much further off the method is than what it is compared with",
            f"(no: further off by {CLEAR:g} standard errors; matches: yes by {WITHIN:g} at most, else open; "
            f"beats: yes where nearer by {CLEAR:g}, else tie)",
            " " * 28 + "".join(f"{name:>16}{'':8}" for name in NAMES).rstrip(),
            *_rows(found, of),
            "",
        ]
    return lines[:-1]

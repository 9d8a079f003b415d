"""Write ``target_references.json``: moments by long runs of NUTS, for the targets that have no exact ones.

``python benchmarks/common/make_references.py [name ...]`` takes about a quarter of an hour for all;
nutpie is used where it is installed, and PyMC's own NUTS elsewhere.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import time

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from targets import PATH, TARGETS, Reference

from pmm_mcmc.model.pymc_density import flat_layout

CHAINS, TUNE, SEED = 4, 2000, 1
# Enough for an error of E[x^2] below a hundredth of the standard deviation of x^2 in every coordinate.
DRAWS = {"galaxies": 200_000, "phi4": 20_000, "stochastic_volatility": 30_000, "latent_ar": 30_000}
DRAWS_ELSEWHERE = 25_000
TARGET_ACCEPT = {"galaxies": 0.9, "latent_ar": 0.99, "stochastic_volatility": 0.95}
# All coordinates have one law, symmetric about 0.
EXCHANGEABLE = {"phi4"}
SAMPLER = "nutpie" if importlib.util.find_spec("nutpie") else "pymc"


def sample(model: pm.Model, draws: int, target_accept: float, seed: int):
    """Run NUTS, chains one after the other."""
    with model:
        return pm.sample(
            draws=draws,
            tune=TUNE,
            chains=CHAINS,
            cores=1,
            random_seed=seed,
            nuts_sampler=SAMPLER,
            target_accept=target_accept,
            progressbar=False,
            compute_convergence_checks=False,
        )


def flat_draws(model: pm.Model, tree) -> np.ndarray:
    """Draws of a model's variables on its flat unconstrained vector, shape ``(chain, draw, d)``."""
    parts = []
    for value in model.continuous_value_vars:
        variable = model.values_to_rvs[value]
        draws = tree["posterior"].dataset[variable.name].values
        transform = model.rvs_to_transforms[variable]
        if transform is not None:
            # Symbolic, because some transforms index by expressions, which arrays do not take.
            draws = transform.forward(pt.as_tensor(draws), *variable.owner.inputs).eval()
        parts.append(draws.reshape(*draws.shape[:2], -1))
    return np.concatenate(parts, axis=-1)


def one_sd_up(model: pm.Model, arrays: dict) -> float:
    """Log density at mean plus standard deviation: it tells whether a reference was made with the model as it is."""
    x, point, at = np.array(arrays["mean"]) + np.sqrt(arrays["variance_of_x"]), {}, 0
    for name, shape, size, _ in flat_layout(model.continuous_value_vars, model.initial_point()):
        point[name], at = x[at : at + size].reshape(shape), at + size
    return float(model.compile_logp()(point))


def mean_and_error(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean of each coordinate with its Monte Carlo standard error."""
    error = [float(az.mcse(values[..., j], method="mean")) for j in range(values.shape[-1])]
    return values.mean(axis=(0, 1)), np.array(error)


def worst(draws: np.ndarray) -> dict[str, float]:
    """Largest r_hat and smallest effective sample sizes over the coordinates, for x and its square."""
    columns = [f(draws[..., j]) for j in range(draws.shape[-1]) for f in (np.asarray, np.square)]
    return {
        "largest_r_hat": round(max(float(az.rhat(c)) for c in columns), 5),
        "smallest_ess": round(min(float(az.ess(c, method=m)) for c in columns for m in ("bulk", "mean")), 0),
    }


def run(name: str) -> dict:
    """Moments of one target with the settings and the diagnostics of the run behind them."""
    target, began = TARGETS[name], time.perf_counter()
    draws, accept = DRAWS.get(name, DRAWS_ELSEWHERE), TARGET_ACCEPT.get(name, 0.8)
    tree = sample((target.twin or target.build)(), draws, accept, SEED)
    model = target.build()
    x = flat_draws(model, tree)
    d = x.shape[-1]
    # The series of a moment of exchangeable coordinates is its average over them.
    moments = [mean_and_error((x**k).mean(axis=-1, keepdims=True) if name in EXCHANGEABLE else x**k) for k in (1, 2, 4)]
    (mean, se_mean), (second, se_second), (fourth, _) = [[np.broadcast_to(a, d) for a in pair] for pair in moments]
    if name in EXCHANGEABLE:
        mean, se_mean = np.zeros(d), np.zeros(d)
    found = Reference(mean, second, second - mean**2, fourth - second**2, se_mean, se_second)
    error = float((se_second / np.sqrt(found.variance_of_square)).max())
    arrays = {field: [float(f"{v:.8g}") for v in getattr(found, field)] for field in Reference.__dataclass_fields__}
    settings = {
        "sampler": SAMPLER,
        "versions": {package: importlib.metadata.version(package) for package in dict.fromkeys(("pymc", SAMPLER))},
        "twin": target.twin is not None,
        "chains": CHAINS,
        "tune": TUNE,
        "draws": draws,
        "target_accept": accept,
        "seed": SEED,
        "divergences": int(tree["sample_stats"]["diverging"].sum()),
        **worst(x),
        "largest_error_of_second_in_sd": float(f"{error:.2g}"),
        "log_density_one_sd_up": one_sd_up(model, arrays),
    }
    print(f"{name}: {time.perf_counter() - began:.0f} s", settings, flush=True)
    return {"settings": settings, **arrays}


def write(references: dict) -> None:
    """Write one array to a line."""
    entries = []
    for name in [name for name in TARGETS if name in references]:
        lines = ",\n".join(f"  {json.dumps(field)}: {json.dumps(value)}" for field, value in references[name].items())
        entries.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
    PATH.write_text("{\n" + ",\n".join(entries) + "\n}\n")


def main() -> None:
    """Make the references named, or all."""
    made = [name for name, target in TARGETS.items() if target.exact is None]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(made)}; all by default")
    names = parser.parse_args().names
    if unknown := [name for name in names if name not in made]:
        parser.error(f"{', '.join(unknown)}: there is nothing to run; take some of {', '.join(made)}")
    for name in names or made:
        entry = run(name)
        # Read anew: other names may have been written meanwhile.
        write({**(json.loads(PATH.read_text()) if PATH.exists() else {}), name: entry})


if __name__ == "__main__":
    main()

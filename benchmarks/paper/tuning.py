"""What warm-up costs and how far it can be relied on: ``python -m benchmarks paper.tuning [target ...]``.

Five seeds each.  Pooled: 8 chains warmed up together until the schedule is content (``pmm_mcmc.run.sample.warm_up``, at
most 1,900 transitions).  Alone: one chain as ``pm.sample`` runs it, with its own walkers and ``tune=1000``; its step
size over the median of those of 16 pooled chains.
"""

from __future__ import annotations

import argparse

import numpy as np
from targets import TARGETS
from versus.ours import SAMPLERS, WARMUP, engine_for, starts

from pmm_mcmc.engines.arguments import MethodArguments, TunedParameters
from pmm_mcmc.run.sample import warm_up
from pmm_mcmc.steps.chain import Chain

SEEDS = range(1, 6)
HEADER = """\
gradients    of warm-up, for each of 8 pooled chains: median and largest over five seeds
step         of 8 pooled chains, smallest to largest over the seeds
alone/pooled step of a chain alone over that of 16 pooled chains, smallest to largest over the seeds
gradients    that the chain alone spent before its first draw, its walkers' included (median)

                       gradients         step          alone/pooled   gradients"""


def alone(arguments: MethodArguments, model, seed: int) -> tuple[TunedParameters, int]:
    """Warm one chain up as ``pm.sample(tune=1000)`` does; return its setting and the gradients it took."""
    engine = engine_for(model, arguments)
    point = model.initial_point(0)
    origin = np.concatenate([np.ravel(point[v.name]) for v in model.continuous_value_vars]).astype(float)
    rng = np.random.default_rng(seed)
    chain = Chain.start(arguments, engine, origin, jitter=True, alone=True, n_tune=1000, n_draws=1, rng=rng)
    while chain.iteration < 1000:
        chunk, _, _ = chain.look_ahead(engine, alone=True)
        rows = min(len(chunk.lp), 1000 - chain.iteration)
        chain.row += rows
        chain.iteration += rows
    chain.stop_tuning(engine)
    return chain.tuned, chain.n_grad + chain.pending


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="names of targets (default: all)")
    parser.add_argument("--samplers", nargs="*", default=["paper", "recycled"], choices=list(SAMPLERS))
    arguments = parser.parse_args()
    print(HEADER)
    for name in arguments.targets or TARGETS:
        model = TARGETS[name].build()
        print(name, "" if TARGETS[name].hard else "(near-Gaussian)", flush=True)
        for sampler in arguments.samplers:
            method, options = SAMPLERS[sampler]
            arguments = MethodArguments.checked(method, **options)
            engine = engine_for(model, arguments)
            spent, steps, many, ratios, own = [], [], [], [], []
            for seed in SEEDS:
                rng = np.random.default_rng(seed)
                warmed = warm_up(engine, arguments, starts(model, engine, 8, rng), length=WARMUP, rng=rng)
                spent.append(int(np.median(warmed.n_grad)))
                steps.append(warmed.tuned.step_size)
                warmed = warm_up(engine, arguments, starts(model, engine, 16, rng), length=WARMUP, rng=rng)
                many.append(warmed.tuned.step_size)
            for seed in SEEDS:
                tuned, gradients = alone(arguments, model, seed)
                ratios.append(tuned.step_size / np.median(many))
                own.append(gradients)
            print(
                f"  {sampler:9s} {np.median(spent):12.0f} {max(spent):6d}    {min(steps):5.2f} - {max(steps):.2f}"
                f"    {min(ratios):5.2f} - {max(ratios):.2f} {np.median(own):9.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""A whole warm-up of chains of an engine, for tests and benchmarks."""

from pmm_mcmc.warmup.warm_up import Warming


def warm_up(engine, arguments, starts, *, length, rng):
    """Chains with one setting, frozen and checked."""
    warming = Warming.start(engine, arguments, starts, length, rng)
    while not warming.finished:
        warming.block(engine)
    return warming

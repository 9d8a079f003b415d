"""One chain of an engine, whose arrays have no leading axis."""

from types import SimpleNamespace

import numpy as np

from pmm_mcmc.engines.contract import Chunk, Ensemble


def advanced(run, setting, chain, rows, **options):
    """Advance a chain in place and return its chunk."""
    one = Ensemble(chain.state[None], chain.evaluation[None], chain.keys[None], chain.transition)
    return Chunk(*(array[0] for array in run.advance(setting, one, rows, **options)))


def followed(run, setting, chain, rows, thin=1, **options):
    """Advance a chain in place draw by draw, and return its chunk with the state after each draw."""
    chunks, states = [], []
    for row in range(rows):
        at = Ensemble(chain.state, chain.evaluation, chain.keys, chain.transition + row * thin)
        chunks.append(advanced(run, setting, at, 1, thin=thin, **options))
        states.append(chain.state.copy())
    fields = (np.concatenate(arrays) for arrays in zip(*chunks, strict=True))
    return SimpleNamespace(**dict(zip(Chunk._fields, fields, strict=True)), state=np.array(states))

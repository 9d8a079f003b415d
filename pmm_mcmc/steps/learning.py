"""The setting of a step, learnt once before its chains start, by the warm-up of ``pmm.sample``."""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from rich.progress import Progress

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Engine, TunedParameters, chains_of, in_model_coordinates
from pmm_mcmc.model.initial_points import JITTER, spread_starts
from pmm_mcmc.model.pytensor_density import Layout
from pmm_mcmc.warmup.warming import FEWEST, Warming

__all__ = ["Learnt", "Watch", "learn", "options_of_call", "seed_of"]

_log = logging.getLogger("pmm_mcmc")

# Transitions of each chain that a setting is learnt from, at most: those of ``pmm.sample``.
_LENGTH = 1000
# Seconds after which a bar shows the learning.
_PATIENCE = 1.0


@dataclass(frozen=True)
class Learnt:
    """A setting, with what its chains start from.

    Attributes
    ----------
    tuned
        The setting.
    places : (n, d)
        The last draws of the chains that it was learnt from, in the model's coordinates.
    settled
        Whether its last check passed.
    n_grad
        Gradients that it took, which no chain has reported.
    """

    tuned: TunedParameters
    places: np.ndarray
    settled: bool
    n_grad: int


def learn(
    arguments: MethodArguments,
    engine: Engine,
    centre: np.ndarray,
    rng: np.random.Generator,
    width: float = JITTER,
    show: Callable[[Warming, int], None] = lambda warming, length: None,
) -> Learnt | None:
    """Return the setting that chains learn which start within ``width`` of a position; None if none can start there.

    ``show`` is called after each block.
    """
    density_parameters = engine.structure.initial_noncentring()
    tries = 0

    def gradient_at(x: np.ndarray) -> np.ndarray:
        nonlocal tries
        tries += len(x)
        return engine.gradient_at(engine.structure.to_z(x, density_parameters)[0], density_parameters)

    starts = spread_starts(centre, FEWEST, None, gradient_at, rng, width)
    if starts is None:
        return None
    warming = Warming.start(engine, arguments, starts, _LENGTH, rng)
    warmup = warming.warmup
    assert warmup is not None
    while not warming.finished:
        warming.block(engine)
        show(warming, _LENGTH)
    last = chains_of(warming.ensemble.state).evaluated
    places, _ = in_model_coordinates(warming.tuned.coordinates.place(last), warming.ensemble.evaluation)
    return Learnt(warming.tuned, places.copy(), bool(warmup.passed), tries + int(warming.n_grad.sum()))


def seed_of(arguments: MethodArguments, layout: Layout) -> np.random.Generator:
    """Return the random numbers of the learning, which follow from the arguments and the names and shapes of a model.

    PyMC tells no step its seed before chains start.
    """
    text = repr((arguments, [(name, shape) for name, shape, *_ in layout]))
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest()))


def options_of_call() -> dict[str, Any]:
    """Return the arguments of the call of ``pm.sample`` in progress, empty outside one.

    PyMC asks a step for its statistics before chains start, and tells it neither the length of the warm-up then nor
    whether to be quiet.
    """
    frame = sys._getframe()
    while frame is not None and frame.f_code is not pm.sample.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    return dict(frame.f_locals) if frame is not None else {}


class Watch:
    """What is shown while a setting is learnt: a bar, if that takes long, and lines at the end."""

    def __init__(self, method: str, quiet: bool, progressbar: bool):
        self._method = method
        self._quiet = quiet
        self._began = time.monotonic()
        self._bar = Progress(transient=True, disable=not progressbar)
        self._task = self._bar.add_task(f"{method} learns its setting", total=_LENGTH)

    @contextmanager
    def shown(self) -> Iterator[Callable[[Warming, int], None]]:
        """Yield the function that is called after each block; Ctrl-C ends the call of ``pm.sample``."""
        try:
            yield self._advance
        except KeyboardInterrupt:
            _log.warning("Stopped while %s learnt its setting: there are no draws", self._method)
            raise KeyboardInterrupt from None
        finally:
            self._bar.stop()

    def _advance(self, warming: Warming, length: int) -> None:
        if time.monotonic() - self._began > _PATIENCE and not self._bar.live.is_started:
            self._bar.start()
        self._bar.update(self._task, completed=min(warming.ensemble.transition, length))

    def log(self, lines: Sequence[str]) -> None:
        """Log lines, unless the call is to be quiet."""
        if not self._quiet:
            for line in lines:
                _log.info("%s", line)

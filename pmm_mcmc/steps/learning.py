"""The setting of a step, learnt once before its chains start, by the warm-up of ``pmm.sample``."""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from pymc.sampling import mcmc
from rich.progress import Progress

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Engine, TunedParameters, chains_of, in_model_coordinates
from pmm_mcmc.langevin.methods import Scheme
from pmm_mcmc.model.initial_points import JITTER, spread_starts
from pmm_mcmc.model.pytensor_density import Layout
from pmm_mcmc.warmup import step_size
from pmm_mcmc.warmup.warming import FEWEST, Warming

__all__ = ["Learnt", "Watch", "learn", "options_of_call", "seed_of"]

_log = logging.getLogger("pmm_mcmc")

# Transitions of each chain that a setting is learnt from, at most: those of ``pmm.sample``.
_LENGTH = 1000
# Share of the step of "auto" below which a step is said to be short, and by which a given one is too long.
_CLEAR = 0.8
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
    remarks
        Lines about it, for its user.
    """

    tuned: TunedParameters
    places: np.ndarray
    settled: bool
    n_grad: int
    remarks: tuple[str, ...] = ()


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
    settled = bool(warmup.passed)
    remarks = _remarks(arguments, warming.tuned, warmup.curvature, settled)
    return Learnt(warming.tuned, places.copy(), settled, tries + int(warming.n_grad.sum()), remarks)


def _remarks(arguments: MethodArguments, tuned: TunedParameters, curvature: float, settled: bool) -> tuple[str, ...]:
    """Return lines about a setting that was not learnt, a given step that is too long, and one that is held short."""
    lines = []
    method = arguments.method
    if not settled and arguments.step_size is None:
        lines.append(f"{method}: its setting failed its last check; look at pmm.verdict(dt) before you use the draws")
    kernel = arguments.kernel
    if kernel.adjusted or not len(tuned.coordinates.centre):
        return tuple(lines)
    step = tuned.step_size
    longest = step_size.longest_step(arguments, tuned, curvature)
    if arguments.step_size is not None and step > longest / _CLEAR:
        lines.append(
            f"{method}: step_size={step:.3g} is too long for target_bias={arguments.target_bias:g}, at which 'auto' "
            f"takes {longest:.2g}: variances are off by much more"
        )
    free = _longest_on_any_grid(arguments, tuned, curvature)
    if arguments.step_size is None and kernel.scheme == Scheme.CELLS and longest < _CLEAR * free:
        held = f"K={arguments.K}" * (arguments.K is not None) or f"option={arguments.option}"
        lines.append(
            f"{method}: {held} on the {arguments.grid} grid holds the step at {longest:.2g}, where K='auto' takes "
            f"{free:.2g}"
        )
    return tuple(lines)


def _longest_on_any_grid(arguments: MethodArguments, tuned: TunedParameters, curvature: float) -> float:
    """Return the longest step of a method with the number of cells that suits it."""
    if "Poisson" not in arguments.method or arguments.scheme != "paper":
        return 0.0
    free = replace(arguments, K=None, grid="left", option=2)
    return step_size.longest_step(free, tuned, curvature)


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
    while frame is not None and frame.f_code is not mcmc.sample.__code__:
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

    def report(self, learnt: Learnt | None) -> None:
        """Log what was learnt, and remarks, unless the call is to be quiet."""
        if learnt is None or self._quiet:
            return
        _log.info(
            "%s learnt its setting in %s gradients: step_size %.3g, %d transitions a draw. After the draws, "
            "pmm.verdict(dt) says what they are worth",
            self._method, f"{learnt.n_grad:,}", learnt.tuned.step_size, learnt.tuned.steps_per_draw,
        )  # fmt: skip
        for line in learnt.remarks:
            _log.warning("%s", line)

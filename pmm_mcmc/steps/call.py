"""The call of ``pm.sample`` in progress, as a step sees it: its arguments, and what is shown while a setting is learnt.

PyMC asks a step for its statistics before chains start, and tells it neither the model then, nor the lengths of warm-up
and run, nor whether to be quiet: they are read from the frame of ``pm.sample``.  Where PyMC has moved it, a step takes
the defaults.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from pymc.sampling import mcmc
from rich.progress import Progress

from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.model.pytensor_density import Layout
from pmm_mcmc.warmup.learning import LENGTH, Learnt
from pmm_mcmc.warmup.warm_up import Warming

__all__ = ["Watch", "options_of_call", "seed_of"]

_log = logging.getLogger("pmm_mcmc")

# Seconds after which a bar shows the learning.
_PATIENCE = 1.0


def options_of_call() -> dict[str, Any]:
    """Return the arguments, and other variables, of the call of ``pm.sample`` in progress; empty outside one."""
    code = getattr(inspect.unwrap(getattr(mcmc, "sample", options_of_call)), "__code__", None)
    frame = sys._getframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back  # type: ignore[assignment]
    return dict(frame.f_locals) if frame is not None else {}


def seed_of(arguments: MethodArguments, layout: Layout) -> np.random.Generator:
    """Return the random numbers of the learning, which follow from the arguments and the names and shapes of a model.

    PyMC tells no step its seed before chains start.
    """
    text = repr((arguments, [(name, shape) for name, shape, *_ in layout]))
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest()))


class Watch:
    """What is shown while a setting is learnt: a bar, if that takes long, and lines at the end."""

    def __init__(self, method: str, options: dict[str, Any]):
        self._method = method
        self._quiet = bool(options.get("quiet", False))
        self._tune = options.get("tune")
        self._began = time.monotonic()
        self._bar = Progress(transient=True, disable=self._quiet or not options.get("progressbar", True))
        self._task = self._bar.add_task(f"{method} learns its setting", total=LENGTH)

    @contextmanager
    def shown(self) -> Iterator[Callable[[Warming], None]]:
        """Yield the function that is called after each block; Ctrl-C ends the call of ``pm.sample``."""
        try:
            yield self._advance
        except KeyboardInterrupt:
            _log.warning("Stopped while %s learnt its setting: there are no draws", self._method)
            raise KeyboardInterrupt from None
        finally:
            self._bar.stop()

    def _advance(self, warming: Warming) -> None:
        if time.monotonic() - self._began > _PATIENCE and not self._bar.live.is_started:
            self._bar.start()
        self._bar.update(self._task, completed=min(warming.ensemble.transition, LENGTH))

    def report(self, learnt: Learnt) -> None:
        """Log what was learnt, and remarks, unless the call is to be quiet."""
        if self._quiet:
            return
        tuned = learnt.tuned
        _log.info(
            "%s learnt its setting for all chains in %s gradients: step_size %.3g, steps_per_draw %d",
            self._method, f"{learnt.n_grad:,}", tuned.step_size, tuned.steps_per_draw,
        )  # fmt: skip
        lines = learnt.remarks
        if self._tune is not None and self._tune < learnt.forgetting:
            lines.append(
                f"tune={self._tune} is too short: chains forget where they start after {learnt.forgetting} "
                "transitions; leave tune out"
            )
        for line in lines:
            _log.warning("%s: %s", self._method, line)

"""Chains of a PyMC model that begin on a tape, and the transition from which compiled code advances them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pmm_mcmc.coordinates.affine import Coordinates
from pmm_mcmc.engines.arguments import MethodArguments
from pmm_mcmc.engines.contract import Chunk, Engine, Ensemble, TunedParameters, evaluated_at
from pmm_mcmc.engines.numba_engine import NumbaEngine
from pmm_mcmc.model.checks import CHECKS
from pmm_mcmc.model.pytensor_density import PyTensorDensity
from pmm_mcmc.model.user_density import LogDensity
from pmm_mcmc.tape import loop
from pmm_mcmc.tape.build import Tape, Unsupported, address_of
from pmm_mcmc.tape.density import TapedDensity

# Largest difference between tape and PyTensor, relative to the largest number of an evaluation.
_TOLERANCE = 1e-6
# Seconds to compile a log density, of each instruction, and of the first factor or triangular system: eight schools
# (164 instructions) took 4.9 s of CPU, rugby (296) 6.3, item response (56) 1.4, BYM (188) 3.5, LKJ (149) 22.
_COMPILATION = (1.0, 0.018, 15.0)
# Seconds of an instruction, of an element, of one that is a function, and of a product in BLAS or LAPACK: fitted to 72
# models of the scoreboard (python -m benchmarks cold_start --gradients), of which it is within a factor of two.
_GRADIENT = (6e-9, 0.4e-9, 4.4e-9, 0.1e-9)
# Cells of an instruction with the sizes whose product is the number of products.
_SIZES = {"dgemv": [4, 5], "dgemm": [5, 6, 7], "dpotrf": [4, 4, 4], "dtrsm": [7, 8, 8]}
# Compilations that the work on a tape may cost before there is one.  Threads share that work, and most models gain half
# of it: at 2 no run takes much longer than it would with the better of the two.
_SHARE = 2.0


class TapedEngine(Engine):
    """The engine of chains that a tape advances up to a transition, and compiled functions from it on.

    Tape and functions differ in the last bits.  Where functions take over depends neither on what was compiled before
    nor on interruptions: the transition follows from the tape and the number of chains, and how many a chain has made
    is part of its state.
    Single evaluations are always the tape's.
    """

    def __init__(self, tape: NumbaEngine, compiled: Callable[[], NumbaEngine], density: PyTensorDensity, switch: int):
        self.kernel = tape.kernel
        self.d = tape.d
        self.width = tape.width
        self.structure = tape.structure
        self.switch = switch
        self.tape = tape
        self._compiled = compiled
        self._density = density

    @property
    def words(self) -> str:
        """What runs the chains."""
        return f"tape, numba from transition {self.switch}"

    @property
    def workspaces(self) -> int:
        """Bytes of the workspaces of all threads, and of the one that they are copies of."""
        return int((1 + self.tape.threads) * self._density.tape.current().workspace.nbytes)

    def adjusted(self) -> TapedEngine:
        """Return the engine of adjusted draws: see :class:`pmm_mcmc.engines.contract.Engine`."""
        return TapedEngine(self.tape.adjusted(), lambda: self._compiled().adjusted(), self._density, self.switch)

    def evaluate(self, coordinates: Coordinates, state: np.ndarray) -> np.ndarray:
        """Evaluate by the tape: see :class:`pmm_mcmc.engines.contract.Engine`."""
        return self.tape.evaluate(coordinates, state)

    def waits(self, transition: int) -> bool:
        """Return whether chains need functions that are not compiled yet to come to a transition."""
        return transition > self.switch and not self._density.compiled

    def compile(self) -> NumbaEngine:
        """Return the engine of compiled functions, which are compiled once."""
        return self._compiled()

    def advance(
        self, setting: TunedParameters, chains: Ensemble, rows: int, *, thin: int = 1, tolerance: float = 0.0
    ) -> Chunk:
        """Advance chains side by side: see :class:`pmm_mcmc.engines.contract.Engine`."""
        on_tape = min(rows, max(0, -(-(self.switch - chains.transition) // thin)))
        options: Any = {"thin": thin, "tolerance": tolerance}
        if on_tape == rows:
            return self.tape.advance(setting, chains, rows, **options)
        head = self.tape.advance(setting, chains, on_tape, **options)
        later = Ensemble(chains.state, chains.evaluation, chains.keys, chains.transition + on_tape * thin)
        tail = self._compiled().advance(setting, later, rows - on_tape, **options)
        return Chunk(*(np.concatenate(arrays, axis=1) for arrays in zip(head, tail, strict=True)))


def engine_of(
    arguments: MethodArguments,
    density: PyTensorDensity,
    centre: np.ndarray,
    threads: int,
    chains: int,
    announce: Callable[[str], None],
    refuse: Callable[[], None] = lambda: None,
) -> NumbaEngine | TapedEngine:
    """Return the engine of a model's density that begins on a tape, or numba's, with a line, where no tape runs it.

    ``centre`` is the model's initial point, near which a tape must agree with PyTensor; ``refuse`` raises an error if
    the model is at fault where the tape has failed.
    """
    try:
        density.tape = density.tape or TapedDensity(density)
        tape = NumbaEngine.of(arguments, density.tape, threads)
        current = density.tape.current()
        if density.tape.checked is not current:
            _check(tape, density.tape, centre + 0.1 * np.random.default_rng(0).standard_normal(density.d))
            density.tape.checked = current
        switch = math.ceil(_SHARE * _compilation(current) / (chains * _gradient(current)))
        return TapedEngine(tape, lambda: NumbaEngine.of(arguments, density, threads), density, switch)
    except Exception as reason:  # of any kind: a fault of the tape must not keep a model from its draws
        if isinstance(reason, ValueError | IndexError):
            refuse()
        what = reason if isinstance(reason, Unsupported) else f"it ({type(reason).__name__}: {reason})"
        announce(f"Numba compiles the log density, so the start is slower: no interpreter (tape) runs {what}")
        return NumbaEngine.of(arguments, density, threads)


def c_engine_of(arguments: MethodArguments, density: LogDensity, threads: int) -> NumbaEngine:
    """Return the engine of a C function, which a tape calls where variables of it are non-centred."""
    composed = density.composed
    if composed is None:
        return NumbaEngine.of(arguments, density, threads)
    composed.tape = composed.tape or TapedDensity(composed)
    return NumbaEngine.of(arguments, composed.tape, threads)


def _check(engine: NumbaEngine, tape: TapedDensity, z: np.ndarray) -> None:
    """Raise an error if a tape and PyTensor differ at a position."""
    lp, evaluation = evaluated_at(engine.evaluate, z)
    try:
        with np.errstate(all="ignore"):
            value, expected = tape.by_pytensor(z)
    except (*CHECKS, np.linalg.LinAlgError):
        value = np.nan
    if not np.isfinite(value):
        return
    gap = np.append(evaluation - expected, lp - value)
    if not np.abs(gap).max() <= _TOLERANCE * np.abs(np.append(expected, value)).max():
        raise Unsupported("it to the values of PyTensor")


def _compilation(tape: Tape) -> float:
    """Return the seconds that numba takes on average to compile what a tape runs."""
    base, instruction, factorisation = _COMPILATION
    factors = np.isin(tape.code[:, 1], [address_of(name) for name in ("dpotrf", "dtrsm")])
    return base + instruction * len(tape.code) + factorisation * bool(factors.any())


def _gradient(tape: Tape) -> float:
    """Return the seconds that a tape takes on average."""
    instruction, element, function, product = _GRADIENT
    code, rows, columns = (tape.code[:, i].astype(float) for i in range(3))
    foreign = code >= loop.FOREIGN
    calls = (code >= loop.SIGMOID) & (code <= loop.CALL)
    seconds = instruction * len(code) + (np.where(calls, function, element) * rows * columns)[~foreign].sum()
    for name, cells in _SIZES.items():
        each = tape.code[foreign & (tape.code[:, 1] == address_of(name))].astype(float)
        seconds += product * each[:, cells].prod(axis=1).sum()
    return float(seconds)

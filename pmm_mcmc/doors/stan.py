"""Stan models through BridgeStan's interface: the C function of their log density, and draws on their own scale."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pmm_mcmc.api import ResultTree, checked_values
from pmm_mcmc.doors.c_function import CFunction, PointerDensity
from pmm_mcmc.doors.stan_statements import StanChildren, kinds_of

__all__ = ["stan_density", "stan_program"]

_log = logging.getLogger("pmm_mcmc")

# Its form in C: called directly it takes a tenth of the time of the method of this name.
_PARAM_CONSTRAIN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool, *[ctypes.c_void_p] * 4)

_NEEDED = (
    "stanlib", "model", "data", "param_unc_num", "param_constrain", "param_unconstrain", "param_names", "new_rng",
)  # fmt: skip


def stan_program(program: Any, data: Any) -> tuple[Any, str]:
    """Return the model of a Stan program with its data, as of BridgeStan, and the program."""
    try:
        import stanli
    except ImportError as error:
        raise ImportError(
            "LogDensity.from_stan needs stanli: pip install 'pmm-mcmc[stan]'; with a C++ compiler, "
            "LogDensity.from_bridgestan(bridgestan.StanModel(...)) does without"
        ) from error
    if not isinstance(program, str | os.PathLike):
        raise ValueError(f"program={program!r}: must be the path of a Stan file, or the program as a string")
    is_code = isinstance(program, str) and "{" in program
    if not is_code and not Path(program).is_file():
        raise ValueError(f"program={str(program)!r}: there is no such file")
    code = str(program) if is_code else Path(program).read_text(encoding="utf-8")
    directory = Path.cwd() if is_code else Path(program).parent
    if data is not None and not isinstance(data, Mapping | str | os.PathLike):
        raise ValueError(f"data={data!r}: must be a dict, or the path of a JSON file")
    try:
        compiled = _compiled(code, directory)
        values = dict(data) if isinstance(data, Mapping) else data
        return stanli.bridgestan_model(mir=compiled, data=values, name=None if is_code else Path(program).stem), code
    except (RuntimeError, ValueError, TypeError, OSError) as error:
        raise ValueError(f"Stan refuses the program or its data: {error}") from error


_COMPILE = """
import sys, stanli
try:
    sys.stdout.write(stanli.stan_to_mir(sys.stdin.read(), [sys.argv[1]]))
except Exception as error:
    sys.exit(str(error))
"""


def _compiled(code: str, directory: Path) -> str:
    """Return the program in stanli's intermediate form, compiled in a process of its own.

    Once JAX has used the processor's matrix registers (AMX), stanc's runtime finds no room for signals and ends the
    process that it is in.
    """
    process = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", _COMPILE, str(directory)],
        input=code, capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    if process.returncode:
        raise ValueError(process.stderr.strip())
    return process.stdout


def _values(model: Any) -> dict[str, Any] | None:
    text = str(model.data or "{}")
    try:
        values = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8"))
    except (ValueError, OSError):
        return None
    return {name: value for name, value in values.items() if name != "__stanli"} if isinstance(values, dict) else None


def stan_density(model: Any, code: str, children: Any) -> PointerDensity:
    """Return the density of a ``bridgestan.StanModel``.

    Parameters that may be non-centred are those of ``children`` or, for None, of the statements of the program.
    Constants are dropped, and the Jacobian of the constraints is part of the density.
    """
    missing = [name for name in _NEEDED if not hasattr(model, name)]
    if missing or not hasattr(model.stanlib, "bs_log_density_gradient"):
        raise ValueError(
            f'model={model!r}: must be a bridgestan.StanModel, such as bridgestan.StanModel("model.stan", data)'
        )
    ndim = int(model.param_unc_num())
    if ndim < 1:
        raise ValueError(f"model={model!r}: the Stan model has no parameters, so there is nothing to sample")
    threads = bool(re.search(r"STAN_THREADS\s*=\s*(true|1)", model.model_info(), re.IGNORECASE))
    address = ctypes.cast(model.stanlib.bs_log_density_gradient, ctypes.c_void_p).value
    assert address is not None
    function = CFunction(address, int(model.model), model, of_stan=True)
    density = PointerDensity(function, ndim, threads)
    coordinates = _coordinates(model)
    density.layout = _layout(model, coordinates, code)
    density.start = _start(model)
    if children is not None or code:
        places = _variables(coordinates)
        kinds = kinds_of(model, coordinates)
        hierarchy = StanChildren(places, kinds, _values(model) or {}, children, code)
        density.shapes = hierarchy.shapes
        density.children = hierarchy.children

    def explain(x: np.ndarray) -> str:
        try:
            model.log_density_gradient(x)
        except RuntimeError as error:
            return str(error)
        return function.explain(x)

    density.explain = explain
    return density


def _coordinates(model: Any) -> list[str]:
    """Return the label of each unconstrained coordinate.

    Stan lists an array of vectors by columns, and keeps it by rows: values tell which is which where there is no bound.
    """
    labels = model.param_unc_names()
    probe = 1e-3 * np.sqrt(np.arange(2.0, len(labels) + 2))
    try:
        values = model.param_constrain(probe)
    except RuntimeError:  # where Stan has no value there
        return list(labels)
    label_of = dict(zip(values, model.param_names(), strict=True))
    return [label_of.get(x, label) for x, label in zip(probe, labels, strict=True)]


def _layout(model: Any, coordinates: list[str], code: str) -> ResultTree:
    """Return the map from unconstrained draws to parameters, transformed parameters and generated quantities."""
    # To make a generator takes longer than the quantities of a small program.
    is_random = not code or "_rng" in code or "#include" in code
    labels = model.param_names(include_tp=True, include_gq=True)
    places = _variables(labels)
    generates = len(labels) > len(model.param_names(include_tp=True))
    constrain = _PARAM_CONSTRAIN(("bs_param_constrain", model.stanlib))
    failures: list[str] = []

    def values(position: np.ndarray) -> dict[str, np.ndarray]:
        flat = np.ascontiguousarray(position, dtype=float).reshape(-1, position.shape[-1])
        everything = np.empty((len(flat), len(labels)))
        source = flat.ctypes.data
        target = everything.ctypes.data
        rng = model.new_rng(0) if generates else None
        for i, x in enumerate(flat):
            # The draw is its own seed, so that its generated quantities do not depend on chunks or on a restart.
            if generates and is_random:
                rng = model.new_rng(zlib.crc32(x.tobytes()))
            places_of_draw = (source + i * flat.strides[0], target + i * everything.strides[0])
            if constrain(model.model, True, generates, *places_of_draw, rng and rng.ptr, None):
                everything[i] = np.nan  # as by an error in generated quantities, which must not end the run
                if not failures:
                    failures.append(_failure(model, x, generates))
                    _log.warning("Variables of a draw are NaN, since Stan could not compute them: %s", failures[0])
        shapes = {name: (*position.shape[:2], *shape) for name, (shape, _) in places.items()}
        return {name: everything[:, columns].reshape(shapes[name]) for name, (_, columns) in places.items()}

    names = [re.sub(r"\.(\d+(?:\.\d+)*)$", _in_brackets, name) for name in coordinates]
    return ResultTree(names, values, lambda: ({}, {}), dict)


def _failure(model: Any, x: np.ndarray, generates: bool) -> str:
    """Return what Stan says of a position whose variables it could not compute."""
    try:
        model.param_constrain(x, include_tp=True, include_gq=generates, rng=model.new_rng(0) if generates else None)
    except RuntimeError as error:
        return str(error)
    return "an error of some random numbers only"


def _start(model: Any) -> Callable[[Mapping[str, Any]], np.ndarray]:
    """Return the map from values of parameters by name to the unconstrained vector.

    Parameters that are not given are where a vector of zeros is.
    """
    places = _variables(model.param_names())

    def start(initvals: Mapping[str, Any]) -> np.ndarray:
        everything = np.array(model.param_constrain(np.zeros(int(model.param_unc_num()))), dtype=float)
        shapes = {name: shape for name, (shape, _) in places.items()}
        for name, values in checked_values(initvals, shapes, "the Stan model").items():
            everything[places[name][1]] = values.ravel()
        try:
            return np.array(model.param_unconstrain(everything), dtype=float)
        except RuntimeError as error:
            raise ValueError(f"initvals={dict(initvals)!r}: {error}") from error

    return start


def _in_brackets(match: re.Match[str]) -> str:
    return f"[{', '.join(str(int(i) - 1) for i in match[1].split('.'))}]"


def _variables(labels: list[str]) -> dict[str, tuple[tuple[int, ...], np.ndarray]]:
    """Return shape and columns, in C order, of each variable from labels such as ``b.2.3``.

    Columns that do not fill a rectangle, such as a member of a tuple, keep their labels.
    """
    columns_of: dict[str, dict[tuple[int, ...], int]] = {}
    for column, label in enumerate(labels):
        name, *index = label.split(".")
        if all(digits.isdigit() for digits in index):
            columns_of.setdefault(name, {})[tuple(int(digits) - 1 for digits in index)] = column
        else:
            columns_of[label] = {(): column}
    places: dict[str, tuple[tuple[int, ...], np.ndarray]] = {}
    for name, columns in columns_of.items():
        shape = tuple(int(n) + 1 for n in np.max(list(columns), axis=0)) if () not in columns else ()
        if set(columns) == set(np.ndindex(*shape)):
            places[name] = shape, np.array([columns[index] for index in np.ndindex(*shape)])
        else:
            places |= {labels[column]: ((), np.array([column])) for column in columns.values()}
    return places

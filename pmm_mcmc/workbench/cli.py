"""``python -m pmm_mcmc``: a report on a stored run, a comparison of samplers, the gallery of targets.

Exit codes: 0 all is well; 1 the report is written and says that the run is not to be trusted; 2 an argument is wrong,
and nothing is written; 3 a mistake of this package; 130 interrupted.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import logging
import os
import sys
import textwrap
import traceback
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from pmm_mcmc import steps
from pmm_mcmc.langevin.methods import METHODS
from pmm_mcmc.run.storage import NothingStored, StoreError, open_store
from pmm_mcmc.workbench import targets
from pmm_mcmc.workbench.comparison import compare
from pmm_mcmc.workbench.comparison.page import comparison_page
from pmm_mcmc.workbench.report.files import check_place, write_page
from pmm_mcmc.workbench.report.run import page_of

__all__ = ["main"]


class ExitCode(IntEnum):
    """What the command line returns; see :func:`main`."""

    OK = 0
    NOT_TRUSTED = 1
    WRONG = 2
    BROKEN = 3
    INTERRUPTED = 130


# What compare knows by name beside the methods of this package.
_OTHERS = ("default", "nuts", "nutpie")
# Multiples of the tuned step size for --steps.
_STEPS = (0.25, 0.5, 2.0)
_SAMPLERS = ("default", "PoissonULMC(K=16)", "PoissonULMC(scheme=recycled)", "ULMC", "OLMC", "nuts")


class _Wrong(Exception):
    """An invalid argument; the message goes to the user."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments
        Arguments of the command, by default those of the process.

    Returns
    -------
    int
        The exit code: 0 all is well; 1 the report is written and says that the run is not to be trusted; 2 an argument
        is wrong, and nothing is written; 3 a mistake of this package; 130 interrupted.
    """
    try:
        given = _parser().parse_args(arguments)
    except SystemExit as stop:  # argparse has printed an error or the help
        return int(stop.code or 0)
    logging.basicConfig(format="%(message)s")
    try:
        return given.run(given)
    except _Wrong as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return ExitCode.WRONG
    except KeyboardInterrupt:
        print("interrupted; nothing is written", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except Exception:
        traceback.print_exc()
        print("error: this is a mistake of pmm_mcmc; the lines above say where", file=sys.stderr)
        return ExitCode.BROKEN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pmm_mcmc",
        description="Reports on Langevin samplers that say how far they may be trusted.",
        epilog="python -m pmm_mcmc COMMAND --help has more on each.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    report = _command(
        commands, "report", _report, "write the report on a stored run",
        "Write the report on a stored run: one HTML file with the verdict, the bias of each parameter and figures.",
        "python -m pmm_mcmc report run.zarr\npython -m pmm_mcmc report run.zarr -o reports/run.html --force",
        "exit codes: 0 written; 1 written, and the run is not to be trusted; 2 an argument is wrong, none is written",
    )  # fmt: skip
    report.add_argument("store", metavar="STORE", help="the store= of pmm.sample, or what to_zarr wrote of a result")
    _output(report, "the name of the store, with .html")

    compare = _command(
        commands, "compare", _compare, "compare samplers on a target of the gallery",
        "Give each sampler the same number of gradients on a posterior with a known answer, and write the report.",
        "python -m pmm_mcmc compare galaxies --n-grad 200000 -o report.html\n"
        "python -m pmm_mcmc compare banana --sampler 'PoissonULMC(K=32)' --sampler nuts",
        "exit codes: 0 written; 2 an argument is wrong, nothing is written",
    )  # fmt: skip
    compare.add_argument("target", metavar="TARGET", help="a name that 'python -m pmm_mcmc targets' lists")
    compare.add_argument(
        "--n-grad", type=_count, default=200_000, metavar="N",
        help="gradients that each sampler may spend, warm-up included (default 200000)",
    )  # fmt: skip
    compare.add_argument(
        "--sampler", action="append", metavar="NAME",
        help="a method, with arguments if any, such as ULMC, 'PoissonULMC(K=32)' or 'PoissonULMC(scheme=recycled)', "
        f"or one of {', '.join(_OTHERS)}; may be given again (default: {', '.join(_SAMPLERS)})",
    )  # fmt: skip
    compare.add_argument(
        "--steps", action="store_true",
        help="measure the errors at a quarter, half and twice the step size too: three more runs, of N gradients each, "
        "for each sampler but default, nuts and nutpie",
    )  # fmt: skip
    compare.add_argument(
        "--random-seed", type=_seed, default=1, metavar="N", help="random seed of all chains (default 1)"
    )
    _output(compare, "the name of the target, with .html")

    targets = _command(
        commands, "targets", _targets, "list the gallery of targets",
        "List the posteriors with known answers, or say what one of them is and what is hard about it.",
        "python -m pmm_mcmc targets\npython -m pmm_mcmc targets funnel",
        "exit codes: 0 fine; 2 there is no such target",
    )  # fmt: skip
    targets.add_argument("target", metavar="TARGET", nargs="?", help="a target to be told about")
    return parser


def _command(commands: Any, name: str, run: Any, brief: str, text: str, examples: str, codes: str) -> Any:
    parser = commands.add_parser(
        name, help=brief, description=text, epilog=f"examples:\n{textwrap.indent(examples, '  ')}\n\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(run=run)
    return parser


def _output(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"the file to write (default: {default})")
    parser.add_argument("--force", action="store_true", help="replace the file if it is there")


def _count(text: str) -> int:
    """Return a whole number of at least 1 from text such as 200000, 200_000 or 2e5."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not (1 <= number < 2**53 and number.is_integer()):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1, such as 200000 or 2e5")
    return int(number)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 0")
    return int(text)


def _report(given: argparse.Namespace) -> int:
    name = Path(given.store.rstrip("/")).name
    output = _place(given, f"{name.removesuffix('.zarr')}.html")
    result = _opened(given.store)
    try:
        page = page_of(result, f"Report on {name}")
        html = page.html()
    except (ValueError, ImportError, StoreError) as error:
        raise _Wrong(f"{given.store}: {error}") from error
    _written(write_page, html, output)
    print(f"{output}: {page.verdict.headline}.")
    for sentence in page.verdict.sentences:
        print(f"  {sentence}")
    return ExitCode.NOT_TRUSTED if page.verdict.tone == "bad" else ExitCode.OK


def _compare(given: argparse.Namespace) -> int:
    output = _place(given, f"{given.target}.html")
    target = _target(given.target)
    samplers = [_sampler(words) for words in given.sampler or _SAMPLERS]
    try:
        steps = _STEPS if given.steps else ()
        comparison = compare(target, samplers, n_grad=given.n_grad, random_seed=given.random_seed, step_multiples=steps)
        html = comparison_page(comparison)
    except (ValueError, ImportError) as error:
        raise _Wrong(str(error)) from error
    _written(write_page, html, output)
    print(f"{output}: {comparison.title}")
    for sentence in comparison.verdict:
        print(f"  {sentence}")
    return ExitCode.OK


def _targets(given: argparse.Namespace) -> int:
    if given.target is not None:
        one = _target(given.target)
        print(f"{one.name}: {one.title} ({one.ndim} dimensions)")
        print(textwrap.fill(one.note, 100))
        return ExitCode.OK
    every = [targets.get(name) for name in targets.list()]
    width = max(len(one.name) for one in every)
    for one in every:
        print(f"{one.name:{width}}  {one.ndim:>4}  {one.title}")
    return ExitCode.OK


def _target(name: str) -> Any:
    if name not in targets.list():
        near = difflib.get_close_matches(name, targets.list(), n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise _Wrong(f"{name}: there is no such target; {hint}'python -m pmm_mcmc targets' lists them")
    return targets.get(name)


def _sampler(words: str) -> Any:
    """Return the sampler for text such as ``PoissonULMC``, ``PoissonULMC(K=16)`` or ``nuts``."""
    if words in _OTHERS:
        return words
    choices = [*METHODS, *_OTHERS]
    name, arguments = _call(words)
    if name not in METHODS:
        near = difflib.get_close_matches(name.lower(), [choice.lower() for choice in choices], n=1, cutoff=0.4)
        hint = next(f"did you mean {choice}? " for choice in choices if choice.lower() == near[0]) if near else ""
        raise _Wrong(f"--sampler {words}: there is no such sampler; {hint}there are {', '.join(choices)}")
    try:
        return getattr(steps, name)(**arguments)
    except (TypeError, ValueError) as error:
        raise _Wrong(f"--sampler {words}: {error}") from error


def _call(words: str) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of ``name(argument=value, ...)``; values may be words without quotation marks."""
    try:
        call = ast.parse(words.strip(), mode="eval").body
        if isinstance(call, ast.Name):
            return call.id, {}
        assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.args
        arguments = {}
        for keyword in call.keywords:
            assert keyword.arg is not None
            value = keyword.value
            arguments[keyword.arg] = value.id if isinstance(value, ast.Name) else ast.literal_eval(value)
        return call.func.id, arguments
    except (SyntaxError, ValueError, AssertionError) as error:
        raise _Wrong(
            f"--sampler {words}: must be a name with arguments, such as 'PoissonULMC(K=32)' or "
            "'PoissonULMC(scheme=recycled)'"
        ) from error


def _opened(path: str) -> Any:
    """Return the result stored at a path."""
    local = None if "://" in path else Path(path)
    if local is not None and not local.exists():
        raise _Wrong(f"{path}: there is nothing of that name{_instead(local)}")
    if local is not None and not local.is_dir():
        raise _Wrong(f"{path}: is a file, and a store is a folder: the store= of pmm.sample, or what to_zarr wrote")
    try:
        return open_store(path)
    except NothingStored as error:
        # A result written by xarray cannot be resumed, but it can be read.
        if local is None or (local / ".pmm").exists() or not (local / "zarr.json").exists():
            raise _Wrong(f"{path}: no run is stored there, or none yet; see that the path is right") from error
    except (StoreError, ImportError, OSError, ValueError) as error:
        raise _Wrong(str(error)) from error
    import xarray as xr

    try:
        return xr.open_datatree(path, engine="zarr")
    except Exception as error:
        raise _Wrong(f"{path}: could not be read: {error}") from error


def _instead(path: Path) -> str:
    """Return a hint with the store in the same folder whose name is most similar."""
    try:
        names = [one.name for one in path.parent.iterdir() if (one / "zarr.json").exists()]
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.4)
    return f"; did you mean {path.parent / near[0]}?" if near else "; see that the path is right"


def _place(given: argparse.Namespace, default: str) -> Path:
    """Return the file to write; refuse one that cannot be written, or that exists without ``--force``."""
    output = Path(default) if given.output is None else given.output
    try:
        check_place(output)
    except OSError as error:
        raise _Wrong(f"-o {error}") from error
    if output.exists() and not given.force:
        raise _Wrong(f"-o {output}: is there already; give another name, or --force to replace it")
    if output.exists() and not os.access(output, os.W_OK):
        raise _Wrong(f"-o {output}: may not be written to; give another name")
    return output


def _written(write: Any, html: str, output: Path) -> None:
    try:
        write(html, output)
    except OSError as error:
        raise _Wrong(f"-o {output}: could not be written: {error}") from error

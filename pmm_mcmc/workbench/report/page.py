"""What a report consists of, and the one file it becomes."""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, ClassVar, Literal

import pandas as pd

from pmm_mcmc._version import __version__
from pmm_mcmc.workbench.report.svg import drawn

__all__ = [
    "Cell", "Column", "Figure", "Items", "Page", "Section", "Table", "Text", "Verdict", "chosen", "number", "plain",
]  # fmt: skip

_MARKS = {"ok": "\N{CHECK MARK}", "bad": "\N{MULTIPLICATION SIGN}", "unknown": "?"}
# What neither XML nor UTF-8 can hold.
_IMPOSSIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def plain(text: Any) -> str:
    """Return text that any file can hold: control characters and half characters become the replacement character."""
    return _IMPOSSIBLE.sub("\N{REPLACEMENT CHARACTER}", str(text))


def number(value: Any, form: str = ".4g") -> str | None:
    """Write a number as in a table; ``None`` where it is not known."""
    if value is None or value is pd.NA:
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or type(value).__name__ == "bool":
        return "yes" if value else "no"
    if not isinstance(value, numbers.Number) and not hasattr(value, "dtype"):
        return str(value)
    if isinstance(value, numbers.Integral):
        return f"{int(value):,}"
    size = float(value)
    if math.isnan(size):
        return None
    if math.isinf(size):
        return "\N{INFINITY}" if size > 0.0 else "\N{MINUS SIGN}\N{INFINITY}"
    # Counts may have become floats on their way through a table; and no one reads 2.4e+03.
    if form.endswith("g") and (size.is_integer() or abs(size) >= 1000.0) and abs(size) < 1e15:
        form = ",.0f"
    text = f"{size:{form}}"
    # What rounds to nothing has no sign.
    return (text if text.strip("-0.,") else text.lstrip("-")).replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class Verdict:
    """What stands on top: a headline, and sentences below it."""

    tone: Literal["ok", "bad", "unknown", "plain"]
    headline: str
    sentences: Sequence[str] = ()


@dataclass(frozen=True)
class Column:
    """A column's name, what it means, and whether it holds numbers."""

    name: str
    meaning: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Cell:
    """Text of a cell, ``None`` where there is none to be had; ``flag`` says what is wrong with it."""

    text: str | None
    flag: str = ""


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows."""

    kind: ClassVar = "table"
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    @property
    def explained(self) -> bool:
        """Whether there is something to say about the columns."""
        return any(column.meaning for column in self.columns)

    @property
    def widest(self) -> int:
        """Characters of the longest name of a row."""
        return max((len(row[0].text or "") for row in self.rows), default=1)

    @classmethod
    def of_frame(
        cls,
        frame: pd.DataFrame,
        caption: str,
        first: str,
        meanings: Mapping[str, str],
        forms: Mapping[str, str] | None = None,
        flags: Mapping[str, tuple[Callable[[Any], bool], str]] | None = None,
        note: str = "",
    ) -> Table:
        """Make a table of a data frame, whose index names the rows.

        ``forms`` are format specifications, and ``flags`` conditions with what they mean, both by column.
        """
        forms, flags = forms or {}, flags or {}
        numeric = [_numeric(frame.iloc[:, i]) for i in range(frame.shape[1])]
        columns = [Column(first, numeric=False)]
        columns += [Column(str(n), meanings.get(n, ""), is_n) for n, is_n in zip(frame.columns, numeric, strict=True)]
        rows = []
        for label, values in zip(frame.index, frame.itertuples(index=False, name=None), strict=True):
            row = [Cell(str(label))]
            for name, value in zip(frame.columns, values, strict=True):
                wrong, why = flags.get(name, (None, ""))
                text = number(value, forms.get(name, ".4g"))
                row.append(Cell(text, why if wrong is not None and text is not None and wrong(value) else ""))
            rows.append(row)
        return cls(caption, columns, rows, note)


def _numeric(column: pd.Series) -> bool:
    known = column.dropna()
    return all(isinstance(value, numbers.Number) and not isinstance(value, bool) for value in known)


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    kind: ClassVar = "text"
    text: str


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    kind: ClassVar = "list"
    items: Sequence[str]


@dataclass(frozen=True)
class Figure:
    """A figure of matplotlib, and what it shows, in words."""

    kind: ClassVar = "figure"
    caption: str
    source: Any

    @functools.cached_property
    def _drawn(self) -> Any:
        return drawn(self.source)

    @property
    def png(self) -> str:
        """A data address, where the figure holds too much to be a drawing."""
        if self._drawn.png is None:
            return ""
        return "data:image/png;base64," + base64.b64encode(self._drawn.png).decode("ascii")

    def svg(self, name: str) -> Any:
        """Return the drawing as markup whose names all begin with ``name``."""
        from markupsafe import Markup

        return Markup(self._drawn.named(name))


@dataclass(frozen=True)
class Section:
    """A part of a page under a tab of its own."""

    title: str
    blocks: Sequence[Table | Figure | Text | Items]


@dataclass(frozen=True)
class Page:
    """A report: title, verdict, facts in a few words, sections."""

    title: str
    verdict: Verdict
    sections: Sequence[Section]
    facts: Mapping[str, str] = field(default_factory=dict)

    def html(self) -> str:
        """Return one file that loads nothing from elsewhere; equal pages give equal files.

        Raises
        ------
        ImportError
            If Jinja2 is not installed.
        """
        style, script = _part("page.css"), _part("page.js")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
        text = _template().render(
            page=self, marks=_MARKS, version=__version__, style=_trusted(style), script=_trusted(script),
            script_hash=f"sha256-{digest}",
        )  # fmt: skip
        return plain(text)


def chosen(labels: Iterable[str], concern: Iterable[float], most: int) -> list[str]:
    """Return at most so many labels, those of most concern first; unknown concern comes last."""
    ordered = sorted(zip(labels, concern, strict=True), key=lambda pair: -pair[1] if pair[1] == pair[1] else math.inf)
    return [label for label, _ in ordered[:most]]


def _part(name: str) -> str:
    return resources.files("pmm_mcmc.workbench.report").joinpath("templates", name).read_text(encoding="utf-8")


def _trusted(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)


@functools.cache
def _template() -> Any:
    try:
        import jinja2
    except ImportError as error:
        raise ImportError("reports need Jinja2 and matplotlib: pip install 'pmm-mcmc[report]'") from error
    # Everything that is not marked as trusted here is escaped.
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(_part("page.html"))

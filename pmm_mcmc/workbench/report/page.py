"""The parts of a report, and its rendering as one HTML file."""

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
# Characters that XML or UTF-8 cannot represent.
_IMPOSSIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def plain(text: Any) -> str:
    """Return text with control characters and lone surrogates replaced by the replacement character."""
    return _IMPOSSIBLE.sub("\N{REPLACEMENT CHARACTER}", str(text))


def number(value: Any, form: str = ".4g") -> str | None:
    """Return a value as text for a table; ``None`` if it is missing."""
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
    # Counts may have become floats in a table, and large numbers are easier to read without an exponent.
    if form.endswith("g") and (size.is_integer() or abs(size) >= 1000.0) and abs(size) < 1e15:
        form = ",.0f"
    text = f"{size:{form}}"
    # A number that rounds to zero has no sign.
    return (text if text.strip("-0.,") else text.lstrip("-")).replace("-", "\N{MINUS SIGN}")


@dataclass(frozen=True)
class Verdict:
    """The top of a report: a headline, and sentences below it."""

    tone: Literal["ok", "bad", "unknown", "plain"]
    headline: str
    sentences: Sequence[str] = ()


@dataclass(frozen=True)
class Column:
    """The name and meaning of a column, and whether it contains numbers."""

    name: str
    meaning: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Cell:
    """The text of a cell, ``None`` if missing; ``flag`` is a warning about its value."""

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
        """Whether any column has a meaning to show."""
        return any(column.meaning for column in self.columns)

    @property
    def widest(self) -> int:
        """Number of characters of the longest row name."""
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
        """Return the table of a data frame, whose index names the rows.

        ``forms`` are format specifications, and ``flags`` conditions with warnings, both by column.
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
    """A figure of matplotlib with a caption."""

    kind: ClassVar = "figure"
    caption: str
    source: Any

    @functools.cached_property
    def _drawn(self) -> Any:
        return drawn(self.source)

    @property
    def png(self) -> str:
        """The figure as a data URL if it is too large for SVG, otherwise empty."""
        if self._drawn.png is None:
            return ""
        return "data:image/png;base64," + base64.b64encode(self._drawn.png).decode("ascii")

    def svg(self, name: str) -> Any:
        """Return the figure as SVG markup, with ``name`` as prefix of all its ids."""
        from markupsafe import Markup

        return Markup(self._drawn.named(name))


@dataclass(frozen=True)
class Section:
    """A part of a page with its own tab."""

    title: str
    blocks: Sequence[Table | Figure | Text | Items]


@dataclass(frozen=True)
class Page:
    """A report: title, verdict, short facts, sections."""

    title: str
    verdict: Verdict
    sections: Sequence[Section]
    facts: Mapping[str, str] = field(default_factory=dict)

    def html(self) -> str:
        """Return the page as one self-contained file; equal pages give equal files.

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
    """Return at most ``most`` labels, those of highest concern first; NaN comes last."""
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
    # Text is escaped unless it is marked as trusted.
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    return environment.from_string(_part("page.html"))

"""Conversion of matplotlib figures to SVG or PNG for a page."""

from __future__ import annotations

import io
import re
import warnings
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Any

__all__ = ["Drawing", "drawn"]


@dataclass(frozen=True)
class Drawing:
    """A figure as SVG or, if that would be too large, as PNG."""

    svg: ET.Element | None
    png: bytes | None

    def named(self, name: str) -> str:
        """Return the markup of the SVG, with ``name`` as prefix of its ids and as the id of its description."""
        assert self.svg is not None
        root = _renamed(self.svg, name)
        root.set("role", "img")
        root.set("aria-labelledby", name)
        return ET.tostring(root, encoding="unicode")


def drawn(figure: Any, most_bytes: int = 300_000) -> Drawing:
    """Draw a figure of matplotlib, which is left as it was; equal figures give equal bytes."""
    root = _bare(ET.fromstring(_saved(figure, "svg")))
    if len(ET.tostring(root)) > most_bytes:
        return Drawing(None, _saved(figure, "png", dpi=150))
    return Drawing(root, None)


def _saved(figure: Any, kind: str, **options: Any) -> bytes:
    import matplotlib as mpl

    buffer = io.BytesIO()
    # Text stays text: it can be searched and read aloud, and the reader's own fonts have more characters.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "pmm_mcmc"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from", category=UserWarning)
        none = {"Date": None, "Creator": None, "Format": None, "Type": None} if kind == "svg" else {"Software": None}
        figure.savefig(
            buffer, format=kind, bbox_inches="tight", facecolor="white", edgecolor="none", metadata=none, **options
        )
    return buffer.getvalue()


def _bare(root: ET.Element) -> ET.Element:
    """Return a copy without namespaces and global styles, for use within HTML."""
    out = ET.Element(_local(root.tag))
    for key, value in root.items():
        if key in ("d", "x", "y"):  # rounded to a hundredth of a point: they are most of the bytes
            value = re.sub(r"(\.\d\d)\d+", r"\1", value)
        if key != "version":
            out.set(_local(key), value)
    out.text, out.tail = root.text, root.tail
    for child in root:
        if _local(child.tag) != "style":
            out.append(_bare(child))
    return out


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _renamed(root: ET.Element, name: str) -> ET.Element:
    """Return a copy with ``name`` as prefix of all ids and of references to them."""
    attributes = {}
    for key, value in root.items():
        if key == "id":
            value = f"{name}-{value}"
        elif key == "href" and value.startswith("#"):
            value = f"#{name}-{value[1:]}"
        else:
            value = value.replace("url(#", f"url(#{name}-")
        attributes[key] = value
    out = ET.Element(root.tag, attributes)
    out.text, out.tail = root.text, root.tail
    out.extend(_renamed(child, name) for child in root)
    return out

"""HTML as a tree: text enters it only as text, so nothing that a name or a kernel contains can become markup.

A page loads nothing and runs nothing: its content security policy allows its own style sheet and no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element, tostring

from kforge_dynamo.pages.style import STYLE

Content = Element | str | None

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]")
"""Characters that are not seen, that turn the direction of text around, or that no encoding has."""


def visible(text: str) -> str:
    """`text` with every character that could hide or reorder others written as its escape."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def tag(name: str, /, *content: Content, **attributes: str | float) -> Element:
    """An element; `class_` and `stroke_width` stand for `class` and `stroke-width`. None is left out."""
    named = {key.rstrip("_").replace("_", "-"): visible(str(value)) for key, value in attributes.items()}
    element = Element(name, named)
    for item in content:
        if isinstance(item, Element):
            element.append(item)
        elif item is not None:
            _append_text(element, visible(item))
    return element


def _append_text(element: Element, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def table(heads: Sequence[str], rows: Iterable[Sequence[Content]], numeric: Sequence[str] = ()) -> Element:
    """A table that scrolls by itself on a narrow screen; columns named in `numeric` are aligned to the right."""
    side = ["number" if head in numeric else "text" for head in heads]
    head = tag("tr", *(tag("th", name, class_=kind, scope="col") for name, kind in zip(heads, side, strict=True)))
    lines = [tag("tr", *(tag("td", cell, class_=kind) for cell, kind in zip(row, side, strict=True))) for row in rows]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *lines)), class_="scroll")


def facts(pairs: Iterable[tuple[str, Content]]) -> Element:
    """A list of names with what they are."""
    return tag("dl", *(item for name, value in pairs for item in (tag("dt", name), tag("dd", value))))


def folded(summary: str, *content: Content) -> Element:
    """Content that is shown on a click; it needs no script."""
    return tag("details", tag("summary", summary), *content)


def section(heading: str, *content: Content) -> Element:
    """A part of a page."""
    return tag("section", tag("h2", heading), *content)


def page(title: str, *sections: Content) -> bytes:
    """The whole file in UTF-8."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", STYLE),
    )
    body = tag("body", tag("main", tag("h1", title), *sections))
    root = tag("html", head, body, lang="en")
    written: bytes = tostring(root, encoding="utf-8", method="html")
    return b"<!DOCTYPE html>\n" + written + b"\n"

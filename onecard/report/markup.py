"""Writes HTML and SVG. Text is escaped by construction: only what the functions here return counts as markup.

The content and the attributes of an element may be any text from any file. Text that is put together in another way is
still text, and a browser shows it as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import LiteralString

from onecard.visible import visible

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_ACTIVE = ("href", "src", "srcdoc", "style", "action", "formaction")  # attributes that load, run or cover something


class Markup:
    """HTML or SVG written by this module. It is not a `str`, so that a type checker sees the difference."""

    __slots__ = ("_written",)

    def __init__(self, written: str) -> None:
        self._written = written

    def __str__(self) -> str:
        return self._written


Content = str | Markup


def element(tag: LiteralString, *content: Content, **attributes: str | float | None) -> Markup:
    """`<tag class="…">content</tag>`, with everything that is not Markup escaped; without content, `<tag/>`.

    Attributes are written with `-` for `_`, and `class_` is `class`; one that is None is left out.
    """
    names = {name: name.rstrip("_").replace("_", "-") for name in attributes}
    for name in (tag, *names.values()):
        if not _NAME.fullmatch(name) or name in _ACTIVE or name.startswith("on") or name == "script":
            raise ValueError(f"reports have no {name!r}")
    written = "".join(
        f' {names[name]}="{_text(str(value))}"' for name, value in attributes.items() if value is not None
    )
    return Markup(f"<{tag}{written}>{together(content)}</{tag}>" if content else f"<{tag}{written}/>")


def together(parts: Iterable[Content], *, between: str = "") -> Markup:
    """Parts one after the other: Markup as it is, text escaped."""
    return Markup(
        _text(between).join(str(part) if isinstance(part, Markup) else _text(part) for part in parts if part != "")
    )


def page(*, title: str, style: LiteralString, body: Markup) -> str:
    """A whole HTML page, which needs no other file and runs no script."""
    sheet = Markup(f"<style>\n{style}\n</style>")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        sheet,
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _text(text: str) -> str:
    return escape(visible(text))

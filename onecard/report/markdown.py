"""Writes Markdown in which text from files is shown as it is: no markup, no links, no control characters."""

from __future__ import annotations

import re
from collections.abc import Iterable

from onecard.visible import visible

_SPECIAL = re.compile(
    r"[\\`*|\[\]]|~~|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
    r"|(?<=\w):(?=//)|(?<=www)\."  # of addresses
    r"|^\s*(?:>|[-+#](?=[\s#]|$)|\d+(?=[.)](?:\s|$)))"  # at the start of a line: quotes, lists and headings
)


def plain(words: str) -> str:
    """Words in one line that Markdown shows unchanged. An underscore within a word needs no care."""
    words = _one_line(words).replace("&", "&amp;").replace("<", "&lt;")
    return _SPECIAL.sub(_escaped, words)


def code(words: str) -> str:
    """Words as code within a line, in enough backticks for those in the words."""
    words = _one_line(words)
    ticks = "`" * (1 + max((len(run) for run in re.findall("`+", words)), default=0))
    space = " " if words.startswith("`") or words.endswith("`") else ""
    return f"{ticks}{space}{words}{space}{ticks}"


def fenced(kind: str, lines: Iterable[str]) -> list[str]:
    """Lines as a block of code; a fence within them does not end it."""
    return [f"```{kind}", *(_one_line(line).replace("```", "'''") for line in lines), "```"]


def _one_line(words: str) -> str:
    return visible(words).replace("\n", " ")


def _escaped(found: re.Match[str]) -> str:
    special = found[0]
    if special in (":", "."):
        return f"&#{ord(special)};"  # no address becomes a link
    return f"{special}\\" if special.strip().isdigit() else special.replace(special.strip(), f"\\{special.strip()}")

"""Turns a log's bytes into the lines a person saw: no colours, cursor moves, carriage returns or odd encodings."""

from __future__ import annotations

import re

LONGEST_LINE_BYTES = 8192  # no record is longer; a longer line is a dump of something else

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_CONTROLS = dict.fromkeys((*range(9), *range(11, 32), 127))  # all but tab and newline
_OUR_NUMBER = r"[-+]?(?:\d{1,15}(?:\.\d{0,18})?(?:[eE][-+]?\d{1,3})?|[nN][aA][nN]|[iI]nf(?:inity)?)"
NUMBER = f"(?:{_OUR_NUMBER})"  # as programs print it, nan and inf included
WHOLE = r"\d{1,12}"  # a step
FIGURE = r"\d{1,9}(?:\.\d{1,9})?"  # 123.59
COUNT = r"\d[\d,_]{0,24}"  # 524,288


def segments(raw: bytes) -> list[str]:
    """The texts shown on one line of the terminal, in order: a carriage return starts the next."""
    raw = raw.rstrip()
    pieces = raw.split(b"\r") if b"\r" in raw else [raw]
    texts = [_clean(piece[:LONGEST_LINE_BYTES]) for piece in pieces]
    return [text for text in texts if text and not text.isspace()]


def _clean(piece: bytes) -> str:
    text = piece.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    return (text if text.isprintable() else text.translate(_CONTROLS)).rstrip()


def number(text: str) -> float:
    """The number in a text that matched NUMBER."""
    return float(text)


def whole(text: str) -> int:
    """The count in a text that matched COUNT or WHOLE."""
    return int(text.replace(",", "").replace("_", ""))


def decimals(text: str) -> int:
    """The number of digits after the point; a program prints the same number on every line."""
    return len(text.partition(".")[2])

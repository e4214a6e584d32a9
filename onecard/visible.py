"""Text that is safe to show. What would steer a terminal or reorder a line becomes visible: ESC is shown as `\\x1b`."""

from __future__ import annotations

import re

# Control characters but newline and tab, line separators, bidirectional overrides, and what no file can encode:
# half a surrogate pair (Python's form of a byte that is not UTF-8) and two code points that XML forbids.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_BYTES = range(0xDC80, 0xDD00)  # how Python holds the bytes of a file name that is not UTF-8


def visible(text: str) -> str:
    """The text with unsafe characters spelled out; newlines and tabs stay."""
    return _UNSAFE.sub(lambda found: _spelled(ord(found[0])), text)


def _spelled(code: int) -> str:
    if code in _BYTES:
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

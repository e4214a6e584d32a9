"""Makes sure that the standard streams are open and can show every sentence in their encoding."""

from __future__ import annotations

import codecs
import os
import sys
from io import TextIOWrapper

_SPELLED = str.maketrans({"×": "x", "±": "+-", "█": "#", "░": ".", "→": "->", "…": "...", "–": "-"})


def prepare_streams() -> None:
    """Make standard input, output and error safe to use with any shell and locale."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the shell: `onecard plan >&-`
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123  # for as long as the process runs
    codecs.register_error("onecard.spelled", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="onecard.spelled")


def _spelled(problem: UnicodeError) -> tuple[str, int]:
    """Replace what an encoding cannot show: × becomes x, other characters their code."""
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    said = problem.object[problem.start : problem.end].translate(_SPELLED)
    return said.encode("ascii", "backslashreplace").decode("ascii"), problem.end

"""The standard streams of the process: open, and able to show every sentence in their encoding."""

from __future__ import annotations

import codecs
import os
import sys
from io import TextIOWrapper

_SPELLED = str.maketrans({"×": "x", "±": "+-", "█": "#", "░": ".", "→": "->", "…": "...", "–": "-"})


def prepare_streams() -> None:
    """Make standard input, output and error safe to use, whatever the shell and the locale made of them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the shell: `onecard plan >&-`
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123  # for as long as the process runs
    codecs.register_error("onecard.spelled", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="onecard.spelled")


def _spelled(problem: UnicodeError) -> tuple[str, int]:
    """What an encoding cannot show in letters it can: × as x, others as their code."""
    if not isinstance(problem, UnicodeEncodeError):
        raise problem
    said = problem.object[problem.start : problem.end].translate(_SPELLED)
    return said.encode("ascii", "backslashreplace").decode("ascii"), problem.end

"""What programs print besides their losses: out of memory, failed compilations, warnings, resumes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from onecard.runs.foreign.shapes import shape
from onecard.runs.foreign.text import NUMBER, number
from onecard.runs.logged import Line, Message
from onecard.runs.torch_oom import oom_sizes

_OUT_OF_MEMORY = shape(r"CUDA out of memory|HIP out of memory|CUDA error: out of memory|OutOfMemoryError")
_OOM_GOES_ON = shape(
    r"total capac|already allocated|is free|memory in use|by PyTorch|Tried to allocate|fragmentation|ALLOC_CONF"
)
_EVAL_FRAME = shape(r"\bin (?:estimate_loss|eval\w*|_?evaluat\w+|validat\w+|evaluation_loop|prediction_step)\b")
TRACEBACK = "Traceback (most recent call last)"
_FRAME = shape(r'File "[^"]{1,400}", line \d{1,9}, in ')
MOST_OOM_LINES = 8


def out_of_memory(text: str) -> bool:
    """Whether the line begins an out-of-memory message."""
    return "emory" in text and _OUT_OF_MEMORY.search(text) is not None


def frame(text: str) -> bool:
    """Whether the line is a frame of a traceback."""
    return 'File "' in text and _FRAME.search(text) is not None


def oom_goes_on(text: str) -> bool:
    """Whether a line after an out-of-memory message may be its wrapped rest."""
    return _OOM_GOES_ON.search(text) is not None and not text.startswith("#") and not out_of_memory(text)


def oom_message(lines: tuple[Line, ...], frames: Iterable[Line] | None) -> Message:
    """The sizes of an out-of-memory message in bytes, and whether it happened in evaluation (if frames show it)."""
    # a terminal may have wrapped it inside a word, or at a space, which then is missing
    text, spaced = ("".join(line.text for line in lines), " ".join(line.text for line in lines))
    values: dict[str, object] = {**oom_sizes(spaced), **oom_sizes(text)}
    evaluating: tuple[Line, ...] = ()
    if frames is not None:
        evaluating = tuple(line for line in frames if _EVAL_FRAME.search(line.text))[:1]
        values["in_eval"] = bool(evaluating)
    return Message(kind="oom", lines=(*evaluating, *lines), values=values)


@dataclass(frozen=True, slots=True)
class Saying:
    """A sentence that becomes a message, and the values in it."""

    kind: str
    needle: str  # always part of it
    pattern: re.Pattern[str]
    values: Mapping[str, object] = field(default_factory=dict)

    def read(self, line: Line) -> Message | None:
        """The message in a line; None if it says something else."""
        found = self.pattern.search(line.text) if self.needle in line.text else None
        if not found:
            return None
        named = {name: _value(text) for name, text in found.groupdict().items() if text}
        return Message(kind=self.kind, lines=(line,), values={**self.values, **named})


def _value(text: str) -> object:
    return number(text) if re.fullmatch(NUMBER, text, re.ASCII) else text


def _failed(cause: str, needle: str, text: str) -> Saying:
    return Saying("compile-failed", needle, shape(text), {"cause": cause})


# The first match wins, so known causes come before the general failure.
SAYINGS = (
    Saying("few-sms", "SMs to use", shape(r"Not enough SMs to use max_autotune_gemm")),
    _failed("python-headers", "Python.h", r"Python\.h: No such file"),
    _failed(
        "no-triton", "riton", r"No module named 'triton|[Cc]annot find a working triton|TritonMissing|requires triton"
    ),
    _failed("old-card", "riton", r"too old to be supported by the triton"),
    _failed("no-compiler", "ompiler", r"[Ff]ailed to find C compiler|InvalidCxxCompiler|No working C\+\+ compiler"),
    _failed("backend", "ompilerFailed", r"BackendCompilerFailed"),
    _failed("backend", "nductorError", r"InductorError"),
    Saying(
        "scaler-skip",
        "kipping step",
        shape(rf"[Ss]kipping step.{{0,80}}?(?:reducing (?:loss scale )?to|scale) (?P<scale>{NUMBER})"),
    ),
    Saying("slow-attention", "slow attention", shape(r"using slow attention")),
    Saying("unfused-adamw", "fused AdamW", shape(r"using fused AdamW: False")),
    Saying("resume", "Resuming", shape(r"Resuming (?:training )?from (?P<path>\S{1,4096})")),
    Saying("several-processes", "OMP_NUM_THREADS", shape(r"Setting OMP_NUM_THREADS .{1,40} for each process")),
    Saying("interrupted", "KeyboardInterrupt", shape(r"^KeyboardInterrupt")),
)
NEEDLES = frozenset({"emory", 'File "', "Traceback", *(saying.needle for saying in SAYINGS)})


def message_in(line: Line) -> Message | None:
    """The message in a single line; None if there is none."""
    return next((message for saying in SAYINGS if (message := saying.read(line))), None)

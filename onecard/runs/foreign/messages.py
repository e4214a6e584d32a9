"""What programs print besides their losses: out of memory, failed compilations, warnings, resumes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from onecard.runs.foreign.shapes import shape
from onecard.runs.foreign.text import NUMBER, number
from onecard.runs.logged import Line, Message
from onecard.runs.torch_oom import oom_sizes

_OUT_OF_MEMORY = shape(
    r"CUDA out of memory|HIP out of memory|CUDA error: out of memory|OutOfMemoryError"
    r"|\[CUDA ERROR\].{0,400}(?:out of memory|cudaErrorMemoryAllocation)"
)
_OOM_GOES_ON = shape(
    r"total capac|already allocated|is free|memory in use|by PyTorch|Tried to allocate|fragmentation|ALLOC_CONF"
)
_EVAL_FRAME = shape(r"\bin (?:estimate_loss|eval\w*|_?evaluat\w+|validat\w+|evaluation_loop|prediction_step)\b")
TRACEBACK = "Traceback (most recent call last)"
_NAMED_BELOW = shape(r"\[CUDA ERROR\] at file .{1,300}:\s*$")  # llm.c names the error on the next line
_RAISED = shape(r"^(?:\[rank\d{1,5}\]:\s?)?(?P<error>[A-Za-z_][\w.]{0,120}(?:Error|Exception|Failure))(?::|$)")
_FRAME = shape(r'File "[^"]{1,400}", line \d{1,9}, in ')
MOST_OOM_LINES = 8


def out_of_memory(text: str) -> bool:
    """Whether the line begins an out-of-memory message."""
    return "emory" in text and _OUT_OF_MEMORY.search(text) is not None


def named_below(text: str) -> bool:
    """Whether the line announces an error that the next line names."""
    return "CUDA ERROR" in text and _NAMED_BELOW.search(text) is not None


def raised(line: Line) -> Message | None:
    """The error with which a traceback ends, as a crash; None if the line is another."""
    found = _RAISED.search(line.text)
    return Message(kind="crash", lines=(line,), values={"cause": "python", "error": found["error"]}) if found else None


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


# What a program prints when it breaks off: the cause, a part of every such line, the line. Known causes come first.
_CRASHES = (
    ("killed", "illed", r"^(?:.{0,80}\b)?[Kk]illed(?: +\S*python\S*\b.{0,400})?\s*$"),
    ("killed", "illed", r"Killed process \d|is killed by signal: Killed"),
    ("killed", "oom", r"oom[-_]kill|oom_reaper"),
    ("killed", "SIGKILL", r"\(SIGKILL\)|signal SIGKILL"),
    ("killed", "exitcode", r"exitcode *: *-9\b"),
    ("no-bfloat16", "oes not support b", r"does not support (?:bfloat16|bf16)"),
    ("no-bfloat16", "support bf16", r"doesn't support bf16"),
    ("no-bfloat16", "KeyError", r"^KeyError: 'bfloat16'"),
    ("old-build", "no kernel image", r"no kernel image is available for execution"),
    ("no-card", "CUDA", r"no CUDA-capable device is detected|Torch not compiled with CUDA enabled"),
    ("no-card", "NVIDIA driver", r"Found no NVIDIA driver|NVIDIA driver on your system is too old"),
    ("disk-full", "No space left", r"No space left on device"),
    ("card-lost", "GPU", r"GPU is lost|GPU has fallen off the bus"),
    ("card-lost", "ECC", r"uncorrectable ECC error"),
    ("token-ids", "Assertion", r"Assertion `?(?:srcIndex|t >= 0|ind(?:ex)? >= |-sizes\[i\]).{0,200}failed"),
    ("token-ids", "device-side assert", r"device-side assert triggered"),
    ("token-ids", "index out of range", r"^IndexError: index out of range in self"),
    ("assertion", "Assertion", r"Assertion .{0,400}failed"),
    ("address", "misaligned", r"misaligned address|MisalignedAddress"),
    ("address", "illegal", r"illegal memory access|illegal instruction was encountered"),
    ("address", "launch failure", r"unspecified launch failure"),
    ("nccl", "NCCL", r"NCCL error|\[NCCL ERROR\]|NCCL communicator was aborted|\berror, NCCL"),
    ("nccl", "nccl", r"\bnccl(?:System|Internal|UnhandledCuda|Remote|Invalid)\w*"),
    ("nccl", "atchdog caught", r"[Ww]atchdog caught collective operation timeout"),
    ("cublas", "uBLAS", r"\[cuBLAS(?:Lt)? ERROR\]"),
    ("cublas", "CUBLAS_STATUS", r"CUBLAS_STATUS_(?!SUCCESS)[A-Z_]{1,40}"),
    ("cublas", "uDNN", r"\[cuDNN ERROR\]|cuDNN error: CUDNN_STATUS"),
    ("cuda", "CUDA", r"\[CUDA ERROR\]|CUDA error: (?!out of memory)\w"),
    ("broke-off", "core dumped", r"\(core dumped\)"),
    ("broke-off", "egmentation fault", r"^(?:.{0,80}\b)?Segmentation fault"),
    ("broke-off", "SIG", r"\(SIG(?:SEGV|ABRT|BUS|ILL)\)"),
    ("time-over", "DUE TO", r"CANCELLED AT \S{1,40} DUE TO (?:TIME LIMIT|PREEMPTION)"),
)
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
    *(Saying("crash", needle, shape(text), {"cause": cause}) for cause, needle, text in _CRASHES),
)
NEEDLES = frozenset({"emory", "CUDA ERROR", 'File "', "Traceback", *(saying.needle for saying in SAYINGS)})


def message_in(line: Line) -> Message | None:
    """The message in a single line; None if there is none."""
    return next((message for saying in SAYINGS if (message := saying.read(line))), None)

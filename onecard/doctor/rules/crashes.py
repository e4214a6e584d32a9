"""Rules about programs that broke off: what their last lines mean."""

from __future__ import annotations

from collections.abc import Iterator

from onecard.doctor.case import Case
from onecard.doctor.evidence import known, lines, messages, only_told
from onecard.findings import Finding
from onecard.runs.logged import Line, Message
from onecard.runs.records import Eval, Step

_CURES = {
    "python-headers": ("Python's header files are missing", "apt install python3-dev (or your system's equivalent)"),
    "no-triton": ("Triton is missing", "pip install triton (on Windows: triton-windows), or --compile=False"),
    "no-compiler": ("there is no C compiler", "apt install build-essential (or your system's equivalent)"),
    "old-card": ("the card is too old for Triton", "--compile=False"),
}


# What a crash means, and what helps; the first that the log shows is told.
_CRASHES = {
    "killed": (
        "the system killed the program",
        "nearly always the computer's own memory (RAM, not the card's) ran out",
        "close other programs, use fewer loader workers, read the data as a memory map; dmesg names what was killed",
    ),
    "no-bfloat16": (
        "the program stopped: this card or version of PyTorch has no bfloat16",
        "bfloat16 needs an Ampere card or newer",
        "--dtype=float16",
    ),
    "old-build": (
        "this PyTorch has no kernels for the card",
        "it was built for other generations",
        "install the PyTorch of the CUDA version that knows the card (pytorch.org), and look at its list of cards",
    ),
    "no-card": (
        "PyTorch cannot use the card",
        "no driver, an old one, or a PyTorch without CUDA",
        "nvidia-smi must name the card; then install a PyTorch of a CUDA version no newer than the driver's",
    ),
    "disk-full": (
        "the disk is full",
        "the checkpoint or the log could not be written",
        "make room, or write to another disk; the last checkpoint may be half written: look at it before you resume",
    ),
    "card-lost": (
        "the driver lost the card",
        "heat, power, a loose cable or a broken card: no setting of the run does that",
        "look at dmesg (Xid), temperature, power and the seat of the card; then resume",
    ),
    "token-ids": (
        "a token id lies outside the vocabulary",
        "a kernel checks its indices: an id is at least vocab_size, or a position at least block_size",
        "compare the largest id of the data with vocab_size: the data was made with another tokenizer",
    ),
    "assertion": (
        "an assertion of the program failed",
        "the program found a state that it was not made for",
        "the line names the condition: look for it in the program's source",
    ),
    "address": (
        "a kernel of the card read or wrote a wrong address",
        "a kernel's own fault, or data that it was not made for; losses before it cannot be trusted",
        "a build for this card and this version of CUDA, without optional kernels (cuDNN, flash attention); "
        "CUDA_LAUNCH_BLOCKING=1 names the kernel",
    ),
    "nccl": (
        "the cards could not talk to each other (NCCL)",
        "one process died or hung, and the others waited for it; or the link between the cards is blocked",
        "look at the first error of the other processes; NCCL_DEBUG=INFO; on home boards NCCL_P2P_DISABLE=1",
    ),
    "cublas": (
        "a library of the card failed (cuBLAS or cuDNN)",
        "memory ran out while it began, the shapes or ids are wrong, or it does not match the driver",
        "a smaller micro-batch first; then a PyTorch or CUDA that matches the driver",
    ),
    "cuda": (
        "the card reported an error",
        "the line says which",
        "CUDA_LAUNCH_BLOCKING=1 names the kernel; look at dmesg too",
    ),
    "broke-off": (
        "the program crashed",
        "native code broke off: a library that does not match the others, or memory of the host",
        "install PyTorch, CUDA and the driver in versions that match; PYTHONFAULTHANDLER=1 shows where",
    ),
    "time-over": (
        "the scheduler ended the run: its time was over",
        "the run itself did not fail",
        "resume it from its last checkpoint, with a longer limit",
    ),
    "python": ("the program ended with an error", "nothing was trained after it", "the lines above it name the place"),
}


def crashed(case: Case) -> Iterator[Finding]:
    """A program that broke off.

    What it sees: a line with which programs die: killed by the system, an error of CUDA, cuBLAS, cuDNN or NCCL, an
    assertion that failed, no bfloat16, a full disk, a lost card, a traceback that ends in an error. Memory that ran out
    and compilers that failed have rules of their own.

    Why it matters: the run ended there, whatever its losses were.

    What to do: by cause; the finding says what the line means.

    When it is wrong: if the log goes on with training after it, somebody has started the run again: then it is only a
    note. Of an end by the scheduler, too.
    """
    found = messages(case, "crash")
    records: tuple[Step | Eval, ...] = (*case.steps, *case.evals)
    last = max((line.number for record in records if isinstance(line := record.more.get("line"), Line)), default=0)
    late = [one for one in found if one.lines[0].number > last]  # the run did not survive these
    told = [one for one in messages(case, "oom") if not late or one.lines[0].number > last]
    if not found or told or (messages(case, "compile-failed") and _cause(found[0]) == "python"):
        return
    message = min(late or found, key=lambda one: list(_CRASHES).index(_cause(one)))
    what, why, fix = _CRASHES[_cause(message)]
    if error := message.values.get("error"):
        what += f": {error}"
    finding = Finding(
        rule="crashed",
        severity="info" if _cause(message) == "time-over" else "error",
        sure="high",
        what=what,
        why=why,
        fix=fix,
        seen=lines(message),
        patch={"dtype": "float16"} if _cause(message) == "no-bfloat16" and known(case, "dtype") else {},
    )
    yield only_told(finding, "the log goes on with training after it") if not late else finding


def _cause(message: Message) -> str:
    cause = str(message.values.get("cause"))
    return cause if cause in _CRASHES else "python"


def compile_failed(case: Case) -> Iterator[Finding]:
    """torch.compile failed.

    What it sees: BackendCompilerFailed, a missing Python.h, a missing Triton or C compiler in the log.

    Why it matters: the run stops, or goes on without compiling, slower and with more memory.

    What to do: install what is missing; until then --compile=False.

    When it is wrong: if the log goes on with training, PyTorch may have continued without compiling.
    """
    found = messages(case, "compile-failed")
    if found:
        message = found[0]
        why, fix = _CURES.get(str(message.values.get("cause")), ("the compiler's backend failed", "--compile=False"))
        yield Finding(
            rule="compile-failed",
            severity="error",
            sure="high",
            what="torch.compile failed",
            why=why,
            fix=fix,
            seen=lines(message),
            patch={"compile": False} if "--compile=False" in fix and known(case, "compile") else {},
        )

"""What goes wrong, in three lines: what happened, why, what to type."""

from __future__ import annotations

from errno import EDQUOT, EINTR, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, ENOTCONN, ESTALE, ETIMEDOUT
from typing import TypeVar


class OnecardError(Exception):
    """A problem the user can act on; `name` is its kebab-case name and docs anchor."""

    name = "error"
    exit_code = 2

    def __init__(self, what: str, *, why: str, fix: str, name: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix
        if name is not None:
            self.name = name
        self.add_note(f"  why: {why}\n  fix: {fix}")  # so that a traceback shows all three lines

    def as_json(self) -> dict[str, object]:
        """The error object of the contract."""
        error = {"name": self.name, "what": self.what, "why": self.why, "fix": self.fix}
        return {"schema": 1, "error": error}


class UsageError(OnecardError):
    """The command line itself is wrong: an unknown command, option or key."""

    name = "usage"


class ConfigError(OnecardError):
    """A config file or a --key=value that cannot be used."""

    name = "bad-config"


class UnknownCard(OnecardError):
    """A card name that matches nothing, or too much; `meant` is the nearest known one, `size` that of such a card."""

    name = "unknown-card"

    def __init__(self, what: str, *, why: str, meant: str | None, size: str = "8GiB", name: str | None = None) -> None:
        otherwise = f"--vram {size} plans for any card of that size; onecard gpus lists all"
        super().__init__(what, why=why, fix=f'--gpu "{meant}"' if meant else otherwise, name=name)
        self.meant = meant


class MachineError(OnecardError):
    """The machine cannot do it: no GPU, no torch, disk full."""

    name = "machine"
    exit_code = 3


class DoesNotFit(OnecardError):
    """The answer is no: the card's memory is not enough."""

    name = "does-not-fit"
    exit_code = 1


class OfAnotherRank(OnecardError):
    """Another process of the run tells the user what is wrong: this one ends without a word."""

    def __init__(self, exit_code: int = MachineError.exit_code) -> None:
        super().__init__("another rank has ended", why="that rank says why", fix="read what it printed")
        self.exit_code = exit_code


# What libraries say without raising MemoryError: torch on the CPU and on a card, cuBLAS without room for its handle,
# the loader of a shared library, and a thread without room for its stack.
_NO_MEMORY = (
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "out of memory",
    "cublas_status_alloc_failed",
    "std::bad_alloc",
    "failed to map segment from shared object",
    "can't start new thread",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the computer, or its card, had no memory left."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == ENOMEM):
        return True
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which may not be imported here
        return True
    if isinstance(error, SystemError) and "without exception set" in str(error):  # no memory even for an exception
        return True
    return isinstance(error, RuntimeError | ImportError) and any(words in str(error).lower() for words in _NO_MEMORY)


def out_of_memory(error: BaseException) -> MachineError:
    """The error of a command that ran out of memory, with the machine's own words."""
    said = first_line(error, 240) if str(error).strip() else "no more memory could be allocated"
    if "cuda" in said.lower() or "cublas" in said.lower():
        what, fix = "the card ran out of memory", "close other programs that use the card (nvidia-smi lists them)"
    else:
        what, fix = "the computer ran out of memory", "close other programs, or raise the limit (ulimit -v shows it)"
    return MachineError(what, why=f"the system says: {said}", fix=f"{fix}, then try again", name="out-of-memory")


DISK_FULL = {ENOSPC, EDQUOT}
# What the system says when it fails, whatever was named: a disk that broke or is full, a server of files that is gone,
# no memory or no descriptors left. Anything else says something of what was named: it is missing, or closed to us.
_MACHINES_FAULT = {*DISK_FULL, EIO, EINTR, EMFILE, ENFILE, ENOMEM, ESTALE, ETIMEDOUT, ENOTCONN}
_Answer = TypeVar("_Answer")


def fault_behind(error: BaseException | None) -> OSError | None:
    """The fault of the machine that an error is, or comes from; None where there is none."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _MACHINES_FAULT:
            return error
        error = error.__cause__ or error.__context__
    return None


def unless_machine_failed(problem: Exception, answer: _Answer) -> _Answer:
    """The answer where what was named is missing, closed or bad; MachineError where the machine failed to look."""
    if fault := fault_behind(problem):
        raise system_failed(fault) from problem
    return answer


def system_failed(problem: OSError) -> MachineError:
    """A call to the system failed: no memory, a broken disk, a file that another program deleted meanwhile."""
    if is_out_of_memory(problem):
        return out_of_memory(problem)
    return MachineError(
        f"{problem.filename or 'a file'} could not be read or written",
        why=f"the system says: {problem.strerror or first_line(problem, 240)}",
        fix="run the same command again (a training run: with --resume); if it fails again, look at that disk",
        name="system-failed",
    )


def first_line(error: BaseException, longest: int = 600) -> str:
    """The first line of an error's message, at most `longest` characters; the kind of error where it is empty."""
    (said, *_) = str(error).strip().splitlines() or [type(error).__name__]
    return said[:longest]


def kind_and_line(error: BaseException, longest: int = 600) -> str:
    """`ValueError: message`; only the kind where there is no message."""
    kind, said = type(error).__name__, first_line(error, longest)
    return f"{kind}: {said}" if str(error).strip() else kind

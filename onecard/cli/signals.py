"""What stops a command: Ctrl-C, SIGTERM, a closed terminal. Imports nothing slow: it is the first thing that runs."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # as typing's, which takes longer to import than everything here
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

INTERRUPTED = 130  # exit code
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")  # not every system has the last
_PROCESS = os.getpid()

heard = False  # whether a signal has come: the exception that it raises may be lost inside an import


def leave_at_signals() -> None:
    """From now on a signal ends the process at once: nothing has been written that must be removed."""
    _handle(lambda _number, _frame: os._exit(INTERRUPTED))


def interrupt_at_signals() -> None:
    """From now on a signal raises KeyboardInterrupt, so that locks and half-written files are removed."""
    _handle(_interrupt)


def ignore_signals() -> None:
    """From now on signals are ignored: the exit code is decided, and Python is cleaning up."""
    for name in _NAMES:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def check() -> None:
    """Raise KeyboardInterrupt if a signal has come and its exception was lost."""
    if heard:
        raise KeyboardInterrupt


def forget() -> None:
    """The signal that has come was answered: the command goes on."""
    global heard
    heard = False


def _handle(handler: Callable[[int, FrameType | None], object]) -> None:
    for name in _NAMES:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, handler)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    global heard
    if os.getpid() != _PROCESS and number != signal.SIGINT:  # a worker, forked later: it ends as workers do
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    heard = True
    if _torch_is_being_imported():
        os._exit(INTERRUPTED)
    raise KeyboardInterrupt


def _torch_is_being_imported() -> bool:
    """Its C++ code calls Python then, and an exception from there aborts the process with a core dump.

    Nothing is being written at that moment, and a lock ends with its process.
    """
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return getattr(spec, "_initializing", False)

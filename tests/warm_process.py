"""A process that has imported onecard and runs each command in a fork of itself: importing takes longer than most.

Started by tests/warm.py. A job comes over the socket whose number is the first argument: JSON, with the descriptors of
the three standard streams. The answers are the child's id and, when it has ended, its exit code and the most MiB of
memory that it had.
The other arguments are modules to import first. With torch, the processes that a benchmark starts for its measurements
are forks as well.
"""

import gc
import importlib
import json
import os
import pkgutil
import resource
import runpy
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import IO, Any

TORCH = ("torch", "torch._inductor.config")  # the second, and 800 modules with it, is imported by every run


def import_all(names: Sequence[str]) -> None:
    """Import these and all of onecard; without torch among them, all but the trainer."""
    left_out = {"onecard.__main__"} if "torch" in names else {"onecard.__main__", "onecard.train"}
    for name in names:
        importlib.import_module(name)
    packages = ["onecard"]
    while packages:
        name = packages.pop()
        for found in pkgutil.iter_modules(importlib.import_module(name).__path__, f"{name}."):
            if found.name in left_out:
                continue
            with suppress(ImportError):  # of triton, where there is none
                importlib.import_module(found.name)
                packages += [found.name] * found.ispkg


def work(job: dict[str, object], streams: list[int]) -> None:
    """Become the command, and exit as it does."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.chdir(str(job["cwd"]))
    tempfile.tempdir = None  # found again, in this environment
    os.environ.clear()
    os.environ.update(job["environment"])  # type: ignore[call-overload]
    sys.path[:0] = [path for path in os.environ["PYTHONPATH"].split(os.pathsep) if path not in sys.path]
    if job["memory_bytes"]:
        resource.setrlimit(resource.RLIMIT_AS, (job["memory_bytes"], job["memory_bytes"]))
    sys.argv = ["onecard", *job["arguments"]]  # type: ignore[misc]
    from onecard.__main__ import main
    from onecard.cli import signals

    signals._PROCESS = os.getpid()
    try:
        if job["before"]:
            importlib.import_module(str(job["before"]))
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


class Measurement:
    """What `onecard bench` uses of a subprocess.Popen that runs a module, in a fork of the command."""

    def __init__(self, command: Sequence[str], *, env: dict[str, str], stderr: IO[str], **_: Any) -> None:
        reading, writing = os.pipe()
        self.returncode = 0
        self._child = os.fork()
        if not self._child:
            os.dup2(writing, 1)
            os.dup2(stderr.fileno(), 2)
            os.environ.update(env)
            sys.argv = list(command[2:])
            code = 0
            try:
                runpy.run_module(command[2], run_name="__main__")
            except BaseException:
                sys.excepthook(*sys.exc_info())
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        os.close(writing)
        self.stdout = os.fdopen(reading)

    def __enter__(self) -> "Measurement":
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.wait()

    def kill(self) -> None:
        os.kill(self._child, signal.SIGKILL)

    def wait(self) -> None:
        if self._child:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
            self._child = 0


def serve(jobs: socket.socket) -> None:
    while True:
        head, streams, _, _ = socket.recv_fds(jobs, 1 << 20, 3)
        if not head:
            return
        child = os.fork()
        if not child:
            jobs.close()
            work(json.loads(head), streams)
        for stream in streams:
            os.close(stream)
        jobs.send(str(child).encode())
        _, status, used = os.wait4(child, 0)
        jobs.send(f"{os.waitstatus_to_exitcode(status)} {used.ru_maxrss // 1024}".encode())


if __name__ == "__main__":
    import_all(sys.argv[2:])
    if "onecard.train.cpu" in sys.modules:
        sys.modules["onecard.train.cpu"].TEST_SECONDS = 0.0  # the speed test takes longer than a tiny run
        sys.modules["onecard.cli.worker"].subprocess = SimpleNamespace(Popen=Measurement, PIPE=-1)
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))

"""Commands as a user types them, each in a fork of one process that has imported onecard: see warm_process.py."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

ROOT = Path(__file__).parents[1]
NO_TORCH = "raise ImportError('torch was imported by a command that must not')\n"  # a torch.py


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it wrote."""

    code: int
    stdout: str
    stderr: str
    peak_mib: int = field(default=0, compare=False)  # of its memory

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


class WarmProcess:
    """Runs commands one after another. Each sees a folder, an environment and streams of its own."""

    def __init__(self, *modules: str, python_path: Sequence[Path] = ()) -> None:
        """A process that imports `modules` first; if torch is one, the trainer too. `python_path` comes first."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._jobs = here
        self._path = os.pathsep.join(map(str, [*python_path, ROOT]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm_process", str(there.fileno()), *modules],
            cwd=ROOT,
            pass_fds=[there.fileno()],
            env=os.environ | {"PYTHONPATH": self._path, "OMP_NUM_THREADS": "1"},
        )
        there.close()

    def close(self) -> None:
        self._jobs.close()
        self._process.wait(timeout=60)

    def run(
        self,
        *arguments: str,
        cwd: Path,
        environment: dict[str, str] | None = None,
        stdin: bytes = b"",
        memory_bytes: int | None = None,
        python_path: str | None = None,
        stdout: Path | None = None,
        stderr: Path | None = None,
        timeout: float = 120,
        before: str | None = None,
        on_start: Callable[[int], None] = lambda _: None,
    ) -> Outcome:
        """Run a command. `environment` is added to this process's, `python_path` is put before the command's.

        `before` names a module that the command's process imports first; `on_start` gets that process's id.
        What it writes comes back, unless `stdout` or `stderr` is a device that it is written to.
        """
        path = f"{python_path}{os.pathsep}{self._path}" if python_path else self._path
        own = {"PYTHONPATH": path, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
        whole = os.environ | own | (environment or {})
        job = {"arguments": arguments, "cwd": str(cwd), "environment": whole, "memory_bytes": memory_bytes}
        job["before"] = before
        reading, writing = os.pipe()
        with _opened(stdout) as written, _opened(stderr) as said:
            socket.send_fds(self._jobs, [json.dumps(job).encode()], [reading, written.fileno(), said.fileno()])
            os.close(reading)
            child = int(self._answer(timeout))
            on_start(child)
            feeding = threading.Thread(target=_feed, args=(writing, stdin))
            feeding.start()
            try:
                code, peak_mib = map(int, self._answer(timeout).split())
            except TimeoutError:
                os.kill(child, signal.SIGKILL)
                self._answer(60)
                raise
            finally:
                feeding.join()
            return Outcome(code, "" if stdout else _content(written), "" if stderr else _content(said), peak_mib)

    def _answer(self, timeout: float) -> bytes:
        self._jobs.settimeout(timeout)
        answer = self._jobs.recv(100)
        assert answer, "the process that runs commands died"
        return answer


def _opened(device: Path | None) -> IO[bytes]:
    return device.open("wb") if device else TemporaryFile()


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def _feed(descriptor: int, data: bytes) -> None:
    """Write to a pipe, whose reader may stop early."""
    with suppress(BrokenPipeError), open(descriptor, "wb") as file:
        file.write(data)

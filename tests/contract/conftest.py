"""Running the command line as a user does."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.warm import NO_TORCH, ROOT, Outcome, WarmProcess

Command = Callable[..., Outcome]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """An empty folder."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def onecard(tmp_path: Path, work: Path, warm: WarmProcess) -> Command:
    """`onecard("plan", "--json")` in an empty folder with an empty ONECARD_HOME; torch cannot be imported."""

    def run(
        *arguments: str,
        stdin: str | bytes = b"",
        cwd: Path | None = None,
        python_path: str | None = None,
        **environment: str,
    ) -> Outcome:
        return warm.run(
            *arguments,
            cwd=cwd or work,
            environment={"ONECARD_HOME": str(tmp_path / "home")} | environment,
            stdin=stdin.encode() if isinstance(stdin, str) else stdin,
            python_path=python_path,
            timeout=60,
        )

    return run


@pytest.fixture
def cold_onecard(tmp_path: Path, work: Path) -> Command:
    """The same in a new process, for what happens when one starts; tmp_path/no_torch comes first in its path."""
    (tmp_path / "no_torch").mkdir()
    (tmp_path / "no_torch" / "torch.py").write_text(NO_TORCH)

    def run(*arguments: str, stdin: str | bytes = b"", **environment: str) -> Outcome:
        path = f"{tmp_path / 'no_torch'}:{ROOT}"
        done = subprocess.run(
            [sys.executable, "-m", "onecard", *arguments],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            cwd=work,
            timeout=60,
            env=os.environ
            | {"ONECARD_HOME": str(tmp_path / "home"), "PYTHONPATH": path, "NO_COLOR": "1"}
            | environment,
        )
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run

"""Running the command line as a user does."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Outcome:
    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


Command = Callable[..., Outcome]


@pytest.fixture
def onecard(tmp_path: Path) -> Command:
    """`onecard("plan", "--json")` in an empty folder with an empty ONECARD_HOME; torch cannot be imported."""
    (tmp_path / "no_torch").mkdir()
    (tmp_path / "no_torch" / "torch.py").write_text(
        "raise ImportError('torch was imported by a command that must not')\n"
    )
    folder = tmp_path / "work"
    folder.mkdir()

    def run(*arguments: str, stdin: str | bytes = b"", cwd: Path | None = None, **environment: str) -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "onecard", *arguments],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            cwd=cwd or folder,
            timeout=60,
            env=os.environ
            | {"ONECARD_HOME": str(tmp_path / "home"), "PYTHONPATH": f"{tmp_path / 'no_torch'}:{ROOT}", "NO_COLOR": "1"}
            | environment,
        )
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run

"""A tiny run whose system calls can be made to fail, and what must hold afterwards: nothing lost, the same losses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from onecard.errors import OnecardError
from onecard.runs.folder import load_run
from onecard.runs.records import Checkpoint, Start

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
TINY = [
    *("--n_layer=1", "--n_head=1", "--n_embd=16", "--block_size=16", "--batch_size=2", "--device=cpu"),
    *("--gradient_accumulation_steps=1", "--warmup_iters=1", "--eval_iters=1", "--eval_interval=4"),
    *("--checkpoint_interval=2", "--lr_decay_iters=8", "--keep_checkpoints=2"),
]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """The n-th system call of a kind below a folder that fails with `errno`; 0 kills the process. See faults.c."""

    call: str
    n: int
    errno: int
    below: str = "run"


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    calls: int  # system calls of the fault's kind below the run's folder


class Nursery:
    """Runs onecard's commands in forks of one process. Everything lies below `path`."""

    def __init__(self, path: Path, process: subprocess.Popen[str]) -> None:
        self.path, self.process = path, process

    def start(self, *arguments: str, fault: Fault | None = None) -> int:
        """Start a command; returns its process id."""
        armed = (
            {"folder": str(self.path / fault.below), "call": fault.call, "n": fault.n, "errno": fault.errno}
            if fault
            else None
        )
        print(json.dumps({"arguments": arguments, "fault": armed}), file=self.process.stdin, flush=True)
        return int(self._line())

    def end(self) -> Ended:
        code, calls = self._line().split()
        return Ended(int(code), int(calls))

    def run(self, *arguments: str, fault: Fault | None = None) -> Ended:
        self.start(*arguments, fault=fault)
        return self.end()

    def _line(self) -> str:
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        assert line, "the nursery died"
        return line

    def said(self) -> str:
        """The end of what the commands printed."""
        return (self.path / "child.txt").read_text(errors="replace")[-3000:]


def losses(path: Path) -> list[float]:
    return [step.loss for step in load_run(path).steps]


def last_saved(path: Path) -> int:
    """The step of the newest checkpoint that a record says is written; 0 if there is none."""
    if not (path / "records.jsonl").exists():
        return 0
    return max((r.step for r in load_run(path).history.records if isinstance(r, Checkpoint)), default=0)


@pytest.fixture(scope="session")
def faults_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """faults.c, compiled."""
    if not sys.platform.startswith("linux"):
        pytest.skip("LD_PRELOAD is Linux's")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler, to make system calls fail")
    library = tmp_path_factory.mktemp("faults") / "faults.so"
    made = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "faults.c"), "-ldl"],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        pytest.skip(f"the compiler cannot make faults.so: {made.stderr[-200:]}")
    return library


@pytest.fixture(scope="session")
def nursery(faults_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    pytest.importorskip("torch", reason="needs torch")
    path = tmp_path_factory.mktemp("nursery")
    environment = {"ONECARD_HOME": str(path / "home"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, str(HERE / "nursery.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=path,
        env=os.environ | environment | {"LD_PRELOAD": str(faults_library)},
    ) as process:
        found = Nursery(path, process)
        found.run("train", *TINY, "--max_iters=8", "--out_dir=whole")  # also builds the corpus
        assert (path / "whole" / "config.json").exists(), found.said()
        yield found
        process.stdin.close()  # type: ignore[union-attr]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A command with a fault in it: a whole run ("save"), or the second half of one ("resume")."""

    nursery: Nursery
    kind: str

    @property
    def run(self) -> Path:
        return self.nursery.path / "run"

    def command(self) -> list[str]:
        if self.kind == "resume":
            return ["train", "--resume", "run", "--max_iters=8"]
        return ["train", *TINY, "--max_iters=8", "--out_dir=run"]

    def prepare(self) -> None:
        """Put the folder as it is before the command."""
        shutil.rmtree(self.run, ignore_errors=True)
        if self.kind == "resume":
            half = self.nursery.path / "half"
            if not half.exists():
                done = self.nursery.run("train", *TINY, "--max_iters=5", "--out_dir=half")
                assert done.code == 0, self.nursery.said()
            shutil.copytree(half, self.run, symlinks=True)

    def calls(self, call: str) -> int:
        """How many system calls of a kind the undisturbed command makes."""
        self.prepare()
        done = self.nursery.run(*self.command(), fault=Fault(call=call, n=0, errno=0))
        assert done.code == 0, self.nursery.said()
        return done.calls

    def hit_all(self, faults: Sequence[Fault], *, codes: tuple[int, ...]) -> int:
        """Hit the command with each fault; returns how many there were."""
        failed = []
        for fault in faults:
            try:
                self.hit(fault, codes=codes)
            except (AssertionError, OnecardError) as problem:
                failed.append(f"{fault}: {problem}")
        assert not failed, f"{len(failed)} of {len(faults)}:\n" + "\n\n".join(failed)
        return len(faults)

    def hit(self, fault: Fault, *, codes: tuple[int, ...]) -> None:
        """Run with the fault, then go on without it: no checkpoint is lost, every loss is that of the whole run."""
        (self.nursery.path / "child.txt").unlink(missing_ok=True)
        self.prepare()
        ended = self.nursery.run(*self.command(), fault=fault)
        assert ended.code in codes, f"{self.kind}, {fault}: exit {ended.code}\n{self.nursery.said()}"
        assert "rm -r" not in self.nursery.said(), f"{self.kind}, {fault}: it advises to delete\n{self.nursery.said()}"
        saved = last_saved(self.run)
        before = self.kind == "resume" or (self.run / "config.json").exists()
        again = ["train", "--resume", "run", "--max_iters=8"] if before else self.command()
        ended = self.nursery.run(*again)
        assert ended.code == 0, f"{self.kind}, {fault}: going on ended with {ended.code}\n{self.nursery.said()}"
        starts = [r for r in load_run(self.run).history.records if isinstance(r, Start)]
        from_step = int((starts[-1].resumed_from or "-0").rsplit("-", 1)[1]) if starts else 0
        finished = saved == 8
        assert finished or from_step >= saved, f"{self.kind}, {fault}: step {saved} was saved, went on from {from_step}"
        assert losses(self.run) == losses(self.nursery.path / "whole"), f"{self.kind}, {fault}: other losses"

"""Pipes, devices, endless lines and very many runs: refused or read, in bounded memory and linear time."""

import io
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecard.config.schema import RunConfig
from onecard.opening import LONGEST_PIECE_BYTES, NotAFile, open_file, pieces, read_file
from onecard.runs.foreign import read_logs
from onecard.runs.lock import left_behind
from onecard.runs.records import Step
from tests import made_logs as made
from tests.warm import ROOT, WarmProcess

Run = Callable[..., tuple[int, str, str]]
MOST_BYTES = 4 << 30  # of addresses: reading until memory ends ends early


@pytest.fixture
def run(warm: WarmProcess) -> Run:
    """Runs a command that may use little memory and little time."""

    def finish(*arguments: str, cwd: Path, stdin: bytes = b"") -> tuple[int, str, str]:
        done = warm.run(*arguments, cwd=cwd, stdin=stdin, memory_bytes=MOST_BYTES, timeout=60)
        return done.code, done.stdout, done.stderr

    return finish


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[Path]:
    """A folder with things that are no files: a pipe, a link to a device, a socket."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "good.log").write_text("\n".join(made.nanogpt(steps=100)))
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(tmp_path)  # a socket's path is short
        try:
            listening.bind("socket")
        finally:
            os.chdir(here)
        yield tmp_path


KINDS = {"pipe": "it is a pipe", "endless": "it is a device", "socket": "it is a socket"}
PLACES = (
    ("doctor", "{}"),
    ("doctor", "good.log", "--config", "{}"),
    ("compare", "good.log", "{}"),
    ("plan", "{}"),
    ("plan", "--gpu", "rtx-4070", "--nvidia-smi", "{}"),
    ("data", "prepare", "{}", "--tokenizer=bytes", "--out", "made"),
    ("data", "prepare", "good.log", "{}", "--tokenizer=bytes", "--out", "made"),
    ("data", "prepare", "good.log", "--tokenizer={}", "--out", "made"),
    ("data", "prepare", "good.log", "--tokenizer=gpt2", "--ranks", "{}", "--out", "made"),
    ("train", "{}"),
)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("place", PLACES, ids=" ".join)
def test_what_is_no_file_is_refused_in_three_lines(run: Run, odd: Path, place: tuple[str, ...], name: str) -> None:
    code, stdout, stderr = run(*(word.format(name) for word in place), cwd=odd)
    assert (code, stdout) == (2, "")
    what, why, fix = stderr.splitlines()
    assert name in what
    assert KINDS[name] in why
    assert fix.startswith("  fix: ")


def test_a_pipe_can_be_given_through_standard_input(run: Run, odd: Path) -> None:
    _, _, stderr = run("doctor", "pipe", cwd=odd)
    assert "fix: cat pipe | onecard doctor -" in stderr
    code, stdout, _ = run("doctor", "-", cwd=odd, stdin=(odd / "good.log").read_bytes())
    assert code in (0, 1)
    assert stdout.startswith("stdin")


def test_a_run_folder_with_a_pipe_as_its_records_is_refused(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text(RunConfig.model_validate({}).model_dump_json())
    os.mkfifo(folder / "records.jsonl")
    code, _, stderr = run("doctor", "run", cwd=tmp_path)
    assert code == 2
    assert "it is a pipe" in stderr
    assert len(stderr.splitlines()) == 3


@pytest.mark.parametrize("lock", ["a pipe", "100 GB"])
@pytest.mark.timeout(20)
def test_a_lock_that_is_no_lock_is_not_read_for_ever(tmp_path: Path, lock: str) -> None:
    if lock == "a pipe":
        os.mkfifo(tmp_path / "lock")
    else:
        with (tmp_path / "lock").open("wb") as file:
            file.truncate(100 << 30)
    assert not left_behind(tmp_path / "lock")


@pytest.mark.parametrize("place", [("doctor", "huge"), ("plan", "huge"), ("compare", "huge", "good.log")])
def test_sigterm_ends_a_command_that_reads_a_huge_file(tmp_path: Path, place: tuple[str, ...]) -> None:
    (tmp_path / "good.log").write_text("\n".join(made.nanogpt(steps=100)))
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(100 << 30)
    command = subprocess.Popen(
        [sys.executable, "-m", "onecard", *place],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    with suppress(subprocess.TimeoutExpired):
        command.wait(timeout=3)
    command.terminate()
    assert command.wait(timeout=10) in (2, 130)  # seconds of a busy machine; alone it is less than one


def test_a_file_that_becomes_a_pipe_is_noticed_when_it_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    regular = (tmp_path / "file").write_text("x") and (tmp_path / "file").stat()
    monkeypatch.setattr(Path, "stat", lambda self, **_: regular)
    with pytest.raises(NotAFile):
        open_file(tmp_path / "pipe")


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 1001)
    with pytest.raises(OSError, match="larger than 1,000 bytes"):
        read_file(tmp_path / "large", most_bytes=1000)
    assert len(read_file(tmp_path / "large", most_bytes=1001)) == 1001


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", b"word " * 9, b"-" * 40])).map(b"".join), st.integers(8, 60))
def test_pieces_are_the_file_and_none_is_long(content: bytes, longest: int) -> None:
    found = list(pieces(io.BytesIO(content), longest_bytes=longest))
    assert b"".join(found) == content
    assert all(0 < len(piece) <= longest for piece in found)
    assert all(piece.count(b"\n") <= 1 and b"\n" not in piece[:-1] for piece in found)


class Zeros(io.RawIOBase):
    """A file of many zeros and no line, which counts how much was read at once."""

    def __init__(self, size: int) -> None:
        self.left = size
        self.most = 0

    def read(self, size: int = -1) -> bytes:
        self.most = max(self.most, size if size >= 0 else self.left)
        given = min(size if size >= 0 else self.left, self.left)
        self.left -= given
        return bytes(given)


def test_a_line_without_an_end_is_read_in_pieces() -> None:
    zeros = Zeros(8 << 20)
    lengths = {len(piece) for piece in pieces(zeros)}
    assert max(lengths) <= LONGEST_PIECE_BYTES
    assert zeros.most <= 1 << 20


def test_much_without_a_line_takes_little_memory(tmp_path: Path) -> None:
    with (tmp_path / "hole.log").open("wb") as file:
        file.truncate(512 << 20)
    program = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'onecard', 'doctor', 'hole.log'])\n"
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    code, mib = map(int, done.stdout.split())
    assert code == 2
    assert mib < 400, f"{mib} MiB"


def test_a_long_progress_bar_keeps_its_losses_and_line_numbers() -> None:
    bar = "".join(f"\r {n}/9000 [####    ]" for n in range(5000))
    lines = ["first", bar + "\riter 7: loss 3.5000, time 250.00ms, mfu 30.00%", "iter 8: loss 3.4000, time 250.00ms"]
    content = "\n".join(lines).encode()
    assert len(bar) > 4 * LONGEST_PIECE_BYTES
    (read,) = read_logs(pieces(io.BytesIO(content)), source="bar.log")
    found = [
        (record.step, record.loss, str(record.more["line"])[:7]) for record in read.records if isinstance(record, Step)
    ]
    assert found == [(7, 3.5, "line 2:"), (8, 3.4, "line 3:")]


def test_what_follows_in_a_line_that_was_cut_is_not_read_as_a_line_of_its_own() -> None:
    content = b"x" * LONGEST_PIECE_BYTES + b"iter 7: loss 3.5000, time 250.00ms\niter 8: loss 3.4000, time 250.00ms\n"
    (read,) = read_logs(pieces(io.BytesIO(content)), source="cut.log")
    assert [(record.step, str(record.more["line"])[:7]) for record in read.records if isinstance(record, Step)] == [
        (8, "line 2:")
    ]


def many_runs(count: int) -> str:
    """A file of short runs of nanoGPT."""
    lines = []
    for number in range(count):
        lines += ["tokens per iteration will be: 524,288", f"step 0: train loss 4.{number:04d}, val loss 4.1000"]
        lines += [f"iter {step}: loss {4 - step / 100:.4f}, time 250.00ms, mfu 30.00%" for step in (0, 10, 20)]
        lines.append(f"step 20: train loss 3.{number:04d}, val loss 3.1000")
    return "\n".join(lines) + "\n"


def seconds_for(count: int, folder: Path) -> float:
    from onecard.doctor.case import DataSizes
    from onecard.doctor.diagnose import diagnose_cases
    from onecard.inputs.runs import cases_of, runs_at

    path = folder / f"{count}.log"
    path.write_text(many_runs(count))
    begun = time.process_time()
    cases = list(cases_of(runs_at(str(path)), (None, {}), card=None, data=DataSizes()))
    assert len(diagnose_cases(cases)) == count
    return time.process_time() - begun


def test_twice_as_many_runs_take_about_twice_as_long(tmp_path: Path) -> None:
    seconds_for(100, tmp_path)  # imports
    best = {count: min(seconds_for(count, tmp_path) for _ in range(2)) for count in (500, 2000)}
    assert best[2000] / best[500] < 8, best  # linear: 4, quadratic: 16


def test_of_very_many_runs_the_worst_are_shown(run: Run, tmp_path: Path) -> None:
    sick = many_runs(1) + "iter 30: loss nan, time 250.00ms, mfu 30.00%\niter 40: loss nan, time 250.00ms, mfu 30.00%\n"
    (tmp_path / "many.log").write_text(many_runs(300) + sick)
    code, stdout, _ = run("doctor", "many.log", cwd=tmp_path)
    assert code == 1
    assert stdout.count("many.log") == 50
    assert "NaN" in stdout or "nan" in stdout
    assert "251 more runs are not shown" in stdout
    _, everything, _ = run("doctor", "many.log", "--details", cwd=tmp_path)
    assert everything.count("many.log") >= 301


def test_more_runs_than_can_be_compared_are_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "many.log").write_text(many_runs(1001))
    code, stdout, stderr = run("compare", "many.log", cwd=tmp_path)
    assert (code, stdout) == (2, "")
    assert "[too-many-runs]" in stderr

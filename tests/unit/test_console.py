"""A console whose disk is full: what is printed goes nowhere, and nothing else goes wrong."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onecard.report.console import PlainConsole, outlive_disk


class Failing(io.StringIO):
    """A stream on a disk that fails, with a descriptor of its own; `errno` is what it says."""

    def __init__(self, number: int, descriptor: int) -> None:
        super().__init__()
        self.number = number
        self.descriptor = descriptor

    def fileno(self) -> int:
        return self.descriptor

    def flush(self) -> None:
        if not os.path.samestat(os.fstat(self.descriptor), Path(os.devnull).stat()):
            raise OSError(self.number, os.strerror(self.number))


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    with (tmp_path / "log").open("w") as file:
        yield file.fileno()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fails_is_told_once_and_printing_goes_on(number: int, descriptor: int) -> None:
    heard: list[OSError] = []
    console = PlainConsole(file=Failing(number, descriptor))
    outlive_disk(console, heard.append)
    for _ in range(3):
        console.print("a line")
    assert [problem.errno for problem in heard] == [number]


def test_an_answer_that_cannot_be_written_is_no_silence(descriptor: int) -> None:
    with pytest.raises(OSError, match="No space"):
        PlainConsole(file=Failing(errno.ENOSPC, descriptor)).print("an answer")


def test_other_mistakes_of_a_stream_are_not_swallowed(descriptor: int) -> None:
    console = PlainConsole(file=Failing(errno.EBADF, descriptor))
    outlive_disk(console)
    with pytest.raises(OSError, match="Bad file"):
        console.print("a line")


def test_talk_on_a_full_disk_is_dropped(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Failing(errno.ENOSPC, descriptor))
    PlainConsole(stderr=True).print("talk")


def test_one_that_is_collected_late_touches_no_descriptor(descriptor: int) -> None:
    console = PlainConsole(file=Failing(errno.ENOSPC, descriptor))
    outlive_disk(console)
    del console  # its stream was never flushed; by now the number may be that of another file
    gc.collect()
    assert not os.path.samestat(os.fstat(descriptor), Path(os.devnull).stat())


def test_what_outlives_its_disk_prints_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    console = PlainConsole()
    outlive_disk(console)
    console.print("[bold] ± ×")
    assert capsys.readouterr().out == "[bold] ± ×\n"

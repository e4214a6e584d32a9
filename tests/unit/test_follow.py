"""A run that is followed is the run that is loaded, whatever happens to its file."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from onecard.errors import ConfigError
from onecard.runs import follow
from onecard.runs.folder import load_run
from onecard.runs.follow import Followed
from onecard.runs.record_json import to_line
from tests.made_records import start, step


def add(folder: Path, *lines: bytes) -> None:
    with (folder / "records.jsonl").open("ab") as file:
        file.write(b"".join(lines))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"n_layer": 2}')
    add(tmp_path, to_line(start(0, resumed_from=None)), to_line(step(1)))
    return tmp_path


def test_what_was_added_is_read_and_nothing_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Followed(folder)
    assert followed.run() == load_run(folder)
    read: list[bytes] = []
    monkeypatch.setattr(follow, "read_lines", lambda lines: real(seen(lines, read)))
    add(folder, to_line(step(2)))
    assert followed.run() == load_run(folder)
    assert read == [to_line(step(2))]


real = follow.read_lines


def seen(lines: Iterable[bytes], read: list[bytes]) -> Iterable[bytes]:
    for line in lines:
        read.append(line)
        yield line


def test_half_a_line_waits_for_its_end(folder: Path) -> None:
    followed, line = Followed(folder), to_line(step(2))
    add(folder, line[:20])
    assert followed.run().last_step == 1
    add(folder, line[20:])
    assert followed.run() == load_run(folder)
    assert followed.run().last_step == 2


def test_a_damaged_line_is_counted_once(folder: Path) -> None:
    followed = Followed(folder)
    add(folder, b"{damaged\n", to_line(step(2)))
    assert followed.run() == load_run(folder) == followed.run()


def test_a_file_that_was_cut_or_replaced_is_read_again(folder: Path) -> None:
    followed, records = Followed(folder), folder / "records.jsonl"
    followed.run()
    records.write_bytes(to_line(start(0, resumed_from=None)))
    assert followed.run() == load_run(folder)
    (folder / "new").write_bytes(to_line(start(0, resumed_from=None)) + to_line(step(1, loss=9.0)) + to_line(step(2)))
    (folder / "new").replace(records)
    assert followed.run() == load_run(folder)


def test_a_folder_that_is_gone_is_an_error(folder: Path) -> None:
    followed = Followed(folder)
    followed.run()
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(ConfigError, match="no run"):
        followed.run()

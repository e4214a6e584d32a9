"""Files that an option names: whole, or as they were before."""

import errno
import os
from pathlib import Path
from typing import Any

import click
import pytest

from onecard.cli.commands import cli
from onecard.cli.files import check_writable, without_config, write_text
from onecard.errors import ConfigError, MachineError
from onecard.files import free_name
from onecard.inputs.config import config_named


class Full:
    """A disk that takes the name of a file, and nothing into it."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __enter__(self) -> "Full":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, _: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.html").write_text("old")
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *options: Full(opened(path, *options)))


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("overwrite", [True, False])
def test_a_full_disk_leaves_no_file(tmp_path: Path, overwrite: bool) -> None:
    with pytest.raises(MachineError) as caught:
        write_text(tmp_path / "page.html", "text", option="--html", overwrite=overwrite)
    assert caught.value.name == "disk-full"
    assert [path.name for path in tmp_path.iterdir()] == ["old.html"]


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_leaves_the_file_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MachineError):
        write_text(tmp_path / "old.html", "new", option="--html")
    monkeypatch.undo()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_file_is_replaced_and_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("old")
    (tmp_path / "link").symlink_to("page.html")
    write_text(tmp_path / "link", "new", option="--html")
    assert (tmp_path / "page.html").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "page.html"]
    assert (tmp_path / "link").is_symlink()


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    write_text(Path(os.devnull), "text", option="--html")
    assert not Path(os.devnull).is_file()
    with pytest.raises(MachineError):
        write_text(tmp_path, "text", option="--html")


def test_without_overwrite_a_file_is_never_touched(tmp_path: Path) -> None:
    write_text(tmp_path / "a.py", "first", option="--write", overwrite=False)
    with pytest.raises(ConfigError) as caught:
        write_text(tmp_path / "a.py", "second", option="--write", overwrite=False)
    assert caught.value.name == "file-exists"
    assert (tmp_path / "a.py").read_text() == "first"


@pytest.mark.parametrize(
    ("command", "fix"),
    [
        ("plan", "onecard plan (without a file) uses a small default config"),
        ("train", "onecard train (without a file) uses a small default config"),
        ("compare", "name a file that exists, or onecard compare without --config"),
    ],
)
def test_a_missing_config_is_answered_with_the_command_that_was_typed(
    command: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # no configs there
    onecard = click.Context(cli, info_name="onecard")
    with click.Context(cli.commands[command], parent=onecard, info_name=command), pytest.raises(ConfigError) as caught:
        config_named(str(tmp_path / "nothing.py"), [], otherwise=without_config())
    assert caught.value.fix == fix


def test_a_free_name_is_free_and_can_be_pasted(tmp_path: Path) -> None:
    (tmp_path / "plan.py").touch()
    (tmp_path / "gpt2-1.5b").mkdir()
    assert free_name(tmp_path / "plan.py") == str(tmp_path / "plan-2.py")
    (tmp_path / "plan-2.py").touch()
    assert free_name(tmp_path / "plan.py") == str(tmp_path / "plan-3.py")
    assert free_name(tmp_path / "gpt2-1.5b") == str(tmp_path / "gpt2-1.5b-2")
    assert free_name(tmp_path / "my data") == f"'{tmp_path}/my data-2'"


def test_looking_whether_a_file_can_be_written_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "link").symlink_to("new")
    os.mkfifo(tmp_path / "pipe")
    for name in ("old", "new", "link", "pipe"):
        check_writable(tmp_path / name, option="--profile")
    check_writable(Path(os.devnull), option="--profile")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "old", "pipe"]
    assert (tmp_path / "old").read_text() == "old"


@pytest.mark.parametrize("name", ["", "nowhere/file", "old/file", "a\0b"])
def test_a_file_that_cannot_be_written_is_refused_with_the_option_that_named_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "old").write_text("old")
    with pytest.raises(MachineError, match="cannot write") as caught:
        check_writable(tmp_path / name, option="--profile")
    assert caught.value.fix.startswith("--profile ")

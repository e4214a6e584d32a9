"""Every answer of golden.json.xz once more, byte for byte: a rebuilding changes no number and no word."""

from pathlib import Path

import pytest

from tests.answers.make import ARCHIVE, answer, read_archive, write_files
from tests.share import every_tenth
from tests.warm import WarmProcess

KEPT = read_archive()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("answers") / "clean"
    write_files(KEPT["files"], made)
    return made


@pytest.mark.parametrize("kept", every_tenth(KEPT["answers"]), ids=lambda kept: " ".join(kept["command"])[:80])
def test_the_answer_is_what_it_was(warm: WarmProcess, folder: Path, kept: dict[str, object]) -> None:
    assert answer(warm, kept["command"], folder) == kept


def test_a_changed_answer_would_be_seen(warm: WarmProcess, folder: Path) -> None:
    kept = next(each for each in KEPT["answers"] if each["command"][:1] == ["gpus"])
    assert answer(warm, ["gpus", "--json"], folder)["stdout"] != kept["stdout"]
    assert ARCHIVE.stat().st_size < 400_000

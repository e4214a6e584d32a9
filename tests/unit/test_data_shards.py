"""Tokens written, cut off and written on: the files are the same as if nothing had happened."""

from pathlib import Path

import numpy as np
import pytest

from onecard.data.shards import FORMATS, Format, Layout, ShardWriter
from onecard.data.tokens import Tokens, TokenType, token_file
from onecard.errors import ConfigError

IDS = np.arange(1, 96)


def layout(folder: Path, format: Format = "onecard", *, split: str = "train", dtype: TokenType = "uint16") -> Layout:
    folder.mkdir(parents=True, exist_ok=True)
    return Layout(folder=folder, split=split, format=format, dtype=dtype, shard_tokens=20)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def written(folder: Path, format: Format) -> dict[str, bytes]:
    writer = ShardWriter(layout(folder, format))
    writer.write(IDS)
    writer.finish()
    return content(folder)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_what_is_written_is_read_back(tmp_path: Path, format: Format, dtype: TokenType) -> None:
    writer = ShardWriter(layout(tmp_path, format, dtype=dtype))
    for part in np.array_split(IDS, 7):
        writer.write(part)
    entries = writer.finish()
    tokens = Tokens([token_file(tmp_path / entry["file"], dtype=dtype) for entry in entries])
    assert tokens.read(0, 1000).tolist() == IDS.tolist()
    assert [entry["tokens"] for entry in entries] == ([95] if format == "nanogpt" else [20, 20, 20, 20, 15])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(entry["file"] for entry in entries)


def test_the_names_are_those_others_look_for(tmp_path: Path) -> None:
    folder = tmp_path / "fineweb"
    assert layout(folder, "nanogpt").name(0) == "train.bin"
    assert layout(folder, "llmc").name(0) == "fineweb_train_000001.bin"
    assert layout(folder, "llmc", split="val").name(0) == "fineweb_val_000000.bin"


def test_llmcs_header_is_256_numbers(tmp_path: Path) -> None:
    writer = ShardWriter(layout(tmp_path / "x", "llmc"))
    writer.write(np.array([7, 8, 9]))
    writer.finish()
    raw = (tmp_path / "x" / "x_train_000001.bin").read_bytes()
    numbers = np.frombuffer(raw[:1024], dtype="<i4")
    assert numbers[:3].tolist() == [20240520, 1, 3]
    assert not numbers[3:].any()
    assert np.frombuffer(raw[1024:], dtype="<u2").tolist() == [7, 8, 9]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("kept", [0, 1, 19, 20, 21, 60, 95])
@pytest.mark.parametrize("lost", [0, 1, 25, 70])
def test_going_on_from_a_state_forgets_what_came_after(tmp_path: Path, format: Format, kept: int, lost: int) -> None:
    first = ShardWriter(layout(tmp_path / "a" / "x", format))
    first.write(IDS[:kept])
    first.save()
    state = first.state()
    first.write(np.full(lost, 999))  # written after the state, then the process was killed
    first.save()
    first.close()
    second = ShardWriter(layout(tmp_path / "a" / "x", format), **state)
    assert second.tokens == kept
    second.write(IDS[kept:])
    second.finish()
    assert content(tmp_path / "a" / "x") == written(tmp_path / "b" / "x", format)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("first", [0, 15, 40])
def test_finished_files_can_grow(tmp_path: Path, format: Format, first: int) -> None:
    writer = ShardWriter(layout(tmp_path / "a" / "x", format))
    writer.write(IDS[:first])
    again = ShardWriter(layout(tmp_path / "a" / "x", format), whole=writer.finish())
    again.write(IDS[first:])
    again.finish()
    assert content(tmp_path / "a" / "x") == written(tmp_path / "b" / "x", format)


def test_a_file_is_not_called_bin_before_it_is_whole(tmp_path: Path) -> None:
    writer = ShardWriter(layout(tmp_path))
    writer.write(IDS[:30])
    writer.save()
    assert sorted(content(tmp_path)) == ["train-00000.bin", "train-00001.bin.part"]
    writer.close()


def test_a_file_that_lost_what_was_written_is_found(tmp_path: Path) -> None:
    writer = ShardWriter(layout(tmp_path))
    writer.write(IDS[:10])
    writer.save()
    writer.close()
    (tmp_path / "train-00000.bin.part").write_bytes(b"x")
    with pytest.raises(ConfigError) as caught:
        ShardWriter(layout(tmp_path), **writer.state())
    assert caught.value.name == "preparation-damaged"

"""Samples of data made here: whole documents, evenly spread, safe to print."""

import json
from pathlib import Path

import numpy as np
import pytest

from onecard.data.dataset import open_path
from onecard.data.samples import samples


def folder_of(tmp_path: Path, train: bytes, *, tokenizer: str | None = "bytes") -> Path:
    for name, raw in (("train.bin", train), ("val.bin", b"v\0")):
        (tmp_path / name).write_bytes(np.frombuffer(raw, dtype=np.uint8).astype("<u2").tobytes())
    (tmp_path / "meta.json").write_text(json.dumps({"vocab_size": 256, "tokenizer": tokenizer}))
    return tmp_path


@pytest.mark.parametrize("end_first", [False, True])
def test_a_sample_is_the_beginning_of_a_document(tmp_path: Path, end_first: bool) -> None:
    documents = [f"document {number}".encode() for number in range(100)]
    raw = b"".join(b"\0" + each if end_first else each + b"\0" for each in documents)
    data = open_path(folder_of(tmp_path, raw), name="x", environ={})
    found = [sample for sample in samples(data, count=4, length=20) if sample.split == "train"]
    texts = [sample.text for sample in found]
    assert texts[0] == "document 0"
    assert len(set(texts)) == 4
    assert all(text.encode() in documents for text in texts)


def test_long_documents_are_shown_in_part_and_no_split_is_too_short(tmp_path: Path) -> None:
    data = open_path(folder_of(tmp_path, b"x" * 10_000), name="x", environ={})
    found = samples(data, count=2, length=30)
    assert [sample.text for sample in found] == ["x" * 30, "x" * 30, "v"]
    assert [sample.position for sample in found[:2]] == [0, 5000]


def test_without_a_tokenizer_there_are_none(tmp_path: Path) -> None:
    assert samples(open_path(folder_of(tmp_path, b"x" * 9, tokenizer=None), name="x", environ={}), count=3) == ()


def test_what_steers_a_terminal_is_written_out_and_what_joins_letters_stays(tmp_path: Path) -> None:
    joined = "\u0915\u094d\u200d\u0937 \U0001f468\u200d\U0001f469 \u0646\u200c\u0645"
    text = f"a\x1b[31m\tb\n\x07\u202e{joined}"
    (found, *_) = samples(
        open_path(folder_of(tmp_path, text.encode() + b"\0"), name="x", environ={}), count=1, length=99
    )
    assert found.text == f"a\\x1b[31m\tb\n\\x07\\u202e{joined}"

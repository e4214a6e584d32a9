"""Files made here, in every kind and packing: what a document is, and that reading can go on after any of them."""

import bz2
import gzip
import io
import json
import lzma
import random
import sys
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest

from onecard.data import document, documents
from onecard.data import parquet as parquet_files
from onecard.data.document import Bad, Read
from onecard.data.documents import read_documents
from onecard.data.sources import SourceFile, kind_of, left_out, local_files
from onecard.data.texts import texts_at
from onecard.errors import ConfigError, MachineError

arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
zstandard = pytest.importorskip("zstandard", reason="needs zstandard")

PACK = {
    "": lambda raw: raw,
    ".gz": gzip.compress,
    ".zst": lambda raw: zstandard.ZstdCompressor().compress(raw),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
TEXTS = ["one", "two\nlines", "", "тре", "x" * 3000, "last"]


def write(folder: Path, name: str, raw: bytes) -> SourceFile:
    path = folder / name
    path.write_bytes(PACK[kind_of(name, alone=True)[1] or ""](raw))
    (file,) = local_files(str(path)) or []
    return file


def json_lines(texts: list[str], *, column: str = "text") -> bytes:
    return b"".join(json.dumps({"id": index, column: text}).encode() + b"\n" for index, text in enumerate(texts))


def write_parquet(folder: Path, texts: Any, *, rows: int = 2, column: str = "text", kind: Any = None) -> SourceFile:
    table = arrow.table({"id": list(range(len(texts))), column: arrow.array(texts, type=kind)})
    parquet.write_table(table, folder / "x.parquet", row_group_size=rows)
    (file,) = local_files(str(folder / "x.parquet")) or []
    return file


def read(file: SourceFile, **options: Any) -> list[bytes | Bad]:
    return [each.document for each in read_documents(file, **options)]


@pytest.mark.parametrize("packing", PACK)
def test_json_lines_come_line_by_line_however_they_are_packed(tmp_path: Path, packing: str) -> None:
    file = write(tmp_path, f"x.jsonl{packing}", json_lines(TEXTS) + b"\n  \nnot json")
    found = list(read_documents(file))
    assert [json.loads(each.document)["text"] for each in found[:-1]] == TEXTS, "empty lines are no documents"
    assert found[-1].document == b"not json", "whether it is JSON is for the worker to find out"
    assert all(each.is_json for each in found)
    assert found[-1].disk_bytes == file.size_bytes


@pytest.mark.parametrize(
    "name", ["x.jsonl", "x.jsonl.zst", "x.jsonl.gz", "x.txt", "x.txt.gz", "marked.txt", "x.parquet"]
)
def test_reading_goes_on_after_any_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(documents, "CUT_BYTES", 40)
    monkeypatch.setattr(documents, "_PIECE_BYTES", 100)
    monkeypatch.setattr(parquet_files, "_ROWS", 3)
    prose = "".join(f"line {n} ünd so on\n" + "\n" * (n % 3 == 0) for n in range(40)) + "word " * 100 + "é" * 200
    raw = {
        "x.txt": prose.encode(),
        "x.txt.gz": prose.encode(),
        "marked.txt": b"a\nb<|endoftext|>\n\n<|endoftext|>c<|endoftext|>d<|endoftext|>"
        + prose.encode()
        + b"<|endoftext|>e",
    }.get(name, json_lines(TEXTS * 3))
    file = write_parquet(tmp_path, TEXTS * 3, rows=5) if name == "x.parquet" else write(tmp_path, name, raw)
    found = list(read_documents(file))
    assert len(found) >= 5
    places = [each.after for each in found]
    assert places == sorted(set(places))
    for index, each in enumerate(found):
        assert read(file, start=each.after) == [later.document for later in found[index + 1 :]], index


def test_a_text_file_is_cut_at_empty_lines_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "CUT_BYTES", 10)
    monkeypatch.setattr(documents, "_PIECE_BYTES", 40)
    raw = b"first paragraph\nstill first\n\nsecond paragraph\n\nend"
    assert read(write(tmp_path, "x.txt", raw)) == [
        b"first paragraph\nstill first\n\n",
        b"second paragraph\n\n",
        b"end",
    ]


def test_text_on_one_endless_line_is_cut_between_words_and_never_within_a_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "CUT_BYTES", 16)
    monkeypatch.setattr(documents, "_PIECE_BYTES", 64)
    words = ("some words " * 50).encode()
    found = read(write(tmp_path, "x.txt", words))
    assert b"".join(found) == words  # type: ignore[arg-type]
    assert len(found) >= 5
    assert all(each.endswith(b" ") for each in found)  # type: ignore[union-attr]
    letters = ("日本語" * 100).encode()
    found = read(write(tmp_path, "y.txt", letters))
    assert b"".join(found) == letters  # type: ignore[arg-type]
    assert all(each.decode() for each in found)  # type: ignore[union-attr]


def test_a_marked_text_file_has_the_documents_between_the_marks(tmp_path: Path) -> None:
    raw = b"a story\n\nof two parts\n<|endoftext|>\nanother\n<|endoftext|>\n\n<|endoftext|>" + b"word " * 10_000
    assert read(write(tmp_path, "x.txt", raw)) == [b"a story\n\nof two parts", b"another", (b"word " * 10_000).strip()]


def test_in_a_folder_a_text_file_is_one_document_and_tables_go_before_texts(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").write_text("no")
    (tmp_path / "a.py").write_text("one\n\n" * 9000)
    (tmp_path / "b" / "c.md").write_text("two")
    (tmp_path / "b" / "empty").write_text("")
    files = local_files(str(tmp_path)) or []
    assert [file.name for file in files] == ["a.py", "b/c.md", "b/empty"]
    assert [read(file) for file in files] == [[b"one\n\n" * 9000], [b"two"], [b""]]
    assert read(files[0], start=1) == []
    (tmp_path / "b" / "package.json").write_text("{}")
    (tmp_path / "b" / "out").mkdir()
    (tmp_path / "b" / "out" / "own.jsonl").write_text("{}")
    found = local_files(str(tmp_path), but=tmp_path / "b" / "out") or []
    assert [file.name for file in found] == ["a.py", "b/c.md", "b/empty", "b/package.json"]
    (tmp_path / "b" / "out" / "own.jsonl").unlink()
    (tmp_path / "b" / "d.jsonl").write_bytes(json_lines(["x"]))
    assert [file.name for file in local_files(str(tmp_path)) or []] == ["b/d.jsonl"]
    (tmp_path / "README.md").write_text("about the data")
    assert [file.name for file in left_out(str(tmp_path))] == ["a.py", "b/c.md", "b/empty"]
    assert left_out(str(tmp_path / "a.py")) == []
    assert dict(texts_at(str(tmp_path)).left_out) == {"a file beside tables, such as a.py": 3}


@pytest.mark.parametrize(
    "kind", [arrow.string(), arrow.large_string(), arrow.dictionary(arrow.int32(), arrow.string())]
)
def test_parquet_gives_one_column_row_by_row(tmp_path: Path, kind: Any) -> None:
    file = write_parquet(tmp_path, [*TEXTS, None], kind=kind)
    assert read(file) == [*(text.encode() for text in TEXTS), Bad.NO_TEXT]


def test_parquet_without_the_column_or_with_no_text_in_it_is_counted_not_fatal(tmp_path: Path) -> None:
    assert read(write_parquet(tmp_path, TEXTS), column="content") == [Bad.NO_TEXT] * len(TEXTS)
    assert read(write_parquet(tmp_path, [1, 2, 3])) == [Bad.NO_TEXT] * 3


def test_bytes_that_are_no_text_do_not_stop_the_others(tmp_path: Path) -> None:
    assert read(write_parquet(tmp_path, [b"good", b"\xff\xfe", b"too"], kind=arrow.binary())) == [
        b"good",
        b"\xff\xfe",
        b"too",
    ]


@pytest.mark.parametrize("name", ["x.jsonl.gz", "x.jsonl.zst", "x.jsonl.bz2", "x.jsonl.xz", "x.parquet"])
def test_what_stands_before_damage_is_read_and_the_rest_is_counted_once(tmp_path: Path, name: str) -> None:
    noise = random.Random(0)
    texts = ["".join(noise.choices("abcdefghijklmnopqrstuvwxyz", k=5000)) for _ in range(400)]
    if name == "x.parquet":
        file = write_parquet(tmp_path, texts, rows=50)
        raw = bytearray((tmp_path / name).read_bytes())
        raw[len(raw) // 2 : len(raw) // 2 + 400_000] = bytes(400_000)
        (tmp_path / name).write_bytes(raw)
    else:
        file = write(tmp_path, name, json_lines(texts))
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[: (file.size_bytes or 0) // 2])
    found = list(read_documents(file))
    assert [each.document for each in found].count(Bad.DAMAGED) == 1
    assert found[-1].document is Bad.DAMAGED
    assert name.endswith((".bz2", ".xz")) or len(found) > 50
    assert read(file, start=found[-1].after) == []


@pytest.mark.parametrize("raw", [b"", b"PAR1", b"not parquet at all" * 100])
def test_a_file_that_is_no_parquet_is_one_bad_document(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x.parquet").write_bytes(raw)
    (file,) = local_files(str(tmp_path / "x.parquet")) or []
    assert read(file) == [Bad.DAMAGED]


def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_MAX_LINE_BYTES", 100)
    monkeypatch.setattr(documents, "BUFFER_BYTES", 64)
    file = write(tmp_path, "x.jsonl", b'{"a": 1}\n' + b"x" * 1000 + b'\n{"b": 2}\n' + b"y" * 100)
    assert read(file) == [b'{"a": 1}\n', Bad.TOO_LONG, b'{"b": 2}\n', Bad.TOO_LONG]


def test_a_document_that_is_too_long_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (document, documents):
        monkeypatch.setattr(module, "MAX_DOCUMENT_BYTES", 100)
    monkeypatch.setattr(documents, "_PIECE_BYTES", 50)
    marked = b"<|endoftext|>".join([b"a", b"word " * 100, b"b"])
    assert read(write(tmp_path, "x.txt", marked)) == [b"a", Bad.TOO_LONG, b"b"]
    assert read(write_parquet(tmp_path, ["a", "x" * 101])) == [b"a", Bad.TOO_LONG]
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "long.txt").write_text("x" * 101)
    (file,) = local_files(str(tmp_path / "folder")) or []
    assert read(file) == [Bad.TOO_LONG]


@pytest.mark.parametrize("packing", PACK)
def test_standard_input_is_known_by_its_first_bytes(monkeypatch: pytest.MonkeyPatch, packing: str) -> None:
    (file,) = local_files("-") or []

    def piped(raw: bytes, **options: Any) -> list[Read]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(PACK[packing](raw))))
        return list(read_documents(file, **options))

    lines = piped(json_lines(TEXTS))
    assert [json.loads(each.document)["text"] for each in lines] == TEXTS
    assert [each.document for each in piped(json_lines(TEXTS), start=lines[2].after)] == [
        each.document for each in lines[3:]
    ]
    assert [each.document for each in piped(b"plain text")] == [b"plain text"]
    assert piped(b"") == []


def by_name_and_piped(folder: Path, name: str, raw: bytes, monkeypatch: pytest.MonkeyPatch) -> list[list[Read]]:
    """What is read of a file with these bytes, and of standard input with them."""
    (folder / name).write_bytes(raw)
    found = []
    for word in (str(folder / name), "-"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        (file,) = local_files(word) or []
        found.append(list(read_documents(file)))
    return found


@pytest.mark.parametrize("packing", [packing for packing in PACK if packing])
@pytest.mark.parametrize("damage", ["cut off", "broken"])
def test_damage_is_the_same_by_name_and_from_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str, damage: str
) -> None:
    noise = random.Random(0)
    texts = ["".join(noise.choices("abcdefghijklmnopqrstuvwxyz", k=20)) for _ in range(60)]
    raw = PACK[packing](json_lines(texts))
    raw = raw[:-40] if damage == "cut off" else raw[:40] + bytes(40) + raw[80:]
    named, piped = by_name_and_piped(tmp_path, f"x.jsonl{packing}", raw, monkeypatch)
    assert [each.document for each in named] == [each.document for each in piped]
    assert [each.document for each in named].count(Bad.DAMAGED) == 1
    assert named[-1].document is Bad.DAMAGED
    if packing == ".gz" and damage == "cut off":
        whole = [json.loads(each.document)["text"] for each in named[:-1]]
        assert whole == texts[: len(whole)]
        assert len(whole) > 50, "all but the lines that the cut took"


def test_text_before_damage_is_cut_as_always(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = random.Random(0)
    prose = "".join("".join(noise.choices("abcdefgh ", k=60)) + "\n" * (1 + n % 2) for n in range(3000)).encode()
    whole = [each.document for each in by_name_and_piped(tmp_path, "x.txt", prose, monkeypatch)[0]]
    packed = gzip.compress(prose)
    for found in by_name_and_piped(tmp_path, "y.txt.gz", packed[: len(packed) // 2], monkeypatch):
        kept = [each.document for each in found[:-1]]
        assert kept == whole[: len(kept)]
        assert len(kept) >= len(whole) // 2 - 1
        assert found[-1].document is Bad.DAMAGED


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.txt", "x.txt.gz"])
def test_a_mark_before_utf8_is_no_part_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text = json_lines(TEXTS) if "json" in name else b"plain text"
    pack = PACK[kind_of(name, alone=True)[1] or ""]
    plain = by_name_and_piped(tmp_path, name, pack(text), monkeypatch)
    marked = by_name_and_piped(tmp_path, name, pack(BOM_UTF8 + text), monkeypatch)
    for ours, theirs in zip(marked, plain, strict=True):
        assert [(each.document, each.is_json) for each in ours] == [(each.document, each.is_json) for each in theirs]
    file = write(tmp_path, f"again-{name}", BOM_UTF8 + text)
    for index, each in enumerate(list(read_documents(file))):
        assert read(file, start=each.after) == [later.document for later in marked[0][index + 1 :]]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.txt"])
def test_utf16_is_reported_as_utf16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, encoding: str) -> None:
    raw = PACK[kind_of(name, alone=True)[1] or ""](json_lines(TEXTS).decode().encode(encoding))
    for found in by_name_and_piped(tmp_path, name, raw, monkeypatch):
        assert [each.document for each in found] == [Bad.UTF16]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_is_reported_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None) -> None:
    raw = json.dumps([{"text": text} for text in TEXTS], indent=indent).encode()
    for found in by_name_and_piped(tmp_path, "x.json", raw, monkeypatch):
        assert [each.document for each in found] == [Bad.ARRAY]
    rows = b'["a", 1]\n["b", 2]\n'
    assert read(write(tmp_path, "y.jsonl", rows)) == rows.splitlines(keepends=True), "lines, each of them bad"


def test_a_missing_package_is_named_with_its_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "x.jsonl.zst", json_lines(TEXTS))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MachineError) as caught:
        read(file)
    assert caught.value.fix == "pip install 'onecard[data]'"


def test_a_file_that_went_away_is_an_error_in_three_lines(tmp_path: Path) -> None:
    file = write(tmp_path, "x.jsonl", b"{}")
    (tmp_path / "x.jsonl").unlink()
    with pytest.raises(ConfigError) as caught:
        read(file)
    assert caught.value.name == "unreadable-source"

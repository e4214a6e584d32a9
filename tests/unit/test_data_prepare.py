"""Documents made here, prepared in one go, in pieces, twice, and with more to come: the tokens are always the same."""

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onecard.data.part as prepare_part
from onecard.data.dataset import Dataset, checked_files, open_path
from onecard.data.duplicates import DocumentHashes
from onecard.data.encode import content_hash
from onecard.data.manifest import Progress, Settings, read_progress, write_progress
from onecard.data.nanogpt_meta import read_meta
from onecard.data.part import Part
from onecard.data.prepare import prepare
from onecard.data.prepared import Prepared, findings_of
from onecard.data.shards import FORMATS, Format
from onecard.data.sources import Source, SourceFile, local_source
from onecard.data.split import both_sides, share_with_some, val_share, val_threshold
from onecard.data.tokenizers import ByteTokenizer
from onecard.data.watch import Moment
from onecard.errors import ConfigError

BYTES = Settings(tokenizer="bytes", val_share=0.2, shard_tokens=1000)


def texts(count: int, *, first: int = 0) -> list[str]:
    return [
        f"document {number}: {hashlib.sha256(str(number).encode()).hexdigest()}"
        for number in range(first, first + count)
    ]


def write_lines(path: Path, documents: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(each if isinstance(each, dict) else {"text": each}) + "\n" for each in documents)
    return path


def source_of(*paths: Path) -> Source:
    found = local_source([str(path) for path in paths], but=Path("nowhere"))
    assert found is not None
    return found


def run(source: Source | Path, folder: Path, settings: Settings = BYTES, **options: Any) -> Prepared:
    given = source if isinstance(source, Source) else source_of(source)
    return prepare(given, folder, settings=settings, **{"tokenizer": ByteTokenizer()} | options)


def opened(folder: Path) -> Dataset:
    return open_path(folder, name="x", environ={})


def documents_in(folder: Path) -> dict[str, list[str]]:
    """The documents of both splits, in order, as the trainer would read them."""
    data = opened(folder)
    assert data.tokenizer is not None
    splits = {"train": data.train, "val": data.val}
    raw = {split: bytes(tokens.read(0, len(tokens)).astype(np.uint8)) for split, tokens in splits.items()}
    return {split: [part.decode() for part in text.split(b"\0") if part] for split, text in raw.items()}


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.bin"))}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onecard.data.blocks._BLOCK_DOCUMENTS", 7)


def test_every_document_is_in_one_split_in_its_order(tmp_path: Path) -> None:
    documents = texts(200)
    prepared = run(write_lines(tmp_path / "x.jsonl", documents), tmp_path / "out")
    found = documents_in(tmp_path / "out")
    assert sorted(found["train"] + found["val"]) == sorted(documents)
    assert found["train"] == [each for each in documents if each in set(found["train"])]
    assert 20 <= len(found["val"]) <= 60
    assert prepared.meta["documents"] == {
        "train": len(found["train"]),
        "val": len(found["val"]),
        "duplicates": 0,
        "bad": {},
    }
    assert prepared.meta["text_bytes"] == sum(map(len, documents))
    assert prepared.new_tokens == len(opened(tmp_path / "out").train) + len(opened(tmp_path / "out").val)
    assert set(checked_files(opened(tmp_path / "out")).values()) == {True}
    assert len(prepared.meta["train"]) > 5, "in shards"


def test_a_document_is_for_validation_by_its_text_whatever_else_there_is(tmp_path: Path) -> None:
    run(write_lines(tmp_path / "a.jsonl", texts(100)), tmp_path / "a")
    run(write_lines(tmp_path / "b.jsonl", texts(300, first=50)[::-1]), tmp_path / "b")
    first, second = documents_in(tmp_path / "a"), documents_in(tmp_path / "b")
    assert set(first["val"]) & set(second["train"]) == set()
    assert set(first["train"]) & set(second["val"]) == set()
    for each in first["val"]:
        assert int(hashlib.sha256(each.encode()).hexdigest()[:16], 16) < 0.2 * 2**64


def test_a_smaller_share_is_part_of_a_larger_one(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "x.jsonl", texts(300))
    found = []
    for share in (0.0, 0.05, 0.3, 1.0):
        run(file, tmp_path / str(share), Settings(tokenizer="bytes", val_share=share))
        found.append(set(documents_in(tmp_path / str(share))["val"]))
    assert found[0] == set()
    assert found[0] < found[1] < found[2] < found[3] == set(texts(300))


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_read_by_the_trainer(tmp_path: Path, format: Format) -> None:
    settings = Settings(tokenizer="bytes", val_share=0.2, format=format, shard_tokens=1000)
    run(write_lines(tmp_path / "x.jsonl", texts(100)), tmp_path / "out", settings)
    found = documents_in(tmp_path / "out")
    assert sorted(found["train"] + found["val"]) == sorted(texts(100))
    (tmp_path / "out" / "meta.json").unlink()  # others' programs go by the names alone
    bare = open_path(tmp_path / "out", name="x", environ={})
    assert len(bare.train) == sum(len(each) + 1 for each in found["train"])
    ends = bare.train.read(0, len(bare.train)) == 0
    assert (ends[0], ends[-1]) == ((True, False) if format == "llmc" else (False, True))


def test_nanogpt_gets_a_meta_pkl_for_a_vocabulary_that_is_not_gpt2s(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "x.jsonl", ["abba", "cab"] * 20)
    settings = Settings(tokenizer="characters", val_share=0.5, format="nanogpt")
    run(file, tmp_path / "out", settings, tokenizer=None)
    raw = (tmp_path / "out" / "meta.pkl").read_bytes()
    assert read_meta(raw).characters == ("a", "b", "c")
    assert pickle.loads(raw)["stoi"]["b"] == 1


class Killed(BaseException):
    """As the process would be, though what was opened is closed."""


def interrupted(*, after: int) -> Any:
    calls = iter(range(after))

    def on_moment(_: Moment) -> None:
        if next(calls, None) is None:
            raise Killed

    return on_moment


@pytest.fixture
def every_block(monkeypatch: pytest.MonkeyPatch, small_blocks: None) -> None:
    """Each block is told of, and saved."""
    monkeypatch.setattr("onecard.data.watch._TELL_SECONDS", -1.0)


@pytest.mark.usefixtures("every_block")
@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("format", FORMATS)
def test_stopped_at_any_block_and_started_again_the_bytes_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Format, saved: bool
) -> None:
    documents: list[Any] = [*texts(60), *texts(30), {"other": 1}, "", *texts(60, first=40)]
    source = source_of(
        write_lines(tmp_path / "a.jsonl", documents[:70]), write_lines(tmp_path / "b.jsonl", documents[70:])
    )
    settings = Settings(tokenizer="bytes", val_share=0.2, format=format, dedup=True, shard_tokens=500)
    monkeypatch.setitem(DocumentHashes.__init__.__kwdefaults__, "run_length", 16)
    whole = run(source, tmp_path / "whole" / "out", settings)
    if not saved:  # killed: the last save is older than what was written
        monkeypatch.setattr(Part, "__exit__", lambda self, *_: self._files.close())
    starts = 0
    for after in (0, 1, 2, 5, 3, 1, 4) * 10:
        starts += 1
        try:
            prepared = run(
                source,
                tmp_path / "parts" / "out",
                settings,
                on_moment=interrupted(after=after),
                save_seconds=-1.0 if starts % 2 else 1000.0,
            )
            break
        except Killed:
            with pytest.raises(ConfigError) as caught:
                opened(tmp_path / "parts" / "out")
            assert caught.value.name == "data-unfinished"
    assert starts > 4
    assert content(tmp_path / "parts" / "out") == content(tmp_path / "whole" / "out")
    assert prepared.meta == whole.meta
    assert prepared.counts == whole.counts
    assert sum(documents_and_tokens(prepared)) == 100


@pytest.mark.usefixtures("every_block")
@pytest.mark.parametrize("format", FORMATS)
def test_stopped_while_the_files_are_ended_it_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Format
) -> None:
    """Ctrl-C while a full shard, the last of train or that of val is hashed, or as meta.json is written."""
    file = write_lines(tmp_path / "x.jsonl", texts(60) + texts(20))
    settings = Settings(tokenizer="bytes", val_share=0.2, format=format, dedup=True, shard_tokens=2000)
    monkeypatch.setitem(DocumentHashes.__init__.__kwdefaults__, "run_length", 16)
    whole = run(file, tmp_path / "whole" / "out", settings)
    ends, write = hashlib.file_digest, prepare_part.write_meta
    stops = 0
    for after in range(len(whole.meta["train"]) + len(whole.meta["val"]) + 1):
        left = iter(range(after))

        def interrupted_end(*arguments: Any, left: Any = left) -> Any:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return ends(*arguments)

        def interrupted_write(*arguments: Any, left: Any = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            write(*arguments)

        monkeypatch.setattr("hashlib.file_digest", interrupted_end)
        monkeypatch.setattr(prepare_part, "write_meta", interrupted_write)
        with pytest.raises(KeyboardInterrupt):
            run(file, tmp_path / str(after) / "out", settings)
        stops += 1
        monkeypatch.setattr("hashlib.file_digest", ends)
        monkeypatch.setattr(prepare_part, "write_meta", write)
        again = run(file, tmp_path / str(after) / "out", settings)
        assert content(tmp_path / str(after) / "out") == content(tmp_path / "whole" / "out")
        assert again.meta == whole.meta
    assert stops >= 3


def test_killed_as_it_says_that_it_is_finished_it_can_still_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What --dedup has seen is on the disk before the word that all is there."""
    file = write_lines(tmp_path / "x.jsonl", texts(60) + texts(20))
    settings = Settings(tokenizer="bytes", val_share=0.2, dedup=True)
    as_killed = tmp_path / "killed"

    def kill(folder: Path, progress: Progress) -> None:
        write_progress(folder, progress)
        if progress.finished:
            shutil.copytree(folder, as_killed)  # the disk at this moment: buffers of the process are not on it

    monkeypatch.setattr(prepare_part, "write_progress", kill)
    run(file, tmp_path / "out", settings, tokens=1000)
    monkeypatch.setattr(prepare_part, "write_progress", write_progress)
    whole = run(file, tmp_path / "whole", settings)
    grown = run(file, as_killed, settings)
    assert grown.counts == whole.counts
    assert content(as_killed) == content(tmp_path / "whole")


@pytest.mark.usefixtures("every_block")
def test_saved_twice_at_the_end_what_was_seen_is_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last block was looked through to its end and taken in part: hashes beyond it must not count as saved."""
    file = write_lines(tmp_path / "x.jsonl", texts(60))
    settings = Settings(tokenizer="bytes", val_share=0.2, dedup=True)
    monkeypatch.setitem(DocumentHashes.__init__.__kwdefaults__, "run_length", 4)
    whole = run(file, tmp_path / "whole", settings)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopping:
        stopping.setattr(prepare_part, "write_meta", stop)
        with pytest.raises(KeyboardInterrupt):
            run(file, tmp_path / "out", settings, tokens=2 * (len(texts(1)[0]) + 1))
    grown = run(file, tmp_path / "out", settings)
    assert grown.counts == whole.counts
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def documents_and_tokens(prepared: Prepared) -> tuple[int, int]:
    return prepared.counts.documents["train"], prepared.counts.documents["val"]


@pytest.mark.usefixtures("small_blocks")
def test_exact_duplicates_are_left_out_where_asked(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "x.jsonl", texts(50) + texts(20) + ["document 3"] + texts(50))
    kept = run(file, tmp_path / "all")
    assert (kept.counts.kept, kept.counts.duplicates) == (121, 0)
    once = run(file, tmp_path / "once", Settings(tokenizer="bytes", val_share=0.2, dedup=True))
    assert (once.counts.kept, once.counts.duplicates) == (51, 70)
    found = documents_in(tmp_path / "once")
    assert sorted(found["train"] + found["val"]) == sorted([*texts(50), "document 3"])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dedup", [True, False])
def test_it_stops_at_the_document_that_makes_it_enough_and_can_be_asked_for_more(tmp_path: Path, dedup: bool) -> None:
    documents = [*texts(30), {"bad": 1}, {"bad": 2}, *texts(50, first=30), *texts(10), {"bad": 3}, *texts(40, first=80)]
    file = write_lines(tmp_path / "x.jsonl", documents)
    settings = Settings(tokenizer="bytes", val_share=0.2, shard_tokens=700, dedup=dedup)
    length = len(texts(1)[0]) + 1
    first = run(file, tmp_path / "grown", settings, tokens=10 * length)
    assert first.counts.kept == 10
    assert run(file, tmp_path / "grown", settings, tokens=10 * length).new_tokens == 0
    previous = 10 * length
    for wanted in (1, 2000, 2001, 5000, 6900, 9000):
        grown = run(file, tmp_path / "grown", settings, tokens=wanted)
        total = sum(entry["tokens"] for split in ("train", "val") for entry in grown.meta[split])
        assert max(wanted, previous) <= total <= max(wanted + length + 2, previous), "one document more at most"
        previous = total
    grown, whole = (run(file, tmp_path / name, settings) for name in ("grown", "whole"))
    assert content(tmp_path / "grown") == content(tmp_path / "whole")
    assert grown.counts == whole.counts
    assert whole.counts.bad == {"no text in the column": 3}


@pytest.mark.usefixtures("every_block")
def test_data_that_were_finished_and_are_growing_are_no_dataset_until_they_are_finished_again(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "x.jsonl", texts(100))
    run(file, tmp_path / "out", tokens=2000)
    with pytest.raises(Killed):
        run(file, tmp_path / "out", on_moment=interrupted(after=2))
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path / "out")
    assert caught.value.name == "data-unfinished"
    assert run(file, tmp_path / "out").counts.kept == 100


@pytest.mark.usefixtures("small_blocks")
def test_new_files_are_added_and_changed_ones_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", texts(30))
    run(tmp_path / "in", tmp_path / "out")
    write_lines(tmp_path / "in" / "b.jsonl", texts(30, first=30))
    assert run(tmp_path / "in", tmp_path / "out").counts.kept == 60
    run(tmp_path / "in", tmp_path / "whole")
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert run(tmp_path / "in", tmp_path / "out").new_tokens == 0
    write_lines(tmp_path / "in" / "a.jsonl", texts(1))
    with pytest.raises(ConfigError) as caught:
        run(tmp_path / "in", tmp_path / "out")
    assert caught.value.name == "other-preparation"
    assert content(tmp_path / "out") == content(tmp_path / "whole"), "refused, and untouched"


@pytest.mark.parametrize(
    "other", [{"format": "nanogpt"}, {"dedup": True}, {"val_share": 0.1}, {"column": "body"}, {"tokenizer": "bpe"}]
)
def test_another_way_of_preparing_is_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    file = write_lines(tmp_path / "x.jsonl", texts(10))
    run(file, tmp_path / "out")
    (key, value) = next(iter(other.items()))
    with pytest.raises(ConfigError) as caught:
        run(file, tmp_path / "out", Settings(**{"tokenizer": "bytes", "val_share": 0.2, "shard_tokens": 1000} | other))
    assert caught.value.name == "other-preparation"
    assert f"{key}={value}" in caught.value.what


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "train.bin").write_bytes(b"precious")
    with pytest.raises(ConfigError) as caught:
        run(write_lines(tmp_path / "x.jsonl", texts(3)), tmp_path / "out")
    assert caught.value.name == "folder-not-empty"
    assert (tmp_path / "out" / "train.bin").read_bytes() == b"precious"


def test_bad_documents_are_counted_with_the_place_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onecard.data.encode.MAX_DOCUMENT_BYTES", 1000)
    path = write_lines(tmp_path / "x.jsonl", [*texts(5), "", "  \n", {"other": "x"}, {"text": 3}, "x" * 1001, "a\0b"])
    with path.open("ab") as file:
        file.write(b'not json\n[1]\n{"text": "\\ud800"}\n{"text": "\xff"}\n')
    prepared = run(path, tmp_path / "out")
    assert prepared.counts.bad == {
        "empty": 2,
        "no text in the column": 2,
        "longer than 16 MiB": 1,
        "refused by the tokenizer": 1,
        "no JSON object": 2,
        "not UTF-8": 2,
    }
    assert prepared.counts.kept == 5
    assert set(prepared.counts.first_bad) == set(prepared.counts.bad)
    offset = path.read_bytes().index(b"not json\n") + len(b"not json\n")
    assert prepared.counts.first_bad["no JSON object"] == f"x.jsonl, up to byte {offset:,}"
    assert "many-bad-documents" in {finding.rule for finding in findings_of(prepared)}


def test_if_all_are_bad_it_says_which_column_was_meant_and_can_be_tried_again(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "x.jsonl", [{"id": 1, "content": "hello"}] * 3)
    with pytest.raises(ConfigError) as caught:
        run(path, tmp_path / "out")
    assert caught.value.name == "all-bad"
    assert caught.value.fix == "--column content"
    assert run(path, tmp_path / "out", Settings(tokenizer="bytes", column="content")).counts.kept == 3


def test_a_source_without_documents_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        run(write_lines(tmp_path / "x.jsonl", []), tmp_path / "out")
    assert caught.value.name == "no-documents"


def source_with(size_bytes: int | None) -> Source:
    return Source(name="x", files=(SourceFile(name="x", kind="jsonl", size_bytes=size_bytes),))


def test_the_share_for_validation_is_what_a_million_tokens_need() -> None:
    assert val_share(source_with(10**12), None) == 0.01
    assert val_share(source_with(10**12), 100_000_000) == 0.02
    assert val_share(source_with(45_000_000 * 5), None) == 0.05
    assert val_share(source_with(1_000_000), None) == 0.1
    assert val_share(source_with(None), None) == 0.01
    assert val_share(source_with(1_000_000), 10**9) == 0.1, "there is less than was asked for"


def test_the_share_is_raised_only_as_far_as_one_document_needs() -> None:
    def at(*shares: float) -> list[int]:
        return [round(share * 2**64) for share in shares]

    assert share_with_some(0.1, at(0.7, 0.05, 0.5)) == 0.1
    assert share_with_some(0.1, at(0.7, 0.341, 0.5)) == 0.35
    assert share_with_some(0.1, at(0.341, 0.342)) == 0.342, "and the second one stays for training"
    assert share_with_some(0.1, at(0.7, 0.7)) == 0.1, "copies of one document are on one side"
    assert share_with_some(0.1, []) == 0.1
    assert share_with_some(0.1, iter(at(*[0.5] * 500, 0.05, 0.6))) == 0.1, "it does not read on for ever"


@given(st.sets(st.integers(0, 2**64 - 1), min_size=2, max_size=6))
def test_both_sides_have_documents_whatever_their_hashes(hashes: set[int]) -> None:
    share = share_with_some(0.1, sorted(hashes, reverse=True))
    are_val = [each < val_threshold(share) for each in hashes]
    second = sorted(hashes)[1]
    assert 0 < share < 1
    assert any(are_val) or second - min(hashes) < 2**14, "too near to each other for any share to tell"
    assert sum(are_val) == 1 or share == 0.1


@pytest.mark.usefixtures("small_blocks", "every_block")
def test_few_documents_give_the_same_bytes_in_pieces_and_in_one_go(tmp_path: Path) -> None:
    none = next(first for first in range(10**6) if min(map(share_of, texts(8, first=first))) > 0.1)
    file = write_lines(tmp_path / "x.jsonl", texts(8, first=none))
    settings = Settings(tokenizer="bytes")
    run(file, tmp_path / "whole", settings, workers=2)
    assert {split: len(found) for split, found in documents_in(tmp_path / "whole").items()} == {"train": 7, "val": 1}
    with pytest.raises(Killed):
        run(file, tmp_path / "killed", settings, save_seconds=0.0, on_moment=interrupted(after=1))
    progress = read_progress(tmp_path / "killed")
    assert progress is not None
    assert 0 < progress.counts.kept <= 8
    run(file, tmp_path / "killed", settings)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")


def share_of(text: str) -> float:
    return content_hash(text.encode()) / 2**64


def test_with_fewer_tokens_wanted_than_there_are_the_share_stays(tmp_path: Path) -> None:
    none = next(first for first in range(10**6) if min(map(share_of, texts(8, first=first))) > 0.1)
    file = write_lines(tmp_path / "x.jsonl", texts(8, first=none))
    prepared = run(file, tmp_path / "a", Settings(tokenizer="bytes"), tokens=200)
    assert prepared.meta["val_share"] == 0.1, "more may be added later"
    assert [finding.rule for finding in findings_of(prepared)] == ["empty-split"]


def test_progress_of_a_version_that_kept_no_hashes_is_read(tmp_path: Path) -> None:
    run(write_lines(tmp_path / "x.jsonl", texts(8)), tmp_path / "a")
    said = json.loads((tmp_path / "a" / "progress.json").read_bytes())
    del said["counts"]["lowest"]
    (tmp_path / "a" / "progress.json").write_text(json.dumps(said))
    progress = read_progress(tmp_path / "a")
    assert progress is not None
    assert progress.counts.lowest == ()
    assert both_sides(progress.counts.lowest, tmp_path / "a") == f"--val-share 0.5 --out {tmp_path}/a-2"


def test_a_validation_set_below_a_million_tokens_is_reported_with_its_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_lines(tmp_path / "x.jsonl", texts(2000))
    monkeypatch.setattr("onecard.data.prepared.VAL_TOKENS", 5000)
    (finding,) = findings_of(run(file, tmp_path / "a", Settings(tokenizer="bytes", val_share=0.01)))
    assert finding.rule == "val-set-tiny"
    assert "1% of the documents" in finding.why
    assert finding.fix.startswith("--val-share 0.05 ")
    assert findings_of(run(file, tmp_path / "b", Settings(tokenizer="bytes", val_share=0.05))) == ()


@pytest.mark.parametrize(("val_words", "train_words", "is_told"), [(50, 1, True), (1, 50, True), (1, 1, False)])
def test_a_split_far_from_its_share_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, val_words: int, train_words: int, is_told: bool
) -> None:
    monkeypatch.setattr("onecard.data.prepared.VAL_TOKENS", 1)

    def long(number: int, words: int) -> str:
        return f"document {number}: {'and so on, ' * 9 * words}"

    def is_val(text: str) -> bool:
        return content_hash(text.encode()) < val_threshold(0.2)

    val = [text for number in range(200) if is_val(text := long(number, val_words))][:4]
    train = [text for number in range(200) if not is_val(text := long(number, train_words))][:16]
    prepared = run(write_lines(tmp_path / "x.jsonl", val + train), tmp_path / "a")
    assert (prepared.counts.documents["train"], prepared.counts.documents["val"]) == (16, 4)
    found = findings_of(prepared)
    assert [finding.rule for finding in found] == (["split-uneven"] if is_told else [])
    if is_told:
        share = prepared.tokens["val"] / sum(prepared.tokens.values())
        assert f"is {100 * share:.2g}% of the tokens, not 20%" in found[0].what
        assert "only 20 of them" in found[0].why


@pytest.mark.usefixtures("small_blocks")
def test_many_processes_write_what_one_does(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "x.jsonl", texts(300))
    run(file, tmp_path / "one")
    run(file, tmp_path / "three", workers=3)
    assert content(tmp_path / "three") == content(tmp_path / "one")


@pytest.mark.usefixtures("every_block")
def test_two_at_once_in_one_folder_are_refused(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "x.jsonl", texts(3))

    def meanwhile(_: Moment) -> None:
        with pytest.raises(ConfigError) as caught:
            run(file, tmp_path / "out")
        assert caught.value.name == "data-in-use"
        assert f"process {os.getpid()} on " in caught.value.what
        raise Killed

    with pytest.raises(Killed):
        run(file, tmp_path / "out", on_moment=meanwhile)


def test_a_damaged_progress_file_is_reported(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "x.jsonl", texts(3))
    run(file, tmp_path / "out")
    for raw in ("", "{", "[]", '{"schema": 2}', '{"schema": 1}', '{"schema": 1, "place": [1], "counts": {}}'):
        (tmp_path / "out" / "progress.json").write_text(raw)
        with pytest.raises(ConfigError) as caught:
            read_progress(tmp_path / "out")
        assert caught.value.name == "preparation-damaged", raw


@pytest.fixture
def moments() -> list[Moment]:
    return []


@pytest.mark.usefixtures("every_block")
def test_whoever_watches_sees_it_grow_to_the_end(tmp_path: Path, moments: list[Moment]) -> None:
    run(write_lines(tmp_path / "x.jsonl", texts(100)), tmp_path / "out", on_moment=moments.append)
    shares = [moment.share or 0.0 for moment in moments]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert [moment.documents for moment in moments][-1] == 100


@pytest.mark.usefixtures("every_block")
def test_what_was_done_before_does_not_count_as_speed(tmp_path: Path, moments: list[Moment]) -> None:
    file = write_lines(tmp_path / "x.jsonl", texts(1000))
    total = sum(len(each) + 1 for each in texts(1000))
    run(file, tmp_path / "out", tokens=total // 2)
    run(file, tmp_path / "out", tokens=total, on_moment=moments.append)
    assert moments[0].share is not None
    assert moments[0].share >= moments[0].begun_share >= 0.49
    assert moments[-1].tokens_per_second == pytest.approx(total / 2 / moments[-1].seconds, rel=0.1)

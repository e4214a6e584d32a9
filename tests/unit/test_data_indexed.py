"""datatrove's and Megatron's token files: read as they are, split by document, and every damage found."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onecard.config.schema import RunConfig
from onecard.data.checks import check_dataset, data_findings
from onecard.data.dataset import Dataset, open_dataset
from onecard.data.indexed import indexed_file
from onecard.errors import ConfigError
from onecard.inputs.data_sizes import sizes_of_data
from tests.indexed_files import Documents, documents, write_datatrove, write_megatron


def opened(path: Path | str) -> Dataset:
    return open_dataset(str(path), environ={"ONECARD_HOME": "/nowhere", "TIKTOKEN_CACHE_DIR": "/nowhere"})


def problem(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        opened(path)
    assert all((caught.value.what, caught.value.why, caught.value.fix))
    return caught.value


def flat(texts: Documents) -> list[int]:
    return [token for text in texts for token in text]


def all_of(data: Dataset) -> list[int]:
    return [*data.train.read(0, len(data.train)).tolist(), *data.val.read(0, len(data.val)).tolist()]


@pytest.mark.parametrize(("token_bytes", "dtype"), [(2, "uint16"), (4, "uint32")])
@pytest.mark.parametrize("metadata", [True, False])
def test_datatroves_index_or_metadata_tells_the_size_of_a_token(
    tmp_path: Path, token_bytes: int, dtype: str, metadata: bool
) -> None:
    texts = documents(50)
    write_datatrove(tmp_path / "a.ds", texts, token_bytes=token_bytes, tokenizer="gpt2" if metadata else None)
    data = opened(tmp_path)
    assert all_of(data) == flat(texts)
    assert {file.dtype for file in data.train.files} == {dtype}
    assert data.dtype_is_known
    (tmp_path / "a.ds.index").unlink()
    bare = opened(tmp_path)
    assert bare.documents is None
    assert bare.dtype_is_known is metadata
    assert all_of(bare) == flat(texts) or not metadata


@pytest.mark.parametrize(("code", "dtype"), [(8, "uint16"), (4, "uint32")])
@pytest.mark.parametrize("sequences_each", [1, 2])
def test_megatrons_index_tells_types_and_documents(tmp_path: Path, code: int, dtype: str, sequences_each: int) -> None:
    texts = documents(50, vocab_size=200 if code == 8 else 100_000)
    write_megatron(tmp_path / "x_text_document.bin", texts, code=code, sequences_each=sequences_each)
    data = opened(tmp_path)
    assert all_of(data) == flat(texts)
    assert {file.dtype for file in data.train.files} == {dtype}
    assert data.documents is not None
    assert sum(data.documents.values()) == 50
    assert data.vocab_size is None, "Megatron's files do not say"
    ends = indexed_file(tmp_path / "x_text_document.bin").ends
    assert ends is not None
    assert ends.tolist() == np.cumsum([len(text) for text in texts]).tolist()


@pytest.mark.parametrize("write", [write_datatrove, write_megatron])
def test_the_last_tenth_of_the_documents_of_every_file_is_held_out(tmp_path: Path, write: Callable[..., Path]) -> None:
    texts = documents(300)
    ending = ".ds" if write is write_datatrove else ".bin"
    for number in range(3):
        write(tmp_path / f"{number:05d}{ending}", texts[100 * number : 100 * number + 100])
    data = opened(tmp_path)
    assert data.held_out == "the last documents of each file"
    assert data.documents is not None
    assert data.documents["train"] + data.documents["val"] == 300
    assert 0.08 < len(data.val) / (len(data.train) + len(data.val)) < 0.12
    ends = [text[-1] for text in texts]
    assert set(ends) == {0}
    assert all_of(data).count(0) == 300, "all of it, and nothing twice"
    for tokens in (data.train, data.val):
        begin = 0
        for file in tokens.files:
            assert tokens.read(begin + file.count - 1, 1).tolist() == [0], "no document is cut"
            begin += file.count
    first = flat(texts[:100])
    cut = data.train.files[0].count
    assert data.val.read(0, len(first) - cut).tolist() == first[cut:]


def test_a_single_file_is_a_dataset_with_and_without_its_end(tmp_path: Path) -> None:
    texts = documents(40)
    write_datatrove(tmp_path / "a.ds", texts)
    write_megatron(tmp_path / "v1.2_text_document.bin", texts)
    for name in ("a.ds", "v1.2_text_document", "v1.2_text_document.bin", "v1.2_text_document.idx"):
        assert all_of(opened(tmp_path / name)) == flat(texts)
        assert opened(tmp_path / name).folder == tmp_path


@pytest.mark.parametrize(
    "names", [("train_000.ds", "val_000.ds"), ("train/0.ds", "val/0.ds"), ("0.ds", "fineweb-validation.ds")]
)
def test_files_or_folders_named_train_and_val_are_these_splits(tmp_path: Path, names: tuple[str, str]) -> None:
    train, val = documents(40), documents(7, longest=9)
    write_datatrove(tmp_path / names[0], train)
    write_datatrove(tmp_path / names[1], val)
    data = opened(tmp_path)
    assert data.train.read(0, len(data.train)).tolist() == flat(train)
    assert data.val.read(0, len(data.val)).tolist() == flat(val)
    assert data.documents == {"train": 40, "val": 7}
    assert not data.held_out


def test_a_file_named_test_is_not_learned(tmp_path: Path) -> None:
    write_datatrove(tmp_path / "a.ds", documents(40))
    write_datatrove(tmp_path / "test.ds", documents(40))
    assert {file.path.name for file in opened(tmp_path).train.files} == {"a.ds"}


@pytest.mark.parametrize("sizes", [[3], [1, 1, 2], [500, 2], [1]])
def test_few_documents_are_split_if_that_can_be_done(tmp_path: Path, sizes: list[int]) -> None:
    for number, size in enumerate(sizes):
        write_datatrove(tmp_path / f"{number}.ds", documents(size, longest=300))
    data = opened(tmp_path)
    if sizes == [1]:
        with pytest.raises(ConfigError) as caught:
            check_dataset(data, block_size=1, vocab_size=50304)
        assert "this split got none" in caught.value.why
    else:
        assert len(data.train)
        assert len(data.val)


def test_what_gpt2_made_has_its_vocabulary_and_another_name_leaves_it_open(tmp_path: Path) -> None:
    write_datatrove(tmp_path / "a.ds", documents(40), tokenizer="openai-community/gpt2")
    assert (opened(tmp_path).vocab_size, opened(tmp_path).model_vocab_size) == (50257, 50304)
    write_datatrove(tmp_path / "a.ds", documents(40), tokenizer="/etc/passwd")
    assert opened(tmp_path).vocab_size is None
    assert opened(tmp_path).tokenizer_name == "/etc/passwd", "shown, not opened"
    (tmp_path / "meta.json").write_text('{"vocab_size": 250, "tokenizer": "bytes"}')
    assert opened(tmp_path).vocab_size == 250


def test_meta_json_may_list_files_of_datatrove(tmp_path: Path) -> None:
    for name in "ab":
        write_datatrove(tmp_path / f"{name}.ds", documents(40))
    (tmp_path / "meta.json").write_text(json.dumps({"train": [{"file": "a.ds"}], "val": [{"file": "b.ds"}]}))
    data = opened(tmp_path)
    assert [file.path.name for file in (*data.train.files, *data.val.files)] == ["a.ds", "b.ds"]


def _cut(path: Path, size: int) -> None:
    os.truncate(path, size if size >= 0 else path.stat().st_size + size)


def _put(path: Path, at: int, raw: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(raw)] = raw
    path.write_bytes(content)


DAMAGE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "tokens cut": ("a.ds", lambda path: _cut(path, -2)),
    "half a token cut": ("a.ds", lambda path: _cut(path, -1)),
    "no tokens": ("a.ds", lambda path: _cut(path, 0)),
    "index cut": ("a.ds.index", lambda path: _cut(path, -8)),
    "index cut within a document": ("a.ds.index", lambda path: _cut(path, -3)),
    "empty index": ("a.ds.index", lambda path: _cut(path, 0)),
    "ends that fall": ("a.ds.index", lambda path: _put(path, 8, struct.pack("<Q", 10**6))),
    "an end beyond all bounds": ("a.ds.index", lambda path: _put(path, 8 * 39, b"\xff" * 8)),
    "another size of a token": ("a.ds.metadata", lambda path: path.write_text("gpt2|4\n1\n1 T")),
    "an odd size of a token": ("a.ds.metadata", lambda path: path.write_text("gpt2|3\n")),
    "another count": ("a.ds.metadata", lambda path: path.write_text("gpt2|2\n7\n7 T")),
    "no count": ("a.ds.metadata", lambda path: path.write_text("gpt2|2\n-7e9")),
    "metadata that is not text": ("a.ds.metadata", lambda path: path.write_bytes(b"\xff\xfe|2\n")),
    "metadata without end": ("a.ds.metadata", lambda path: path.write_bytes(b"x" * 2**17)),
    "a second file without its index": ("b.ds", lambda path: path.write_bytes(b"1234")),
    "Megatron: tokens cut": ("x.bin", lambda path: _cut(path, -2)),
    "Megatron: no tokens": ("x.bin", lambda path: path.unlink()),
    "Megatron: index cut": ("x.idx", lambda path: _cut(path, -1)),
    "Megatron: no index": ("x.idx", lambda path: _cut(path, 0)),
    "Megatron: another magic": ("x.idx", lambda path: _put(path, 0, b"TNTIDX\0\0\0")),
    "Megatron: another version": ("x.idx", lambda path: _put(path, 9, b"\x02")),
    "Megatron: an unknown type": ("x.idx", lambda path: _put(path, 17, b"\x63")),
    "Megatron: floats": ("x.idx", lambda path: _put(path, 17, b"\x07")),
    "Megatron: sequences without number": ("x.idx", lambda path: _put(path, 18, b"\xff" * 8)),
    "Megatron: documents without number": ("x.idx", lambda path: _put(path, 26, b"\xff" * 8)),
    "Megatron: a negative length": ("x.idx", lambda path: _put(path, 34, struct.pack("<i", -5))),
    "Megatron: another length": ("x.idx", lambda path: _put(path, 34, struct.pack("<i", 99))),
    "Megatron: another place": ("x.idx", lambda path: _put(path, 34 + 4 * 40 + 8, struct.pack("<q", 1))),
    "Megatron: documents that fall": ("x.idx", lambda path: _put(path, 34 + 12 * 40 + 8, struct.pack("<q", 39))),
    "Megatron: documents beyond": ("x.idx", lambda path: _put(path, 34 + 12 * 40 + 8 * 40, struct.pack("<q", 41))),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_every_damage_is_an_error_in_three_lines_and_a_plan_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    name, damage = DAMAGE[kind]
    folder = tmp_path / "data" / "mine"
    if name.startswith("x"):
        write_megatron(folder / "x.bin", documents(40))
    else:
        write_datatrove(folder / "a.ds", documents(40))
    opened(folder)
    damage(folder / name)
    found = problem(folder)
    assert found.name in ("token-file-damaged", "token-file-unreadable", "wrong-dtype")
    assert name.partition(".")[0] in found.what, "the file is named"
    monkeypatch.chdir(tmp_path)
    sizes = sizes_of_data(RunConfig(dataset="mine"), (Path("data"),))
    assert (sizes.train_tokens, bool(sizes.problem)) == (None, True)


def test_any_changed_byte_of_an_index_is_an_error_or_another_cut_and_nothing_else(tmp_path: Path) -> None:
    random = np.random.RandomState(3)
    for write, name in ((write_datatrove, "a.ds"), (write_megatron, "a.bin")):
        path = write(tmp_path / name, documents(40))
        index = Path(f"{path}.index") if name == "a.ds" else path.with_suffix(".idx")
        whole = index.read_bytes()
        for _ in range(150):
            _put(index, int(random.randint(len(whole))), random.bytes(1))
            try:
                data = opened(path)
            except ConfigError:
                pass
            else:
                assert len(data.train) + len(data.val) == sum(map(len, documents(40)))
            index.write_bytes(whole)


def test_documents_without_an_end_of_text_and_an_unused_loss_mask_are_named(tmp_path: Path) -> None:
    write_datatrove(tmp_path / "a.ds", documents(40, end=None), tokenizer="gpt2")
    (tmp_path / "meta.json").write_text('{"tokenizer": "bytes", "vocab_size": 256}')
    (tmp_path / "a.ds.loss").write_bytes(b"\1")
    rules = [finding.rule for finding in data_findings(opened(tmp_path))]
    assert rules == ["val-held-out", "no-end-of-text", "loss-mask-ignored"]
    shutil.rmtree(tmp_path)
    write_datatrove(tmp_path / "a.ds", documents(40), tokenizer="gpt2")
    (tmp_path / "meta.json").write_text('{"tokenizer": "bytes", "vocab_size": 256}')
    assert [finding.rule for finding in data_findings(opened(tmp_path))] == ["val-held-out"]


def test_ids_beyond_the_vocabulary_are_found_in_both(tmp_path: Path) -> None:
    write_megatron(tmp_path / "a.bin", documents(40, vocab_size=100_000), code=4)
    with pytest.raises(ConfigError, match="token id"):
        check_dataset(opened(tmp_path), block_size=8, vocab_size=50304)


def test_the_same_tokens_have_the_same_fingerprint_wherever_they_lie(tmp_path: Path) -> None:
    for place in ("here", "there"):
        write_datatrove(tmp_path / place / "a.ds", documents(40))
    assert opened(tmp_path / "here").fingerprint == opened(tmp_path / "there").fingerprint

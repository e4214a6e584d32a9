"""Token files made by hand: every layout opens, every fault is found before training."""

import hashlib
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onecard.config.resolve import flag_values
from onecard.config.schema import RunConfig
from onecard.data.checks import check_dataset
from onecard.data.dataset import Dataset, checked_files, open_dataset
from onecard.data.manifest import Settings
from onecard.data.nanogpt_meta import read_meta
from onecard.data.prepare import prepare
from onecard.data.sources import local_source
from onecard.data.tokenizers import ByteTokenizer, CharacterTokenizer
from onecard.data.tokens import Tokens, first_outside, token_file
from onecard.errors import ConfigError


def write(path: Path, ids: Any, *, dtype: str = "<u2") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(np.asarray(ids).astype(dtype).tobytes())
    return path


def write_shard(path: Path, ids: Any, *, magic: int = 20240520, version: int = 1, dtype: str = "<u2") -> Path:
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(ids)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header.tobytes() + np.asarray(ids).astype(dtype).tobytes())
    return path


def nanogpt_folder(folder: Path, *, train: Any = range(1000), val: Any = range(100), dtype: str = "<u2") -> Path:
    write(folder / "train.bin", train, dtype=dtype)
    write(folder / "val.bin", val, dtype=dtype)
    return folder


def opened(folder: Path) -> Dataset:
    return open_dataset(str(folder), environ={"ONECARD_HOME": str(folder / "home")})


def problem(folder: Path, **settings: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        check_dataset(opened(folder), **({"block_size": 8, "vocab_size": 50304} | settings))
    assert all((caught.value.what, caught.value.why, caught.value.fix))
    return caught.value


def test_nanogpt_files_are_read_as_they_are(tmp_path: Path) -> None:
    data = opened(nanogpt_folder(tmp_path))
    assert (len(data.train), len(data.val)) == (1000, 100)
    assert data.train.read(10, 3).tolist() == [10, 11, 12]
    assert (data.vocab_size, data.tokenizer) == (None, None)


def test_a_dataset_is_found_by_name_under_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nanogpt_folder(tmp_path / "data" / "shakespeare")
    monkeypatch.chdir(tmp_path)
    assert open_dataset("shakespeare", environ={"ONECARD_HOME": str(tmp_path)}).path == Path("data/shakespeare")
    assert open_dataset("data/shakespeare", environ={"ONECARD_HOME": str(tmp_path)}).path == Path("data/shakespeare")


def test_a_dataset_of_a_config_file_may_lie_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nanogpt_folder(tmp_path / "mine")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_dataset("~/mine", environ={"ONECARD_HOME": str(tmp_path)}).path == tmp_path / "mine"


@pytest.mark.parametrize("name", ["shakespere", "", "\0", "x" * 5000, "empty"])
def test_an_unknown_dataset_is_named_with_its_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    nanogpt_folder(tmp_path / "data" / "shakespeare")
    (tmp_path / "data" / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        open_dataset(name, environ={"ONECARD_HOME": str(tmp_path)})
    assert caught.value.name == "no-such-dataset"
    assert name != "shakespere" or "--dataset=shakespeare," in caught.value.fix


def test_shards_with_headers_are_read_in_order_as_one(tmp_path: Path) -> None:
    for number, ids in enumerate([range(50), range(50, 70), range(70, 200)], start=1):
        write_shard(tmp_path / f"fineweb_train_{number:06d}.bin", ids)
    write_shard(tmp_path / "fineweb_val_000000.bin", range(40))
    data = opened(tmp_path)
    assert data.train.read(0, 200).tolist() == list(range(200))
    assert data.train.read(45, 60).tolist() == list(range(45, 105))
    assert data.train.file_at(55) == (tmp_path / "fineweb_train_000002.bin", 5)
    assert len(data.val) == 40


def test_llama_shards_are_uint32(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "x.bin", [100_000, 5], magic=20240801, version=7, dtype="<u4")
    assert Tokens([token_file(path)]).read(0, 2).tolist() == [100_000, 5]


def test_an_empty_file_among_shards_is_no_obstacle(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{name}.bin", ids) for name, ids in (("a", [1, 2]), ("b", []), ("c", [3, 4]))]
    assert Tokens([token_file(path) for path in files]).read(0, 4).tolist() == [1, 2, 3, 4]


def test_a_header_that_promises_more_is_found(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "x.bin", range(100))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ConfigError) as caught:
        token_file(path)
    assert caught.value.name == "token-file-damaged"
    assert "header says 100 tokens" in caught.value.why


def test_an_odd_number_of_bytes_is_found(tmp_path: Path) -> None:
    nanogpt_folder(tmp_path)
    (tmp_path / "train.bin").write_bytes(b"123")
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path)
    assert caught.value.name == "token-file-damaged"


def test_a_missing_val_file_is_found(tmp_path: Path) -> None:
    write(tmp_path / "train.bin", range(100))
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path)
    assert caught.value.name == "token-file-missing"
    assert "val.bin" in caught.value.what


def test_a_file_shorter_than_a_block_is_found(tmp_path: Path) -> None:
    found = problem(nanogpt_folder(tmp_path, val=range(100)), block_size=100)
    assert found.name == "data-too-short"
    assert "100 tokens, but one sequence needs 101" in found.what
    assert "block_size=100 tokens" in found.why
    assert found.fix.startswith("--eval_block_size=99 "), "the model may keep its context"
    check_dataset(opened(tmp_path), block_size=99, vocab_size=1000)
    check_dataset(opened(tmp_path), block_size=500, eval_block_size=99, vocab_size=1000)


@pytest.mark.parametrize(
    ("split", "settings", "why"),
    [
        ("val", {"block_size": 256}, "block_size=256"),
        ("val", {"block_size": 256, "eval_block_size": 200}, "eval_block_size=200"),
        ("train", {"block_size": 256}, "block_size=256"),
        ("train", {"block_size": 256, "eval_block_size": 64}, "block_size=256"),
        ("train", {"block_size": 256, "eval_block_size": 200}, "block_size=256"),
    ],
)
def test_the_fix_for_short_data_works(tmp_path: Path, split: str, settings: dict[str, int], why: str) -> None:
    folder = nanogpt_folder(tmp_path, **{"train": range(900), "val": range(900), split: range(100)})
    found = problem(folder, vocab_size=1000, **settings)
    assert found.why.startswith(f"a sequence is {why} tokens")
    words = found.fix.partition(" or less")[0].split()
    mended = settings | flag_values(
        (key, text) for key, _, text in (word.removeprefix("--").partition("=") for word in words)
    )
    RunConfig.model_validate(mended)
    check_dataset(opened(folder), vocab_size=1000, **mended)


@pytest.mark.parametrize("count", [0, 1])
def test_a_split_without_tokens_is_not_cured_by_a_block_size(tmp_path: Path, count: int) -> None:
    found = problem(nanogpt_folder(tmp_path, val=range(count)), block_size=8)
    assert found.name == "data-too-short"
    assert "nothing to validate with" in found.what
    assert found.fix.startswith("onecard data prepare SOURCE --out ")


def test_prepared_data_without_validation_name_the_share_that_gives_some(tmp_path: Path) -> None:
    lines = tmp_path / "x.jsonl"
    lines.write_text("".join(f'{{"text": "document {number}"}}\n' for number in range(5)))
    source = local_source([str(lines)], but=tmp_path / "out")
    assert source is not None
    tokenizer = ByteTokenizer()
    prepare(source, tmp_path / "out", settings=Settings(tokenizer="bytes", val_share=0.0), tokenizer=tokenizer)
    fix = problem(tmp_path / "out", block_size=8).fix
    share = float(fix.partition("--val-share ")[2].split()[0])
    prepare(source, tmp_path / "out-2", settings=Settings(tokenizer="bytes", val_share=share), tokenizer=tokenizer)
    check_dataset(opened(tmp_path / "out-2"), block_size=8, vocab_size=256)


def test_errors_use_the_vocabulary_that_the_data_states(tmp_path: Path) -> None:
    folder = nanogpt_folder(tmp_path, train=[200] * 100)
    (folder / "meta.json").write_text('{"vocab_size": 256}')
    assert problem(folder, vocab_size=100).fix.startswith("--vocab_size=256 ")
    (folder / "meta.json").write_text('{"vocab_size": 150}')
    damaged = problem(folder, vocab_size=100)
    assert "its own vocabulary has only 150 tokens" in damaged.what
    assert damaged.fix.startswith(f"onecard data info {folder}"), (
        "no vocabulary makes up for a file that is not its own"
    )
    assert problem(folder, vocab_size=150).what == damaged.what


@pytest.mark.parametrize(("name", "folder"), [("fineweb", "data/fineweb"), ("x/fineweb-edu", "x/fineweb-edu")])
def test_a_missing_dataset_gets_the_command_that_makes_it(name: str, folder: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        open_dataset(name, environ={"ONECARD_HOME": str(tmp_path)}, search=(tmp_path,))
    assert caught.value.fix.startswith(f"onecard data prepare {Path(folder).name} --out {folder},")
    with pytest.raises(ConfigError) as caught:
        open_dataset("data/mine", environ={"ONECARD_HOME": str(tmp_path)}, search=(tmp_path,))
    assert caught.value.fix.endswith("onecard data prepare SOURCE --out data/mine"), "no script that is not there"


def test_a_missing_dataset_is_looked_for_once_in_a_place_and_made_by_the_script_that_is_there(tmp_path: Path) -> None:
    whole = tmp_path / "my data"
    whole.mkdir()
    (whole / "prepare.py").touch()
    with pytest.raises(ConfigError) as caught:
        open_dataset(str(whole), environ={"ONECARD_HOME": str(tmp_path)})
    assert caught.value.why.count(str(whole)) == 1
    assert caught.value.fix.startswith(f"python '{whole}/prepare.py'")


def test_the_first_id_outside_the_vocabulary_is_found_with_its_place(tmp_path: Path) -> None:
    ids = np.zeros(1000, dtype=int)
    ids[[700, 800]] = 300, 400
    found = problem(nanogpt_folder(tmp_path, train=ids), vocab_size=256)
    assert found.name == "token-out-of-range"
    assert "token id 300 at position 700" in found.what
    check_dataset(opened(tmp_path), block_size=8, vocab_size=401)


def test_the_suggested_vocabulary_is_large_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onecard.data.tokens._CHUNK", 16)
    train, val = np.zeros(1000, dtype=int), np.zeros(100, dtype=int)
    train[[10, 900]] = 60_000, 61_000
    val[90] = 63_999
    folder = nanogpt_folder(tmp_path, train=train, val=val)
    found = problem(folder)
    assert "token id 60,000 at position 10" in found.what
    assert found.fix.startswith("--vocab_size=64000 ")
    check_dataset(opened(folder), block_size=8, vocab_size=64000)


def test_a_stated_vocabulary_that_the_data_exceeds_is_not_offered_as_a_fix(tmp_path: Path) -> None:
    folder = nanogpt_folder(tmp_path, train=[120] * 100, val=[120] * 50 + [160] * 50)
    (folder / "meta.json").write_text('{"vocab_size": 150}')
    found = problem(folder, vocab_size=100)
    assert "val.bin has token id 160 at position 50, but its own vocabulary has only 150 tokens" in found.what


def test_the_scan_goes_on_past_its_first_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onecard.data.tokens._CHUNK", 16)
    ids = np.zeros(100, dtype=int)
    ids[70] = 9
    files = [token_file(write(tmp_path / "a.bin", np.zeros(30))), token_file(write(tmp_path / "b.bin", ids))]
    assert first_outside(Tokens(files), vocab_size=9) == (100, 9)
    assert first_outside(Tokens(files), vocab_size=10) is None


def test_ids_that_the_type_cannot_hold_need_no_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens([token_file(write(tmp_path / "a.bin", [65535]))])
    monkeypatch.setattr(Tokens, "chunks", None)
    assert first_outside(tokens, vocab_size=65536) is None


def test_uint32_taken_for_uint16_is_suspected_and_a_note_settles_it(tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 50257, 2000)
    nanogpt_folder(tmp_path, train=ids, val=ids, dtype="<u4")
    assert problem(tmp_path).name == "wrong-dtype"
    (tmp_path / "meta.json").write_text('{"dtype": "uint32"}')
    assert opened(tmp_path).train.read(0, 2000).tolist() == ids.tolist()
    check_dataset(opened(tmp_path), block_size=8, vocab_size=50304)
    (tmp_path / "meta.json").write_text('{"dtype": "uint16"}')
    check_dataset(opened(tmp_path), block_size=8, vocab_size=50304)


@pytest.mark.parametrize("vocab_size", [2, 65, 256, 50257])
def test_real_uint16_data_is_not_suspected(tmp_path: Path, vocab_size: int) -> None:
    ids = np.random.default_rng(0).integers(0, vocab_size, 4000)
    data = opened(nanogpt_folder(tmp_path, train=ids, val=ids[::-1]))
    assert check_dataset(data, block_size=8, vocab_size=50304) == ()


def test_a_vocabulary_beyond_uint16_is_read_as_uint32(tmp_path: Path) -> None:
    nanogpt_folder(tmp_path, train=[100_000] * 20, val=[3] * 20, dtype="<u4")
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 128_256}))
    assert opened(tmp_path).train.read(0, 1).tolist() == [100_000]


def test_validation_data_smaller_than_one_evaluation_is_a_warning(tmp_path: Path) -> None:
    data = opened(nanogpt_folder(tmp_path))
    (finding,) = check_dataset(data, block_size=8, vocab_size=1000, eval_tokens=101)
    assert (finding.rule, finding.severity) == ("val-set-tiny", "warn")
    assert "at least 1,000,000 tokens" in finding.fix
    assert check_dataset(data, block_size=8, vocab_size=1000, eval_tokens=100) == ()
    (finding,) = check_dataset(data, block_size=8, vocab_size=1000, eval_tokens=1_638_400)
    assert "at least 1,638,400 tokens" in finding.fix


@pytest.mark.parametrize(("tokens", "model"), [(65, 65), (1000, 1000), (1024, 1024), (50257, 50304), (100277, 100288)])
def test_a_model_has_a_large_vocabulary_in_whole_tiles(tmp_path: Path, tokens: int, model: int) -> None:
    data = nanogpt_folder(tmp_path, dtype="<u4")
    (data / "meta.json").write_text(json.dumps({"dtype": "uint32", "vocab_size": tokens}))
    assert (opened(data).vocab_size, opened(data).model_vocab_size) == (tokens, model)
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": tokens}))
    assert opened(data).model_vocab_size == tokens  # as nanoGPT takes it


def test_nanogpts_character_meta_gives_vocabulary_and_tokenizer(tmp_path: Path) -> None:
    letters = "\n !abc"
    meta = {"vocab_size": 6, "itos": dict(enumerate(letters)), "stoi": {c: i for i, c in enumerate(letters)}}
    nanogpt_folder(tmp_path, train=[5] * 20, val=[1] * 20)
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(meta))
    data = opened(tmp_path)
    assert data.vocab_size == 6
    assert data.tokenizer is not None
    assert data.tokenizer.decode(data.tokenizer.encode("a cab!")) == "a cab!"


class Attack:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("attacked"),))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_pickle_protocol_of_plain_data_is_read(protocol: int) -> None:
    meta = {"vocab_size": 3, "itos": {0: "a", 1: "é", 2: "日"}, "note": (1.5, None, True, [2**40])}
    assert read_meta(pickle.dumps(meta, protocol)).characters == ("a", "é", "日")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_does_something_is_refused_and_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    nanogpt_folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 5, "x": Attack()}, protocol))
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path)
    assert caught.value.name == "bad-meta"
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_number_of_numpys_is_not_read_and_the_way_to_a_plain_one_is_told(tmp_path: Path, protocol: int) -> None:
    nanogpt_folder(tmp_path)
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": np.int64(65)}, protocol))
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path)
    assert caught.value.name == "bad-meta"
    assert "int(…) around a vocab_size of NumPy's" in caught.value.fix


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"hello",
        pickle.dumps([1]),
        pickle.dumps({"vocab_size": "5"}),
        pickle.dumps({"vocab_size": 0}),
        b"\x80\x04]r\xff\xff\xff\xff.",  # a memo index that would take 64 GiB
        b"\x80\x04}r\x00\x00\x10\x00\x8c\x0avocab_sizeK\x05s.",  # one that would take 16 MiB, in data else good
        b"\x80\x05\x96\x00\x00\x00\x00\x00\x01\x00\x00.",  # a byte array of a terabyte
        b"}]s.",
        # pairs of the same pair, sixty deep, as a key: to hash it takes 2 ** 60 steps
        b"}K\x01\x85" + b"".join(b"q%bh%b\x86" % (bytes([each]), bytes([each])) for each in range(60)) + b"K\x01s.",
        b"](" + b"K\x01" * 2_000_000 + b"e.",
        pickle.dumps({"vocab_size": 2, "itos": {0: "a", 1: "b" * 5_000_000}}),
        pickle.dumps({"vocab_size": 2, **{n * (2**61 - 1): 0 for n in range(100)}}),  # type: ignore[arg-type]  # collide
    ],
    ids=lambda raw: raw[:40].hex(),
)
@pytest.mark.timeout(60)
def test_a_damaged_meta_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"it "):
        read_meta(raw)


def test_a_meta_whose_letters_do_not_fit_still_gives_the_size() -> None:
    for letters in ({0: "a"}, {0: "a", 1: "a"}, {0: "a", 2: "b"}, {0: "a", 1: 3}, None, [1, 2]):
        assert read_meta(pickle.dumps({"vocab_size": 2, "itos": letters})).characters is None


def test_a_letter_that_no_file_can_hold_is_no_letter_and_words_are_read() -> None:
    assert read_meta(pickle.dumps({"vocab_size": 2, "itos": {0: "a", 1: "\ud800"}})).characters is None
    words = read_meta(pickle.dumps({"vocab_size": 3, "itos": {0: "a", 1: "bc", 2: ""}})).characters
    assert words is not None
    assert words == ("a", "bc", "")
    assert [list(ids) for ids in CharacterTokenizer(words).encode_arrays(["aa"])] == [[0, 0]]


def test_our_meta_lists_the_files_and_their_sizes_are_checked(tmp_path: Path) -> None:
    parts = {"train": [("t0.bin", range(100)), ("t1.bin", range(50))], "val": [("v.bin", range(30))]}
    meta: dict[str, Any] = {"schema": 1, "dtype": "uint16", "vocab_size": 256, "tokenizer": "bytes"}
    for split, files in parts.items():
        meta[split] = []
        for name, ids in files:
            raw = write(tmp_path / name, ids).read_bytes()
            meta[split].append({"file": name, "tokens": len(ids), "sha256": hashlib.sha256(raw).hexdigest()})
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    data = opened(tmp_path)
    assert (len(data.train), data.vocab_size, data.tokenizer and data.tokenizer.name) == (150, 256, "bytes")
    assert checked_files(data) == {"t0.bin": True, "t1.bin": True, "v.bin": True}
    write(tmp_path / "t1.bin", range(1, 51))
    assert checked_files(opened(tmp_path)) == {"t0.bin": True, "t1.bin": False, "v.bin": True}
    write(tmp_path / "t1.bin", range(49))
    with pytest.raises(ConfigError, match=r"49 tokens, but meta\.json says 50"):
        opened(tmp_path)


@pytest.mark.parametrize(
    "meta", ["", "[]", "{", '{"dtype": "int8"}', '{"train": 3}', '{"train": [3]}', '{"train": [{"file": "../x"}]}']
)
def test_a_meta_that_makes_no_sense_is_refused(tmp_path: Path, meta: str) -> None:
    (nanogpt_folder(tmp_path) / "meta.json").write_text(meta)
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path)
    assert caught.value.name == "bad-meta"


def test_the_fingerprint_follows_the_tokens_not_the_place(tmp_path: Path) -> None:
    first, copy = opened(nanogpt_folder(tmp_path / "a")), opened(nanogpt_folder(tmp_path / "b"))
    other = opened(nanogpt_folder(tmp_path / "c", train=[*range(999), 5]))
    swapped = opened(nanogpt_folder(tmp_path / "d", train=range(100), val=range(1000)))
    assert first.fingerprint == copy.fingerprint
    assert len({first.fingerprint, other.fingerprint, swapped.fingerprint}) == 3


def promised(folder: Path, ids: Any) -> Path:
    """A folder whose meta.json has the checksum of train.bin."""
    raw = (nanogpt_folder(folder, train=ids) / "train.bin").read_bytes()
    entry = {"file": "train.bin", "tokens": len(ids), "sha256": hashlib.sha256(raw).hexdigest()}
    (folder / "meta.json").write_text(json.dumps({"train": [entry]}))
    return folder


def test_one_changed_token_of_small_data_changes_the_fingerprint_and_nothing_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.arange(1_000_000) % 65_536
    bare = opened(nanogpt_folder(tmp_path / "bare", train=ids)).fingerprint
    folder = promised(tmp_path / "promised", ids)
    assert opened(folder).fingerprint == bare, "as it was before anybody looked at checksums"
    found = {bare}
    for changed in (5, 6):
        write(folder / "train.bin", np.where(np.arange(len(ids)) == 10_000, changed, ids))  # not in the sample
        found.add(opened(folder).fingerprint)
    assert len(found) == 3
    monkeypatch.setattr("onecard.data.dataset.SMALL_BYTES", len(ids))
    assert opened(folder).fingerprint == bare, "all of large data is not read unasked"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cuts no file that is mapped")
def test_a_file_that_is_cut_while_in_use_is_an_error_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    np.arange(60_000, dtype="<u2").tofile(path)
    tokens = Tokens([token_file(path)])
    path.rename(tmp_path / "kept.bin")
    np.arange(10, dtype="<u2").tofile(path)
    assert tokens.read(59_000, 2).tolist() == [59_000, 59_001], "another file under its name does no harm"
    os.truncate(tmp_path / "kept.bin", 100)
    with pytest.raises(ConfigError) as caught:
        tokens.read(59_000, 2)
    assert caught.value.name == "token-file-cut"
    assert "it had 120,000 bytes and now has 100" in caught.value.why

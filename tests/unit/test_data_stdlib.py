"""The embedded corpus and the tokenizers: built here, without a network, the same every time."""

import base64
import errno
import hashlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from onecard.config.schema import RunConfig
from onecard.data import stdlib, tokenizers
from onecard.data.checks import check_dataset
from onecard.data.dataset import open_dataset
from onecard.data.home import cache_home
from onecard.data.stdlib import build_stdlib, is_val
from onecard.data.tokenizers import ByteTokenizer, CharacterTokenizer, Gpt2Tokenizer, bytes_per_token, gpt2_tokenizer
from onecard.data.tokens import Tokens, token_file
from onecard.errors import ConfigError, MachineError
from onecard.inputs.config import open_data


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small standard library: sixty modules, and what must not be in the corpus."""
    root = tmp_path / "lib"
    for name in ("test", "site-packages/x", "json/tests", "json/__pycache__"):
        (root / name).mkdir(parents=True)
        (root / name / "not_this.py").write_text("NOT THIS")
    for number in range(60):
        (root / "json" / f"m{number}.py").write_text(f"x = {number}  # é\n")
    (root / "latin.py").write_bytes(b"# \xe9 NOT THIS\n")
    (root / "zero.py").write_bytes(b"# \0 NOT THIS\n")
    (root / "_sysconfigdata_linux.py").write_text("NOT THIS")
    (root / "data.txt").write_text("NOT THIS")
    (root / "dangling.py").symlink_to(root / "nowhere")
    return root


def test_the_corpus_is_every_source_file_once_each_ending_in_zero(tmp_path: Path, source: Path) -> None:
    folder = build_stdlib(tmp_path / "home", source=source)
    texts = b"".join(
        bytes(Tokens([token_file(folder / f"{split}.bin")]).read(0, 10**6).tolist()) for split in ("train", "val")
    )
    documents = texts.split(b"\0")
    assert documents.pop() == b""
    assert sorted(documents) == sorted(f"x = {number}  # é\n".encode() for number in range(60))


def test_documents_are_split_by_their_name(tmp_path: Path, source: Path) -> None:
    folder = build_stdlib(tmp_path / "home", source=source)
    expected = [f"x = {number}  # é\n\0".encode() for number in range(60) if is_val(f"json/m{number}.py")]
    assert expected
    val = bytes(Tokens([token_file(folder / "val.bin")]).read(0, 10**6).tolist())
    assert sorted(val.split(b"\0")) == sorted(b"".join(expected).split(b"\0"))


def test_the_split_never_changes() -> None:
    assert is_val("unittest/mock.py")
    assert not is_val("pydoc_data/topics.py")
    assert 40 <= sum(is_val(f"{number}.py") for number in range(1000)) <= 60


def test_the_corpus_is_built_once_and_again_when_damaged(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_stdlib(tmp_path / "home", source=source)
    with monkeypatch.context() as patch:
        patch.setattr(stdlib, "_documents", None)
        assert build_stdlib(tmp_path / "home", source=source) == folder
    (folder / "train.bin").write_bytes(b"cut off")
    assert build_stdlib(tmp_path / "home", source=source) == folder
    meta = json.loads((folder / "meta.json").read_text())
    assert hashlib.sha256((folder / "train.bin").read_bytes()).hexdigest() == meta["train"][0]["sha256"]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_another_library_is_another_corpus(tmp_path: Path, source: Path) -> None:
    before = build_stdlib(tmp_path / "home", source=source)
    (source / "new.py").write_text("y = 1\n")
    assert build_stdlib(tmp_path / "home", source=source) != before


def test_a_quicker_process_does_no_harm(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_stdlib(tmp_path / "home", source=source)
    complete = stdlib._complete
    answers = iter([False])
    monkeypatch.setattr(stdlib, "_complete", lambda folder: next(answers, None) is None and complete(folder))
    folder = build_stdlib(tmp_path / "home", source=source)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_python_without_source_is_exit_code_3(tmp_path: Path) -> None:
    with pytest.raises(MachineError) as caught:
        build_stdlib(tmp_path / "home", source=tmp_path / "nowhere")
    assert caught.value.name == "no-stdlib-source"


def test_a_full_disk_leaves_no_half_corpus(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(stdlib, "write_tokens", fail)
    with pytest.raises(MachineError) as caught:
        build_stdlib(tmp_path / "home", source=source)
    assert caught.value.name == "disk-full"
    assert list((tmp_path / "home" / "data").iterdir()) == []


def test_the_embedded_dataset_is_ready_for_the_packaged_config(tmp_path: Path) -> None:
    data = open_dataset("python-stdlib", environ={"ONECARD_HOME": str(tmp_path)})
    assert (data.name, data.vocab_size) == ("python-stdlib", 256)
    assert check_dataset(data, block_size=256, vocab_size=256, eval_tokens=20 * 16 * 256) == ()
    assert 0.02 < len(data.val) / len(data.train) < 0.1
    assert data.tokenizer is not None
    assert "import" in data.tokenizer.decode(data.train.read(0, 10_000))


def test_the_home_is_the_users_choice() -> None:
    assert cache_home({"ONECARD_HOME": "/x"}) == Path("/x")
    assert cache_home({"ONECARD_HOME": ""}) == Path.home() / ".cache" / "onecard"


def test_bytes_come_back_as_text() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("é") == [0xC3, 0xA9]
    assert tokenizer.decode(np.array([0xC3, 0xA9, 65])) == "éA"
    assert tokenizer.decode([0xC3, 300, -1]) == "\ufffd"


def test_a_character_the_data_never_had_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        CharacterTokenizer("abc").encode("abcé")
    assert caught.value.name == "unknown-character"
    assert "é" in caught.value.what
    assert CharacterTokenizer("abc").decode([0, 9]) == "a\ufffd"


def test_bytes_per_token_counts_utf8(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(np.array([0, 1, 1, 1], dtype="<u2").tobytes())
    assert bytes_per_token(Tokens([token_file(path)]), CharacterTokenizer("aé")) == pytest.approx(7 / 4)
    path.write_bytes(b"")
    assert bytes_per_token(Tokens([token_file(path)]), CharacterTokenizer("aé")) is None


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A ranks file of two tokens that passes for GPT-2's."""
    content = b"".join(base64.b64encode(text) + f" {rank}\n".encode() for rank, text in enumerate([b"a", b" b"]))
    monkeypatch.setattr(tokenizers, "_GPT2_SHA256", hashlib.sha256(content).hexdigest())
    return content


def test_gpt2_is_found_at_home_or_in_tiktokens_cache(tmp_path: Path, ranks: bytes) -> None:
    cached = "0ea1e91bbb3a60f729a8dc8f777fd2fc07cd8df4"  # sha1 of the file's address, as tiktoken names it
    environ = {"ONECARD_HOME": str(tmp_path), "TIKTOKEN_CACHE_DIR": str(tmp_path / "cache")}
    assert gpt2_tokenizer(environ) is None
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / cached).write_bytes(ranks)
    assert gpt2_tokenizer(environ) is not None
    (tmp_path / "cache" / cached).write_bytes(ranks[1:])
    assert gpt2_tokenizer(environ) is None
    (tmp_path / "r50k_base.tiktoken").write_bytes(ranks)
    assert gpt2_tokenizer(environ) is not None


def test_the_data_of_a_config_have_the_tokenizer_of_tiktokens_cache(
    tmp_path: Path, ranks: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in ("train", "val"):
        np.arange(9, dtype=np.uint16).tofile(tmp_path / f"{split}.bin")
    (tmp_path / "meta.json").write_text('{"tokenizer": "gpt2"}')
    (tmp_path / "0ea1e91bbb3a60f729a8dc8f777fd2fc07cd8df4").write_bytes(ranks)
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    config = RunConfig().replace({"dataset": str(tmp_path)})
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert open_data(config).tokenizer is not None
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "no"))
    assert open_data(config).tokenizer is None


def test_gpt2_decodes_without_tiktoken_and_says_what_encoding_needs(
    ranks: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Gpt2Tokenizer(ranks)
    assert tokenizer.decode([0, 1, 50256, 99]) == "a b"
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(MachineError) as caught:
        tokenizer.encode("a")
    assert caught.value.fix == "pip install 'onecard[data]'"


def test_gpt2_encodes_with_tiktoken(ranks: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Encoding:
        def __init__(self, name: str, **arguments: Any) -> None:
            given.update(arguments)

        def encode_ordinary(self, text: str) -> list[int]:
            return [len(text)]

    module = ModuleType("tiktoken")
    vars(module)["Encoding"] = Encoding
    monkeypatch.setitem(sys.modules, "tiktoken", module)
    assert Gpt2Tokenizer(ranks).encode("abc") == [3]
    assert given["mergeable_ranks"] == {b"a": 0, b" b": 1}
    assert given["special_tokens"] == {"<|endoftext|>": 50256}

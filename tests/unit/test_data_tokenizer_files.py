"""Tokenizers named, learned, kept beside the tokens and opened from there. The ranks are made here."""

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onecard.data import tokenizers
from onecard.data.dataset import open_path
from onecard.data.encode import Encoding
from onecard.data.manifest import Settings
from onecard.data.prepare import prepare
from onecard.data.sources import local_source
from onecard.data.tokenizer_files import find_tokenizer, keep_tokenizer, kept_tokenizer
from onecard.data.tokenizers import ByteTokenizer, CharacterTokenizer, Gpt2Tokenizer, Tokenizer
from onecard.errors import ConfigError, MachineError

library = pytest.importorskip("tokenizers", reason="needs tokenizers")
tiktoken = pytest.importorskip("tiktoken", reason="needs tiktoken")

from onecard.data.tokenizer_json import JsonTokenizer, train_bpe  # noqa: E402

PROSE = [
    "the cat and the other cat sat there",
    "naïve café: 日本語 🙂",
    "  spaces\tand\nlines  ",
    "12345 <|endoftext|> 678",
]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """All bytes and a few merges, which pass for GPT-2's ranks."""
    pieces = [bytes((byte,)) for byte in range(256)] + [b"th", b"the", b" c", b" ca", b" cat", b"at", b" the"]
    pieces += [b"\xff%d" % number for number in range(50256 - len(pieces))]  # of no text, for the number
    content = b"".join(base64.b64encode(piece) + f" {rank}\n".encode() for rank, piece in enumerate(pieces))
    monkeypatch.setattr(tokenizers, "_GPT2_SHA256", hashlib.sha256(content).hexdigest())
    return content


@pytest.fixture(params=["bytes", "characters", "gpt2", "json"])
def tokenizer(request: pytest.FixtureRequest, ranks: bytes) -> Tokenizer:
    match request.param:
        case "bytes":
            return ByteTokenizer()
        case "characters":
            return CharacterTokenizer(sorted(set("".join(PROSE))))
        case "gpt2":
            return Gpt2Tokenizer(ranks)
    return JsonTokenizer(train_bpe(iter(PROSE * 10), vocab_size=300))


@pytest.mark.parametrize("text", PROSE)
def test_text_comes_back_and_both_ways_of_encoding_agree(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.encode_arrays([text])[0].tolist() == ids
    if "<|endoftext|>" not in text or tokenizer.name != "tokenizer.json":
        assert tokenizer.decode(ids) == text
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
    assert all(0 <= each < tokenizer.vocab_size for each in ids)


def nowhere(tmp_path: Path) -> dict[str, str]:
    """An environment whose caches hold no tokenizer."""
    return {"ONECARD_HOME": str(tmp_path / "none"), "TIKTOKEN_CACHE_DIR": str(tmp_path / "no")}


def test_many_texts_at_once_are_each_by_itself(tokenizer: Tokenizer) -> None:
    for texts in (PROSE, PROSE[:3], PROSE[:1], [PROSE[0], " ", PROSE[0]], []):
        assert [ids.tolist() for ids in tokenizer.encode_arrays(texts)] == [tokenizer.encode(text) for text in texts]


def test_a_kept_tokenizer_is_the_same_one(tokenizer: Tokenizer, tmp_path: Path) -> None:
    said = json.loads(json.dumps(keep_tokenizer(tokenizer, tmp_path)))
    again = kept_tokenizer(tmp_path, said, environ=nowhere(tmp_path))
    assert again is not None
    assert (again.name, again.vocab_size, again.end_of_text) == (
        tokenizer.name,
        tokenizer.vocab_size,
        tokenizer.end_of_text,
    )
    assert [again.encode(text) for text in PROSE] == [tokenizer.encode(text) for text in PROSE]


def test_gpt2_encodes_as_tiktoken_does(ranks: bytes) -> None:
    ids = Gpt2Tokenizer(ranks).encode_arrays(["the cat"])[0].tolist()
    assert ids == [257, 260]
    assert Gpt2Tokenizer(ranks).encode_arrays(["<|endoftext|>"])[0].tolist() == list(b"<|endoftext|>"), (
        "a text is only text"
    )


def test_gpt2_comes_from_the_ranks_that_were_named(tmp_path: Path, ranks: bytes) -> None:
    (tmp_path / "r").write_bytes(ranks)
    assert find_tokenizer("gpt2", ranks=tmp_path / "r", environ=nowhere(tmp_path)).vocab_size == 50257
    with pytest.raises(ConfigError) as caught:
        find_tokenizer("gpt2", ranks=None, environ=nowhere(tmp_path))
    assert caught.value.name == "no-ranks"
    assert "--ranks FILE" in caught.value.fix
    (tmp_path / "r").write_bytes(ranks[:-9])
    for file in ("r", "missing"):
        with pytest.raises(ConfigError) as caught:
            find_tokenizer("gpt2", ranks=tmp_path / file, environ=nowhere(tmp_path))
        assert caught.value.name == "bad-ranks"


@pytest.mark.parametrize("content", [None, "", "{}", '{"model": 3}', "\udcff"])
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        find_tokenizer(str(tmp_path), ranks=None, environ={})
    assert caught.value.name == "no-such-tokenizer"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("char", "characters"),
        ("Byte", "bytes"),
        ("gpt-2", "gpt2"),
        ("gpt3", "gpt2"),
        ("bpe8k", "bpe"),
        ("x.json", "gpt2"),
    ],
)
def test_the_tokenizer_that_was_meant_is_offered(name: str, meant: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_tokenizer(name, ranks=None, environ={})
    assert caught.value.fix == f"--tokenizer={meant}, or the path of a Hugging Face tokenizer.json"


def test_a_tokenizer_json_is_found_by_its_folder_and_knows_its_end(tmp_path: Path) -> None:
    model = library.Tokenizer(library.models.WordLevel({"a": 0, "b": 1, "</s>": 5, "?": 2}, unk_token="?"))
    model.pre_tokenizer = library.pre_tokenizers.Whitespace()
    model.enable_truncation(max_length=2)
    model.save(str(tmp_path / "tokenizer.json"))
    found = find_tokenizer(str(tmp_path), ranks=None, environ={})
    assert (found.vocab_size, found.end_of_text) == (6, 5)
    assert found.encode("a b a b zzz") == [0, 1, 0, 1, 2], "a limit of the model it was made for is not one of the text"
    assert found.decode([0, 1, 5, 99]) == "a b"


@pytest.mark.parametrize("name", ["characters", "bpe"])
def test_a_tokenizer_is_learned_from_the_source_and_kept_with_the_data(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(
        "".join(json.dumps({"text": f"{text} {number}"}) + "\n" for number in range(50) for text in PROSE[:3])
    )
    source = local_source([str(path)], but=tmp_path / "out")
    assert source is not None
    settings = Settings(tokenizer=name, vocab_size=300 if name == "bpe" else None, val_share=0.1)
    prepared = prepare(source, tmp_path / "out", settings=settings, tokenizer=None)
    assert prepared.counts.kept == 150
    data = open_path(tmp_path / "out", name="x", environ={})
    assert data.tokenizer is not None
    assert (
        data.vocab_size
        == data.tokenizer.vocab_size
        == (300 if name == "bpe" else len(set("".join(PROSE[:3]) + "0123456789")))
    )
    shown = data.tokenizer.decode(data.train.read(0, 200).tolist())
    assert "the cat and the other cat sat there 0" in shown + data.tokenizer.decode(data.val.read(0, 200).tolist())
    learned = (tmp_path / "out" / "progress.json").read_text()
    assert prepare(source, tmp_path / "out", settings=settings, tokenizer=None).new_tokens == 0
    assert json.loads(learned)["tokenizer"]["vocab_size"] == data.vocab_size


def test_characters_that_came_later_make_a_bad_document_not_an_end(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "abc"}) + "\n")
    settings = Settings(tokenizer="characters", val_share=0.0)
    prepare(local_source([str(path)], but=tmp_path / "out"), tmp_path / "out", settings=settings, tokenizer=None)  # type: ignore[arg-type]
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "abz"}) + "\n" + json.dumps({"text": "cab"}) + "\n")
    both = local_source([str(path), str(tmp_path / "b.jsonl")], but=tmp_path / "out")
    assert both is not None
    grown = prepare(both, tmp_path / "out", settings=settings, tokenizer=None)
    assert (grown.counts.kept, dict(grown.counts.bad)) == (2, {"refused by the tokenizer": 1})


def test_a_vocabulary_beyond_16_bits_is_stored_in_32_and_refused_for_nanogpt(tmp_path: Path) -> None:
    vocabulary = {f"w{number}": number for number in range(70_000)} | {"<|endoftext|>": 70_000}
    model = library.Tokenizer(library.models.WordLevel(vocabulary, unk_token="w0"))
    model.pre_tokenizer = library.pre_tokenizers.Whitespace()
    tokenizer = JsonTokenizer(model.to_str())
    (tmp_path / "x.txt").write_text("w69999 w5")
    source = local_source([str(tmp_path / "x.txt")], but=tmp_path / "out")
    assert source is not None
    settings = Settings(tokenizer="big", val_share=0.0, format="nanogpt")
    with pytest.raises(ConfigError) as caught:
        prepare(source, tmp_path / "refused", settings=settings, tokenizer=tokenizer)
    assert caught.value.name == "vocabulary-too-large"
    for format in ("onecard", "llmc"):
        settings = Settings(tokenizer="big", val_share=0.0, format=format)  # type: ignore[arg-type]
        prepare(source, tmp_path / format, settings=settings, tokenizer=tokenizer)
        data = open_path(tmp_path / format, name="x", environ={})
        ids = [69_999, 5, 70_000]
        assert data.train.read(0, 9).tolist() == (ids if format == "onecard" else [ids[2], *ids[:2]])


def test_a_text_that_tiktoken_refuses_is_one_bad_document(tmp_path: Path, ranks: bytes) -> None:
    (tmp_path / "x.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in ("a", "b " + " " * 10**6 + "c"))
    )
    source = local_source([str(tmp_path / "x.jsonl")], but=tmp_path / "out")
    assert source is not None
    settings = Settings(tokenizer="gpt2", val_share=0.0)
    prepared = prepare(source, tmp_path / "out", settings=settings, tokenizer=Gpt2Tokenizer(ranks))
    assert prepared.counts.kept + sum(prepared.counts.bad.values()) == 2
    assert prepared.counts.kept >= 1


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MachineError) as caught:
        JsonTokenizer("{}")
    assert caught.value.fix == "pip install 'onecard[data]'"


def test_arrays_of_characters_and_bytes_refuse_what_they_cannot_write() -> None:
    with pytest.raises(ValueError, match="lacks"):
        CharacterTokenizer("abc").encode_arrays(["abd"])[0]
    with pytest.raises(ValueError, match="lacks"):
        CharacterTokenizer("ac").encode_arrays(["b"])[0]
    with pytest.raises(ValueError, match="byte 0"):
        ByteTokenizer().encode_arrays(["a\0b"])[0]
    assert CharacterTokenizer("ba").encode_arrays(["ab"])[0].dtype == np.uint32


@pytest.mark.parametrize(
    ("tokenizer", "vocab_size", "given"),
    [
        (tokenizers.ByteTokenizer(), 256, [0]),  # its end of a document
        (tokenizers.CharacterTokenizer("abc\n"), 4, [3]),
        (tokenizers.CharacterTokenizer("abc"), 3, [0]),  # it never had a new line
    ],
)
def test_a_new_text_begins_after_the_end_of_another_or_in_a_new_line(
    tokenizer: tokenizers.Tokenizer, vocab_size: int, given: list[int]
) -> None:
    assert tokenizers.new_text(tokenizer, vocab_size) == given


def test_an_end_of_text_that_the_model_does_not_know_is_not_given_to_it() -> None:
    class Ended(tokenizers.CharacterTokenizer):
        end_of_text = 50_256

    assert tokenizers.new_text(Ended("ab\n"), 50_257) == [50_256]
    assert tokenizers.new_text(Ended("ab\n"), 64) == [2]


REGEX = {"type": "Split", "behavior": "Isolated", "invert": False}
HOSTILE: dict[str, dict[str, Any]] = {
    "a regex that never ends": {"pre_tokenizer": REGEX | {"pattern": {"Regex": "(a+)+$"}}},
    "pieces of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "a panic while it loads": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "a process that ends": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////wAAAAAAAAAA"}},
    "a text 10 ** 18 times as long": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Replace", "pattern": {"String": "q"}, "content": "q" * 1000}] * 6,
        }
    },
    "too many tokens": {"model": {"type": "WordLevel", "vocab": {"a": 2**32 - 1}, "unk_token": "a"}},
    "no tokens": {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []},
    "a number of 9,000 digits": {"truncation": None, "padding": 9},
    "deep lists": {"padding": []},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tokenizer_is_refused_without_a_panic(
    name: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = json.dumps(json.loads(train_bpe(iter(PROSE), vocab_size=300)) | HOSTILE[name])
    text = text.replace('"padding": 9', f'"padding": {"9" * 9000}').replace(
        '"padding": []', f'"padding": {"[" * 90_000}{"]" * 90_000}'
    )
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigError) as refused:
        find_tokenizer(str(tmp_path), ranks=None, environ={})
    assert len(refused.value.why) < 400
    assert "panicked" not in capfd.readouterr().err


def test_a_text_on_which_the_library_panics_is_left_out_or_refused() -> None:
    """A regex that is quick for all but one text."""
    described = json.loads(train_bpe(iter(PROSE), vocab_size=300))
    tokenizer = JsonTokenizer(json.dumps(described | {"pre_tokenizer": REGEX | {"pattern": {"Regex": "(q+)+$"}}}))
    hostile = "q" * 40 + "!"
    with pytest.raises(ConfigError, match="cannot be used for this text"):
        tokenizer.encode(hostile)
    with pytest.raises(ValueError, match="it is not a tokenizer"):  # the document is left out, and counted
        tokenizer.encode_arrays([hostile])
    assert tokenizer.decode(tokenizer.encode("abc")) == "abc"


def test_a_kept_tokenizer_that_was_changed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    how = Encoding(folder=tmp_path, said={"tokenizer": "tokenizer.json"}, column="text", end_first=False)
    with pytest.raises(ConfigError, match="cannot be read"):
        how.opened()

"""Our tokenizers as tokenizer.json: the same ids for the same text, and the same text back."""

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="needs numpy: pip install 'onecard[train]'")
library = pytest.importorskip("tokenizers", reason="needs tokenizers: pip install 'onecard[data]'")

from onecard.data import hf_tokenizer  # noqa: E402
from onecard.data.hf_tokenizer import tokenizer_files, tokenizer_json  # noqa: E402
from onecard.data.tokenizer_json import JsonTokenizer, byte_letters, train_bpe  # noqa: E402
from onecard.data.tokenizers import ByteTokenizer, CharacterTokenizer, Gpt2Tokenizer, Tokenizer  # noqa: E402

TEXTS = [
    "def f(x):\n    return x  # ça va? 世界 🙂\n\n\n",
    "it's 12345   spaces\tand tabs!",
    " a",
    "\r\n\x0b\u2028end",
    "".join(chr(random.Random(3).randrange(32, 0x2FFF)) for _ in range(200)),
]
RANKS = Path(__file__).parents[3] / "shared" / "data" / "r50k_base.tiktoken"


def check(tokenizer: Tokenizer) -> None:
    text = tokenizer_json(tokenizer)
    assert text is not None
    theirs = library.Tokenizer.from_str(text)
    for sample in TEXTS:
        assert theirs.encode(sample).ids == tokenizer.encode(sample), sample
        assert theirs.decode(tokenizer.encode(sample), skip_special_tokens=False) == sample


def test_bytes() -> None:
    check(ByteTokenizer())


def test_characters_in_any_order() -> None:
    characters = sorted(set("".join(TEXTS)), reverse=True)
    check(CharacterTokenizer(characters))


def test_a_tokenizer_json_is_passed_on_as_it_is() -> None:
    text = train_bpe(iter(TEXTS), vocab_size=300)
    assert tokenizer_json(JsonTokenizer(text)) == text
    settings = json.loads(tokenizer_files(JsonTokenizer(text), block_size=8)["tokenizer_config.json"])
    assert settings["bos_token"] == settings["eos_token"] == "<|endoftext|>"


def test_merges_are_found_again_from_the_ranks_alone() -> None:
    """GPT-2's file has ranks only; byte pairs trained here have both, so one can be set against the other."""
    described = library.Tokenizer.from_str(train_bpe(iter(TEXTS * 3), vocab_size=600))
    bytes_of = {letter: byte for byte, letter in byte_letters().items()}

    def raw(piece: str) -> bytes:
        return bytes(bytes_of[letter] for letter in piece)

    pieces = sorted((rank, piece) for piece, rank in described.get_vocab().items() if piece != "<|endoftext|>")
    merges = [tuple(pair) for pair in json.loads(described.to_str())["model"]["merges"]]
    assert len(merges) > 50
    ranks = {raw(piece): rank for rank, piece in pieces}
    assert hf_tokenizer.merges(ranks) == [(raw(left), raw(right)) for left, right in merges]


@pytest.mark.skipif(not RANKS.is_file(), reason="needs GPT-2's ranks file")
def test_gpt2() -> None:
    pytest.importorskip("tiktoken", reason="needs tiktoken: pip install 'onecard[data]'")
    tokenizer = Gpt2Tokenizer(RANKS.read_bytes())
    check(tokenizer)
    theirs = library.Tokenizer.from_str(tokenizer_json(tokenizer))
    assert theirs.token_to_id("<|endoftext|>") == 50256
    assert theirs.get_vocab_size() == 50257


def test_transformers_loads_the_files(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'onecard[dev]'")
    for name, text in tokenizer_files(ByteTokenizer(), block_size=64).items():
        (tmp_path / name).write_text(text)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.model_max_length == 64
    for sample in TEXTS:
        assert theirs(sample, add_special_tokens=False)["input_ids"] == ByteTokenizer().encode(sample)
        assert theirs.decode(ByteTokenizer().encode(sample)) == sample


def test_an_unknown_kind_has_no_files() -> None:
    assert tokenizer_files(object(), block_size=8) == {}  # type: ignore[arg-type]

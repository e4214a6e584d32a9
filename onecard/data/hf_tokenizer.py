"""Our tokenizers as a Hugging Face tokenizer.json, written without that library: the same text gives the same ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from onecard.data.tokenizer_json import END_OF_TEXT, JsonTokenizer, byte_letters
from onecard.data.tokenizers import ByteTokenizer, CharacterTokenizer, Gpt2Tokenizer, Tokenizer


def tokenizer_files(tokenizer: Tokenizer, *, block_size: int) -> dict[str, str]:
    """The files that transformers' AutoTokenizer needs for a tokenizer, as name -> text; empty for an unknown kind."""
    text = tokenizer_json(tokenizer)
    if text is None:
        return {}
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": block_size,
        "clean_up_tokenization_spaces": False,
    }
    if isinstance(tokenizer, Gpt2Tokenizer):
        settings |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
    elif isinstance(tokenizer, JsonTokenizer) and tokenizer.end_of_text is not None:
        end = next(token for token, number in tokenizer.ids().items() if number == tokenizer.end_of_text)
        settings |= dict.fromkeys(("bos_token", "eos_token"), end)  # programs begin a text with it
    return {"tokenizer.json": text, "tokenizer_config.json": json.dumps(settings, indent=2) + "\n"}


def tokenizer_json(tokenizer: Tokenizer) -> str | None:
    """The text of a tokenizer.json; None for a kind that has no such form."""
    match tokenizer:
        case JsonTokenizer():
            return tokenizer.text
        case ByteTokenizer():
            return json.dumps(_bytes(), ensure_ascii=False)
        case CharacterTokenizer():
            return json.dumps(_characters(tokenizer), ensure_ascii=False)
        case Gpt2Tokenizer():
            return json.dumps(_gpt2(tokenizer), ensure_ascii=False)
    return None


def _bytes() -> dict[str, Any]:
    """A BPE model without merges: the letter of every byte is its own token."""
    letters = byte_letters()
    return _described(
        model={"type": "BPE", "vocab": {letters[byte]: byte for byte in range(256)}, "merges": []},
        pre_tokenizer=_byte_level(use_regex=False),
        decoder=_byte_level(use_regex=True),
    )


def _characters(tokenizer: CharacterTokenizer) -> dict[str, Any]:
    """One word per character; a character that the data does not have has no id."""
    return _described(
        model={"type": "WordLevel", "vocab": {each: i for i, each in enumerate(tokenizer.characters)}, "unk_token": ""},
        pre_tokenizer={"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated", "invert": False},
        decoder={"type": "Fuse"},
    )


def _gpt2(tokenizer: Gpt2Tokenizer) -> dict[str, Any]:
    letters = byte_letters()

    def spelled(raw: bytes) -> str:
        return "".join(letters[byte] for byte in raw)

    ranks = {tokenizer.token_bytes(rank): rank for rank in range(tokenizer.vocab_size - 1)}
    vocabulary = {spelled(raw): rank for raw, rank in ranks.items()} | {END_OF_TEXT: tokenizer.end_of_text}
    pairs = [[spelled(left), spelled(right)] for left, right in merges(ranks)]
    special = {
        "id": tokenizer.end_of_text,
        "content": END_OF_TEXT,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return _described(
        model={"type": "BPE", "vocab": vocabulary, "merges": pairs},
        pre_tokenizer=_byte_level(use_regex=True),
        decoder=_byte_level(use_regex=True),
    ) | {"added_tokens": [special]}


def merges(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The pair that each token was merged from, by rank: its parts after all merges of lower rank."""
    pairs = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            left, right = _parts(token, ranks, below=rank)
            pairs.append((left, right))
    return pairs


def _parts(token: bytes, ranks: Mapping[bytes, int], *, below: int) -> list[bytes]:
    parts = [bytes((byte,)) for byte in token]
    while len(parts) > 2:
        joined = [ranks.get(left + right, below) for left, right in pairwise(parts)]
        lowest = min(joined)
        assert lowest < below, f"{token!r} cannot be merged from tokens of lower ranks"
        place = joined.index(lowest)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _described(*, model: dict[str, Any], pre_tokenizer: dict[str, Any], decoder: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }

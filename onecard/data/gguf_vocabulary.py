"""A tokenizer in llama.cpp's words, for a GGUF file: the same text gives the same ids there.

llama.cpp has two ways from text to tokens that ours are:

- gpt2: byte pairs with the split into words that llama.cpp calls gpt-2. GPT-2's tokenizer, and those learned here.
- rwkv: the longest token at each place. With a token for every byte, or for every character, that is their tokenizers.
  (gpt2 would not do: without an end of text, llama.cpp takes token 11 for it.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from onecard.data.hf_tokenizer import tokenizer_json
from onecard.data.tokenizer_json import END_OF_TEXT, JsonTokenizer
from onecard.data.tokenizers import ByteTokenizer, CharacterTokenizer, Tokenizer

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # kinds of tokens: enum llama_token_type in llama.cpp's llama.h


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What a GGUF file says of a tokenizer."""

    way: str  # from text to tokens: gpt2 or rwkv
    split: str | None  # into words, for byte pairs
    tokens: tuple[str, ...]
    kinds: tuple[int, ...]
    merges: tuple[str, ...]
    end_of_text: int | None


class NotInLlamaCpp(Exception):
    """llama.cpp cannot express a tokenizer; says why."""


def vocabulary_of(tokenizer: Tokenizer) -> Vocabulary:
    """The vocabulary of a tokenizer; NotInLlamaCpp if llama.cpp would make other tokens of the same text."""
    if isinstance(tokenizer, ByteTokenizer):
        return _longest_match([bytes((byte,)) for byte in range(256)], end_of_text=tokenizer.end_of_text)
    if isinstance(tokenizer, CharacterTokenizer):
        if long := next((each for each in tokenizer.characters if len(each) != 1), None):
            raise NotInLlamaCpp(f"its vocabulary of characters has {long!r:.40}, which is not one character")
        return _longest_match([each.encode(errors="replace") for each in tokenizer.characters], end_of_text=None)
    text = tokenizer_json(tokenizer)
    if text is None:
        raise NotInLlamaCpp(f"its tokenizer, {tokenizer.name}, is none of those that llama.cpp has")
    return _byte_pairs(tokenizer if isinstance(tokenizer, JsonTokenizer) else JsonTokenizer(text))


def _longest_match(texts: Iterable[bytes], *, end_of_text: int | None) -> Vocabulary:
    tokens = [END_OF_TEXT if token == end_of_text else _escaped(text) for token, text in enumerate(texts)]
    return Vocabulary(
        way="rwkv",
        split=None,
        tokens=_all_different(tokens),
        kinds=tuple(CONTROL if token == end_of_text else NORMAL for token in range(len(tokens))),
        merges=(),
        end_of_text=end_of_text,
    )


def _escaped(text: bytes) -> str:
    """As llama.cpp reads the tokens of this way: a backslash begins the number of a byte."""
    return "".join(chr(byte) if 0x20 <= byte < 0x7F and byte != ord("\\") else f"\\x{byte:02x}" for byte in text)


def _byte_pairs(tokenizer: JsonTokenizer) -> Vocabulary:
    described = json.loads(tokenizer.text)
    model, end_of_text = described["model"], tokenizer.end_of_text
    _check_model(model)
    _check_split(described)
    if end_of_text is None:
        raise NotInLlamaCpp("it has no end of text, and llama.cpp would then take token 11 for one")
    added = described.get("added_tokens") or []
    if odd := next((each for each in added if any(each.get(key) for key in ("lstrip", "rstrip", "single_word"))), None):
        raise NotInLlamaCpp(f"{odd['content']!r:.40} takes spaces or words around it, which llama.cpp does not")
    tokens = [f"[unused {token}]" for token in range(tokenizer.vocab_size)]
    kinds = [UNUSED] * len(tokens)
    kind_of = {each["content"]: CONTROL if each["special"] else USER_DEFINED for each in added}
    for text, token in tokenizer.ids().items():
        tokens[token], kinds[token] = text, kind_of.get(text, NORMAL)
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    if not pairs or any(len(pair) != 2 or " " in pair[0] + pair[1] for pair in pairs):
        raise NotInLlamaCpp("its merges are not pairs of parts without spaces")
    return Vocabulary(
        way="gpt2",
        split="gpt-2",
        tokens=_all_different(tokens),
        kinds=tuple(kinds),
        merges=tuple(f"{left} {right}" for left, right in pairs),
        end_of_text=end_of_text,
    )


def _check_model(model: Mapping[str, Any]) -> None:
    if model.get("type", "BPE") != "BPE":
        raise NotInLlamaCpp(f"its tokenizer.json is of the type {model['type']!r:.40}, not byte pairs")
    other = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
    if odd := next((key for key in other if model.get(key)), None):
        raise NotInLlamaCpp(f"its byte pairs have {odd}, and GPT-2's, which llama.cpp has, do not")


def _check_split(described: Mapping[str, Any]) -> None:
    if described.get("normalizer"):
        raise NotInLlamaCpp(f"it changes text first ({described['normalizer'].get('type')!r:.40}), llama.cpp does not")
    split = described.get("pre_tokenizer") or {}
    if split.get("type") != "ByteLevel" or split.get("add_prefix_space") or not split.get("use_regex", True):
        raise NotInLlamaCpp("it does not split text into words as GPT-2 does")


def _all_different(tokens: list[str]) -> tuple[str, ...]:
    if len(set(tokens)) < len(tokens):
        raise NotInLlamaCpp("two of its tokens have the same text")
    return tuple(tokens)

"""A Hugging Face tokenizer.json: downloaded, or trained here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from onecard.data.extras import extra
from onecard.data.tokenizers import Ids

if TYPE_CHECKING:
    import numpy as np
else:
    from onecard.data.extras import numpy as np

END_OF_TEXT = "<|endoftext|>"
# The end of a document in GPT-2, Llama 3, Llama 2, Gemma and BERT, in the order in which we look for them.
_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[SEP]")


class JsonTokenizer:
    """The tokenizer in the text of a tokenizer.json; ValueError if it is not one. Needs the tokenizers package."""

    name = "tokenizer.json"

    def __init__(self, text: str) -> None:
        self.text = text
        library = extra("tokenizers", purpose="a tokenizer.json")
        try:
            described = json.loads(text)
            self._tokenizer: Any = library.Tokenizer.from_str(text)
        except Exception as problem:  # the library raises plain Exceptions
            raise ValueError(f"it is not a tokenizer: {str(problem)[:80]}") from problem
        self._tokenizer.no_truncation()  # these are settings of the model it was made for
        self._tokenizer.no_padding()
        self._byte_level = "ByteLevel" in json.dumps(described.get("decoder"))
        self.vocab_size: int = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        found = (self._tokenizer.token_to_id(end) for end in _ENDS)
        self.end_of_text: int | None = next((token for token in found if token is not None), None)

    def ids(self) -> dict[str, int]:
        """The id of every token, also of those added to the vocabulary: the library may number them anew."""
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_arrays(self, texts: Sequence[str]) -> list[Ids]:
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(each.ids, dtype=np.uint32) for each in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        known = [token for token in ids if 0 <= token < self.vocab_size and token != self.end_of_text]
        return str(self._tokenizer.decode(known, skip_special_tokens=False))

    def token_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size or token == self.end_of_text:
            return b""
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_level:
            return bytes(self._bytes_of[letter] for letter in piece if letter in self._bytes_of)
        return str(self._tokenizer.decode([token], skip_special_tokens=False)).encode()

    @cached_property
    def _bytes_of(self) -> dict[str, int]:
        return {letter: byte for byte, letter in byte_letters().items()}


def byte_letters() -> dict[int, str]:
    """The letter that stands for each byte in a byte-level vocabulary (openai/gpt-2, src/encoder.py)."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # bytes that print as they are
    others = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {byte: chr(256 + index) for index, byte in enumerate(others)}


def train_bpe(texts: Iterator[str], *, vocab_size: int) -> str:
    """The tokenizer.json of byte pairs learned from `texts`. It has every byte, so it can encode any text."""
    library = extra("tokenizers", purpose="training a tokenizer")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return str(tokenizer.to_str())

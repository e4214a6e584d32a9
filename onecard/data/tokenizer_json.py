"""A Hugging Face tokenizer.json: downloaded, or trained here."""

from __future__ import annotations

import json
import math
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onecard import units
from onecard.data.extras import extra
from onecard.data.tokenizers import Ids
from onecard.errors import ConfigError, first_line
from onecard.untrusted_json import BadJson, mapping, parsed

if TYPE_CHECKING:
    import numpy as np
else:
    from onecard.data.extras import numpy as np

END_OF_TEXT = "<|endoftext|>"
# The end of a document in GPT-2, Llama 3, Llama 2, Gemma and BERT, in the order in which we look for them.
_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[SEP]")

LARGEST_VOCABULARY = 2**24
_LONGEST_REPLACEMENT = 64  # characters for one, through all replacements; Llama 2 has one for one
_LONGEST_TRIAL_SECONDS = 20  # the largest in use, of 30 MB, take two
_MOST_TRIAL_BYTES = 4 * units.GIB
_TRIAL = "".join(map(chr, range(1, 256))) + "a" * 1000 + " 日本"


class JsonTokenizer:
    """The tokenizer in the text of a tokenizer.json; ValueError if it is not one. Needs the tokenizers package."""

    name = "tokenizer.json"

    def __init__(self, text: str) -> None:
        self.text = text
        library = extra("tokenizers", purpose="a tokenizer.json")
        described = _checked(text)
        _try_out(library, text)
        self._tokenizer: Any = _asked(library.Tokenizer.from_str, text)
        self._tokenizer.no_truncation()  # these are settings of the model it was made for
        self._tokenizer.no_padding()
        self._byte_level = "ByteLevel" in json.dumps(described.get("decoder"))
        self.vocab_size: int = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if not 0 < self.vocab_size <= LARGEST_VOCABULARY:
            raise ValueError(f"it is not a tokenizer: it has {self.vocab_size:,} tokens")
        found = (self._tokenizer.token_to_id(end) for end in _ENDS)
        self.end_of_text: int | None = next((token for token in found if token is not None), None)

    def ids(self) -> dict[str, int]:
        """The id of every token, also of those added to the vocabulary: the library may number them anew."""
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        try:
            return list(_asked(self._tokenizer.encode, text, add_special_tokens=False).ids)
        except ValueError as problem:
            raise _fails(problem) from problem

    def encode_arrays(self, texts: Sequence[str]) -> list[Ids]:
        encoded = _asked(self._tokenizer.encode_batch_fast, list(texts), add_special_tokens=False)
        return [np.array(each.ids, dtype=np.uint32) for each in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        known = [token for token in ids if 0 <= token < self.vocab_size and token != self.end_of_text]
        try:
            return str(_asked(self._tokenizer.decode, known, skip_special_tokens=False))
        except ValueError as problem:
            raise _fails(problem) from problem

    def token_bytes(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size or token == self.end_of_text:
            return b""
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_level:
            return bytes(self._bytes_of[letter] for letter in piece if letter in self._bytes_of)
        return self.decode([token]).encode()

    @cached_property
    def _bytes_of(self) -> dict[str, int]:
        return {letter: byte for byte, letter in byte_letters().items()}


def _checked(text: str) -> dict[str, Any]:
    """The description in a tokenizer.json; ValueError where it makes texts many times as long as they were."""
    try:
        described = mapping(parsed(text.encode(errors="surrogatepass")))
    except BadJson as problem:
        raise ValueError(f"it is not a tokenizer: {problem}") from problem
    for part in ("normalizer", "decoder"):
        if math.prod(map(len, filter(None, _replacements(described.get(part))))) > _LONGEST_REPLACEMENT:
            raise ValueError(f"it is not a tokenizer: its {part} would make a text very much longer")
    return described


def _replacements(part: object) -> Iterator[str]:
    """What is put in place of something else, anywhere in a part of a tokenizer."""
    if isinstance(part, dict):
        yield str(part.get("content", ""))
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _replacements(each)


def _try_out(library: Any, text: str) -> None:
    """ValueError where loading a tokenizer and using it once takes very long, or ends the process.

    In a process of its own, which the system can end: while the library works, it hears no signal.
    """
    if not hasattr(os, "fork"):  # on Windows
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads: the child uses none of what they may hold
        child = os.fork()
    if child == 0:
        try:
            _limit_this_process()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where the library shows its stack
            tried = library.Tokenizer.from_str(text)
            tried.decode(tried.encode(_TRIAL, add_special_tokens=False).ids)
        except MemoryError:
            os._exit(1)
        except Exception:  # is met again, and told
            os._exit(0)
        except BaseException:  # a panic, of which the library shows its stack
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise ValueError("it is not a tokenizer: the library takes too long over it, or fails")


def _limit_this_process() -> None:
    """From now on the system ends it after some seconds of work, and refuses it much memory."""
    import resource

    def at_most(kind: int, most: int) -> None:
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most, most) if hard == resource.RLIM_INFINITY else (min(most, hard), hard))

    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(2 * _LONGEST_TRIAL_SECONDS)  # waiting takes no CPU
    at_most(resource.RLIMIT_CPU, _LONGEST_TRIAL_SECONDS)
    with suppress(OSError):  # no Linux
        own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        at_most(resource.RLIMIT_AS, own + _MOST_TRIAL_BYTES)


def _asked(question: Callable[..., Any], *asked: Any, **how: Any) -> Any:
    """What the library answers; ValueError with its words where it fails, also where it panics."""
    try:
        return question(*asked, **how)
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as problem:  # the library raises plain Exceptions, and Rust's panics are not even those
        raise ValueError(f"it is not a tokenizer: {first_line(problem, 80)}") from problem


def _fails(problem: ValueError) -> ConfigError:
    return ConfigError(
        "the tokenizer of this data cannot be used for this text",
        why=f"its tokenizer.json cannot do it: {problem}",
        fix="look at the tokenizer.json in the folder of the data, or get it again",
        name="tokenizer-fails",
    )


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

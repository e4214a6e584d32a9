"""GPT-2's tokenizer from the Hugging Face hub, for a command that fetches data from there anyway.

The hub has it as vocab.json of OpenAI's model: the text and rank of every token. Written as tiktoken does, this is
r50k_base.tiktoken, byte for byte; its known sha256 is checked.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from onecard.data.extras import extra
from onecard.data.home import writable_home
from onecard.data.hub import PURPOSE
from onecard.data.tokenizer_json import END_OF_TEXT, byte_letters
from onecard.data.tokenizers import GPT2_FILE, Gpt2Tokenizer
from onecard.errors import MachineError, OnecardError, kind_and_line
from onecard.files import write_atomically

MODEL, VOCABULARY = "openai-community/gpt2", "vocab.json"


def fetch_gpt2(environ: Mapping[str, str]) -> Gpt2Tokenizer:
    """GPT-2's tokenizer, downloaded (1 MB) and kept in onecard's home; MachineError if that cannot be done."""
    hub = extra("huggingface_hub", purpose=PURPOSE)
    try:
        ranks = _ranks(Path(hub.hf_hub_download(MODEL, VOCABULARY)).read_text(encoding="utf-8"))
        tokenizer = Gpt2Tokenizer(ranks)
    except Exception as problem:  # the library's own, the network's, the disk's, or a file that is not GPT-2's
        raise MachineError(
            "GPT-2's tokenizer could not be downloaded",
            why=f"{VOCABULARY} of {MODEL}: {kind_and_line(problem, 160)}",
            fix=f"run the same command again; without network: --ranks {GPT2_FILE}, or --tokenizer=bytes",
            name="ranks-unreachable",
        ) from problem
    with suppress(OSError, OnecardError):  # saved for the next command; this one has it already
        write_atomically(writable_home(environ) / GPT2_FILE, ranks)
    return tokenizer


def _ranks(vocabulary: str) -> bytes:
    """The lines of r50k_base.tiktoken: each token's bytes in base64 and its rank, in order."""
    byte_of = {letter: byte for byte, letter in byte_letters().items()}
    by_rank = sorted((rank, token) for token, rank in json.loads(vocabulary).items() if token != END_OF_TEXT)
    spelled = ((rank, bytes(byte_of[letter] for letter in token)) for rank, token in by_rank)
    return b"".join(base64.b64encode(token) + f" {rank}\n".encode() for rank, token in spelled)

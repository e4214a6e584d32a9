"""The score of a model on a text: nats and bytes of each document."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from onecard.errors import ConfigError
from onecard.runs.scores import MOST_DOCUMENTS, TextScore, ratio_error

if TYPE_CHECKING:
    from onecard.data.texts import Texts
    from onecard.inputs.opened import Opened


def score_text(
    opened: Opened,
    texts: Texts,
    *,
    name: str,
    limit: int | None = None,
    on_progress: Callable[[float], None] = lambda scored: None,
) -> tuple[TextScore, tuple[float, ...], list[str]]:
    """(the score, bits per byte of each document, what to know about it); `limit` scores the first documents only.

    `on_progress` is told which share of what was read so far is scored.

    Every document is read from its beginning, after the token that begins a text, and that token costs nothing.
    """
    from onecard.data.tokenizers import new_text
    from onecard.train.text_score import document_nats

    tokenizer, known = opened.tokenizer, opened.config.vocab_size
    before = new_text(tokenizer, known)[-1]
    seen = hashlib.sha256()
    sizes: list[int] = []
    counts: list[int] = []
    unlike: list[int] = []  # documents whose tokens do not give their text back

    def documents() -> Iterator[list[int]]:
        for number, (words, utf8) in enumerate(islice(texts, limit)):
            try:
                tokens = tokenizer.encode(words)
            except ValueError as problem:  # tiktoken refuses a million spaces
                raise _not_encoded(name, number, str(problem)) from problem
            if not tokens:
                raise _not_encoded(name, number, "its tokenizer makes no tokens of it")
            if max(tokens) >= known:
                raise _not_encoded(name, number, f"it has token {max(tokens)}, and the model knows {known:,}")
            seen.update(len(utf8).to_bytes(8, "little") + utf8)
            sizes.append(len(utf8))
            counts.append(len(tokens))
            if sum(len(tokenizer.token_bytes(token)) for token in tokens) != len(utf8):
                unlike.append(number)
            yield [before, *tokens]

    nats = document_nats(opened.model, documents(), on_progress=on_progress)
    notes = [f"{count:,} documents were left out: {why}" for why, count in texts.left_out.items()]
    if not nats:
        raise ConfigError(
            f"{name} has no text",
            why="; ".join(notes) or "it is empty",
            fix='name a file with text, or JSON lines with a field "text"',
            name="no-text",
        )
    if unlike:
        notes.append(
            f"the tokens of {len(unlike):,} documents (first: {unlike[0] + 1:,}) do not give their text back: a "
            "tokenizer that drops characters makes bits per byte too low"
        )
    bits = [each / math.log(2) for each in nats]
    few = len(nats) <= MOST_DOCUMENTS
    score = TextScore(
        step=opened.step,
        text=Path(name).name,
        text_sha256=seen.hexdigest(),
        context=opened.config.block_size,
        documents=len(nats),
        bytes=sum(sizes),
        tokens=sum(counts),
        nats=math.fsum(nats),
        error=ratio_error(bits, sizes),
        token_error=ratio_error(nats, counts),
        document_bytes=tuple(sizes) if few else (),
        document_nats=tuple(round(each, 4) for each in nats) if few else (),
    )
    return score, tuple(bit / size for bit, size in zip(bits, sizes, strict=True)), notes


def _not_encoded(name: str, number: int, why: str) -> ConfigError:
    return ConfigError(
        f"document {number + 1:,} of {name} cannot be read by the model",
        why=why[:200],
        fix="leave it out, or --limit documents before it",
        name="not-encoded",
    )

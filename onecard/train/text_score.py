"""How well a model predicts documents: nats of each, every token after as much context as half the model's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from onecard.errors import first_line, is_out_of_memory
from onecard.train.model import GPT
from onecard.train.oom import OutOfMemory, release_memory

MOST_TOKENS = 16_384  # of a batch
_WAITING = 256  # windows that are sorted by length, so that a batch has little padding
_IGNORED = -1  # a target that is not scored


class Window(NamedTuple):
    """Tokens that the model reads at once, and the first of them whose successor is scored."""

    document: int
    tokens: Sequence[int]  # one more than the model reads: the last is only predicted
    first: int


@dataclass
class BatchSize:
    """How many tokens a batch may have: halved whenever memory runs out, and then kept."""

    tokens: int = MOST_TOKENS


def windows_of(document: int, tokens: Sequence[int], block_size: int) -> Iterator[Window]:
    """Windows that predict every token but the first once.

    Each window but the first begins half a context before the tokens it scores.
    """
    last = len(tokens) - 1
    kept = block_size - max(1, block_size // 2)
    begin = scored = 0
    while scored < last:
        end = min(begin + block_size, last)
        yield Window(document, tokens[begin : end + 1], scored - begin)
        begin, scored = end - kept, end


def document_nats(
    model: GPT,
    documents: Iterable[Sequence[int]],
    *,
    on_progress: Callable[[float], None] = lambda scored: None,
) -> list[float]:
    """The nats that the model needs for each document, without those for its first token.

    `on_progress` is told which share of the documents taken so far is scored.

    FloatingPointError if the logits are not numbers, as after a run that diverged.
    """
    training = model.training
    model.eval()
    try:
        return _document_nats(model, documents, on_progress)
    finally:
        model.train(training)


def _document_nats(model: GPT, documents: Iterable[Sequence[int]], on_progress: Callable[[float], None]) -> list[float]:
    nats: list[float] = []
    waiting: list[Window] = []
    size = BatchSize()
    taken = 0  # windows

    def score(windows: list[Window]) -> None:
        windows.sort(key=lambda window: len(window.tokens))
        while windows:
            longest = len(windows[-1].tokens) - 1
            fitting = max(1, size.tokens // longest)
            losses = _losses(model, windows[-fitting:], size)
            if losses is None:
                continue  # a smaller batch next
            for window, loss in zip(windows[-fitting:], losses, strict=True):
                nats[window.document] += loss
            del windows[-fitting:]
            on_progress(1 - len(windows) / taken)

    for number, tokens in enumerate(documents):
        nats.append(0.0)
        windows = list(windows_of(number, tokens, model.config.block_size))
        waiting += windows
        taken += len(windows)
        if len(waiting) >= _WAITING:
            score(waiting)
    score(waiting)
    return nats


def _losses(model: GPT, windows: Sequence[Window], size: BatchSize) -> list[float] | None:
    """The nats of each window; None if they did not fit: `size` is smaller then."""
    device = model.lm_head.weight.device
    longest = max(len(window.tokens) for window in windows) - 1
    read_BT = torch.zeros(len(windows), longest, dtype=torch.long)
    target_BT = torch.full_like(read_BT, _IGNORED)
    for row, window in enumerate(windows):
        tokens_T = torch.as_tensor(window.tokens)
        length = len(tokens_T) - 1
        read_BT[row, :length] = tokens_T[:-1]
        target_BT[row, window.first : length] = tokens_T[1 + window.first :]
    try:
        nats_B = model.token_losses(read_BT.to(device), target_BT.to(device)).double().sum(1)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        message = first_line(error)  # not the error itself: its frames hold what must be freed
    else:
        if not bool(nats_B.isfinite().all()):
            raise FloatingPointError("the model's logits are not all numbers")
        return [float(nats) for nats in nats_B]
    if len(windows) == 1:
        raise OutOfMemory(message)
    size.tokens = len(windows) * longest // 2
    release_memory(device)
    return None

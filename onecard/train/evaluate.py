"""Evaluation that cannot kill: fixed windows, no gradients, halved batches when memory is short."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from onecard.data.windows import Batch, EvalWindows
from onecard.errors import first_line, is_out_of_memory
from onecard.models.evaluation import SplitLosses
from onecard.models.ranks import ONE_RANK, Ranks
from onecard.models.training import Losses, split_loss
from onecard.train.oom import OutOfMemory, release_memory
from onecard.train.operations import TORCH


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation of both splits, or a rank's part of it."""

    train: SplitLosses
    val: SplitLosses
    tokens_read: int  # of both splits
    seconds: float
    batch_size: int  # what fitted


def evaluate(
    sequence_losses: Losses,
    *,
    train: EvalWindows,
    val: EvalWindows,
    batch_size: int,
    device: torch.device,
    on_oom: Callable[[int, int | None, str], None],
    before_batch: Callable[[int, int], None] = lambda _done, _total: None,
    ranks: Ranks = ONE_RANK,
) -> Evaluation:
    """Losses on the same windows every time; each rank reads its share of them.

    Out of memory: `on_oom(before, after, why)`, half the batch, again.
    `before_batch(done, total)` counts the batches of both splits; what it raises ends the evaluation.
    """
    began = time.perf_counter()
    while True:
        total = sum(len(ranks.share(range(0, len(windows), batch_size))) for windows in (train, val))
        step = partial(_count, before_batch, itertools.count(), total)
        try:
            losses = [
                _split(sequence_losses, windows.batches(batch_size, ranks=ranks), device, step)
                for windows in (train, val)
            ]
            break
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            message = first_line(error)  # not the error itself: its frames hold what must be freed
        smaller = batch_size // 2 or None
        on_oom(batch_size, smaller, message)
        if smaller is None:
            raise OutOfMemory(message)
        batch_size = smaller
        release_memory(device)
    return Evaluation(
        train=losses[0],
        val=losses[1],
        tokens_read=train.tokens_read + val.tokens_read,
        seconds=time.perf_counter() - began,
        batch_size=batch_size,
    )


def _count(before_batch: Callable[[int, int], None], done: Iterator[int], total: int) -> None:
    before_batch(next(done), total)


def _split(
    sequence_losses: Losses,
    batches: Iterator[Batch],
    device: torch.device,
    before_batch: Callable[[], None],
) -> SplitLosses:
    def brought(batch: Batch) -> tuple[Tensor, Tensor]:
        before_batch()
        x, y = batch
        return torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)

    mean, spread, sequences = split_loss(TORCH, sequence_losses, (partial(brought, batch) for batch in batches))
    return SplitLosses(mean=mean, spread=spread, sequences=sequences)

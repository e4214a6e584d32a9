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
from onecard.models.evaluation import SplitLosses
from onecard.models.training import Losses, split_loss
from onecard.train.oom import OutOfMemory, release_memory
from onecard.train.operations import TORCH
from onecard.train.ranks import ALONE, Processes


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
    processes: Processes = ALONE,
    rehearse: Callable[[int], None] | None = None,
) -> Evaluation:
    """Losses on the same windows every time; each rank reads its share of them.

    With `rehearse` the ranks share a model, and wait for each other in every pass: a rank that has no batch left reads
    nothing along with the others, and memory may run out in rehearsals only.

    Out of memory: `on_oom(before, after, why)`, half the batch, again.
    `before_batch(done, total)` counts the batches of both splits; what it raises ends the evaluation. It is called as
    often on every rank: before the last batch also on those that have none left.
    """
    began = time.perf_counter()
    losses: list[SplitLosses] = []
    while True:
        turns = [_turns(windows, batch_size, processes) for windows in (train, val)]
        step = partial(_count, before_batch, itertools.count(), sum(turns))

        def splits(batch_size: int = batch_size, turns: list[int] = turns, step: Callable[[], None] = step) -> None:
            losses[:] = [
                _split(
                    sequence_losses,
                    windows.batches(batch_size, ranks=processes.ranks),
                    most,
                    device,
                    step,
                    along=rehearse is not None,
                )
                for windows, most in zip((train, val), turns, strict=True)
            ]

        message = processes.lack_memory(partial(rehearse, batch_size) if rehearse else splits)
        if message is None:
            if rehearse:
                splits()
            break
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


def _turns(windows: EvalWindows, batch_size: int, processes: Processes) -> int:
    """Batches of a split on the rank that has most."""
    return -(-len(range(0, len(windows), batch_size)) // processes.ranks.world_size)


def _count(before_batch: Callable[[int, int], None], done: Iterator[int], total: int) -> None:
    before_batch(next(done), total)


def _split(
    sequence_losses: Losses,
    batches: Iterator[Batch],
    turns: int,
    device: torch.device,
    before_batch: Callable[[], None],
    *,
    along: bool,
) -> SplitLosses:
    """A rank's part of a split's losses. `along`: without a batch it runs along with the others."""
    taken = 0

    def brought(batch: Batch) -> tuple[Tensor, Tensor]:
        nonlocal taken
        before_batch()
        taken += 1
        x, y = batch
        return torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)

    mean, spread, sequences = split_loss(TORCH, sequence_losses, (partial(brought, batch) for batch in batches))
    for _ in range(turns - taken):
        before_batch()
        if along:
            sequence_losses(*torch.zeros(2, 1, 1, dtype=torch.long, device=device))
    return SplitLosses(mean=mean, spread=spread, sequences=sequences)

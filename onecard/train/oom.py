"""Out of memory: what is done then."""

from __future__ import annotations

import gc

import torch


class OutOfMemory(Exception):
    """Not even one sequence at a time fits."""


def smaller_micro_batch(batch_size: int, sequences: int) -> int | None:
    """The largest micro-batch of at most half that divides what a rank reads in an update, so that its samples stay;
    None from 1 on."""
    halves = range(batch_size // 2, 0, -1)
    return next((size for size in halves if sequences % size == 0), None)


def release_memory(device: torch.device) -> None:
    """Give back everything that nothing holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()

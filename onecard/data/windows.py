"""Which tokens a run reads, as a pure function of the seed and the number of a sequence.

A run reads sequences 0, 1, 2, …: the data position of a checkpoint is one number, and a micro-batch cut in half still
reads the same sequences. In each epoch every window comes once. Each epoch has its own order and its own offset, from
which its windows lie side by side: so their borders move, and a token gets another context in each epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from onecard.data.tokens import Array, Tokens
from onecard.models.ranks import ONE_RANK, Ranks

Batch = tuple[Array, Array]  # x and y, each [sequences, block_size]; y is x one token later


class Windows:
    """The training sequences of a run. `tokens` must hold more than `block_size`."""

    def __init__(self, tokens: Tokens, *, block_size: int, seed: int) -> None:
        assert len(tokens) > block_size, "check_dataset refuses this"
        self.tokens = tokens
        self.block_size = block_size
        self.seed = seed
        # One window less than would fit, so that the offset can move through a whole block.
        self.per_epoch = max(1, (len(tokens) - block_size) // block_size)
        self._offsets = min(block_size, len(tokens) - self.per_epoch * block_size)
        self._order = lru_cache(maxsize=2)(self._shuffled)  # two, because a batch can lie in two epochs

    def batch(self, first: int, count: int) -> Batch:
        """Sequences first, …, first + count - 1: contiguous int64 arrays x and y, [count, block_size] each."""
        return _batch(self.tokens, self.starts(first, count), self.block_size)

    def batches(self, first: int, count: int, *, ranks: Ranks = ONE_RANK) -> Iterator[Batch]:
        """A rank's batches of `count` sequences, without end; those of all ranks are the sequences from `first` on."""
        return (self.batch(start, count) for start in ranks.turns(first, count))

    def starts(self, first: int, count: int) -> Array:
        """Positions in the data where these sequences begin, [count]."""
        starts = np.empty(count, dtype=np.int64)
        done = 0
        while done < count:
            epoch, index = divmod(first + done, self.per_epoch)
            order, offset = self._order(epoch)
            part = order[index : index + count - done]
            starts[done : done + len(part)] = offset + part.astype(np.int64) * self.block_size
            done += len(part)
        return starts

    def _shuffled(self, epoch: int) -> tuple[npt.NDArray[np.uint32], int]:
        """The order of an epoch's windows, and the position of the first.

        RandomState, because NumPy promises that its streams never change (NEP 19). Those of Generator may change, and a
        run resumed after an upgrade would then read other data.
        """
        key = hashlib.sha256(f"onecard windows {self.seed} {epoch}".encode()).digest()
        random = np.random.RandomState(np.frombuffer(key, dtype="<u4"))
        offset = int(random.randint(self._offsets, dtype=np.int64))  # the default type differs between systems
        return random.permutation(self.per_epoch).astype(np.uint32), offset


class EvalWindows:
    """The sequences of every evaluation, always the same: at most `count`, evenly spread, without overlap."""

    def __init__(self, tokens: Tokens, *, block_size: int, count: int) -> None:
        assert len(tokens) > block_size, "check_dataset refuses this"
        self.tokens = tokens
        self.block_size = block_size
        self._available = (len(tokens) - 1) // block_size
        self._count = min(count, self._available)

    def __len__(self) -> int:
        return self._count

    @property
    def tokens_read(self) -> int:
        return self._count * self.block_size

    def batch(self, first: int, count: int) -> Batch:
        """Sequences first, …, first + count - 1, fewer at the end: x and y as in Windows."""
        numbers = np.arange(first, min(first + count, self._count), dtype=np.int64)
        return _batch(self.tokens, numbers * self._available // max(1, self._count) * self.block_size, self.block_size)

    def batches(self, count: int, *, ranks: Ranks = ONE_RANK) -> Iterator[Batch]:
        """A rank's share of them, `count` at a time; without ranks all."""
        return (self.batch(first, count) for first in ranks.share(range(0, self._count, count)))


def _batch(tokens: Tokens, starts: Array, block_size: int) -> Batch:
    rows = tokens.rows(starts, block_size + 1)
    return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])

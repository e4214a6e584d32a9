"""The ranks of a run: processes with a card each that share the work of every update and evaluation.

What is divided among ranks is divided here, for any number of them: the sequences of an update, the batches of an
evaluation, random numbers, and who writes. A command is one rank of one, unless torchrun started it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING

from onecard.errors import ConfigError

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Which rank this process is, and of how many."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # among those on the same machine: its card's number
    local_size: int = 1  # ranks on this machine

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.world_size

    @property
    def writes(self) -> bool:
        """Whether this process writes the run folder and prints."""
        return self.rank == 0

    def share(self, whole: range) -> range:
        """Every world_size-th of them: together the ranks have all, each once."""
        return whole[self.rank :: self.world_size]

    def turns(self, first: int, size: int) -> Iterator[int]:
        """Where this rank's micro-batches of `size` sequences begin, without end: from `first` on, ranks take turns."""
        return islice(count(first, size), self.rank, None, self.world_size)

    def as_run(self, config: RunConfig) -> RunConfig:
        """The config as these ranks run it: one alone has nobody to share a model with."""
        alone = self.world_size == 1 and config.shard != "none"
        return config.replace({"shard": "none"}) if alone else config

    def sequences_per_step(self, config: RunConfig) -> int:
        """Sequences of an update that each rank reads."""
        return config.sequences_per_step // self.world_size

    def dropout_seed(self, seed: int, step: int = 0) -> int | None:
        """The seed of this rank's dropout in the update after `step`, so that a resume needs no state of each rank.

        None for rank 0, which goes on where drawing the weights has stopped, and whose state is in the checkpoint.
        """
        if self.rank == 0:
            return None
        key = hashlib.sha256(f"onecard dropout {seed} {self.rank} {step}".encode()).digest()
        return int.from_bytes(key[:8], "little") >> 1  # torch's seeds have a sign

    def divided(self, config: RunConfig) -> RunConfig:
        """The config in the largest micro-batch, no larger than its own, that divides what a rank reads; what an
        evaluation reads stays, or is a little more."""
        each, rest = divmod(config.sequences_per_step, self.world_size)
        if rest:
            return config
        size = next(n for n in range(config.batch_size, 0, -1) if each % n == 0)
        evaluations = -(-config.eval_iters * config.batch_size // size)
        return config.in_micro_batches(size).replace({"eval_iters": evaluations})

    def check(self, config: RunConfig, *, resumed: bool = False) -> None:
        """Refuse an update whose sequences cannot be divided equally among the ranks, in whole micro-batches.

        The updates of a run that is `resumed` keep their sequences.
        """
        sequences, size = config.sequences_per_step, config.batch_size
        if sequences % (self.world_size * size) == 0:
            return
        from onecard.config.command import flags_of  # here only: help imports this module, and needs no pydantic

        each, rest = divmod(sequences, self.world_size)
        if rest and resumed:
            count = _nearest_divisor(sequences, self.world_size)
            fix = f"torchrun --nproc_per_node={count}, and the rest as typed   (the run's updates stay as they are)"
        elif rest:
            fitting = self._nearest_update(config)
            patch = {key: getattr(fitting, key) for key in _OF_UPDATE if getattr(fitting, key) != getattr(config, key)}
            fix = f"{flags_of(patch)}   ({fitting.sequences_per_step:,} sequences per update: the nearest that divides)"
        else:
            fitting = config.in_micro_batches(_nearest_divisor(each, size))
            patch = {key: getattr(fitting, key) for key in _OF_UPDATE}
            fix = f"{flags_of(patch)}   (the same {sequences:,} sequences per update)"
        raise ConfigError(
            f"{sequences:,} sequences per update, {size} at a time, do not divide among {self.world_size} ranks",
            why="an update is divided equally: every rank reads the same number of whole micro-batches",
            fix=fix,
            name="ranks-do-not-divide",
        )

    def _nearest_update(self, config: RunConfig) -> RunConfig:
        """The config with an update that divides and is near to its own, in micro-batches as large as that allows."""
        sequences = config.sequences_per_step
        turns = {size: max(1, round(sequences / (self.world_size * size))) for size in range(config.batch_size, 0, -1)}
        away = {size: abs(size * turns[size] * self.world_size / sequences - 1) for size in turns}
        size = next((size for size in away if away[size] <= _NEAR), min(away, key=away.__getitem__))
        return config.replace({"batch_size": size, "gradient_accumulation_steps": turns[size] * self.world_size})


ONE_RANK = Ranks()
_OF_UPDATE = ("batch_size", "gradient_accumulation_steps")
_NEAR = 0.1  # a share of an update, by which it may grow or shrink
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def ranks_of_torchrun(environ: Mapping[str, str]) -> Ranks | None:
    """Which rank torchrun has made of this process; None where torchrun did not start it."""
    if not all(environ.get(name) for name in _OF_TORCHRUN):
        return None
    rank, world_size, local_rank, local_size = (int(environ[name]) for name in _OF_TORCHRUN[:4])
    return Ranks(rank=rank, world_size=world_size, local_rank=local_rank, local_size=local_size)


def _nearest_divisor(of: int, size: int) -> int:
    """The divisor of `of` that is nearest to `size`; of two, the smaller, which needs less memory."""
    near = (size + sign * distance for distance in range(size) for sign in (-1, 1))
    return next(each for each in near if of % each == 0)

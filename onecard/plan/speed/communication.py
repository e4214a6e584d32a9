"""What several cards say to each other in an update (docs/explain/several-cards.md): the sum of their gradients; cards
that share a model also gather its weights.

Computed, not measured: nobody has timed this trainer on several cards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from onecard.config.schema import RunConfig
from onecard.paper.kernels import FLOAT
from onecard.plan.counts import count_params
from onecard.plan.interconnects import Interconnect
from onecard.plan.ranges import Range
from onecard.units import MIB

BUCKET_BYTES = 25 * MIB  # summed at a time; torch's DistributedDataParallel has the same default


def gradient_bytes(config: RunConfig) -> int:
    """Bytes of a model's gradients, which are float32."""
    return FLOAT * count_params(config).total


def ring_bytes(size_bytes: float, ranks: int) -> float:
    """Bytes that each rank sends to the next so that all have the sum of `size_bytes` that each has.

    In a ring every rank passes on 1/n of them n - 1 times until the sums are whole, and n - 1 times to tell all.
    """
    return 2 * (ranks - 1) / ranks * size_bytes


def sum_seconds(size_bytes: int, ranks: int, links: tuple[Interconnect, ...]) -> Range:
    """Seconds of a sum over all ranks; the slowest link of the ring sets the pace."""
    if ranks == 1:
        return Range(low=0.0, likely=0.0, high=0.0)
    return _seconds(ring_bytes(size_bytes, ranks), 2 * (ranks - 1) * ceil(size_bytes / BUCKET_BYTES), links)


def _seconds(sent_bytes: float, steps: int, links: tuple[Interconnect, ...]) -> Range:
    """Seconds in which each card sends so many bytes to the next, in so many steps."""
    steps_seconds = steps * max(link.step_seconds for link in links)

    def at(rates: Iterable[float]) -> float:
        return sent_bytes / min(rates) + steps_seconds

    return Range(
        low=at(link.bytes_per_second * link.reached.high for link in links),
        likely=at(link.bytes_per_second * link.reached.likely for link in links),
        high=at(link.bytes_per_second * link.reached.low for link in links),
    )


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What each of several cards that share a model sends in an update.

    In every micro-batch the blocks are gathered before their forward and their backward pass, what is outside of them
    once, and all gradients are summed. While one block computes, the next one is gathered, and the gradients of the
    one before are summed; so all can be hidden but what the first and the last block wait for, and what is outside.
    """

    ranks: int
    micro_batches: int  # of a card
    blocks: int
    gathered_bytes: int  # of a block's weights
    summed_bytes: int  # of a block's gradients, which are float32
    outside_bytes: int  # of what is outside the blocks: gathered and summed once, float32
    backward_share: float  # of a micro-batch's time

    @classmethod
    def of(cls, config: RunConfig, ranks: int) -> Traffic:
        """A run's, on `ranks` cards."""
        inside = config.model_copy(update={"n_layer": 2}), config.model_copy(update={"n_layer": 1})
        block = count_params(inside[0]).total - count_params(inside[1]).total
        again = 1 if config.grad_checkpoint == "full" else 0  # its forward pass, once more
        return cls(
            ranks=ranks,
            micro_batches=config.gradient_accumulation_steps // ranks,
            blocks=config.n_layer,
            gathered_bytes=(FLOAT if config.dtype == "float32" else 2) * block,
            summed_bytes=FLOAT * block,
            outside_bytes=FLOAT * (count_params(config).total - config.n_layer * block),
            backward_share=(2 + again) / (3 + again),
        )

    @property
    def sent_bytes(self) -> float:
        """Bytes that a card sends in an update: of what is gathered or summed, all but its own share."""
        each = self.blocks * (2 * self.gathered_bytes + self.summed_bytes) + 2 * self.outside_bytes
        return self.micro_batches * self._sent(each)

    def _sent(self, size_bytes: float) -> float:
        return (self.ranks - 1) / self.ranks * size_bytes

    def seconds(self, links: tuple[Interconnect, ...]) -> Range:
        """Seconds of all of it in an update, hidden or not."""
        collectives = self.micro_batches * (3 * self.blocks + 2)
        return _seconds(self.sent_bytes, (self.ranks - 1) * collectives, links)

    def hidden_seconds(self, links: tuple[Interconnect, ...], computing_seconds: float) -> float:
        """Of the likely seconds, those in which a card computes an update's micro-batches meanwhile, at best."""
        steps = self.ranks - 1
        gather = _seconds(self._sent(self.gathered_bytes), steps, links).likely
        both = gather + _seconds(self._sent(self.summed_bytes), steps, links).likely
        block = computing_seconds / self.micro_batches / self.blocks
        forward, backward = (1 - self.backward_share) * block, self.backward_share * block
        return self.micro_batches * (self.blocks - 1) * (min(gather, forward) + min(both, backward))

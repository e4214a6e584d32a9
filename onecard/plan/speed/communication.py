"""What several cards say to each other in an update: the sum of their gradients (docs/explain/several-cards.md).

Computed, not measured: nobody has timed this trainer on several cards.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    steps_seconds = 2 * (ranks - 1) * ceil(size_bytes / BUCKET_BYTES) * max(link.step_seconds for link in links)

    def at(rates: Iterable[float]) -> float:
        return ring_bytes(size_bytes, ranks) / min(rates) + steps_seconds

    return Range(
        low=at(link.bytes_per_second * link.reached.high for link in links),
        likely=at(link.bytes_per_second * link.reached.likely for link in links),
        high=at(link.bytes_per_second * link.reached.low for link in links),
    )

"""Why an allocation failed: the numbers of an out-of-memory message, weighed in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from onecard.config.schema import GPT2_VOCABULARIES, RunConfig
from onecard.plan.cards import Card, plain_card
from onecard.runs.logged import Message
from onecard.units import GIB, MIB

Cause = Literal["oom-system-spill", "oom-despite-free", "oom-other-process", "oom-capacity", "oom-fragmentation"]

OTHERS_MATTER_BYTES = GIB
# What is neither free nor allocated by torch may be this process's own: its context, cuBLAS, NCCL, other libraries. A
# message that does not say how much this process holds cannot tell it from other programs.
MOST_CONTEXT_BYTES, MOST_CONTEXT = 3 * GIB, 0.2  # of the card
NEARLY_FULL = 0.03  # of the card
LARGE_TENSOR_BYTES = 256 * MIB  # below, many tensors have the size of logits by chance


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedAllocation:
    """The numbers of one message, in bytes; None for what it does not say."""

    message: Message
    tried: int | None
    capacity: int | None
    free: int | None
    allocated: int | None
    process: int | None  # all that the driver counts for this process; older messages do not say
    cached: int  # reserved by the process and not in use
    other: int  # held by other programs
    in_eval: bool
    # Of a run of ours: the settings it went on with, {} where it gave up; None of other programs.
    went_on_with: Mapping[str, int] | None = None

    @property
    def short(self) -> int | None:
        """What is missing if nothing else changes; None where the message does not say enough."""
        if self.capacity is None or self.allocated is None or self.tried is None:
            return None
        return self.allocated + self.tried + self.other - self.capacity


def out_of_memory(message: Message, card: Card | None) -> FailedAllocation:
    """The numbers of a message. What others hold is what is neither free nor this process's.

    Numbers that exceed the card together are not all of different processes: a container sees its own process under
    another number. What is then left for others is at most what the card has beside it.
    """
    tried, capacity, free, allocated, process = (
        _whole(message, f"{name}_bytes") for name in ("tried", "capacity", "free", "allocated", "process")
    )
    if capacity is None and allocated is not None and card is not None:
        capacity = card.allocatable_bytes  # llm.c says what it allocates, not of how much
    cached = _whole(message, "reserved_unallocated_bytes") or 0
    named = _whole(message, "other_processes_bytes") or 0  # of processes that the message names by their number
    other = named
    if capacity is not None and (process is not None or allocated is not None):
        context = card.context_bytes if card else plain_card(capacity).context_bytes
        ours = process if process is not None else (allocated or 0) + cached + context
        if free is not None:
            other = max(other, capacity - free - ours)
        if named + max(process or 0, (allocated or 0) + cached) > capacity:
            # more than the card has: in a container the driver names this process by another number
            process = named if process is None else process
            other = capacity - (free or 0) - max(named, ours)
    allowed = _whole(message, "allowed_bytes")
    if allowed is not None:  # a limit of the program's own: what else is on the card does not matter
        capacity, free, other = allowed, max(0, allowed - (allocated or 0) - cached), 0
    return FailedAllocation(
        message=message,
        tried=tried,
        capacity=capacity,
        free=free,
        allocated=allocated,
        process=process,
        cached=cached,
        other=max(0, other),
        in_eval=message.values.get("in_eval") is True,
        went_on_with=_went_on_with(message) if "batch_size_after" in message.values else None,
    )


def _went_on_with(message: Message) -> dict[str, int]:
    batch = "eval_batch_size" if message.values.get("in_eval") is True else "batch_size"
    after = {batch: "batch_size_after", "gradient_accumulation_steps": "accumulation_after"}
    return {key: value for key, name in after.items() if (value := _whole(message, name)) is not None}


def cause(failed: FailedAllocation) -> Cause:
    """The one cause of a failed allocation, in the order in which they exclude each other."""
    capacity, tried, free, short = failed.capacity, failed.tried, failed.free, failed.short
    if capacity is not None and failed.allocated is not None and failed.allocated > capacity:
        return "oom-system-spill"
    if capacity is not None and tried is not None and free is not None and free - tried > NEARLY_FULL * capacity:
        return "oom-despite-free"
    unsaid = failed.process is None and not _whole(failed.message, "other_processes_bytes")
    matters = max(MOST_CONTEXT_BYTES, round(MOST_CONTEXT * (capacity or 0))) if unsaid else OTHERS_MATTER_BYTES
    if tried is not None and failed.other > matters and (free is None or tried <= free + failed.other):
        return "oom-other-process"
    if short is None or capacity is None or -short < NEARLY_FULL * capacity:
        return "oom-capacity"
    unused = (free or 0) + failed.cached
    if tried is not None and max(tried, NEARLY_FULL * capacity) <= unused:  # of a full card, pieces are left over
        return "oom-fragmentation"
    return "oom-capacity"


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorGuess:
    """A tensor of just the size that was asked for."""

    name: Literal["logits", "attention scores"]
    arithmetic: str


def tensor_of(tried_bytes: int, config: RunConfig | None) -> TensorGuess | None:
    """The tensor the failed allocation was for; None if none of the usual ones has its size."""
    if config:
        sizes = _known_tensors(config)
    elif tried_bytes >= LARGE_TENSOR_BYTES:
        sizes = _likely_logits(tried_bytes)
    else:
        return None
    return next((guess for size_bytes, guess in sizes if _same_size(tried_bytes, size_bytes)), None)


def _known_tensors(config: RunConfig) -> Iterator[tuple[int, TensorGuess]]:
    block = config.block_size
    for batch in dict.fromkeys((config.batch_size, config.eval_batch_size or config.batch_size)):
        for item in (2, 4):
            words = f"{batch} x {block:,} x {config.vocab_size:,} x {item} bytes"
            yield batch * block * config.vocab_size * item, TensorGuess(name="logits", arithmetic=words)
        for item in (2, 4):
            words = f"{batch} x {config.n_head} heads x {block:,} x {block:,} x {item} bytes"
            size = batch * config.n_head * block * block * item
            yield size, TensorGuess(name="attention scores", arithmetic=words)


def _likely_logits(tried_bytes: int) -> Iterator[tuple[int, TensorGuess]]:
    """Logits of whole sequences of 1,024 over GPT-2's vocabulary."""
    for vocabulary in reversed(GPT2_VOCABULARIES):
        for item in (2, 4):
            sequences = round(tried_bytes / (1024 * vocabulary * item))
            words = f"{sequences} x 1,024 x {vocabulary:,} x {item} bytes"
            if sequences:
                yield sequences * 1024 * vocabulary * item, TensorGuess(name="logits", arithmetic=words)


def _same_size(tried_bytes: int, size_bytes: int) -> bool:
    """Equal up to the allocator's rounding to 2 MiB and the message's to two digits."""
    printed = 0.006 * GIB if tried_bytes >= GIB else 0.006 * MIB
    return -printed <= tried_bytes - size_bytes <= 2 * MIB + printed


def _whole(message: Message, name: str) -> int | None:
    value = message.values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None

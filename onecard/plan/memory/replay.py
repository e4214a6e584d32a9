"""A tape of allocations and frees, replayed through PyTorch's allocator: what each phase allocates and reserves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from onecard.paper.tape import Peak, Tape, rounded
from onecard.plan.memory.allocator import CachingAllocator, LimitReached, MemoryBlock


@dataclass(frozen=True, kw_only=True)
class ReservedPeak(Peak):
    """What torch.cuda.max_memory_allocated and max_memory_reserved would return at the end of a phase, in bytes."""

    reserved_bytes: int  # the most reserved so far in the process


@dataclass(frozen=True)
class RanOut:
    """Where the limit was hit and giving back the cache did not help."""

    phase: str
    event: int  # index into the tape's events
    wanted_bytes: int


@dataclass(frozen=True)
class Replay:
    """A tape replayed through the allocator. Phases that were not reached because memory ran out are missing."""

    phases: dict[str, ReservedPeak]
    ran_out: RanOut | None
    reserved_bytes: int  # high-water mark of the whole tape
    asked_bytes: int  # the smallest limit under which it runs without giving its cache back

    @property
    def ok(self) -> bool:
        return self.ran_out is None


def replay(tape: Tape, *, expandable_segments: bool = False, limit_bytes: int | None = None) -> Replay:
    """What the allocator holds in each phase of the tape, in bytes; `limit_bytes` bounds what it may reserve."""
    allocator = CachingAllocator(expandable_segments=expandable_segments, limit_bytes=limit_bytes)
    malloc, free = allocator.malloc_rounded, allocator.free
    handles: dict[int, MemoryBlock] = {}
    sizes, events = [rounded(size) for size in tape.sizes], tape.events
    found: dict[str, ReservedPeak] = {}
    for start, end, name, taken, orders in _stretches(tape):
        for size in taken:
            allocator.driver_takes(size)
        for order in orders:
            allocator.obey(order)
        best, at = allocator.allocated_bytes, max(start - 1, 0)
        for index in range(start, end):
            event = events[index]
            if event < 0:
                free(handles.pop(~event))
                continue
            try:
                handles[event] = malloc(sizes[event])
            except LimitReached:
                ran_out = RanOut(name, index, tape.sizes[event])
                return Replay(found, ran_out, allocator.peak_reserved_bytes, allocator.peak_asked_bytes)
            if allocator.allocated_bytes > best:
                best, at = allocator.allocated_bytes, index
        if name in found and found[name].allocated_bytes >= best:
            best, at = found[name].allocated_bytes, found[name].event
        found[name] = ReservedPeak(
            phase=name, allocated_bytes=best, event=at, reserved_bytes=allocator.peak_reserved_bytes
        )
    return Replay(found, None, allocator.peak_reserved_bytes, allocator.peak_asked_bytes)


def _stretches(tape: Tape) -> Iterator[tuple[int, int, str, list[int], list[str]]]:
    """Pieces of phases, cut at driver takes and orders: (first event, end, phase, driver's sizes in bytes, orders)."""
    names = dict(tape.phases)
    taken: dict[int, list[int]] = {}
    for index, size in tape.driver:
        taken.setdefault(index, []).append(size)
    orders: dict[int, list[str]] = {}
    for index, order in tape.orders:
        orders.setdefault(index, []).append(order)
    name = ""
    cuts = sorted({0, *names, *taken, *orders, len(tape.events)})
    for start, end in pairwise(cuts):
        name = names.get(start, name)
        yield start, end, name, taken.get(start, []), orders.get(start, [])

"""The tape: every allocation and free of a program, in order, each with a tag that says what it is for.

A program that runs on paper (nanoGPT's, onecard's own trainer) writes a tape; the allocator replays it; the parts are
sums by tag over what is alive at the peak.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

EMPTY_CACHE = "empty cache"  # torch.cuda.empty_cache()
DEFAULT_POOL = "default"
ROUND_BYTES = 512  # every CUDA block is a multiple of this (CUDACachingAllocator: kMinBlockSize)


@dataclass(eq=False)  # each is itself: what was found out about one is remembered
class Tape:
    """Blocks are numbered as they are allocated; an event is a block's number, or its complement (~) when freed."""

    sizes: list[int] = field(default_factory=list)  # bytes asked for, by block
    tags: list[str] = field(default_factory=list)  # what it is for at first, by block
    retags: list[tuple[int, int, str]] = field(default_factory=list)  # (index of the first event, block, its new tag)
    events: list[int] = field(default_factory=list)
    phases: list[tuple[int, str]] = field(default_factory=list)  # (index of the first event, name)
    moments: list[tuple[int, str]] = field(default_factory=list)  # (index of the first event, what is happening)
    driver: list[tuple[int, int]] = field(default_factory=list)  # (index of the next event, bytes)
    orders: list[tuple[int, str]] = field(default_factory=list)  # (index of the next event, what the allocator must do)
    finished: bool = False  # the program has ended: what Python lets go of afterwards is not its doing
    _counted: tuple[int, int, int] = (0, 0, 0)  # events, bytes alive after them, and the most that ever were

    def alloc(self, size_bytes: int, tag: str) -> int:
        """Allocate; returns the block's number."""
        block = len(self.sizes)
        self.sizes.append(size_bytes)
        self.tags.append(tag)
        self.events.append(block)
        return block

    def free(self, *blocks: int) -> None:
        """Free blocks in the order given."""
        self.events.extend([~block for block in blocks])

    def retag(self, block: int, tag: str) -> None:
        """Count a block under another tag from here on. The allocator does not notice."""
        self.retags.append((len(self.events), block, tag))

    def room_below_peak(self) -> int:
        """Bytes that could be allocated now without raising the peak so far."""
        counted, now, most = self._counted
        for event in self.events[counted:]:
            now += rounded(self.sizes[event]) if event >= 0 else -rounded(self.sizes[~event])
            most = max(most, now)
        self._counted = len(self.events), now, most
        return most - now

    def temporary(self, size_bytes: int, tag: str) -> None:
        """A workspace that lives for one kernel."""
        self.free(self.alloc(size_bytes, tag))

    def driver_takes(self, *sizes_bytes: int) -> None:
        """The driver takes memory for itself here (a kernel's code, a library's handle), between PyTorch's segments.

        It is part of the context. It is neither allocated nor reserved, but it changes the addresses of later segments.
        """
        self.driver.extend([(len(self.events), size) for size in sizes_bytes])

    def order(self, what: str) -> None:
        """Give the allocator an order: EMPTY_CACHE, "pool NAME", "hold NAME" or "let go NAME".

        After "pool NAME", allocations come from a separate pool (of a CUDA graph, or of another stream). A graph that
        holds its pool keeps the free memory in it from going back to the driver.
        """
        self.orders.append((len(self.events), what))

    def phase(self, name: str) -> None:
        """What follows belongs to phase `name`."""
        self.phases.append((len(self.events), name))

    def moment(self, what: str) -> None:
        """What follows happens during `what`, such as "backward of the loss": shown with the peak."""
        self.moments.append((len(self.events), what))

    def moment_at(self, event: int) -> str:
        """What is happening at an event."""
        at = bisect_right(self.moments, event, key=lambda moment: moment[0])
        return self.moments[at - 1][1] if at else ""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """The moment within a phase when most is allocated."""

    phase: str
    allocated_bytes: int
    event: int  # index into the tape's events

    def parts(self, tape: Tape) -> dict[str, int]:
        """Bytes alive at this moment, by tag, largest first. Sizes are rounded, so they add up to those of `peaks`."""
        return parts_at(tape, self.event)


def parts_at(tape: Tape, event: int) -> dict[str, int]:
    """Bytes alive just after an event, by tag, largest first."""
    retagged = {block: tag for since, block, tag in tape.retags if since <= event}
    parts: dict[str, int] = {}
    for block in live_blocks(tape.events[: event + 1]):
        tag = retagged.get(block, tape.tags[block])
        parts[tag] = parts.get(tag, 0) + rounded(tape.sizes[block])
    return dict(sorted(parts.items(), key=lambda part: -part[1]))


def changes(tape: Tape) -> Iterator[tuple[int, str, int]]:
    """(event, tag, bytes) of every change in a part's size; retagging a block changes two parts."""
    now = tape.tags[:]
    retags = iter([*tape.retags, (len(tape.events), -1, "")])
    since, retagged, tag = next(retags)
    for index, event in enumerate(tape.events):
        while since <= index:
            size = rounded(tape.sizes[retagged])
            yield index, now[retagged], -size
            yield index, tag, size
            now[retagged] = tag
            since, retagged, tag = next(retags)
        block = event if event >= 0 else ~event
        size = rounded(tape.sizes[block])
        yield index, now[block], size if event >= 0 else -size


def rounded(size_bytes: int) -> int:
    """Bytes the allocator sets aside for a request of `size_bytes`."""
    return max(ROUND_BYTES, -(-size_bytes // ROUND_BYTES) * ROUND_BYTES)


def live_blocks(events: Iterable[int]) -> list[int]:
    """Blocks allocated and not freed, in order of allocation."""
    live: dict[int, None] = {}
    for event in events:
        if event >= 0:
            live[event] = None
        else:
            del live[~event]
    return list(live)


def peaks(tape: Tape) -> dict[str, Peak]:
    """The peak of each phase from rounded sizes alone: fast, and exact except for blocks the allocator cannot split."""
    sizes = [rounded(size) for size in tape.sizes]
    found: dict[str, Peak] = {}
    current = 0
    bounds = [*(start for start, _ in tape.phases), len(tape.events)]
    for event in tape.events[: bounds[0]]:
        current += sizes[event] if event >= 0 else -sizes[~event]
    for (start, name), end in zip(tape.phases, bounds[1:], strict=True):
        best, at = current, max(start - 1, 0)
        for index in range(start, end):
            event = tape.events[index]
            if event >= 0:
                current += sizes[event]
                if current > best:
                    best, at = current, index
            else:
                current -= sizes[~event]
        if name not in found or best > found[name].allocated_bytes:
            found[name] = Peak(phase=name, allocated_bytes=best, event=at)
    return found

"""Recorded allocator traces of real runs: the simulation makes the same segments, the tape the same events."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from onecard.config.schema import RunConfig
from onecard.models.nanogpt import eager_tape
from onecard.paper.device import H200
from onecard.paper.tape import Tape
from onecard.plan.memory.allocator import CachingAllocator
from onecard.plan.memory.replay import replay

FOLDER = Path(__file__).parent
TRACES = {path.name.split("_")[-1].partition(".")[0]: path for path in sorted(FOLDER.glob("allocator_trace_*.json.gz"))}
TEXT_KEYS = ("dtype",)

Event = tuple[str, int, int]  # "alloc" or "free", block number, bytes asked for


def load(name: str) -> tuple[RunConfig, bool, list[list[Any]]]:
    """Config, whether segments were expandable, and events: [action, address, bytes] or ["phase", name]."""
    with gzip.open(TRACES[name], "rt") as file:
        trace = json.load(file)
    texts = dict(trace["config"])
    expandable = texts.pop("expandable_segments") == "True"
    values = {key: text if key in TEXT_KEYS else json.loads(text.lower()) for key, text in texts.items()}
    return RunConfig().replace(values), expandable, trace["events"]


def recorded(events: list[list[Any]]) -> list[Event]:
    """Allocations and frees in order, blocks numbered as they were allocated."""
    numbers: dict[int, int] = {}
    found: list[Event] = []
    count = 0
    for action, *rest in events:
        if action == "alloc":
            address, size = rest
            numbers[address] = count
            found.append(("alloc", count, size))
            count += 1
        elif action == "free":
            address, size = rest
            found.append(("free", numbers[address], size))
    return found


def written(tape: Tape) -> list[Event]:
    return [
        ("alloc", event, tape.sizes[event]) if event >= 0 else ("free", ~event, tape.sizes[~event])
        for event in tape.events
    ]


def with_frees_sorted(events: list[Event]) -> list[Event]:
    """Consecutive frees, sorted by block: autocast empties its cache in the order of a hash table."""
    found: list[Event] = []
    frees: list[Event] = []
    for event in events:
        if event[0] == "free":
            frees.append(event)
        else:
            found += [*sorted(frees), event]
            frees = []
    return found + sorted(frees)


@pytest.mark.parametrize("name", TRACES)
def test_the_tape_is_the_recorded_run_event_by_event(name: str) -> None:
    config, _, events = load(name)
    ours, real = with_frees_sorted(written(eager_tape(config, H200))), with_frees_sorted(recorded(events))
    for index, (mine, theirs) in enumerate(zip(ours, real, strict=False)):
        assert mine == theirs, f"event {index}"
    assert len(ours) == len(real)


@pytest.mark.parametrize("name", TRACES)
def test_the_allocator_asks_for_the_recorded_segments_at_the_recorded_moments(name: str) -> None:
    _, expandable, events = load(name)
    allocator = CachingAllocator(expandable_segments=expandable)
    blocks: dict[int, Any] = {}
    segments: list[int] = []
    for action, *rest in events:
        if action == "segment":
            segments.append(rest[1])
        elif action == "alloc":
            blocks[rest[0]] = allocator.malloc(rest[1])
            assert allocator.requests == segments
        elif action == "free":
            allocator.free(blocks.pop(rest[0]))
    assert allocator.peak_reserved_bytes == sum(segments)


def place(segments: list[tuple[int, int]], address: int) -> tuple[int, int]:
    """(which segment, offset within it)."""
    index = next(index for index, (start, size) in enumerate(segments) if start <= address < start + size)
    return index, address - segments[index][0]


@pytest.mark.parametrize("name", [name for name in TRACES if name != "expandable"])
def test_every_block_lands_in_the_recorded_segment_at_the_recorded_place(name: str) -> None:
    config, _, events = load(name)
    segments: list[tuple[int, int]] = []
    real: list[tuple[int, int]] = []
    for action, *rest in events:
        if action == "segment":
            segments.append((rest[0], rest[1]))
        elif action == "alloc":
            real.append(place(segments, rest[0]))

    tape = eager_tape(config, H200)
    allocator = CachingAllocator()
    segments, ours = [], []
    blocks: dict[int, Any] = {}
    for index, event in enumerate(tape.events):
        for size in [size for before, size in tape.driver if before == index]:
            allocator.driver_takes(size)
        if event < 0:
            allocator.free(blocks.pop(~event))
            continue
        block = blocks[event] = allocator.malloc(tape.sizes[event])
        if len(allocator.requests) > len(segments):
            segments.append((block.address, allocator.requests[-1]))
        ours.append(place(segments, block.address))
    assert ours == real


@pytest.mark.parametrize("name", TRACES)
def test_replaying_the_tape_reserves_what_was_recorded(name: str) -> None:
    config, expandable, events = load(name)
    segments = [rest[1] for action, *rest in events if action == "segment"]
    assert replay(eager_tape(config, H200), expandable_segments=expandable).reserved_bytes == sum(segments)

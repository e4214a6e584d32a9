"""The history of a run: all records of its file, and which of them are still valid."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from onecard.runs.record_json import NotARecord, from_line
from onecard.runs.records import End, Eval, Record, Sample, Start, Step


@dataclass(frozen=True, slots=True)
class History:
    """All records of a file in the order they were written, and how many lines could not be read."""

    records: tuple[Record, ...]
    damaged_lines: int = 0


def read_lines(lines: Iterable[bytes]) -> History:
    """The records in lines of bytes. A crash can damage a line, so unreadable lines are counted and skipped."""
    records: list[Record] = []
    damaged = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            records.append(from_line(line))
        except NotARecord:
            damaged += 1
    return History(tuple(records), damaged)


def done_once(record: Record) -> tuple[object, ...] | None:
    """What the last record of several counts for: an evaluation at this step and length, a text from this prompt.

    A resume repeats those of its checkpoint's step. None for other records.
    """
    if isinstance(record, Eval):
        return record.kind, record.step, record.block_size
    return (record.kind, record.step, record.prompt) if isinstance(record, Sample) else None


def each_step_once(history: Iterable[Record]) -> tuple[Record, ...]:
    """The valid records: each step once, without the updates that a resume repeated.

    The file is append-only, so old records stay in it. A run that resumes at step k writes a `start` with step k. Any
    earlier record of a later step belongs to a lost update, and an earlier `end` was not the end. A `start` at step 0
    without a checkpoint starts from the beginning. If a `start` is lost, a falling step number means the same. What was
    done again at the same step counts once: see `done_once`.
    """
    kept: list[Record] = []
    lowest_start = math.inf  # the lowest step of the later starts
    next_step = math.inf  # the lowest number of the later steps
    done: set[object] = set()
    for record in reversed(tuple(history)):
        if record.step is not None and record.step > min(lowest_start, next_step):
            continue
        if isinstance(record, Step):
            if record.step == next_step:
                continue
            next_step = record.step
        elif what := done_once(record):
            if what in done:
                continue
            done.add(what)
        elif isinstance(record, End) and lowest_start < math.inf:
            continue  # a later start exists
        kept.append(record)
        if isinstance(record, Start):
            lowest_start = min(lowest_start, record.step)
            if record.step == 0 and record.resumed_from is None:
                break
    return tuple(reversed(kept))

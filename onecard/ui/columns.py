"""The updates of a run folder as columns of numbers, and the readings of its card: all that curves need, read ten times
as fast as whole records."""

from __future__ import annotations

import math
import os
import re
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, NamedTuple

from onecard import units
from onecard.opening import open_file
from onecard.runs.folder import LONGEST_RECORD_BYTES, RECORDS
from onecard.runs.history import done_once
from onecard.runs.record_json import NotARecord, from_line, to_line
from onecard.runs.records import CardReading, End, Record, Start, Step
from onecard.untrusted_json import mapping, parsed

COLUMNS = (
    *("tokens", "loss", "lr", "grad_norm", "elapsed_seconds"),
    *("tokens_per_second", "mfu", "allocated_bytes", "reserved_bytes"),
)
BLOCK_BYTES = 64 * units.KIB  # of whole lines: most such blocks hold updates alone
_WORDS = {b"null": math.nan, b'"NaN"': math.nan, b'"Infinity"': math.inf, b'"-Infinity"': -math.inf}


@dataclass(frozen=True, slots=True)
class Columns:
    """Updates in their order. What was not recorded is NaN."""

    step: array[int] = field(default_factory=lambda: array("q"))
    values: dict[str, array[float]] = field(default_factory=lambda: {name: array("d") for name in COLUMNS})

    def __len__(self) -> int:
        return len(self.step)

    def part(self, begin: int, end: int) -> Columns:
        return Columns(self.step[begin:end], {name: values[begin:end] for name, values in self.values.items()})

    def extend(self, more: Columns) -> None:
        self.step.extend(more.step)
        for name, values in self.values.items():
            values.extend(more.values[name])


def columns_of(steps: Sequence[Step]) -> Columns:
    """The columns of records."""
    made = {name: array("d", (_known(getattr(step, name)) for step in steps)) for name in COLUMNS}
    return Columns(array("q", (step.step for step in steps)), made)


def _known(value: float | None) -> float:
    return math.nan if value is None else value


class Reading(NamedTuple):
    """A reading of a card as far as curves show it, by the names of its record."""

    step: int
    temperature_c: float | None
    power_watts: float | None
    sm_clock_mhz: float | None
    other_bytes: float | None
    power_limit_watts: float | None
    default_power_limit_watts: float | None
    pcie_generation: float | None
    pcie_width: float | None
    max_pcie_generation: float | None
    max_pcie_width: float | None
    throttle: tuple[str, ...] | None


def readings_in(records: Iterable[Record]) -> list[Reading]:
    """The readings among records."""
    names = Reading._fields
    return [Reading(*(getattr(each, name) for name in names)) for each in records if isinstance(each, CardReading)]


Piece = Columns | list[Reading] | Record  # updates whose numbers rise, readings, or any other record


@dataclass
class Track:
    """The records of a run folder up to where they were read: of what is there already, nothing is read again."""

    path: Path
    _pieces: list[Piece] = field(default_factory=list)
    _place: int = 0  # bytes read: whole lines
    _file: tuple[int, int] | None = None  # device and number of the file that was read

    def read(self, *, seconds: float = math.inf) -> tuple[Columns, list[Reading], tuple[Record, ...]] | None:
        """The valid updates, readings and other records; None after `seconds`, and the next call reads on from there.

        A file that was replaced or cut is read from its beginning. OSError where there is none.
        """
        end = time.monotonic() + seconds
        with open_file(self.path / RECORDS) as file:
            status = os.fstat(file.fileno())
            if self._file != (status.st_dev, status.st_ino) or status.st_size < self._place:
                self._pieces, self._place = [], 0
                self._file = status.st_dev, status.st_ino
            file.seek(self._place)
            for block in self._added(file):
                for piece in _pieces(block):
                    self._add(piece)
                if time.monotonic() > end:
                    return None
        return valid(self._pieces)

    def _added(self, file: BinaryIO) -> Iterator[bytes]:
        """The blocks from here on; a last line without its end waits for it."""
        held = b""
        while more := file.read(BLOCK_BYTES):
            held += more
            cut = held.rfind(b"\n") + 1 or (len(held) if len(held) > LONGEST_RECORD_BYTES else 0)
            if cut:
                self._place += cut
                yield held[:cut]
                held = held[cut:]

    def _add(self, piece: Piece) -> None:
        last = self._pieces[-1] if self._pieces else None
        if isinstance(piece, Columns) and isinstance(last, Columns) and last.step[-1] < piece.step[0]:
            last.extend(piece)
        else:
            self._pieces.append(piece)


def valid(pieces: Sequence[Piece]) -> tuple[Columns, list[Reading], tuple[Record, ...]]:
    """What `each_step_once` keeps of the same records, updates and readings apart from others."""
    kept: list[Columns] = []
    read: list[Reading] = []
    others: list[Record] = []
    lowest_start = next_step = math.inf
    done: set[object] = set()
    for piece in reversed(pieces):
        if isinstance(piece, Columns):
            end = min(bisect_right(piece.step, lowest_start), bisect_left(piece.step, next_step))
            if end:
                kept.append(piece if end == len(piece) else piece.part(0, end))
                next_step = piece.step[0]
            continue
        if isinstance(piece, list):
            latest = min(lowest_start, next_step)
            read += reversed([reading for reading in piece if reading.step <= latest])
            continue
        if piece.step is not None and piece.step > min(lowest_start, next_step):
            continue
        if what := done_once(piece):
            if what in done:
                continue
            done.add(what)
        elif isinstance(piece, End) and lowest_start < math.inf:
            continue  # a later start exists
        others.append(piece)
        if isinstance(piece, Start):
            lowest_start = min(lowest_start, piece.step)
            if piece.step == 0 and piece.resumed_from is None:
                break
    columns = Columns()
    for part in reversed(kept):
        columns.extend(part)
    return _possible(columns), read[::-1], tuple(reversed(others))


def _possible(columns: Columns) -> Columns:
    """Without updates that nobody can have done: below step 0, or with less than no tokens."""
    tokens, below = columns.values["tokens"], (0.0).__gt__
    if not columns or (columns.step[0] >= 0 and not any(map(below, tokens))):
        return columns
    made = Columns()
    for place, number in enumerate(columns.step):
        if number >= 0 and not tokens[place] < 0:
            made.extend(columns.part(place, place + 1))
    return made


def _pieces(block: bytes) -> Iterator[Piece]:
    """Lines as pieces; a line that is no record is skipped. Readings come after the updates that they are among."""
    cards = _CARD.findall(block)
    rows = _LINE.findall(_CARD.sub(b"", block) if cards else block)
    if len(rows) + len(cards) == block.count(b"\n"):
        yield from _both(rows, cards)
        return
    rows, cards = [], []
    for line in block.splitlines(keepends=True):
        if match := _LINE.fullmatch(line):
            rows.append(match.groups())
        elif _CARD.match(line):
            cards.append(line)
        else:
            try:
                record = from_line(line)
            except NotARecord:
                continue
            yield from _both(rows, cards)
            rows, cards = [], []
            if isinstance(record, CardReading):
                yield readings_in([record])
            else:
                yield columns_of([record]) if isinstance(record, Step) else record
    yield from _both(rows, cards)


def _both(rows: Sequence[tuple[bytes, ...]], cards: Sequence[bytes]) -> Iterator[Piece]:
    if rows:
        yield from _rising(_columns(rows))
    if readings := [reading for line in cards if (reading := _reading(line))]:
        yield readings


def _reading(line: bytes) -> Reading | None:
    """What a line says of a card; None where it makes no sense. No whole record: that would take ten times as long."""
    try:
        said = mapping(parsed(line))
        step, throttle = said["step"], said.get("throttle")
        if type(step) is not int or not 0 <= step < 2**63:
            return None
        told = map(said.get, _NUMBERS)
        values = [value if isinstance(value, int | float) and -1e18 < value < 1e18 else None for value in told]
    except (ValueError, KeyError, AttributeError, TypeError, OverflowError, RecursionError):
        return None
    return Reading._make((step, *values, tuple(map(str, throttle)) if isinstance(throttle, list) else None))


def _columns(rows: Iterable[tuple[bytes, ...]]) -> Columns:
    steps, *others = zip(*rows, strict=True)
    made = {name: _numbers(texts) for name, texts in zip(COLUMNS, others, strict=True)}
    return Columns(array("q", map(int, steps)), made)


def _numbers(texts: Iterable[bytes]) -> array[float]:
    try:
        return array("d", map(float, texts))
    except ValueError:  # some are unknown, or not finite
        return array("d", (_WORDS[text] if text in _WORDS else float(text) for text in texts))


def _rising(columns: Columns) -> Iterator[Columns]:
    """The same updates, cut wherever a number does not rise: a resume whose start was lost."""
    cuts = [place for place, (one, next_one) in enumerate(pairwise(columns.step), 1) if next_one <= one]
    for begin, end in pairwise([0, *cuts, len(columns)]):
        yield columns.part(begin, end) if cuts else columns


def _pattern() -> re.Pattern[bytes]:
    """A line of an update as this program writes it, every number within what a record may hold."""
    number = rb"(null|-?\d{1,22}(?:\.\d{1,30})?(?:e(?:-\d{1,3}|\+[0-2]?\d))?|\"NaN\"|\"-?Infinity\")"
    names = re.findall(rb'"(\w+)":', to_line(_ANY))
    return re.compile(
        rb'^\{"kind":"step","step":(\d{1,18})'
        + b"".join(
            b',"%s":%s' % (name, rb"(null|\d{1,18})" if name == b"tokens" else number)
            if name.decode() in COLUMNS
            else b',"%s":(?:null|[-+.\\de]{1,40})' % name
            for name in names[2:]
        )
        + rb"\}\n",
        re.MULTILINE,
    )


_ANY = Step(
    step=0, tokens=None, loss=0.0, lr=None, grad_norm=None, seconds=None, elapsed_seconds=None, tokens_per_second=None,
    mfu=None, allocated_bytes=None, reserved_bytes=None, data_wait_seconds=None,
)  # fmt: skip
_LINE = _pattern()
_NUMBERS = Reading._fields[1:-1]
_CARD = re.compile(rb'\{"kind":"card",[^\n]*\n')

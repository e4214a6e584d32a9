"""Whatever a run records and however it dies, what was written comes back, once."""

import json
import math
from typing import Any, get_type_hints

from hypothesis import given
from hypothesis import strategies as st

from onecard.findings import Finding
from onecard.runs.history import each_step_once, read_lines
from onecard.runs.record_json import from_line, to_json, to_line
from onecard.runs.records import KINDS, Checkpoint, End, Eval, FindingRecord, Oom, Record, Start, Step, Unknown
from tests.made_records import start, step

wholes = st.integers(0, 2**53)
texts = st.text(max_size=20)
settings_values = st.none() | st.booleans() | wholes | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(
    settings_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
known = {name for record in KINDS.values() for name in record.__dataclass_fields__} | {"kind"}
extras = st.dictionaries(texts.filter(lambda name: name not in known), values, max_size=2)
findings = st.builds(
    Finding, seen=st.lists(texts, max_size=2).map(tuple), patch=st.dictionaries(texts, settings_values, max_size=2)
)
objects = st.dictionaries(texts, settings_values, max_size=3)  # settings, versions
# As a run can have them: what is larger is refused by the reader (tests/attack/test_lying_json.py).
numbers = st.floats(-1e39, 1e39) | st.just(math.nan) | st.just(math.inf) | st.just(-math.inf)
durations = st.none() | st.floats(0, 1e11)
by_hint = {int: st.integers(-(2**63) + 1, 2**63 - 1), float: numbers, float | None: st.none() | numbers}
by_hint[int | None] = st.none() | by_hint[int]


def fields_of(kind: Any) -> dict[str, Any]:
    """A strategy for every number of a kind of record."""
    hints = get_type_hints(kind)
    numeric = {name: by_hint[hints[name]] for name in kind.__dataclass_fields__ if hints[name] in by_hint}
    return numeric | {name: durations for name in kind.__dataclass_fields__ if name.endswith("seconds")}


given_fields: dict[Any, dict[str, Any]] = {
    Start: {"config": objects, "versions": objects},
    FindingRecord: {"finding": findings},
}
records: st.SearchStrategy[Record] = st.one_of(
    *(
        st.builds(kind, **fields_of(kind) | {"step": wholes, "more": extras} | given_fields.get(kind, {}))
        for kind in (Start, Step, Eval, Checkpoint, Oom, FindingRecord, End)
    ),
    st.builds(Unknown, kind=texts.filter(lambda kind: kind not in KINDS), more=extras),
)


def strict(line: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(line, parse_constant=refuse)


def lines_of(history: list[Record]) -> list[bytes]:
    return [to_line(record) for record in history]


@given(records)
def test_a_record_comes_back_from_its_line(record: Record) -> None:
    line = to_line(record)
    assert line.count(b"\n") == 1
    assert strict(line) == to_json(record)
    read = from_line(line)
    assert type(read) is type(record)
    assert to_line(read) == line  # by its line, since NaN is not equal to itself


@given(st.lists(records, max_size=6), st.data())
def test_any_torn_prefix_reads_back_as_a_prefix(history: list[Record], data: st.DataObject) -> None:
    whole = b"".join(lines_of(history))
    cut = data.draw(st.integers(0, len(whole)))
    read = read_lines(whole[:cut].splitlines(keepends=True))
    assert lines_of(list(read.records)) == lines_of(history)[: len(read.records)]
    assert len(read.records) >= whole[:cut].count(b"\n")
    assert read.damaged_lines <= 1


@given(st.lists(records, max_size=4), st.lists(records, min_size=1, max_size=4), st.data())
def test_a_resume_after_a_torn_line_loses_that_line_alone(
    before: list[Record], after: list[Record], data: st.DataObject
) -> None:
    whole = b"".join(lines_of(before))
    torn = whole[: data.draw(st.integers(0, len(whole)))]
    newline = b"" if not torn or torn.endswith(b"\n") else b"\n"
    read = read_lines((torn + newline + b"".join(lines_of(after))).splitlines(keepends=True))
    assert lines_of(list(read.records))[-len(after) :] == lines_of(after)


@given(st.lists(st.binary(max_size=60) | records.map(to_line), max_size=6))
def test_random_bytes_never_crash_the_reader(lines: list[bytes]) -> None:
    each_step_once(read_lines(b"".join(lines).split(b"\n")).records)


@given(st.dictionaries(st.sampled_from(sorted(known)), values), st.sampled_from(sorted(KINDS)))
def test_records_with_fields_of_any_type_never_crash_the_reader(fields: dict[str, Any], kind: str) -> None:
    read_lines([json.dumps(fields | {"kind": kind}).encode()])


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.booleans()), max_size=8))
def test_a_run_killed_and_resumed_anywhere_shows_each_step_once(attempts: list[tuple[int, int, bool]]) -> None:
    history: list[Record] = [start(0, resumed_from=None)]
    state: list[float] = []  # the attempt that made each update of the weights as they are now
    for attempt, (resume_at, updates, start_is_lost) in enumerate(attempts):
        del state[resume_at:]
        if not start_is_lost or not updates:
            history.append(start(len(state), resumed_from="checkpoint" if state else None))
        for _ in range(updates):
            state.append(float(attempt))
            history.append(step(len(state), loss=state[-1]))
    steps = [record for record in each_step_once(history) if isinstance(record, Step)]
    assert [each.step for each in steps] == list(range(1, len(state) + 1))
    assert [each.loss for each in steps] == state

"""The light reader of updates finds what the reader of whole records finds, however a run went."""

import json
import math
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecard.runs.history import each_step_once, read_lines
from onecard.runs.record_json import to_line
from onecard.runs.records import CardReading, Eval, Sample, Step
from onecard.ui.columns import COLUMNS, Columns, Track, columns_of, readings_in
from tests.made_records import _bare, end, start, step
from tests.ui.conftest import make_run

losses = st.sampled_from([3.0, 4.25, 1e-7, 1.5e16, math.nan, math.inf, -math.inf])
rates = st.sampled_from([None, 0.0, 6e-4, 123456.789, math.nan])
steps = st.builds(
    lambda number, loss, rate, tokens: to_line(_bare(Step, step=number, loss=loss, lr=rate, tokens=tokens, mfu=rate)),
    *(st.integers(1, 12), losses, rates, st.sampled_from([None, 10**15, -3])),
)
others = st.one_of(
    st.builds(lambda number: to_line(start(number)), st.integers(0, 9)),
    st.just(to_line(start(0, resumed_from=None))),
    st.builds(lambda number: to_line(_bare(Eval, step=number, block_size=64, val_loss=3.0)), st.integers(0, 12)),
    st.builds(lambda number: to_line(Sample(step=number, tokens=None, prompt="", text="x")), st.integers(0, 12)),
    st.builds(lambda number: to_line(end(number, "finished")), st.integers(0, 12)),
    st.builds(lambda number: to_line(reading(number)), st.integers(0, 12)),
    st.sampled_from([b"\n", b"half a line\n", b'{"kind":"later","step":3}\n', b'{"kind":"step","step":4,"loss":1e60}\n',
        b'{"kind": "step", "step": 5, "loss": 2.5}\n', b'{"kind":"step","step":-5,"loss":2.5}\n', b"[" * 200 + b"\n"]),
)  # fmt: skip
rising = st.integers(1, 9).flatmap(
    lambda first: st.just(b"".join(to_line(step(number, loss=2.0)) for number in range(first, first + 30)))
)


def reading(number: int) -> CardReading:
    return CardReading(step=number, elapsed_seconds=float(number), temperature_c=60.0 + number, throttle=("heat",))


def seen(columns: Columns) -> list[str]:
    """The columns as text, in which NaN is NaN."""
    return [str(list(columns.step)), *(str(list(columns.values[name])) for name in COLUMNS)]


@given(st.lists(st.one_of(steps, others, rising), max_size=30), st.lists(st.integers(0, 9000), max_size=3))
def test_a_track_is_the_valid_records_wherever_it_was_cut(parts: list[bytes], cuts: list[int]) -> None:
    written = b"".join(parts)
    with TemporaryDirectory() as folder:
        track, place = Track(Path(folder)), 0
        for cut in [*sorted(cuts), len(written)]:
            with (Path(folder) / "records.jsonl").open("ab") as file:
                file.write(written[place:cut])
            place = max(place, min(cut, len(written)))
            columns, readings, rest = track.read()
    valid = each_step_once(read_lines(written.splitlines(keepends=True)).records)
    kept = [each for each in valid if isinstance(each, Step) and each.step >= 0 and (each.tokens or 0) >= 0]
    assert seen(columns) == seen(columns_of(kept))
    others = [each for each in valid if not isinstance(each, Step | CardReading)]
    assert [to_line(each) for each in rest] == [to_line(each) for each in others]
    assert Counter(readings_in(valid)) <= Counter(readings)  # one before an update of a lower number may stay


def test_readings_of_lost_updates_are_dropped_and_take_the_fast_way(tmp_path: Path) -> None:
    lines = [
        line
        for first, last in ((1, 400), (300, 900))
        for number in range(first, last)
        for line in (reading(number), step(number, loss=2.0))
    ]
    records = [start(0, resumed_from=None), *lines[:798], start(299), *lines[798:]]
    (tmp_path / "records.jsonl").write_bytes(b"".join(map(to_line, records)))
    columns, readings, rest = Track(tmp_path).read()
    assert list(columns.step) == list(range(1, 900))
    assert readings == readings_in(each_step_once(records))
    assert [each.step for each in readings] == [*range(1, 300), *range(300, 900)]
    assert [each.kind for each in rest] == ["start", "start"]


@pytest.mark.parametrize("said", [b"{", b"[]", b'{"kind":"card","step":true}', b'{"kind":"card","step":1e3}', b"5"])
def test_a_reading_that_makes_no_sense_is_passed_over(said: bytes) -> None:
    from onecard.ui.columns import _reading

    assert _reading(said) is None


def test_a_reading_says_only_numbers() -> None:
    from onecard.ui.columns import _reading

    found = _reading(b'{"kind":"card","step":3,"temperature_c":"hot","power_watts":1e400,"throttle":["heat",7]}')
    assert (found.temperature_c, found.power_watts, found.throttle) == (None, None, ("heat", "7"))


def test_a_file_that_was_replaced_or_cut_is_read_again(tmp_path: Path) -> None:
    records, track = tmp_path / "records.jsonl", Track(tmp_path)
    lines = [to_line(step(number, loss=2.0)) for number in range(1, 4000)]
    records.write_bytes(b"".join(lines))
    assert len(track.read()[0]) == 3999
    records.write_bytes(b"".join(lines[:10]))
    assert list(track.read()[0].step) == list(range(1, 11))
    records.unlink()
    (tmp_path / "new").write_bytes(b"".join(lines[:3000]))
    (tmp_path / "new").rename(records)
    assert len(track.read()[0]) == 3000


def test_what_the_trainer_writes_takes_the_fast_way() -> None:
    """Else a run page would be as slow as the whole reader."""
    from onecard.ui.columns import _LINE

    for rate in (None, 1e-05, 0.1, 3, math.nan):
        line = to_line(_bare(Step, step=7, loss=2.5, lr=rate, grad_norm=rate, seconds=0.5, elapsed_seconds=1e5))
        assert _LINE.fullmatch(line), json.loads(line)


def test_a_long_run_is_read_in_parts_until_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of 500 MB was begun anew for every question, and never answered."""
    from onecard.ui import answers
    from onecard.ui.sources import sources_in

    folder = make_run(tmp_path / "run", steps=3_000)
    (source,) = sources_in([folder])
    whole = answers.run(source, 0, None, None)
    answers._tracks.clear()
    monkeypatch.setattr(answers, "READ_SECONDS", 0.0)
    made, parts = None, 0
    while made is None:
        made, parts = answers.run(source, 0, None, None), parts + 1
    assert made == whole
    assert parts > 5

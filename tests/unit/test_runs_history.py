"""The history of a run: damage counted, resumes resolved, each step once."""

import pytest

from onecard.runs.history import each_step_once, read_lines
from onecard.runs.record_json import to_line
from onecard.runs.records import Eval, Oom, Record, Step, Unknown
from tests.made_records import end, evaluation, start, step


def seen(*history: Record) -> list[tuple[str, int | None]]:
    return [(record.kind, record.step) for record in each_step_once(history)]


@pytest.mark.parametrize("line", [b'{"kind":"st', b"\x00" * 40, b"\xff\xfe", b"[" * 100_000, b"9" * 5000, b"nan"])
def test_damaged_lines_are_counted_and_passed_over(line: bytes) -> None:
    history = read_lines([to_line(step(1)), line + b"\n", to_line(step(2))])
    assert history.records == (step(1), step(2))
    assert history.damaged_lines == 1


def test_empty_lines_are_not_damage() -> None:
    assert read_lines([b"\n", b"  \r\n", b""]).damaged_lines == 0


def test_an_undisturbed_run_is_seen_whole() -> None:
    history = (start(0, resumed_from=None), evaluation(0), step(1), step(2), evaluation(2), end(2, "finished"))
    assert each_step_once(history) == history


def test_a_resume_takes_back_the_steps_it_does_again() -> None:
    first = (start(0, resumed_from=None), step(1), step(2), step(3), evaluation(3))
    assert seen(*first, start(1), step(2), step(3)) == [
        ("start", 0),
        ("step", 1),
        ("start", 1),
        ("step", 2),
        ("step", 3),
    ]


def test_the_steps_done_again_are_the_later_ones() -> None:
    history = (start(0, resumed_from=None), step(1), step(2, loss=9.0), start(1), step(2, loss=5.0))
    assert [record.loss for record in each_step_once(history) if isinstance(record, Step)] == [3.0, 5.0]


def test_an_end_before_a_resume_was_not_the_end() -> None:
    assert seen(start(0, resumed_from=None), step(1), end(1), start(1), step(2)) == [
        ("start", 0),
        ("step", 1),
        ("start", 1),
        ("step", 2),
    ]


def test_resuming_from_an_older_checkpoint_takes_back_the_newer_start_too() -> None:
    history = (start(0, resumed_from=None), step(1), step(2), start(2), step(3), start(1), step(2))
    assert seen(*history) == [("start", 0), ("step", 1), ("start", 1), ("step", 2)]


def test_a_start_from_nothing_begins_anew() -> None:
    assert seen(start(0, resumed_from=None), evaluation(0), step(1), start(0, resumed_from=None)) == [("start", 0)]


def test_a_lost_start_is_seen_by_the_falling_step_number() -> None:
    assert seen(step(1), step(2), step(3), step(2), step(3)) == [("step", 1), ("step", 2), ("step", 3)]


def test_of_two_evaluations_of_a_step_the_last_counts() -> None:
    history = (
        step(1),
        evaluation(1, val_loss=9.0),
        start(1),
        evaluation(1, val_loss=5.0),
        evaluation(1, block_size=32),
    )
    evals = [record for record in each_step_once(history) if isinstance(record, Eval)]
    assert [(record.val_loss, record.block_size) for record in evals] == [(5.0, 64), (3.0, 32)]


def test_an_oom_stays_beside_the_step_it_was_in() -> None:
    oom = Oom(
        step=2,
        where="train",
        batch_size_before=8,
        batch_size_after=4,
        accumulation_before=1,
        accumulation_after=2,
        message="out of memory",
    )
    assert seen(step(1), oom, step(2)) == [("step", 1), ("oom", 2), ("step", 2)]
    assert seen(step(1), oom, start(1), step(2)) == [("step", 1), ("start", 1), ("step", 2)]


def test_unknown_records_beyond_a_resume_are_taken_back_and_others_stay() -> None:
    later, timeless = Unknown(kind="later", more={"step": 5}), Unknown(kind="note", more={})
    assert each_step_once((later, timeless, start(1))) == (timeless, start(1))

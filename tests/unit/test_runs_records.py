"""Records: strict JSON on disk, forgiving readers, each step once."""

import json
import math
from typing import Any

import pytest

from onecard.findings import Finding
from onecard.runs.records import (
    End,
    Eval,
    FindingRecord,
    NotARecord,
    Oom,
    Record,
    Start,
    Step,
    Unknown,
    each_step_once,
    from_json,
    from_line,
    read_lines,
    to_json,
    to_line,
)


def step(number: int, *, loss: float = 3.0, **changes: Any) -> Step:
    fields: dict[str, Any] = dict.fromkeys(
        ("lr", "grad_norm", "seconds", "elapsed_seconds", "tokens_per_second", "mfu", "allocated_bytes"), None
    )
    fields |= {"reserved_bytes": None, "data_wait_seconds": None, "tokens": number * 512} | changes
    return Step(step=number, loss=loss, **fields)


def start(number: int, *, resumed_from: str | None = "checkpoints/step") -> Start:
    return Start(
        step=number,
        config={"n_layer": 2},
        versions={"onecard": "0.1.0"},
        device="cpu",
        card=None,
        predicted_process_bytes=None,
        resumed_from=resumed_from,
    )


def evaluation(number: int, *, val_loss: float = 3.0, block_size: int = 64) -> Eval:
    fields: dict[str, Any] = dict.fromkeys(
        ("train_loss", "train_loss_error", "val_loss_error", "tokens_read", "seconds")
    )
    fields |= dict.fromkeys(("peak_allocated_bytes", "peak_reserved_bytes", "bits_per_byte", "tokens"))
    return Eval(step=number, val_loss=val_loss, block_size=block_size, **fields)


def end(number: int, reason: Any = "interrupted") -> End:
    return End(step=number, tokens=None, reason=reason, best_val_loss=None, seconds=None)


def seen(*history: Record) -> list[tuple[str, int | None]]:
    return [(record.kind, record.step) for record in each_step_once(history)]


def test_a_step_has_the_fields_of_the_contract() -> None:
    names = "kind step tokens loss lr grad_norm seconds elapsed_seconds tokens_per_second mfu allocated_bytes".split()
    assert list(to_json(step(1))) == [*names, "reserved_bytes", "data_wait_seconds"]


def test_an_eval_has_the_fields_of_the_contract() -> None:
    names = (
        "kind step tokens train_loss val_loss train_loss_error val_loss_error block_size tokens_read seconds".split()
    )
    assert list(to_json(evaluation(1))) == [*names, "peak_allocated_bytes", "peak_reserved_bytes", "bits_per_byte"]


@pytest.mark.parametrize(("value", "text"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")])
def test_a_loss_that_is_no_number_is_strict_json_and_comes_back(value: float, text: str) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    line = to_line(step(1, loss=value))
    assert json.loads(line, parse_constant=refuse)["loss"] == text
    read = from_line(line)
    assert isinstance(read, Step)
    assert repr(read.loss) == repr(value)


def test_an_unknown_loss_and_a_loss_of_nan_are_different() -> None:
    assert to_json(evaluation(1, val_loss=math.nan))["val_loss"] == "NaN"
    assert to_json(evaluation(1))["train_loss"] is None


def test_null_for_a_loss_is_read_as_nan() -> None:
    read = from_json({"kind": "step", "step": 1, "loss": None})
    assert isinstance(read, Step)
    assert math.isnan(read.loss)


def test_numbers_that_are_not_finite_deep_inside_are_strict_too() -> None:
    assert to_json(Unknown(kind="later", more={"a": [{"b": math.nan}]}))["a"] == [{"b": "NaN"}]


def test_fields_of_a_later_version_survive() -> None:
    value = {**to_json(step(3)), "surprise": {"deep": [1, None]}}
    assert to_json(from_json(value)) == value


def test_kinds_of_a_later_version_survive() -> None:
    value = {"kind": "hologram", "step": 3, "x": 1.5}
    record = from_json(value)
    assert isinstance(record, Unknown)
    assert record.step == 3
    assert to_json(record) == value


def test_an_end_for_a_reason_of_a_later_version_survives() -> None:
    assert to_json(from_json(to_json(end(3, "solar-flare"))))["reason"] == "solar-flare"


def test_a_finding_comes_back_whole() -> None:
    finding = Finding(
        rule="loss-spike", severity="warn", sure="low", what="a", why="b", fix="c", seen=("x",), patch={"n_layer": 3}
    )
    record = FindingRecord(step=7, finding=finding)
    assert from_line(to_line(record)) == record


def test_extra_fields_never_overwrite_known_ones() -> None:
    assert to_json(step(1, more={"step": 9, "kind": "x"}))["step"] == 1
    assert to_json(step(1, more={"step": 9, "kind": "x"}))["kind"] == "step"


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"kind": 3},
        {"kind": "step"},
        {"kind": "step", "step": "x", "loss": 1.0},
        {"kind": "step", "step": True, "loss": 1.0},
        {"kind": "step", "step": 1.5, "loss": 1.0},
        {"kind": "step", "step": 1, "loss": 10**400},
        {"kind": "step", "step": 1, "loss": "many"},
        {"kind": "finding", "step": 1, "finding": {"rule": "x"}},
        {"kind": "finding", "step": 1, "finding": 3},
        {"kind": "checkpoint", "step": 1, "path": "p", "reason": "r", "best": 1},
        {"kind": "start", "step": 1, "config": 3},
    ],
)
def test_what_is_no_record_is_refused(value: object) -> None:
    with pytest.raises(NotARecord):
        from_json(value)


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

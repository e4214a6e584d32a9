"""Records as JSON: strict on disk, forgiving readers."""

import json
import math
from dataclasses import replace

import pytest

from onecard.findings import Finding
from onecard.runs.record_json import NotARecord, from_json, from_line, to_json, to_line
from onecard.runs.records import CardReading, FindingRecord, Start, Step, Unknown
from tests.made_records import end, evaluation, start, step


def test_a_step_has_the_fields_of_the_contract() -> None:
    names = "kind step tokens loss lr grad_norm seconds elapsed_seconds tokens_per_second mfu allocated_bytes".split()
    assert list(to_json(step(1))) == [*names, "reserved_bytes", "data_wait_seconds"]


def test_an_eval_has_the_fields_of_the_contract() -> None:
    names = (
        "kind step tokens train_loss val_loss train_loss_error val_loss_error block_size tokens_read seconds".split()
    )
    assert list(to_json(evaluation(1))) == [*names, "peak_allocated_bytes", "peak_reserved_bytes", "bits_per_byte"]


def test_a_start_says_how_large_the_data_are_and_one_of_before_that_is_read() -> None:
    value = to_json(replace(start(0, resumed_from=None), train_tokens=9_614_604, val_tokens=498_612))
    assert (value["train_tokens"], value["val_tokens"]) == (9_614_604, 498_612)
    older = from_json({name: item for name, item in value.items() if name not in ("train_tokens", "val_tokens")})
    assert isinstance(older, Start)
    assert (older.train_tokens, older.val_tokens) == (None, None)


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


def test_a_reading_of_the_card_has_its_fields_and_comes_back() -> None:
    read = CardReading(step=7, elapsed_seconds=2.5, rank=0, temperature_c=66, throttle=("heat",), other_bytes=5)
    value = to_json(read)
    named = "temperature_c power_watts power_limit_watts sm_clock_mhz memory_clock_mhz throttle other_bytes".split()
    assert {"kind", "step", "elapsed_seconds", *named, "pcie_generation", "pcie_width"} <= value.keys()
    assert value["throttle"] == ["heat"]
    assert from_line(to_line(read)) == read
    assert from_json({"kind": "card", "step": 7}) == CardReading(step=7, elapsed_seconds=None), "nothing else is known"
    with pytest.raises(NotARecord):
        from_json({**value, "throttle": "heat"})

"""Speeds that were set aside before the rates were fitted: drawn at random, then measured on an H200.

Thirty-two were drawn and opened on 2026-11-15, timed on cores that other people's work shared: 30 lay inside the ranges
of that day. On 2026-11-16 the 24 of them that may wait for the host were measured again on quiet cores, with eight new
ones, and compared with rates fitted to other configs: 28 of these 32 lay inside. The other four led to two things that
nobody had counted: frames of 24 layers (`stumbles`) and eager float32's missing casts. Seven more were drawn for the
model that counts them, and predicted before they were measured. Their machine was busy. As first measured,
with loops within 1.15 of the fastest and no minimum number of steps, five lay inside. The rule was then changed to 1.3
and at least five steps: four rows met it, and lay inside. The three that did not were measured `again` under that rule,
with ten `blind` ones. One of the three lay outside, on a processor a fifth slower than the one the host's costs were
stated for; all ten lay inside. So these costs are now stated for the middle of the processors seen. Eleven `fresh` rows
were then drawn, predicted and measured: ten met the rule and lie inside, and so does the eleventh, measured `again`.
"""

import csv
from dataclasses import replace
from statistics import median

import pytest

from bench.quiet_core import parsed
from bench.speed_fit import kernels
from bench.speed_rows import CHECKS, GOLDEN, QUIET, QUIET_CHECK, Row, drawn_rows, h200_rows, profiled_rows
from onecard.plan.speed import predict_speed


def labelled(name: str) -> list[Row]:
    """Rows of one set of the quiet check."""
    with QUIET_CHECK.open() as file:
        names = [columns["set"] for columns in csv.DictReader(file)]
    rows = profiled_rows(QUIET_CHECK, timed=True)
    return [row for row, label in zip(rows, names, strict=True) if label == name]


DRAWN, NEW, LAST = drawn_rows(), labelled("new"), labelled("last")
AGAIN, BLIND, FRESH, FRESH_AGAIN = (labelled(name) for name in ("again", "blind", "fresh", "fresh again"))
SET_ASIDE = [*DRAWN, *NEW, *LAST, *BLIND, *FRESH]


def outside(rows: list[Row]) -> list[Row]:
    """Rows whose measured speed the predicted range does not hold."""
    found = []
    for row in rows:
        speed = predict_speed(row.config, row.card)
        assert speed
        assert speed.spread <= 0.20
        if not speed.tokens_per_second.contains(row.tokens_per_second):
            found.append(row)
    return found


def test_all_32_that_were_drawn_first_lie_inside_a_range_of_at_most_twenty_percent() -> None:
    assert len(DRAWN) == 32
    assert sum(row.pace != 1.0 for row in DRAWN) == 24  # measured on quiet cores
    assert not outside(DRAWN)


def test_the_eight_drawn_next_lie_inside() -> None:
    assert len(NEW) == 8
    assert not outside(NEW)


def test_of_the_last_seven_four_had_five_quiet_steps_and_lie_inside() -> None:
    timed = [row for row in LAST if row.step_seconds]
    assert (len(LAST), len(timed)) == (7, 4)
    assert not outside(timed)


def test_the_three_with_too_few_quiet_steps_lie_inside_when_measured_again() -> None:
    assert [row.config for row in AGAIN] == [row.config for row in LAST if not row.step_seconds]
    assert not outside(AGAIN)


def test_ten_drawn_blind_lie_inside() -> None:
    assert len(BLIND) == 10
    assert not outside(BLIND)


def test_of_eleven_drawn_when_the_costs_had_been_stated_for_the_middle_processor_all_lie_inside() -> None:
    told = [row for row in FRESH if row.step_seconds]
    assert (len(FRESH), len(told)) == (11, 10)
    assert [row.config for row in FRESH if not row.step_seconds] * 2 == [row.config for row in FRESH_AGAIN]
    assert not outside([*told, *FRESH_AGAIN])


def test_half_of_the_fresh_ones_are_within_four_percent() -> None:
    told = [row for row in FRESH if row.step_seconds]
    speeds = [(row.tokens_per_second, predict_speed(row.config, row.card)) for row in told]
    assert median(abs(speed.tokens_per_second.likely / seen - 1) for seen, speed in speeds if speed) < 0.04


def test_by_the_rule_under_which_they_were_measured_two_of_the_seven_lie_outside() -> None:
    """Two eager rows with one quiet step each; measured again, with five, they lie inside."""
    rows = []
    with QUIET_CHECK.open() as file:
        for columns in csv.DictReader(file):
            if columns["set"] == "last":
                timed = parsed(columns["steps"], float(columns["python_seconds"]))
                quiet = [seconds for seconds, loop in timed.steps if loop <= 1.15 * timed.fastest]
                rows.append(replace(LAST[len(rows)], step_seconds=median(quiet)))
    assert len(rows) == 7
    assert [row.config.compile for row in outside(rows)] == [False, False]


def test_as_first_measured_on_shared_cores_ten_of_the_32_lie_outside() -> None:
    assert len(outside([row for name in CHECKS for row in profiled_rows(GOLDEN / name, timed=True)])) == 10


@pytest.mark.parametrize("row", DRAWN[12:22], ids=lambda row: row.name)
def test_kernels_of_the_second_ten_are_counted_within_three_percent(row: Row) -> None:
    assert kernels(row.config) == pytest.approx(row.kernels, rel=0.03)


def test_no_fit_uses_them() -> None:
    fitted = {row.config for row in h200_rows()}
    assert not [row.name for row in SET_ASIDE if row.config in fitted]


@pytest.mark.parametrize("row", SET_ASIDE, ids=lambda row: row.name)
def test_kernels_are_counted_within_eleven_percent_and_in_float32_within_14_percent(row: Row) -> None:
    assert kernels(row.config) == pytest.approx(row.kernels, rel=0.14 if row.config.dtype == "float32" else 0.11)


def test_with_their_threads_on_any_core_the_same_processes_took_up_to_1_7_times_as_long() -> None:
    ratios, shared = [], []
    for path in (QUIET, QUIET_CHECK):
        with path.open() as file:
            free = [float(columns["free_seconds"]) for columns in csv.DictReader(file)]
        for row, seconds in zip(profiled_rows(path, timed=True), free, strict=True):
            if row.step_seconds:
                ratios.append(seconds / row.step_seconds)
                shared.append(Row(config=row.config, card=row.card, step_seconds=seconds))
    assert (min(ratios), median(ratios), max(ratios)) == pytest.approx((1.00, 1.37, 1.71), abs=0.01)
    assert (len(shared), len(outside(shared))) == (92, 59)  # so a range is for a processor that is the run's own
    speed = predict_speed(shared[0].config, shared[0].card)
    assert speed
    assert "1.7 times as long" in speed.basis


def test_kernels_do_not_depend_on_the_host() -> None:
    """The 24 measured twice, on two machines."""
    first = [row for name in CHECKS for row in profiled_rows(GOLDEN / name, timed=True)]
    pairs = [(row, other) for row, other in zip(first, DRAWN, strict=True) if other is not row and row.busy_seconds]
    ratios = [other.busy_seconds / row.busy_seconds for row, other in pairs if row.busy_seconds and other.busy_seconds]
    assert len(ratios) > 20
    assert ratios == pytest.approx([1.0] * len(ratios), abs=0.03)


def test_a_row_that_runs_at_half_speed_is_found_outside() -> None:
    row = DRAWN[0]
    assert row.step_seconds
    slow = Row(config=row.config, card=row.card, step_seconds=2 * row.step_seconds)
    assert outside([row, slow]) == [slow]

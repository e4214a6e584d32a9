"""Speeds that were set aside before the rates were fitted: drawn at random, measured on an idle H200 (2026-11-15).

The first twelve had been opened when launches were modelled anew; the ten drawn for that were opened after it.
"""

import pytest

from bench.measured import GOLDEN
from bench.speed_errors import Row, launches, profiled_rows
from onecard.plan.speed import predict_speed

FIRST = profiled_rows(GOLDEN / "nanogpt_h200_speed_check.csv", timed=True)
SECOND = profiled_rows(GOLDEN / "nanogpt_h200_speed_host_check.csv", timed=True)


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


def test_the_first_twelve_lie_inside_ranges_of_at_most_twenty_percent() -> None:
    assert len(FIRST) == 12
    assert [row.name for row in outside(FIRST)] == []


def test_nine_of_the_second_ten_lie_inside_and_one_was_launched_faster_than_any_row_of_the_fit() -> None:
    assert len(SECOND) == 10
    assert [row.name for row in outside(SECOND)] == ["10/6/384 16 × 512 bfloat16 compiled accumulation 4 bias"]


@pytest.mark.parametrize("row", SECOND, ids=lambda row: row.name.replace(" ", "-").replace("/", "_"))
def test_launches_of_the_second_ten_are_counted_within_three_percent(row: Row) -> None:
    assert launches(row.config) == pytest.approx(row.launches, rel=0.03)


def test_a_row_that_runs_at_half_speed_is_found_outside() -> None:
    row = FIRST[0]
    assert row.step_seconds
    slow = Row(config=row.config, card=row.card, step_seconds=2 * row.step_seconds)
    assert outside([row, slow]) == [slow]

"""Rows set aside before the descriptions were written, and only compared when they were done.

Measured on an NVIDIA H200, torch 2.11.0+cu130, 2026-11-15, by bench/nanogpt_memory.py. Shapes, batches, vocabularies,
dtypes and allocator settings drawn at random (nanogpt_h200_check.csv), and runs under a cap chosen between what they
allocate and what they would reserve (nanogpt_h200_caps*.csv).
"""

import pytest

from bench.measured import CARD, GOLDEN, Errors, Measured, measured_rows
from onecard.plan.memory.allocator import replay
from onecard.plan.memory.device import device_of
from onecard.plan.memory.nanogpt.compiled.run import compiled_tape

CHECK = measured_rows(GOLDEN / "nanogpt_h200_check.csv")
EAGER = [row for row in CHECK if not row.config.compile]
COMPILED = [row for row in CHECK if row.config.compile]
CAPPED = [*measured_rows(GOLDEN / "nanogpt_h200_caps.csv"), *measured_rows(GOLDEN / "nanogpt_h200_caps_check.csv")]


def named(row: Measured) -> str:
    return row.name.replace(" ", "-").replace("/", "_")


@pytest.mark.parametrize("row", CHECK, ids=named)
def test_training_and_later_evaluation_are_allocated_within_one_percent(row: Measured) -> None:
    assert abs(row.allocated_error("train")) < 0.01
    assert abs(row.allocated_error("eval")) < 0.01


@pytest.mark.parametrize("row", EAGER, ids=named)
def test_eager_first_evaluations_are_allocated_within_one_percent(row: Measured) -> None:
    assert abs(row.allocated_error("eval0")) < 0.01


@pytest.mark.parametrize("row", COMPILED, ids=named)
def test_compiled_first_evaluations_lie_between_a_warm_and_a_cold_cache(row: Measured) -> None:
    # rows of one batch share Inductor's cache on disk, so a kernel may have been tuned by another row before
    warm = replay(compiled_tape(row.config, device_of(CARD), cold=False), expandable_segments=row.expandable)
    low, high = sorted((warm.phases["eval0"].allocated_bytes, row.predicted.phases["eval0"].allocated_bytes))
    assert low * 0.99 < row.allocated_bytes("eval0") < high * 1.01


def test_eager_reserved_is_within_half_a_percent_on_nine_rows_of_ten_and_five_percent_on_all() -> None:
    errors = Errors.of(row.reserved_error(phase) for row in EAGER for phase in ("eval0", "train", "eval"))
    assert errors.nine_of_ten < 0.005
    assert errors.largest < 0.05


def test_compiled_reserved_is_within_eight_percent_on_nine_rows_of_ten() -> None:
    for phase in ("eval0", "train", "eval"):
        assert Errors.of(row.reserved_error(phase) for row in COMPILED).nine_of_ten < 0.08


@pytest.mark.parametrize("row", EAGER, ids=named)
def test_the_process_is_within_five_percent(row: Measured) -> None:
    assert abs(row.process_error) < 0.05


def test_the_compiled_process_is_within_five_percent_but_for_one_row() -> None:
    # 6/8/512 with V 32768 asks for one 160 MiB segment less than predicted: +5.8 %, not understood yet
    errors = Errors.of(row.process_error for row in COMPILED)
    assert errors.values[-2] < 0.05
    assert errors.largest < 0.06


@pytest.mark.parametrize("row", CAPPED, ids=named)
def test_under_a_cap_the_verdict_is_right(row: Measured) -> None:
    assert row.predicted.ok == row.ok
    if row.predicted.ran_out:
        assert row.predicted.ran_out.phase == row.columns["oom_phase"]

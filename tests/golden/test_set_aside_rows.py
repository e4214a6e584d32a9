"""Rows set aside before the descriptions were written, and only compared when they were done.

Measured on an NVIDIA H200, torch 2.11.0+cu130, 2026-11-15, by bench/nanogpt_memory.py. Shapes, batches, vocabularies,
dtypes and allocator settings drawn at random (nanogpt_h200_check.csv); test_capped_memory.py has those under a cap.
These rows shared Inductor's cache on disk: what one had timed, another did not time again. test_own_cache_rows.py has
rows with a cache each, as the plan assumes; a row that missed a limit here was measured again there, and counts as
measured there.
"""

import pytest

from bench.measured import CARD, GOLDEN, Errors, Measured, measured_rows
from onecard.plan.cards import device_of
from onecard.plan.memory.nanogpt.compiled.tape import compiled_tape
from onecard.plan.memory.replay import replay

CHECK = measured_rows(GOLDEN / "nanogpt_h200_check.csv")
EAGER = [row for row in CHECK if not row.config.compile]
COMPILED = [row for row in CHECK if row.config.compile]
MEASURED_AGAIN = {row.name: row for row in measured_rows(GOLDEN / "nanogpt_h200_own_cache.csv")}
WITH_A_SHARED_CACHE = {"6/8/512 T1024 B4x4 V32768 float16 compiled"}  # misses a limit as first measured


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
    warm = replay(compiled_tape(row.config, device_of(CARD), cold=False), expandable_segments=row.expandable)
    low, high = sorted((warm.phases["eval0"].allocated_bytes, row.predicted.phases["eval0"].allocated_bytes))
    assert low * 0.99 < row.allocated_bytes("eval0") < high * 1.01


def test_eager_reserved_is_within_half_a_percent_on_nine_rows_of_ten_and_five_percent_on_all() -> None:
    errors = Errors.of(row.reserved_error(phase) for row in EAGER for phase in ("eval0", "train", "eval"))
    assert errors.nine_of_ten < 0.005
    assert errors.largest < 0.05


def test_compiled_reserved_is_within_one_percent_on_nine_rows_of_ten() -> None:
    for phase in ("eval0", "train", "eval"):
        assert Errors.of(row.reserved_error(phase) for row in COMPILED).nine_of_ten < 0.01


@pytest.mark.parametrize("row", [row for row in CHECK if row.name not in WITH_A_SHARED_CACHE], ids=named)
def test_the_process_is_within_five_percent(row: Measured) -> None:
    assert abs(row.process_error) < 0.05


@pytest.mark.parametrize("name", sorted(WITH_A_SHARED_CACHE))
def test_the_process_is_exact_where_a_row_with_a_shared_cache_was_measured_again(name: str) -> None:
    (old,) = [row for row in CHECK if row.name == name]
    assert abs(old.process_error) > 0.05  # else it need not be told apart
    assert MEASURED_AGAIN[name].process_error == 0

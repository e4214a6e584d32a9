"""Predicted against measured: nanochat and Muon on an H200 (sm_90, torch 2.11), every row and phase.

onecard_h200_nanochat.csv: `python bench/onecard_rows.py --rows rows.csv --out onecard_h200_nanochat.csv --jobs 6`,
2026-11-18. All 18 rows were predicted before they were measured, and no row of either was measured before: every
figure of torch's was exact when it was opened. The process was 2 MiB off where Muon's products made a cuBLAS handle in
written-out passes (HANDLE_CONTEXT_BYTES in plan/memory/predict.py was set from these rows), and 16 MiB in float32.
"""

from __future__ import annotations

import pytest

from bench.measured import GOLDEN, Measured, measured_rows
from onecard.plan.memory.predict import PHASES
from onecard.units import MIB

ROWS = measured_rows(GOLDEN / "onecard_h200_nanochat.csv")


def test_both_models_and_both_optimizers_are_there() -> None:
    kinds = {(row.config.model, row.config.optimizer, row.config.dtype, row.config.grad_checkpoint) for row in ROWS}
    assert len(ROWS) == 18
    assert {("nanochat", "muon", "bfloat16", "none"), ("nanochat", "muon", "float16", "full")} <= kinds
    assert {("nanochat", "adamw", "float32", "none"), ("gpt2", "muon", "float16", "selective")} <= kinds


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "-").replace("/", "_"))
def test_every_phase_is_right_to_the_byte(row: Measured) -> None:
    assert row.ok
    assert not row.columns["note"], "a micro-batch was recorded"
    predicted = {phase: row.predicted.phases[phase] for phase in PHASES}
    assert {phase: each.allocated_bytes for phase, each in predicted.items()} == {
        phase: row.allocated_bytes(phase) for phase in PHASES
    }
    assert {phase: each.reserved_bytes for phase, each in predicted.items()} == {
        phase: row.reserved_bytes(phase) for phase in PHASES
    }


def test_the_process_is_exact_but_in_float32() -> None:
    errors = {row.name: round(row.process_error * row.process_bytes / MIB) for row in ROWS}
    assert {error for name, error in errors.items() if "float32" not in name} == {0}
    assert {error for name, error in errors.items() if "float32" in name} == {16}

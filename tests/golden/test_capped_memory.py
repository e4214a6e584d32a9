"""nanoGPT under a cap on an H200, eager and compiled: the predicted verdict, and the phase in which memory ran out.

nanogpt_h200.csv is the product's own set. The caps of nanogpt_h200_caps*.csv were chosen between what a run allocates
and what it would reserve, where the allocator decides; those of _caps_check were set aside, and only compared when the
descriptions were done (torch 2.11.0+cu130, 2026-11-15, bench/nanogpt_memory.py).
"""

import pytest

from bench.measured import GOLDEN, Measured, measured_rows

FILES = ("nanogpt_h200.csv", "nanogpt_h200_caps.csv", "nanogpt_h200_caps_check.csv")
CAPPED = [row for name in FILES for row in measured_rows(GOLDEN / name) if row.limit_bytes]


def named(row: Measured) -> str:
    return row.name.replace(" ", "-").replace("/", "_")


@pytest.mark.parametrize("row", CAPPED, ids=named)
def test_a_run_under_a_cap_fits_exactly_if_it_did(row: Measured) -> None:
    ran_out = row.predicted.ran_out
    assert row.predicted.ok == row.ok
    assert (ran_out.phase if ran_out else "") == row.columns["oom_phase"]

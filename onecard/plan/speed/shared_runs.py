"""Runs of our trainer that people timed with `tune` and sent, a line each: bench/add_shared.py checks and adds them."""

from __future__ import annotations

from onecard.plan.speed.measured_run import MeasuredRun

# fmt: off
SHARED_RUNS: tuple[MeasuredRun, ...] = (
)
# fmt: on

"""Measured speeds of our own trainer lie inside the predicted ranges.

NVIDIA H200, torch 2.11.0+cu130, 2026-11-16, by `python bench/onecard_rows.py --rows rows.csv --out out.csv --jobs 8
--speed`: eight rows timed one after the other (onecard_h200_speed.csv), and five that were drawn at random and set
aside (_check.csv; two more were of passes that have been written out since). bench_h200_fused.csv is `onecard bench`,
nanoGPT and ours in one session. Two numbers are fitted: what a byte of our own kernels takes, to the kernels of the
eight rows, and `sustained`, to the bench; all else is as for nanoGPT, or counted. _eager.csv are eight rows on cores
that nobody shared.
"""

import csv
from dataclasses import replace

import pytest

from bench.measured import GOLDEN
from bench.onecard_speed import H200, Row, error, fitted, measured_rows, side_by_side
from onecard.config.schema import RunConfig
from onecard.plan.memory.predict import predict_nanogpt, predict_onecard
from onecard.plan.speed import ONECARD_RUNS, nearest_measured, predict_speed
from onecard.plan.speed.predict import step_times
from onecard.plan.speed.rates import H200_RATES
from onecard.units import GIB

ROWS = measured_rows()


def named(row: Row) -> str:
    return row.name.replace(" ", "-").replace("/", "_")


def is_inside(row: Row) -> bool:
    speed = predict_speed(row.config, H200, "onecard")
    assert speed
    assert speed.spread <= 0.15
    return speed.tokens_per_second.contains(row.tokens_per_second)


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_measured_speeds_lie_inside_fifteen_percent(row: Row) -> None:
    assert is_inside(row)


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_measured_steps_are_within_twelve_percent(row: Row) -> None:
    assert abs(error(row)) < 0.12


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_without_the_fitted_number_nanogpts_rates_are_within_fifteen_percent(row: Row) -> None:
    unfitted = replace(H200_RATES, sustained=1.0)
    assert step_times(row.config, H200, unfitted, "onecard").step == pytest.approx(row.step_seconds, rel=0.15)


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_every_kind_of_kernel_is_about_right(row: Row) -> None:
    times = step_times(row.config, H200, replace(H200_RATES, sustained=1.0), "onecard")
    assert times.matmuls == pytest.approx(row.matmul_seconds, rel=0.12)
    assert times.attention == pytest.approx(row.attention_seconds, rel=0.12)
    assert times.memory_bound + times.loss + times.optimizer == pytest.approx(row.rest_seconds, rel=0.12)


@pytest.mark.parametrize("pair", side_by_side(), ids=lambda pair: str(pair[0].batch_size))
def test_the_two_trainers_compare_as_they_did_side_by_side(pair: tuple[RunConfig, float, RunConfig, float]) -> None:
    ours, seconds, theirs, their_seconds = pair
    first, second = predict_speed(ours, H200, "onecard"), predict_speed(theirs, H200)
    assert first
    assert second
    predicted = first.tokens_per_second.likely / second.tokens_per_second.likely
    assert predicted == pytest.approx(their_seconds / seconds, rel=0.04)


def test_the_fitted_number_is_what_the_fit_says() -> None:
    assert len(ROWS) == 8
    assert len(side_by_side()) == 3
    assert fitted().sustained == pytest.approx(H200_RATES.sustained, rel=0.005)


def test_a_row_that_runs_a_quarter_slower_is_found_outside() -> None:
    assert not is_inside(replace(ROWS[0], step_seconds=1.25 * ROWS[0].step_seconds))


def test_the_table_of_measured_runs_holds_every_row_of_the_default_chunk() -> None:
    timed = [(row.config, row.tokens_per_second) for row in ROWS if not row.config.loss_chunk]
    benched = [(bench_config(row), float(row["tokens_per_second"])) for row in RAN if is_ours(row)]
    firsts = dict([*timed, *benched])
    assert sorted(map(round, firsts.values())) == sorted(round(run.tokens_per_second) for run in ONECARD_RUNS)


def test_a_measured_row_is_its_own_nearest() -> None:
    selective = next(row for row in ROWS if row.config.grad_checkpoint == "selective")
    said, distance = nearest_measured(selective.config, H200, "onecard")
    assert distance == 0.0
    assert "selective recomputation" in said
    assert "the same here" in said


SET_ASIDE = measured_rows(GOLDEN / "onecard_h200_speed_check.csv")


@pytest.mark.parametrize("row", [row for row in SET_ASIDE if row.config.compile], ids=named)
def test_compiled_rows_set_aside_are_within_fifteen_percent(row: Row) -> None:
    """Drawn at random, and never in a fit."""
    speed = predict_speed(row.config, H200, "onecard")
    assert speed
    assert speed.tokens_per_second.likely == pytest.approx(row.tokens_per_second, rel=0.15)


def rows_of(name: str) -> list[dict[str, str]]:
    """Rows of `onecard bench`: nanoGPT and onecard in turn."""
    with (GOLDEN / name).open() as file:
        return list(csv.DictReader(file))


def bench_config(columns: dict[str, str]) -> RunConfig:
    sizes = "n_layer n_head n_embd block_size batch_size gradient_accumulation_steps vocab_size".split()
    keys = {key: int(columns[key]) for key in sizes}
    return RunConfig().replace({**keys, "dtype": columns["dtype"], "grad_checkpoint": columns["grad_checkpoint"]})


def bench_name(row: dict[str, str]) -> str:
    return "-".join(row.get(key) or "" for key in ("trainer", "n_embd", "block_size", "batch_size", "dtype", "seed"))


def is_ours(columns: dict[str, str]) -> bool:
    return columns["trainer"] == "onecard"


# The older two hold runs of ours, too, from before its passes were written out.
BENCHED = rows_of("bench_h200_fused.csv") + [
    row for name in ("bench_h200_12gib.csv", "bench_h200.csv") for row in rows_of(name) if not is_ours(row)
]
RAN = [row for row in BENCHED if row["tokens_per_second"]]


@pytest.mark.parametrize("columns", RAN, ids=bench_name)
def test_what_onecard_bench_measured_later_is_inside_the_ranges(columns: dict[str, str]) -> None:
    speed = predict_speed(bench_config(columns), H200, "onecard" if is_ours(columns) else "nanogpt")
    assert speed
    assert speed.spread <= (0.15 if is_ours(columns) else 0.20)
    assert speed.tokens_per_second.contains(float(columns["tokens_per_second"]))


@pytest.mark.parametrize("columns", [row for row in RAN if row.get("memory_limit")], ids=bench_name)
def test_the_plan_knew_what_ran_under_the_limit(columns: dict[str, str]) -> None:
    config = bench_config(columns)
    memory = predict_onecard(config, H200) if is_ours(columns) else predict_nanogpt(config, H200)
    assert memory.process_bytes == pytest.approx(int(columns["process_bytes"]), rel=0.05)
    assert memory.process_bytes < 12 * GIB


@pytest.mark.parametrize("columns", [row for row in RAN if is_ours(row)], ids=bench_name)
def test_the_plan_knew_our_process_to_the_byte(columns: dict[str, str]) -> None:
    memory = predict_onecard(bench_config(columns), H200)
    assert memory.process_bytes == int(columns["process_bytes"])
    assert memory.phases["train"].allocated_bytes == int(columns["allocated_bytes"])


EAGER = measured_rows(GOLDEN / "onecard_h200_speed_eager.csv")  # on quiet cores


@pytest.mark.parametrize("row", EAGER, ids=named)
def test_eager_rows_lie_inside_twenty_percent(row: Row) -> None:
    """Five of them gave `our_rerun_seconds`: all but those without recomputation."""
    speed = predict_speed(row.config, H200, "onecard")
    assert speed
    assert speed.spread <= 0.20
    assert speed.tokens_per_second.contains(row.tokens_per_second)


def test_eager_recomputation_doubles_a_step_that_waits_for_python() -> None:
    plain, selective, full = (
        next(
            row.step_seconds
            for row in EAGER
            if (row.config.n_layer, row.config.n_embd, row.config.grad_checkpoint) == (12, 384, mode)
        )
        for mode in ("none", "selective", "full")
    )
    assert (selective / plain, full / plain) == pytest.approx((2.3, 2.2), abs=0.05)

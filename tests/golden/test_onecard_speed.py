"""Measured speeds of our own trainer lie inside the predicted ranges.

NVIDIA H200, torch 2.11.0+cu130, 2026-11-16, by `python bench/onecard_rows.py --rows rows.csv --out out.csv --jobs 12
--speed`: twenty rows timed one after the other (onecard_h200_speed.csv). Twelve of these had been drawn at random and
set aside; two came out 15 and 22 % too fast, and the power limit is described since. Twelve more were drawn then and
are in no fit (the last of _check.csv; the first five are older, of compiled blocks and an eager run): -4.8 to +8.0 %
when they were opened, a little else now that float16 has an exponent of its own, by nanoGPT in `onecard bench`.
bench_h200_fused.csv is `onecard bench`, nanoGPT and ours in one command; what was benched at 124M is in the fit;
bench_h200_fused_check.csv is of the day after, and in none.
_eager.csv are eight rows on cores that nobody shared. _heads.csv (2026-11-20) are deep and narrow models, with heads of
32 to 256: the first thirteen led to attention's present description, which had most of them up to 50 % too fast; ten
were drawn at random and predicted before they were measured.
"""

import csv
from dataclasses import astuple, replace
from statistics import mean

import pytest

from bench.measured import GOLDEN
from bench.onecard_speed import error, evaluation_ratio, fit_evaluations
from bench.speed_fit import FITTED_N_EMBD, fit_power
from bench.speed_rows import BENCHED_CHECK, H200, OWN_HEADS, Row, benched_rows, own_rows, row_config
from onecard.config.schema import RunConfig
from onecard.plan.memory.predict import predict_nanogpt, predict_onecard
from onecard.plan.speed import ONECARD_RUNS, nearest_measured, predict_speed
from onecard.plan.speed.rates import H200_RATES
from onecard.plan.speed.times import step_times
from onecard.units import GIB

ROWS = own_rows()


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
def test_measured_steps_are_within_six_percent(row: Row) -> None:
    assert abs(error(row)) < 0.06


@pytest.mark.parametrize("row", own_rows(OWN_HEADS), ids=named)
def test_deep_and_narrow_models_are_within_twelve_percent_whatever_their_heads(row: Row) -> None:
    assert is_inside(row)
    assert abs(error(row)) < 0.12


def test_nine_of_the_ten_that_were_drawn_are_within_seven_percent() -> None:
    drawn = own_rows(OWN_HEADS)[-10:]
    assert sum(abs(error(row)) < 0.07 for row in drawn) == 9


def test_without_the_power_limit_the_steps_of_wide_models_are_not() -> None:
    unlimited = replace(H200_RATES, power=None)
    errors = [row.step_seconds / step_times(row.config, H200, unlimited, "onecard").step - 1 for row in ROWS]
    assert max(errors) > 0.2
    assert sum(each > 0.10 for each in errors) > len(ROWS) / 2


def check_kernels(row: Row, *, products: float, attention: float, rest: float) -> None:
    """Each kind of kernel's seconds, within a share of what was profiled."""
    times = step_times(row.config, H200, H200_RATES, "onecard")
    assert times.matmuls == pytest.approx(row.matmul_seconds, rel=products)
    assert times.attention == pytest.approx(row.attention_seconds, rel=attention)
    assert times.memory_bound + times.loss + times.optimizer == pytest.approx(row.rest_seconds, rel=rest)


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_every_kind_of_kernel_is_about_right(row: Row) -> None:
    """Of one profiled update after a pause: at higher clocks than in the steps, so most are predicted too long."""
    check_kernels(row, products=0.12, attention=0.30, rest=0.17)


BENCHED_ROWS = benched_rows()


@pytest.mark.parametrize("row", [row for row in BENCHED_ROWS if row.config.n_embd == FITTED_N_EMBD], ids=named)
def test_both_trainers_steps_in_a_bench_are_within_four_percent(row: Row) -> None:
    assert abs(error(row)) < 0.04


@pytest.mark.parametrize(
    "row", [row for row in BENCHED_ROWS if row.config.n_embd != FITTED_N_EMBD and row.trainer == "onecard"], ids=named
)
def test_our_steps_of_other_sizes_are_too_and_no_fit_uses_them(row: Row) -> None:
    assert abs(error(row)) < 0.04


BENCHED_LATER = benched_rows(BENCHED_CHECK)


@pytest.mark.parametrize("row", BENCHED_LATER, ids=named)
def test_both_trainers_steps_in_later_benches_are_too_and_no_fit_uses_them(row: Row) -> None:
    assert abs(error(row)) < 0.04


def test_the_fitted_numbers_are_what_the_fit_says() -> None:
    assert len(ROWS) == 20
    rates = fit_power()
    assert rates.power
    assert H200_RATES.power
    assert astuple(rates.power) == pytest.approx(astuple(H200_RATES.power), rel=0.005)
    assert rates.costs.written_out_byte == pytest.approx(H200_RATES.costs.written_out_byte, rel=0.005)


def test_a_row_that_runs_a_quarter_slower_is_found_outside() -> None:
    assert not is_inside(replace(ROWS[0], step_seconds=1.25 * ROWS[0].step_seconds))


SET_ASIDE = own_rows(GOLDEN / "onecard_h200_speed_check.csv")
COMPILED_ASIDE = [row for row in SET_ASIDE if row.config.compile]


def test_the_table_of_measured_runs_holds_every_compiled_row() -> None:
    benched = [row for row in (*BENCHED_ROWS, *BENCHED_LATER) if row.trainer == "onecard"]
    runs: dict[RunConfig, list[float]] = {}
    for row in [*ROWS, *COMPILED_ASIDE, *benched]:
        runs.setdefault(row.config, []).append(row.tokens_per_second)
    found = sorted(round(mean(speeds)) for speeds in runs.values())
    assert found == sorted(round(run.tokens_per_second) for run in ONECARD_RUNS)


def test_a_measured_row_is_its_own_nearest() -> None:
    selective = next(row for row in ROWS if row.config.grad_checkpoint == "selective")
    said, distance = nearest_measured(selective.config, H200, "onecard")
    assert distance == 0.0
    assert "selective recomputation" in said
    assert "the same config" in said


@pytest.mark.parametrize("row", COMPILED_ASIDE, ids=named)
def test_rows_set_aside_are_within_ten_percent(row: Row) -> None:
    """Drawn at random, and never in a fit."""
    assert is_inside(row)
    assert abs(error(row)) < 0.10


@pytest.mark.parametrize("row", COMPILED_ASIDE, ids=named)
def test_kinds_of_kernels_set_aside_are_less_sure(row: Row) -> None:
    """Attention of 2,048 tokens in float16 is predicted too long, narrow models' small kernels too short."""
    check_kernels(row, products=0.16, attention=0.35, rest=0.22)


def test_seventeen_were_set_aside_all_but_one_of_them_compiled() -> None:
    assert (len(SET_ASIDE), len(COMPILED_ASIDE)) == (17, 16)


def rows_of(*names: str) -> list[dict[str, str]]:
    """Rows of `onecard bench`: nanoGPT and onecard in turn."""
    return [row for name in names for row in csv.DictReader((GOLDEN / name).read_text().splitlines())]


def bench_config(columns: dict[str, str]) -> RunConfig:
    return row_config(columns).replace({"grad_checkpoint": columns["grad_checkpoint"]})


def bench_name(row: dict[str, str]) -> str:
    return "-".join(row.get(key) or "" for key in ("trainer", "n_embd", "block_size", "batch_size", "dtype", "seed"))


def is_ours(columns: dict[str, str]) -> bool:
    return columns["trainer"] == "onecard"


# The older two hold runs of ours, too, from before its passes were written out.
BENCHED = rows_of("bench_h200_fused.csv", "bench_h200_fused_check.csv") + [
    row for row in rows_of("bench_h200_12gib.csv", "bench_h200.csv") if not is_ours(row)
]
RAN = [row for row in BENCHED if row["tokens_per_second"]]


def waited_for_its_host(columns: dict[str, str]) -> bool:
    """nanoGPT's 350M in one of four commands: others kept the cores busy, and its steps took 0.33 to 0.40 s."""
    return columns["n_embd"] == "1024" and columns["tokens_per_second"] == "137391.6"


def test_one_run_of_nanogpt_waited_for_its_host_as_other_runs_of_it_show() -> None:
    (slow,) = [row for row in RAN if waited_for_its_host(row)]
    same = [row for row in RAN if bench_config(row) == bench_config(slow) and not is_ours(row) and row is not slow]
    assert [round(float(row["tokens_per_second"]), -3) for row in same] == [167_000, 166_000, 168_000]
    speed = predict_speed(bench_config(slow), H200)
    assert speed
    assert speed.tokens_per_second.likely == pytest.approx(167_000, rel=0.03)


@pytest.mark.parametrize("columns", [row for row in RAN if not waited_for_its_host(row)], ids=bench_name)
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


EAGER = own_rows(GOLDEN / "onecard_h200_speed_eager.csv")  # on quiet cores


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


EVALUATED = [*ROWS, *SET_ASIDE, *EAGER]


def test_most_evaluation_batches_are_within_twenty_percent_and_none_takes_twice_as_long() -> None:
    """Each was timed once, on cores that others used: what took far longer than others is not explained."""
    ratios = [evaluation_ratio(row) for row in EVALUATED]
    assert len(ratios) == 45
    assert sum(1 / 1.2 < each < 1.2 for each in ratios) >= 38
    assert max(ratios) < 2


def test_without_pythons_launches_small_evaluations_were_predicted_much_too_fast() -> None:
    before = replace(H200_RATES, our_evaluation_launch_seconds=16.7e-6, our_evaluation_batch_seconds=0.9e-3)
    ratios = [evaluation_ratio(row, before) for row in EVALUATED]
    assert sum(1 / 1.2 < each < 1.2 for each in ratios) < 30
    assert max(ratios) > 3.5


def test_the_costs_of_an_evaluation_are_what_rows_that_were_not_set_aside_say_too() -> None:
    fitted = fit_evaluations(ROWS)
    assert fitted.our_evaluation_launch_seconds == pytest.approx(48e-6, rel=0.1)
    assert fitted.our_evaluation_batch_seconds == pytest.approx(1.5e-3, rel=0.2)

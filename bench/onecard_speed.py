"""Predicted against measured speed of onecard's own trainer, and the fit of the card's power limit.

    PYTHONPATH=. python bench/onecard_speed.py                  # the profiled rows of tests/golden
    PYTHONPATH=. python bench/onecard_speed.py --fit            # fit the power limit again and print it
    PYTHONPATH=. python bench/onecard_speed.py --rows FILE      # rows of bench/onecard_rows.py --speed

Rates are nanoGPT's (bench/speed_errors.py). Four numbers are fitted here, to the steps of twenty rows of ours and of
both trainers in `onecard bench` at 124M: what the power limit takes (`Power`), and a byte of our own kernels.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from pathlib import Path

from bench.speed_errors import GOLDEN, H200, POWER_NAMES, Row, fitted, row_config
from onecard.plan.speed import predict_speed
from onecard.plan.speed.predict import step_times
from onecard.plan.speed.rates import H200_RATES, Power, Rates

ROWS = GOLDEN / "onecard_h200_speed.csv"
BENCH = GOLDEN / "bench_h200_fused.csv"
FITTED_N_EMBD = 768  # of what was benched
# Round values that the fit starts from and is loosely held to.
START = replace(
    H200_RATES,
    costs=replace(H200_RATES.costs, written_out_byte=0.85),
    power=Power(free_share=0.33, exponent=0.25, float16_exponent=0.25),
)


def measured_rows(path: Path = ROWS) -> list[Row]:
    """Rows of bench/onecard_rows.py --speed that ran as they were asked to: a micro-batch may have been halved."""
    with path.open() as file:
        rows = [columns for columns in csv.DictReader(file) if columns["ok"] == "True"]
    return [_row(columns) for columns in rows if columns["micro_batch"] == columns["batch_size"]]


def _row(columns: dict[str, str]) -> Row:
    seconds = {kind: float(columns[f"{kind}_seconds"]) for kind in "step gemm attention triton loss other".split()}
    chunk = int(columns["loss_chunk"]) if columns["loss_chunk"] else None
    config = row_config(columns).replace({"grad_checkpoint": columns["grad_checkpoint"], "loss_chunk": chunk})
    return Row(
        config,
        H200,
        step_seconds=seconds["step"],
        matmul_seconds=seconds["gemm"],
        attention_seconds=seconds["attention"],
        rest_seconds=seconds["triton"] + seconds["loss"] + seconds["other"],
        trainer="onecard",
    )


def benched_rows(path: Path = BENCH) -> list[Row]:
    """What `onecard bench` timed, of both trainers."""
    with path.open() as file:
        ran = [columns for columns in csv.DictReader(file) if columns["tokens_per_second"]]
    return [_benched(columns) for columns in ran]


def _benched(columns: dict[str, str]) -> Row:
    config = row_config(columns).replace({"grad_checkpoint": columns["grad_checkpoint"]})
    trainer = "onecard" if columns["trainer"] == "onecard" else "nanogpt"
    return Row(config, H200, config.tokens_per_step / float(columns["tokens_per_second"]), trainer=trainer)


def fit_power() -> Rates:
    """The H200's rates, with what the power limit takes by steps of both trainers.

    Kernels of one profiled update, after a pause, ran at higher clocks: of these only the rest counts, by which
    `written_out_byte` is told from the limit.
    """
    ours = [replace(row, matmul_seconds=None, attention_seconds=None) for row in measured_rows()]
    both = [row for row in benched_rows() if row.config.n_embd == FITTED_N_EMBD]
    return fitted(START, [*ours, *both], ["written_out_byte", *POWER_NAMES], rounds=40)


def error(row: Row) -> float:
    """Error of tokens per second of a row, as predicted."""
    assert row.step_seconds
    return row.step_seconds / step_times(row.config, H200, H200_RATES, row.trainer).step - 1


def table() -> str:
    """Markdown: every row, as predicted; part of docs/explain/speed.md."""
    lines = ["| config | measured tokens/s | predicted | error |", "|---|---|---|---|"]
    for row in measured_rows():
        measured, predicted = row.tokens_per_second, row.tokens_per_second * (1 + error(row))
        lines.append(f"| {row.name} | {measured:,.0f} | {predicted:,.0f} | {error(row):+.1%} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--rows", type=Path)
    args = parser.parse_args()
    if args.fit:
        rates = fit_power()
        print(rates.power, f"written_out_byte={rates.costs.written_out_byte:.3f}")
        return
    for row in [*measured_rows(args.rows or ROWS), *([] if args.rows else benched_rows())]:
        speed = predict_speed(row.config, H200, row.trainer)
        assert speed
        inside = "inside" if speed.tokens_per_second.contains(row.tokens_per_second) else "OUTSIDE"
        print(f"{row.trainer} {row.name:75} tokens/s {error(row):+.1%} {inside} ±{speed.spread:.0%}{_kinds(row)}")


def _kinds(row: Row) -> str:
    """How far each kind of kernel is off, where they were told apart."""
    if not (row.matmul_seconds and row.attention_seconds and row.rest_seconds):
        return ""
    times = step_times(row.config, H200, H200_RATES, row.trainer)
    kernels = {
        "products": times.matmuls / row.matmul_seconds,
        "attention": times.attention / row.attention_seconds,
        "rest": (times.memory_bound + times.loss + times.optimizer) / row.rest_seconds,
    }
    return "; kernels: " + " ".join(f"{kind} {ratio - 1:+.1%}" for kind, ratio in kernels.items())


if __name__ == "__main__":
    main()

"""Predicted against measured speed of onecard's own trainer, and each row's error when it is left out of the fit.

    PYTHONPATH=. python bench/onecard_speed.py                  # the rows the one fitted number comes from
    PYTHONPATH=. python bench/onecard_speed.py --rows FILE      # rows of bench/onecard_rows.py --speed, as predicted

Rates are nanoGPT's; only `sustained` is fitted to these rows. nanoGPT itself, timed in the same session, took longer
than its rates say; that share is the session's, and is taken off, so that the two trainers compare as they did there.
Left out means: fitted without the row and without every other row that differs from it in accumulation, chunk or 16-bit
type alone.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean

from bench.speed_errors import profiled_rows
from onecard.config.schema import RunConfig
from onecard.plan.cards import find_card
from onecard.plan.speed import predict_speed
from onecard.plan.speed.predict import step_times
from onecard.plan.speed.rates import H200_RATES, Rates

ROWS = Path(__file__).parents[1] / "tests" / "golden" / "onecard_h200_speed.csv"
BESIDE = ROWS.with_name("nanogpt_h200_beside_onecard.csv")
H200 = find_card("H200")
_WHOLE = "n_layer n_head n_embd block_size batch_size gradient_accumulation_steps vocab_size loss_chunk".split()


@dataclass(frozen=True)
class Row:
    """One timed run of our trainer on an H200, and its kernels of one profiled step by kind."""

    config: RunConfig
    step_seconds: float
    matmul_seconds: float
    attention_seconds: float
    rest_seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.config.tokens_per_step / self.step_seconds

    @property
    def name(self) -> str:
        c = self.config
        mode = "compiled" if c.compile else "eager"
        words = [f"{c.n_layer}/{c.n_head}/{c.n_embd} {c.batch_size} × {c.block_size} {c.dtype} {mode}"]
        words += [f"accumulation {c.gradient_accumulation_steps}"]
        words += [c.grad_checkpoint] * (c.grad_checkpoint != "none") + [f"chunk {c.loss_chunk}"] * bool(c.loss_chunk)
        return " ".join(words)

    def like(self, other: Row) -> bool:
        """Whether two rows differ in accumulation, chunk or which 16-bit type alone."""
        same = {"gradient_accumulation_steps": 1, "loss_chunk": None, "dtype": "bfloat16"}
        halves = self.config.dtype != "float32" and other.config.dtype != "float32"
        return halves and self.config.replace(same) == other.config.replace(same)


def measured_rows(path: Path = ROWS) -> list[Row]:
    """Rows of bench/onecard_rows.py --speed that ran as they were asked to: a micro-batch may have been halved."""
    with path.open() as file:
        rows = [columns for columns in csv.DictReader(file) if columns["ok"] == "True"]
    return [_row(columns) for columns in rows if columns["micro_batch"] == columns["batch_size"]]


def _row(columns: dict[str, str]) -> Row:
    seconds = {kind: float(columns[f"{kind}_seconds"]) for kind in "step gemm attention triton loss other".split()}
    keys = {key: int(columns[key]) for key in _WHOLE if columns[key]}
    switches = {key: columns[key] == "True" for key in ("bias", "compile")}
    rest = {"dtype": columns["dtype"], "dropout": float(columns["dropout"])}
    return Row(
        config=RunConfig().replace({**keys, **switches, **rest, "grad_checkpoint": columns["grad_checkpoint"]}),
        step_seconds=seconds["step"],
        matmul_seconds=seconds["gemm"],
        attention_seconds=seconds["attention"],
        rest_seconds=seconds["triton"] + seconds["loss"] + seconds["other"],
    )


def predicted_seconds(row: Row, rates: Rates = H200_RATES) -> float:
    """Seconds of a step, as predicted."""
    return step_times(row.config, H200, rates, "onecard").step


@cache
def session() -> float:
    """How much longer than predicted nanoGPT took when our rows were timed, as a logarithm."""
    rows = profiled_rows(BESIDE, timed=True)
    return mean(
        math.log(row.step_seconds / step_times(row.config, H200, H200_RATES).step) for row in rows if row.step_seconds
    )


def fitted(rows: Sequence[Row]) -> Rates:
    """The H200's rates with `sustained` in the middle of the rows, were it not for the session."""
    rates = replace(H200_RATES, sustained=1.0)
    for _ in range(5):  # the waiting at the end of a step does not scale with it
        off = mean(math.log(row.step_seconds / predicted_seconds(row, rates)) for row in rows) - session()
        rates = replace(rates, sustained=rates.sustained * math.exp(off))
    return rates


def left_out_error(row: Row, rows: Sequence[Row]) -> float:
    """Error of tokens per second of a row that is not in the fit."""
    without = fitted([other for other in rows if not row.like(other)])
    return row.step_seconds / predicted_seconds(row, without) - 1


def error(row: Row) -> float:
    """Error of tokens per second of a row, as predicted."""
    return row.step_seconds / predicted_seconds(row) - 1


def table() -> str:
    """Markdown: every row, as predicted and left out; part of docs/explain/speed.md."""
    rows = measured_rows()
    lines = ["| config | measured tokens/s | predicted | error | left out of the fit |", "|---|---|---|---|---|"]
    for row in rows:
        measured, predicted = row.tokens_per_second, row.tokens_per_second * (1 + error(row))
        left_out = left_out_error(row, rows)
        lines.append(f"| {row.name} | {measured:,.0f} | {predicted:,.0f} | {error(row):+.1%} | {left_out:+.1%} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path)
    args = parser.parse_args()
    rows = measured_rows(args.rows or ROWS)
    print(f"nanoGPT in the same session: {math.expm1(session()):+.1%} seconds")
    print(f"sustained {fitted(rows).sustained:.4f} fits these rows; rates.py has {H200_RATES.sustained}")
    for row in rows:
        speed = predict_speed(row.config, H200, "onecard")
        assert speed
        left_out = "never in it" if args.rows else f"left out {left_out_error(row, rows):+.1%}"
        times = step_times(row.config, H200, H200_RATES, "onecard")
        kernels = {
            "products": times.matmuls / row.matmul_seconds,
            "attention": times.attention / row.attention_seconds,
            "rest": (times.memory_bound + times.loss + times.optimizer) / row.rest_seconds,
        }
        inside = "inside" if speed.tokens_per_second.contains(row.tokens_per_second) else "OUTSIDE"
        shown = " ".join(f"{kind} {ratio - 1:+.1%}" for kind, ratio in kernels.items())
        print(f"{row.name:70} tokens/s {error(row):+.1%} {inside} ±{speed.spread:.0%}, {left_out}; kernels: {shown}")


if __name__ == "__main__":
    main()

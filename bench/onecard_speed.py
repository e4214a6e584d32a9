"""Predicted against measured speed of onecard's own trainer.

    PYTHONPATH=. python bench/onecard_speed.py                  # the profiled rows of tests/golden
    PYTHONPATH=. python bench/onecard_speed.py --rows FILE      # rows of bench/onecard_rows.py --speed

Rates are nanoGPT's; only `sustained` is ours. It is fitted to neither of these rows but to `onecard bench`, which times
both trainers in one session: predicted, they compare as they did there.
"""

from __future__ import annotations

import argparse
import csv
import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from onecard.config.schema import RunConfig
from onecard.plan.cards import find_card
from onecard.plan.speed import predict_speed
from onecard.plan.speed.predict import step_times
from onecard.plan.speed.rates import H200_RATES, Rates

ROWS = Path(__file__).parents[1] / "tests" / "golden" / "onecard_h200_speed.csv"
BESIDE = ROWS.with_name("bench_h200_fused.csv")
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


def side_by_side() -> list[tuple[RunConfig, float, RunConfig, float]]:
    """Ours and nanoGPT's best of one command: config and seconds a step of each."""
    with BESIDE.open() as file:
        ran = [row for row in csv.DictReader(file) if row["tokens_per_second"] and row["n_embd"] == "768"]
    timed = [(row["trainer"], _benched(row)) for row in ran]
    (theirs,) = [found for trainer, found in timed if trainer == "nanogpt"]
    return [(*ours, *theirs) for trainer, ours in timed if trainer == "onecard"]


def _benched(columns: dict[str, str]) -> tuple[RunConfig, float]:
    config = RunConfig().replace({key: int(columns[key]) for key in _WHOLE if columns.get(key)} | {"dtype": "bfloat16"})
    return config, config.tokens_per_step / float(columns["tokens_per_second"])


def fitted() -> Rates:
    """The H200's rates with a `sustained` by which the two trainers compare as they did."""
    rates = replace(H200_RATES, sustained=1.0)
    for _ in range(5):  # the waiting at the end of a step does not scale with it
        off = mean(
            math.log(seconds / step_times(ours, H200, rates, "onecard").step)
            - math.log(their_seconds / step_times(theirs, H200, rates).step)
            for ours, seconds, theirs, their_seconds in side_by_side()
        )
        rates = replace(rates, sustained=rates.sustained * math.exp(off))
    return rates


def error(row: Row) -> float:
    """Error of tokens per second of a row, as predicted."""
    return row.step_seconds / step_times(row.config, H200, H200_RATES, "onecard").step - 1


def table() -> str:
    """Markdown: every row, as predicted; part of docs/explain/speed.md."""
    lines = ["| config | measured tokens/s | predicted | error |", "|---|---|---|---|"]
    for row in measured_rows():
        measured, predicted = row.tokens_per_second, row.tokens_per_second * (1 + error(row))
        lines.append(f"| {row.name} | {measured:,.0f} | {predicted:,.0f} | {error(row):+.1%} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path)
    args = parser.parse_args()
    rows = measured_rows(args.rows or ROWS)
    print(f"sustained {fitted().sustained:.4f} by `onecard bench`; rates.py has {H200_RATES.sustained}")
    for row in rows:
        speed = predict_speed(row.config, H200, "onecard")
        assert speed
        times = step_times(row.config, H200, H200_RATES, "onecard")
        kernels = {
            "products": times.matmuls / row.matmul_seconds,
            "attention": times.attention / row.attention_seconds,
            "rest": (times.memory_bound + times.loss + times.optimizer) / row.rest_seconds,
        }
        inside = "inside" if speed.tokens_per_second.contains(row.tokens_per_second) else "OUTSIDE"
        shown = " ".join(f"{kind} {ratio - 1:+.1%}" for kind, ratio in kernels.items())
        print(f"{row.name:70} tokens/s {error(row):+.1%} {inside} ±{speed.spread:.0%}; kernels: {shown}")


if __name__ == "__main__":
    main()

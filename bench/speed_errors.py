"""Predicted against measured speed of nanoGPT, and each row's error when it is left out of the fit.

    PYTHONPATH=. python bench/speed_errors.py               # every row, as fitted and left out
    PYTHONPATH=. python bench/speed_errors.py --fit         # fit the H200's rates again and print them
    PYTHONPATH=. python bench/speed_errors.py --markdown    # the table of docs/explain/speed.md
    PYTHONPATH=. python bench/speed_errors.py --rows FILE   # rows of bench/nanogpt_speed.py, predicted as they are

Left out means: the rates are fitted again without the row and without every other row of the same config, then
predict it. The fit is least squares on logarithms (Levenberg-Marquardt) over seconds per step and over the kernels'
seconds by kind.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import median

import numpy as np

from bench.quiet_core import parsed
from onecard.config.schema import RunConfig
from onecard.plan.cards import Card, find_card
from onecard.plan.speed.measured import MEASURED_RUNS, MeasuredRun
from onecard.plan.speed.nanogpt import nanogpt_step
from onecard.plan.speed.predict import host_update_seconds, predict_speed, step_times
from onecard.plan.speed.rates import (
    ADA_GEFORCE_RATES,
    H200_RATES,
    Host,
    Power,
    Rates,
    matmul_flops_per_second,
    work_seconds,
)
from onecard.plan.speed.work import Costs, TrainerName

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
H200, RTX_4070 = find_card("H200"), find_card("RTX 4070")
_WHOLE = "n_layer n_head n_embd block_size batch_size gradient_accumulation_steps vocab_size".split()


@dataclass(frozen=True)
class Row:
    """One measured run; None for what was not measured, or not on an idle machine."""

    config: RunConfig
    card: Card
    step_seconds: float | None
    matmul_seconds: float | None = None  # kernels of one step, by kind
    attention_seconds: float | None = None
    rest_seconds: float | None = None
    kernels: float | None = None  # that ran in one step
    update_seconds: float | None = None  # clipping and AdamW alone
    evaluation_seconds: float | None = None  # one evaluation batch
    pace: float = 1.0  # how long its processor took for what the others' took one second
    trainer: TrainerName = "nanogpt"

    @property
    def name(self) -> str:
        c, mode = self.config, "compiled" if self.config.compile else "eager"
        shape = f"{c.n_layer}/{c.n_head}/{c.n_embd} {c.batch_size} × {c.block_size}"
        odd = [f"V {c.vocab_size}"] * (c.vocab_size != 50304) + [f"dropout {c.dropout:g}"] * bool(c.dropout)
        odd += ["bias"] * c.bias + [c.grad_checkpoint] * (c.grad_checkpoint != "none")
        odd += [f"chunk {c.loss_chunk}"] * bool(c.loss_chunk)
        return " ".join([shape, c.dtype, mode, f"accumulation {c.gradient_accumulation_steps}", *odd])

    @property
    def busy_seconds(self) -> float | None:
        """Seconds of all kernels of a step, where they were told apart."""
        kinds = (self.matmul_seconds, self.attention_seconds, self.rest_seconds)
        return None if None in kinds else sum(each for each in kinds if each)

    @cached_property
    def tokens_per_second(self) -> float:
        assert self.step_seconds
        return self.config.tokens_per_step / self.step_seconds

    def same_config(self, other: Row) -> bool:
        """Whether two rows differ in accumulation or in which 16-bit type alone."""
        mine, its = (row.config.replace({"gradient_accumulation_steps": 1}) for row in (self, other))
        halves = {"bfloat16": "half", "float16": "half"}
        same_type = halves.get(mine.dtype, mine.dtype) == halves.get(its.dtype, its.dtype)
        return same_type and mine == its.replace({"dtype": mine.dtype}) and self.card == other.card


def row_config(columns: dict[str, str]) -> RunConfig:
    """The config of a measured row."""
    switches = {key: columns[key] == "True" for key in ("bias", "compile")}
    rest = {"dtype": columns["dtype"], "dropout": float(columns["dropout"])}
    return RunConfig().replace({key: int(columns[key]) for key in _WHOLE} | switches | rest)


# Of bench/quiet_core.py, on the processor that the host's costs are stated for: the middle of what sets of rows met,
# whose medians are 1.47 ms (most of the fit), 1.52, 1.60, 1.67, 1.67 and 1.71.
LOOP_SECONDS = 1.6e-3


def profiled_rows(path: Path, *, timed: bool) -> list[Row]:
    """Rows of bench/nanogpt_speed.py; not `timed` if the machine was not idle, so that only kernels count."""
    with path.open() as file:
        found = [columns for columns in csv.DictReader(file) if columns["ok"] == "True"]
    rows = []
    for columns in found:
        kinds = {kind: float(columns[f"{kind}_seconds"]) for kind in "gemm attention triton loss other".split()}
        mixed = kinds["attention"] == 0.0  # the first batch counted float32 attention as products
        quiet = "steps" in columns  # otherwise timed on cores that others shared: right where the card decides
        rows.append(
            Row(
                config=row_config(columns),
                card=H200,
                step_seconds=_step_seconds(columns) if timed else None,
                matmul_seconds=None if mixed else kinds["gemm"],
                attention_seconds=None if mixed else kinds["attention"],
                rest_seconds=kinds["triton"] + kinds["loss"] + kinds["other"],
                kernels=int(columns["kernels"]),
                update_seconds=float(columns["update_seconds"]) if quiet else None,
                evaluation_seconds=float(columns["eval_iter_seconds"]) if quiet else None,
                pace=float(columns["python_seconds"]) / LOOP_SECONDS if quiet else 1.0,
            )
        )
    return rows


def _step_seconds(columns: dict[str, str]) -> float | None:
    if "steps" in columns:
        return parsed(columns["steps"], float(columns["python_seconds"])).seconds
    return float(columns["step_seconds"])


CHECKS = (  # drawn at random, and set aside
    "nanogpt_h200_speed_check.csv",
    "nanogpt_h200_speed_host_check.csv",
    "nanogpt_h200_speed_host_kinds_check.csv",
)
QUIET, QUIET_CHECK = GOLDEN / "nanogpt_h200_speed_quiet.csv", GOLDEN / "nanogpt_h200_speed_quiet_check.csv"


def drawn_rows() -> list[Row]:
    """All 32 configs set aside by 2026-11-15, as measured on quiet cores; as drawn where the card decides."""
    quiet = profiled_rows(QUIET_CHECK, timed=True)
    drawn = (row for name in CHECKS for row in profiled_rows(GOLDEN / name, timed=True))
    return [next((other for other in quiet if other.config == row.config), row) for row in drawn]


def quiet_rows() -> list[Row]:
    """One row, of medians, for each config that the host's costs are fitted to."""
    with QUIET.open() as file:
        names = [columns["set"] for columns in csv.DictReader(file)]
    rows = [row for row, name in zip(profiled_rows(QUIET, timed=True), names, strict=True) if name != "both passes"]
    configs = dict.fromkeys(row.config for row in rows if row.step_seconds)
    return [median_row([row for row in rows if row.config == config]) for config in configs]


def median_row(rows: list[Row]) -> Row:
    """One row for several measurements of a config: the median of everything measured."""
    names = [field.name for field in fields(Row) if field.name not in ("config", "card", "trainer")]
    measured = {name: [value for row in rows if (value := getattr(row, name)) is not None] for name in names}
    return replace(rows[0], **{name: median(values) if values else None for name, values in measured.items()})


def first_rows() -> list[Row]:
    """The eight rows of the memory measurements that were timed."""
    with (GOLDEN / "nanogpt_h200.csv").open() as file:
        timed = [columns for columns in csv.DictReader(file) if columns["tokens_per_second"]]
    configs = [(row_config(columns), float(columns["tokens_per_second"])) for columns in timed]
    return [Row(config, H200, config.tokens_per_step / speed) for config, speed in configs]


def run_row(run: MeasuredRun) -> Row:
    """A measured run of the table, as a row."""
    keys = {key: getattr(run, key) for key in (*_WHOLE, "dtype", "dropout", "compile", "bias")}
    config = RunConfig().replace(keys)
    return Row(config, find_card(run.card), config.tokens_per_step / run.tokens_per_second)


_KERNEL_NAMES = ("matmul_seconds", "attention_seconds", "rest_seconds")


def h200_rows() -> list[Row]:
    """Everything the H200's rates are fitted to: kernels and steps that the card decides, then steps on quiet cores."""
    quiet = [replace(row, **dict.fromkeys(_KERNEL_NAMES)) for row in quiet_rows()]
    again = {row.config for row in quiet}
    clean = profiled_rows(GOLDEN / "nanogpt_h200_speed.csv", timed=True)
    host = profiled_rows(GOLDEN / "nanogpt_h200_speed_host.csv", timed=True)
    busy = profiled_rows(GOLDEN / "nanogpt_h200_speed_kernels.csv", timed=False)
    more = [row for row in busy if not any(row.config == other.config for other in clean)]
    shared = [*first_rows(), *clean, *host, *more]
    return [*(replace(row, step_seconds=None) if row.config in again else row for row in shared), *quiet]


def rtx_4070_rows() -> list[Row]:
    """The two public runs the GeForce rates are fitted to, and a third that only checks them."""
    return [run_row(run) for run in MEASURED_RUNS if run.card == RTX_4070.name]


# --- the fit ---------------------------------------------------------------------------------------------------------

RATE_NAMES = (
    "matmul_share float32_matmul_share attention_share float32_attention_share kernel_seconds product_seconds "
    "roofline_power"
).split()
HOST_NAMES = list(Host.__dataclass_fields__)
COST_NAMES = [name for name in Costs.__dataclass_fields__ if name != "written_out_byte"]  # that is our trainer's
POWER_NAMES = list(Power.__dataclass_fields__)  # fitted to both trainers' steps by bench/onecard_speed.py
# Round values the fit starts from and is loosely held to, instead of the fitted ones, so that a row left out does not
# speak through them. Those of an addition, a micro-batch or a sequence changed by 1.5 move no left-out error by half a
# point.
START = replace(
    H200_RATES,
    matmul_share=0.8,
    float32_matmul_share=0.8,
    attention_share=0.5,
    float32_attention_share=0.5,
    kernel_seconds=2e-6,
    product_seconds=4e-6,
    roofline_power=2.0,
    host=Host(
        launch_seconds=20e-6,
        addition_seconds=10e-6,
        micro_batch_seconds=0.5e-3,
        sequence_seconds=0.05e-3,
        update_seconds=1e-3,
        tensor_seconds=10e-6,
        step_seconds=2e-3,
        stumble_seconds=15e-6,
    ),
    costs=Costs(pointwise_flops=1000, loss_flops=100, attention_flops=100, dropout_flops=300),
    power=None,  # what it takes of nanoGPT's kernels is in the other numbers
)
SETTLED = 1e-6  # share of the squares: a round that takes off less changes nothing more
# A step's time counts most; kernels of one kind and updates alone tell the parts apart.
STEP_WEIGHT, MATMUL_WEIGHT, ATTENTION_WEIGHT, REST_WEIGHT, UPDATE_WEIGHT, PRIOR_WEIGHT = 1.0, 0.5, 0.3, 0.4, 0.3, 0.03


def kernels(config: RunConfig) -> float:
    """Kernels that run in one step, as predicted."""
    work, micros = nanogpt_step(config, config.dtype, H200_RATES.costs), config.gradient_accumulation_steps
    return micros * work.micro_batch.whole.runs + (micros - 1) * work.accumulation.runs + work.update.runs


def update_alone_seconds(config: RunConfig, card: Card, rates: Rates) -> float:
    """Seconds of an update on an idle card: AdamW runs when the host is through, clipping before that."""
    work, unclipped = (
        nanogpt_step(each, each.dtype, rates.costs) for each in (config, config.replace({"grad_clip": 0.0}))
    )
    adamw = work_seconds(unclipped.update, card, rates, matmul_flops_per_second(card, rates, config.dtype))
    return host_update_seconds(work, rates.host) + adamw


def paced(rates: Rates, row: Row) -> Rates:
    """The rates as the processor of a row allows."""
    host = {name: row.pace * getattr(rates.host, name) for name in HOST_NAMES}
    return replace(rates, host=Host(**host))


def residuals(rates: Rates, rows: Iterable[Row]) -> list[float]:
    """Weighted logarithms of predicted over measured."""
    found = []
    for row in rows:
        rates_here = paced(rates, row)
        times = step_times(row.config, row.card, rates_here, row.trainer)
        for weight, predicted, measured in (
            (STEP_WEIGHT, times.step, row.step_seconds),
            (MATMUL_WEIGHT, times.matmuls, row.matmul_seconds),
            (ATTENTION_WEIGHT, times.attention, row.attention_seconds),
            (REST_WEIGHT, times.memory_bound + times.loss + times.optimizer, row.rest_seconds),
            (UPDATE_WEIGHT, update_alone_seconds(row.config, row.card, rates_here), row.update_seconds),
        ):
            if measured:
                found.append(weight * math.log(predicted / measured))
    return found


def fitted(start: Rates, rows: list[Row], names: list[str], rounds: int = 25) -> Rates:
    """Rates with the named coefficients moved to least squares over the rows, held loosely near where they start."""

    def owner(name: str) -> Host | Costs | Power | Rates:
        parts = (start.host, start.costs, start.power)
        return next((part for part in parts if part and name in part.__dataclass_fields__), start)

    def rates_at(logs: np.ndarray) -> Rates:
        values = {name: float(value) for name, value in zip(names, np.exp(logs), strict=True)}

        def moved(part: Host | Costs | Power | Rates) -> dict[str, float]:
            return {name: value for name, value in values.items() if owner(name) is part}

        power = replace(start.power, **moved(start.power)) if start.power else None
        host, costs = replace(start.host, **moved(start.host)), replace(start.costs, **moved(start.costs))
        return replace(start, **moved(start), host=host, costs=costs, power=power)

    origin = np.log([getattr(owner(name), name) for name in names])

    def errors(logs: np.ndarray) -> np.ndarray:
        return np.concatenate([residuals(rates_at(logs), rows), PRIOR_WEIGHT * (logs - origin)])

    here, step, damping = origin, 1e-4, 0.01
    now = errors(here)
    for _ in range(rounds):
        slopes = np.stack([(errors(here + step * unit) - now) / step for unit in np.eye(len(names))], axis=1)
        normal = slopes.T @ slopes
        move = np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-9), -slopes.T @ now)
        there = here + np.clip(move, -0.3, 0.3)
        then = errors(there)
        gained = 1 - (then @ then) / (now @ now)
        here, now, damping = (there, then, damping / 3) if gained > 0 else (here, now, damping * 4)
        if 0 < gained < SETTLED:
            break
    return rates_at(here)


def fit_h200(rows: list[Row], start: Rates = START) -> Rates:
    """The H200's rates; the bandwidth's share was read off single kernels and stays."""
    return fitted(start, rows, [*RATE_NAMES, *HOST_NAMES, *COST_NAMES])


def fit_geforce(rows: list[Row]) -> Rates:
    """The GeForce rates: one number, the products' share of the published peak."""
    return fitted(replace(ADA_GEFORCE_RATES, matmul_share=1.0), rows, ["matmul_share"])


# --- the errors ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Error:
    """Errors of tokens per second: predicted over measured, less one."""

    row: Row
    predicted: float  # tokens per second
    built: float
    left_out: float | None


def errors_of(rows: list[Row], fit_rows: list[Row], fit: Callable[[list[Row]], Rates], rates: Rates) -> list[Error]:
    """Every timed row, as predicted and as predicted by a fit without it."""
    found = []
    for row in rows:
        if row.step_seconds is None:
            continue
        others = [other for other in fit_rows if not row.same_config(other)]
        without = None if len(others) == len(fit_rows) else replace(fit(others), power=rates.power)
        predicted = row.config.tokens_per_step / step_times(row.config, row.card, paced(rates, row)).step
        left_out = (
            row.step_seconds / step_times(row.config, row.card, paced(without, row)).step - 1 if without else None
        )
        found.append(Error(row, predicted, predicted / row.tokens_per_second - 1, left_out))
    return found


def all_errors() -> list[Error]:
    """Errors of all rows the rates come from, and of the one that only checks them."""
    h200, rtx_4070 = h200_rows(), rtx_4070_rows()
    return [
        *errors_of(h200, h200, fit_h200, H200_RATES),
        *errors_of(rtx_4070, rtx_4070[:2], fit_geforce, ADA_GEFORCE_RATES),
    ]


def markdown(errors: list[Error]) -> str:
    """The table of docs/explain/speed.md."""
    lines = [
        "| card | config | measured tokens/s | predicted | error | left out of the fit |",
        "|---|---|---|---|---|---|",
    ]
    for e in errors:
        left_out = f"{e.left_out:+.1%}" if e.left_out is not None else "never in it"
        lines.append(
            f"| {e.row.card.name} | {e.row.name} | {e.row.tokens_per_second:,.0f} | {e.predicted:,.0f} | "
            f"{e.built:+.1%} | {left_out} |"
        )
    return "\n".join(lines) + "\n"


def verdict(row: Row) -> str:
    """How far a row is from what is predicted, and whether its range holds it."""
    speed = predict_speed(row.config, row.card)
    assert speed
    if row.step_seconds is None:
        return "not told: too few quiet steps"
    inside = "inside" if speed.tokens_per_second.contains(row.tokens_per_second) else "OUTSIDE"
    return f"{speed.tokens_per_second.likely / row.tokens_per_second - 1:+.1%} {inside} ±{speed.spread:.0%}"


def kind_errors(row: Row, rates: Rates) -> str:
    """How far each kind of kernel, and each thing timed, is off."""
    times = step_times(row.config, row.card, rates)
    kinds = {
        "products": (times.matmuls, row.matmul_seconds),
        "attention": (times.attention, row.attention_seconds),
        "rest": (times.memory_bound + times.loss + times.optimizer, row.rest_seconds),
        "update": (update_alone_seconds(row.config, row.card, rates), row.update_seconds),
        "step": (times.step, row.step_seconds),
        "evaluation": (times.evaluation / 2 / row.config.eval_iters, row.evaluation_seconds),
    }
    return " ".join(f"{kind} {p / m - 1:+.1%}" if m else f"{kind} -" for kind, (p, m) in kinds.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--rows", type=Path)
    args = parser.parse_args()
    if args.fit:
        print(fit_h200(h200_rows()))
        print(fit_geforce(rtx_4070_rows()[:2]))
    elif args.markdown:
        print(markdown(all_errors()), end="")
    elif args.rows:
        for row in profiled_rows(args.rows, timed=True):
            print(f"{row.name:70} tokens/s {verdict(row)}; seconds: {kind_errors(row, H200_RATES)}")
    else:
        for row in h200_rows():
            print(f"{row.name:70} seconds: {kind_errors(row, H200_RATES)}")
        for e in all_errors():
            left_out = f"{e.left_out:+.1%}" if e.left_out is not None else "-"
            print(f"{e.row.card.name:18} {e.row.name:70} tokens/s {e.built:+.1%}, left out {left_out}")


if __name__ == "__main__":
    main()

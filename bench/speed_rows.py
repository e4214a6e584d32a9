"""Measured speeds of both trainers, read from tests/golden and from the table of public runs."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import median

from bench.quiet_core import parsed
from onecard.config.schema import RunConfig
from onecard.plan.cards import Card, find_card
from onecard.plan.speed import MEASURED_RUNS, PUBLIC_RUNS, MeasuredRun
from onecard.plan.speed.work import TrainerName

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
    pace: float = 1.0  # its processor's loop time divided by LOOP_SECONDS
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
        """Seconds of all kernels of a step, if they were measured by kind."""
        kinds = (self.matmul_seconds, self.attention_seconds, self.rest_seconds)
        return None if None in kinds else sum(each for each in kinds if each)

    @cached_property
    def tokens_per_second(self) -> float:
        assert self.step_seconds
        return self.config.tokens_per_step / self.step_seconds

    def same_config(self, other: Row) -> bool:
        """Whether two rows differ only in accumulation or in the 16-bit type."""
        mine, its = (row.config.replace({"gradient_accumulation_steps": 1}) for row in (self, other))
        halves = {"bfloat16": "half", "float16": "half"}
        same_type = halves.get(mine.dtype, mine.dtype) == halves.get(its.dtype, its.dtype)
        return same_type and mine == its.replace({"dtype": mine.dtype}) and self.card == other.card


def row_config(columns: dict[str, str]) -> RunConfig:
    """The config of a measured row."""
    switches = {key: columns[key] == "True" for key in ("bias", "compile")}
    rest = {"dtype": columns["dtype"], "dropout": float(columns["dropout"])}
    named = {key: columns[key] for key in ("model", "optimizer") if columns.get(key)}
    return RunConfig().replace({key: int(columns[key]) for key in _WHOLE} | switches | rest | named)


# Of the loop in bench/quiet_core.py, on the processor that the host's costs are stated for. It is in the middle of the
# sets of rows, whose medians are 1.47 ms (most of the fit), 1.52, 1.60, 1.67, 1.67 and 1.71.
LOOP_SECONDS = 1.6e-3


def profiled_rows(path: Path, *, timed: bool) -> list[Row]:
    """Rows of bench/nanogpt_speed.py. Not `timed` if the machine was not idle: then only kernels count."""
    with path.open() as file:
        found = [columns for columns in csv.DictReader(file) if columns["ok"] == "True"]
    rows = []
    for columns in found:
        kinds = {kind: float(columns[f"{kind}_seconds"]) for kind in "gemm attention triton loss other".split()}
        mixed = kinds["attention"] == 0.0  # the first batch counted float32 attention as products
        quiet = "steps" in columns  # if not, timed on shared cores: valid where the card decides
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


CHECKS = (  # drawn at random and set aside
    "nanogpt_h200_speed_check.csv",
    "nanogpt_h200_speed_host_check.csv",
    "nanogpt_h200_speed_host_kinds_check.csv",
)
QUIET, QUIET_CHECK = GOLDEN / "nanogpt_h200_speed_quiet.csv", GOLDEN / "nanogpt_h200_speed_quiet_check.csv"


def drawn_rows() -> list[Row]:
    """All 32 configs set aside by 2026-11-15, as measured on quiet cores; as first measured where the card decides."""
    quiet = profiled_rows(QUIET_CHECK, timed=True)
    drawn = (row for name in CHECKS for row in profiled_rows(GOLDEN / name, timed=True))
    return [next((other for other in quiet if other.config == row.config), row) for row in drawn]


def quiet_rows() -> list[Row]:
    """One row of medians for each config that the host's costs are fitted to."""
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


def public_rows() -> list[Row]:
    """Every public run, of any card."""
    return [*rtx_4070_rows(), *map(run_row, PUBLIC_RUNS)]


OWN = GOLDEN / "onecard_h200_speed.csv"
OWN_CHECK, OWN_EAGER = GOLDEN / "onecard_h200_speed_check.csv", GOLDEN / "onecard_h200_speed_eager.csv"
OWN_HEADS = GOLDEN / "onecard_h200_speed_heads.csv"
BENCHED = GOLDEN / "bench_h200_fused.csv"
BENCHED_CHECK = GOLDEN / "bench_h200_fused_check.csv"  # in no fit


def own_rows(path: Path = OWN) -> list[Row]:
    """Rows of bench/onecard_rows.py --speed that ran as asked; in others a micro-batch was halved."""
    with path.open() as file:
        rows = [columns for columns in csv.DictReader(file) if columns["ok"] == "True"]
    return [_own_row(columns) for columns in rows if columns["micro_batch"] == columns["batch_size"]]


def _own_row(columns: dict[str, str]) -> Row:
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
        evaluation_seconds=float(columns["eval_iter_seconds"]) if columns.get("eval_iter_seconds") else None,
        trainer="onecard",
    )


def benched_rows(path: Path = BENCHED) -> list[Row]:
    """What `onecard bench` timed, for both trainers."""
    with path.open() as file:
        ran = [columns for columns in csv.DictReader(file) if columns["tokens_per_second"]]
    return [_benched(columns) for columns in ran]


def _benched(columns: dict[str, str]) -> Row:
    config = row_config(columns).replace({"grad_checkpoint": columns["grad_checkpoint"]})
    trainer = "onecard" if columns["trainer"] == "onecard" else "nanogpt"
    return Row(config, H200, config.tokens_per_step / float(columns["tokens_per_second"]), trainer=trainer)

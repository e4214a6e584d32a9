"""Measured rows of nanoGPT and of our own trainer beside onecard's predictions: for golden tests and docs.

python bench/measured.py tests/golden/nanogpt_h200.csv      # the error of every row, the worst first
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from onecard.config.schema import RunConfig
from onecard.paper.tape import Tape
from onecard.plan.cards import device_of, find_card
from onecard.plan.memory.onecard.tape import onecard_tape
from onecard.plan.memory.predict import PHASES, context_of_onecard, nanogpt_tape
from onecard.plan.memory.replay import Replay, replay
from onecard.units import GIB

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
CARD = find_card("H200")
EVAL_ITERS = 3  # of bench/onecard_rows.py
_ONECARD = ("loss_chunk", "eval_batch_size", "eval_block_size")
_WHOLE = "n_layer n_head n_embd block_size batch_size gradient_accumulation_steps vocab_size".split()


@dataclass(frozen=True)
class Measured:
    """One measured run: its config, and bytes by phase."""

    columns: dict[str, str]

    @property
    def is_onecard(self) -> bool:
        """Whether our own trainer was measured (bench/onecard_rows.py), not nanoGPT."""
        return "grad_checkpoint" in self.columns

    @cached_property
    def config(self) -> RunConfig:
        row = self.columns
        switches = {key: row.get(key) == "True" for key in ("bias", "compile")}
        rest: dict[str, object] = {"dtype": row["dtype"], "dropout": float(row.get("dropout") or 0.0)}
        if self.is_onecard:
            rest |= {"grad_checkpoint": row["grad_checkpoint"], "expandable_segments": self.expandable}
            rest |= {key: int(row[key]) for key in _ONECARD if row.get(key)} | {"eval_iters": EVAL_ITERS}
            rest |= {key: row[key] for key in ("model", "optimizer") if row.get(key)}
        return RunConfig().replace({key: int(row[key]) for key in _WHOLE} | switches | rest)

    @property
    def name(self) -> str:
        c, mode = self.config, "compiled" if self.config.compile else "eager"
        extras = [f"dropout {c.dropout:g}"] * bool(c.dropout) + ["bias"] * c.bias + ["expandable"] * self.expandable
        extras += [f"cap {cap} GiB" for cap in [self.columns.get("cap_gib")] if cap]
        if self.is_onecard:
            extras = [
                *(each for each in (c.model, c.optimizer) if each not in ("gpt2", "adamw")),
                c.grad_checkpoint,
                *[f"chunk {c.loss_chunk}"] * bool(c.loss_chunk),
                *extras,
            ]
        shape = f"{c.n_layer}/{c.n_head}/{c.n_embd} T{c.block_size} B{c.batch_size}x{c.gradient_accumulation_steps}"
        return " ".join([f"{shape} V{c.vocab_size} {c.dtype} {mode}", *extras])

    @property
    def ok(self) -> bool:
        return self.columns["ok"] == "True"

    @property
    def expandable(self) -> bool:
        return self.columns.get("expandable_segments", str(self.is_onecard)) == "True"

    @property
    def limit_bytes(self) -> int | None:
        return int(float(self.columns["cap_gib"]) * GIB) if self.columns.get("cap_gib") else None

    def allocated_bytes(self, phase: str) -> int:
        return int(self.columns[f"{phase}_alloc"])

    def reserved_bytes(self, phase: str) -> int:
        return int(self.columns[f"{phase}_reserved"])

    @property
    def process_bytes(self) -> int:
        return int(self.columns["process_bytes"])

    @cached_property
    def tape(self) -> Tape:
        if self.is_onecard:
            return onecard_tape(self.config, device_of(CARD), rounds=1)
        return nanogpt_tape(self.config, device_of(CARD))

    @cached_property
    def predicted(self) -> Replay:
        return replay(self.tape, expandable_segments=self.expandable, limit_bytes=self.limit_bytes)

    def allocated_error(self, phase: str) -> float:
        return self.predicted.phases[phase].allocated_bytes / self.allocated_bytes(phase) - 1

    def reserved_error(self, phase: str) -> float:
        return self.predicted.phases[phase].reserved_bytes / self.reserved_bytes(phase) - 1

    @property
    def process_error(self) -> float:
        if not self.is_onecard:
            return (self.predicted.reserved_bytes + CARD.context_bytes) / self.process_bytes - 1
        # bench/onecard_rows.py reads it after the updates, before the last evaluation
        reserved_bytes = max(self.predicted.phases[phase].reserved_bytes for phase in ("eval0", "train"))
        return (reserved_bytes + context_of_onecard(self.config, CARD)) / self.process_bytes - 1


@cache
def measured_rows(path: Path) -> list[Measured]:
    """Every row of a measurement; read once, so each row is predicted once."""
    with path.open() as file:
        return [Measured(row) for row in csv.DictReader(file)]


@dataclass(frozen=True)
class Errors:
    """Absolute relative errors of one quantity over many rows."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, errors: Iterable[float]) -> Errors:
        return cls(tuple(sorted(abs(error) for error in errors)))

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def nine_of_ten(self) -> float:
        """The error that nine rows of ten stay within."""
        return self.values[max(0, -(-9 * len(self.values) // 10) - 1)]

    @property
    def largest(self) -> float:
        return self.values[-1]

    @property
    def exact(self) -> int:
        return sum(value == 0 for value in self.values)


def main() -> None:
    for path in sys.argv[1:]:
        rows = [row for row in measured_rows(Path(path)) if row.ok and row.predicted.ok]
        for compiled in (False, True):
            chosen = [row for row in rows if row.config.compile == compiled]
            for phase in PHASES:
                for what in ("allocated", "reserved"):
                    errors = Errors.of(getattr(row, f"{what}_error")(phase) for row in chosen)
                    mode = "compiled" if compiled else "eager"
                    print(
                        f"{Path(path).stem} {mode:8} {phase:5} {what:9} {len(chosen)} rows: median {errors.median:.3%} "
                        f"nine of ten {errors.nine_of_ten:.3%}, largest {errors.largest:.2%}, {errors.exact} exact"
                    )
        for row in sorted(rows, key=lambda row: -max(abs(row.allocated_error(p)) for p in PHASES))[:10]:
            shown = " ".join(f"{p} {row.allocated_error(p):+.2%}/{row.reserved_error(p):+.2%}" for p in PHASES)
            print(f"  {row.name}: {shown}")
        for row in measured_rows(Path(path)):
            if row.limit_bytes and row.predicted.ok != row.ok:
                print(f"  WRONG VERDICT {row.name}: measured {'ok' if row.ok else 'out of memory'}")


if __name__ == "__main__":
    main()

"""What happened in a run, one record at a time: typed values, of which records.jsonl holds one a line.

`None` means "not known". `more` holds what is known beside these fields: what a later version recorded, or what the log
of another program says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from onecard.findings import Finding

EndReason = Literal["finished", "interrupted", "max_hours", "out-of-memory", "diverged", "error"]
OomPlace = Literal["train", "eval"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Training begins after `step` updates. In a file that goes on, it takes back what was recorded beyond `step`."""

    kind: ClassVar[str] = "start"
    step: int
    config: Mapping[str, object]
    versions: Mapping[str, object]  # of onecard, torch, python
    device: str
    card: str | None
    predicted_process_bytes: int | None  # the plan's figure, to hold against what is measured
    resumed_from: str | None  # the checkpoint; None for a run from the beginning
    train_tokens: int | None = None  # of the data, in each split; folders of older versions do not say
    val_tokens: int | None = None
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One update: `step` is the number of updates done, `tokens` all that were read so far."""

    kind: ClassVar[str] = "step"
    step: int
    tokens: int | None
    loss: float  # mean over all micro-batches, in nats per token
    lr: float | None
    grad_norm: float | None  # before clipping
    seconds: float | None
    elapsed_seconds: float | None
    tokens_per_second: float | None
    mfu: float | None  # share of the card's dense peak, 0 to 1
    allocated_bytes: int | None
    reserved_bytes: int | None  # the highest so far
    data_wait_seconds: float | None  # of `seconds`, spent waiting for data
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Eval:
    """Losses in nats per token on fixed windows of both splits, with their standard errors."""

    kind: ClassVar[str] = "eval"
    step: int
    tokens: int | None
    train_loss: float | None
    val_loss: float | None
    train_loss_error: float | None
    val_loss_error: float | None
    block_size: int | None  # losses at different lengths do not compare
    tokens_read: int | None
    seconds: float | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    bits_per_byte: float | None  # of val_loss, where the tokenizer is known
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A checkpoint is complete on disk; `path` is relative to the run folder."""

    kind: ClassVar[str] = "checkpoint"
    step: int
    tokens: int | None
    path: str
    seconds: float | None
    reason: str
    best: bool
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Oom:
    """The card ran out of memory at `step`; the sizes after are those of the next attempt, None for giving up."""

    kind: ClassVar[str] = "oom"
    step: int
    where: OomPlace
    batch_size_before: int
    batch_size_after: int | None
    accumulation_before: int | None  # gradient_accumulation_steps; None in evaluation
    accumulation_after: int | None
    message: str
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingRecord:
    """The doctor, watching, found something at `step`."""

    kind: ClassVar[str] = "finding"
    step: int
    finding: Finding
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """Training stopped; a run without one was killed, or still runs."""

    kind: ClassVar[str] = "end"
    step: int
    tokens: int | None
    reason: EndReason
    best_val_loss: float | None
    seconds: float | None
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unknown:
    """A record of a kind this version does not know, kept as it is."""

    kind: str
    more: Mapping[str, object]

    @property
    def step(self) -> int | None:
        step = self.more.get("step")
        return step if type(step) is int else None


Record = Start | Step | Eval | Checkpoint | Oom | FindingRecord | End | Unknown
KINDS: dict[str, type[Any]] = {
    record.kind: record for record in (Start, Step, Eval, Checkpoint, Oom, FindingRecord, End)
}

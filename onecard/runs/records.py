"""What happened in a run, as typed records; records.jsonl holds one per line.

`None` means "not known". `more` holds values that have no field here: from a later version, or from another program's
log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from onecard.findings import Finding

EndReason = Literal["finished", "interrupted", "max_hours", "stop_after_worse", "out-of-memory", "diverged", "error"]
OomPlace = Literal["train", "eval"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Training starts after `step` updates. After a resume, earlier records beyond `step` are no longer valid."""

    kind: ClassVar[str] = "start"
    step: int
    config: Mapping[str, object]
    versions: Mapping[str, object]  # of onecard, torch, python
    device: str
    card: str | None
    predicted_process_bytes: int | None  # the plan's figure, to compare with the measured one
    resumed_from: str | None  # the checkpoint; None for a new run
    train_tokens: int | None = None  # in each split of the data; None in folders of older versions
    val_tokens: int | None = None
    cards: int | None = None  # that train together; None in folders of older versions, and without a card
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One update: `step` is the number of updates done, `tokens` the number of tokens read so far."""

    kind: ClassVar[str] = "step"
    step: int
    tokens: int | None
    loss: float  # mean over all micro-batches, in nats per token
    lr: float | None
    grad_norm: float | None  # before clipping
    seconds: float | None
    elapsed_seconds: float | None
    tokens_per_second: float | None
    mfu: float | None  # fraction of the card's dense peak, 0 to 1
    allocated_bytes: int | None
    reserved_bytes: int | None  # the highest so far
    data_wait_seconds: float | None  # the part of `seconds` spent waiting for data
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
    block_size: int | None  # losses at different lengths are not comparable
    tokens_read: int | None
    seconds: float | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    bits_per_byte: float | None  # from val_loss, if the tokenizer is known
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A text that the model of `step` wrote, always from the same prompt and seed; `text` begins with the prompt."""

    kind: ClassVar[str] = "sample"
    step: int
    tokens: int | None
    prompt: str  # empty where the model began the text itself
    text: str
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class CardReading:
    """A rank's card during the update `step`, as NVML told; every few seconds, and only while the run updates."""

    kind: ClassVar[str] = "card"
    step: int
    elapsed_seconds: float | None  # of training, as in `Step`
    rank: int | None = None  # whose card; 0 of a run in one process
    temperature_c: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    default_power_limit_watts: float | None = None  # as the card is sold
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttle: tuple[str, ...] | None = None  # why the clock is lower than it could be; () if for no reason
    busy: float | None = None  # share of the last moment in which any kernel ran, 0 to 1
    other_bytes: int | None = None  # held by other programs
    other_busy: float | None = None  # share of the time of the card that other programs took, 0 to 1
    pcie_generation: int | None = None
    pcie_width: int | None = None  # lanes
    max_pcie_generation: int | None = None  # that card and machine can do
    max_pcie_width: int | None = None
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
    """The card ran out of memory at `step`. The sizes `_after` are those of the next attempt, None if it gave up."""

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
    """The doctor found something at `step` while the run trained."""

    kind: ClassVar[str] = "finding"
    step: int
    finding: Finding
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """Training stopped. A run without this record was killed or is still running."""

    kind: ClassVar[str] = "end"
    step: int
    tokens: int | None
    reason: EndReason
    best_val_loss: float | None
    seconds: float | None
    more: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unknown:
    """A record of a kind that this version does not know, kept unchanged."""

    kind: str
    more: Mapping[str, object]

    @property
    def step(self) -> int | None:
        step = self.more.get("step")
        return step if type(step) is int else None


Record = Start | Step | Eval | Sample | CardReading | Checkpoint | Oom | FindingRecord | End | Unknown
KINDS: dict[str, type[Any]] = {
    record.kind: record for record in (Start, Step, Eval, Sample, CardReading, Checkpoint, Oom, FindingRecord, End)
}

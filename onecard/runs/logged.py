"""A run as it was read, from a folder of ours or from another program's log: records, config, and what was printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from onecard.runs.records import Record

LogFormat = Literal[
    "onecard", "nanogpt", "llm.c", "modded-nanogpt", "nanochat", "hf-trainer", "minimal", "messages"
]  # "minimal": bare `step N: train loss, val loss`; "messages": no losses, only errors such as OOM


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the source, numbered from 1, cleaned of colours and carriage returns."""

    number: int
    text: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.text}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """Something a program said beside its losses: `kind` is "oom", "compile-failed", "few-sms", "scaler-skip"…

    `lines` hold what proves it (of a traceback the lines that matter); `values` the numbers in it, in base units.
    """

    kind: str
    lines: tuple[Line, ...]
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedRun:
    """One run. Steps and evaluations are in `records`; a record read from a text keeps its line in `more["line"]`.

    In records of foreign logs `more` also holds what our records have no field for: "printed_mfu" (0 to 1),
    "printed_seconds" (as printed, evaluation and checkpoint included), "printed_tokens_per_second",
    "last_micro_batch": True where the loss is of one micro-batch only.
    """

    source: str  # file name, or "stdin"
    format: LogFormat
    records: tuple[Record, ...]
    config: Mapping[str, object] = field(default_factory=dict)  # what the source itself states, by nanoGPT's names
    config_lines: Mapping[str, Line] = field(default_factory=dict)  # where it states each key
    printed_params: int | None = None  # as printed: nanoGPT leaves out position embeddings
    printed_params_total: int | None = None  # decayed + not decayed: every parameter
    printed_tokens_per_step: int | None = None
    world_size: int | None = None
    card_name: str | None = None
    printed: Mapping[str, Line] = field(default_factory=dict)  # field name -> the line that says so
    messages: tuple[Message, ...] = ()
    unread_lines: int = 0  # lines that belonged to no record

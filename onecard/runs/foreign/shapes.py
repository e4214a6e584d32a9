"""The parts of a log reader: the shapes of a format's lines, and what each shape means."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType

from onecard.runs.foreign.text import number, whole
from onecard.runs.logged import Line, LogFormat
from onecard.runs.records import Eval, Step
from onecard.units import parse_bytes

ToRecord = Callable[[re.Match[str], Line, int], Step | Eval]  # the record of a line, given its step


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordShape:
    """A line with a step or an evaluation. The group "step" is its number, if it has one; the group "loss" its loss.

    The pattern covers the line to its end, so a line that is wrapped or cut off does not match; `cut` is for those.
    """

    format: LogFormat
    kind: type[Step] | type[Eval]
    needle: str  # part of every such line
    pattern: re.Pattern[str]
    record: ToRecord
    cut: re.Pattern[str] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Stated:
    """What a line states about the run."""

    config: Mapping[str, object] = field(default_factory=dict)
    printed: Mapping[str, object] = field(default_factory=dict)  # fields of LoggedRun by name
    position: tuple[int, int] | None = None  # the step that a progress bar shows, and the total
    source: Mapping[str, object] = field(default_factory=dict)  # constants of a program whose source the log repeats


Says = Callable[[re.Match[str]], Stated]


@dataclass(frozen=True, kw_only=True, slots=True)
class StatementShape:
    """A line that states something; `begins` is True if a program prints it once, at the start of a run."""

    format: LogFormat | None
    needle: str
    pattern: re.Pattern[str]
    says: Says
    begins: bool = False


def config_count(key: str) -> Says:
    """A function that reads a line's count, its first group, as the value of a config key."""
    return lambda found: Stated(config={key: whole(found[1])})


def printed_count(name: str) -> Says:
    """A function that reads a line's count, its first group, as a figure that the run printed about itself."""
    return lambda found: Stated(printed={name: whole(found[1])})


@cache
def shape(text: str) -> re.Pattern[str]:
    """The compiled pattern to search for in a line; digits are ASCII."""
    return re.compile(text, re.ASCII)


def field_in(found: re.Match[str], pattern: str) -> float | None:
    """The number that a pattern finds in the matched part of a line; the rest of the line may be cut off."""
    field = shape(pattern).search(found[0])
    return float(field[1].replace(",", "").replace("_", "")) if field else None


def seconds_in(found: re.Match[str], milliseconds: str) -> float | None:
    """The time in seconds that a pattern for milliseconds finds in the matched part of a line."""
    time = field_in(found, milliseconds)
    return time / 1000 if time is not None else None


# `mem 13.2GB`, `memory:  9.46GiB(64.99%)`, `max_mem=12345MiB`
_MEMORY = re.compile(r"mem\w{0,12}[ :=]{1,4}(\d{1,7}(?:\.\d{1,6})?) ?([GM]i?)B?\b", re.ASCII)


def step_record(
    step: int,
    *,
    loss: float,
    line: Line,
    lr: float | None = None,
    grad_norm: float | None = None,
    seconds: float | None = None,
    elapsed_seconds: float | None = None,
    tokens_per_second: float | None = None,
    more: Mapping[str, object] = MappingProxyType({}),
) -> Step:
    """A Step from another program's log. Values that such logs never have are None, and so are impossible times."""
    seconds, elapsed_seconds = measured(seconds), measured(elapsed_seconds)
    tokens_per_second, lr = measured(tokens_per_second), measured(lr)
    printed = {"printed_tokens_per_second": tokens_per_second, "printed_seconds": seconds}
    said: dict[str, object] = {name: value for name, value in printed.items() if value is not None}
    if "mem" in line.text and (held := _MEMORY.search(line.text)):
        said["memory_bytes"] = parse_bytes(f"{held[1]}{held[2]}B")
    return Step(
        step=step,
        tokens=None,
        loss=loss,
        lr=lr,
        grad_norm=grad_norm,
        seconds=seconds,
        elapsed_seconds=elapsed_seconds,
        tokens_per_second=tokens_per_second,
        mfu=None,
        allocated_bytes=None,
        reserved_bytes=None,
        data_wait_seconds=None,
        more={**more, **said, "line": line},
    )


def measured(value: float | None) -> float | None:
    """The value if it is finite and not negative, else None: a damaged line may hold anything."""
    return value if value is not None and 0 <= value < math.inf else None


def eval_record(
    step: int,
    *,
    line: Line,
    train_loss: float | None = None,
    val_loss: float | None = None,
    seconds: float | None = None,
    bits_per_byte: float | None = None,
    more: Mapping[str, object] = MappingProxyType({}),
) -> Eval:
    """An Eval from another program's log."""
    return Eval(
        step=step,
        tokens=None,
        train_loss=train_loss,
        val_loss=val_loss,
        train_loss_error=None,
        val_loss_error=None,
        block_size=None,
        tokens_read=None,
        seconds=measured(seconds),
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        bits_per_byte=bits_per_byte,
        more={**more, "line": line},
    )


def val_record(found: re.Match[str], line: Line, step: int) -> Eval:
    """The Eval of a line whose only value is "loss", a validation loss."""
    return eval_record(step, line=line, val_loss=number(found["loss"]))

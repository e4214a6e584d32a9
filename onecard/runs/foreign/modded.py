"""modded-nanogpt: `step:6200/6200 val_loss:3.27 train_time:…ms step_avg:…ms`; early records use llm.c's main.log."""

from __future__ import annotations

import re

from onecard.runs.foreign.shapes import RecordShape, ToRecord, eval_record, measured, seconds_in, shape, step_record
from onecard.runs.foreign.text import NUMBER, WHOLE, number
from onecard.runs.logged import Line
from onecard.runs.records import Eval, Step


def _times(found: re.Match[str]) -> tuple[float | None, dict[str, object]]:
    """Training time so far and the program's own average per step, in seconds, both without evaluation."""
    elapsed = measured(seconds_in(found, rf"train_time:({NUMBER})ms"))
    average = measured(seconds_in(found, rf"step_avg:({NUMBER})ms"))  # nan in the first ten steps
    return elapsed, {"seconds_per_step": average} if average else {}


def _step(found: re.Match[str], line: Line, step: int) -> Step:
    elapsed, more = _times(found)
    return step_record(step, loss=number(found["loss"]), line=line, elapsed_seconds=elapsed, more=more)


def _eval(found: re.Match[str], line: Line, step: int) -> Eval:
    elapsed, more = _times(found)
    if elapsed is not None:
        more["elapsed_seconds"] = elapsed
    return eval_record(step, line=line, val_loss=number(found["loss"]), more=more)


def _line(name: str, kind: type[Step] | type[Eval], record: ToRecord) -> RecordShape:
    """The shape of a line with the loss of this name."""
    head = rf"step:(?P<step>{WHOLE})/(?P<of>{WHOLE}) {name}:(?P<loss>{NUMBER})"
    return RecordShape(
        format="modded-nanogpt",
        kind=kind,
        needle=f" {name}:",
        pattern=shape(head + rf" train_time:{NUMBER}ms(?: step_avg:{NUMBER}ms)?"),
        cut=shape(head + "(?= )"),
        record=record,
    )


RECORDS = (_line("train_loss", Step, _step), _line("val_loss", Eval, _eval))

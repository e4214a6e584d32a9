"""modded-nanogpt: `step:6200/6200 val_loss:3.27 train_time:…ms step_avg:…ms`; earlier records have llm.c's main.log."""

from __future__ import annotations

import re

from onecard.runs.foreign.shapes import RecordShape, eval_record, field_in, measured, shape, step_record
from onecard.runs.foreign.text import NUMBER, WHOLE, number
from onecard.runs.logged import Line
from onecard.runs.records import Eval, Step


def _times(found: re.Match[str]) -> tuple[float | None, dict[str, object]]:
    """Training time so far, and the program's own average of a step: both without evaluation."""
    elapsed, average = field_in(found, rf"train_time:({NUMBER})ms"), field_in(found, rf"step_avg:({NUMBER})ms")
    elapsed, average = measured(elapsed), measured(average)  # the average is nan in the first ten steps
    return (
        elapsed / 1000 if elapsed is not None else None,
        {"seconds_per_step": average / 1000} if average else {},
    )


def _step(found: re.Match[str], line: Line, step: int) -> Step:
    elapsed, more = _times(found)
    return step_record(step, loss=number(found["loss"]), line=line, elapsed_seconds=elapsed, more=more)


def _eval(found: re.Match[str], line: Line, step: int) -> Eval:
    elapsed, more = _times(found)
    if elapsed is not None:
        more["elapsed_seconds"] = elapsed
    return eval_record(step, line=line, val_loss=number(found["loss"]), more=more)


_HEAD = rf"step:(?P<step>{WHOLE})/(?P<of>{WHOLE}) "
_TIMES = rf" train_time:{NUMBER}ms(?: step_avg:{NUMBER}ms)?"
RECORDS = (
    RecordShape(
        format="modded-nanogpt",
        kind=Step,
        needle=" train_loss:",
        pattern=shape(_HEAD + rf"train_loss:(?P<loss>{NUMBER})" + _TIMES),
        cut=shape(_HEAD + rf"train_loss:(?P<loss>{NUMBER})(?= )"),
        record=_step,
    ),
    RecordShape(
        format="modded-nanogpt",
        kind=Eval,
        needle=" val_loss:",
        pattern=shape(_HEAD + rf"val_loss:(?P<loss>{NUMBER})" + _TIMES),
        cut=shape(_HEAD + rf"val_loss:(?P<loss>{NUMBER})(?= )"),
        record=_eval,
    ),
)

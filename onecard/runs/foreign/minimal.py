"""Teaching scripts: `step 5, loss: 9.1`, `step 5 | loss: 9.1 | lr … | dt: …`, and `250 val 4.56` in a log.txt."""

from __future__ import annotations

import re

from onecard.runs.foreign.shapes import RecordShape, field_in, seconds_in, shape, step_record, val_record
from onecard.runs.foreign.text import COUNT, NUMBER, WHOLE, number
from onecard.runs.logged import Line
from onecard.runs.records import Eval, Step


def _step(found: re.Match[str], line: Line, step: int) -> Step:
    return step_record(
        step,
        loss=number(found["loss"]),
        line=line,
        lr=field_in(found, rf"\blr:? ({NUMBER})"),
        grad_norm=field_in(found, rf"\bnorm:? ({NUMBER})"),
        seconds=seconds_in(found, rf"dt:? ({NUMBER}) ?ms"),
        tokens_per_second=field_in(found, rf"tok/sec:? ({COUNT}(?:\.\d{{1,9}})?)"),
    )


RECORDS = (
    RecordShape(
        format="minimal",
        kind=Step,
        needle="loss: ",
        pattern=shape(
            rf"\bstep:? +(?P<step>{WHOLE})(?: ?\||,) (?:train )?loss: (?P<loss>{NUMBER})"
            rf"(?: \|.{{0,160}}?tok/sec:? [\d,.]{{1,20}}|,? dt:? {NUMBER} ?ms.{{0,60}}|\s*$)"
        ),
        record=_step,
    ),
    RecordShape(
        format="litgpt",
        kind=Step,
        needle="iter time: ",
        pattern=shape(
            rf"\biter (?P<step>{WHOLE}) step {WHOLE}: loss (?P<loss>{NUMBER}), iter time: (?P<time>{NUMBER}) ?ms"
        ),
        record=lambda found, line, step: step_record(
            step, loss=number(found["loss"]), line=line, seconds=number(found["time"]) / 1000
        ),
    ),
    RecordShape(
        format="minimal",
        kind=Step,
        needle=" train ",
        pattern=shape(rf"^(?P<step>{WHOLE}) train (?P<loss>{NUMBER})$"),
        record=_step,
    ),
    RecordShape(
        format="minimal",
        kind=Eval,
        needle=" val ",
        pattern=shape(rf"^(?P<step>{WHOLE}) val (?P<loss>{NUMBER})$"),
        record=val_record,
    ),
    RecordShape(  # belongs to the step printed before
        format="minimal",
        kind=Eval,
        needle="alidation loss: ",
        pattern=shape(rf"^[Vv]alidation loss: (?P<loss>{NUMBER})\s*$"),
        record=val_record,
    ),
)

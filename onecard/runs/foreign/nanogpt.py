"""nanoGPT's stdout, and the short `step N: train loss, val loss` of its teaching versions."""

from __future__ import annotations

import re

from onecard.config.reader import read_value
from onecard.runs.foreign.shapes import (
    RecordShape,
    Stated,
    StatementShape,
    config_count,
    eval_record,
    field_in,
    measured,
    printed_count,
    shape,
    step_record,
)
from onecard.runs.foreign.text import COUNT, FIGURE, NUMBER, WHOLE, number
from onecard.runs.logged import Line
from onecard.runs.records import Eval, Step


def _step(found: re.Match[str], line: Line, step: int) -> Step:
    """An iteration: the loss of its last micro-batch, and a time that includes an evaluation and its checkpoint."""
    groups = found.groupdict()
    seconds = number(groups["time"]) / (1000 if groups["unit"] == "ms" else 1) if groups.get("time") else None
    mfu = number(groups["mfu"]) / 100 if groups.get("mfu") else None
    lr = field_in(found, rf"\blr:? ({NUMBER})")
    more: dict[str, object] = {"last_micro_batch": True}
    if measured(mfu) is not None:  # -100 % means "not measured yet"
        more["printed_mfu"] = mfu
    return step_record(step, loss=number(found["loss"]), line=line, seconds=seconds, lr=lr, more=more)


def _eval(found: re.Match[str], line: Line, step: int) -> Eval:
    """An evaluation: both splits without dropout, eval_iters random batches each."""
    return eval_record(step, line=line, train_loss=number(found["train"]), val_loss=number(found["loss"]))


_HEAD = rf"iter (?P<step>{WHOLE}): loss:? (?P<loss>{NUMBER})"
RECORDS = (
    RecordShape(
        format="nanogpt",
        kind=Step,
        needle="iter ",
        # a time that is cut off does not match: the next line may have the rest
        pattern=shape(
            _HEAD + rf"(?:, (?!t(?:ime?|i)?(?: |$))[^,]{{1,40}}){{0,4}}"
            rf"(?:,? time (?P<time>{NUMBER}) ?(?P<unit>ms|s)\b(?:, mfu (?P<mfu>{NUMBER})%)?|\s*$)"
        ),
        cut=shape(_HEAD + ","),
        record=_step,
    ),
    RecordShape(
        format="minimal",
        kind=Eval,
        needle="step ",
        pattern=shape(
            rf"step (?P<step>{WHOLE}):? train loss:? (?P<train>{NUMBER}),? val loss:? (?P<loss>{NUMBER})(?![\d.])"
        ),
        record=_eval,
    ),
)


def _params(found: re.Match[str]) -> Stated:
    scale = {"K": 1e3, "M": 1e6, "B": 1e9}[found[2]]
    return Stated(printed={"printed_params": round(number(found[1]) * scale)})


def _override(found: re.Match[str]) -> Stated:
    return Stated(config={found[1]: read_value(found[2])})


STATEMENTS = (
    StatementShape(
        format="nanogpt",
        needle="tokens per iteration",
        pattern=shape(rf"tokens per iteration(?: will be)?: ({COUNT})"),
        says=printed_count("printed_tokens_per_step"),
        begins=True,
    ),
    StatementShape(  # build-nanogpt
        format=None,
        needle="desired batch size",
        pattern=shape(rf"total desired batch size: {{1,2}}({COUNT})"),
        says=printed_count("printed_tokens_per_step"),
    ),
    StatementShape(
        format="nanogpt",
        needle="Overriding: ",
        pattern=shape(r"Overriding: (\w{1,64}) = (.{1,4096})"),
        says=_override,
    ),
    StatementShape(
        format=None,
        needle="number of parameters",
        pattern=shape(rf"number of parameters: ({FIGURE})([KMB])"),
        says=_params,
    ),
    StatementShape(
        format=None,
        needle="parameters",
        pattern=shape(rf"^({FIGURE}) ?([MB]) parameters"),
        says=_params,
    ),
    StatementShape(
        format="nanogpt",
        needle="vocab_size",
        pattern=shape(rf"(?:defaulting to vocab_size of GPT-2 to|found vocab_size =) ({COUNT})"),
        says=config_count("vocab_size"),
    ),
)
# The sum of these two lines is needed, so the draft adds them.
PARAMETER_TENSORS = shape(
    rf"num (?P<kind>decayed|non-decayed) parameter tensors: {COUNT}, with (?P<count>{COUNT}) parameters"
)
CONFIG_BEGINS = shape(r"Overriding config with (\S{1,4096}):\s*$")

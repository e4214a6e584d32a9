"""llm.c: its main.log (`s:12 trl:3.21 lr:0.0006 norm:0.22`), its stdout, and the settings table it prints first."""

from __future__ import annotations

import re

from onecard.runs.foreign.shapes import (
    RecordShape,
    Stated,
    StatementShape,
    config_count,
    field_in,
    measured,
    seconds_in,
    shape,
    step_record,
    val_record,
)
from onecard.runs.foreign.text import COUNT, NUMBER, WHOLE, number, whole
from onecard.runs.logged import Line
from onecard.runs.records import Eval, Step
from onecard.units import MIB


def _log_step(found: re.Match[str], line: Line, step: int) -> Step:
    return step_record(
        step,
        loss=number(found["loss"]),
        line=line,
        lr=field_in(found, rf" lr:({NUMBER})"),
        grad_norm=field_in(found, rf" norm:({NUMBER})"),
    )


def _printed_step(found: re.Match[str], line: Line, step: int) -> Step:
    mfu = field_in(found, rf"({NUMBER})% (?:\w{{1,8}} )?MFU")
    more = {} if measured(mfu) is None else {"printed_mfu": (mfu or 0) / 100}  # -100 % means an unknown card
    return step_record(
        step,
        loss=number(found["loss"]),
        line=line,
        lr=field_in(found, rf"\blr +({NUMBER})"),
        grad_norm=field_in(found, rf"\bnorm +({NUMBER})"),
        seconds=seconds_in(found, rf"({NUMBER}) ms"),
        tokens_per_second=field_in(found, rf"({NUMBER}) tok/s"),
        more=more,
    )


# numbers are padded to a width: `loss     nan`
_PRINTED_HEAD = rf"step +(?P<step>{WHOLE})/(?P<of>{WHOLE}) \| (?:train )?loss +(?P<loss>{NUMBER})"
RECORDS = (
    RecordShape(
        format="llm.c",
        kind=Step,
        needle=" trl:",
        pattern=shape(rf"\bs:(?P<step>{WHOLE}) trl:(?P<loss>{NUMBER})(?: lr:{NUMBER})?(?: norm:{NUMBER})?"),
        record=_log_step,
    ),
    RecordShape(
        format="llm.c",
        kind=Eval,
        needle=" tel:",
        pattern=shape(rf"\bs:(?P<step>{WHOLE}) tel:(?P<loss>{NUMBER})"),
        record=val_record,
    ),
    *(
        RecordShape(
            format="llm.c",
            kind=Step,
            needle=needle,
            pattern=shape(_PRINTED_HEAD + r"\b.{0,160}? tok/s"),
            cut=shape(_PRINTED_HEAD + r"(?= [(|])"),
            record=_printed_step,
        )
        for needle in ("| loss ", "| train loss ")
    ),
    RecordShape(  # its first versions, and its CPU version
        format="llm.c",
        kind=Step,
        needle=": train loss ",
        pattern=shape(
            rf"step +(?P<step>{WHOLE})(?:/(?P<of>{WHOLE}))?: train loss (?P<loss>{NUMBER}) .{{0,40}}?"
            rf"{NUMBER} ms(?:, {NUMBER} tok/s)?\)"
        ),
        record=_printed_step,
    ),
    RecordShape(  # belongs to the step printed before
        format="llm.c",
        kind=Eval,
        needle="val loss ",
        pattern=shape(rf"^val loss (?P<loss>{NUMBER})\s*$"),
        record=val_record,
    ),
)

_SETTINGS = {
    "micro batch size B": "batch_size",
    "sequence length T": "block_size",
    "learning rate (LR)": "learning_rate",
    "warmup iterations": "warmup_iters",
    "weight decay": "weight_decay",
    "max_steps": "max_iters",  # -1: one pass, whose updates the next counts
    "train_num_batches": "max_iters",
    "val_loss_every": "eval_interval",
    "vocab_size V": "vocab_size",
    "num_layers L": "n_layer",
    "num_heads NH": "n_head",
    "channels C": "n_embd",
    "gradient accumulation steps": "gradient_accumulation_steps",
}


def _setting(found: re.Match[str]) -> Stated:
    """A row of the settings table."""
    name, text = found[1].strip(), found[2].strip()
    if name == "device":
        return Stated(printed={"card_name": text})
    if name == "train data pattern":
        return Stated(config={"dataset": text.rpartition("/")[0] or text})
    if name == "LR scheduler":
        return Stated(config={"schedule": text})
    value = number(text) if re.fullmatch(NUMBER, text, re.ASCII) else None
    if value is None or not 0 <= value < 2**40:
        return Stated()
    counted = int(value)
    printed = {
        "total batch size": {"printed_tokens_per_step": counted},
        "num_parameters": {"printed_params_total": counted},
        "num_processes": {"world_size": counted},
    }
    if name in printed:
        return Stated(printed=printed[name])
    key = _SETTINGS.get(name)
    return Stated(config={key: counted if value == counted else value}) if key else Stated()


STATEMENTS = (
    StatementShape(
        format="llm.c",
        needle="| train data pattern",
        pattern=shape(r"^\| (train data pattern) +\| ([^|]{1,80})"),
        says=_setting,
        begins=True,
    ),
    StatementShape(
        format="llm.c",
        needle=" | ",
        pattern=shape(
            r"^\| (device|LR scheduler|total batch size|num_parameters|num_processes|"
            + "|".join(re.escape(name) for name in _SETTINGS)
            + r") +\| ([^|]{1,80})\|"
        ),
        says=_setting,
    ),
    StatementShape(
        format="llm.c",
        needle=" MiB for ",
        pattern=shape(rf"^allocat(?:ed|ing) ({COUNT}) MiB for "),
        says=lambda found: Stated(printed={"allocating_bytes": whole(found[1]) * MIB}),
    ),
    StatementShape(
        format="llm.c",
        needle="gradient accumulation steps",
        pattern=shape(rf"=> setting grad_accum_steps=({COUNT})"),
        says=config_count("gradient_accumulation_steps"),
    ),
)

"""nanochat's stdout: base training and the stages after it, each a run of its own."""

from __future__ import annotations

import re

from onecard.runs.foreign.shapes import (
    RecordShape,
    Stated,
    StatementShape,
    config_count,
    eval_record,
    field_in,
    measured,
    printed_count,
    seconds_in,
    shape,
    step_record,
    val_record,
)
from onecard.runs.foreign.text import COUNT, NUMBER, WHOLE, number, whole
from onecard.runs.logged import Line
from onecard.runs.records import Eval, Step


def _step(found: re.Match[str], line: Line, step: int) -> Step:
    """A step. nanochat prints a running mean of the loss, and the learning rate as a fraction of its highest value."""
    minutes = field_in(found, rf"total time: ({NUMBER})m")
    mfu = field_in(found, rf"mfu: ({NUMBER})")
    more: dict[str, object] = {"smoothed": True}
    if (multiplier := field_in(found, rf"lrm: ({NUMBER})")) is not None:
        more["lr_multiplier"] = multiplier
    if mfu and measured(mfu):  # 0 means an unknown card
        more["printed_mfu"] = mfu / 100
    return step_record(
        step,
        loss=number(found["loss"]),
        line=line,
        grad_norm=field_in(found, rf"grad norm: ({NUMBER})"),
        seconds=seconds_in(found, rf"dt: ({NUMBER})ms"),
        elapsed_seconds=minutes * 60 if minutes else None,
        tokens_per_second=field_in(found, rf"tok/sec: ({COUNT})"),
        more=more,
    )


def _eval(found: re.Match[str], line: Line, step: int) -> Eval:
    if found["unit"] == "bpb":
        return eval_record(step, line=line, bits_per_byte=number(found["loss"]))
    return val_record(found, line, step)


_HEAD = rf"step (?P<step>{WHOLE})(?:/(?P<of>{WHOLE}))? \({NUMBER}%\) \| loss: (?P<loss>{NUMBER}) "
RECORDS = (
    RecordShape(
        format="nanochat",
        kind=Step,
        needle=" | loss: ",
        pattern=shape(_HEAD + rf".{{0,200}}?total time: {NUMBER}m"),
        cut=shape(_HEAD),
        record=_step,
    ),
    RecordShape(
        format="nanochat",
        kind=Eval,
        needle=" | Validation ",
        pattern=shape(rf"Step (?P<step>{WHOLE}) \| Validation (?P<unit>bpb|loss): (?P<loss>{NUMBER})"),
        record=_eval,
    ),
)

_KEYS = {
    "sequence_len": "block_size",
    "n_layer": "n_layer",
    "n_head": "n_head",
    "n_embd": "n_embd",
    "vocab_size": "vocab_size",
    "Vocab size": "vocab_size",
}


def _key(found: re.Match[str]) -> Stated:
    return Stated(config={_KEYS[found[1]]: whole(found[2])})


def _micro_batch(found: re.Match[str]) -> Stated:
    return Stated(config={"batch_size": whole(found[1]), "block_size": whole(found[2])})


def _total_batch(found: re.Match[str]) -> Stated:
    return Stated(
        config={"gradient_accumulation_steps": whole(found[2])},
        printed={"printed_tokens_per_step": whole(found[1])},
    )


def _flops(found: re.Match[str]) -> Stated:
    flops = measured(number(found[1]))
    return Stated(printed={"printed_flops_per_token": flops}) if flops else Stated()


STATEMENTS = (
    StatementShape(
        format="nanochat",
        needle="Distributed world size",
        pattern=shape(rf"Distributed world size: ({COUNT})"),
        says=printed_count("world_size"),
        begins=True,
    ),
    StatementShape(
        format="nanochat",
        needle="Loading model from",
        pattern=shape(r"Loading model from \S{1,4096} with step"),
        says=lambda _: Stated(config={"init_from": "resume"}),
    ),
    StatementShape(
        format="nanochat",
        needle="Tokens / micro-batch / rank",
        pattern=shape(rf"Tokens / micro-batch / rank: ({COUNT}) x ({COUNT}) ="),
        says=_micro_batch,
    ),
    StatementShape(
        format="nanochat",
        needle="Total batch size",
        pattern=shape(rf"Total batch size ({COUNT}) => gradient accumulation steps: ({COUNT})"),
        says=_total_batch,
    ),
    StatementShape(
        format="nanochat",
        needle="number of iterations",
        pattern=shape(rf"number of iterations(?: from [^:]{{1,40}})?: ({COUNT})"),
        says=config_count("max_iters"),
    ),
    StatementShape(
        format="nanochat",
        needle="FLOPs per token",
        pattern=shape(rf"Estimated FLOPs per token: ({NUMBER})"),
        says=_flops,
    ),
    StatementShape(
        format="nanochat",
        needle="total  ",
        pattern=shape(rf"^total {{2,24}}: ({COUNT})$"),
        says=printed_count("printed_params_total"),
    ),
    StatementShape(
        format="nanochat",
        needle="Number of parameters",
        pattern=shape(rf"^Number of parameters: ({COUNT})"),
        says=printed_count("printed_params_total"),
    ),
    *(
        StatementShape(
            format=None,
            needle=needle,
            pattern=shape(rf'^\s{{0,8}}"?({"|".join(_KEYS)})"?: ({COUNT}),?$'),
            says=_key,
        )
        for needle in ('"n_', "sequence_len", "ocab")
    ),
)

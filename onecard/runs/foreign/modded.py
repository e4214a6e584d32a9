"""modded-nanogpt: `step:6200/6200 val_loss:3.27 train_time:…ms step_avg:…ms`; early records use llm.c's main.log.

Its logs begin with the source of the run. Constants are read there as text: the end, the batch, the shape, the data.
"""

from __future__ import annotations

import re

from onecard.config.reader import read_value
from onecard.runs.foreign.shapes import (
    RecordShape,
    Stated,
    StatementShape,
    ToRecord,
    eval_record,
    measured,
    seconds_in,
    shape,
    step_record,
)
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

_CONSTANTS = {  # names of its Hyperparameters, and what they are here
    "num_iterations": "max_iters",
    "warmup_iters": "warmup_iters",
    "warmdown_iters": "cooldown_steps",
    "cooldown_iters": "cooldown_steps",
    "cooldown_frac": "decay_share",
    "batch_size": "update_size",
    "sequence_length": "block_size",
    "num_vocab": "vocab_size",
}
_SHAPE = {"vocab_size": "vocab_size"} | dict.fromkeys(("n_layer", "num_layers"), "n_layer")
_SHAPE |= dict.fromkeys(("n_head", "num_heads"), "n_head") | dict.fromkeys(("n_embd", "model_dim"), "n_embd")
_WORTH = 2**40  # no constant of a run is larger


def _constant(found: re.Match[str]) -> Stated:
    """A constant of the source: `num_iterations : int = 2*10172 # number of iterations`. Its value is computed by the
    reader of configs, which runs nothing."""
    value, name = read_value(found[2]), _CONSTANTS[found[1]]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _WORTH:
        return Stated()
    return Stated(source={name: value})


def _model(found: re.Match[str]) -> Stated:
    """The line that makes the model: `GPT(vocab_size=50257, num_layers=12, num_heads=6, model_dim=768)`."""
    named = shape(r"\b(\w{4,10}) ?= ?(\d{1,9})\b").findall(found[0])
    return Stated(source={_SHAPE[name]: int(size) for name, size in named if name in _SHAPE})


STATEMENTS = (
    *(
        StatementShape(
            format=None,
            needle=name,
            pattern=shape(rf"^ {{0,4}}({name})(?: ?: ?\w{{3,5}})? = ([\d.*/+ _-]{{1,40}}?) *(?:#|$)"),
            says=_constant,
        )
        for name in _CONSTANTS
    ),
    StatementShape(
        format=None,
        needle="train_*.bin",
        pattern=shape(r"^ {4}(?:input_bin|train_files)(?: ?: ?str)? = ['\"]([\w./-]{1,200})/[^/'\"]{1,80}['\"]"),
        says=lambda found: Stated(source={"dataset": found[1]}),
    ),
    StatementShape(
        format=None,
        needle="GPT",
        pattern=shape(r"\bGPT(?:Config)?\(vocab_size ?=.{1,200}"),
        says=_model,
    ),
)

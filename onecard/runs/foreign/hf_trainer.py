"""Hugging Face Trainer: the dictionaries it prints, and its trainer_state.json."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping

from onecard.runs.foreign.shapes import (
    RecordShape,
    Stated,
    StatementShape,
    ToRecord,
    config_count,
    eval_record,
    field_in,
    printed_count,
    shape,
    step_record,
)
from onecard.runs.foreign.text import COUNT, NUMBER, WHOLE, number
from onecard.runs.logged import Line, LoggedRun
from onecard.runs.records import Eval, Record, Step


def _value(name: str) -> str:
    """A pattern for an entry; some versions put numbers in quotes."""
    return rf"'{name}': '?({NUMBER})"


def _step(found: re.Match[str], line: Line, step: int) -> Step:
    return step_record(
        step,
        loss=number(found["loss"]),
        line=line,
        lr=field_in(found, _value("learning_rate")),
        grad_norm=field_in(found, _value("grad_norm")),
        more=_epoch(field_in(found, _value("epoch"))),
    )


def _eval(found: re.Match[str], line: Line, step: int) -> Eval:
    return eval_record(
        step,
        line=line,
        val_loss=number(found["loss"]),
        seconds=field_in(found, _value("eval_runtime")),
        more=_epoch(field_in(found, _value("epoch"))),
    )


def _epoch(epoch: float | None) -> dict[str, object]:
    return {} if epoch is None else {"epoch": epoch}


def _entries(loss: str, kind: type[Step] | type[Eval], record: ToRecord) -> RecordShape:
    """The shape of a dictionary that starts with the loss of this name.

    It has no step. The step comes from the epoch or the progress bar, else lines are counted.
    """
    return RecordShape(
        format="hf-trainer",
        kind=kind,
        needle=f"{{'{loss}'",
        pattern=shape(
            rf"\{{'{loss}': '?(?P<loss>{NUMBER})'?,[^{{}}]{{0,400}}'epoch': '?(?P<epoch>{NUMBER})'?[^{{}}]*\}}"
        ),
        record=record,
    )


RECORDS = (_entries("loss", Step, _step), _entries("eval_loss", Eval, _eval))


def _bar(found: re.Match[str]) -> Stated:
    return Stated(position=(int(found[1]), int(found[2])))


def _whole_run(seconds: float, updates_per_second: float, *, epoch: float | None) -> dict[str, object]:
    """The times on the last line, in seconds. Its rate counts all planned updates, even after early stopping."""
    if not (0 < seconds < math.inf and 0 < updates_per_second < math.inf):
        return {}
    said: dict[str, object] = {"printed_seconds": seconds, "printed_seconds_per_step": 1 / updates_per_second}
    return said if epoch is None else {**said, "printed_last_epoch": epoch}


_COUNTS = {
    "Num Epochs": printed_count("epochs"),
    "Instantaneous batch size per device": config_count("batch_size"),
    "Gradient Accumulation steps": config_count("gradient_accumulation_steps"),
    "Total optimization steps": config_count("max_iters"),
    "Number of trainable parameters": printed_count("printed_params_total"),
}

STATEMENTS = (
    StatementShape(
        format="hf-trainer",
        needle="***** Running training",
        pattern=shape(r"\*{5} Running training \*{5}"),
        says=lambda _: Stated(),
        begins=True,
    ),
    *(
        StatementShape(
            format="hf-trainer",
            needle=name,
            pattern=shape(rf"^(?:\[[^\]]{{0,80}}\] ?|.{{0,60}} - )?\s{{0,8}}{re.escape(name)} = ({COUNT})"),
            says=says,
        )
        for name, says in _COUNTS.items()
    ),
    StatementShape(
        format="hf-trainer",
        needle="'train_runtime'",
        pattern=shape(
            rf"'train_runtime': '?(?P<seconds>{NUMBER})'?,.{{0,200}}'train_steps_per_second': '?(?P<rate>{NUMBER})"
            r"[^{}]{0,200}"
        ),
        says=lambda found: Stated(
            printed=_whole_run(number(found["seconds"]), number(found["rate"]), epoch=field_in(found, _value("epoch")))
        ),
    ),
    *(
        StatementShape(
            format=None,
            needle=needle,
            pattern=shape(rf"^\s{{0,8}}\d{{1,3}}%\|[^|]{{0,120}}\| ({WHOLE})/({WHOLE}) \["),
            says=_bar,
        )
        for needle in ("it/s", "s/it")
    ),
)

LARGEST_STATE_BYTES = 256 * 1024 * 1024  # of a trainer_state.json: more than a million entries
_INNERMOST = re.compile(r"\{[^{}]*\}")


def is_state(beginning: bytes) -> bool:
    """Whether a file with this beginning is a trainer_state.json."""
    return beginning.lstrip()[:1] == b"{" and any(
        name in beginning for name in (b'"log_history"', b'"best_metric"', b'"best_global_step"')
    )


def state_run(text: str, *, source: str) -> LoggedRun | None:
    """The run in a trainer_state.json, complete or cut off; None if it has no losses."""
    records: list[Record] = []
    whole_run: dict[str, object] = {}
    number_of_line, position = 1, 0
    for found in _INNERMOST.finditer(text):
        number_of_line += text.count("\n", position, found.start())
        position = found.start()
        try:
            entry = json.loads(found[0])
        except (ValueError, RecursionError):
            continue
        record = _state_record(entry, Line(number_of_line, " ".join(found[0].split())[:400]))
        if record:
            records.append(record)
        if isinstance(entry, dict) and "train_runtime" in entry:
            times = [entry.get(name) for name in ("train_runtime", "train_steps_per_second")]
            seconds, rate = (float(time) if isinstance(time, int | float) else 0.0 for time in times)
            whole_run = _whole_run(seconds, rate, epoch=None)
    if not records:
        return None
    config = {
        key: int(known[1])
        for key, name in (
            ("max_iters", "max_steps"),
            ("batch_size", "train_batch_size"),
            ("eval_interval", "eval_steps"),
        )
        if (known := re.search(rf'"{name}": ({WHOLE})\b', text, re.ASCII))
    }
    return LoggedRun(
        source=source,
        format="hf-trainer",
        records=tuple(records),
        config=config,
        **whole_run,  # type: ignore[arg-type]  # two numbers
    )


def _state_record(entry: Mapping[str, object], line: Line) -> Record | None:
    values = {name: float(v) for name, v in entry.items() if isinstance(v, int | float) and _is_value(name, v)}
    step = values.get("step")
    if step is None or not 0 <= step < 10**12:
        return None
    more = _epoch(values.get("epoch"))
    if "loss" in values:
        return step_record(
            int(step),
            loss=values["loss"],
            line=line,
            lr=values.get("learning_rate"),
            grad_norm=values.get("grad_norm"),
            more=more,
        )
    if "eval_loss" in values:
        return eval_record(
            int(step), line=line, val_loss=values["eval_loss"], seconds=values.get("eval_runtime"), more=more
        )
    return None


def _is_value(name: str, value: float) -> bool:
    """Whether a number is plausible. Any loss is, even an infinite one: then the run has diverged."""
    return (name in ("loss", "eval_loss") and isinstance(value, float)) or not abs(value) > 1e300

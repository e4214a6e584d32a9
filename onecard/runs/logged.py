"""A run read from one of our folders or from another program's log: its records, its config, and what it printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal

from onecard.runs.folder import Run
from onecard.runs.history import History, each_step_once, read_lines
from onecard.runs.records import Oom, Record, Start
from onecard.runs.scores import TaskScore, TextScore, read_scores, read_task_scores
from onecard.runs.torch_oom import oom_sizes

LogFormat = Literal[
    "onecard", "nanogpt", "llm.c", "modded-nanogpt", "nanochat", "hf-trainer", "litgpt", "minimal", "messages"
]  # "minimal": only `step N: train loss, val loss`; "messages": no losses, only errors such as OOM


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the source, cleaned of colours and carriage returns."""

    number: int  # from 1; 0 for one of our records, whose text names its step
    text: str

    def __str__(self) -> str:
        return f"line {self.number}: {self.text}" if self.number else self.text


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """Something a program printed besides its losses: `kind` is "oom", "compile-failed", "few-sms", "scaler-skip"…

    `lines` are the evidence (for a traceback, the lines that matter). `values` are the numbers in it, in base units.
    """

    kind: str
    lines: tuple[Line, ...]
    values: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedRun:
    """One run. Steps and evaluations are in `records`; a record read from text keeps its line in `more["line"]`.

    In records of other programs' logs, `more` also holds values that our records have no field for: "printed_mfu"
    (0 to 1), "printed_seconds" (as printed, evaluation and checkpoint included), "printed_tokens_per_second",
    "last_micro_batch" (True if the loss is of one micro-batch only), "smoothed" (True if the loss is a running mean),
    "seconds_per_step" (the program's own average), "elapsed_seconds" (of evaluations), "lr_multiplier", "epoch".
    """

    source: str  # the path as it was typed, or "stdin"
    format: LogFormat
    records: tuple[Record, ...]
    config: Mapping[str, object] = field(default_factory=dict)  # the values in the source itself, by nanoGPT's names
    config_lines: Mapping[str, Line] = field(default_factory=dict)  # the line of each key
    printed_params: int | None = None  # as printed: nanoGPT leaves out position embeddings
    printed_params_total: int | None = None  # decayed + not decayed: every parameter
    printed_tokens_per_step: int | None = None
    world_size: int | None = None
    card_name: str | None = None
    printed: Mapping[str, Line] = field(default_factory=dict)  # field name -> the line it was read from
    messages: tuple[Message, ...] = ()
    unread_lines: int = 0  # lines that belong to no record
    config_source: tuple[Line, ...] = ()  # the config file as the log repeats it, comments included
    unresolved: frozenset[str] = frozenset()  # keys whose value is known only by running the config
    printed_flops_per_token: float | None = None
    printed_seconds_per_step: float | None = None  # the program's own average
    printed_seconds: float | None = None  # of the whole run, evaluations included
    printed_allocated_bytes: int | None = None  # on the card, by llm.c
    steps_told: bool = True  # False: the log has no step numbers, so losses are numbered in their order in the log
    folder: str | None = None  # the folder it was read from, if it is one of our runs
    cut_off: bool = False  # for our runs: the process is gone and recorded no end
    checkpoints: tuple[int, ...] | None = None  # for our runs: the steps of those in its folder
    text_scores: tuple[TextScore, ...] = ()  # of our runs: what `onecard eval` measured
    task_scores: tuple[TaskScore, ...] = ()  # the same of questions
    kept_one_step_in: int = (
        1  # N: of a log with very many steps, every N-th is kept, and every loss that is NaN or infinite
    )


def logged_run(run: Run) -> LoggedRun:
    """One of our run folders, as the same type that other programs' logs are read into."""
    read = _ours(run.history, source=str(run.path), config=run.config)
    return replace(
        read,
        folder=str(run.path),
        cut_off=run.cut_off,
        checkpoints=tuple(each.step for each in run.checkpoints),
        text_scores=read_scores(run.path),
        task_scores=read_task_scores(run.path),
    )


def recorded_run(lines: Iterable[bytes], *, source: str) -> LoggedRun:
    """The run in the lines of a records.jsonl, without its folder."""
    return _ours(read_lines(lines), source=source, config=None)


def _ours(history: History, *, source: str, config: Mapping[str, object] | None) -> LoggedRun:
    records = each_step_once(history.records)
    starts = [record for record in records if isinstance(record, Start)]
    stated = config if config is not None else starts[-1].config if starts else {}
    return LoggedRun(
        source=source,
        format="onecard",
        records=records,
        config=dict(stated),
        card_name=next((start.card for start in reversed(starts) if start.card), None),
        messages=tuple(oom_messages(records)),
        unread_lines=history.damaged_lines,
    )


def oom_messages(records: Iterable[Record]) -> Iterator[Message]:
    """One message for each place where one of our runs ran out of memory, however many times it tried there.

    Its values are torch's sizes, "step", "in_eval", "batch_size_before" of the first try, and "batch_size_after" and
    "accumulation_after" of the last try: None if it gave up.
    """
    failed = (record for record in records if isinstance(record, Oom))
    for (step, where), tries in groupby(failed, key=lambda record: (record.step, record.where)):
        first, *_ = whole = tuple(tries)
        last = whole[-1]
        yield Message(
            kind="oom",
            lines=tuple(Line(0, _tried(record)) for record in whole),
            values={
                **oom_sizes(last.message),
                "step": step,
                "in_eval": where == "eval",
                "batch_size_before": first.batch_size_before,
                "batch_size_after": last.batch_size_after,
                "accumulation_after": last.accumulation_after,
            },
        )


def _tried(record: Oom) -> str:
    after = "no smaller one" if record.batch_size_after is None else f"then {record.batch_size_after}"
    place = "" if record.where == "train" else ", evaluation"
    return f"step {record.step:,}{place}: batches of {record.batch_size_before}, {after}: {record.message}"

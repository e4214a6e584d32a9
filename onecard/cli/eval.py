"""onecard eval: how well a model predicts a text, and answers the questions of benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from onecard import units
from onecard.cli.files import PathType
from onecard.cli.flags import Flag
from onecard.cli.library import KeyCommand, console, json_option, needs_torch
from onecard.errors import ConfigError, MachineError, UsageError

if TYPE_CHECKING:
    from onecard.data.texts import Texts
    from onecard.inputs.harness import Asked
    from onecard.inputs.opened import Opened
    from onecard.runs.scores import TaskScore, TextScore

LONG_TEXT_BYTES = units.MIB  # from here on it is said before what is read


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command, as typed."""

    model: str
    tasks: str | None
    text: str | None
    limit: int | None
    every: str | None
    download: bool
    as_json: bool


@dataclass
class Answer:
    """What was measured so far."""

    results: list[dict[str, object]] = field(default_factory=list)
    text: dict[str, object] = field(default_factory=dict)
    tasks: list[TaskScore] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unkept: MachineError | None = None  # why the run's evals.jsonl could not be written


@click.command(
    "eval",
    cls=KeyCommand,
    keys=("device",),
    short_help="How good a model is: benchmark tasks, bits per byte of a text.",
)
@click.argument("model", metavar="RUN|FOLDER|CKPT", type=PathType())
@click.option(
    "--tasks",
    metavar="core|NAME,…",
    help="Tasks of lm-eval, or files of tasks. core: those that tell small models apart. The default without --text.",
)
@click.option(
    "--text", type=PathType(), metavar="FILE", help="Score this text in bits per byte: .txt, .jsonl, … or a folder."
)
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N documents, or questions of a task."
)
@click.option("--every", type=click.Choice(["checkpoint"]), help="Score each checkpoint that the run still has.")
@click.option("--download", is_flag=True, help="Fetch the questions of tasks from the Hugging Face hub.")
@json_option
@click.pass_obj
def evaluate(flags: list[Flag], /, **options: object) -> int:
    """\b
    Example:
      onecard eval runs/default --tasks hellaswag,piqa --download

    How well a model answers the questions of benchmarks, each score with its error, what guessing gets and what known
    models got. The questions are asked by EleutherAI's lm-eval (pip install 'onecard[eval]').

    With --text, how well it predicts a text: in bits per byte, which models of different tokenizers share, and nats per
    token.

    The model is a run folder, a folder of GPT-2 or nanochat as transformers writes it, or nanoGPT's ckpt.pt. Results
    of a run are kept in its evals.jsonl, where compare finds them; tasks that are there are not asked again, so after
    Ctrl-C the same command goes on with the rest.

    --device=NAME is the only key.
    """
    return _evaluate(Options(**options), flags)  # type: ignore[arg-type]  # click made them by these names


def _evaluate(options: Options, flags: list[Flag]) -> int:
    device = _device(flags)
    needs_torch("scoring runs the model")
    from onecard.inputs.harness import load_tasks, task_names
    from onecard.inputs.opened import open_model

    names = task_names(options.tasks) if options.tasks or options.text is None else []
    checkpoints = _checkpoints(options)
    first = open_model(options.model, device=device, which=checkpoints[0])  # before minutes of loading questions
    tasks = load_tasks(names, command=_command(options), download=options.download) if names else []
    answer = Answer()
    opened = first
    try:
        for number, checkpoint in enumerate(checkpoints):
            opened = first if number == 0 else open_model(options.model, device=device, which=checkpoint)
            answer.notes += [note for note in opened.notes if note not in answer.notes]
            with _numbers(options.model):
                if options.text is not None:
                    _on_text(options, options.text, opened, answer)
                if tasks:
                    _on_tasks(options, tasks, opened, answer, done=number / len(checkpoints), of=len(checkpoints))
    except KeyboardInterrupt:
        _show_tasks(options, opened, answer)
        _say_what_is_kept(options, opened, answer, of=len(tasks) * len(checkpoints))
        raise
    lost = answer.unkept if answer.unkept and answer.unkept.name != "read-only" else None
    if answer.unkept:
        answer.notes.append(f"the score was not kept: {answer.unkept.what}")
    if options.as_json:
        _print_json(opened, answer)
        return lost.exit_code if lost else 0
    _show_tasks(options, opened, answer)
    if lost:
        raise lost
    if opened.run and not answer.unkept:
        talk = console(stderr=True)
        named = quote(str(opened.run))
        what = f"--text {quote(options.text)}" if options.text else f"--tasks {quote(options.tasks or 'core')}"
        talk.print(f"kept in {opened.run / 'evals.jsonl'}", soft_wrap=True)
        talk.print(f"next: onecard eval OTHER {what} && onecard compare {named} OTHER", soft_wrap=True)
    return 0


def _device(flags: list[Flag]) -> str | None:
    """The device that is named; None for the run's own. UsageError for any other key."""
    from onecard.config.resolve import checked, flag_values

    values = flag_values(flags)
    if other := [key for key in values if key != "device"]:
        raise UsageError(
            f"onecard eval takes no --{other[0]}={values[other[0]]}",
            why="a model has its own config; of the keys, eval takes device",
            fix="onecard eval --help",
            name="unexpected-key",
        )
    return checked(values, {key: f"--{key}" for key in values}).device if values else None


def _checkpoints(options: Options) -> list[str]:
    """The steps to score, the first one first, or the newest checkpoint."""
    if options.every is None:
        return ["last"]
    from onecard.config.paths import expanded
    from onecard.runs.checkpoint_state import checkpoints, step_of
    from onecard.runs.folder import CHECKPOINTS, is_run

    folder = Path(expanded(options.model))
    found = sorted({step_of(path) for path in checkpoints(folder / CHECKPOINTS)}) if is_run(folder) else []
    if not found:
        raise UsageError(
            f"{options.model} has no checkpoints to score one by one",
            why="a run keeps its last ones" if is_run(folder) else "only a run folder has several",
            fix="leave --every out",
            name="no-checkpoints",
        )
    return [str(step) for step in found]


def _command(options: Options) -> str:
    tasks = f" --tasks {quote(options.tasks)}" if options.tasks else ""
    limit = f" --limit {options.limit}" if options.limit else ""
    return f"onecard eval {quote(options.model)}{tasks}{limit}"


def _on_text(options: Options, text: str, opened: Opened, answer: Answer) -> None:
    from onecard.data.texts import texts_at
    from onecard.inputs.score_text import score_text
    from onecard.report.console import print_wrapped
    from onecard.report.eval_display import EvalDisplay
    from onecard.report.scores import text_score_json, text_score_lines

    texts = texts_at(text)
    if not options.as_json and not answer.results and (ahead := _to_read(text, texts, options.limit)):
        console(stderr=True).print(ahead, soft_wrap=True, markup=False)
    with EvalDisplay(console(stderr=True), quiet=options.as_json) as display:

        def progress(scored: float) -> None:
            whole = texts.size_bytes if not options.limit else None
            display(scored * texts.read_bytes / whole if whole else None)

        score, bits, notes = score_text(opened, texts, name=text, limit=options.limit, on_progress=progress)
    _keep(opened, score, answer)
    said = text_score_json(score, bits)
    answer.results += [{**row, "step": opened.step} for row in said.pop("results")]  # type: ignore[attr-defined]
    answer.text = said
    answer.notes += [note for note in notes if note not in answer.notes]
    if not options.as_json:
        for line in text_score_lines(score, bits, source=str(opened.source)):
            print_wrapped(line, console())


def _to_read(named: str, texts: Texts, limit: int | None) -> str:
    """`scoring notes: 90 files, 12 MiB; …`, of what may take long; "" for one small file."""
    size = texts.size_bytes
    if len(texts.files) == 1 and (size is None or size < LONG_TEXT_BYTES):
        return ""
    amount = units.things(len(texts.files), "file") + (f", {units.size(size)}" if size is not None else "")
    if limit:
        return f"scoring {named}: the first {'document' if limit == 1 else f'{limit:,} documents'} of {amount}"
    return f"scoring {named}: {amount}; the time left shows after the first batch (--limit N scores N documents only)"


def _on_tasks(
    options: Options, tasks: Sequence[Asked], opened: Opened, answer: Answer, *, done: float, of: int
) -> None:
    """Ask what was not asked of this checkpoint before; a task is kept as soon as it is done."""
    from onecard.inputs.harness import score_task
    from onecard.report.eval_display import EvalDisplay
    from onecard.runs.scores import read_task_scores

    kept = (
        {(score.step, score.task, score.limit): score for score in read_task_scores(opened.run)} if opened.run else {}
    )
    whole = sum(task.characters for task in tasks) or 1
    with EvalDisplay(console(stderr=True), quiet=options.as_json) as display:
        before = 0
        for task in tasks:
            score = kept.get((opened.step, task.name, options.limit))
            if score is None or not _is_same(score, task, opened):

                def progress(share: float, *, before: int = before, task: Asked = task) -> None:
                    display(done + (before + share * task.characters) / whole / of, task.name)

                score = score_task(opened, task, limit=options.limit, on_progress=progress)
                _keep(opened, score, answer)
            answer.tasks.append(score)
            before += task.characters


def _keep(opened: Opened, score: TextScore | TaskScore, answer: Answer) -> None:
    """Append a score to its run; one that cannot be written there is told all the same."""
    from onecard.runs.scores import append_score

    if opened.run:
        try:
            append_score(opened.run, score)
        except MachineError as problem:
            answer.unkept = problem


def _is_same(score: TaskScore, task: Asked, opened: Opened) -> bool:
    """Whether a score that was kept is of these weights and these questions."""
    return (score.weights, score.version, score.harness) == (opened.weights, task.version, task.harness)


def _show_tasks(options: Options, opened: Opened, answer: Answer) -> None:
    from onecard.report.console import print_wrapped
    from onecard.report.messages import print_warnings
    from onecard.report.tables import print_table
    from onecard.report.task_scores import task_lines, task_table

    if options.as_json:
        return
    print_warnings(answer.notes, console(stderr=True))
    if answer.tasks:
        print_table(task_table(answer.tasks), console())
        for line in task_lines(answer.tasks, source=str(opened.source)):
            print_wrapped(line, console())


def _say_what_is_kept(options: Options, opened: Opened, answer: Answer, *, of: int) -> None:
    if of:
        kept = (
            "are kept, and the same command goes on with the rest"
            if opened.run and not answer.unkept
            else "were done; only runs that can be written keep them"
        )
        console(stderr=True).print(f"{len(answer.tasks)} of {of} tasks {kept}", soft_wrap=True)


def _print_json(opened: Opened, answer: Answer) -> None:
    from onecard.report.strict import strict
    from onecard.report.task_scores import task_scores_json

    said = {"schema": 1, "model": str(opened.source), "step": opened.step, "device": opened.device}
    results = [*task_scores_json(answer.tasks), *answer.results]
    click.echo(json.dumps(strict({**said, "results": results, **answer.text, "notes": answer.notes})))


@contextmanager
def _numbers(model: str) -> Iterator[None]:
    """Inside, weights that are not numbers become the error that says so."""
    try:
        yield
    except FloatingPointError as problem:
        raise ConfigError(
            f"the weights of {model} are not numbers",
            why=f"{problem}: the run had diverged when it was saved",
            fix=f"onecard doctor {quote(str(Path(model)))}   (it says when, and what to change)",
            name="weights-not-numbers",
        ) from problem

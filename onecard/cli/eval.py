"""onecard eval: how well a model predicts a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from onecard.cli.files import PathType
from onecard.cli.flags import Flag
from onecard.cli.library import KeyCommand, console, json_option, needs_torch
from onecard.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from onecard.inputs.opened import Opened


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command, as typed."""

    model: str
    text: str | None
    limit: int | None
    as_json: bool


@click.command("eval", cls=KeyCommand, short_help="How good a model is: bits per byte of a text.")
@click.argument("model", metavar="RUN|FOLDER|CKPT", type=PathType())
@click.option("--text", type=PathType(), metavar="FILE", help="Score this text in bits per byte: .txt, .jsonl, …")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the first N documents.")
@json_option
@click.pass_obj
def evaluate(flags: list[Flag], /, **options: object) -> int:
    """\b
    Example:
      onecard eval runs/default --text book.txt

    How well a model predicts a text, in bits per byte, which models of different tokenizers share, and nats per token.

    The model is a run folder, a folder of GPT-2 or nanochat as transformers writes it, or nanoGPT's ckpt.pt. Results
    of a run are kept in its evals.jsonl, where compare finds them.

    --device=NAME is the only key.
    """
    return _evaluate(Options(**options), flags)  # type: ignore[arg-type]  # click made them by these names


def _evaluate(options: Options, flags: list[Flag]) -> int:
    device = _device(flags)
    if options.text is None:
        raise UsageError(
            "nothing to score is named",
            why="a model is scored on a text",
            fix=f"onecard eval {quote(options.model)} --text FILE",
            name="no-text-named",
        )
    needs_torch("scoring runs the model")
    return _on_text(options, options.text, device)


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


def _on_text(options: Options, text: str, device: str | None) -> int:
    from onecard.data.texts import texts_at
    from onecard.report.eval_display import EvalDisplay
    from onecard.report.messages import print_warnings
    from onecard.report.scores import text_score_json, text_score_lines
    from onecard.report.strict import strict
    from onecard.runs.scores import append_score

    texts = texts_at(text)
    opened = _open(options.model, device)
    from onecard.inputs.score_text import score_text

    talk = console(stderr=True)
    with EvalDisplay(talk, quiet=options.as_json) as display:

        def progress() -> None:
            display(texts.read_bytes / texts.size_bytes if texts.size_bytes and not options.limit else None)

        try:
            score, bits, notes = score_text(opened, texts, name=text, limit=options.limit, on_progress=progress)
        except FloatingPointError as problem:
            raise _not_numbers(options.model, problem) from problem
    if opened.run:
        append_score(opened.run, score)
    notes = [*opened.notes, *notes]
    if options.as_json:
        said = {"schema": 1, "model": str(opened.source), "step": opened.step, "device": opened.device}
        click.echo(json.dumps(strict({**said, **text_score_json(score, bits), "notes": notes})))
        return 0
    print_warnings(notes, talk)
    for line in text_score_lines(score, bits, source=str(opened.source)):
        click.echo(line)
    if opened.run:
        named, file = quote(str(opened.run)), quote(text)
        talk.print(f"kept in {opened.run / 'evals.jsonl'}", soft_wrap=True)
        talk.print(f"next: onecard eval OTHER --text {file} && onecard compare {named} OTHER", soft_wrap=True)
    return 0


def _open(model: str, device: str | None) -> Opened:
    from onecard.inputs.opened import open_model

    return open_model(model, device=device)


def _not_numbers(model: str, problem: FloatingPointError) -> ConfigError:
    return ConfigError(
        f"the weights of {model} are not numbers",
        why=f"{problem}: the run had diverged when it was saved",
        fix=f"onecard doctor {quote(str(Path(model)))}   (it says when, and what to change)",
        name="weights-not-numbers",
    )

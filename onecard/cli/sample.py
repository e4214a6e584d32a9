"""onecard sample: text from a run."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onecard.cli.files import PathType
from onecard.cli.flags import Flag
from onecard.cli.library import console, json_option, needs_torch, no_flags

if TYPE_CHECKING:
    from onecard.data.tokenizers import Tokenizer


@click.command(short_help="Text from a trained run.")
@click.argument("run", type=PathType())
@click.option("--prompt", metavar="TEXT", help="What the text begins with; without it, the model begins one.")
@click.option("--length", default=500, type=click.IntRange(min=1), metavar="N", help="Tokens to add.")
@click.option("--temperature", default=0.8, type=float, metavar="T", help="0 takes the likeliest token each time.")
@click.option("--top-k", default=200, type=click.IntRange(min=1), metavar="K", help="Consider the K likeliest tokens.")
@click.option("--best", is_flag=True, help="The checkpoint with the lowest validation loss, not the newest.")
@click.option(
    "--sample-seed", default=1337, type=click.IntRange(0, 2**63 - 1), metavar="N", help="Another seed, another text."
)
@json_option
@click.pass_obj
def sample(
    flags: list[Flag],
    /,
    run: str,
    prompt: str | None,
    length: int,
    temperature: float,
    top_k: int,
    best: bool,
    sample_seed: int,
    as_json: bool,
) -> int:
    """\b
    Example:
      onecard sample runs/default --prompt "def "

    Continues a text, or begins one, with the newest checkpoint of a run, or the best one.
    """
    no_flags(flags, "sample")
    needs_torch("sampling runs the model")
    from onecard.ask.settle import config_of
    from onecard.runs.folder import checkpoint_step, load_run

    found = load_run(Path(run))
    config = config_of(found.path, found.config)
    from onecard.ask.tokenizer import tokenizer_of  # torch only now: a run that is not there is told at once
    from onecard.data.samples import printable
    from onecard.data.tokenizers import new_text
    from onecard.report.strict import strict
    from onecard.report.talk import print_warnings
    from onecard.train import checkpoint
    from onecard.train.device import device_here
    from onecard.train.interchange import checkpoint_of, not_numbers
    from onecard.train.model import GPT
    from onecard.train.sample import generate

    chosen, passed_over = checkpoint_of(found.path, best=best)
    tokenizer = tokenizer_of(found.path, config)
    device, note = device_here(config)
    notes = [*passed_over, *([note] if note else [])]
    if not as_json:
        print_warnings(notes, console(stderr=True))
    model = GPT(config).to(device)
    checkpoint.load(chosen, model=model, optimizer=None, config=config)
    options = {"max_new_tokens": length, "temperature": temperature, "top_k": top_k, "seed": sample_seed}
    options["vocab_size"] = tokenizer.vocab_size
    given = new_text(tokenizer, config.vocab_size) if prompt is None else tokenizer.encode(prompt)
    tokens = generate(model, given, **options)  # type: ignore[arg-type]
    text = ""
    try:
        for piece in _pieces(prompt or "", tokens, tokenizer):
            text += piece
            if not as_json:
                shown = printable(piece) if sys.stdout.isatty() else piece  # a model should not steer a terminal
                click.echo(shown, nl=False, color=True)  # color: as it is
    except FloatingPointError as problem:
        if text and not as_json:
            click.echo()
        raise not_numbers(found.path, chosen, why=str(problem)) from problem
    if not as_json:
        click.echo()
        return 0
    said = {
        "schema": 1,
        "run": str(found.path),
        "step": checkpoint_step(chosen.name),
        "prompt": prompt or "",
        "text": text,  # begins with the prompt, as printed
        "tokens": length,
        "temperature": temperature,
        "top_k": top_k,
        "seed": sample_seed,
        "device": str(device),
        "notes": notes,
    }
    click.echo(json.dumps(strict(said)))
    return 0


def _pieces(prompt: str, tokens: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """The text as it comes: the prompt once there is a first token to follow it, then token by token."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a character may take several tokens
    for token in tokens:
        yield prompt + decoder.decode(tokenizer.token_bytes(token))
        prompt = ""
    yield decoder.decode(b"", final=True)

"""onecard sample: text from a run."""

from __future__ import annotations

import codecs
from pathlib import Path

import click

from onecard.cli.flags import Flag
from onecard.cli.library import console, needs_torch, no_flags


@click.command(short_help="Text from a trained run.")
@click.argument("run")
@click.option("--prompt", default="def ", metavar="TEXT", help="What the text begins with.")
@click.option("--length", default=500, type=click.IntRange(min=1), metavar="N", help="Tokens to add.")
@click.option("--temperature", default=0.8, type=float, metavar="T", help="0 takes the likeliest token each time.")
@click.option("--top-k", default=200, type=click.IntRange(min=1), metavar="K", help="Consider the K likeliest tokens.")
@click.option("--best", is_flag=True, help="The checkpoint with the lowest validation loss, not the newest.")
@click.option("--sample-seed", default=1337, type=int, metavar="N", help="Another seed, another text.")
@click.pass_obj
def sample(
    flags: list[Flag],
    /,
    run: str,
    prompt: str,
    length: int,
    temperature: float,
    top_k: int,
    best: bool,
    sample_seed: int,
) -> int:
    """\b
    Example:
      onecard sample runs/default --prompt "def "

    Continues a text with the newest checkpoint of a run, or the best one.
    """
    no_flags(flags, "sample")
    needs_torch("sampling runs the model")
    from onecard.cli.settle import config_of
    from onecard.cli.tokenizer import tokenizer_of
    from onecard.report.talk import print_warnings
    from onecard.runs.folder import load_run
    from onecard.train import checkpoint
    from onecard.train.interchange import checkpoint_of, not_numbers
    from onecard.train.model import GPT
    from onecard.train.precision import device_here
    from onecard.train.sample import generate

    found = load_run(Path(run))
    config = config_of(found.path, found.config)
    chosen = checkpoint_of(found.path, best=best)
    tokenizer = tokenizer_of(found.path, config)
    device, note = device_here(config)
    print_warnings([note] if note else [], console(stderr=True))
    model = GPT(config).to(device)
    checkpoint.load(chosen, model=model, optimizer=None, config=config)
    options = {"max_new_tokens": length, "temperature": temperature, "top_k": top_k, "seed": sample_seed}
    tokens = generate(model, tokenizer.encode(prompt), **options)  # type: ignore[arg-type]
    text = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a character may take several tokens
    unsaid = prompt  # until there is a first token to follow it
    try:
        for token in tokens:
            click.echo(unsaid + text.decode(tokenizer.token_bytes(token)), nl=False)
            unsaid = ""
    except FloatingPointError as problem:
        if not unsaid:
            click.echo()
        raise not_numbers(found.path, chosen, why=str(problem)) from problem
    click.echo(text.decode(b"", final=True))
    return 0

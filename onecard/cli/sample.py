"""onecard sample: text from a run."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import click

from onecard.cli.flags import Flag
from onecard.cli.library import no_flags
from onecard.errors import ConfigError, MachineError


@click.command(short_help="Text from a trained run.")
@click.argument("run")
@click.option("--prompt", default="def ", metavar="TEXT", help="What the text begins with.")
@click.option("--length", default=500, type=click.IntRange(min=1), metavar="N", help="Tokens to add.")
@click.option("--temperature", default=0.8, type=float, metavar="T", help="0 takes the likeliest token each time.")
@click.option("--top-k", default=200, type=click.IntRange(min=1), metavar="K", help="Consider the K likeliest tokens.")
@click.option("--sample-seed", default=1337, type=int, metavar="N", help="Another seed, another text.")
@click.pass_obj
def sample(
    flags: list[Flag], /, run: str, prompt: str, length: int, temperature: float, top_k: int, sample_seed: int
) -> int:
    """\b
    Example:
      onecard sample runs/default --prompt "def "

    Continues a text with the newest checkpoint of a run.
    """
    no_flags(flags, "sample")
    if find_spec("torch") is None:
        raise MachineError(
            "torch is not installed", why="sampling runs the model", fix='pip install "onecard[train]"', name="no-torch"
        )
    from onecard.config.schema import KEYS, RunConfig
    from onecard.data.dataset import open_dataset
    from onecard.data.stdlib import cache_home
    from onecard.runs.folder import CHECKPOINTS, load_run
    from onecard.train import checkpoint
    from onecard.train.model import GPT
    from onecard.train.precision import choose_device
    from onecard.train.sample import generate

    found = load_run(Path(run))
    config = RunConfig.model_validate({k: v for k, v in (found.config or {}).items() if k in KEYS})
    newest = checkpoint.latest_good(Path(run) / CHECKPOINTS).path
    if newest is None:
        raise ConfigError(
            f"{run} has no checkpoint yet",
            why="a run saves its first one at its first evaluation after step 0",
            fix=f"onecard train --resume {run}",
            name="no-checkpoint",
        )
    tokenizer = open_dataset(config.dataset, home=cache_home(os.environ)).tokenizer
    if tokenizer is None:
        raise ConfigError(
            f"the tokenizer of {config.dataset} is not known",
            why="the data folder does not say how its tokens were made",
            fix="put meta.pkl or meta.json beside train.bin",
            name="no-tokenizer",
        )
    model = GPT(config).to(choose_device(config))
    checkpoint.load(newest, model=model, optimizer=None, config=config)
    options = {"max_new_tokens": length, "temperature": temperature, "top_k": top_k, "seed": sample_seed}
    click.echo(prompt, nl=False)
    for token in generate(model, tokenizer.encode(prompt), **options):  # type: ignore[arg-type]
        click.echo(tokenizer.decode([token]), nl=False)
    click.echo()
    return 0

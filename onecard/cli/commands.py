"""The commands. Heavy imports stay inside them, so that --help is fast."""

from __future__ import annotations

import json

import click

from onecard import __version__
from onecard.cli.bench import bench
from onecard.cli.compare import compare
from onecard.cli.data import data
from onecard.cli.doctor import doctor
from onecard.cli.eval import evaluate
from onecard.cli.export import export
from onecard.cli.flags import Flag
from onecard.cli.import_run import import_run
from onecard.cli.library import Commands, console, json_option, no_flags
from onecard.cli.plan import plan
from onecard.cli.sample import sample
from onecard.cli.train import train
from onecard.cli.tune import tune
from onecard.cli.ui import ui


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(__version__, prog_name="onecard")
def cli() -> None:
    """\b
    Example:
      onecard plan my_nanogpt_config.py --gpu "RTX 4070" --batch_size=8

    Plan, train and understand a GPT on the one graphics card you have.

    Config keys are nanoGPT's, written --key=value anywhere on the line.
    """


cli.add_command(plan)
cli.add_command(train)
cli.add_command(sample)
cli.add_command(evaluate)
cli.add_command(doctor)
cli.add_command(compare)
cli.add_command(ui)
cli.add_command(bench)
cli.add_command(tune)
cli.add_command(data)
cli.add_command(export)
cli.add_command(import_run)


@cli.command(short_help="The cards onecard knows, with sources.")
@click.argument("word", nargs=-1)
@json_option
@click.pass_obj
def gpus(flags: list[Flag], word: tuple[str, ...], as_json: bool) -> int:
    """\b
    Example:
      onecard gpus 4070

    The cards onecard knows, with the source of every figure.

    WORD narrows the list: a model, an architecture ("Ada"), a suffix ("laptop").
    """
    from onecard.plan.cards import search_cards
    from onecard.report.cards import cards_json, print_cards

    no_flags(flags, "gpus")
    found = search_cards(" ".join(word))
    if as_json:
        click.echo(json.dumps(cards_json(found)))
    else:
        print_cards(found, console())
    return 0


@cli.command(short_help="A script that lets your shell complete commands and keys.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_obj
def completion(flags: list[Flag], shell: str) -> int:
    """\b
    Example:
      eval "$(onecard completion bash)"      # put this line into ~/.bashrc

    The script that makes your shell complete onecard's commands, options and keys.
    """
    from click.shell_completion import get_completion_class

    no_flags(flags, "completion")
    kind = get_completion_class(shell)
    assert kind is not None  # click knows the three shells above
    click.echo(kind(cli, {}, "onecard", "_ONECARD_COMPLETE").source())
    return 0

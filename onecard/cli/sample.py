"""onecard sample: text from a run."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from onecard.cli.files import PathType
from onecard.cli.flags import Flag
from onecard.cli.library import (
    KeyCommand,
    best_option,
    checkpoint_option,
    console,
    json_option,
    needs_torch,
    the_one,
    which_checkpoint,
)
from onecard.cli.prompts import ask_again_and_again
from onecard.errors import ConfigError, UsageError
from onecard.visible import visible

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.data.tokenizers import Tokenizer
    from onecard.runs.folder import Run
    from onecard.train.model import GPT
    from onecard.train.sample import Drawn

SEED = 1337
FILE = "FILE:"  # before the name of a file, in nanoGPT's --start
BETWEEN = "---------------"  # after each of several texts, as nanoGPT prints them
TAKEN = ("out_dir", "init_from", "seed", "device", "dtype", "compile")  # keys of nanoGPT's sample.py that are ours, too


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command, as typed."""

    run: str | None
    prompt: str | None
    start: str | None
    length: int
    num_samples: int
    temperature: float
    top_k: int
    best: bool
    checkpoint: str | None
    sample_seed: int | None
    as_json: bool


@dataclass(frozen=True, kw_only=True)
class SampleRequest:
    """The same with nanoGPT's keys: which run, what it continues, and how."""

    run: Path
    prompt: str | None
    checkpoint: str  # best, last, or a step
    seed: int
    device: str | None  # None: the run's own, or what there is


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model to make text with, and the checkpoint it is from."""

    checkpoint: Path
    model: GPT
    tokenizer: Tokenizer
    device: str
    notes: list[str]


@click.command(cls=KeyCommand, keys=TAKEN, short_help="Text from a trained run.")
@click.argument("run", required=False, type=PathType())
@click.option("--prompt", metavar="TEXT", help="What the text begins with; without it, the model begins one.")
@click.option("--start", metavar="TEXT", help="nanoGPT's name for --prompt; FILE:NAME reads it from a file.")
@click.option(
    "--length",
    "--max_new_tokens",
    "length",
    default=500,
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens to add. --max_new_tokens is nanoGPT's name for it.",
)
@click.option("--num_samples", default=1, type=click.IntRange(min=1), metavar="N", help="How many texts to make.")
@click.option("--temperature", default=0.8, type=float, metavar="T", help="0 takes the likeliest token each time.")
@click.option(
    "--top-k",
    "--top_k",
    "top_k",
    default=200,
    type=click.IntRange(min=1),
    metavar="K",
    help="Consider the K likeliest tokens.",
)
@best_option
@checkpoint_option
@click.option(
    "--sample-seed",
    type=click.IntRange(0, 2**63 - 1),
    metavar="N",
    help="Another seed, another text; --seed=N is the same.",
)
@json_option
@click.pass_obj
def sample(flags: list[Flag], /, **options: object) -> int:
    """\b
    Example:
      onecard sample runs/default --prompt "def "

    Continues a text, or begins one, with the newest checkpoint of a run, or another one. On a terminal, without
    --prompt, it asks for a text, shows how it goes on, and asks again. Ctrl-C stops a text, twice leaves.

    What you type for nanoGPT's sample.py works here, too: --start, --num_samples, --max_new_tokens, --temperature,
    --top_k, and the keys --out_dir=RUN, --seed=N, --device=NAME.
    """
    return _sample(Options(**options), flags)  # type: ignore[arg-type]


def _sample(options: Options, flags: list[Flag]) -> int:
    asked = _asked(options, flags)
    needs_torch("sampling runs the model")
    from onecard.inputs.before_run import config_of
    from onecard.runs.folder import checkpoint_step, load_run

    _must_not_be_nanogpts(asked.run)
    found = load_run(asked.run)
    config = config_of(found.path, found.config)
    from onecard.data.tokenizers import new_text
    from onecard.inputs.tokenizer import tokenizer_of  # torch only now: a run that is not there is reported at once
    from onecard.report.messages import print_warnings
    from onecard.report.strict import strict
    from onecard.train import checkpoint
    from onecard.train.device import choose_device, device_here
    from onecard.train.interchange import from_checkpoint
    from onecard.train.model import GPT
    from onecard.train.sample import draw

    def loaded(folder: Path, passed_over: tuple[str, ...]) -> Loaded:
        tokenizer = tokenizer_of(found.path, config)
        if asked.device:
            device, note = choose_device(config.replace({"device": asked.device})), None
        else:
            device, note = device_here(config)
        model = GPT(config).to(device)
        checkpoint.load(folder, model=model, optimizer=None, config=config)
        notes = [*passed_over, *([note] if note else [])]
        return Loaded(checkpoint=folder, model=model, tokenizer=tokenizer, device=str(device), notes=notes)

    chosen = from_checkpoint(found.path, loaded, which=asked.checkpoint)
    tokenizer = chosen.tokenizer
    if not options.as_json:
        print_warnings(chosen.notes, console(stderr=True))
    tokens_of_texts: list[list[dict[str, object]]] = []

    def noted(drawn: Iterable[Drawn]) -> Iterator[int]:
        """Their numbers; for --json also what is told of each."""
        tokens_of_texts.append([])
        for each in drawn:
            if options.as_json:
                text = tokenizer.token_bytes(each.token).decode(errors="replace")
                tokens_of_texts[-1].append({"token": each.token, "text": text, "probability": each.probability})
            yield each.token

    def continued(prompt: str | None, seed: int) -> str:
        """A text, printed as it comes unless --json is wanted."""
        given = new_text(tokenizer, config.vocab_size) if prompt is None else tokenizer.encode(prompt)
        drawn = draw(
            chosen.model,
            given,
            max_new_tokens=options.length,
            temperature=options.temperature,
            top_k=options.top_k,
            seed=seed,
            vocab_size=tokenizer.vocab_size,
        )
        return _text(_pieces(prompt or "", noted(drawn), tokenizer), found, chosen.checkpoint, quiet=options.as_json)

    def all_continued(prompt: str | None, first_seed: int) -> list[str]:
        """As many texts as are wanted."""
        texts = []
        for number in range(options.num_samples):
            texts.append(continued(prompt, first_seed + number))  # each can be made again by itself
            if options.num_samples > 1 and not options.as_json:
                click.echo(BETWEEN)
        return texts

    if asked.prompt is None and not options.as_json and sys.stdin.isatty() and sys.stdout.isatty():
        seeds = count(asked.seed, options.num_samples)  # so that a prompt that is typed twice goes on in another way
        return ask_again_and_again(lambda typed: all_continued(typed or None, next(seeds)))
    prompt = None if _begins_a_text(asked.prompt, tokenizer) else asked.prompt
    texts = all_continued(prompt, asked.seed)
    if not options.as_json:
        return 0
    said = {
        "schema": 1,
        "run": str(found.path),
        "step": checkpoint_step(chosen.checkpoint.name),
        "prompt": prompt or "",
        "text": texts[0],  # begins with the prompt, as printed
        "texts": texts,
        "tokens": options.length,
        "tokens_of_texts": tokens_of_texts,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "seed": asked.seed,
        "device": chosen.device,
        "notes": chosen.notes,
    }
    click.echo(json.dumps(strict(said)))
    return 0


def _asked(options: Options, flags: list[Flag]) -> SampleRequest:
    """What was asked for, in onecard's words or in nanoGPT's; UsageError where both are used for one thing."""
    keys = _keys(flags)
    run = the_one("RUN", options.run, "--out_dir", keys.out_dir if "out_dir" in keys.model_fields_set else None)
    if run is None:
        raise UsageError(
            "no run is named",
            why="the text comes from a trained run",
            fix="onecard sample runs/default, or nanoGPT's --out_dir=runs/default",
        )
    start = None if options.start is None else _started(options.start)
    seed = the_one(
        "--sample-seed", options.sample_seed, "--seed", keys.seed if "seed" in keys.model_fields_set else None
    )
    return SampleRequest(
        run=Path(run),
        prompt=the_one("--prompt", options.prompt, "--start", start),
        checkpoint=which_checkpoint(options.checkpoint, best=options.best),
        seed=SEED if seed is None else seed,
        device=keys.device if "device" in keys.model_fields_set else None,
    )


def _keys(flags: list[Flag]) -> RunConfig:
    """The keys of nanoGPT's sample.py that were set; UsageError for those that have no effect or another meaning."""
    from onecard.config.resolve import checked, flag_values

    values = flag_values(flags)
    if other := [key for key in values if key not in TAKEN]:
        raise UsageError(
            f"onecard sample takes no --{other[0]}={values[other[0]]}",
            why="a run has its own config; of the keys, sample takes out_dir, seed and device, as nanoGPT's sample.py",
            fix="onecard sample --help",
            name="unexpected-key",
        )
    keys = checked(values, {key: f"--{key}" for key in values})
    if "init_from" in values and keys.init_from != "resume":
        model = quote(keys.init_from)
        raise UsageError(
            f"onecard sample does not take --init_from={keys.init_from}",
            why="it samples runs; a model from elsewhere becomes one with onecard import",
            fix=f"onecard import {model} --download, then onecard sample with the run that it names",
            name="unexpected-key",
        )
    if "compile" in values and keys.compile:
        raise _without_effect("compile=True", "the model is not compiled: every new length would be compiled again")
    if keys.dtype not in ("auto", "float32"):
        raise _without_effect(f"dtype={keys.dtype}", "the text is computed in float32")
    return keys


def _without_effect(setting: str, why: str) -> UsageError:
    key = setting.partition("=")[0]
    return UsageError(
        f"--{setting} has no effect on onecard sample", why=why, fix=f"leave --{key} out", name="unexpected-key"
    )


def _started(start: str) -> str:
    """The text of nanoGPT's --start: its own, or that of the file it names."""
    from onecard.inputs.text import read_text

    return read_text(Path(start.removeprefix(FILE)), kind="prompt") if start.startswith(FILE) else start


def _begins_a_text(prompt: str | None, tokenizer: Tokenizer) -> bool:
    """Whether there is nothing to continue: no prompt, or only the mark between two texts, as nanoGPT takes it."""
    from onecard.data.tokenizer_json import END_OF_TEXT

    return prompt is None or (prompt == END_OF_TEXT and tokenizer.end_of_text is not None)


def _must_not_be_nanogpts(folder: Path) -> None:
    """ConfigError where a folder holds a checkpoint of nanoGPT, which only onecard import reads."""
    from onecard.runs.folder import is_run

    if (folder / "ckpt.pt").is_file() and not is_run(folder):
        name = folder.resolve().name
        raise ConfigError(
            f"{folder} is a folder of nanoGPT's",
            why="its ckpt.pt becomes a run with onecard import",
            fix=f"onecard import {quote(str(folder / 'ckpt.pt'))}, then onecard sample {quote(f'runs/{name}')}",
            name="nanogpt-folder",
        )


def _text(pieces: Iterable[str], run: Run, chosen: Path, *, quiet: bool) -> str:
    """One text, printed as it comes unless `quiet`."""
    from onecard.train.interchange import not_numbers

    text = ""
    try:
        for piece in pieces:
            text += piece
            if not quiet:
                shown = visible(piece) if sys.stdout.isatty() else piece  # a model should not steer a terminal
                click.echo(shown, nl=False, color=True)  # color: as it is
    except FloatingPointError as problem:
        if text and not quiet:
            click.echo()
        raise not_numbers(run.path, chosen, why=str(problem)) from problem
    if not quiet:
        click.echo()
    return text


def _pieces(prompt: str, tokens: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """The text as it comes: the prompt together with the first token, then token by token."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a character may take several tokens
    for token in tokens:
        yield prompt + decoder.decode(tokenizer.token_bytes(token))
        prompt = ""
    yield decoder.decode(b"", final=True)
